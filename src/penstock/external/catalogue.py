# SPDX-License-Identifier: Apache-2.0
"""The index of a host service on disk: applications, and what they have committed. SQLite, written by one process.

Rules: a row is there before readers are told of its partition, so what was committed is there after `kill -9`.
After a loss of power the newest rows may be missing, as files may: then partitions are made again. A user has one
result of a name, and the former one goes in the transaction in which the new one comes: it can't be found again. A
database of another version is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.errors import StorageError
from penstock.external.accounts import Account, KeptPartition
from penstock.external.keys import ApplicationKey
from penstock.external.requests import KeptState
from penstock.machine.database import Database
from penstock.shuffle import DatasetId, PartitionId

_VERSION = 3
_TABLES = """
create table applications (
    name text primary key, title text, key blob, user integer, kept text, description blob
) without rowid;
create unique index results on applications (user, kept) where kept <> '';
create table partitions (
    number integer primary key autoincrement, application text, dataset text, place integer, attempt integer,
    subpartitions integer, state text, folder text, bytes integer, cause text
);
create unique index identities on partitions (application, dataset, place, attempt);
"""


class Catalogue:
    """The database at `path`. StorageError where it can't be read or written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._base = Database(path, _TABLES, _VERSION, self._failure)

    def accounts(self) -> Iterator[Account]:
        """The applications, with their partitions."""
        columns = "name, title, key, user, kept, description"
        for name, title, key, user, kept_as, description in self._base.run(
            f"select {columns} from applications"  # noqa: S608 - our own names
        ).fetchall():
            account = Account(ApplicationKey(title, key), user, kept=kept_as, description=description)
            rows = self._base.run(
                "select number, dataset, place, attempt, subpartitions, state, folder, bytes, cause from partitions"
                " where application = ? order by number",
                name,
            )
            for number, dataset, place, attempt, subpartitions, state, folder, size, cause in rows:
                identity = PartitionId(DatasetId.of(dataset), place, attempt)
                account.add(KeptPartition(number, identity, subpartitions, KeptState(state), folder, size, cause))
            yield account

    def add_application(self, account: Account) -> None:
        """An application has come."""
        key = account.key
        values = key.name, key.title, key.key, account.user, account.kept, account.description
        self._base.run("insert into applications values (?, ?, ?, ?, ?, ?)", *values)

    def move(self, numbers: Iterable[int], account: Account) -> None:
        """Add a result, which takes these partitions over and the place of the one of its name: all or nothing."""
        with self._base.at_once():
            former = self._base.run(
                "select name from applications where user = ? and kept = ?", account.user, account.kept
            ).fetchall()
            for (name,) in former:
                self._base.run("update applications set kept = '' where name = ?", name)
            self.add_application(account)
            for number in numbers:
                self._base.run("update partitions set application = ? where number = ?", account.key.name, number)
            for (name,) in former:
                self._remove(name)

    def remove_application(self, account: Account) -> None:
        """An application is over, with all that it has: all of it or nothing."""
        with self._base.at_once():
            self._remove(account.key.name)

    def add(self, account: Account, partition: PartitionId, subpartitions: int) -> int:
        """A partition is being written; its number, which no other one ever has."""
        found = self._base.run(
            "insert into partitions"
            " (application, dataset, place, attempt, subpartitions, state, folder, bytes, cause)"
            " values (?, ?, ?, ?, ?, ?, '', 0, '')",
            account.key.name,
            str(partition.dataset),
            partition.index,
            partition.attempt,
            subpartitions,
            KeptState.WRITING.value,
        )
        assert found.lastrowid is not None  # noqa: S101 - an insert
        return found.lastrowid

    def write(self, kept: KeptPartition) -> None:
        """A partition is in another state."""
        self._base.run(
            "update partitions set state = ?, folder = ?, bytes = ?, cause = ? where number = ?",
            kept.state.value,
            kept.folder,
            kept.bytes,
            kept.cause,
            kept.number,
        )

    def remove(self, kept: KeptPartition) -> None:
        """Nothing more is said of a partition."""
        self._base.run("delete from partitions where number = ?", kept.number)

    def close(self) -> None:
        """Close it; idempotent."""
        self._base.close()

    def _remove(self, name: str) -> None:
        self._base.run("delete from partitions where application = ?", name)
        self._base.run("delete from applications where name = ?", name)

    def _failure(self, error: Exception) -> StorageError:
        return StorageError(
            f"the index of this host's shuffle service, {self._path}, can't be used: {error}. See that its disk has"
            " room and is sound"
        )
