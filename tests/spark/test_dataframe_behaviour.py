# SPDX-License-Identifier: Apache-2.0
"""The result of `toDF()` is a DataFrame like any other, and every exchange gives Spark's own rows.

Results are computed once, however they are read; plans, views and schemas run nothing.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
import session_probe
from effort import some_of
from held_stages import nothing_until
from penstock.spark.runtime import SparkRuntime
from penstock.testing import DEADLINE, wait_until
from session_probe import SessionProbe

pytestmark = pytest.mark.spark

ROWS = 1000


class Counting:
    """A stage that leaves one byte per subtask it ran in."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def stage(self) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """The stage."""
        path = str(self._path)

        def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import os

            descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.write(descriptor, b"x")
            os.close(descriptor)
            yield from batches

        return counted

    def runs(self) -> int:
        """The number of subtasks that have run."""
        return len(self._path.read_bytes()) if self._path.exists() else 0


@pytest.fixture
def counting(tmp_path: Path) -> Counting:
    """A counting stage."""
    return Counting(tmp_path / "runs")


def new_jobs(spark: Any) -> Callable[[], int]:
    """Return a counter of the Penstock jobs made from now on."""
    application = SparkRuntime.of(spark)._application
    master = application.master(SparkRuntime.of(spark).settings())
    marks = [int(master.new_job()[1:])]

    def count() -> int:
        marks.append(int(master.new_job()[1:]))
        return marks[-1] - marks[0] - len(marks) + 1

    return count


# --- a DataFrame like any other


def test_views_and_writers(spark: Any, counting: Counting, tmp_path: Path) -> None:
    """A temporary view and SQL over it, limit, count, filters, a Parquet file: one job for all of them."""
    source = spark.range(0, ROWS, 1, 2).selectExpr("id", "id % 10 AS k", "CAST(id AS STRING) AS s")
    stream = penstock.fromDataFrame(source).mapInArrow(counting.stage(), "id long, k long, s string")
    frame = stream.keyBy("k", numPartitions=2).toDF()
    frame.createOrReplaceTempView("penstock_view")
    plan = spark.sql("SELECT k, COUNT(*) AS n, MAX(id) AS m FROM penstock_view GROUP BY k")
    assert counting.runs() == 0
    assert sorted((row.k, row.n, row.m) for row in plan.collect()) == [(k, 100, 990 + k) for k in range(10)]
    assert spark.sql("SELECT id FROM penstock_view WHERE s = '77'").collect()[0].id == 77
    assert len(frame.limit(7).collect()) == 7
    assert frame.limit(7).count() == 7
    assert frame.where("id < 5").select("s").orderBy("s").toPandas()["s"].tolist() == list("01234")
    assert not frame.isEmpty()
    frame.write.parquet(str(tmp_path / "out"))
    back = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(back.collect()) == sorted(source.collect())
    assert frame.exceptAll(source).count() == 0
    assert counting.runs() == 2
    spark.catalog.dropTempView("penstock_view")


def test_plans_run_nothing(spark: Any) -> None:
    """Explain (all forms), schema, dtypes, columns, a view, a join's plan: no job."""
    jobs = new_jobs(spark)
    left = penstock.repartition(spark.range(ROWS), 2, "id")
    right = penstock.groupBy(spark.range(ROWS), "id", numPartitions=2).agg(n=("id", "count"))
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        left.join(right, "id").explain(mode)
    assert left.dtypes == [("id", "bigint")]
    assert right.columns == ["id", "n"]
    left.createOrReplaceTempView("penstock_view")
    spark.sql("EXPLAIN SELECT * FROM penstock_view").collect()
    spark.catalog.dropTempView("penstock_view")
    assert jobs() == 0
    assert left.join(right, "id").where("n = 1").count() == ROWS
    assert jobs() == 2


