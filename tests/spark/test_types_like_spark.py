# SPDX-License-Identifier: Apache-2.0
"""Types that meet in unions and in keys of joins, with Spark as the oracle: what it casts is cast, and no more."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException

import penstock
from effort import THOROUGH, some_of, with_all
from penstock.errors import SchemaError

pytestmark = pytest.mark.spark

VALUES = {
    "tinyint": "7Y",
    "int": "-12",
    "bigint": "9007199254740993L",
    "float": "CAST(1.5 AS FLOAT)",
    "double": "2.5D",
    "decimal": "CAST(12.34 AS DECIMAL(5, 2))",
    "date": "DATE'1969-12-31'",
    "timestamp": "TIMESTAMP'2020-10-25 02:30:00.5'",
    "timestamp_ntz": "TIMESTAMP_NTZ'2020-10-25 02:30:00'",
    "boolean": "true",
    "binary": "X'37'",
    "interval": "INTERVAL '1 02:03:04.5' DAY TO SECOND",
    "hours": "INTERVAL '5' HOUR",
    "ints": "array(7Y, null)",
    "doubles": "array(2.5D, null)",
    "texts": "array('12', null)",
    "struct": "named_struct('x', 1, 'y', 'a')",
    "wider struct": "named_struct('x', 2.5D, 'y', 'b')",
    "other struct": "named_struct('z', 1, 'y', 'a')",
    "map": "map('k', 1)",
    "wider map": "map('k', 2.5D, 'l', null)",
    "structs": "array(named_struct('x', map('k', 1)), null)",
    "wider structs": "array(named_struct('x', map('k', 1L)), null)",
    "void": "null",
    "string": "",
}
"""A value of each type; a text says the value of the type that it meets."""
PAIRS = some_of(list(itertools.combinations(VALUES, 2)), 4)
LACKING = {(kind, "string") for kind in ("float", "double", "interval", "hours")} | {("doubles", "texts")}
"""Pairs that Spark casts outside ANSI mode, where numbers become texts, and for which nobody here has a cast."""


@pytest.fixture(params=["true", with_all("false")])
def ansi(spark: Any, request: pytest.FixtureRequest) -> Iterator[bool]:
    """The session's rules."""
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", request.param)
    yield request.param == "true"
    spark.conf.set("spark.sql.ansi.enabled", before)


def sides(spark: Any, pairs: list[tuple[str, str]]) -> tuple[Any, Any]:
    """Two frames with a column for each pair, of two rows, one of which is null."""
    found = []
    for turn in (1, -1):
        texts = []
        for place, pair in enumerate(pairs):
            mine, other = pair[::turn]
            value = VALUES[mine] or f"CAST({VALUES[other]} AS STRING)"
            texts.append(f"IF(id = 0, {value}, null) AS c{place}")
        found.append(spark.range(2).coalesce(1).selectExpr(*texts))
    return found[0], found[1]


def is_taken(one: Any, other: Any) -> bool:
    """Tell whether Spark unites two frames."""
    try:
        return bool(one.union(other).columns)
    except PySparkException:
        return False


def in_order(frame: Any) -> list[str]:
    """The rows as texts."""
    return sorted(map(str, frame.collect()))


def test_unions_have_sparks_types_and_values(spark: Any, ansi: bool) -> None:
    """Of each pair of types, whichever comes first: Spark's type and rows, or a refusal where Spark refuses."""
    alone = {kind: spark.range(1).selectExpr((value or "'7'") + " AS v") for kind, value in VALUES.items()}
    allowed = {pair: is_taken(*(alone[kind] for kind in pair)) for pair in PAIRS}
    lacking = set() if ansi else LACKING
    taken = [pair for pair in PAIRS if allowed[pair] and pair not in lacking]
    assert len(taken) > (50 if THOROUGH else 12)
    one, other = sides(spark, taken + [pair[::-1] for pair in taken])
    found, right = penstock.fromDataFrame(one).union(penstock.fromDataFrame(other)).toDF(), one.union(other)
    assert found.schema == right.schema
    assert in_order(found) == in_order(right)
    refused = [pair for pair in PAIRS if pair not in taken]
    for pair in refused if THOROUGH else refused[::8]:
        streams = map(penstock.fromDataFrame, sides(spark, [pair]))
        with pytest.raises(SchemaError, match="union: names and types of columns must be the same, or types for"):
            next(streams).union(next(streams))


KEYS = {
    "int": ["7", "-12"],
    "bigint": ["7L", "9007199254740993L"],
    "double": ["7D", "0.1D"],
    "decimal": ["CAST(7 AS DECIMAL(5, 2))", "CAST(0.1 AS DECIMAL(5, 2))"],
    "date": ["DATE'2020-03-29'", "DATE'1969-12-31'"],
    "timestamp": ["TIMESTAMP'2020-03-29 00:00:00'", "TIMESTAMP'1969-12-31 00:00:01'"],
    "string": ["'7'", "' 07'"],
}
MEETINGS: list[Any] = [
    with_all("int", "bigint", "inner"),
    with_all("bigint", "int", "full"),
    ("string", "int", "right"),
    ("date", "timestamp", "left"),
    with_all("int", "string", "full"),
    with_all("decimal", "double", "left_semi"),
    with_all("int", "decimal", "left_anti"),
]


def keyed(spark: Any, kind: str, column: str) -> Any:
    """A frame with keys of a type, one of which is null, and numbers."""
    rows = " UNION ALL ".join(f"SELECT {key} AS k, {place} AS {column}" for place, key in enumerate(KEYS[kind]))
    return spark.sql(f"{rows} UNION ALL SELECT null, 9").coalesce(1)


@pytest.mark.parametrize(("one", "other", "how"), MEETINGS)
def test_keys_of_other_types_meet_as_in_spark(spark: Any, one: str, other: str, how: str) -> None:
    """The result has Spark's key: that of the left side, of the right one, or the first that there is."""
    left, right = keyed(spark, one, "x"), keyed(spark, other, "y")
    theirs = left.join(right, "k", how)
    ours = penstock.fromDataFrame(left).keyBy("k").join(penstock.fromDataFrame(right).keyBy("k"), how).toDF()
    assert ours.schema == theirs.schema
    assert in_order(ours) == in_order(theirs)
