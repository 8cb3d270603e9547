# SPDX-License-Identifier: Apache-2.0
"""Persisted streams on a real Spark session: made once, shared, listed, released, lost and made again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from held_stages import nothing_until
from penstock.api.persisted import DatasetInfo
from penstock.api.stream import Stream
from penstock.errors import JobError, PlanError
from penstock.spark.runtime import SparkRuntime
from penstock.testing import DEADLINE, wait_until
from session_probe import SessionProbe

pytestmark = pytest.mark.spark

ROWS = 4_000
SUM = ROWS * (ROWS - 1) // 2

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@pytest.fixture
def source(spark: Any, tmp_path: Path) -> Iterator[Stream]:
    """A persisted stream of two subtasks, each of which leaves a mark; `fail` in the folder makes it fail."""
    stream = penstock.fromDataFrame(spark.range(0, ROWS, 1, 2)).mapInArrow(marking(str(tmp_path)), "id long")
    yield stream.persist()
    stream.unpersist()
    persisted = SparkRuntime.of(spark).persisted
    left = [result.name for result in persisted]
    for result in persisted:
        persisted.remove(result.step)
    assert not left, "a test unpersists what it persists itself"


def marking(folder: str) -> Stage:
    """A stage that marks that it ran."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Path(folder, "runs").open("ab") as file:
            file.write(b"x")
        if Path(folder, "fail").exists():
            raise ValueError("told to fail")
        yield from batches

    return stage


def waiting(folder: str) -> Stage:
    """A stage that, at its first batch, leaves `started` and goes on when `go` is there."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            Path(folder, "started").touch()
            yield from nothing_until(Path(folder, "go"), batch, DEADLINE)
            yield batch

    return stage


def runs(folder: Path) -> int:
    """The number of times that a subtask of the source ran."""
    return (folder / "runs").stat().st_size if (folder / "runs").exists() else 0


def only(spark: Any) -> DatasetInfo:
    """The one persisted stream there is."""
    (info,) = penstock.datasets(spark)
    return info


def total(stream: Stream, mode: str | None = None) -> int:
    """The sum of the ids, by a pipeline and an action of its own."""
    (row,) = stream.toOne(mode=mode).agg(total=("id", "sum")).toDF().collect()
    return int(row.total)


def files_of(spark: Any, stream: Stream) -> set[str]:
    """The names of the folders that hold what is kept of a stream."""
    result = SparkRuntime.of(spark).persisted.find(stream.branches[0])
    assert result is not None
    assert result.held is not None
    ids = [descriptor.partition for descriptor in result.held.present]
    return {f"{item.dataset}.{item.index}.{item.attempt}" for item in ids}


def test_made_once_and_shared(spark: Any, source: Stream, tmp_path: Path) -> None:
    """The first action makes it; all pipelines over it, and itself as a DataFrame, read what is kept."""
    assert source.persist() is source
    assert only(spark).state == "lazy"
    assert runs(tmp_path) == 0
    frame = source.toDF()
    assert total(source) == SUM
    assert total(source.mapInArrow(lambda batches: batches, "id long").keyBy("id", numPartitions=2)) == SUM
    assert (frame.count(), frame.coalesce(1).count()) == (ROWS, ROWS)
    assert runs(tmp_path) == 2
    info = only(spark)
    assert (info.state, info.rows, info.partitions) == ("materialised", ROWS, 2)
    assert info.bytes == 8 * ROWS
    assert info.place == os.uname().nodename
    assert 0 < info.age_seconds < DEADLINE
    assert "mapInArrow(stage)" in info.name
    assert f"{ROWS:,}" in repr(penstock.datasets(spark))


def test_both_sides_of_one_job(source: Stream, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job may read it twice; without `persist` its stage runs once too, with it the plan says what is read."""
    both = source.mapInArrow(_same, "id long").union(source.mapInArrow(_same, "id long"))
    both.explain()
    shown = capsys.readouterr().out
    assert shown.startswith("first, for persisted d")
    assert shown.count("== Penstock job") == 2
    assert runs(tmp_path) == 0
    assert total(both) == 2 * SUM
    assert runs(tmp_path) == 2


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


@pytest.mark.thorough
def test_one_over_another_and_behind_a_key(spark: Any, source: Stream, tmp_path: Path) -> None:
    """A later persisted stream is made of an earlier one; `run` and `keyBy` know it too."""
    keyed = source.mapInArrow(_same, "id long").keyBy("id", numPartitions=2).persist()
    try:
        assert len(keyed.run().metrics) > 0
        assert [info.state for info in penstock.datasets(spark)] == ["materialised", "materialised"]
        assert keyed.agg(n=("id", "count")).toDF().count() == ROWS
        assert penstock.fromDataFrame(keyed.toDF()).union(source).toDF().count() == 2 * ROWS
    finally:
        keyed.unpersist()
    assert runs(tmp_path) == 2


