# SPDX-License-Identifier: Apache-2.0
"""Parquet files as Spark means them: time stamps of the kind INT96, which Spark writes by default, are instants.

Arrow reads them as nanoseconds without a zone, so that years before 1677 and after 2262 do not fit. Here they are
microseconds in UTC, at whatever depth. All columns may be null, also inside other types, whatever the file says. Else
they are what Arrow makes of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.graph import as_nullable
from penstock.record.relabelled import relabelled

UNIT = "us"
"""The unit that INT96 is read in: the argument `coerce_int96_timestamp_unit` of Arrow's readers."""
_INSTANT = pa.timestamp(UNIT, "UTC")


def open_parquet(path: str, filesystem: Any, **options: Any) -> Any:
    """A `pyarrow.parquet.ParquetFile`; close it."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, filesystem=filesystem, coerce_int96_timestamp_unit=UNIT, **options)


def rows_schema(file: Any) -> pa.Schema:
    """The columns of an open file, without metadata; all may be null."""
    schema: pa.Schema = file.schema_arrow.remove_metadata()
    stored = file.metadata.schema
    leaves = iter([stored.column(number).physical_type for number in range(len(stored))])
    return as_nullable(pa.schema([field.with_type(_instant(field.type, leaves)) for field in schema]))


def with_types(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column that was read, in the type that `rows_schema` says: the same bytes, seen as instants."""
    return relabelled(column, kind)


def with_instants(batch: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
    """Some columns of a file whose `rows_schema` is this."""
    kinds = [stored.field(name).type for name in batch.schema.names]
    if kinds == batch.schema.types:
        return batch
    columns = [with_types(column, kind) for column, kind in zip(batch.columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _instant(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """The type with its instants; takes the physical types of its leaves, which lie in their order."""
    if pt.is_struct(kind):
        return pa.struct([_inner(field, leaves) for field in kind])
    if pt.is_map(kind):
        key = _inner(kind.key_field, leaves)
        return pa.map_(key, _inner(kind.item_field, leaves))
    if pt.is_list(kind):
        return pa.list_(_inner(kind.value_field, leaves))
    if pt.is_large_list(kind):
        return pa.large_list(_inner(kind.value_field, leaves))
    if pt.is_fixed_size_list(kind):
        return pa.list_(_inner(kind.value_field, leaves), kind.list_size)
    return _INSTANT if next(leaves) == "INT96" else kind


def _inner(field: pa.Field, leaves: Iterator[str]) -> pa.Field:
    return field.with_type(_instant(field.type, leaves))
