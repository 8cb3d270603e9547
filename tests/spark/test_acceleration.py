# SPDX-License-Identifier: Apache-2.0
"""Unchanged PySpark programs with and without acceleration: the same rows, types, nullability and errors."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, ArithmeticException, PythonException
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses
from pyspark.sql.classic.dataframe import DataFrame

import penstock
from effort import THOROUGH, some_of
from penstock.islands.finding import TOO_FEW

pytestmark = pytest.mark.spark

PLACED = "spark.penstock.acceleration.placed"
SCHEMA = "id long, k long, v double, s string"
COUNTED = "k long, n long, total double"


def rows_of(spark: Any, count: int = 60, parts: int = 3) -> Any:
    """Rows with nulls, a zero of each sign and NaNs among the values."""
    return spark.range(0, count, 1, parts).selectExpr(
        "id",
        "if(id % 11 = 0, null, id % 4) AS k",
        "CASE WHEN id % 7 = 0 THEN null WHEN id % 5 = 0 THEN double('NaN') ELSE -0.5D * id END AS v",
        "if(id % 3 = 0, null, concat('s', id)) AS s",
    )


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows as they are."""
    yield from batches


def same_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The rows as they are."""
    yield from frames


def first_of(table: pa.Table) -> pa.Table:
    """The first rows of a group, by its number."""
    return table.sort_by("id").slice(0, 2)


def counted(key: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
    """A group in one row."""
    return pd.DataFrame({"k": [key[0]], "n": [len(frame)], "total": [float(frame.id.sum())]})


def counted_batches(key: tuple[Any, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A row for each batch of a group, which a group that is cut has several of."""
    for batch in batches:
        n = pa.array([batch.num_rows])
        yield pa.RecordBatch.from_arrays(
            [pa.array([key[0].as_py()], pa.int64()), n, n.cast("double")], ["k", "n", "total"]
        )