@pytest.mark.thorough
def test_more_partitions_than_slots(spark: Any, source: Stream, tmp_path: Path) -> None:
    """Twenty partitions that a blocking exchange filled are kept, read by fewer tasks, and written as files."""
    wide = source.rebalance(20, mode="blocking").persist()
    try:
        assert total(wide) == SUM
        assert [info.partitions for info in penstock.datasets(spark)] == [2, 20]
        assert wide.toDF().rdd.getNumPartitions() == 20
        written = wide.rebalance(20, mode="blocking").writeParquet(tmp_path / "out")
        assert (written.files, written.rows) == (20, ROWS)
    finally:
        wide.unpersist()
    assert runs(tmp_path) == 2


def test_unpersist_gives_back(spark: Any, source: Stream, tmp_path: Path) -> None:
    """Its files go; a plan of Spark's over them gets the released answer, a new plan has it made anew."""
    probe = SessionProbe(spark)
    frame = source.toDF()
    assert len(frame.collect()) == ROWS
    held = files_of(spark, source)
    assert len(held & set(probe.files())) == 2
    source.unpersist()
    wait_until(lambda: not held & set(probe.files()), "its files are gone")
    assert not penstock.datasets(spark)
    assert repr(penstock.datasets(spark)) == "no persisted streams"
    with pytest.raises(Exception, match="released"):
        frame.collect()  # Spark keeps the plan of this action
    assert frame.count() == ROWS
    source.unpersist()
    assert total(source) == SUM
    assert runs(tmp_path) == 6


def test_running_readers_finish(spark: Any, source: Stream, tmp_path: Path) -> None:
    """A task that has begun reads all its partitions to the end, also those it had not come to."""
    probe = SessionProbe(spark)
    wide = source.rebalance(5).persist()
    found: list[Any] = []
    assert wide.toDF().count() == ROWS
    held = files_of(spark, wide)
    assert len(held & set(probe.files())) == 5
    reader = wide.mapInArrow(waiting(str(tmp_path)), "id long").keyBy("id", numPartitions=6, mode="pipelined")
    # Of eight slots one is left for reading five parts, as all run at once.
    action = threading.Thread(target=lambda: found.append(total(reader, mode="pipelined")))
    action.start()
    try:
        wait_until((tmp_path / "started").exists, "the reader runs")
    finally:
        wide.unpersist()
        source.unpersist()
    try:
        wait_until(lambda: not held & set(probe.files()), "the files are gone")
    finally:
        (tmp_path / "go").touch()
        action.join(DEADLINE)
    assert found == [SUM]


def test_lost_with_its_host_and_made_again(spark: Any, source: Stream, tmp_path: Path) -> None:
    """When the environment process dies it is lost, which the list says; the next action makes it again."""
    assert total(source) == SUM
    os.kill(SessionProbe(spark).environment_pid(), signal.SIGKILL)
    wait_until(lambda: only(spark).state == "lost", "the loss is known")
    assert (only(spark).rows, only(spark).partitions) == (0, 0)
    assert total(source) == SUM
    assert only(spark).state == "materialised"
    assert runs(tmp_path) == 4


def test_failure_keeps_nothing(spark: Any, source: Stream, tmp_path: Path) -> None:
    """The action raises the error of the job that makes it, nothing is held, and the next action tries again."""
    (tmp_path / "fail").touch()
    with pytest.raises(JobError, match="told to fail"):
        source.run()
    with pytest.raises(Exception, match="told to fail"):
        total(source)
    assert only(spark).state == "lazy"
    (tmp_path / "fail").unlink()
    assert total(source) == SUM


def test_two_actions_at_once(source: Stream, tmp_path: Path) -> None:
    """It is made by one of them; the others wait for it."""
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(total(source))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert found == [SUM] * 3
    assert runs(tmp_path) == 2


def test_what_cannot_be_persisted(spark: Any, source: Stream) -> None:
    """All rows of a broadcast once for each consumer, and a function that cannot travel: refused at the call."""
    with pytest.raises(PlanError, match="before broadcast"):
        source.broadcast(2).persist()
    lock = threading.Lock()
    with pytest.raises(PlanError, match="cannot be sent"):
        source.mapInArrow(lambda batches: (batch for batch in batches if lock.locked()), "id long").persist()
    assert len(penstock.datasets(spark)) == 1
