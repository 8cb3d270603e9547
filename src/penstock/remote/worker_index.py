# SPDX-License-Identifier: Apache-2.0
"""A worker's index on disk: its name, its starts, and whose blocks lie where, of all committed writers. SQLite.

Rules: a row is there before a commit is answered, so a worker that is killed serves after its start what was
committed. Other rows go when it starts. After a loss of power rows or blocks may be missing:
readers find it by the checksums. Each start draws a token, and all since the last one that the manager has taken are
the folder's lineage: a copy of the folder that was started itself has another one. A database of another version is
refused. One thread at a time.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import StorageError
from penstock.machine.database import Database, DatabaseForm
from penstock.remote.merged import Spot, Sums
from penstock.remote.wire import SUM

INDEX_NAME: Final = "index.sqlite"
_VERSION = 2
_SPOT = struct.Struct("<IQQI")
"""File, number of the file on the disk, offset, bytes."""
_TABLES = """
create table worker (name text);
create table starts (number integer primary key autoincrement, token text);
create table writers (
    application text, dataset text, writer integer, partition text, sums blob, spots blob,
    primary key (application, dataset, writer)
) without rowid;
"""


class CommittedWriter(NamedTuple):
    """One writer's part of a partition: where its blocks lie, by file, and the sums of each file."""

    application: str
    dataset: str
    writer: int
    partition: str
    sums: Mapping[int, Sums]
    spots: Mapping[int, Sequence[Spot]]


class WorkerIndex:
    """The database in a worker's first folder. StorageError where it can't be read or written."""

    def __init__(self, folder: Path) -> None:
        self._path = path = folder / INDEX_NAME
        self._base = Database(path, DatabaseForm(_TABLES, _VERSION), self._failure, stays_in_its_thread=False)
        if self._base.run("select name from worker").fetchone() is None:
            self._base.run("insert into worker values (?)", secrets.token_hex(6))

    @property
    def id(self) -> str:
        """The worker's name, which its folders carry too."""
        (found,) = self._base.run("select name from worker").fetchone()
        return str(found)

    @property
    def is_fresh(self) -> bool:
        """True before the first start."""
        return not self.lineage()

    def begin(self) -> None:
        """Draw the token of a start."""
        self._base.run("insert into starts (token) values (?)", secrets.token_hex(8))

    def lineage(self) -> tuple[str, ...]:
        """The tokens of the starts, from the last one that the manager is known to have taken; the newest last."""
        return tuple(token for (token,) in self._base.run("select token from starts order by number").fetchall())

    def taken(self, token: str) -> None:
        """The manager has taken this start: those before it are history."""
        self._base.run("delete from starts where number < (select number from starts where token = ?)", token)

    def writers(self) -> Iterator[CommittedWriter]:
        """All that have committed; StorageError for rows that make no sense."""
        for application, dataset, writer, partition, sums, packed in self._base.run(
            "select * from writers"
        ).fetchall():
            spots: dict[int, list[Spot]] = {}
            try:
                for file, *spot in _SPOT.iter_unpack(packed):
                    spots.setdefault(file, []).append(Spot(*spot))
                found = {file: (rows, nbytes, checksum) for file, rows, nbytes, checksum in SUM.iter_unpack(sums)}
            except struct.error as error:
                raise self._failure(error) from error
            yield CommittedWriter(application, dataset, writer, partition, found, spots)

    def add(self, committed: CommittedWriter) -> None:
        """A writer has committed."""
        application, dataset, writer, partition, sums, spots = committed
        packed = b"".join(_SPOT.pack(file, *spot) for file, theirs in spots.items() for spot in theirs)
        packed_sums = b"".join(SUM.pack(file, *each) for file, each in sums.items())
        values = application, dataset, writer, partition, packed_sums, packed
        self._base.run("insert or replace into writers values (?, ?, ?, ?, ?, ?)", *values)

    def drop(self, application: str, dataset: str, writer: int | None) -> None:
        """Nobody needs what a writer has, or all of a dataset."""
        which = "application = ? and dataset = ?"
        if writer is None:
            self._base.run(f"delete from writers where {which}", application, dataset)  # noqa: S608 - our own words
        else:
            self._base.run(f"delete from writers where {which} and writer = ?", application, dataset, writer)  # noqa: S608

    def close(self) -> None:
        """Close it; idempotent."""
        self._base.close()

    def _failure(self, error: Exception) -> StorageError:
        return StorageError(
            f"the index of this worker, {self._path}, can't be used: {error}. See that its disk has room and is"
            " sound; without the folder the worker begins with nothing"
        )
