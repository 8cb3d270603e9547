# SPDX-License-Identifier: Apache-2.0
"""Bad input gets an error that says what, where and what to do; it leaves nothing, and the next job works.

A stream that is refused at the call has sent nothing to Spark's workers, so no job runs after those tests.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

import penstock
from penstock.errors import JobError, PlanError, SchemaError, SettingError, SlotsError
from session_probe import SessionProbe
from underway import listed

pytestmark = pytest.mark.spark

ROWS = 200


@pytest.fixture(autouse=True)
def _nothing_stays(spark: Any) -> Iterator[None]:
    """Around each test: what the application holds is the same."""
    probe = SessionProbe(spark)
    before = probe.holdings()
    yield
    probe.wait_as_before(before)


@pytest.fixture
def next_job_works(spark: Any) -> Iterator[None]:
    """A small job runs after the test."""
    yield
    assert penstock.fromDataFrame(spark.range(ROWS)).keyBy("id", numPartitions=2).run().statistics().rows >= ROWS


@pytest.fixture
def stream(spark: Any) -> penstock.Stream:
    """Two partitions of numbers."""
    return penstock.fromDataFrame(spark.range(0, ROWS, 1, 2))


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Change nothing."""
    yield from batches


# --- refused at the call


def test_missing_column(stream: penstock.Stream, spark: Any) -> None:
    """The column that does not exist is named, and those that do."""
    with pytest.raises(SchemaError, match=r"'nope' does not exist; the columns are id"):
        stream.keyBy("nope")
    with pytest.raises(SchemaError, match=r"repartition: column 'nope' does not exist"):
        penstock.repartition(spark.range(3), 2, "nope")
    with pytest.raises(SchemaError, match=r"'nope'"):
        stream.keyBy("id").agg(total=("nope", "sum"))


def test_map_key(spark: Any) -> None:
    """Spark cannot hash a map, and neither can an exchange."""
    source = spark.sql("SELECT map('a', 1) AS m, 1 AS id")
    for make in (
        lambda: penstock.repartition(source, 2, "m"),
        lambda: penstock.fromDataFrame(source).keyBy("m"),
        lambda: penstock.groupBy(source, "m").agg(n=("id", "count")),
    ):
        with pytest.raises(SchemaError, match=r"'m'.*map"):
            make()


def test_column_object_as_key(stream: penstock.Stream, spark: Any) -> None:
    """A stream takes a `Column` as key; where only names are taken it is refused, with the way out."""
    from pyspark.sql import functions as f

    assert repr(stream.keyBy(f.col("id"))) == repr(stream.keyBy("id"))
    with pytest.raises(TypeError, match="withColumn"):
        penstock.repartition(spark.range(3), 2, f.col("id"))
    with pytest.raises(TypeError, match="withColumn"):
        penstock.repartition(spark.range(3), f.col("id"))


@pytest.mark.parametrize("count", [0, -1])
def test_no_partitions(stream: penstock.Stream, spark: Any, count: int) -> None:
    """A number of partitions below one."""
    for make in (
        lambda: stream.keyBy("id", numPartitions=count),
        lambda: stream.rebalance(count),
        lambda: penstock.repartition(spark.range(3), count, "id"),
        lambda: penstock.groupBy(spark.range(3), "id", numPartitions=count),
    ):
        with pytest.raises(PlanError, match=f"numPartitions must be at least 1, not {count}"):
            make()


