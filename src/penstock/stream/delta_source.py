# SPDX-License-Identifier: Apache-2.0
"""A Delta Lake table as a source: the rows that it has when a query begins, then those of each version that comes.

One task reads, in a thread that reads ahead: version by version, file by file. Its position is the version, the file
in it and the rows of that which were given, so a later attempt reads the same files again; and the table's id, for
another table may be at the same path by then. Versions that only move rows (a compaction) give none, and those that
set properties are as any other. One that changes or deletes rows is refused by its number, unless it is to be left
out. Files come in the columns of the table: one that was written before the table got a column gives nulls for it.

The first rows come in the order in which their files were written, as in Delta's own source, so that event time is
nearly in order; files of one moment by the least time that their statistics say.

Limits: a table with partitions, deletion vectors or mapped columns is refused. So is a version that adds a column: a
query that is started again knows it, and goes on. A version whose entry or whose files are gone while the query stood
still ends it. A table that is made anew while the query runs is noticed by the next attempt.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import msgpack
import pyarrow as pa
import pyarrow.fs as pafs

from penstock.errors import PlanError
from penstock.operators.parquet_read import AS_SPARK, FileReading, ParquetRows, open_parquet
from penstock.stream.delta_log import DeltaLog, added_files, files_in_order, refuse_table
from penstock.stream.partitioned_source import PartitionedReader, PartitionedSource
from penstock.stream.read_ahead import Read, RowsReadAhead

_POLL_SECONDS = 0.01
_LOOK_SECONDS = 0.2
"""The next version is looked for so often."""
_PARTITION = "log"
_ROWS = 1 << 16
_Offset = Sequence[Any]
"""A version; true if all of its rows are read; its next file, the rows of that which were given; the table's id; the
path of that file, if rows of it were given."""


@dataclass(frozen=True, slots=True)
class DeltaSource:
    """The table at `uri`; `start` is the first version whose rows are read, None: all that the newest one has."""

    uri: str
    filesystem: pafs.FileSystem
    root: str
    schema: pa.Schema
    start: int | None = None
    skips_changes: bool = False
    is_available_now: bool = False
    begun: tuple[Any, ...] | None = None
    """The offset at which the query began."""
    reading: FileReading = AS_SPARK

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"delta {self.uri}"

    @property
    def reads(self) -> str:
        """The input that its positions in checkpoints are of."""
        return self.name

    def available_now(self) -> DeltaSource:
        """Up to the version that is the newest as a reader is opened."""
        return replace(self, is_available_now=True)

    @property
    def log(self) -> DeltaLog:
        """The table's log."""
        return DeltaLog(self.uri, self.filesystem, self.root)

    def first_position(self) -> bytes:
        """The version with which a query begins that begins now."""
        packed: bytes = msgpack.packb(self.first_offset(self.log.table()))
        return packed

    def begun_at(self, position: bytes) -> DeltaSource:
        """The same source, of a query that began there."""
        return replace(self, begun=tuple(msgpack.unpackb(position)))

    def first_offset(self, table: Any) -> _Offset:
        """The place in the table, as it is now, at which a query begins."""
        place = [table.version(), True] if self.start is None else [self.start, False]
        return [*place, 0, 0, str(table.metadata().id), ""]

    def splits(self) -> int | None:
        """1: one task reads the whole table."""
        return 1

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> PartitionedReader:
        """The reader, which goes on in the file in which the last one was."""
        rows = PartitionedSource(_VersionedRows(self), _POLL_SECONDS, (_PARTITION,))
        return rows.open(subtask, parallelism, restored)


class _VersionedRows:
    """The table as one partition, whose offsets are places in versions."""

    def __init__(self, source: DeltaSource) -> None:
        self._source = source
        self.schema = source.schema
        self.name = source.name

    def partitions(self) -> Sequence[str]:
        return (_PARTITION,)

    def is_backlog(self, offset: _Offset | None) -> bool:
        """True where the rows that the table had at first are not all given."""
        return self._source.start is None if offset is None else bool(offset[1])

    def unit_of(self, offset: _Offset | None, given: int) -> object:
        """The version whose rows are read: the order of its files says nothing of their times. None: between two."""
        return None if offset is None or not (offset[2] or offset[3] or given) else offset[0]

    def beginning(self) -> _Offset | None:
        """The place at which the query began."""
        return None if self._source.begun is None else list(self._source.begun)

    def read(self, partition: str, offset: _Offset | None) -> RowsReadAhead:
        return RowsReadAhead(partial(_VersionReading, self._source, offset), offset, "delta")


