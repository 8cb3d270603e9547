# SPDX-License-Identifier: Apache-2.0
"""Spark's DDL schema strings, read without a JVM."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import SchemaError
from penstock.graph import parse_ddl

UTC = pa.timestamp("us", "UTC")

TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "INTEGER": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": UTC,
    "timestamp_ltz": UTC,
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "string collate UTF8_BINARY": pa.string(),
    "char(5)": pa.string(),
    "character(5)": pa.string(),
    "varchar( 7 )": pa.string(),
    "binary": pa.binary(),
    "void": pa.null(),
    "decimal": pa.decimal128(10, 0),
    "decimal(5)": pa.decimal128(5, 0),
    "dec(5, 2)": pa.decimal128(5, 2),
    "numeric(38,38)": pa.decimal128(38, 38),
    "time": pa.time64("ns"),
    "time(3)": pa.time64("ns"),
    "interval day": pa.duration("us"),
    "interval day to second": pa.duration("us"),
    "INTERVAL HOUR TO MINUTE": pa.duration("us"),
    "array<int>": pa.list_(pa.field("element", pa.int32())),
    "array<array<string>>": pa.list_(pa.field("element", pa.list_(pa.field("element", pa.string())))),
    "map<string,decimal(3,1)>": pa.map_(pa.string(), pa.decimal128(3, 1)),
    "struct<a:int,b: string>": pa.struct([("a", pa.int32()), ("b", pa.string())]),
    "struct<a int, `b c` string NOT NULL>": pa.struct([("a", pa.int32()), pa.field("b c", pa.string(), False)]),
    "struct<>": pa.struct([]),
}


@pytest.mark.parametrize("text", TYPES)
def test_every_type_has_its_arrow_type(text: str) -> None:
    """Each type name, in any case, gives the Arrow type that PySpark exchanges for it."""
    assert parse_ddl(f"c {text}") == pa.schema([("c", TYPES[text])])


def test_columns_in_all_spellings() -> None:
    """Colons are optional, names may be quoted, NOT NULL and comments are understood, blanks do not matter."""
    schema = parse_ddl("a int,b : string ,\n `c``d, e` double not null COMMENT 'it''s, <x>', f date comment \"y\"")
    assert schema.names == ["a", "b", "c`d, e", "f"]
    assert [field.nullable for field in schema] == [True, True, False, True]


def test_type_names_may_be_column_names() -> None:
    """Spark reserves no word for types, so a column may be called like one."""
    assert parse_ddl("date date, map map<int,int>, comment string comment 'c'").names == ["date", "map", "comment"]


def test_a_whole_struct_is_its_columns() -> None:
    """`struct<...>` as the whole text means its fields; no columns at all is an empty schema."""
    assert parse_ddl("struct<a: int, b: string>") == parse_ddl("a int, b string")
    assert len(parse_ddl("")) == 0


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("a int,", 6, "expected a column name"),
        ("a foo", 2, "unknown type 'foo'"),
        ("int", 3, "expected a type"),
        ("a array<int", 11, "expected '>'"),
        ("a map<int,boolean>>", 18, "expected a comma or the end"),
        ("a map<int>", 9, "expected ','"),
        ("a decimal(39,1)", 2, "1 <= precision <= 38"),
        ("a decimal(3,4)", 2, "scale <= precision"),
        ("a decimal()", 2, "takes"),
        ("a varchar", 2, "takes 1 numbers"),
        ("a interval month", 2, "year-month"),
        ("a interval second to day", 2, "not possible"),
        ("a variant", 2, "no Arrow form"),
        ("a int not", 9, "NULL after NOT"),
        ("a int comment b", 14, "quoted text"),
        ("a int b int", 6, "comma"),
        ("a ?int", 2, "does not belong"),
        ("a time(10)", 2, "0 to 9"),
    ],
)
def test_errors_show_the_place(text: str, position: int, message: str) -> None:
    """A mistake is told with its position, and the text is shown with a mark under it."""
    with pytest.raises(SchemaError, match=message.replace("(", r"\(").replace("?", r"\?")) as caught:
        parse_ddl(text)
    lines = str(caught.value).splitlines()
    assert lines[-1] == "  " + " " * position + "^"
    assert lines[-2].strip() == text.strip()
