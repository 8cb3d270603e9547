# SPDX-License-Identifier: Apache-2.0
"""Streaming queries on Spark: PySpark's names, checkpoints, ends, and what kills change - nothing.

Rows are numbered by their source, so what a sink committed can be counted: a number that is missing was lost, one
that is there twice was doubled.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming import StreamingQueryListener

import penstock
from penstock.api.streaming.query import StreamingQuery
from penstock.checkpoint.errors import CheckpointError
from penstock.errors import PlanError, SettingError, SlotsError
from penstock.spark.hints import PenstockWarning
from penstock.testing import DEADLINE, wait_until
from penstock_bench.workers import worker_pids
from session_probe import queries_ended
from underway import listed

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def ended(spark: Any) -> Iterator[None]:
    """No query outlives its test, and slots come back."""
    yield from queries_ended(spark)


def numbers(spark: Any, rows: int, rate: int) -> Any:
    """So many numbers, each counted once after an exchange by itself, through another exchange."""
    source = penstock.readStream(spark).format("rate").options(rowsPerSecond=rate, numPartitions=2, numRows=rows)
    return source.load().keyBy("value", numPartitions=2).agg(n=("value", "count")).rebalance(1)


def started(stream: Any, folder: Path, **options: Any) -> StreamingQuery:
    """A query into files, with a checkpoint each fifth of a second."""
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoints"))
    query: StreamingQuery = writer.options(**{"checkpointInterval": "200ms", **options}).start(str(folder / "output"))
    return query


class Ears(StreamingQueryListener):
    """A listener of PySpark's kind, which notes what kinds of events it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def _hear(self, event: Any) -> None:
        self.heard.append(type(event).__name__)

    onQueryStarted = onQueryProgress = onQueryIdle = onQueryTerminated = _hear


def lost_and_doubled(folder: Path, rows: int, *others: Path) -> tuple[int, int]:
    """The rows that a plain reader of the folder, and of others, misses, and those that it sees too often."""
    table = pa.concat_tables([pq.read_table(each / "output") for each in (folder, *others)])
    distinct = len(pc.unique(table["value"]))
    return rows - distinct, table.num_rows - distinct + pc.sum(pc.greater(table["n"], 1)).as_py()


def owners_at(folder: Path) -> list[str]:
    """The files of the owners of a query's location, without the signs of queries that run."""
    return sorted(path.name for path in listed(folder / "checkpoints" / "owners") if path.suffix != ".running")


