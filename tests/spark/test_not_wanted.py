# SPDX-License-Identifier: Apache-2.0
"""Stages whose rows nobody wants any more: they are stopped, and the job ends, where it never did."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from effort import with_all
from endless_jobs import Action
from penstock.errors import JobCancelledError
from penstock.testing import DEADLINE, wait_until
from rows_without_end import BATCH_ROWS, without_end
from session_probe import SessionProbe, marks

pytestmark = pytest.mark.spark

SCHEMA = "id long, source long"
SOURCES = 2


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A stage that gives what it gets, until its input ends."""
    yield from batches


def endless_rows(spark: Any, folder: Path, name: str = "producer", key: int | None = None) -> Any:
    """A stream of two tasks without an end, over two files."""
    files = folder / f"{name}-files"
    files.mkdir()
    for number in range(SOURCES):
        pq.write_table(pa.table({"id": [number]}), files / f"{number}.parquet")
    source = penstock.readParquet(spark, str(files), numPartitions=SOURCES)
    return source.mapInArrow(without_end(str(folder), name, key), SCHEMA)


def exchanged(stream: Any, how: str, mode: str) -> Any:
    """After an exchange of that kind."""
    kind = {"numPartitions": 2, "mode": mode}
    return stream.keyBy("id", **kind) if how == "keyBy" else getattr(stream, how)(**kind)


def all_closed(folder: Path, name: str = "producer") -> bool:
    """Tell whether each function that has begun was closed."""
    return len(marks(folder / f"{name}-closed")) == len(marks(folder / f"{name}-began"))


@pytest.mark.parametrize(
    ("how", "mode"),
    [
        ("keyBy", "pipelined"),
        with_all("keyBy", "hybrid"),
        ("rebalance", "pipelined"),
        with_all("rebalance", "hybrid_selective"),
        with_all("broadcast", "pipelined"),
        with_all("broadcast", "hybrid"),
    ],
)
def test_a_limit_ends_a_stage_without_an_end(spark: Any, tmp_path: Path, how: str, mode: str) -> None:
    """After each exchange, in each mode in which it is read while it is written; the rows are rows of it."""
    probe = SessionProbe(spark)
    before = probe.holdings()
    began = time.monotonic()
    stream = exchanged(endless_rows(spark, tmp_path), how, mode).mapInArrow(same, SCHEMA)
    found = stream.limit(7).collect()
    assert time.monotonic() - began < DEADLINE
    assert len(found) == 7
    assert {row.source for row in found} <= set(range(SOURCES))
    copies = 2 if how == "broadcast" else 1
    assert max(found.count(row) for row in found) <= copies
    assert all_closed(tmp_path)
    probe.wait_as_before(before)


def test_tasks_that_get_no_rows_end_too(spark: Any, tmp_path: Path) -> None:
    """All rows have one key: one of the keyed tasks has enough of them, and another one waits for its first."""
    keyed = endless_rows(spark, tmp_path, key=1).keyBy("id", numPartitions=2, mode="pipelined")
    found = keyed.mapInArrow(same, SCHEMA).limit(7).collect()
    assert [row.id for row in found] == [1] * 7
    assert all_closed(tmp_path)


def test_what_the_rows_are_used_for_behind_the_limit(spark: Any, tmp_path: Path) -> None:
    """Exchanges and aggregations after it see exactly its rows."""
    stream = endless_rows(spark, tmp_path).rebalance(2, mode="pipelined").mapInArrow(same, SCHEMA).limit(2500)
    counted = stream.keyBy("source", numPartitions=2).agg(n=("*", "count"))
    assert sum(row.n for row in counted.collect()) == 2500
    assert all_closed(tmp_path)


@pytest.mark.parametrize(
    ("how", "endless_is_left"), [with_all("inner", True), ("inner", False), with_all("left_semi", True)]
)
def test_an_empty_side_of_a_join_ends_the_other(spark: Any, tmp_path: Path, how: str, endless_is_left: bool) -> None:
    """Whichever side is empty, the one that is collected or the one that is streamed past it."""
    empty = penstock.fromDataFrame(spark.range(0, 10, 1, 2).where("id < 0")).keyBy("id", numPartitions=2)
    endless = endless_rows(spark, tmp_path).keyBy("id", numPartitions=2)
    joined = endless.join(empty, how) if endless_is_left else empty.join(endless, how)
    began = time.monotonic()
    assert joined.collect() == []
    assert time.monotonic() - began < DEADLINE
    assert all_closed(tmp_path)


def test_a_count_over_an_empty_join_is_nought(spark: Any, tmp_path: Path) -> None:
    """The operator after the join sees an input that has ended well."""
    empty = penstock.fromDataFrame(spark.range(0, 10, 1, 2).where("id < 0")).keyBy("id", numPartitions=2)
    assert empty.join(endless_rows(spark, tmp_path).keyBy("id", numPartitions=2)).count() == 0


def test_a_long_dataframe_is_not_read_to_its_end(spark: Any) -> None:
    """A Spark job of years: its tasks end early and well, and Spark starts them once."""
    source = penstock.fromDataFrame(spark.range(0, 1 << 46, 1, SOURCES))
    began = time.monotonic()
    result = source.rebalance(2, mode="pipelined").mapInArrow(same, "id long").limit(7)
    assert len(result.collect()) == 7
    assert time.monotonic() - began < DEADLINE


def test_figures_and_trace_of_a_stage_that_was_stopped(spark: Any, tmp_path: Path) -> None:
    """It has finished, with the rows that it had given until then; the trace says who was told."""
    stream = endless_rows(spark, tmp_path).rebalance(2, mode="pipelined").mapInArrow(same, SCHEMA).limit(7)
    result = stream.run()
    first = min(result.metrics)
    assert result.metrics[first]["rows_out"] >= BATCH_ROWS
    assert result.metrics[first]["rows_out"] % BATCH_ROWS == 0
    assert len(result.trace_of("task_not_wanted")) >= SOURCES
    assert not result.trace_of("restart")


def test_a_function_that_fails_when_it_is_stopped_fails_nothing(spark: Any, tmp_path: Path) -> None:
    """It takes the end of its input for an error of its own: nobody wants its rows, so nobody misses them."""

    def careful(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            raise RuntimeError("the input is not complete") from error

    stream = endless_rows(spark, tmp_path).rebalance(2, mode="pipelined").mapInArrow(careful, SCHEMA)
    stream = stream.rebalance(2, mode="pipelined").mapInArrow(same, SCHEMA)
    assert len(stream.limit(7).collect()) == 7
    assert all_closed(tmp_path)


def test_a_stage_that_gives_nothing_can_be_cancelled(spark: Any, tmp_path: Path) -> None:
    """Its batches end in a condition, so its task never writes; it is stopped between two of them all the same."""
    stream = endless_rows(spark, tmp_path).filter("id < 0").keyBy("id", numPartitions=2, mode="pipelined")
    action = Action(stream.agg(n=("*", "count")).collect)
    wait_until(lambda: len(marks(tmp_path / "producer-began")) == SOURCES, "the functions run")
    spark.interruptAll()
    assert isinstance(action.wait(), JobCancelledError)
    wait_until(lambda: all_closed(tmp_path), "the functions were closed")