@pytest.mark.thorough
def test_broken_off_reads(spark: Any, counting: Counting) -> None:
    """Readers that stop early leave the result whole, and nothing open in the environment."""
    stream = penstock.fromDataFrame(spark.range(0, 200_000, 1, 2)).mapInArrow(counting.stage(), "id long")
    frame = stream.keyBy("id", numPartitions=4).toDF()
    assert len(frame.take(3)) == 3
    probe = SessionProbe(spark)
    wait_until(lambda: probe.statistics()["tasks"] == 0, "no reader is left")
    before = probe.holdings()
    iterator = frame.toLocalIterator()
    assert next(iterator) is not None
    del iterator
    assert frame.first() is not None
    assert frame.head(2) is not None
    assert frame.tail(2) is not None
    assert frame.coalesce(1).count() == 200_000
    assert counting.runs() == 2
    probe.wait_as_before(before)


@pytest.mark.thorough
def test_checkpoint_and_cache(spark: Any, counting: Counting) -> None:
    """Cached and locally checkpointed copies are read from Spark; the job ran once."""
    stream = penstock.fromDataFrame(spark.range(0, ROWS, 1, 2)).mapInArrow(counting.stage(), "id long")
    frame = stream.rebalance(2).toDF()
    cached = frame.cache()
    assert cached.count() == cached.union(cached).distinct().count() == ROWS
    cached.unpersist()
    assert frame.localCheckpoint().count() == ROWS
    assert counting.runs() == 2


@pytest.mark.thorough
def test_a_result_in_several_pipelines(spark: Any, counting: Counting) -> None:
    """One result read by two further pipelines, and joined with one of them."""
    stream = penstock.fromDataFrame(spark.range(0, ROWS, 1, 2)).mapInArrow(counting.stage(), "id long")
    first = stream.keyBy("id", numPartitions=2).toDF()
    second = penstock.repartition(first.where("id % 2 = 0"), 2, "id")
    third = penstock.groupBy(first.selectExpr("id", "id % 7 AS k"), "k", numPartitions=2).agg(n=("id", "count"))
    assert second.count() == ROWS // 2
    assert sum(row.n for row in third.collect()) == ROWS
    assert first.join(second, "id").count() == ROWS // 2
    assert counting.runs() == 2


@pytest.mark.parametrize("how", some_of(["cancelJobGroup", "cancelAllJobs", "interruptAll", "cancelJobsWithTag"], 3))
def test_cancel_in_mid_run(spark: Any, tmp_path: Path, how: str) -> None:
    """Data flows when the user cancels: the action raises soon, the slots are free, the next action works."""
    go = tmp_path / "go"
    marks = str(tmp_path / "marks")

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 10)
            yield from nothing_until(go, batch)
            yield batch.slice(10)

    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            session_probe.mark(marks)
            yield batch

    outcome: list[Any] = []
    frames: list[Any] = []
    context = spark.sparkContext

    def act() -> None:
        context.setJobGroup("a-group", "a test")
        context.addJobTag("a-tag")
        stream = penstock.fromDataFrame(spark.range(0, ROWS, 1, 2)).mapInArrow(held, "id long")
        frames.append(stream.keyBy("id", numPartitions=2).mapInArrow(seen, "id long").toDF())
        try:
            outcome.append(frames[0].count())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcome.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    wait_until(lambda: len(session_probe.marks(Path(marks))) == 2, "rows have arrived")
    if how == "cancelJobGroup":
        context.cancelJobGroup("a-group")
    elif how == "cancelJobsWithTag":
        context.cancelJobsWithTag("a-tag")
    elif how == "cancelAllJobs":
        context.cancelAllJobs()
    else:
        spark.interruptAll()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert isinstance(outcome[0], Exception)
    assert "cancel" in str(outcome[0]).lower()
    assert SessionProbe(spark).slots_in_use() == 0
    go.touch()
    assert penstock.repartition(spark.range(0, ROWS, 1, 2), 6, "id").count() == ROWS
    assert frames[0].count() == ROWS


# --- exchanges, row by row


def rows_of(frame: Any) -> Counter[tuple[Any, ...]]:
    """The rows as a bag."""
    return Counter(tuple(row) for row in frame.collect())


