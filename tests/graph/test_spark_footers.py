# SPDX-License-Identifier: Apache-2.0
"""Spark's types of columns in the footers of Parquet files: what Parquet has no type for, out and in again."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pytest

from penstock.graph import (
    as_nullable,
    fields_of,
    footer_of,
    has_sessions,
    named_by_spark,
    parse_ddl,
    spark_type,
    unreadable,
    with_sessions,
)
from penstock.graph.spark_footers import FOOTER

VECTOR = {"type": "udt", "class": "org.apache.spark.ml.linalg.VectorUDT", "pyClass": "pyspark.ml.linalg.VectorUDT"}
STORED = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
"""A variant in a file."""
SPAN = "interval day to second"


def footer(kind: Any) -> dict[bytes, bytes]:
    """The entry of a file with one column, as Spark writes it."""
    field = {"name": "v", "type": kind, "nullable": True, "metadata": {}}
    return {FOOTER: json.dumps({"type": "struct", "fields": [field]}).encode()}


def listed(kind: Any) -> dict[str, Any]:
    """The JSON of an array."""
    return {"type": "array", "elementType": kind, "containsNull": True}


COLUMNS: list[tuple[pa.DataType, Any, Any]] = [
    (pa.struct([("values", pa.list_(pa.float64()))]), VECTOR, VECTOR),
    (pa.int64(), SPAN, None),
    (pa.int64(), "interval hour", "interval hour"),
    (STORED, "variant", "variant"),
]
"""A column's type in a file, the JSON of Spark's, and Spark's name that the column then has, if Arrow says it not."""


@pytest.mark.parametrize(("stored", "kind", "name"), COLUMNS)
@pytest.mark.parametrize("is_list", [False, True])
def test_columns_have_the_types_of_the_footer(stored: pa.DataType, kind: Any, name: Any, is_list: bool) -> None:
    """A column of that type is found in a file, and a file of it says the same again; also inside a list."""
    held = pa.list_(stored) if is_list else stored
    found = named_by_spark(pa.schema([("v", held), ("other", pa.int32())]), footer(listed(kind) if is_list else kind))
    assert found.field("other").type == pa.int32()
    field = found.field("v").type.value_field if is_list else found.field("v")
    own = spark_type(field)
    assert (json.loads(own) if own is not None and own.startswith("{") else own) == name
    assert field.type == (pa.duration("us") if stored == pa.int64() else field.type)
    (again,) = json.loads(footer_of(pa.schema([found.field("v")]))[FOOTER])["fields"]
    assert again["type"] == (listed(kind) if is_list else kind)
    assert not unreadable(found.field("v"))


def test_the_parts_of_a_variant_are_never_null() -> None:
    """Spark reads no others, so they stay so in files, where all else may be null."""
    schema = named_by_spark(pa.schema([("v", STORED)]), footer("variant"))
    (kind,) = as_nullable(schema).types
    assert [(part.name, part.nullable) for part in fields_of(kind)] == [("value", False), ("metadata", False)]


@pytest.mark.parametrize(
    ("stored", "kind", "words"),
    [
        (pa.int32(), "interval year to month", "is an interval year to month, for which PySpark has no Arrow type"),
        (pa.struct([*STORED, ("typed_value", pa.int32())]), "variant", "is a variant in parts"),
        (pa.binary(), "geometry(0)", r"is a geometry\(0\), which only Spark reads"),
        (pa.struct([("x", pa.int32())]), {"type": "struct", "fields": [
            {"name": "x", "type": "interval month", "nullable": True, "metadata": {}}]}, "is an interval month"),
    ],
)  # fmt: skip
def test_what_no_stream_holds_is_named(stored: pa.DataType, kind: Any, words: str) -> None:
    """Months, variants in parts, geometries; the reason says what to do."""
    assert re.match(words, unreadable(named_by_spark(pa.schema([("v", stored)]), footer(kind)).field("v")))


def test_sessions_are_told_beside_the_type() -> None:
    """Spark joins those that touch where they are grouped again, also out of a file, and no other windows."""
    bound = pa.timestamp("us", "UTC")
    window = pa.field("w", pa.struct([("start", bound), ("end", bound)]))
    (told,) = json.loads(footer_of(pa.schema([with_sessions(window)]))[FOOTER])["fields"]
    assert told["metadata"] == {"spark.sessionWindow": True}
    assert footer_of(pa.schema([window])) == {}
    for beside, are_sessions in ((told["metadata"], True), ({"spark.timeWindow": True}, False)):
        text = json.dumps({"type": "struct", "fields": [{**told, "metadata": beside}]}).encode()
        assert has_sessions(named_by_spark(pa.schema([window]), {FOOTER: text}).field("w")) is are_sessions


def test_collations_lie_beside_the_type() -> None:
    """Of a column, of elements and of fields of structs, with the provider's name ahead."""
    beside = {"__COLLATIONS": {"v": "spark.UTF8_LCASE", "l.element": "icu.UNICODE_CI"}}
    own = [
        {"name": "v", "type": "string", "metadata": beside},
        {"name": "l", "type": listed("string"), "metadata": beside},
    ]
    found = named_by_spark(
        pa.schema([("v", pa.string()), ("l", pa.list_(pa.string()))]), {FOOTER: json.dumps({"fields": own}).encode()}
    )
    assert spark_type(found.field("v")) == "string collate UTF8_LCASE"
    assert spark_type(found.field("l").type.value_field) == "string collate UNICODE_CI"


def test_a_footer_says_nothing_that_parquet_says() -> None:
    """Columns of plain types have none; beside an interval each has its word, as Spark's JSON has it."""
    plain = "a long, b string, c array<map<string, decimal(5,2)>>, d struct<x: date, y: timestamp>, e timestamp_ntz"
    assert footer_of(parse_ddl(plain)) == {}
    found = json.loads(footer_of(parse_ddl(f"{plain}, f {SPAN}, g interval minute"))[FOOTER])
    kinds = {field["name"]: field["type"] for field in found["fields"]}
    assert [kinds[name] for name in "abefg"] == ["long", "string", "timestamp_ntz", SPAN, "interval minute"]
    assert kinds["c"]["elementType"]["valueType"] == "decimal(5,2)"
    assert [field["type"] for field in kinds["d"]["fields"]] == ["date", "timestamp"]
