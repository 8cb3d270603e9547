# SPDX-License-Identifier: Apache-2.0
"""Spark's own parser as the oracle of ours."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import SchemaError
from penstock.graph import parse_ddl

pytestmark = pytest.mark.spark

SIMPLE = [
    "boolean",
    "tinyint",
    "byte",
    "smallint",
    "short",
    "int",
    "integer",
    "bigint",
    "long",
    "float",
    "real",
    "double",
    "date",
    "timestamp",
    "timestamp_ltz",
    "timestamp_ntz",
    "string",
    "binary",
    "decimal",
]
OTHERS = [
    "decimal(5)",
    "dec(7,3)",
    "NUMERIC(38, 10)",
    "interval day",
    "interval day to second",
    "interval hour to minute",
    "time(6)",
]
WRONG = [
    "a",
    "a int,",
    "a foo",
    "a decimal(39,1)",
    "a decimal(3,4)",
    "a array<int",
    "a map<int,boolean>>",
    "a varchar",
]


def _random_type(rng: random.Random, depth: int) -> str:
    kind = rng.choice(["simple", "simple", "other", "array", "map", "struct"]) if depth else "simple"
    if kind == "array":
        return f"array<{_random_type(rng, depth - 1)}>"
    if kind == "map":
        return f"map<{rng.choice(['int', 'string'])}, {_random_type(rng, depth - 1)}>"
    if kind == "struct":
        return f"struct<{_random_columns(rng, depth - 1)}>"
    word = rng.choice(SIMPLE if kind == "simple" else OTHERS)
    return word.upper() if rng.random() < 0.2 else word


def _random_columns(rng: random.Random, depth: int) -> str:
    columns = []
    for number in range(rng.randint(1, 4)):
        name = rng.choice([f"c{number}", f"`c {number}`", f"`c``{number}`"])
        separator = rng.choice([" ", ": ", ":"])
        tail = rng.choice(["", "", " NOT NULL", " COMMENT 'some, text'", " not null comment 'x'"])
        columns.append(f"{name}{separator}{_random_type(rng, depth)}{tail}")
    return ", ".join(columns)


def test_random_schemas_read_as_spark_reads_them(spark: Any) -> None:
    """Names, types and nullability of a few hundred random schemas are those of Spark's parser."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    rng = random.Random(7)
    for _ in range(150):
        text = _random_columns(rng, 3)
        expected = to_arrow_schema(StructType.fromDDL(text), timezone="UTC")
        assert parse_ddl(text) == pa.schema([field.remove_metadata() for field in expected]), text


@pytest.mark.parametrize("text", WRONG)
def test_what_spark_refuses_is_refused(spark: Any, text: str) -> None:
    """A text that Spark's parser does not take as columns is a SchemaError here too."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    with pytest.raises(PySparkException):
        StructType.fromDDL(text)
    with pytest.raises(SchemaError):
        parse_ddl(text)
