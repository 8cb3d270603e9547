# SPDX-License-Identifier: Apache-2.0
"""A worker's index on disk: its name, its starts, and whose blocks lie where, of all committed writers. SQLite.

Rules: the rows are there before a commit is answered, so a worker that is killed serves after its start what was
committed. After a loss of power rows or blocks may be missing: readers find it by the checksums. The places of blocks
are never all in memory: they lie in rows of one writer and a bucket of neighbouring files, and a start reads none of
them. Each start draws a token, and all since the last one that the manager has taken are the folder's lineage: a copy
of the folder that was started itself has another one. A database of another version is refused. One thread at a time.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import StorageError
from penstock.machine.database import Database, DatabaseForm
from penstock.remote.merged import BUCKET, MergedFile, files_in
from penstock.remote.read_page import ReadPage, Row, WantedPage, bucket_rows, buckets_of, read_page

INDEX_NAME: Final = "index.sqlite"
_VERSION = 3
_FILE = struct.Struct("<IQQ")
"""File, its number on the disk, bytes."""
_BUCKETS_AT_ONCE = 64
_TABLES = """
create table worker (name text);
create table starts (number integer primary key autoincrement, token text);
create table words (token text, records integer);
create table datasets (number integer primary key, application text, dataset text, unique (application, dataset));
create table writers (
    dataset integer, writer integer, partition text, held blob, primary key (dataset, writer)
) without rowid;
create table files (dataset integer, bucket integer, files blob, primary key (dataset, bucket)) without rowid;
create table blocks (
    dataset integer, bucket integer, writer integer, sums blob, places blob, primary key (dataset, bucket, writer)
) without rowid;
"""


class CommittedWriter(NamedTuple):
    """One writer's part of a partition: its files, of each the sums (`SUM`), and where its blocks lie (`PLACE`)."""

    application: str
    dataset: str
    writer: int
    partition: str
    held: int
    sums: bytes
    places: bytes


class KnownWriters(NamedTuple):
    """A dataset that has committed writers: each with its partition and files, and the files on the disk."""

    application: str
    dataset: str
    writers: list[tuple[int, str, int]]
    files: dict[int, MergedFile]


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

    def known(self) -> Iterator[KnownWriters]:
        """All that have committed, by dataset; StorageError for rows that make no sense."""
        run = self._base.run
        for number, application, dataset in run("select number, application, dataset from datasets").fetchall():
            writers = [
                (writer, partition, int.from_bytes(held, "little"))
                for _, writer, partition, held in run("select * from writers where dataset = ?", number).fetchall()
            ]
            files: dict[int, MergedFile] = {}
            for (packed,) in run("select files from files where dataset = ?", number).fetchall():
                try:
                    files |= {file: MergedFile(path, size) for file, path, size in _FILE.iter_unpack(packed)}
                except struct.error as error:
                    raise self._failure(error) from error
            yield KnownWriters(application, dataset, writers, files)

    def words(self) -> list[tuple[str, int]]:
        """The manager's words about its log that were heard with the last commit."""
        return [(token, records) for token, records in self._base.run("select * from words").fetchall()]

    def add(
        self, committed: CommittedWriter, files: Mapping[int, MergedFile], words: Iterable[tuple[str, int]] = ()
    ) -> None:
        """A writer has committed, in files that are so now, with all in their buckets; these words were heard."""
        application, dataset, writer, partition, held, sums, places = committed
        by_bucket: dict[int, bytearray] = {}
        for file, merged in files.items():
            by_bucket.setdefault(file // BUCKET, bytearray()).extend(_FILE.pack(file, merged.path, merged.size))
        with self._base.at_once():
            run = self._base.run
            run("insert or ignore into datasets (application, dataset) values (?, ?)", application, dataset)
            number = self._number(application, dataset)
            bits = held.to_bytes((held.bit_length() + 7) // 8, "little")
            run("insert or replace into writers values (?, ?, ?, ?)", number, writer, partition, bits)
            for bucket, row in bucket_rows(sums, places):
                run("insert or replace into blocks values (?, ?, ?, ?, ?)", number, bucket, writer, *row)
            run("delete from words")
            for word in words:
                run("insert into words values (?, ?)", *word)
            for bucket, packed in by_bucket.items():
                run("insert or replace into files values (?, ?, ?)", number, bucket, packed)

    def read(self, wanted: WantedPage) -> ReadPage:
        """The places of the blocks that a reader wants; IncompleteDataError where some are missing here."""
        number, which = self._number(wanted.application, wanted.dataset), json.dumps(list(wanted.writers))
        found: list[Row] = []
        for bucket in buckets_of(wanted.paths):
            rows = self._base.run(
                "select writer, sums, places from blocks where dataset = ? and bucket = ?"
                " and writer in (select value from json_each(?))",
                *(number, bucket, which),
            )
            found += [Row(bucket, *row) for row in rows.fetchall()]
        return read_page(found, wanted)

    def drop_writer(self, application: str, dataset: str, writer: int, held: int) -> None:
        """Nobody needs what a writer has, in these files."""
        number = self._number(application, dataset)
        with self._base.at_once():
            self._base.run("delete from writers where dataset = ? and writer = ?", number, writer)
            for bucket in buckets_of(files_in(held)):
                self._base.run(
                    "delete from blocks where dataset = ? and bucket = ? and writer = ?", number, bucket, writer
                )

    def drop_some(self, application: str, dataset: str) -> bool:
        """Drop some of a dataset that nobody needs; False if nothing of it is left."""
        number = self._number(application, dataset)
        with self._base.at_once():
            run = self._base.run
            run("delete from writers where dataset = ?", number)
            run("delete from files where dataset = ?", number)
            (first,) = run("select min(bucket) from blocks where dataset = ?", number).fetchone()
            if first is None:
                run("delete from datasets where number = ?", number)
                return False
            run("delete from blocks where dataset = ? and bucket < ?", number, first + _BUCKETS_AT_ONCE)
        return True

    def close(self) -> None:
        """Close it; idempotent."""
        self._base.close()

    def _number(self, application: str, dataset: str) -> int:
        """The number of a dataset, or -1."""
        found = self._base.run(
            "select number from datasets where application = ? and dataset = ?", application, dataset
        ).fetchone()
        return -1 if found is None else int(found[0])

    def _failure(self, error: Exception) -> StorageError:
        return StorageError(
            f"the index of this worker, {self._path}, can't be used: {error}. See that its disk has room and is"
            " sound; without the folder the worker begins with nothing"
        )