def test_unknown_mode_and_service(stream: penstock.Stream, spark: Any) -> None:
    """Both are named, with what exists."""
    with pytest.raises(SettingError, match=r"pipelnied.*pipelined"):
        stream.keyBy("id", mode="pipelnied")
    with pytest.raises(SettingError, match=r"'nowhere'.*local"):
        stream.keyBy("id", service="nowhere")
    with pytest.raises(SettingError, match=r"'nowhere'"):
        penstock.repartition(spark.range(3), 2, "id", service="nowhere")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("spark.penstock.shuffle.mdoe", "pipelined", r"mdoe: did you mean spark\.penstock\.shuffle\.mode"),
        ("spark.penstock.network.memory", "much", r"network\.memory='much' is not valid: it takes a size"),
        ("spark.penstock.shuffle.mode", "fast", r"fast"),
        ("spark.penstock.shuffle.service", "nowhere", r"nowhere"),
        ("spark.penstock.environment.scope", "planet", r"must be host or executor"),
    ],
)
def test_wrong_setting(stream: penstock.Stream, spark: Any, key: str, value: str, message: str) -> None:
    """Refused when the DataFrame is made and when the job is run, not in some task."""
    spark.conf.set(key, value)
    try:
        with pytest.raises(SettingError, match=message):
            stream.keyBy("id", numPartitions=2).toDF()
        with pytest.raises(SettingError, match=message):
            stream.keyBy("id", numPartitions=2).run()
    finally:
        spark.conf.unset(key)


def test_parquet_that_is_none(spark: Any, tmp_path: Path) -> None:
    """A path that does not exist, a file of another kind, a folder without files."""
    with pytest.raises(SettingError, match=r"missing does not exist"):
        penstock.readParquet(spark, tmp_path / "missing")
    (tmp_path / "text.parquet").write_text("id,name\n1,a\n")
    with pytest.raises(SettingError, match=r"text\.parquet is not a Parquet file"):
        penstock.readParquet(spark, tmp_path / "text.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingError, match=r"no Parquet file in .*empty"):
        penstock.readParquet(spark, tmp_path / "empty")


@pytest.mark.thorough
def test_parquet_that_goes_away(spark: Any, tmp_path: Path) -> None:
    """Files removed between the plan and the action: the job's error names the file."""
    spark.range(0, ROWS, 1, 2).write.parquet(str(tmp_path / "p"))
    frame = penstock.readParquet(spark, tmp_path / "p").keyBy("id", numPartitions=2).toDF()
    for path in listed(tmp_path / "p", "*.parquet"):
        path.unlink()
    with pytest.raises(Exception, match=r"part-.*\.parquet"):
        frame.count()


def test_function_that_cannot_travel(stream: penstock.Stream) -> None:
    """A function that holds a lock cannot be sent to a task; the error says which function and why."""
    lock = threading.Lock()

    def locked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with lock:
            yield from batches

    pipeline = stream.mapInArrow(locked, "id long").keyBy("id", numPartitions=2)
    with pytest.raises(PlanError, match=r"mapInArrow\(locked\).*(pickle|lock)") as raised:
        pipeline.run()
    assert "_thread.lock" in str(raised.value)
    with pytest.raises(PlanError, match=r"mapInArrow\(locked\)"):
        pipeline.toDF()


def test_more_partitions_than_slots(stream: penstock.Stream) -> None:
    """The error has the slots needed, those there are, and the ways out; `toDF()` is refused at the call."""
    pipeline = stream.keyBy("id", numPartitions=50, mode="pipelined")
    message = r"needs 5\d task slots at the same time, but the application has 8: .*numPartitions.*task\.cpus"
    with pytest.raises(SlotsError, match=message):
        pipeline.run()
    with pytest.raises(SlotsError, match=message):
        pipeline.toDF()


def test_resources_in_local_mode(stream: penstock.Stream) -> None:
    """One sentence, before anything starts: what was asked for, where, and what to do."""
    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(2)).build
    pipeline = stream.keyBy("id", numPartitions=2).mapInArrow(same, "id long").withResources(profile)
    with pytest.raises(SettingError, match=r"asks for 2 cpus per task, and Spark in local\[8\] has one kind of slot"):
        pipeline.run()


# --- fails in a task


