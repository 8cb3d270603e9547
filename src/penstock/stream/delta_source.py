# SPDX-License-Identifier: Apache-2.0
"""A Delta Lake table as a source: the rows that it has when a query begins, then those of each version that comes.

One task reads, in a thread that reads ahead: version by version, file by file. Its position is the version, the file
in it and the rows of that which were given, so a later attempt reads the same files again; and the table's id, for
another table may be at the same path by then. Versions that only move rows (a compaction) give none. One that changes
or deletes rows is refused by its number, unless it is to be left out. A file that was written before the table got a
column gives nulls for it.

Limits: a table with partitions, deletion vectors or mapped columns is refused, and so is a version with another
schema, or one whose entry the log has lost while the query stood still. A table that is made anew while the query
runs is noticed by the next attempt.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.errors import PlanError
from penstock.stream.delta_sink import delta_library
from penstock.stream.partitioned_source import PartitionedReader, PartitionedSource
from penstock.stream.read_ahead import Read, RowsReadAhead

_POLL_SECONDS = 0.01
_LOOK_SECONDS = 0.2
"""The next version is looked for so often."""
_PARTITION = "log"
_ROWS = 1 << 16
_Offset = Sequence[Any]
"""A version; true if all of its rows are read; its next file, the rows of that which were given; the table's id."""


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

    def splits(self) -> int | None:
        """One task reads."""
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

    def read(self, partition: str, offset: _Offset | None) -> RowsReadAhead:
        return RowsReadAhead(partial(_VersionReading, self._source, offset), offset, "delta")


class _VersionReading:
    """The table, read in a thread of its own."""

    def __init__(self, source: DeltaSource, offset: _Offset | None) -> None:
        self._source = source
        table = delta_library().DeltaTable(source.uri)
        newest = table.version()
        self._last = newest if source.is_available_now else None
        self._id = str(table.metadata().id)
        if offset is None:
            offset = [newest, True, 0, 0] if source.start is None else [source.start, False, 0, 0]
            offset = [*offset, self._id]
        self._begin = offset
        self._newest = newest
        """The newest version when it began; entries of it and of earlier ones do not come any more."""
        self._refuse_another_table()

    def read(self) -> Iterator[Read]:
        """The rows of one version after the other."""
        version, is_whole, number, given, _ = self._begin
        yield self._moved(self._begin)
        while self._last is None or version <= self._last:
            files = self._files_of_all(version) if is_whole else self._files(version)
            if files is None:
                yield None, [version, False, 0, 0, self._id]
                continue
            for path in files[number:]:
                for batch in self._rows(path, given):
                    given += batch.num_rows
                    yield batch, [version, is_whole, number, given, self._id]
                number, given = number + 1, 0
            version, is_whole, number = version + 1, False, 0
            yield self._moved([version, is_whole, 0, 0, self._id])

    def completed(self, offset: _Offset | None) -> None:
        """Nothing: the table knows no readers."""

    def close(self) -> None:
        """Nothing is held."""

    def _refuse_another_table(self) -> None:
        """Raise PlanError where the position is no place in this table."""
        version, *_, table = self._begin
        begin = "give another checkpointLocation, which begins anew with the rows of this one"
        if table != self._id:
            raise PlanError(
                f"{self._source.uri} is another table than the one that the checkpoint is of: it was made anew at the"
                f" same path. Bring the old one back, or {begin}"
            )
        if version > max(self._newest + 1, self._source.start or 0):
            raise PlanError(
                f"{self._source.uri} has version {self._newest} as its newest, and the checkpoint goes on with"
                f" version {version}: bring the later versions back, or {begin}"
            )

    def _moved(self, offset: _Offset) -> Read:
        nulls = [pa.nulls(0, field.type) for field in self._source.schema]
        return pa.RecordBatch.from_arrays(nulls, schema=self._source.schema), offset

    def _rows(self, path: str, given: int) -> Iterator[pa.RecordBatch]:
        """The rows of a file after so many."""
        import pyarrow.parquet as pq

        source = self._source
        with source.filesystem.open_input_file(f"{source.root}/{unquote(path)}") as opened:
            for batch in pq.ParquetFile(opened).iter_batches(_ROWS):
                skipped = min(given, batch.num_rows)
                given -= skipped
                if batch.num_rows > skipped:
                    yield self._filled(batch.slice(skipped))

    def _filled(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The table's columns; nulls for those which it got after the file was written."""
        fields = self._source.schema
        known = set(batch.schema.names)
        columns = [
            batch.column(field.name) if field.name in known else pa.nulls(batch.num_rows, field.type)
            for field in fields
        ]
        return pa.RecordBatch.from_arrays(columns, names=fields.names)

    def _files_of_all(self, version: int) -> list[str]:
        """All files of a version, in an order that does not change."""
        table = delta_library().DeltaTable(self._source.uri, version=version)
        refuse_table(table, self._source.uri)
        found: list[str] = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
        return sorted(found)

    def _files(self, version: int) -> list[str] | None:
        """The files that a version added; None if it is not there yet."""
        try:
            with self._source.filesystem.open_input_stream(
                f"{self._source.root}/_delta_log/{version:020d}.json"
            ) as log:
                actions = [json.loads(line) for line in log.read().splitlines() if line.strip()]
        except FileNotFoundError:
            if version <= self._newest:
                self._require_log()
                raise PlanError(
                    f"{self._source.uri}: the log has lost its entry of version {version}, the next to be read:"
                    " begin anew with another checkpointLocation"
                ) from None
            time.sleep(_LOOK_SECONDS)
            return None
        return self._added(version, actions)

    def _require_log(self) -> None:
        """Raise OSError where the log as a whole is away, as below a mount that dropped."""
        folder = f"{self._source.root}/_delta_log"
        if not self._source.filesystem.get_file_info(pafs.FileSelector(folder)):
            raise FileNotFoundError(errno.ENOENT, "the log is empty: is its file system away?", folder)

    def _added(self, version: int, actions: Sequence[dict[str, Any]]) -> list[str]:
        changes = [action for action in actions if action.get("remove", {}).get("dataChange")]
        if changes and self._source.skips_changes:
            return []
        if changes:
            raise PlanError(
                f"{self._source.uri}: version {version} deletes or changes rows, which a stream can't take back:"
                " leave such versions out with option('skipChangeCommits', True), or begin anew after it"
            )
        if version > 0 and any("metaData" in action for action in actions):
            raise PlanError(
                f"{self._source.uri}: version {version} has another schema or other properties: begin anew"
            )
        added = [action["add"] for action in actions if action.get("add", {}).get("dataChange")]
        if any(file.get("deletionVector") for file in added):
            raise PlanError(f"{self._source.uri}: version {version} has deletion vectors: read it with Spark")
        return [file["path"] for file in added]


def refuse_table(table: Any, uri: str) -> None:
    """Raise PlanError for a table whose files are not its rows as they are."""
    if table.metadata().partition_columns:
        raise PlanError(f"{uri} is partitioned, and a query reads tables without partitions: use readDelta, or Spark")
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        raise PlanError(f"{uri} maps its columns to other names: read it with Spark")
    if len(pa.table(table.deletion_vectors())):
        raise PlanError(f"{uri} has deletion vectors: purge them (REORG TABLE), or read it with Spark")
