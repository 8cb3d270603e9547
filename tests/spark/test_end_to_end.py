# SPDX-License-Identifier: Apache-2.0
"""Pipelines on a real Spark session: lazy results, actions of every shape, errors, cancels, and what is left."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from effort import with_all
from held_stages import nothing_until
from penstock.errors import JobCancelledError, JobError, SettingError, SlotsError
from penstock.spark.application import Application
from penstock.spark.runtime import SparkRuntime
from penstock.testing import DEADLINE

pytestmark = [pytest.mark.spark, pytest.mark.sample]

ROWS = 10_000


@pytest.fixture
def counted(spark: Any, tmp_path: Path) -> tuple[Callable[[], Any], Callable[[], int]]:
    """A DataFrame whose Python stage leaves one mark per run of a subtask, and the number of marks."""
    marks = str(tmp_path / "marks")

    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        descriptor = os.open(marks, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, b"x")
        os.close(descriptor)
        yield from batches

    def make() -> Any:
        source = spark.range(0, ROWS, 1, 2)
        return penstock.fromDataFrame(source).mapInArrow(mark, "id long").keyBy("id", numPartitions=2).toDF()

    return make, lambda: len(Path(marks).read_bytes()) if Path(marks).exists() else 0


def test_nothing_runs_before_an_action(counted: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Making the DataFrame, asking for its schema and explaining it run no job; an action runs it once."""
    make, marks = counted
    frame = make()
    assert frame.schema.names == ["id"]
    frame.explain(True)
    assert "BatchScan penstock" in capsys.readouterr().out
    assert marks() == 0
    assert frame.count() == ROWS
    assert marks() == 2


def test_all_shapes_of_actions(counted: Any) -> None:
    """show, take, toLocalIterator, coalesce(1), orderBy, two actions: all read one result, computed once."""
    from pyspark.sql import functions as f

    make, marks = counted
    frame = make()
    assert len(frame.take(5)) == 5
    frame.show(3)
    assert sum(1 for _ in frame.toLocalIterator()) == ROWS
    assert frame.coalesce(1).count() == ROWS
    assert [row.id for row in frame.orderBy(f.desc("id")).take(3)] == [ROWS - 1, ROWS - 2, ROWS - 3]
    assert frame.agg(f.sum("id")).first()[0] == ROWS * (ROWS - 1) // 2
    assert marks() == 2


def test_same_result_twice_in_one_plan(counted: Any) -> None:
    """A union with itself, a self-join and a cache read the same result; it is computed once."""
    make, marks = counted
    frame = make()
    assert frame.union(frame).count() == 2 * ROWS
    assert frame.alias("a").join(frame.alias("b"), "id").count() == ROWS
    cached = frame.cache()
    assert cached.count() == ROWS
    assert cached.count() == ROWS
    cached.unpersist()
    assert marks() == 2


@pytest.mark.thorough
def test_join_of_two_results(spark: Any) -> None:
    """Two lazy results in one plan; explaining it runs neither."""
    left = penstock.repartition(spark.range(1000), 2, "id")
    right = penstock.repartition(spark.range(500, 1500), 2, "id")
    joined = left.join(right, "id")
    joined.explain()
    assert joined.count() == 500


@pytest.mark.thorough
def test_result_feeds_another_pipeline(spark: Any) -> None:
    """A result is a DataFrame like any other; the inner job gets its slots before the outer one takes its own."""
    inner = penstock.repartition(spark.range(1000), 4, "id")
    outer = penstock.repartition(inner, 4, "id")
    assert outer.count() == 1000


def test_repartition_puts_rows_where_spark_would(spark: Any) -> None:
    """Row i of partition p stands at spark_partition_id() p, as after Spark's own repartition."""
    from pyspark.sql import functions as f

    source = spark.range(0, 2000, 1, 2).withColumn("text", f.concat(f.lit("k"), "id"))
    ours = penstock.repartition(source, 5, "text").withColumn("p", f.spark_partition_id())
    theirs = source.repartition(5, "text").withColumn("p", f.spark_partition_id())
    assert sorted(ours.select("id", "p").collect()) == sorted(theirs.select("id", "p").collect())


