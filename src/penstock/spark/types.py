# SPDX-License-Identifier: Apache-2.0
"""Between Spark's schemas and Arrow's, with PySpark's own converters.

Penstock's streams hold any Arrow type; Spark's reader takes only those it would write itself. `spark_schema` says
what a schema becomes on the way to Spark, `spark_batches` casts to it: dictionaries are decoded, views, large and
run-end encoded arrays become plain ones, unsigned integers the next wider signed one, times of day and timestamps
microseconds. A batch that fits already passes untouched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.shuffle.errors import SchemaError

_TIMEZONE = "UTC"

_RENAMED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of a DataFrame's rows."""
    return to_arrow_schema(schema, timezone=_TIMEZONE)


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """The schema that Spark's reader takes for rows of this schema."""
    fields = [pa.field(f.name, _spark_type(f.type, f.name), f.nullable) for f in schema]
    return arrow_schema(cast("StructType", from_arrow_schema(pa.schema(fields))))


def struct_type(schema: pa.Schema) -> StructType:
    """The Spark schema for rows of this Arrow schema; raises SchemaError naming a column Spark cannot hold."""
    fields = [pa.field(f.name, _spark_type(f.type, f.name), f.nullable) for f in schema]
    try:
        return cast("StructType", from_arrow_schema(pa.schema(fields)))
    except Exception as error:
        raise SchemaError(f"Spark has no type for a column of {schema}: {error}") from error


def spark_batches(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches in Spark's types; `schema` is what `spark_schema` gave."""
    for batch in batches:
        yield conform_batch(batch, schema)


def conform_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly this schema; columns that have the type already are not copied."""
    if batch.schema.equals(schema):
        return batch
    if not schema.names:
        return batch.select([])
    columns = [_conform(batch.column(i), field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _conform(column: pa.Array, target: pa.DataType) -> pa.Array:
    if column.type.equals(target):
        return column
    if pa.types.is_run_end_encoded(column.type):
        import pyarrow.compute as pc

        column = pc.run_end_decode(column)
    return column.cast(target)


def _spark_type(kind: pa.DataType, column: str) -> pa.DataType:
    if kind in _RENAMED:
        return _RENAMED[kind]
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _spark_type(kind.value_type, column)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", _TIMEZONE if kind.tz else None)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind):
        if kind.precision > 38:
            raise SchemaError(f"column {column!r} is {kind}: Spark's decimals have at most 38 digits")
        return pa.decimal128(kind.precision, kind.scale)
    return _nested_type(kind, column)


def _nested_type(kind: pa.DataType, column: str) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _spark_type(f.type, column), f.nullable) for f in kind])
    if pa.types.is_map(kind):
        item = kind.item_field
        value = pa.field(item.name, _spark_type(kind.item_type, column), item.nullable)
        return pa.map_(_spark_type(kind.key_type, column), value)
    if hasattr(kind, "value_field"):  # list, large list, list view, fixed-size list
        element = kind.value_field
        return pa.list_(pa.field(element.name, _spark_type(element.type, column), element.nullable))
    return kind
