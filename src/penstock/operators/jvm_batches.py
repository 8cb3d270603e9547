# SPDX-License-Identifier: Apache-2.0
"""Batches as Spark's JVM hands them to a Python worker, and as it reads what comes back.

There, columns have the names that users know and go by their places; instants are in the session's zone, and a batch
has as many rows as `maxRecordsPerBatch` says. What comes back is read by places under the declared types, whatever
the names are; a type that the JVM would not read as the declared one is named here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from penstock.operators.conform import refuse_broken
from penstock.operators.promises import promises
from penstock.operators.zones import schema_in
from penstock.record.relabelled import relabelled, relabelled_batch

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class StageInput:
    """What a function gets of the rows of one side: the columns by their places, under the names that users know.

    The first `keys` of them are keys that are no columns of the user's. `batch_rows` is the most rows of a batch.
    """

    schema: pa.Schema
    places: tuple[int, ...]
    names: tuple[str, ...]
    timezone: str
    batch_rows: int

    @property
    def shown(self) -> pa.Schema:
        """The schema of its batches."""
        fields = [
            self.schema.field(place).with_name(name) for place, name in zip(self.places, self.names, strict=True)
        ]
        return schema_in(pa.schema(fields), self.timezone)

    def batches(self, rows: Batches) -> Batches:
        """The rows with these columns only."""
        shown = self.shown
        for batch in rows:
            chosen = pa.RecordBatch.from_arrays(
                [batch.column(place) for place in self.places], names=list(self.names)
            )
            yield relabelled_batch(chosen, shown)

    def cut(self, rows: Batches) -> Batches:
        """The same rows in batches of as many as Spark would give at once, the last one with what is left."""
        if self.batch_rows <= 0:
            yield from rows
            return
        held: list[pa.RecordBatch] = []
        count = 0
        for batch in rows:
            start = 0
            while start < batch.num_rows:
                part = batch.slice(start, self.batch_rows - count)
                held.append(part)
                start, count = start + part.num_rows, count + part.num_rows
                if count == self.batch_rows:
                    yield _one(held)
                    held, count = [], 0
        if held:
            yield _one(held)


def wrong_columns(columns: Sequence[pa.Array], schema: pa.Schema) -> list[str]:
    """Each column that the JVM would not read as the declared one, in PySpark's words."""
    return [
        f"column '{plain_name(declared.name)}' (expected {declared.type}, actual {column.type})"
        for column, declared in zip(columns, schema, strict=False)
        if not (pt.is_null(column.type) or _is_large(column, declared) or _is_same(column.type, declared.type))
    ]


def declared_rows(columns: Sequence[pa.Array], schema: pa.Schema, operator: str) -> pa.RecordBatch:
    """Columns of which none is wrong, as the declared ones; raises SchemaError for nulls where there may be none."""
    made = [_brought(column, declared.type) for column, declared in zip(columns, schema, strict=False)]
    for column, declared in zip(made, schema, strict=True):
        if promises(declared):
            refuse_broken(column, declared.with_name(plain_name(declared.name)), operator)
    return pa.RecordBatch.from_arrays(made, schema=schema)


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def _one(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def in_struct(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch as the one column in which the JVM sends it."""
    rows = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
    return pa.RecordBatch.from_arrays([rows], ["_0"])


def plain_name(column: str) -> str:
    """The name of a column without the number that tells it from others."""
    return column.rpartition("#")[0] or column


def _brought(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column that may be read as one of this type, as one."""
    if pt.is_null(column.type):
        return pa.nulls(len(column), kind)
    return column.cast(kind) if _is_large(column, pa.field("", kind)) else relabelled(column, kind)


def _is_large(column: pa.Array, declared: pa.Field) -> bool:
    found = column.type
    return bool(
        (pt.is_large_string(found) and pt.is_string(declared.type))
        or (pt.is_large_binary(found) and pt.is_binary(declared.type))
    )


def _is_same(found: pa.DataType, declared: pa.DataType) -> bool:
    """Tell whether the JVM reads the one type as the other: names, zones and nulls do not count."""
    if found.equals(declared):
        return True
    if pt.is_timestamp(found) and pt.is_timestamp(declared):
        return bool(found.unit == declared.unit and (found.tz is None) == (declared.tz is None))
    if pt.is_struct(found) and pt.is_struct(declared):
        return found.num_fields == declared.num_fields and all(
            _is_same(one.type, other.type) for one, other in zip(found, declared, strict=True)
        )
    if pt.is_map(found) and pt.is_map(declared):
        return _is_same(found.key_type, declared.key_type) and _is_same(found.item_type, declared.item_type)
    return bool(pt.is_list(found) and pt.is_list(declared) and _is_same(found.value_type, declared.value_type))
