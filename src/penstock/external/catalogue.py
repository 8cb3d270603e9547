# SPDX-License-Identifier: Apache-2.0
"""The index of a host service on disk: applications, and what they have committed. SQLite, written by one process.

Rules: a row is there before readers are told of its partition, so what was committed is there after `kill -9`.
After a loss of power the newest rows may be missing, as files may: then partitions are made again. A user has one
result of a name that is current; the former one is whole until it is told to go. A folder is named before it is made,
and until it is removed: in the row of its partition or result, or, when that is gone, among the doomed. So whatever a
service removes is named here. The index has an id, which its folders carry. A database of another version is refused.
One thread at a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from penstock.errors import StorageError
from penstock.external.accounts import Account, AccountRole, KeptPartition
from penstock.external.keys import ApplicationKey
from penstock.external.requests import KeptState
from penstock.machine.database import Database, DatabaseForm
from penstock.shuffle import DatasetId, PartitionId

INDEX_NAME = "catalogue.db"
_VERSION = 4
_SERVICE = "create table service (id text, is_fresh integer);"
_DOOMED = "create table doomed (folder text primary key) without rowid;"
_RESULTS = "create unique index results on applications (user, kept) where role = 'current';"
_TABLES = f"""
{_SERVICE}
create table applications (
    name text primary key, title text, key blob, user integer, kept text, role text, folder text, made integer
) without rowid;
{_RESULTS}
create table partitions (
    number integer primary key autoincrement, application text, dataset text, place integer, attempt integer,
    subpartitions integer, state text, folder text, bytes integer, cause text
);
create unique index identities on partitions (application, dataset, place, attempt);
{_DOOMED}
"""
_OF_3 = (
    _SERVICE
    + _DOOMED
    + """
