# SPDX-License-Identifier: Apache-2.0
"""Parquet files as Spark means them: whatever a file's writer, its rows come in the columns that a stream has.

Time stamps of the kind INT96, which Spark writes by default, are instants. Arrow reads them as nanoseconds without a
zone, so that years before 1677 and after 2262 do not fit. Here they are microseconds in UTC, at whatever depth. Days
and instants of the old calendar are brought to the new one (`old_calendar`). All columns may be null, also inside
other types, whatever the file says. Layouts, order and names are the stream's (`projection`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.graph import as_nullable, fields_of, named_by_spark, plain_schema, same_but_nulls, with_fields
from penstock.machine.locations import is_here
from penstock.operators.old_calendar import NEW_CALENDAR, Calendars, OldFile, Rebase
from penstock.operators.projection import Projection
from penstock.record.relabelled import relabelled, relabelled_batch
from penstock.record.row_sizes import MOST_BYTES, bounded

UNIT = "us"
"""The unit that INT96 is read in: the argument `coerce_int96_timestamp_unit` of Arrow's readers."""
_INSTANT = pa.timestamp(UNIT, "UTC")
_INT96 = "INT96"
_READ_BUFFER = 1 << 20
_FIRST_ROWS = 64
_FIRST_BYTES = 1 << 14
"""Of a column with texts that are stored once each: with fewer bytes, no number of rows is large."""


@dataclass(frozen=True, slots=True)
class FileReading:
    """The session's part in reading files."""

    is_case_sensitive: bool = False
    calendars: Calendars = NEW_CALENDAR


def open_parquet(path: str, filesystem: Any) -> Any:
    """A `pyarrow.parquet.ParquetFile`; close it."""
    import pyarrow.parquet as pq

    ways = ways_to_read(is_local=is_here(filesystem))
    return pq.ParquetFile(path, filesystem=filesystem, coerce_int96_timestamp_unit=UNIT, **ways)


def ways_to_read(*, is_local: bool) -> dict[str, Any]:
    """The options of a `ParquetFile`: what is stored of a column is read a piece at a time, or from afar all at once.

    Measured on local files: threads and reading ahead cost more than they give. Column chunks that are read whole
    land in fresh pages, which takes twice the time. A memory map would save 2 ns a row and kill the worker where a
    file is truncated meanwhile.
    """
    return {"pre_buffer": not is_local, "buffer_size": _READ_BUFFER if is_local else 0}


def stored_schema(schema: pa.Schema, metadata: Any) -> pa.Schema:
    """A file's columns as they are read, by Arrow's schema of it and its footer; all may be null."""
    leaves = iter(_physical_types(metadata))
    return as_nullable(pa.schema([field.with_type(_instant(field.type, leaves)) for field in schema]))


def rows_schema(schema: pa.Schema, metadata: Any) -> pa.Schema:
    """The columns that a stream of such a file has: Spark's layouts, and the types that its footer names."""
    return named_by_spark(plain_schema(stored_schema(schema, metadata)), metadata.metadata)


AS_SPARK = FileReading()
"""Without a session: as Spark does by itself."""


