# SPDX-License-Identifier: Apache-2.0
"""Types, results, keys and names as Spark has them, with Spark as the oracle in the same session."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import penstock
from effort import THOROUGH, some_of, with_all
from penstock.errors import PlanError, SchemaError
from session_probe import conf

pytestmark = pytest.mark.spark

NUMBERS = ["tinyint", "smallint", "int", "bigint", "float", "double"]
DECIMALS = ["decimal(5,2)", "decimal(10,0)", "decimal(20,10)", "decimal(38,0)", "decimal(38,18)", "decimal(38,38)"]
OTHERS = [
    "string",
    "binary",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
    "interval day to second",
    "interval hour",
]
FUNCTIONS = {
    "count": "count",
    "sum": "sum",
    "min": "min",
    "max": "max",
    "mean": "mean",
    "avg": "avg",
    "product": "product",
    "stddev": "stddev",
    "variance": "variance",
    "any": "bool_or",
    "all": "bool_and",
}
REFUSED_HERE = {
    *((function, "string") for function in ("sum", "mean", "avg", "product", "stddev", "variance", "any", "all")),
    *((function, "timestamp") for function in ("sum", "mean", "avg")),
    *((f, f"interval {unit}") for f in ("sum", "mean", "avg") for unit in ("hour", "day to second")),
}
"""The columns that Spark casts, or intervals, that `agg` refuses: the table in docs/api.md."""


def spark_function(function: str, column: str) -> Any:
    """Spark's aggregate over a column."""
    from pyspark.sql import functions as f

    return getattr(f, FUNCTIONS[function])(column)


def near(one: Any, other: Any) -> bool:
    """Equal, with floats as near as another order of adding them leaves them."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def literal(rng: random.Random, kind: str) -> str:
    """A random value of this type as SQL."""
    if rng.random() < 0.2:
        return f"CAST(NULL AS {kind})"
    number = rng.randint(-100, 100)
    if kind.startswith("decimal"):
        precision, scale = (int(part) for part in kind[8:-1].split(","))
        most = 10 ** max(3, precision - 6)
        digits = Decimal(rng.randint(-most, most)).scaleb(-scale)
        return f"CAST('{digits:f}' AS {kind})"
    if kind in NUMBERS:
        return f"CAST({number} AS {kind})"
    texts = {
        "string": f"'{number}'",
        "binary": f"CAST('{number}' AS BINARY)",
        "boolean": str(number > 0).lower(),
        "date": f"date_add(DATE'2020-01-01', {number})",
        "timestamp": f"TIMESTAMP'2020-01-01 00:00:00' + make_dt_interval({number})",
        "timestamp_ntz": f"TIMESTAMP_NTZ'2020-01-01 00:00:00' + make_dt_interval({number})",
        "interval day to second": f"make_dt_interval({number})",
        "interval hour": f"CAST(make_dt_interval(0, {number}) AS INTERVAL HOUR)",
    }
    return texts[kind]


def test_every_aggregate_of_every_type(spark: Any) -> None:
    """Types and values of all functions over all types, random rows: Spark's, or refused where the docs say so."""
    rng = random.Random(11)
    kinds = some_of([*NUMBERS, *DECIMALS, *OTHERS], 2)
    rows = [[str(rng.randint(0, 3)), *(literal(rng, kind) for kind in kinds)] for _ in range(40)]
    names = [f"c{number}" for number in range(len(kinds))]
    frame = spark.sql(" UNION ALL ".join("SELECT " + ", ".join(row) for row in rows))
    frame = frame.toDF("k", *names).localCheckpoint()
    stream = penstock.fromDataFrame(frame).keyBy("k", numPartitions=2)
    wanted: dict[str, tuple[str, str]] = {}
    for kind, column in zip(kinds, names, strict=True):
        for function in FUNCTIONS:
            try:
                stream.agg(r=(column, function))
            except PlanError:
                with_spark = _has(lambda c=column, f=function: frame.agg(spark_function(f, c)))
                assert (function, kind) in REFUSED_HERE or not with_spark, (function, kind)
            else:
                assert (function, kind) not in REFUSED_HERE
                wanted[f"{function}_{column}"] = (column, function)
    assert len(wanted) > 100 // (1 if THOROUGH else 2)
    ours = stream.agg(**wanted).toDF()
    theirs = frame.groupBy("k").agg(*(spark_function(f, c).alias(name) for name, (c, f) in wanted.items()))
    assert [(f.name, f.dataType) for f in ours.schema] == [(f.name, f.dataType) for f in theirs.schema]
    for mine, other in zip(sorted(ours.collect()), sorted(theirs.collect()), strict=True):
        wrong = [(name, mine[name], other[name]) for name in wanted if not near(mine[name], other[name])]
        assert not wrong