alter table applications add column role text default '';
alter table applications add column folder text default '';
alter table applications add column made integer default 0;
update applications set role = 'current', made = 1 where kept <> '';
drop index results;
"""
    + _RESULTS
)
"""Tables of version 3, which had no ids."""
_OLDER = "where it is older, its folders carry no ids: run the same command once with --adopt"
_COLUMNS = "name, title, key, user, kept, role, folder, made"


class Catalogue:
    """The database at `path`. StorageError where it can't be read or written.

    With `adopts` one of version 3 becomes one of this version; `id` is that of a new one, else it draws one.
    """

    def __init__(self, path: Path, *, adopts: bool = False, id: str = "") -> None:  # noqa: A002 - as of its folders
        self.path = path
        upgrade = {3: _OF_3} if adopts else {}
        form = DatabaseForm(_TABLES, _VERSION, upgrade, _OLDER)
        self._base = Database(path, form, self._failure, stays_in_its_thread=False)
        if self._base.run("select id from service").fetchone() is None:
            is_fresh = not id and self._base.run("select 1 from applications").fetchone() is None
            self._base.run("insert into service values (?, ?)", id or secrets.token_hex(12), is_fresh)
        self.id, self.is_fresh = self._base.run("select id, is_fresh from service").fetchone()

    def used(self) -> None:
        """Its folders carry its id."""
        if self.is_fresh:
            self._base.run("update service set is_fresh = 0")
            self.is_fresh = False

    def descriptions(self) -> Iterator[tuple[str, bytes]]:
        """Those of results that version 3 had here, by the names of their accounts."""
        with suppress(StorageError):  # no such column
            yield from self._base.run(
                "select name, description from applications where kept <> '' and folder = ''"
            ).fetchall()

    def accounts(self) -> Iterator[Account]:
        """The applications, with their partitions."""
        for name, title, key, user, kept_as, role, folder, made in self._base.run(
            f"select {_COLUMNS} from applications"  # noqa: S608 - our own names
        ).fetchall():
            account = Account(
                ApplicationKey(title, key), user, kept=kept_as, role=AccountRole(role), folder=folder, made=made
            )
            rows = self._base.run(
                "select number, dataset, place, attempt, subpartitions, state, folder, bytes, cause from partitions"
                " where application = ? order by number",
                name,
            )
            for number, dataset, place, attempt, subpartitions, state, where, size, cause in rows:
                identity = PartitionId(DatasetId.of(dataset), place, attempt)
                account.add(KeptPartition(number, identity, subpartitions, KeptState(state), where, size, cause))
            yield account

    def add_application(self, account: Account) -> None:
        """An application has come, or a result."""
        key = account.key
        values = key.name, key.title, key.key, account.user, account.kept, account.role.value, account.folder
        self._base.run(
            f"insert into applications ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - our own names
            *values,
            account.made,
        )

    def place(self, account: Account) -> None:
        """A result has a folder, or another one."""
        self._base.run("update applications set folder = ? where name = ?", account.folder, account.key.name)

    def move(self, numbers: Iterable[int], account: Account) -> None:
        """Have this account take these partitions over: all or none."""
        with self._base.at_once():
            for number in numbers:
                self._base.run("update partitions set application = ? where number = ?", account.key.name, number)

    def give_roles(self, roles: Iterable[tuple[Account, AccountRole]]) -> None:
        """Have results be something else, in this order: all or none."""
        with self._base.at_once():
            for account, role in roles:
                self._base.run("update applications set role = ? where name = ?", role.value, account.key.name)

    def remove_application(self, account: Account, doomed: Iterable[str] = ()) -> None:
        """An application is over, with all that it has, and folders are to go: all of it or nothing."""
        with self._base.at_once():
            self._doom(doomed)
            self._remove(account.key.name)

    def last_number(self) -> int:
        """The largest number that a partition ever had."""
        found = self._base.run("select seq from sqlite_sequence where name = 'partitions'").fetchone()
        return 0 if found is None else int(found[0])

    def add(self, account: Account, kept: KeptPartition) -> None:
        """A partition is to be written in its folder, with a number that no other one ever has."""
        self._base.run(
            "insert into partitions"
            " (number, application, dataset, place, attempt, subpartitions, state, folder, bytes, cause)"
            " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            kept.number,
            account.key.name,
            str(kept.partition.dataset),
            kept.partition.index,
            kept.partition.attempt,
            kept.subpartitions,
            kept.state.value,
            kept.folder,
            kept.bytes,
            kept.cause,
        )

    def write(self, kept: KeptPartition) -> None:
        """A partition is in another state. Its row goes on naming its folder, until the row goes."""
        self._base.run(
            "update partitions set state = ?, bytes = ?, cause = ? where number = ?",
            kept.state.value,
            kept.bytes,
            kept.cause,
            kept.number,
        )

    def remove(self, partitions: Iterable[KeptPartition], doomed: Iterable[str]) -> None:
        """Nothing more is said of partitions, and folders are to go: all of it or nothing."""
        with self._base.at_once():
            self._doom(doomed)
            for kept in partitions:
                self._base.run("delete from partitions where number = ?", kept.number)

    def doomed(self) -> list[str]:
        """The folders that are to go, and that no row names."""
        return [folder for (folder,) in self._base.run("select folder from doomed").fetchall()]

    def gone(self, folder: str) -> None:
        """A doomed folder is gone."""
        self._base.run("delete from doomed where folder = ?", folder)

    def close(self) -> None:
        """Close it; idempotent."""
        self._base.close()

    def _doom(self, folders: Iterable[str]) -> None:
        for folder in folders:
            self._base.run("insert or ignore into doomed values (?)", folder)

    def _remove(self, name: str) -> None:
        self._base.run("delete from partitions where application = ?", name)
        self._base.run("delete from applications where name = ?", name)

    def _failure(self, error: Exception) -> StorageError:
        return StorageError(
            f"the index of this host's shuffle service, {self.path}, can't be used: {error}. See that its disk has"
            " room and is sound"
        )