def test_bounded_query_ends_by_itself(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its sources end, its last checkpoint is complete, its sink has all rows, and the handle says so."""
    ears = Ears()
    penstock.streams(spark).addListener(ears)
    penstock.streams(spark).resetTerminated()
    query = started(numbers(spark, 2_000, 1_000), tmp_path)
    assert query in penstock.streams(spark).active
    assert query.isActive
    with pytest.raises(AttributeError, match=r"has no 'processAllAvailable': write \.checkpoint\(\)"):
        query.processAllAvailable()
    assert penstock.streams(spark).awaitAnyTermination(0.01) is False
    query.explain()
    assert "pipelined_bounded" in capsys.readouterr().out
    assert penstock.streams(spark).awaitAnyTermination(DEADLINE) is True
    assert query.awaitTermination(DEADLINE) is True
    assert query.exception() is None
    assert lost_and_doubled(tmp_path, 2_000) == (0, 0)
    assert query not in penstock.streams(spark).active
    assert query.status["message"] == "Stopped"
    assert query.recentProgress[-1]["restarts"] == 0
    wait_until(lambda: ears.heard[-1:] == ["QueryTerminatedEvent"], "the listener has heard of the end")
    penstock.streams(spark).removeListener(ears)
    assert ears.heard[0] == "QueryStartedEvent"
    assert "QueryProgressEvent" in ears.heard
    with pytest.raises(PlanError, match=r"had read all of its rows and has ended, so it would read nothing \(rate"):
        started(numbers(spark, 2_000, 1_000), tmp_path)


def test_folders_of_a_union_change_places_and_another_one_is_refused(spark: Any, tmp_path: Path) -> None:
    """The files of all have the same names: each is read once, and none of a third folder is left out silently."""
    for folder in "abc":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.txt").write_text("".join(f"{folder}{number}\n" for number in range(3)))

    def run(*folders: str, rows: int) -> None:
        first, second = (penstock.readStream(spark).text(str(tmp_path / folder)) for folder in folders)
        query = started(first.union(second), tmp_path)
        wait_until(lambda: len(written()) >= rows, "all rows are there")
        query.stop()
        assert query.exception() is None

    def written() -> list[str]:
        files = listed(tmp_path / "output", "part-*")
        return [value for file in files for value in pq.read_table(file)["value"].to_pylist()]

    run("a", "b", rows=6)
    (tmp_path / "b" / "2.txt").write_text("later\n")
    run("b", "a", rows=7)
    assert sorted(written()) == ["a0", "a1", "a2", "b0", "b1", "b2", "later"]
    with pytest.raises(PlanError, match=r"was in text files of .*/b .*it reads instead: text files of .*/c"):
        run("a", "c", rows=8)


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_memory_table_progress_and_stop(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A query without an end: its table grows, its progress has PySpark's fields, `stop` commits what was read.

    Its own checkpoints go with it, and nobody is warned of that.
    """
    rate = penstock.readStream(spark).format("rate").options(rowsPerSecond=500, numPartitions=1).load()
    counts = rate.selectExpr("value % 5 AS k").keyBy("k", numPartitions=1).count()
    writer = counts.writeStream.format("memory").queryName("five").option("checkpointInterval", "300ms")
    query = writer.start()
    wait_until(lambda: (query.lastProgress or {}).get("batchId", -1) > 0, "a checkpoint is complete")
    with pytest.raises(SettingError, match="five"):
        counts.writeStream.format("memory").queryName("five").start()
    number = query.checkpoint()
    assert number > 0
    query.stop()
    wait_until(lambda: not any("-checkpoints" in name for name in _threads()), "its checkpoints are tidied up")
    assert "could not be tidied up" not in caplog.text
    assert query.exception() is None
    last = query.recentProgress[-1]
    assert {
        "id",
        "runId",
        "name",
        "timestamp",
        "numInputRows",
        "inputRowsPerSecond",
        "sources",
        "sink",
    } <= last.keys()
    assert [stage["tasks"] for stage in last["stages"]] == [1, 1]
    found = spark.table("five").groupBy("k").max("count").collect()
    assert len(found) == 5
    assert max(row[1] for row in found) - min(row[1] for row in found) <= 1


def test_killed_worker_changes_nothing(spark: Any, tmp_path: Path) -> None:
    """SIGKILL of the tasks of a running query: it goes on from its last checkpoint, with no row lost or doubled."""
    query = started(numbers(spark, 12_000, 2_000), tmp_path)
    wait_until(lambda: listed(tmp_path / "output", "part-*"), "rows were committed")
    for worker in worker_pids():  # some of them may be idle
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    assert query.awaitTermination(DEADLINE) is True
    assert lost_and_doubled(tmp_path, 12_000) == (0, 0)
    assert query.recentProgress[-1]["restarts"] >= 1


@pytest.mark.thorough
def test_next_query_goes_on_where_a_cancelled_one_was(spark: Any, tmp_path: Path) -> None:
    """Another run with the same checkpointLocation: the same id, no row twice, though the first one never stopped.

    A run that would write into another folder is refused in between: the first is where its rows are to appear.
    """
    first = started(numbers(spark, 8_000, 2_000), tmp_path)
    wait_until(lambda: listed(tmp_path / "output", "part-*"), "rows were committed")
    first.stop(0.0)
    writer = numbers(spark, 8_000, 2_000).writeStream.option("checkpointLocation", str(tmp_path / "checkpoints"))
    with pytest.raises(PlanError, match=r"files to publish in .*/output, and this query writes into .*/elsewhere"):
        writer.start(str(tmp_path / "elsewhere"))
    second = started(numbers(spark, 8_000, 2_000), tmp_path)
    assert (second.id, second.runId != first.runId) == (first.id, True)
    assert second.awaitTermination(DEADLINE) is True
    assert lost_and_doubled(tmp_path, 8_000) == (0, 0)


def test_queries_begin_with_savepoints_of_others(spark: Any, tmp_path: Path) -> None:
    """One is taken while the query runs, a second as it stops: a query at a new location goes on from that.

    Into a folder of its own, though the first location is gone: in both together no row is lost or doubled.
    """
    first = started(numbers(spark, 8_000, 2_000), tmp_path)
    wait_until(lambda: listed(tmp_path / "output", "part-*"), "rows were committed")
    with pytest.raises(CheckpointError, match="is a folder with"):
        first.checkpoint(savepoint=str(tmp_path))
    with pytest.raises(CheckpointError, match="is a folder with"):
        first.stop(savepoint=str(tmp_path))
    assert first.checkpoint(savepoint=str(tmp_path / "one")) > 0
    first.stop(savepoint=str(tmp_path / "two"))
    with pytest.raises(CheckpointError, match="has ended"):
        first.stop(savepoint=str(tmp_path / "three"))
    shutil.rmtree(tmp_path / "checkpoints")
    other = numbers(spark, 8_000, 2_000).keyBy("n").agg(m=("n", "count"))
    with pytest.raises(CheckpointError, match="no operator of that name"):
        started(other, tmp_path, savepoint=tmp_path / "one")
    new = tmp_path / "new"
    second = started(numbers(spark, 8_000, 2_000), new, savepoint=tmp_path / "two")
    assert second.awaitTermination(DEADLINE) is True
    assert lost_and_doubled(tmp_path, 8_000, new) == (0, 0)


def test_a_start_that_can_not_go_on_is_refused_and_changes_nothing(spark: Any, tmp_path: Path) -> None:
    """Another aggregate, a renamed column, a function that can't travel: at `start`, and the location is as it was.

    The first two were found by the tasks, one restart after the other.
    """
    rate = penstock.readStream(spark).format("rate").options(rowsPerSecond=50, numPartitions=1).load()
    keyed = rate.keyBy("value", numPartitions=1)
    query = started(keyed.agg(n=("value", "count")), tmp_path, checkpointInterval="1h")
    query.checkpoint()
    query.stop()
    owners = owners_at(tmp_path)
    for other in (keyed.agg(n=("value", "sum")), keyed.agg(renamed=("value", "count"))):
        with pytest.raises(CheckpointError, match=r"holds the state of .*now has .*new checkpointLocation"):
            started(other, tmp_path)
    lock = threading.Lock()

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with lock:
            yield from batches

    with pytest.raises(PlanError, match="cannot be sent to tasks"):
        started(keyed.agg(n=("value", "count")).mapInArrow(held, "value long, n long"), tmp_path)
    assert owners_at(tmp_path) == owners
    again = started(keyed.agg(n=("value", "count")), tmp_path, checkpointInterval="1h")
    again.checkpoint()
    again.stop()


@pytest.mark.thorough
def test_queries_go_on_with_other_numbers_of_tasks(spark: Any, tmp_path: Path) -> None:
    """One counter, then three, then two, after as many tasks in turns as that: each number is still counted once.

    Keys are few and come again and again, so a count is right only if its state found its key's new task.
    """

    def counts(sources: int, counters: int, rows: int | None) -> Any:
        options = {"rowsPerSecond": 2_000, "numPartitions": 2, **({"numRows": rows} if rows else {})}
        rate = penstock.readStream(spark).format("rate").options(**options).load().rebalance(sources)
        return rate.selectExpr("value % 7 AS k").keyBy("k", numPartitions=counters).count().rebalance(1)

    for sources, counters in ((1, 1), (2, 3)):
        query = started(counts(sources, counters, None), tmp_path)
        assert query.checkpoint() > 0
        query.stop(0.0)
    assert started(counts(1, 2, 14_000), tmp_path).awaitTermination(DEADLINE) is True
    table = pq.read_table(tmp_path / "output").group_by("k").aggregate([("count", "max")])
    assert sorted(table["count_max"].to_pylist()) == [2_000] * 7


def test_query_says_what_it_holds_and_needs(spark: Any, tmp_path: Path) -> None:
    """Too few slots are refused with both numbers; a running query says what it leaves; batch jobs run beside it.

    A query into files that nobody could go on with is warned of where it is written, and waits for rows idly.
    """
    wide = penstock.readStream(spark).format("rate").load().rebalance(8)
    with pytest.raises(SlotsError, match=r"(?s)9.*8"):
        started(wide, tmp_path)
    with pytest.warns(PenstockWarning, match="no checkpointLocation") as warned, pytest.raises(SlotsError):
        wide.writeStream.start(str(tmp_path / "output"))
    assert warned[0].filename == __file__
    rate = penstock.readStream(spark).format("rate").options(rowsPerSecond=0.001).load()
    query = started(rate, tmp_path)
    waits = "Waiting for data to arrive; it holds 1 of 8 task slots"
    wait_until(lambda: query.status["message"].startswith(waits), "it is idle")
    assert not query.status["isDataAvailable"]
    assert query.status["slots"] == 1
    assert query.status["slotsLeft"] == 7
    assert penstock.fromDataFrame(spark.range(10)).keyBy("id").count().count() == 10
    with pytest.raises(SettingError, match="checkpointLocation"):
        started(rate, tmp_path)
    query.stop()


@pytest.mark.thorough
def test_jobs_beside_a_query_take_the_slots_that_it_leaves(spark: Any) -> None:
    """Planned for all slots they waited for those of the query, which it keeps, and failed; so did another query."""
    rate = penstock.readStream(spark).format("rate").option("rowsPerSecond", 10)
    query = rate.option("numPartitions", 7).load().writeStream.format("noop").start()
    wait_until(lambda: query.status["isDataAvailable"], "it runs")
    assert query.status["slotsLeft"] == 1
    rows = penstock.fromDataFrame(spark.range(100).selectExpr("id", "id % 3 AS k"))
    assert rows.count() == 100
    assert sorted(rows.groupBy("k").count().toDF().collect()) == [(0, 34), (1, 33), (2, 33)]
    numbered = penstock.readStream(spark).format("rate").options(numRows=50, rowsPerSecond=1_000).load()
    other = numbered.writeStream.format("memory").queryName("beside").start()
    assert other.awaitTermination(DEADLINE) is True
    assert spark.table("beside").count() == 50
    assert query.isActive
    query.stop()


def test_what_needs_an_end_is_refused(spark: Any) -> None:
    """DataFrames in a query, and actions on a stream without an end."""
    rate = penstock.readStream(spark).format("rate").load()
    frame = penstock.fromDataFrame(spark.range(3).selectExpr("current_timestamp() AS timestamp", "id AS value"))
    with pytest.raises(PlanError, match="toDF needs all rows"):
        rate.toDF()
    with pytest.raises(PlanError, match="read once"):
        rate.union(cast_to(frame, rate.schema)).writeStream.format("noop").start()


def cast_to(stream: Any, schema: pa.Schema) -> Any:
    """The stream with this schema."""
    return stream.mapInArrow(lambda batches: (batch.cast(schema) for batch in batches), schema)


def test_error_of_a_function_ends_the_query(spark: Any, tmp_path: Path) -> None:
    """It is tried again some times, then `exception` and `awaitTermination` have its text."""

    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raise ValueError("no such shop")
            yield batch

    rate = penstock.readStream(spark).format("rate").options(rowsPerSecond=100).load()
    query = started(rate.mapInArrow(broken, rate.schema), tmp_path)
    with pytest.raises(Exception, match="no such shop"):
        query.awaitTermination(DEADLINE)
    assert "no such shop" in str(query.exception())
    assert not query.isActive
    said = query.logs(lines=400)
    assert any("no such shop" in text for name, text in said.items() if name.startswith(query._started.handle.job))
    assert any(name.startswith("environment-") for name in said)