def _has(make: Callable[[], Any]) -> bool:
    from pyspark.errors import AnalysisException

    try:
        make()
    except AnalysisException:
        return False
    return True


BIG = "SELECT explode(array(9223372036854775807L, 1L, 5L)) AS v"
WIDE = f"SELECT explode(array(CAST('{'9' * 38}' AS DECIMAL(38,0)), CAST(1 AS DECIMAL(38,0)))) AS v"


@pytest.mark.parametrize(("source", "function"), [(BIG, "sum"), with_all(WIDE, "sum"), with_all(WIDE, "avg")])
def test_sums_that_leave_their_type(spark: Any, source: str, function: str) -> None:
    """With ANSI rules Spark's error, without them Spark's value; the rules are those of the call of agg."""
    frame = spark.sql(source)
    with conf(spark, {"spark.sql.ansi.enabled": "true"}):
        strict = penstock.fromDataFrame(frame).toOne().agg(r=("v", function))
        with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
            frame.agg(spark_function(function, "v")).collect()
    with conf(spark, {"spark.sql.ansi.enabled": "false"}):
        loose = penstock.fromDataFrame(frame).toOne().agg(r=("v", function))
        expected = spark.sql(source).agg(spark_function(function, "v")).collect()[0][0]
    with pytest.raises(Exception, match=rf"ARITHMETIC_OVERFLOW.*r={function}\(v\)"):
        strict.toDF().collect()
    assert loose.toDF().collect()[0].r == expected


KEYS = [
    "CAST(5 AS TINYINT)",
    "CAST(5 AS SMALLINT)",
    "5",
    "5L",
    "CAST(1.5 AS FLOAT)",
    "CAST(1.5 AS DOUBLE)",
    "CAST(1.5 AS DECIMAL(5,2))",
    "'x'",
    "CAST('x' AS BINARY)",
    "true",
    "DATE'2020-02-03'",
    "TIMESTAMP'2020-02-03 04:05:06.123456'",
    "TIMESTAMP_NTZ'2020-02-03 04:05:06.123456'",
    "INTERVAL '1 02:03:04' DAY TO SECOND",
]


def shown(key: tuple[Any, ...], _: Any) -> Any:
    """A row with the types and values of the key."""
    import pandas as pd

    return pd.DataFrame({"s": [str([(type(item).__name__, repr(item)) for item in key])]})


def shown_of_two(key: tuple[Any, ...], left: Any, _: Any) -> Any:
    """The same of a cogroup's key."""
    return shown(key, left)


