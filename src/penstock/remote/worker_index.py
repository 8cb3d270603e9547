# SPDX-License-Identifier: Apache-2.0
"""A worker's index on disk: its name, its starts, and whose blocks lie where, of all committed writers. SQLite.

Rules: the rows are there before a commit is answered, so a worker that is killed serves after its start what was
committed. After a loss of power rows or blocks may be missing: readers find it by the checksums. The places of blocks
are never all in memory: they lie in rows of one writer and a bucket of neighbouring files, and a start reads none of
them. The rows of a commit have numbers that follow each other, beyond all others: they lie together on the disk, and
the first one's number tells where each is, without a search. Each start draws a token, and all since the last one
that the manager has taken are the folder's lineage: a copy of the folder that was started itself has another one. A
database of another version is refused. One thread at a time.

Limit: blocks on the disk name a writer and a file, and nothing else: not whose they are, whether they were committed,
nor what rows they have. So an index that is lost can't be made again from them.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import IncompleteDataError, StorageError
from penstock.machine.database import Database, DatabaseForm
from penstock.remote.merged import Held, Pushed
from penstock.remote.read_page import ReadPage, WantedPage, packed_rows, read_page

INDEX_NAME: Final = "index.sqlite"
_VERSION = 4
_FILE = struct.Struct("<IQ")
"""File, and its number on the disk."""
_WRITERS_AT_ONCE = 16
_TABLES = """
create table worker (name text);
create table starts (number integer primary key autoincrement, token text);
create table words (token text, records integer);
create table datasets (number integer primary key, application text, dataset text, unique (application, dataset));
create table writers (
    dataset integer, writer integer, partition text, held blob, begin integer, past integer,
    primary key (dataset, writer)
) without rowid;
create table files (dataset integer, begin integer, files blob, primary key (dataset, begin)) without rowid;
create table blocks (number integer primary key, sums blob, places blob);
create table garbage (begin integer, past integer);
"""
# One statement for all rows: between two of them Python gives its lock to the event loop, and waits to get it back.
_INSERT = """
insert into blocks select ? + json_extract(value, '$[0]'),
    substr(rows.sums, 1 + json_extract(value, '$[1]'), json_extract(value, '$[2]')),
    substr(rows.places, 1 + json_extract(value, '$[3]'), json_extract(value, '$[4]'))
from (select ? as sums, ? as places) as rows, json_each(?)
"""
_SELECT = """
select '[' || group_concat(number) || '],[' || group_concat(coalesce(length(sums), 0)) || ']',
    group_concat(hex(sums), ''), group_concat(hex(places), '')
from blocks where number in (select value from json_each(?))
"""


class CommittedWriter(NamedTuple):
    """One writer's part of a partition."""

    application: str
    dataset: str
    writer: int
    partition: str
    pushed: Pushed


class KnownWriters(NamedTuple):
    """A dataset that has committed writers: each with its partition and part, and the paths of its files."""

    application: str
    dataset: str
    writers: list[tuple[int, str, Held]]
    paths: dict[int, int]