def test_group_by_matches_spark(spark: Any) -> None:
    """Agg and applyInArrow give Spark's own answer."""
    from pyspark.sql import functions as f

    source = spark.range(0, 5000, 1, 3).withColumn("k", f.col("id") % 7)

    def summed(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
        import pyarrow.compute as pc

        return pa.table({"k": [key[0].as_py()], "total": [pc.sum(table["id"]).as_py()]})

    expected = {row.k: row.total for row in source.groupBy("k").agg(f.sum("id").alias("total")).collect()}
    stream = penstock.fromDataFrame(source).groupBy("k", numPartitions=2).agg(total=("id", "sum"))
    assert {row.k: row.total for row in stream.toDF().collect()} == expected
    grouped = penstock.groupBy(source, "k", numPartitions=2).applyInArrow(summed, "k long, total long")
    assert {row.k: row.total for row in grouped.collect()} == expected


@pytest.mark.thorough
def test_empty_and_narrow_dataframes(spark: Any) -> None:
    """No rows, fewer partitions than subtasks, no operators: all end well."""
    empty = spark.range(0)
    assert penstock.repartition(empty, 3, "id").count() == 0
    assert penstock.repartition(spark.range(0, 10, 1, 1), 3, "id").count() == 10
    assert penstock.fromDataFrame(spark.range(0, 10, 1, 2)).toDF().count() == 10


def test_run_gives_figures_and_trace(spark: Any) -> None:
    """`run` reports rows, time and the order of events: first buffer, JobMaster told, consumer told."""
    stream = penstock.fromDataFrame(spark.range(0, ROWS, 1, 2)).keyBy("id", numPartitions=2)
    result = stream.mapInArrow(lambda batches: batches, "id long").run()
    assert result.statistics().rows >= ROWS
    names = [name for _, name, _ in result.trace]
    order = ["job_submitted", "task_deployed", "partition_consumable", "partition_info_updated"]
    order += ["producers_confirmed", "job_finished"]
    assert [names.index(name) for name in order] == sorted(names.index(name) for name in order)


@pytest.mark.thorough
def test_user_error_shows_its_traceback(spark: Any) -> None:
    """The action's exception names the user's function and line; the next action on another pipeline works."""

    def broken_by_the_user(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raise ValueError(f"boom over {batch.num_rows} rows")
        yield from ()

    stream = penstock.fromDataFrame(spark.range(100)).mapInArrow(broken_by_the_user, "id long")
    frame = stream.keyBy("id", numPartitions=2).toDF()
    with pytest.raises(Exception, match="boom over") as raised:
        frame.count()
    assert "broken_by_the_user" in str(raised.value)
    with pytest.raises(JobError, match="broken_by_the_user"):
        stream.run()
    assert penstock.repartition(spark.range(100), 2, "id").count() == 100


def test_too_many_slots_are_refused(spark: Any) -> None:
    """At once, with the numbers and the ways out."""
    stream = penstock.fromDataFrame(spark.range(10)).keyBy("id", numPartitions=100, mode="pipelined")
    with pytest.raises(SlotsError, match=r"needs \d+ task slots at the same time, but the application has 8"):
        stream.mapInArrow(lambda batches: batches, "id long").run()


def test_unknown_setting_is_refused(spark: Any) -> None:
    """A key that is misspelt is named, with the nearest that exists."""
    spark.conf.set("spark.penstock.network.memroy", "64m")
    try:
        with pytest.raises(SettingError, match=r"network\.memory"):
            penstock.repartition(spark.range(10), 2, "id")
    finally:
        spark.conf.unset("spark.penstock.network.memroy")


def _slow(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A stage that waits, batch by batch, until the file `go` appears; it leaves `started` at its start."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Path(folder, "started").touch()
        for batch in batches:
            for start in range(0, batch.num_rows, 100):
                yield from nothing_until(Path(folder, "go"), batch)
                yield batch.slice(start, 100)

    return stage


@pytest.mark.parametrize("how", ["cancelJobGroup", with_all("cancelAllJobs"), with_all("interruptAll")])
def test_cancel_during_planning(spark: Any, tmp_path: Path, how: str) -> None:
    """The user's cancel reaches the job that his action waits for; the action raises soon; a later one works."""
    context = spark.sparkContext
    outcome: list[BaseException | int] = []
    frames: list[Any] = []
    made = threading.Event()

    def act() -> None:
        context.setJobGroup("users-group", "a test")
        stream = penstock.fromDataFrame(spark.range(1000)).mapInArrow(_slow(str(tmp_path)), "id long")
        frames.append(stream.keyBy("id", numPartitions=2).toDF())
        made.set()
        try:
            outcome.append(frames[0].count())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcome.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    _wait_for(tmp_path / "started")
    getattr(context, how)("users-group") if how == "cancelJobGroup" else _cancel_all(spark, how)
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert isinstance(outcome[0], Exception)
    assert "cancel" in str(outcome[0]).lower()
    (tmp_path / "go").touch()
    assert frames[0].count() == 1000


def test_interrupt_all_ends_a_job_without_dataframes(spark: Any, tmp_path: Path) -> None:
    """Its tasks are no SQL of Spark's; the interrupt reaches them as it reaches those."""
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "rows.parquet")
    stream = penstock.readParquet(spark, tmp_path / "rows.parquet").mapInArrow(_slow(str(tmp_path)), "id long")
    outcome: list[Exception] = []

    def act() -> None:
        try:
            stream.run()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcome.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    _wait_for(tmp_path / "started")
    spark.interruptAll()
    thread.join(DEADLINE)
    (tmp_path / "go").touch()
    thread.join(DEADLINE)
    assert isinstance(outcome[0], JobCancelledError)


def _cancel_all(spark: Any, how: str) -> None:
    if how == "interruptAll":
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()


def _wait_for(path: Path) -> None:
    wait = threading.Event()
    for _ in range(3000):
        if path.exists():
            return
        wait.wait(0.01)
    raise AssertionError(f"{path} did not appear")


def test_cancel_while_reading(spark: Any, counted: Any, tmp_path: Path) -> None:
    """A cancel of the reading job leaves the result: the next action reads it without a new run."""
    make, marks = counted
    frame = make()
    assert frame.count() == ROWS
    context = spark.sparkContext
    started, errors = tmp_path / "started", []
    stage = _slow(str(tmp_path))

    def act() -> None:
        context.setJobGroup("reading", "a test")
        try:
            frame.mapInArrow(stage, "id long").count()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    _wait_for(started)
    context.cancelJobGroup("reading")
    thread.join(DEADLINE)
    assert len(errors) == 1
    (tmp_path / "go").touch()
    assert frame.count() == ROWS
    assert marks() == 2


def test_two_pipelines_at_the_same_time(spark: Any) -> None:
    """Jobs of two threads share the session's slots; the one that does not fit waits its turn."""
    results: Counter[str] = Counter()

    def act(name: str) -> None:
        results[name] = penstock.repartition(spark.range(1000), 4, "id").count()

    threads = [threading.Thread(target=act, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert results == {"a": 1000, "b": 1000, "c": 1000}


def test_parquet_hint_comes_once(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare Parquet scan is noticed; another plan is not."""
    from penstock.spark import hints

    spark.range(10).write.parquet(str(tmp_path / "p"))
    scan = spark.read.parquet(str(tmp_path / "p"))
    assert hints.is_parquet_scan(scan)
    assert not hints.is_parquet_scan(scan.where("id > 3"))
    monkeypatch.setattr(hints, "given", set())
    with pytest.warns(hints.PenstockHint, match="readParquet"):
        hints.hint_parquet(scan)
    hints.hint_parquet(scan)


def test_secret_is_nowhere_in_the_plan(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the plan nor the options show it."""
    frame = penstock.repartition(spark.range(10), 2, "id")
    frame.explain(True)
    secret = Application.of(spark.sparkContext).launch(SparkRuntime.of(spark).settings()).secret
    shown = capsys.readouterr().out
    assert secret.hex() not in shown
    assert repr(secret) not in shown