class ParquetRows:
    """The rows of an open file, in the columns of a schema; `place` names the file in errors."""

    def __init__(self, file: Any, schema: pa.Schema, place: str, reading: FileReading = AS_SPARK) -> None:
        self._file = file
        self._projection = Projection(schema, place, reading.is_case_sensitive)
        self._stored = stored_schema(file.schema_arrow, file.metadata)
        self._columns = self._projection.columns(self._stored)
        self._old = old_columns(self._stored, file.metadata, reading.calendars, place)

    def check(self) -> None:
        """Raise SchemaError where such rows do not fit, whatever their values."""
        self._projection.check(self._stored)

    def batches(self, rows: int, groups: Sequence[int], names: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of some row groups, at most so many a batch; `names` has the columns under other names."""
        read = bounded_batches(self._file, groups, self._columns, rows, self._made)
        return read if names is None else (relabelled_batch(batch, names) for batch in read)

    def _made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._projection.project(self._renewed(batch))

    def _renewed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The file's own columns, with its instants, by the new calendar."""
        names = batch.schema.names
        kinds = [self._stored.field(name).type for name in names]
        is_old = self._old is not None and self._old.names.intersection(names)
        if not is_old and kinds == batch.schema.types:
            return batch
        columns = [_seen(column, kind) for column, kind in zip(batch.columns, kinds, strict=True)]
        if self._old is not None:
            columns = [self._old.renewed(name, column) for name, column in zip(names, columns, strict=True)]
        return pa.RecordBatch.from_arrays(columns, names=names)


class OldColumns:
    """The columns of a file that are in the old calendar."""

    def __init__(self, rebase: Rebase, leaves: dict[str, list[str]]) -> None:
        self._rebase = rebase
        self._leaves = leaves

    @property
    def names(self) -> set[str]:
        """Their names."""
        return set(self._leaves)

    def renewed(self, name: str, column: pa.Array) -> pa.Array:
        """A column by the new calendar; itself where it is of the new one."""
        leaves = self._leaves.get(name)
        return column if leaves is None else self._rebase.column(column, leaves)


def old_columns(stored: pa.Schema, metadata: Any, calendars: Calendars, place: str) -> OldColumns | None:
    """Those of a file, by its columns as they are read; None where there are none."""
    old = OldFile.of(metadata.metadata, calendars)
    if old is None:
        return None
    rebase = Rebase(old, calendars, place)
    leaves = iter(_physical_types(metadata))
    own = {field.name: list(islice(leaves, _leaf_count(field.type))) for field in stored}
    found = {name: kinds for name, kinds in own.items() if rebase.is_needed(stored.field(name).type, kinds)}
    return OldColumns(rebase, found) if found else None


def bounded_batches(
    file: Any,
    groups: Sequence[int],
    columns: Sequence[str],
    rows: int,
    made: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
) -> Iterator[pa.RecordBatch]:
    """What is made of the rows of some row groups, at most so many at once, and about as many as a batch has bytes.

    Neighbouring row groups are read together as long as no more than a batch's bytes are stored in them.
    """
    reader, now = file.reader, _FIRST_ROWS
    groups = [number for number in groups if file.metadata.row_group(number).num_rows]
    stored = list(_stored_rows(file.metadata, groups, columns))
    for begin, end in bounded(np.array([group.compressed for group in stored], np.int64), MOST_BYTES):
        together = stored[begin:end]
        most = max(1, min(rows, *(group.rows * MOST_BYTES // max(1, group.bytes) for group in together)))
        now = min(most, now) if any(group.may_grow for group in together) else most
        for read in file.iter_batches(now, row_groups=groups[begin:end], columns=columns, use_threads=False):
            # The reader asks for the number anew with each batch.
            batch = made(read)
            size = batch.nbytes
            if size * rows > MOST_BYTES * batch.num_rows or now < most:
                now = max(1, min(rows, 16 * batch.num_rows, batch.num_rows * MOST_BYTES // max(1, size)))
                reader.set_batch_size(now)
            yield batch


class _StoredRows(NamedTuple):
    """What a file tells of some columns of a row group.

    With `may_grow` texts may be stored once and stand in many rows, so that the file does not tell their size.
    """

    rows: int
    bytes: int
    compressed: int
    may_grow: bool


def _stored_rows(metadata: Any, groups: Sequence[int], columns: Sequence[str]) -> Iterator[_StoredRows]:
    paths = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    wanted = set(columns)
    places = [place for place, path in enumerate(paths) if path in wanted or path.partition(".")[0] in wanted]
    for number in groups:
        group = metadata.row_group(number)
        chunks = [group.column(place) for place in places]
        sizes = [chunk.total_uncompressed_size for chunk in chunks]
        may_grow = any(
            size > _FIRST_BYTES and chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page
            for chunk, size in zip(chunks, sizes, strict=True)
        )
        compressed = sum(chunk.total_compressed_size for chunk in chunks)
        yield _StoredRows(group.num_rows, sum(sizes), compressed, may_grow)


def tells_by_statistics(found: pa.Schema, metadata: Any, wanted: pa.Schema, place: str, reading: FileReading) -> bool:
    """Tell whether Arrow can say by a file's statistics which row groups a condition on a stream's columns leaves.

    It finds columns by name, widens numbers and takes large strings for strings. It has no kernels that compare views
    and other units, and knows no old calendar.
    """
    stored = stored_schema(found, metadata)
    for field in wanted:
        if field.name in stored.names:
            own = stored.field(field.name).type
            if not same_but_nulls(own, field.type) and (own, field.type) not in _COMPARED:
                return False
        elif not reading.is_case_sensitive and field.name.lower() in map(str.lower, stored.names):
            return False
    old = old_columns(stored, metadata, reading.calendars, place)
    return old is None or not old.names.intersection(wanted.names)


_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_COMPARED = {
    (pa.large_string(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.float32(), pa.float64()),
    *((one, other) for place, other in enumerate(_WHOLE) for one in _WHOLE[:place]),
}
"""Types of files whose statistics Arrow compares rightly with values of another type."""


def zone_of_old(metadata: Any, calendars: Calendars) -> str | None:
    """The time zone whose shifts a file needs; None where it is of the new calendar."""
    old = OldFile.of(metadata.metadata, calendars)
    return None if old is None else old.zone


def _physical_types(metadata: Any) -> list[str]:
    stored = metadata.schema
    return [stored.column(number).physical_type for number in range(len(stored))]


def _seen(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column that was read, in the type that `stored_schema` says: the same bytes, seen as instants."""
    return relabelled(column, kind)


def _instant(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """The type with its instants; takes the physical types of its leaves, which lie in their order."""
    if isinstance(kind, pa.BaseExtensionType):
        _instant(kind.storage_type, leaves)
        return kind
    inner = fields_of(kind)
    if inner:
        return with_fields(kind, [field.with_type(_instant(field.type, leaves)) for field in inner])
    return _INSTANT if next(leaves) == _INT96 else kind


def _leaf_count(kind: pa.DataType) -> int:
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_count(kind.storage_type)
    return sum(_leaf_count(field.type) for field in fields_of(kind)) or 1