@pytest.mark.thorough
def test_keys_of_functions_over_frames(spark: Any) -> None:
    """Types and values of all keys, present and missing, in applyInPandas and cogroup: PySpark's."""
    with conf(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        rows = [f"SELECT {', '.join(KEYS)}", f"SELECT {', '.join(f'nullif({key}, {key})' for key in KEYS)}"]
        names = [f"k{number}" for number in range(len(KEYS))]
        frame = spark.sql(" UNION ALL ".join(rows)).toDF(*names).localCheckpoint()
        spark_groups, our_groups = frame.groupBy(*names), penstock.groupBy(frame, *names, numPartitions=2)
        expected = sorted(row.s for row in spark_groups.applyInPandas(shown, "s string").collect())
        assert sorted(row.s for row in our_groups.applyInPandas(shown, "s string").collect()) == expected
        paired = our_groups.cogroup(penstock.groupBy(frame.limit(0), *names)).applyInPandas(shown_of_two, "s string")
        assert sorted(row.s for row in paired.collect()) == expected
    assert "Timestamp('2020-02-03 04:05:06.123456')" in "".join(expected)


@pytest.mark.parametrize(
    "names",
    some_of(
        [["a.b", "k"], ["1", "k"], ["`", "k"], ["", "k"], ["a", "a", "k"], ["*", "a b", "k"], ["a", "A", "k"]], 8
    ),
)
def test_names_that_spark_has(spark: Any, names: list[str]) -> None:
    """Any names that a DataFrame has go in and come out again, through an exchange, a function and an aggregate."""
    frame = (
        spark.range(6).selectExpr(*(f"id * {n} AS c{n}" for n in range(1, len(names))), "id % 2 AS k").toDF(*names)
    )
    stream = penstock.fromDataFrame(frame)
    ours = stream.keyBy("k", numPartitions=2).toDF()
    assert ours.columns == names
    assert sorted(tuple(row) for row in ours.collect()) == sorted(tuple(row) for row in frame.collect())
    mapped = stream.mapInArrow(same, stream.schema).rebalance(2).toDF()
    assert (mapped.columns, mapped.count()) == (names, 6)
    if names.count(names[0]) == 1:
        total = stream.keyBy(names[0], numPartitions=2).agg(**{"n.n": ("k", "count")}).toDF()
        assert (total.columns, total.count()) == ([names[0], "n.n"], 6)
        placed = penstock.repartition(frame, 3, names[0])
        assert placed.columns == names


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Change nothing."""
    yield from batches


def test_types_that_arrow_does_not_tell(spark: Any) -> None:
    """Collations and interval fields come back, of nested columns too; functions declare them in DDL as well."""
    frame = spark.sql(
        "SELECT 'A' COLLATE UTF8_LCASE AS c, array('b' COLLATE UNICODE_CI) AS l,"
        " map('k', 'v' COLLATE UTF8_LCASE) AS m,"
        " named_struct('x', 'y' COLLATE en_USA_CI) AS s, INTERVAL '5' HOUR AS h,"
        " INTERVAL '1 02' DAY TO HOUR AS d, 1 AS v"
    )
    stream = penstock.fromDataFrame(frame)
    ours = stream.keyBy("v", numPartitions=2).toDF()
    types = [(field.name, field.dataType) for field in frame.schema]
    assert [(field.name, field.dataType) for field in ours.schema] == types
    assert ours.collect() == frame.collect()
    assert ours.where("c = 'a'").count() == 1
    lowest = stream.keyBy("v").agg(h=("h", "min"), n=("c", "count")).toDF()
    assert lowest.schema["h"].dataType == frame.schema["h"].dataType
    declared = stream.mapInArrow(pick, "c string collate utf8_lcase, h interval hour").rebalance(1).toDF()
    assert [field.dataType for field in declared.schema] == [frame.schema["c"].dataType, frame.schema["h"].dataType]
    assert declared.groupBy("c").count().count() == 1
    with pytest.raises(SchemaError, match=r"'c' has strings of collation UTF8_LCASE"):
        penstock.groupBy(frame, "c")
    with pytest.raises(SchemaError, match=r"'s' has strings of collation EN_USA_CI"):
        penstock.repartition(frame, 2, "s")


def pick(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Two of the columns."""
    for batch in batches:
        yield batch.select(["c", "h"])


@pytest.mark.parametrize(
    "value", ["INTERVAL '5' YEAR", "INTERVAL '5' MONTH", "make_interval(1, 2, 3)", "array(INTERVAL '5' MONTH)"]
)
def test_intervals_of_months_are_refused(spark: Any, value: str) -> None:
    """Nothing of Arrow's holds them in PySpark: refused with the column's name when the stream is built."""
    with pytest.raises(SchemaError, match=r"column 'span' of type .*interval.* has no Arrow form"):
        penstock.fromDataFrame(spark.sql(f"SELECT 1 AS id, {value} AS span"))
