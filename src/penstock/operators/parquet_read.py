# SPDX-License-Identifier: Apache-2.0
"""Parquet files as Spark means them: whatever a file's writer, its rows come in the columns that a stream has.

Time stamps of the kind INT96, which Spark writes by default, are instants. Arrow reads them as nanoseconds without a
zone, so that years before 1677 and after 2262 do not fit. Here they are microseconds in UTC, at whatever depth. Days
and instants of the old calendar are brought to the new one (`old_calendar`). All columns may be null, also inside
other types, whatever the file says. Layouts, order and names are the stream's (`projection`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from penstock.graph import as_nullable, fields_of, named_by_spark, plain_schema, same_but_nulls, with_fields
from penstock.operators.old_calendar import NEW_CALENDAR, Calendars, OldFile, Rebase
from penstock.operators.projection import Projection
from penstock.record.relabelled import relabelled, relabelled_batch
from penstock.record.row_sizes import MOST_BYTES, MOST_ROWS

UNIT = "us"
"""The unit that INT96 is read in: the argument `coerce_int96_timestamp_unit` of Arrow's readers."""
_INSTANT = pa.timestamp(UNIT, "UTC")
_INT96 = "INT96"
_FIRST_ROWS = 64
_FIRST_BYTES = 1 << 14
"""Of a column with texts that are stored once each: with fewer bytes, no number of rows is large."""


@dataclass(frozen=True, slots=True)
class FileReading:
    """The session's part in reading files."""

    is_case_sensitive: bool = False
    calendars: Calendars = NEW_CALENDAR


def open_parquet(path: str, filesystem: Any, **options: Any) -> Any:
    """A `pyarrow.parquet.ParquetFile`; close it."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, filesystem=filesystem, coerce_int96_timestamp_unit=UNIT, **options)


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
        reader, most = self._file.reader, min(rows, rows_at_once(self._file.metadata, groups, self._columns))
        now = min(most, _FIRST_ROWS) if self._may_grow(groups) else most
        for batch in self._file.iter_batches(now, row_groups=groups, columns=self._columns, use_threads=False):
            # The reader asks for the number anew with each batch.
            found = self._projection.project(self._renewed(batch))
            size = found.nbytes
            if size * rows > MOST_BYTES * batch.num_rows or now < most:
                now = max(1, min(rows, 16 * batch.num_rows, batch.num_rows * MOST_BYTES // max(1, size)))
                reader.set_batch_size(now)
            yield found if names is None else relabelled_batch(found, names)

    def _may_grow(self, groups: Sequence[int]) -> bool:
        """Tell whether texts may be stored once and stand in many rows, so that the file does not tell their size."""
        return any(
            chunk.has_dictionary_page and chunk.total_uncompressed_size > _FIRST_BYTES
            for chunk in _chunks(self._file.metadata, groups, self._columns)
            if chunk.physical_type == "BYTE_ARRAY"
        )

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


def rows_at_once(metadata: Any, groups: Sequence[int], columns: Sequence[str]) -> int:
    """So many rows of these row groups have the bytes of a batch, as far as the file tells."""
    least = MOST_ROWS
    for number in groups:
        size = sum(chunk.total_uncompressed_size for chunk in _chunks(metadata, (number,), columns))
        least = min(least, metadata.row_group(number).num_rows * MOST_BYTES // max(1, size))
    return max(1, least)


def _chunks(metadata: Any, groups: Sequence[int], columns: Sequence[str]) -> Iterator[Any]:
    """The column chunks of these columns."""
    paths = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    wanted = set(columns)
    places = [place for place, path in enumerate(paths) if path in wanted or path.partition(".")[0] in wanted]
    for number in groups:
        group = metadata.row_group(number)
        yield from (group.column(place) for place in places)


def may_filter(found: pa.Schema, metadata: Any, wanted: pa.Schema, place: str, reading: FileReading) -> bool:
    """Tell whether Arrow's scanner can filter a file's rows by a stream's columns, with the file's statistics.

    It finds columns by name, widens numbers and takes large strings for strings. It has no kernels that compare views
    and other units, and knows no old calendar.
    """
    stored = stored_schema(found, metadata)
    for field in wanted:
        if field.name in stored.names:
            own = stored.field(field.name).type
            if not same_but_nulls(own, field.type) and (own, field.type) not in _SCANNED:
                return False
        elif not reading.is_case_sensitive and field.name.lower() in map(str.lower, stored.names):
            return False
    old = old_columns(stored, metadata, reading.calendars, place)
    return old is None or not old.names.intersection(wanted.names)


_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_SCANNED = {
    (pa.large_string(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.float32(), pa.float64()),
    *((one, other) for place, other in enumerate(_WHOLE) for one in _WHOLE[:place]),
}
"""Types that the scanner casts, and whose statistics it compares rightly."""


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