@pytest.fixture(scope="module")
def mixed(spark: Any) -> Any:
    """Rows with keys and values that are null, NaN and both zeros."""
    return spark.sql("""
        SELECT id, IF(id % 11 = 0, NULL, id % 7) AS k,
          CASE id % 6 WHEN 0 THEN NULL WHEN 1 THEN CAST('NaN' AS DOUBLE) WHEN 2 THEN -0.0D WHEN 3 THEN 0.0D
            ELSE CAST(id % 6 AS DOUBLE) END AS d,
          CASE id % 5 WHEN 0 THEN NULL ELSE id / 3 END AS v,
          CASE WHEN id % 7 = 3 THEN NULL WHEN id % 7 = 4 THEN CAST('NaN' AS DOUBLE) ELSE id / 7 - 30 END AS w,
          IF(id % 9 = 0, NULL, CONCAT('s', id % 13)) AS s
        FROM range(0, 1000, 1, 2)""")


@pytest.mark.parametrize(
    "kind", some_of(["keyBy", "rebalance", "rescale", "random", "toOne", "broadcast", "partitionCustom"], 6)
)
def test_every_exchange_keeps_every_row(mixed: Any, kind: str) -> None:
    """Each row arrives once (at each consumer of a broadcast), with its values."""
    stream = penstock.fromDataFrame(mixed.select("id", "k", "s"))

    def by_number(batch: pa.RecordBatch) -> Any:
        import pyarrow.compute as pc

        return pc.bit_wise_and(batch.column("id"), 1)

    exchanged = {
        "keyBy": lambda: stream.keyBy("k", numPartitions=3),
        "rebalance": lambda: stream.rebalance(3),
        "rescale": lambda: stream.rescale(4),
        "random": lambda: stream.random(3),
        "toOne": stream.toOne,
        "broadcast": lambda: stream.broadcast(3),
        "partitionCustom": lambda: stream.partitionCustom(by_number, 2),
    }[kind]()
    copies = 3 if kind == "broadcast" else 1
    expected = Counter(dict.fromkeys(rows_of(mixed.select("id", "k", "s")), copies))
    frame = exchanged.toDF()
    assert rows_of(frame) == expected
    if kind == "partitionCustom":
        from pyspark.sql import functions as f

        wrong = frame.where(f.spark_partition_id() != f.col("id") % 2)
        assert wrong.count() == 0