def both_sides(key: tuple[Any, ...], left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """A key in one row."""
    return pd.DataFrame({"k": [key[0]], "n": [len(left)], "total": [float(len(right))]})


def both_tables(left: pa.Table, right: pa.Table) -> pa.Table:
    """A key in one row, by the sides' sizes."""
    return pa.table({"k": [left.num_columns], "n": [left.num_rows], "total": [float(right.num_rows)]})


def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The number of rows of each batch."""
    for batch in batches:
        yield pa.record_batch([pa.array([batch.num_rows])], names=["n"])


def hours(table: pa.Table) -> pa.Table:
    """The hour that a function sees, in the session's zone."""
    return pa.table({"h": pc.hour(table["t"]).cast("int64"), "t": table["t"].cast(pa.timestamp("us", "UTC"))})


def shown_hours(frame: pd.DataFrame) -> pd.DataFrame:
    """The hour of a frame's clock."""
    return pd.DataFrame({"h": frame.t.dt.hour, "t": frame.t})


def swapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns under other names and one too many: Spark takes those of a map by their places."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([*batch.columns, batch.column(0)], names=["a", "b", "c", "d", "e"])


def reordered(table: pa.Table) -> pa.Table:
    """Columns of a group in another order: Spark finds them by name."""
    return table.select(["s", "v", "k", "id"])


def typed(spark: Any) -> Any:
    """A column of each type that islands have."""
    return spark.range(0, 20, 1, 2).selectExpr(
        "id % 3 AS k",
        "CAST(id AS tinyint) AS a",
        "CAST(id AS float) AS b",
        "CAST(id AS decimal(20, 3)) AS c",
        "id % 2 = 0 AS d",
        "CAST(CAST(id AS string) AS binary) AS e",
        "date_add(DATE'2024-01-30', CAST(id AS int)) AS f",
        "timestamp_micros(id * 3600000000 * 1000) AS g",
        "timestamp_ntz'2024-03-10 02:30:00' AS h",
        "array(id, null) AS i",
        "map(concat('m', id), id) AS j",
        "named_struct('x', id, 'y', array(named_struct('z', id))) AS l",
    )


def nested(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows as they are, in batches of a few."""
    for batch in batches:
        yield batch.slice(0, 3)
        yield batch.slice(3)


Build = Callable[[Any], Any]


def _sql(spark: Any) -> Any:
    rows_of(spark).groupBy("k").applyInArrow(first_of, SCHEMA).createOrReplaceTempView("of_groups")
    return spark.sql(
        "WITH g AS (SELECT * FROM of_groups WHERE id > 2) "
        "SELECT a.k, b.v, a.id FROM g a JOIN of_groups b ON a.id = b.id"
    )


def _self_joined(spark: Any) -> Any:
    groups = rows_of(spark).groupBy("k").applyInPandas(counted, COUNTED)
    return groups.alias("a").join(groups.alias("b"), F.col("a.n") == F.col("b.n")).select("a.k", "b.total")


def _twice_in_a_row(spark: Any) -> Any:
    counts = (
        rows_of(spark).groupBy("k").applyInPandas(counted, COUNTED).filter("n > 1").withColumn("m", F.expr("n * 2"))
    )
    return counts.groupBy("m").applyInPandas(lambda frame: frame[["k", "m"]], "k long, m long")


def _under_an_aggregate(spark: Any) -> Any:
    sums = rows_of(spark).groupBy("k").applyInArrow(first_of, SCHEMA).groupBy("k").agg(F.sum("id").alias("id"))
    return sums.groupBy("id").applyInPandas(lambda frame: frame, "k long, id long")


def _cached(spark: Any) -> Any:
    groups = rows_of(spark).groupBy("k").applyInArrow(first_of, SCHEMA).cache()
    return groups.groupBy("k").applyInPandas(counted, COUNTED)


def _union(spark: Any) -> Any:
    groups = rows_of(spark).groupBy("k").applyInArrow(first_of, SCHEMA)
    return groups.union(groups).distinct()


def _chain(spark: Any) -> Any:
    mapped = rows_of(spark).mapInArrow(same, SCHEMA).where("id > 5 AND s IS NOT NULL").select("k", "id", "v", "s")
    groups = (
        mapped.repartition(3, "k")
        .groupBy("k")
        .applyInArrow(lambda key, table: table, "k long, id long, v double, s string")
    )
    return groups.withColumn("w", F.upper("s")).mapInPandas(
        same_frames, "k long, id long, v double, s string, w string"
    )


def _times(function: Callable[..., Any], in_arrow: bool) -> Build:
    def build(spark: Any) -> Any:
        groups = spark.range(0, 8, 1, 2).selectExpr("id % 2 AS k", "timestamp_seconds(id * 90000) AS t").groupBy("k")
        return (groups.applyInArrow if in_arrow else groups.applyInPandas)(function, "h long, t timestamp")

    return build


PROGRAMS: dict[str, tuple[Build, int]] = {
    "a map": (lambda s: rows_of(s).mapInArrow(same, SCHEMA), 1),
    "a map of frames": (lambda s: rows_of(s).mapInPandas(same_frames, SCHEMA), 1),
    "columns of a map by place": (lambda s: rows_of(s).mapInArrow(swapped, SCHEMA), 1),
    "batches as large as Spark's": (lambda s: s.range(0, 25_000, 1, 2).mapInArrow(sizes, "n long"), 1),
    "groups": (lambda s: rows_of(s).groupBy("k").applyInArrow(first_of, SCHEMA), 1),
    "columns of a group by name": (lambda s: rows_of(s).groupBy("k").applyInArrow(reordered, SCHEMA), 1),
    "groups of frames": (lambda s: rows_of(s).groupBy("k").applyInPandas(counted, COUNTED), 1),
    "groups as iterators": (lambda s: rows_of(s, 30_000).groupBy("k").applyInArrow(counted_batches, COUNTED), 1),
    "groups by an expression": (
        lambda s: rows_of(s).groupBy((F.col("id") % 3).alias("m"), "s").applyInPandas(counted, COUNTED),
        1,
    ),
    "groups by floats": (
        lambda s: rows_of(s).groupBy(F.col("v") * 0).applyInPandas(counted, "k double, n long, total double"),
        1,
    ),
    "one group": (lambda s: rows_of(s).groupBy().applyInArrow(first_of, SCHEMA), 1),
    "no rows": (lambda s: rows_of(s, 0).groupBy("k").applyInPandas(counted, COUNTED), 1),
    "all types": (lambda s: typed(s).repartition(2, "k").mapInArrow(nested, typed(s).schema), 1),
    "all types in frames": (
        lambda s: (
            typed(s).drop("l", "j", "i").groupBy("k").applyInPandas(lambda f: f, typed(s).drop("l", "j", "i").schema)
        ),
        1,
    ),
    "cogroups": (
        lambda s: (
            rows_of(s)
            .groupBy("k")
            .cogroup(rows_of(s, 20).filter("k > 1").groupBy("k"))
            .applyInPandas(both_sides, COUNTED)
        ),
        1,
    ),
    "cogroups of tables": (
        lambda s: (
            rows_of(s)
            .groupBy("k")
            .cogroup(rows_of(s, 20).filter("k > 1").groupBy("k"))
            .applyInArrow(both_tables, COUNTED)
        ),
        1,
    ),
    "a chain": (_chain, 3),
    "functions over functions": (_twice_in_a_row, 2),
    "an aggregate of Spark's between": (_under_an_aggregate, 2),
    "a self-join": (_self_joined, 2),
    "a union": (_union, 2),
    "views and SQL": (_sql, 2),
    "what is cached": (_cached, 1),
    "hours of tables": (_times(hours, True), 1),
    "hours of frames": (_times(shown_hours, False), 1),
    "a sorted result": (
        lambda s: rows_of(s).groupBy("k").applyInArrow(first_of, SCHEMA).orderBy(F.desc("id")).limit(3),
        1,
    ),
}
"""Each with the number of Python stages that run through Penstock where all that can be is placed."""


@pytest.fixture
def everything(spark: Any) -> Iterator[Any]:
    """A session that places all it can, in a zone with summer time."""
    spark.conf.set(PLACED, "everything")
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    yield spark
    penstock.accelerate(spark, False)
    spark.catalog.clearCache()
    spark.conf.unset(PLACED)
    spark.conf.unset("spark.sql.session.timeZone")


def _outcome(frame: Any) -> tuple[Any, list[str]]:
    return frame.schema, sorted(map(str, frame.collect()))


@pytest.mark.parametrize("name", some_of(list(PROGRAMS), 8))
def test_the_same_with_and_without(everything: Any, name: str) -> None:
    """Rows, types, names and nullability; and the stages ran where they are said to run."""
    build, functions = PROGRAMS[name]
    plain = _outcome(build(everything))
    with penstock.accelerated(everything):
        assert _outcome(build(everything)) == plain
        (record,) = penstock.acceleration(everything)
    assert record.functions == functions, record.left


def _fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        raise ValueError(f"no such rows: {batch.num_rows and 'any'}")
        yield batch


def _fails_in_group(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.no_such_column


MISTAKES: dict[str, tuple[Build, str]] = {
    "an expression below a function": (
        lambda s: rows_of(s).withColumn("id", F.expr("id DIV (id - 7)")).groupBy("k").applyInArrow(first_of, SCHEMA),
        "DIVIDE_BY_ZERO",
    ),
    "a map that raises": (
        lambda s: rows_of(s).repartition(2).mapInArrow(_fails, SCHEMA),
        "ValueError: no such rows: any",
    ),
    "a group that raises": (
        lambda s: rows_of(s).groupBy("k").applyInPandas(_fails_in_group, SCHEMA),
        "no_such_column",
    ),
    "other columns": (
        lambda s: rows_of(s).groupBy("k").applyInArrow(lambda t: t.drop_columns(["v"]), SCHEMA),
        "Missing: v.",
    ),
    "other types": (
        lambda s: rows_of(s).groupBy("k").applyInArrow(first_of, "id string, k long, v double, s string"),
        "column 'id' (expected string, actual int64)",
    ),
    "values that do not fit": (
        lambda s: rows_of(s).groupBy("k").applyInPandas(lambda f: f[["v"]], "v long"),
        "Failed to convert the value of the column 'v'",
    ),
    "no table": (lambda s: rows_of(s).groupBy("k").applyInArrow(lambda t: 1, SCHEMA), "pyarrow.Table"),
}


@pytest.mark.parametrize("name", some_of(list(MISTAKES), 4))
def test_errors_are_pysparks(everything: Any, name: str) -> None:
    """The same type of error with the same words in it, and nothing runs a second time."""
    build, words = MISTAKES[name]
    kinds = []
    for is_on in (False, True):
        penstock.accelerate(everything, is_on)
        with pytest.raises((PythonException, ArithmeticException)) as raised:
            build(everything).collect()
        assert words in str(raised.value)
        kinds.append(type(raised.value).__name__)
    (record,) = penstock.acceleration(everything)
    assert record.functions == 1
    assert kinds == [record.error] * 2


def _numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch([pa.array([TaskContext.get().partitionId()] * batch.num_rows)], names=["p"])


def _left(spark: Any) -> dict[str, tuple[Any, str]]:
    added = spark.sparkContext.accumulator(0)
    shared = spark.sparkContext.broadcast([1])

    def adds(table: pa.Table) -> pa.Table:
        added.add(table.num_rows)
        return table

    def reads(table: pa.Table) -> pa.Table:
        return table.slice(0, shared.value[0])

    groups = rows_of(spark).groupBy("k")
    plus = F.udf(lambda value: value, "long")
    return {
        "an accumulator": (groups.applyInArrow(adds, SCHEMA), "accumulator"),
        "a broadcast variable": (groups.applyInArrow(reads, SCHEMA), "broadcast variable"),
        "a task's number": (rows_of(spark).mapInArrow(_numbered, "p long"), "the task that it runs in"),
        "a barrier": (rows_of(spark, parts=1).mapInArrow(same, SCHEMA, barrier=True), "barrier"),
        "an interval": (
            spark.sql("SELECT 1 AS k, INTERVAL '1' DAY AS d")
            .groupBy("k")
            .applyInArrow(lambda t: t, "k int, d interval day"),
            "the type interval day",
        ),
        "a nested key": (
            rows_of(spark).groupBy(F.array("k").alias("a")).applyInArrow(first_of, SCHEMA),
            "cannot be grouped by",
        ),
        "partitions of Spark's": (
            rows_of(spark).groupBy("k").count().mapInArrow(same, "k long, n long"),
            "while the query runs",
        ),
        "a udf": (rows_of(spark).select(plus("id").alias("id")), ""),
    }


def test_what_is_left_to_spark(everything: Any) -> None:
    """Functions that mean something else in another task, rows that are not the same in Arrow: with the reason."""
    for name, (frame, why) in _left(everything).items():
        plain = _outcome(frame)
        with penstock.accelerated(everything):
            assert _outcome(frame) == plain, name
            (record,) = penstock.acceleration(everything)
        assert record.functions == 0, name
        assert why in " ".join(record.left), (name, record.left)


def test_actions(everything: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Each action gives what it gives without, and is in the report under the place where it was called."""

    def outcomes(is_on: bool) -> list[Any]:
        frame = rows_of(everything).groupBy("k").applyInPandas(counted, COUNTED).orderBy("k")
        frame.write.mode("overwrite").parquet(str(tmp_path / "rows"))
        got = [frame.count(), frame.take(2), frame.tail(1)]
        if THOROUGH:
            frame.show(3)
            got += [frame.first(), frame.head(3), frame.isEmpty()]
        got += [frame.toPandas().to_dict("list"), frame.toArrow(), list(frame.toLocalIterator())]
        got += [capsys.readouterr().out, everything.read.parquet(str(tmp_path / "rows")).orderBy("k").collect()]
        checked = frame.localCheckpoint()
        return [*got, checked.orderBy("k").collect(), checked.schema]

    plain = outcomes(False)
    with penstock.accelerated(everything):
        found = outcomes(True)
        records = list(penstock.acceleration(everything))
    assert str(found) == str(plain)
    assert len(records) == (12 if THOROUGH else 8)
    assert all(record.functions == 1 and record.place.startswith("test_acceleration.py:") for record in records)


def test_a_rule_says_what_pays(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A map alone is left to Spark, and so are few rows; `explain` marks each node, and says why."""
    mapped = spark.range(100_000_000).mapInArrow(same, "id long")
    penstock.explain(mapped.groupBy("id").applyInArrow(first_of, "id long"))
    penstock.explain(mapped)
    penstock.explain(spark.range(1_000).groupBy("id").applyInArrow(first_of, "id long"))
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert said[0].split() == ["Penstock", "FlatMapGroupsInArrow(first_of)"]
    assert said[2].split() == ["Penstock", "MapInArrow(same)"]
    assert said[4].startswith("Spark    MapInArrow(same)  <- no rows are exchanged")
    assert said[6] == f"Spark    FlatMapGroupsInArrow(first_of)  <- {TOO_FEW}"


def test_a_limit_ends_functions_early(everything: Any) -> None:
    """With a limit above it a stage gives no more rows than those, as Spark's does."""

    def endless(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while True:
                yield batch

    with penstock.accelerated(everything):
        frame = everything.range(0, 100, 1, 2).repartition(2).mapInArrow(endless, "id long")
        assert len(frame.take(3)) == 3
        assert not frame.isEmpty()
        assert [record.functions for record in penstock.acceleration(everything)] == [1, 1]


def test_a_function_is_fresh_in_each_task_and_action(everything: Any) -> None:
    """What a function keeps in its module is gone with the next action, as in Spark, where each task unpickles it."""
    seen: list[int] = []

    def remembers(table: pa.Table) -> pa.Table:
        seen.append(1)
        return pa.table({"n": [len(seen)]})

    frame = rows_of(everything, 10, 1).groupBy().applyInArrow(remembers, "n long")
    with penstock.accelerated(everything):
        assert [frame.collect()[0].n for _ in range(2)] == [1, 1]


@pytest.mark.thorough
def test_threads_and_sessions(everything: Any) -> None:
    """Actions of several threads run side by side; another session of the same application is not accelerated."""
    frame = rows_of(everything).groupBy("k").applyInPandas(counted, COUNTED)
    expected = sorted(map(str, frame.collect()))
    found: list[Any] = []
    with penstock.accelerated(everything):
        other = everything.newSession()
        rows_of(other).groupBy("k").applyInPandas(counted, COUNTED).collect()
        threads = [threading.Thread(target=lambda: found.append(sorted(map(str, frame.collect())))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [record.functions for record in penstock.acceleration(everything)] == [1, 1, 1]
    assert found == [expected] * 3


def test_programs_without_python_and_streams_are_not_touched(everything: Any) -> None:
    """They are in no report; and when nobody is accelerated, PySpark's class is as it was."""
    methods = dict(vars(DataFrame))
    with penstock.accelerated(everything):
        assert vars(DataFrame)["collect"] is not methods["collect"]
        assert everything.range(5).groupBy().sum("id").collect()[0][0] == 10
        stream = everything.readStream.format("rate").load().mapInArrow(same, "timestamp timestamp, value long")
        with pytest.raises(AnalysisException):
            stream.collect()
        assert [record.left for record in penstock.acceleration(everything)] == [("it is a stream without an end",)]
    assert dict(vars(DataFrame)) == methods


def test_a_session_that_is_not_ours_to_accelerate_is_left_alone() -> None:
    """One of Spark Connect gets a warning, and stays as it is."""
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        penstock.accelerate(session)
    assert "not accelerated: Penstock needs a classic SparkSession" in str(said[0].message)
