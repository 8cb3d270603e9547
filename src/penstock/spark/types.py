# SPDX-License-Identifier: Apache-2.0
"""Between Spark's schemas and Arrow's, with PySpark's own converters.

Penstock's streams hold any Arrow type; Spark's reader takes only those it would write itself. `struct_type` says what
a schema becomes on the way to Spark, `spark_batches` casts to it: dictionaries are decoded, views, large and
run-end encoded arrays become plain ones, unsigned integers the next wider signed one, times of day and timestamps
microseconds. A batch that fits already passes untouched.

Facts of a type that Spark knows and Arrow does not are kept in the field's metadata (`penstock.graph.spark_types`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    GeographyType,
    GeometryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimeType,
    UserDefinedType,
    VariantType,
    _parse_datatype_json_string,
)

from penstock.errors import SchemaError
from penstock.graph import (
    SESSIONS,
    collated,
    has_sessions,
    spark_type,
    type_json,
    type_text,
    with_sessions,
    with_spark_type,
)
from penstock.operators.layouts import Differences, MisfitError, fitted

_TIMEZONE = "UTC"
IN_UTC = {"timezone": _TIMEZONE} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
"""An argument of `to_arrow_schema`: PySpark 4.1 has no such one, and knows UTC alone."""
_WIDER = Differences(widens=True)
_STRUCTS = (UserDefinedType, VariantType, GeometryType, GeographyType)

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
    """The Arrow schema of a DataFrame's rows; raises SchemaError naming a column that no Arrow type holds."""
    return pa.schema([_arrow_field(field) for field in schema.fields])


def arrow_schema_of_json(fields: list[dict[str, Any]]) -> pa.Schema:
    """As `arrow_schema`, of fields as Spark's JSON has them."""
    return arrow_schema(StructType.fromJson({"fields": fields}))


def struct_type(schema: pa.Schema) -> StructType:
    """The Spark schema for rows of this Arrow schema; raises SchemaError naming a column Spark cannot hold."""
    return StructType([_struct_field(field) for field in schema])


def spark_batches(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches in Spark's types; `schema` is what `arrow_schema` gave. Columns are taken by their place."""
    for batch in batches:
        yield conform_batch(batch, schema)


def conform_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly this schema; columns that have the type already are not copied."""
    if batch.schema.equals(schema):
        return batch
    if not schema.names:
        return batch.select([])
    columns = [_named_conform(batch.column(i), field) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _named_conform(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return fitted(column, field.type, _WIDER)
    except (pa.ArrowException, MisfitError) as error:
        reason = "" if isinstance(error, MisfitError) else f": {error}"
        raise SchemaError(
            f"column {field.name!r} of type {column.type} does not fit Spark's {field.type}{reason}: cast it with "
            "mapInArrow, by column.cast(type, safe=False) where it may lose something, or drop it"
        ) from None


def _arrow_field(field: StructField) -> pa.Field:
    try:
        (found,) = to_arrow_schema(StructType([field]), **IN_UTC)
    except PySparkException as error:
        raise SchemaError(
            f"column {field.name!r} of type {field.dataType.simpleString()} has no Arrow form in PySpark, so a Python"
            " stage cannot take it: cast it first (an interval to a number of months, or to its text), or drop it"
        ) from error
    return with_sessions(_named(found, field.dataType), are_sessions=SESSIONS in field.metadata)


def _named(field: pa.Field, kind: Any) -> pa.Field:
    """The field with Spark's names of its types, where Arrow's do not tell them.

    A user-defined type, a variant and a geometry are the structs that PySpark has for them.
    """
    if isinstance(kind, _STRUCTS):
        return with_spark_type(field, type_text(kind.jsonValue()))
    if isinstance(kind, StringType):
        return with_spark_type(field, collated(kind.collation))
    if isinstance(kind, TimeType | DayTimeIntervalType):
        return with_spark_type(field, None if kind == type(kind)() else kind.simpleString())
    if isinstance(kind, ArrayType):
        return field.with_type(pa.list_(_named(field.type.value_field, kind.elementType)))
    if isinstance(kind, MapType):
        key = _named(field.type.key_field, kind.keyType)
        return field.with_type(pa.map_(key, _named(field.type.item_field, kind.valueType)))
    if isinstance(kind, StructType):
        pairs = zip(field.type, kind.fields, strict=True)
        return field.with_type(pa.struct([_named(child, inner.dataType) for child, inner in pairs]))
    return field


def _struct_field(field: pa.Field) -> StructField:
    plain = pa.field(field.name, _spark_type(field.type, field.name), field.nullable)
    try:
        (found,) = cast("StructType", from_arrow_schema(pa.schema([plain]), prefer_timestamp_ntz=True)).fields
    except Exception as error:
        raise SchemaError(f"column {field.name!r} is {field.type}, for which Spark has no type: {error}") from error
    mark = {SESSIONS: True} if has_sessions(field) else None
    return StructField(field.name, _typed(found.dataType, field), field.nullable, mark)


def _typed(kind: Any, field: pa.Field) -> Any:
    """Spark's type of a field: that of its name, where it has one."""
    name = spark_type(field)
    if name is not None:
        return _parse_datatype_json_string(type_json(name))
    inner = field.type
    while pa.types.is_dictionary(inner) or pa.types.is_run_end_encoded(inner):
        inner = inner.value_type
    if isinstance(kind, ArrayType):
        return ArrayType(_typed(kind.elementType, inner.value_field), kind.containsNull)
    if isinstance(kind, MapType):
        key, value = _typed(kind.keyType, inner.key_field), _typed(kind.valueType, inner.item_field)
        return MapType(key, value, kind.valueContainsNull)
    if isinstance(kind, StructType) and pa.types.is_struct(inner):
        pairs = zip(kind.fields, inner, strict=True)
        return StructType([StructField(each.name, _typed(each.dataType, own), each.nullable) for each, own in pairs])
    return kind


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