@pytest.mark.thorough
def test_union_and_two_edges(spark: Any, counting: Counting) -> None:
    """One stage feeds two exchanges and runs once; their union has all rows, also after another exchange."""
    stream = penstock.fromDataFrame(spark.range(0, ROWS, 1, 2)).mapInArrow(counting.stage(), "id long")

    def plus(number: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow.compute as pc

            for batch in batches:
                yield pa.RecordBatch.from_arrays([pc.add(batch.column("id"), number)], names=["id"])

        return add

    left = stream.keyBy("id", numPartitions=2).mapInArrow(plus(0), "id long")
    right = stream.rebalance(1).mapInArrow(plus(ROWS), "id long")
    joined = left.union(right).keyBy("id", numPartitions=1).toDF()
    assert sorted(row.id for row in joined.collect()) == list(range(2 * ROWS))
    assert counting.runs() == 2
    frame = left.union(right).toDF()
    assert frame.rdd.getNumPartitions() == 3
    assert sorted(row.id for row in frame.collect()) == list(range(2 * ROWS))
    assert counting.runs() == 4


def test_union_of_two_sources(spark: Any) -> None:
    """Two DataFrames into one exchange."""
    left = penstock.fromDataFrame(spark.range(0, 500, 1, 2))
    right = penstock.fromDataFrame(spark.range(500, ROWS, 1, 1))
    frame = left.union(right).keyBy("id", numPartitions=2).toDF()
    assert sorted(row.id for row in frame.collect()) == list(range(ROWS))


# --- aggregations and functions over groups against Spark's


def comparable(row: Any) -> tuple[Any, ...]:
    """A row that can be compared and sorted: NaN equals NaN, sums agree to twelve digits."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return "nan" if math.isnan(value) else f"{value + 0.0:.9e}"
        return value

    return tuple((value is None, str(plain(value))) for value in row)


@pytest.mark.parametrize("keys", some_of([("k",), ("d",), ("s",), ("k", "d"), ()], 3))
def test_agg_like_spark(mixed: Any, keys: tuple[str, ...]) -> None:
    """count, sum, min, max and mean over values and keys with nulls, NaN and both zeros: Spark's own answer."""
    from pyspark.sql import functions as f

    names = ("count", "sum", "min", "max", "mean")
    wanted = {f"{column}_{name}": (column, name) for column in ("v", "w", "id") for name in names}
    wanted["rows"] = ("*", "count")
    wanted |= {"s_min": ("s", "min"), "s_max": ("s", "max"), "s_n": ("s", "count")}
    ours = penstock.groupBy(mixed, *keys, numPartitions=None if not keys else 2).agg(**wanted)
    theirs = mixed.groupBy(*keys).agg(
        *(
            (f.count(f.lit(1)) if column == "*" else getattr(f, name)(column)).alias(alias)
            for alias, (column, name) in wanted.items()
        )
    )
    assert ours.columns == theirs.columns
    assert sorted(map(comparable, ours.collect())) == sorted(map(comparable, theirs.collect()))


def whole(table: pa.Table) -> pa.Table:
    """One row per group."""
    import pyarrow.compute as pc

    return pa.table({"n": pa.array([table.num_rows], pa.int64()), "t": pa.array([pc.sum(table["id"]).as_py()])})


def keyed(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
    """One row per group, from its key."""
    return pa.table({"n": pa.array([table.num_rows], pa.int64()), "t": pa.array([key[0].as_py() or -1], pa.int64())})


def iterated(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row per group, over an iterator."""
    rows = sum(batch.num_rows for batch in batches)
    number = key[0].as_py()
    yield pa.RecordBatch.from_pydict(
        {"n": pa.array([rows], pa.int64()), "t": pa.array([-1 if number is None else number], pa.int64())}
    )


@pytest.mark.parametrize("function", some_of([whole, keyed, iterated], 2))
def test_apply_in_arrow_like_spark(mixed: Any, function: Callable[..., Any]) -> None:
    """Each form of function that PySpark takes gives the rows that PySpark gives."""
    source = mixed.select("id", "k")
    schema = "n long, t long"
    ours = penstock.groupBy(source, "k", numPartitions=2).applyInArrow(function, schema)
    theirs = source.groupBy("k").applyInArrow(function, schema)
    assert rows_of(ours) == rows_of(theirs)


def test_apply_in_pandas_like_spark(mixed: Any) -> None:
    """Frames, with the key and without."""
    source = mixed.select("id", "k", "v")

    def centred(frame: Any) -> Any:
        return frame.assign(v=frame.v - frame.v.mean())[["id", "v"]]

    def counted(key: Any, frame: Any) -> Any:
        import pandas as pd

        return pd.DataFrame({"id": [len(frame)], "v": [float("nan") if key[0] is None else float(key[0])]})

    for function in (centred, counted):
        ours = penstock.groupBy(source, "k", numPartitions=2).applyInPandas(function, "id long, v double")
        theirs = source.groupBy("k").applyInPandas(function, "id long, v double")
        assert sorted(map(comparable, ours.collect())) == sorted(map(comparable, theirs.collect()))


def test_trace_tells_the_order(spark: Any, tmp_path: Path) -> None:
    """First buffer, JobMaster told, consumer told: while the producer still runs, and before any task has ended."""
    go = tmp_path / "go"

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 10)
            yield from nothing_until(go, batch)
            yield batch.slice(10)

    def release(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            go.touch()
            yield batch

    stream = penstock.fromDataFrame(spark.range(0, ROWS, 1, 1)).mapInArrow(held, "id long")
    result = stream.keyBy("id", numPartitions=2).mapInArrow(release, "id long").run()
    names = [name for _, name, _ in result.trace]
    times = [at for at, _, _ in result.trace]
    assert times == sorted(times)
    consumable, told = names.index("partition_consumable"), names.index("partition_info_updated")
    assert names.index("tasks_complete") < names.index("task_deployed") < consumable < told
    assert told < names.index("task_finished"), "the consumer began only when the producer had ended"
    assert names.index("producers_confirmed") < names.index("job_finished") == len(names) - 1
    assert names.count("task_registered") == names.count("task_deployed") == names.count("task_finished") == 3
    assert result.statistics().rows == 2 * ROWS
