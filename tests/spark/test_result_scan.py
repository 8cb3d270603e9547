# SPDX-License-Identifier: Apache-2.0
"""The scan behind `toDF()`: any session has it, plans show it, its errors are those that PySpark raises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import penstock
from effort import some_of
from session_probe import conf
from sessions import GENERATED_CODE

pytestmark = pytest.mark.spark

ROWS = 1000


@pytest.fixture(autouse=True, scope="module")
def generated_code(spark: Any) -> Iterator[None]:
    """Spark reads results by generated code here, as it does for users; most other tests do without it."""
    with conf(spark, dict(GENERATED_CODE)):
        yield


def divide(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A function of a user's that fails."""
    for batch in batches:
        _ = batch.num_rows / 0
        yield batch


ACTIONS: dict[str, Callable[[Any, Path], Any]] = {
    "collect": lambda frame, _: frame.collect(),
    "count": lambda frame, _: frame.count(),
    "show": lambda frame, _: frame.show(),
    "toPandas": lambda frame, _: frame.toPandas(),
    "toArrow": lambda frame, _: frame.toArrow(),
    "take": lambda frame, _: frame.take(1),
    "write": lambda frame, folder: frame.write.parquet(str(folder / "out")),
    "join": lambda frame, _: frame.join(frame.withColumnRenamed("id", "other")).count(),
}


@pytest.mark.filterwarnings("ignore:toPandas attempted Arrow:UserWarning")  # PySpark's own, of any failure
@pytest.mark.parametrize("action", some_of(list(ACTIONS), 3))
def test_an_error_of_the_user_is_what_pyspark_raises(spark: Any, tmp_path: Path, action: str) -> None:
    """A PythonException: his frames and no other, his error, one line with stage and subtask."""
    frame = penstock.fromDataFrame(spark.range(0, ROWS, 1, 2)).keyBy("id").mapInArrow(divide, "id long").toDF()
    with pytest.raises(PythonException) as raised:
        ACTIONS[action](frame, tmp_path)
    lines = str(raised.value).splitlines()
    assert lines[:2] == ["An exception was thrown from the Python worker:", "Traceback (most recent call last):"]
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("  File ")] == ["divide"]
    assert lines[-2] == "ZeroDivisionError: division by zero"
    assert lines[-1].startswith("raised in mapInArrow(divide) of ")
    assert "stage 1, subtask " in lines[-1]
    assert len(lines) <= 8


def test_it_says_the_same_as_pyspark(spark: Any) -> None:
    """But for the line with stage and subtask, it is the text that plain PySpark gives for the same function."""
    texts = []
    source = spark.range(0, ROWS, 1, 1)
    ours = penstock.fromDataFrame(source).mapInArrow(divide, "id long").toDF()
    for frame in (source.mapInArrow(divide, "id long"), ours):
        with pytest.raises(PythonException) as raised:
            frame.collect()
        texts.append([line for line in str(raised.value).splitlines() if not line.startswith("raised in ")])
    assert texts[0] == texts[1]


def test_a_failed_action_is_not_remembered(spark: Any, tmp_path: Path) -> None:
    """The same DataFrame, the same action: once what was missing is there, it gives its rows."""
    needed = tmp_path / "needed"

    def checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        needed.stat()
        yield from batches

    frame = penstock.fromDataFrame(spark.range(0, ROWS, 1, 2)).mapInArrow(checked, "id long").toDF()
    for _ in range(2):
        with pytest.raises(PythonException, match="FileNotFoundError"):
            frame.collect()
    needed.touch()
    assert len(frame.collect()) == ROWS
    assert len(frame.collect()) == ROWS


def test_an_error_of_an_inner_pipeline_comes_through(spark: Any) -> None:
    """A DataFrame that is itself a pipeline's end fails under the outer one: the user's error, once."""
    inner = penstock.fromDataFrame(spark.range(0, ROWS, 1, 2)).mapInArrow(divide, "id long").toDF()
    outer = penstock.repartition(inner.where("id > 3"), 2, "id")
    with pytest.raises(PythonException) as raised:
        outer.count()
    assert str(raised.value).count("ZeroDivisionError") == 1
    assert "in divide" in str(raised.value)


def test_errors_without_a_function_are_one_sentence(spark: Any) -> None:
    """A job that was cancelled says so in one line, without a traceback."""
    from penstock.spark.runtime import SparkRuntime

    gate = threading.Event()

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        yield from batches
        for _ in range(6000):
            time.sleep(0.01)
            yield pa.RecordBatch.from_pydict({"id": pa.array([1])})

    frame = penstock.fromDataFrame(spark.range(0, ROWS, 1, 2)).mapInArrow(held, "id long").toDF()
    application = SparkRuntime.of(spark)._application

    def cancel() -> None:
        while not gate.wait(0.02):
            application.cancel_jobs("somebody said so")

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(PythonException, match="cancelled: somebody said so") as raised:
            frame.count()
    finally:
        gate.set()
        thread.join()
    assert str(raised.value).splitlines()[1].startswith("JobCancelledError: ")
    assert "Traceback" not in str(raised.value)


@pytest.mark.thorough
def test_every_session_has_it(spark: Any) -> None:
    """The first session, new ones, a clone of Spark's: pipelines of each, of two at once, and of the first again."""
    clone = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    sessions = [spark, spark.newSession(), spark.newSession(), clone]
    for session in [*sessions, spark]:
        for _ in range(2):
            assert penstock.repartition(session.range(ROWS), 2, "id").count() == ROWS
    first, second = (penstock.repartition(session.range(ROWS), 2, "id") for session in sessions[:2])
    assert (first.count(), second.count()) == (ROWS, ROWS)


def test_settings_are_those_of_the_session(spark: Any) -> None:
    """A setting of a new session is not that of the first."""
    other = spark.newSession()
    other.conf.set("spark.penstock.shuffle.mode", "nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        penstock.repartition(other.range(ROWS), 2, "id")
    assert penstock.repartition(spark.range(ROWS), 2, "id").count() == ROWS


def test_the_plan_shows_the_pipeline(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`explain()` of the DataFrame names what stands behind its scan."""
    penstock.fromDataFrame(spark.range(ROWS)).keyBy("id").mapInArrow(divide, "id long").toDF().explain()
    shown = capsys.readouterr().out
    assert "BatchScan penstock" in shown
    assert "mapInArrow(divide)" in shown


@pytest.mark.thorough
def test_a_result_joins_itself(spark: Any) -> None:
    """By a name that both sides have, aggregated, filtered, and in a union: Spark tells the sides apart."""
    frame = penstock.repartition(spark.range(0, ROWS, 1, 2), 2, "id")
    assert frame.join(frame, "id").count() == ROWS
    assert frame.groupBy("id").count().join(frame.groupBy("id").count(), "id").count() == ROWS
    assert frame.union(frame).distinct().count() == ROWS
    assert frame.where(frame.id < 10).join(frame.where(frame.id > 5), "id").count() == 4
