# SPDX-License-Identifier: Apache-2.0
"""The everyday verbs in a real session: expressions, types and errors are Spark's, rows are what Spark gives."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

import edge_expressions
import penstock
import random_expressions
from effort import THOROUGH
from penstock.api.expressions import ExpressionReader
from penstock.errors import PlanError, SchemaError
from penstock.operators.expressions import ValuesError, evaluate

pytestmark = pytest.mark.spark

EXPRESSIONS = 160 if THOROUGH else 80
AT_ONCE = 40
SEED = 20261122
ZONE = "Europe/Berlin"


@pytest.fixture(scope="module")
def berlin(spark: Any) -> Iterator[Any]:
    """The session in a zone whose clock changes."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def answers(frame: Any, expressions: list[str]) -> dict[str, pa.Array | None]:
    """Spark's, many at once; None where it raises an error."""
    try:
        named = [F.expr(text).alias(f"c{place}") for place, text in enumerate(expressions)]
        found = frame.select(*named).toArrow().combine_chunks()
        return {text: _whole(found.column(place)) for place, text in enumerate(expressions)}
    except PySparkException:
        if len(expressions) == 1:
            return {expressions[0]: None}
        half = len(expressions) // 2
        return answers(frame, expressions[:half]) | answers(frame, expressions[half:])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def comparable(column: pa.Array | None) -> object:
    """Values that compare: NaN as text, instants as numbers; the type beside them."""
    if column is None:
        return "an error"
    values = column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()
    return column.type, ["NaN" if isinstance(item, float) and math.isnan(item) else item for item in values]


def differences(spark: Any, table: pa.Table, texts: list[str]) -> tuple[list[str], int]:
    """Which expressions have other types or values than Spark's, or fail where Spark does not; how many have any."""
    batch = table.combine_chunks().to_batches()[0]
    frame = spark.createDataFrame(table).coalesce(1)
    theirs: dict[str, pa.Array | None] = {}
    for start in range(0, len(texts), AT_ONCE):
        theirs |= answers(frame, texts[start : start + AT_ONCE])
    computed = ExpressionReader(batch.schema, spark, "select").computed(texts)
    different = []
    for text, one in zip(texts, computed, strict=True):
        try:
            ours = evaluate(one.expression, batch)
        except ValuesError:
            ours = None
        if comparable(ours) != comparable(theirs[text]):
            different.append(f"{text}\n  ours   {comparable(ours)}\n  Spark's {comparable(theirs[text])}")
    return different, sum(answer is not None for answer in theirs.values())


def test_random_expressions_give_sparks_types_and_values(berlin: Any) -> None:
    """Of a hundred and more random expressions each has Spark's type and values, or Spark raises an error too."""
    grammar = random_expressions.Grammar(SEED)
    texts = sorted({grammar.expression() for _ in range(EXPRESSIONS)})
    different, answered = differences(berlin, random_expressions.table(SEED), texts)
    assert not different, "\n".join(different[:5])
    assert answered > EXPRESSIONS * 0.7


def test_expressions_at_their_edges_give_sparks_values(berlin: Any) -> None:
    """Numbers near ties, line ends, odd letters and many patterns: Spark's values in each row."""
    texts = edge_expressions.EXPRESSIONS
    different, answered = differences(berlin, edge_expressions.table(), texts)
    assert not different, "\n".join(different[:5])
    assert answered == len(texts)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_casts_that_try_give_sparks_values(berlin: Any, ansi: str) -> None:
    """Text and numbers at the edges of each type: null or Spark's value in each row, with ANSI rules and without."""
    before = berlin.conf.get("spark.sql.ansi.enabled")
    berlin.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        different, answered = differences(berlin, edge_expressions.cast_table(), edge_expressions.TRIED)
    finally:
        berlin.conf.set("spark.sql.ansi.enabled", before)
    assert not different, "\n".join(different[:5])
    assert answered == len(edge_expressions.TRIED)


def orders(spark: Any) -> Any:
    """A small DataFrame."""
    rows = [("a", 1, 10.0), ("b", 2, 20.0), ("a", 3, None), (None, 4, 40.0), ("b", 2, 20.0), ("c", -5, 0.5)]
    return spark.createDataFrame(rows, "k string, v int, w double")