class WorkerIndex:
    """The database in a worker's first folder. StorageError where it can't be read or written."""

    def __init__(self, folder: Path) -> None:
        self._path = path = folder / INDEX_NAME
        self._base = Database(path, DatabaseForm(_TABLES, _VERSION), self._failure, stays_in_its_thread=False)
        if self._base.run("select name from worker").fetchone() is None:
            self._base.run("insert into worker values (?)", secrets.token_hex(6))
        (last,) = self._base.run("select max(number) from blocks").fetchone()
        self._next = (last or 0) + 1
        """The number of the next row of places."""
        self._words = self.words()

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
                (writer, partition, Held(int.from_bytes(held, "little"), begin))
                for _, writer, partition, held, begin, _ in run(
                    "select * from writers where dataset = ?", number
                ).fetchall()
            ]
            paths: dict[int, int] = {}
            for (packed,) in run("select files from files where dataset = ? order by begin", number).fetchall():
                try:
                    paths |= dict(_FILE.iter_unpack(packed))
                except struct.error as error:
                    raise self._failure(error) from error
            yield KnownWriters(application, dataset, writers, paths)

    def words(self) -> list[tuple[str, int]]:
        """The manager's words about its log that were heard with the last commit."""
        return [(token, records) for token, records in self._base.run("select * from words").fetchall()]

    def add(self, committed: CommittedWriter, words: Iterable[tuple[str, int]] = ()) -> int:
        """A writer has committed; these words were heard. The number of the first of its rows. Idempotent."""
        application, dataset, writer, partition, (held, sums, places, files) = committed
        run, begin = self._base.run, self._next
        rows = packed_rows(sums, places)
        past = begin + rows.cuts[-1][0] + 1 if rows.cuts else begin
        unnamed = {file: merged for file, merged in files.items() if not merged.is_named}
        heard = list(words)
        with self._base.at_once():
            number = self._number(application, dataset)
            if number < 0:
                run("insert into datasets (application, dataset) values (?, ?)", application, dataset)
                number = self._number(application, dataset)
            bits = held.to_bytes((held.bit_length() + 7) // 8, "little")
            values = number, writer, partition, bits, begin, past
            if not run("insert or ignore into writers values (?, ?, ?, ?, ?, ?)", *values).rowcount:
                return self._begin(number, writer)
            run(_INSERT, begin, rows.sums, rows.places, json.dumps(rows.cuts))
            if unnamed:
                packed = b"".join(_FILE.pack(file, merged.path) for file, merged in unnamed.items())
                run("insert into files values (?, ?, ?)", number, begin, packed)
            if heard != self._words:
                run("delete from words")
                for word in heard:
                    run("insert into words values (?, ?)", *word)
        self._next, self._words = past, heard
        for merged in unnamed.values():
            merged.is_named = True
        return begin

    def read(self, wanted: WantedPage) -> ReadPage:
        """The places of the blocks that a reader wants; IncompleteDataError where some are missing here."""
        writers = wanted.rows
        told, sums, places = self._base.run(_SELECT, json.dumps(list(writers))).fetchone()
        numbers, sizes = json.loads(f"[{told or '[],[]'}]")
        if len(numbers) < len(writers):
            lost = writers[min(writers.keys() - set(numbers))]
            raise IncompleteDataError(f"the index has lost blocks of writer {lost:x}")
        rows = [(writers[number], size) for number, size in zip(numbers, sizes, strict=True)]
        return read_page(wanted, rows, (bytes.fromhex(sums or ""), bytes.fromhex(places or "")))

    def drop_writer(self, application: str, dataset: str, writer: int) -> None:
        """Forget a writer; `clean` removes the places of its blocks."""
        self._drop("dataset = ? and writer = ?", self._number(application, dataset), writer)

    def drop(self, application: str, dataset: str) -> None:
        """Forget a dataset with its writers and files."""
        number = self._number(application, dataset)
        with self._base.at_once():
            self._drop("dataset = ?", number)
            self._base.run("delete from files where dataset = ?", number)
            self._base.run("delete from datasets where number = ?", number)

    def clean(self) -> bool:
        """Remove some rows of places that were dropped; False if there are no more."""
        run = self._base.run
        found = run("select rowid, begin, past from garbage limit ?", _WRITERS_AT_ONCE).fetchall()
        with self._base.at_once():
            for row, begin, past in found:
                run("delete from blocks where number >= ? and number < ?", begin, past)
                run("delete from garbage where rowid = ?", row)
        return len(found) == _WRITERS_AT_ONCE

    def _drop(self, which: str, *values: int) -> None:
        """Writers go: their rows of places are garbage from now on."""
        with self._base.at_once():
            self._base.run(f"insert into garbage select begin, past from writers where {which}", *values)  # noqa: S608
            self._base.run(f"delete from writers where {which}", *values)  # noqa: S608 - our own words

    def close(self) -> None:
        """Close it; idempotent."""
        self._base.close()

    def _number(self, application: str, dataset: str) -> int:
        """The number of a dataset, or -1."""
        found = self._base.run(
            "select number from datasets where application = ? and dataset = ?", application, dataset
        ).fetchone()
        return -1 if found is None else int(found[0])

    def _begin(self, number: int, writer: int) -> int:
        """The first row of a writer that is there."""
        (begin,) = self._base.run(
            "select begin from writers where dataset = ? and writer = ?", number, writer
        ).fetchone()
        return int(begin)

    def _failure(self, error: Exception) -> StorageError:
        return StorageError(
            f"the index of this worker, {self._path}, can't be used: {error}. See that its disk has room and is"
            " sound; without the folder the worker begins with nothing"
        )
