# SPDX-License-Identifier: Apache-2.0
"""Blocking exchanges on a real Spark session: wider than the slots, region after region, chosen parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from effort import with_all
from penstock.errors import JobError, SlotsError
from penstock.spark.runtime import SparkRuntime

pytestmark = pytest.mark.spark

ROWS = 40_000
SLOTS = 8


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Parquet file of rows `(id, k)` in sixteen row groups."""
    path = tmp_path_factory.mktemp("numbers") / "numbers.parquet"
    ids = np.arange(ROWS)
    pq.write_table(pa.table({"id": ids, "k": ids % 97}), path, row_group_size=ROWS // 16)
    return str(path)


def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row: how many there were."""
    yield pa.RecordBatch.from_pydict({"n": [sum(batch.num_rows for batch in batches)]})


@pytest.mark.parametrize("mode", ["blocking", with_all("blocking_hash")])
@pytest.mark.parametrize("consumers", [with_all(2), 20, with_all(100)])
def test_more_consumers_than_slots(spark: Any, numbers: str, mode: str, consumers: int) -> None:
    """Every row arrives once at any width, with files for each consumer or two for all, on eight slots.

    Twenty are more than the slots; a hundred are only in more turns of them, and run with all cases.
    """
    stream = penstock.readParquet(spark, numbers).keyBy("id", numPartitions=consumers, mode=mode)
    frame = stream.mapInArrow(count, "n long").toDF()
    counts = [row.n for row in frame.collect()]
    assert len(counts) == consumers
    assert sum(counts) == ROWS
    assert max(counts) < ROWS


@pytest.mark.thorough
def test_the_slot_of_a_finished_producer_is_free(spark: Any, numbers: str) -> None:
    """Producers take every slot, consumers too: pipelined can't fit, blocking runs, so the slots came free."""
    stream = penstock.readParquet(spark, numbers).rebalance(SLOTS, mode="blocking").mapInArrow(count, "n long")
    wide = stream.rebalance(SLOTS, mode="blocking").mapInArrow(count, "n long")
    assert sum(row.n for row in wide.toDF().collect()) == SLOTS
    narrow = penstock.readParquet(spark, numbers).rebalance(SLOTS, mode="pipelined")
    narrow = narrow.rebalance(SLOTS, mode="pipelined").mapInArrow(count, "n long")
    with pytest.raises(SlotsError, match='mode="blocking"'):
        narrow.run()


@pytest.mark.thorough
def test_the_mode_of_the_whole_job_is_a_setting(spark: Any, numbers: str) -> None:
    """With spark.penstock.shuffle.mode=blocking three exchanges run one after the other on slots for one."""
    spark.conf.set("spark.penstock.shuffle.mode", "blocking")
    try:
        stream = penstock.readParquet(spark, numbers)
        for _ in range(3):
            stream = stream.keyBy("k", numPartitions=6)
        frame = stream.agg(n=("*", "count")).toDF()
        assert sorted((row.k, row.n) for row in frame.collect()) == [(k, len(range(k, ROWS, 97))) for k in range(97)]
    finally:
        spark.conf.unset("spark.penstock.shuffle.mode")


def test_pipelined_and_blocking_edges_in_one_job(spark: Any, numbers: str) -> None:
    """A pipelined pair before and after a blocking edge; a DataFrame as source of the blocking part."""
    frame = spark.range(0, 1000, 1, 3)
    stream = penstock.fromDataFrame(frame).keyBy("id", numPartitions=3, mode="blocking")
    both = stream.mapInArrow(_same, "id long").rebalance(2, mode="pipelined").mapInArrow(_same, "id long")
    assert sorted(row.id for row in both.toDF().collect()) == list(range(1000))
    assert both.toDF().where("id < 10").count() == 10


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def test_consumers_are_chosen_from_the_bytes(spark: Any, numbers: str) -> None:
    """Left open, few bytes give one consumer; a small target gives many; every row arrives once in either case."""
    stream = penstock.readParquet(spark, numbers).keyBy("id", mode="blocking").mapInArrow(count, "n long")
    counts = [row.n for row in stream.toDF().collect()]
    assert counts == [ROWS]
    spark.conf.set("spark.penstock.blocking.targetBytes", "32k")
    try:
        counts = [row.n for row in stream.toDF().collect()]
    finally:
        spark.conf.unset("spark.penstock.blocking.targetBytes")
    assert sum(counts) == ROWS
    assert 10 < len(counts) <= 64


def test_a_trace_shows_the_regions(spark: Any, numbers: str) -> None:
    """After a blocking exchange no task starts before the last of the other side has ended."""
    stream = penstock.readParquet(spark, numbers).keyBy("id", numPartitions=3, mode="blocking")
    result = stream.mapInArrow(count, "n long").run()
    story = [name for _, name, _ in result.trace]
    sources = sum(1 for _, name, ids in result.trace if name == "task_deployed" and "/v0." in ids)
    ends = [index for index, name in enumerate(story) if name == "task_finished"]
    starts = [index for index, name in enumerate(story) if name == "task_deployed"]
    assert ends[sources - 1] < starts[sources]
    assert len(starts) == sources + 3


def test_a_failure_in_a_later_region_ends_the_job(spark: Any, numbers: str) -> None:
    """The user's error comes out with its traceback, and the session goes on."""

    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raise ValueError(f"no {batch.num_rows}")
        yield from ()

    stream = penstock.readParquet(spark, numbers).keyBy("id", numPartitions=12, mode="blocking")
    with pytest.raises(JobError, match="ValueError: no"):
        stream.mapInArrow(broken, "n long").run()
    assert SparkRuntime.of(spark).run is not None
    assert stream.mapInArrow(count, "n long").toDF().count() == 12


def test_explain_shows_regions_and_open_parallelism(spark: Any, numbers: str, capsys: Any) -> None:
    """The plan says what runs when, on how many slots, and what is chosen later."""
    penstock.readParquet(spark, numbers).keyBy("id", mode="blocking").mapInArrow(count, "n long").explain()
    text = capsys.readouterr().out
    assert "blocking_sort_merge" in text
    assert "chosen from the bytes produced" in text
    assert "Region 1" in text
    assert "any number of slots" in text


def test_a_hot_key_of_a_join_is_read_by_several_tasks(spark: Any, tmp_path: Path) -> None:
    """Nearly all rows have one key: several tasks share them, each with the whole other side; each row comes once."""
    rows = 1_000_000
    ids = np.arange(rows)
    pq.write_table(
        pa.table({"k": np.where(ids % 50 == 0, ids % 97, 0), "id": ids}), tmp_path / "l", row_group_size=1 << 16
    )
    pq.write_table(pa.table({"k": np.arange(97), "name": np.arange(97) * 10}), tmp_path / "r")
    left = penstock.readParquet(spark, str(tmp_path / "l")).keyBy("k", mode="blocking")
    right = penstock.readParquet(spark, str(tmp_path / "r")).keyBy("k", mode="blocking")

    def hot(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        total = found = checksum = 0
        for batch in batches:
            keys, numbers = np.asarray(batch["k"]), np.asarray(batch["id"])
            assert (np.asarray(batch["name"]) == keys * 10).all()
            total, found, checksum = total + len(keys), found + int((keys == 0).sum()), checksum + int(numbers.sum())
        yield pa.RecordBatch.from_pydict({"total": [total], "hot": [found], "sum": [checksum]})

    spark.conf.set("spark.penstock.blocking.targetBytes", "2m")
    try:
        tasks = left.join(right).mapInArrow(hot, "total long, hot long, sum long").toDF().collect()
    finally:
        spark.conf.unset("spark.penstock.blocking.targetBytes")
    assert sum(task.total for task in tasks) == rows
    assert sum(task.sum for task in tasks) == rows * (rows - 1) // 2
    assert sum(task.hot > 0 for task in tasks) > 3
