# SPDX-License-Identifier: Apache-2.0
"""Spark's JSON of the columns of a Parquet file, which its footer keeps: types for which Parquet has none.

Vectors and other user-defined types, variants, geometries and intervals are structs and numbers in a file. Spark
writes what they are into the footer, and which windows are sessions, and takes a file's columns from there. So a
stream of such a file has Spark's types, and files of ours with such columns say so as Spark's do.

Limits: Arrow has no months in PySpark, a variant in parts (shredded) is no longer a pair of bytes, and geometries are
bytes of a kind that Arrow does not write: `unreadable` and `unwritable`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.graph.nullability import fields_of, with_fields
from penstock.graph.spark_types import (
    SESSIONS,
    collated,
    has_sessions,
    is_one_value,
    spark_type,
    type_json,
    type_text,
    with_sessions,
    with_spark_type,
)

FOOTER = b"org.apache.spark.sql.parquet.row.metadata"
"""The key of the JSON among a file's."""

_INTERVAL, _VARIANT, _SPAN = "interval ", "variant", "interval day to second"
_COLLATIONS = "__COLLATIONS"
_MONTHS = ("year", "month")
_PLACES = ("geometry", "geography")
_OWN = (*_PLACES, _VARIANT)
_MICROS = pa.duration("us")
_PARTS = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
"""A variant, as PySpark has it in Arrow."""
_WORDS = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.uint8(): "short",
    pa.uint16(): "integer",
    pa.uint32(): "long",
    pa.uint64(): "decimal(20,0)",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.time64("us"): "time(6)",
    pa.time64("ns"): "time(6)",
    _MICROS: _SPAN,
}


def footer_of(schema: pa.Schema) -> dict[bytes, bytes]:
    """The entry of a file's footer with the columns as Spark has them; empty where Parquet says all of it."""
    if not any(map(_is_own, schema)):
        return {}
    return {FOOTER: json.dumps({"type": "struct", "fields": [_json_field(field) for field in schema]}).encode()}


def _is_own(field: pa.Field) -> bool:
    name = spark_type(field)
    return (
        name is not None or field.type == _MICROS or has_sessions(field) or any(map(_is_own, fields_of(field.type)))
    )


def _json_field(field: pa.Field) -> dict[str, Any]:
    beside = {SESSIONS: True} if has_sessions(field) else {}
    return {"name": field.name, "type": _json_type(field), "nullable": field.nullable, "metadata": beside}


def _json_type(field: pa.Field) -> Any:
    name, kind = spark_type(field), field.type
    if name is not None:
        return json.loads(type_json(name))
    if pt.is_struct(kind):
        return {"type": "struct", "fields": [_json_field(each) for each in kind]}
    if pt.is_map(kind):
        key, value = _json_type(kind.key_field), _json_type(kind.item_field)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": kind.item_field.nullable}
    if pt.is_list(kind):
        element = kind.value_field
        return {"type": "array", "elementType": _json_type(element), "containsNull": element.nullable}
    if pt.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_timestamp(kind) and kind.tz is not None:
        return "timestamp"
    return _WORDS.get(kind, "binary" if pt.is_fixed_size_binary(kind) else str(kind))


def named_by_spark(schema: pa.Schema, footer: Mapping[bytes, bytes] | None) -> pa.Schema:
    """A file's columns with the types that its footer says, where it says any."""
    text = (footer or {}).get(FOOTER)
    if text is None:
        return schema
    return pa.schema(_named_fields(list(schema), json.loads(text)["fields"]))


def _named_fields(fields: list[pa.Field], own: list[dict[str, Any]]) -> list[pa.Field]:
    known = {each["name"]: each for each in own}
    return [_named_field(field, known[field.name]) if field.name in known else field for field in fields]


def _named_field(field: pa.Field, own: dict[str, Any]) -> pa.Field:
    beside = own.get("metadata", {})
    named = _named(field, own["type"], beside.get(_COLLATIONS, {}), str(own["name"]))
    return with_sessions(named, are_sessions=beside.get(SESSIONS, False))


def _named(field: pa.Field, own: Any, collations: Mapping[str, str], path: str) -> pa.Field:
    """The field with the type of its JSON; collations lie beside it, by paths."""
    if isinstance(own, str):
        return _atom(field, own, collations.get(path))
    if own["type"] == "udt":
        return with_spark_type(field, type_text(own))
    inner = fields_of(field.type)
    if own["type"] == "struct":
        inner = _named_fields(inner, own["fields"])
    elif own["type"] == "array" and len(inner) == 1:
        inner = [_named(inner[0], own["elementType"], collations, f"{path}.element")]
    elif own["type"] == "map" and len(inner) == 2:
        names = ("key", "value")
        inner = [
            _named(each, own[f"{name}Type"], collations, f"{path}.{name}")
            for each, name in zip(inner, names, strict=True)
        ]
    return field.with_type(with_fields(field.type, inner))


def _atom(field: pa.Field, own: str, collation: str | None) -> pa.Field:
    if collation is not None:  # with its provider, as in icu.UNICODE
        return with_spark_type(field, collated(collation.rpartition(".")[2]))
    if own.startswith(_INTERVAL) and not any(word in own for word in _MONTHS):
        return with_spark_type(field.with_type(_MICROS), None if own == _SPAN else own)
    if own == _VARIANT and {each.name for each in fields_of(field.type)} == {each.name for each in _PARTS}:
        field = field.with_type(_PARTS)
    return with_spark_type(field, own) if own.startswith((_INTERVAL, *_OWN)) else field


def unreadable(field: pa.Field) -> str:
    """The reason why no stream holds a column of a file; empty where it can."""
    name = spark_type(field) or ""
    if name.startswith(_INTERVAL) and field.type != _MICROS:
        return f"is an {name}, for which PySpark has no Arrow type: cast it to a number of months in Spark"
    if name == _VARIANT and not is_one_value(field.type):
        return (
            "is a variant in parts: read it by fromDataFrame(spark.read.parquet(...)), or write it with"
            " spark.sql.variant.writeShredding.enabled=false"
        )
    if name.startswith(_OWN) and not is_one_value(field.type):
        return f"is a {name}, which only Spark reads: write its bytes, ST_AsBinary({field.name})"
    return next(filter(None, map(unreadable, fields_of(field.type))), "")


def unwritable(field: pa.Field) -> str:
    """The reason why no file holds a column; empty where one can."""
    name = spark_type(field) or ""
    if name.startswith(_PLACES):
        return f"is a {name}, for which Arrow writes no Parquet: take its bytes, ST_AsBinary, in Spark"
    return next(filter(None, map(unwritable, fields_of(field.type))), "")