class _VersionReading:
    """The table, read in a thread of its own."""

    def __init__(self, source: DeltaSource, offset: _Offset | None) -> None:
        self._source = source
        self._log = source.log
        table = self._log.table()
        self._newest = table.version()
        """The newest version when it began; entries of it and of earlier ones do not come any more."""
        self._last = self._newest if source.is_available_now else None
        self._id = str(table.metadata().id)
        self._begin = offset or source.first_offset(table)
        self._refuse_another_table()

    def read(self) -> Iterator[Read]:
        """The rows of one version after the other."""
        version, is_whole, number, given, _, path = self._begin
        yield self._moved(self._begin)
        while self._last is None or version <= self._last:
            files = self._files_of_all(version, number, path) if is_whole else self._files(version)
            if files is None:
                time.sleep(_LOOK_SECONDS)
                yield None, self._place(version)
                continue
            for path in files[number:]:
                for batch in self._rows(path, version, given):
                    given += batch.num_rows
                    yield batch, [version, is_whole, number, given, self._id, path]
                number, given = number + 1, 0
            version, is_whole, number, path = version + 1, False, 0, ""
            yield self._moved(self._place(version))

    def completed(self, offset: _Offset | None) -> None:
        """Nothing: the table knows no readers."""

    def close(self) -> None:
        """Nothing is held."""

    def _refuse_another_table(self) -> None:
        """Raise PlanError where the position is no place in this table."""
        version, *_, table, _ = self._begin
        begin = "give another checkpointLocation, which starts over with the rows of this one"
        if table != self._id:
            raise PlanError(
                f"{self._source.uri} is another table than the one that the checkpoint is of: it was recreated at the"
                f" same path. Bring the old one back, or {begin}"
            )
        first = (self._source.begun or [self._source.start or 0])[0]
        if version > max(self._newest + 1, first):
            raise PlanError(
                f"{self._source.uri} has version {self._newest} as its newest, and the checkpoint goes on with"
                f" version {version}: bring the later versions back, or {begin}"
            )

    def _place(self, version: int) -> _Offset:
        """The place in front of a version's rows."""
        return [version, False, 0, 0, self._id, ""]

    def _moved(self, offset: _Offset) -> Read:
        nulls = [pa.nulls(0, field.type) for field in self._source.schema]
        return pa.RecordBatch.from_arrays(nulls, schema=self._source.schema), offset

    def _rows(self, path: str, version: int, given: int) -> Iterator[pa.RecordBatch]:
        """The rows of a file after so many."""
        source = self._source
        with self._log.reading(path, version):
            opened = open_parquet(f"{source.root}/{unquote(path)}", source.filesystem)
        with opened as file:
            stored = ParquetRows(file, source.schema, f"{source.uri}: {path}", source.reading)
            for batch in stored.batches(_ROWS, range(file.num_row_groups)):
                skipped = min(given, batch.num_rows)
                given -= skipped
                if batch.num_rows > skipped:
                    yield batch.slice(skipped)

    def _files_of_all(self, version: int, number: int, path: str) -> list[str]:
        """All files of a version in their order, in which `path` must be where it was."""
        table = self._log.table(version)
        refuse_table(table, self._source.uri)
        files = files_in_order(table)
        if path and files[number : number + 1] != [path]:
            raise PlanError(
                f"{self._source.uri}: the files of version {version} are not in the order in which the query began to"
                " read them: start over with another checkpointLocation"
            )
        return files

    def _files(self, version: int) -> list[str] | None:
        """The files that a version added; None if it is not there yet."""
        source = self._source
        actions = self._log.actions(version, self._newest)
        if actions is None:
            return None
        return added_files(source.uri, version, actions, source.schema, skips=source.skips_changes)