def in_order(frame: Any) -> list[tuple[Any, ...]]:
    """The rows of a DataFrame in an order of their own."""
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_a_program_of_verbs_is_sparks_program(spark: Any) -> None:
    """The same verbs on a DataFrame and on a stream give the same names, types and rows."""

    def program(source: Any) -> Any:
        return (
            source.filter("v > 0")
            .withColumn("z", F.coalesce("w", F.lit(0.0)) * 2)
            .select("k", "v", (F.col("v") % 2).alias("odd"), "z")
            .withColumnRenamed("v", "n")
            .distinct()
            .groupBy("k")
            .agg(F.sum("n").alias("n"), F.max(F.col("z") + 1).alias("top"), F.count("*").alias("rows"))
            .filter(F.col("rows") >= 1)
            .drop("nothing")
        )

    theirs, ours = program(orders(spark)), program(penstock.fromDataFrame(orders(spark))).toDF()
    assert ours.dtypes == theirs.dtypes
    assert in_order(ours) == in_order(theirs)


def test_aggregates_are_sparks(spark: Any) -> None:
    """Each function beside Spark's over the same groups; lists as they come, sorted."""
    wanted = {
        "n": F.count_distinct("v"),
        "median": F.median("v"),
        "spread": F.stddev("v"),
        "spread_all": F.stddev_pop("w"),
        "variance": F.variance("v"),
        "variance_all": F.var_pop("v"),
        "mean": F.avg("w"),
        "low": F.min("v"),
    }
    theirs = orders(spark).groupBy("k").agg(*(column.alias(name) for name, column in wanted.items()))
    ours = penstock.fromDataFrame(orders(spark)).groupBy("k").agg(**wanted).toDF()
    assert ours.dtypes == theirs.dtypes
    assert in_order(ours) == in_order(theirs)
    lists = (
        penstock.fromDataFrame(orders(spark)).groupBy("k").agg(all=("v", "collect_list"), each=("v", "collect_set"))
    )
    found = {row.k: (sorted(row.all), sorted(row.each)) for row in lists.collect()}
    assert found == {"a": ([1, 3], [1, 3]), "b": ([2, 2], [2]), "c": ([-5], [-5]), None: ([4], [4])}