def no_such_column(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give another name."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([batch.column(0)], names=["number"])


def other_type(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give text."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([batch.column(0).cast(pa.string())], names=["id"])


def no_columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give batches without columns."""
    for batch in batches:
        yield batch.select([])


def no_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    """Give rows."""
    for batch in batches:
        yield batch.to_pylist()


def no_iterator(batches: Iterator[pa.RecordBatch]) -> Any:
    """Give a number."""
    return sum(batch.num_rows for batch in batches)


@pytest.mark.usefixtures("next_job_works")
@pytest.mark.parametrize(
    ("function", "message", "where"),
    [
        (no_such_column, r"mapInArrow\(no_such_column\).*\(number\), declared are \(id\); missing: id", "consumer"),
        (other_type, r"mapInArrow\(other_type\): column 'id' is declared int64 and the function", "producer"),
        (no_columns, r"mapInArrow\(no_columns\).*missing: id", "consumer"),
        (no_batch, r"should be iterator of pyarrow\.RecordBatch, but is iterator of list", "producer"),
        (no_iterator, r"should be iterator of pyarrow\.RecordBatch, but is int", "consumer"),
    ],
)
def test_function_against_its_schema(
    stream: penstock.Stream, function: Callable[..., Any], message: str, where: str
) -> None:
    """Rows that do not fit the declared schema fail the job, which says what was expected and what came."""
    if where == "producer":
        pipeline: penstock.Stream = stream.mapInArrow(function, "id long").keyBy("id", numPartitions=2)
    else:
        pipeline = stream.keyBy("id", numPartitions=2).mapInArrow(function, "id long")
    with pytest.raises(JobError, match=message):
        pipeline.run()


@pytest.mark.usefixtures("next_job_works")
@pytest.mark.parametrize("where", ["producer", "consumer"])
@pytest.mark.parametrize("how", ["run", "action"])
def test_users_traceback(stream: penstock.Stream, where: str, how: str) -> None:
    """The error holds the user's function, file and line, whichever stage it was in; nothing of the engine's."""

    def broken_by_the_user(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raise ValueError(f"boom over {batch.num_rows > 0} rows")
        yield from ()

    line = broken_by_the_user.__code__.co_firstlineno + 2
    if where == "producer":
        pipeline: penstock.Stream = stream.mapInArrow(broken_by_the_user, "id long").keyBy("id", numPartitions=2)
    else:
        pipeline = stream.keyBy("id", numPartitions=2).mapInArrow(broken_by_the_user, "id long")
    act = pipeline.run if how == "run" else pipeline.toDF().collect
    with pytest.raises(Exception, match="ValueError: boom over True rows") as raised:
        act()
    text = str(raised.value)
    assert re.search(rf'File ".*test_bad_input\.py", line {line}, in broken_by_the_user', text), text
    assert "penstock/operators/functions.py" not in text


@pytest.mark.usefixtures("next_job_works")
def test_error_that_cannot_travel(stream: penstock.Stream) -> None:
    """An exception that holds a lock and has no text is still told by its type and line."""

    def awkward(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import threading

        class AwkwardError(Exception):
            def __init__(self) -> None:
                super().__init__()
                self.lock = threading.Lock()

        raise AwkwardError
        yield from batches

    with pytest.raises(JobError, match=r"AwkwardError"):
        stream.keyBy("id", numPartitions=2).mapInArrow(awkward, "id long").run()


@pytest.mark.usefixtures("next_job_works")
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_function_that_asks_to_end_the_process(stream: penstock.Stream, kind: type[BaseException]) -> None:
    """`sys.exit()` is an error of the function, told with its line; it is no lost task that is tried again."""

    def exiting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise kind(7)
        yield from batches

    with pytest.raises(JobError, match=rf"(?s){kind.__name__}: 7.*in exiting.*raised in mapInArrow\(exiting\)"):
        stream.keyBy("id", numPartitions=2).mapInArrow(exiting, "id long").run()


@pytest.mark.usefixtures("next_job_works")
def test_source_that_fails_in_spark(spark: Any) -> None:
    """An error of Spark's own stages is the one the user sees, not that our task's input broke off."""

    def broken_in_pyspark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise ValueError("boom in PySpark's stage")

    in_sql = spark.range(0, ROWS, 1, 2).selectExpr("IF(id = 150, raise_error('boom in the JVM'), id) AS id")
    in_python = spark.range(0, ROWS, 1, 2).mapInArrow(broken_in_pyspark, "id long")
    for source, message in ((in_sql, "boom in the JVM"), (in_python, "boom in PySpark's stage")):
        stream = penstock.fromDataFrame(source).keyBy("id", numPartitions=2)
        with pytest.raises(JobError, match=message):
            stream.run()
        frame = stream.toDF()
        with pytest.raises(Exception, match=message):
            frame.count()


@pytest.mark.usefixtures("next_job_works")
def test_exit_in_the_function(stream: penstock.Stream) -> None:
    """`sys.exit` and a hard exit of the worker fail the job; they do not end it well or let it hang."""

    def leaves(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:

        for batch in batches:
            yield batch
            sys.exit(0)

    def drops(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        for batch in batches:
            yield batch
            os._exit(0)

    for function in (leaves, drops):
        with pytest.raises(JobError):
            stream.keyBy("id", numPartitions=2).mapInArrow(function, "id long").run()
        with pytest.raises(JobError):
            stream.mapInArrow(function, "id long").keyBy("id", numPartitions=2).run()


# --- unusual, and right


def test_zero_rows(spark: Any) -> None:
    """No rows in, no rows out, of every exchange and of aggregations by key; a total over nothing has one row."""
    empty = spark.range(0)
    for stream in (
        penstock.fromDataFrame(empty).keyBy("id", numPartitions=2),
        penstock.fromDataFrame(empty).rebalance(2),
        penstock.fromDataFrame(empty).broadcast(2),
        penstock.fromDataFrame(empty).keyBy("id", numPartitions=2).agg(n=("id", "count")),
    ):
        frame = stream.toDF()
        assert frame.collect() == []
        release(spark, frame)
    total = penstock.fromDataFrame(empty).toOne().agg(n=("id", "count"), most=("id", "max")).toDF()
    assert [(row.n, row.most) for row in total.collect()] == [(0, None)]
    release(spark, total)


def test_no_columns_at_all(spark: Any) -> None:
    """Rows without columns keep their number through an exchange."""
    frame = penstock.fromDataFrame(spark.range(0, ROWS, 1, 2).select()).rebalance(2).toDF()
    assert frame.count() == ROWS
    release(spark, frame)


@pytest.mark.thorough
def test_one_huge_row(spark: Any) -> None:
    """A row of 300 MB, larger than the whole network memory, goes through an exchange."""

    def inflate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                value = bytes(300 << 20) if number == 1 else b"x"
                schema = pa.schema([("id", pa.int64()), ("value", pa.binary())])
                yield pa.RecordBatch.from_pydict({"id": [number], "value": [value]}, schema=schema)

    def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute as pc

        for batch in batches:
            sizes = pc.cast(pc.binary_length(batch.column("value")), pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column("id"), sizes], names=["id", "size"])

    stream = penstock.fromDataFrame(spark.range(0, 3, 1, 1)).mapInArrow(inflate, "id long, value binary")
    frame = stream.keyBy("id", numPartitions=2).mapInArrow(measure, "id long, size long").toDF()
    assert sorted((row.id, row.size) for row in frame.collect()) == [(0, 1), (1, 300 << 20), (2, 1)]
    release(spark, frame)


def release(spark: Any, frame: Any) -> None:
    """Give up the result of a DataFrame, as the end of its lease would."""
    from penstock.spark.runtime import SparkRuntime

    runtime = SparkRuntime.of(spark)
    master = runtime._application._master
    assert master is not None
    results = master._results._results
    jobs = results[max(results, key=lambda name: int(name[1:]))].core.jobs
    assert len(jobs) == 1, f"{frame} was not read"
    runtime.release(*jobs)