def test_medians_are_sparks_to_the_last_bit(spark: Any) -> None:
    """Of decimals, of doubles and of longs beyond 2^53: Arrow's doubles of decimals were off by a bit."""
    draw = random.Random(7)
    rows = [(place // 2, round(draw.uniform(-100, 100), 2), draw.randint(-(2**62), 2**62)) for place in range(120)]
    frame = spark.createDataFrame(rows, "k int, x double, v long").withColumn(
        "d", F.expr("cast(x as decimal(10, 2))")
    )
    wanted = [F.median(name).alias(name) for name in ("x", "v", "d")]
    ours = penstock.fromDataFrame(frame).groupBy("k").agg(*wanted)
    assert in_order(ours.toDF()) == in_order(frame.groupBy("k").agg(*wanted))


def test_a_filter_of_an_aggregate_is_sparks(spark: Any) -> None:
    """FILTER (WHERE ...) leaves rows out of one aggregate; of first and last, which take nulls too, it is refused."""
    functions = ("count(*)", "count(v)", "sum(v)", "avg(w)", "min(v)", "max(v)", "count(DISTINCT v)", "median(v)")
    wanted = [
        F.expr(f"{function} FILTER (WHERE {condition})").alias(f"c{place}_{number}")
        for place, function in enumerate(functions)
        for number, condition in enumerate(("v > 1", "v IS NULL", "true", "k = 'a' OR w > 1"))
    ]
    theirs = orders(spark).groupBy("k").agg(*wanted)
    ours = penstock.fromDataFrame(orders(spark)).groupBy("k").agg(*wanted).toDF()
    assert ours.dtypes == theirs.dtypes
    assert in_order(ours) == in_order(theirs)
    with pytest.raises(SchemaError, match="first takes no FILTER here: filter the stream first"):
        penstock.fromDataFrame(orders(spark)).groupBy("k").agg(F.expr("first(v) FILTER (WHERE v > 1)"))


@pytest.mark.thorough
def test_actions(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Count, collect, take, first, isEmpty, show and toArrow give what they give on a DataFrame."""
    stream = penstock.fromDataFrame(orders(spark)).filter("v > 0")
    assert stream.count() == 5
    assert in_order(stream) == in_order(orders(spark).filter("v > 0"))
    assert len(stream.take(3)) == 3
    assert stream.filter("v > 100").isEmpty()
    assert stream.filter("v > 100").first() is None
    assert stream.toArrow().num_rows == 5
    assert [row.v for row in stream.sortBy("v", ascending=False, numPartitions=2).take(2)] == [4, 3]
    stream.select("k").limit(2).show()
    assert capsys.readouterr().out.count("|") >= 6


def test_keys_may_be_expressions(spark: Any) -> None:
    """A Column may be a key: a plain one by its name, another under the name Spark gives it."""
    stream = penstock.fromDataFrame(orders(spark))
    assert stream.groupBy(F.col("k")).count().columns == ["k", "count"]
    counted = stream.groupBy((F.col("v") > 1).alias("large")).count()
    assert in_order(counted.toDF()) == [(False, 2), (True, 4)]


def test_readers_filter_takes_sql(spark: Any, tmp_path: Path) -> None:
    """The filter of readParquet is read as filter is, and its columns need not hold what the filter reads."""
    path = str(tmp_path / "orders")
    orders(spark).coalesce(1).write.parquet(path)
    stream = penstock.readParquet(spark, path, columns=["k"], filter="v BETWEEN 2 AND 3")
    assert in_order(stream) == [("a",), ("b",), ("b",)]
    with pytest.raises(SchemaError, match=r"nope.*the columns are k string, v int, w double"):
        penstock.readParquet(spark, path, filter="nope > 2")


def test_values_that_spark_refuses_fail_the_job_by_name(spark: Any) -> None:
    """A division by zero is an error as it is in Spark, and says which column."""
    stream = penstock.fromDataFrame(orders(spark)).withColumn("bad", "1 div (v - 2)")
    with pytest.raises(Exception, match=r"column 'bad': 1 divided by zero"):
        stream.collect()


MISTAKES = {
    "an unknown column": (lambda s: s.filter("vv > 3"), SchemaError, r"`vv`.*the columns are k string, v int, w"),
    "an unknown Column": (lambda s: s.select(F.col("nope")), SchemaError, r"`nope`.*the columns are k string"),
    "wrong types": (lambda s: s.withColumn("z", "v + array(1)"), SchemaError, r"withColumn: 'v .*the columns are"),
    "no SQL": (lambda s: s.filter("v >"), SchemaError, r"filter: 'v >'"),
    "an unknown function": (lambda s: s.select("nonsense(v)"), SchemaError, "nonsense"),
    "a filter that is no condition": (lambda s: s.filter("v + 1"), SchemaError, "a condition is boolean"),
    "what Arrow has not": (lambda s: s.select("sha2(k, 256)"), SchemaError, r"Sha2 is not supported.*mapInArrow"),
    "a cast that Arrow has not": (
        lambda s: s.select("try_cast(w as string)"),
        SchemaError,
        "a try_cast of double to string is not supported",
    ),
    "random numbers": (lambda s: s.withColumn("r", F.rand()), SchemaError, r"Rand is not supported.*mapInArrow"),
    "an aggregate in select": (lambda s: s.select(F.sum("v")), SchemaError, r"groupBy\(...\).agg"),
    "explode in select": (lambda s: s.select(F.explode(F.array("v"))), SchemaError, r"write .explode"),
    "no aggregate in agg": (lambda s: s.groupBy("k").agg(F.col("v")), SchemaError, "agg"),
    "two aggregates in one": (lambda s: s.groupBy("k").agg(F.sum("v") / F.count("v")), SchemaError, "withColumn"),
    "a sum that tries": (lambda s: s.groupBy("k").agg(F.expr("try_sum(v)")), SchemaError, "try_sum.* no counterpart"),
    "a mean that tries": (lambda s: s.groupBy("k").agg(F.try_avg("v")), SchemaError, "try_avg.* no counterpart"),
    "an unknown aggregate": (lambda s: s.groupBy("k").agg(F.skewness("v")), SchemaError, "no counterpart"),
    "a list with nulls": (
        lambda s: s.groupBy("k").agg(F.expr("collect_list(v) RESPECT NULLS")),
        SchemaError,
        "no counterpart",
    ),
    "a first value that is not null": (
        lambda s: s.groupBy("k").agg(F.first("v", ignorenulls=True)),
        SchemaError,
        "no counterpart",
    ),
    "a condition for a join": (
        lambda s: s.keyBy("k").join(s.keyBy("k"), on=F.col("k") == 1),
        (PlanError, TypeError),
        r"join takes names of columns.*filter after it",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_when_the_stream_is_built(spark: Any, name: str) -> None:
    """An error of Spark's analyser comes as one sentence with the columns; a gap of Arrow's names mapInArrow."""
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call(penstock.fromDataFrame(orders(spark)))


def test_a_window_is_refused(spark: Any) -> None:
    """Window functions name what sees a whole group."""
    ranked = F.row_number().over(Window.partitionBy("k").orderBy("v"))
    with pytest.raises(SchemaError, match=r"no window functions.*applyInArrow"):
        penstock.fromDataFrame(orders(spark)).withColumn("rank", ranked)
