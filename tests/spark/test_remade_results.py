# SPDX-License-Identifier: Apache-2.0
"""Partitions of a `toDF()` result that are lost are made again under the DataFrame that Spark has planned.

The tasks that wait for them hold the slots, all of them where there are more partitions than slots, and work for the
job meanwhile. The last tests have sessions with one slot, and with the fair scheduler.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from effort import with_all
from penstock.api.stream import Stream
from penstock.testing import DEADLINE, wait_until
from session_probe import SessionProbe, mark, marks
from sessions import FAIR, SLOTS, Kind, Sessions
from underway import listed

pytestmark = pytest.mark.spark

FILES = 4
ROWS = 1000
KEYS = 50

Rows = list[tuple[Any, ...]]
Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of Parquet files of rows `k`, `v`; each key comes equally often."""
    folder = tmp_path_factory.mktemp("numbers")
    for number in range(FILES):
        values = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"k": pa.array([v % KEYS for v in values], pa.int64()), "v": pa.array(values, pa.int64())})
        pq.write_table(table, folder / f"part-{number}.parquet")
    return str(folder)


def counted(spark: Any, numbers: str, partitions: int, mode: str = "blocking") -> Stream:
    """The number of rows of each key."""
    keyed = penstock.readParquet(spark, numbers).keyBy("k", numPartitions=partitions, mode=mode)
    return keyed.agg(n=("*", "count"))


EXPECTED = [(key, FILES * ROWS // KEYS) for key in range(KEYS)]


def rows(frame: Any) -> Rows:
    """The rows in order."""
    return sorted(map(tuple, frame.collect()))


def kill_environment(spark: Any) -> None:
    """SIGKILL of the host's environment process: all partitions are gone."""
    os.kill(SessionProbe(spark).environment_pid(), signal.SIGKILL)


def counted_rows(stream: Stream, _: Path) -> int:
    """By one number."""
    return stream.count()


def collected_rows(stream: Stream, _: Path) -> int:
    """By all rows."""
    return len(stream.collect())


def written_rows(stream: Stream, folder: Path) -> int:
    """By files, whose names come to the driver; no other file is in the folder."""
    written = stream.writeParquet(folder / "written")
    assert len(listed(folder / "written", "*.parquet")) == written.files
    assert written.rows == pq.read_table(folder / "written").num_rows
    return int(written.rows)


@pytest.mark.parametrize(
    ("reader", "action"),
    [with_all("rows", counted_rows), ("collected", collected_rows), with_all("rows", written_rows)],
)
def test_an_action_whose_result_is_lost_before_it_is_read(
    spark: Any,
    numbers: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    reader: str,
    action: Callable[[Stream, Path], int],
) -> None:
    """The environment dies when the job has ended: nothing was given out, so the stream runs again."""
    from penstock.spark.runtime import SparkRuntime

    read, kills = getattr(SparkRuntime, reader), [kill_environment]

    def killed_first(runtime: SparkRuntime, *given: Any) -> Any:
        if kills:
            kills.pop()(spark)
        return read(runtime, *given)

    monkeypatch.setattr(SparkRuntime, reader, killed_first)
    assert action(penstock.readParquet(spark, numbers).rebalance(2, mode="hybrid"), tmp_path) == FILES * ROWS
    assert not kills


def partition_files(spark: Any, dataset: str, index: int) -> list[Path]:
    """The files of one partition."""
    from penstock.spark.runtime import SparkRuntime

    runtime = SparkRuntime.of(spark)
    place = runtime._application.launch(runtime.settings()).place()
    folders = [folder for folder in [place.results, *place._folders_elsewhere()] if folder.exists()]
    (found,) = [path for folder in folders for path in listed(folder, f"{dataset}.{index}.*")]
    return listed(found)


def remove_partition(spark: Any, dataset: str, index: int) -> None:
    """Remove the files of one partition, behind everybody's back."""
    for file in partition_files(spark, dataset, index):
        file.unlink()


def last_job(spark: Any) -> str:
    """The job that wrote the newest result which is held."""
    jobs = {name.partition("-")[0] for name in SessionProbe(spark).files()}
    return max(jobs, key=lambda job: int(job[1:]))


def files_of_results(spark: Any) -> int:
    """The number of partitions of the newest result that are on disk: those that have rows."""
    return len([name for name in SessionProbe(spark).files() if name.startswith(f"{last_job(spark)}-")])


@pytest.mark.parametrize(("partitions", "mode"), [with_all(3, "pipelined"), with_all(16, "blocking"), (16, "auto")])
def test_lost_with_their_environment(spark: Any, numbers: str, partitions: int, mode: str) -> None:
    """Between two actions: the second one, by the same plan, has the right rows; the third reads what is there."""
    frame = counted(spark, numbers, partitions, mode).toDF()
    assert rows(frame) == EXPECTED
    assert frame.rdd.getNumPartitions() == partitions
    kill_environment(spark)
    began = time.monotonic()
    assert rows(frame) == EXPECTED
    assert time.monotonic() - began < DEADLINE
    made = last_job(spark)
    assert rows(frame) == EXPECTED
    assert last_job(spark) == made


@pytest.mark.thorough
def test_nothing_is_left_behind(spark: Any, numbers: str) -> None:
    """After the loss, the re-making and another loss: no job, slot, task or memory; the partitions once."""
    probe = SessionProbe(spark)
    frame = counted(spark, numbers, 16).toDF()
    kill_environment(spark)
    assert rows(frame) == EXPECTED
    before, of_first = probe.holdings(), files_of_results(spark)
    kill_environment(spark)
    assert rows(frame) == EXPECTED
    assert files_of_results(spark) == of_first
    probe.wait_as_before({**before, "files": probe.files()})


@pytest.mark.thorough
def test_lost_file(spark: Any, numbers: str) -> None:
    """One partition's files are gone: found by its reader, made again under the action; the old run is released."""
    frame = counted(spark, numbers, 16).toDF()
    assert rows(frame) == EXPECTED
    job, before = last_job(spark), files_of_results(spark)
    remove_partition(spark, f"{job}-result1", 9)
    assert rows(frame) == EXPECTED
    assert not [name for name in SessionProbe(spark).files() if name.startswith(f"{job}-")]
    assert files_of_results(spark) == before


def many_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """So many that they are stored in several blocks."""
    for _ in batches:
        pass
    for number in range(16):
        values = np.arange(number << 19, (number + 1) << 19, dtype=np.int64)
        yield pa.RecordBatch.from_arrays([pa.array(values)], ["v"])


@pytest.mark.thorough
def test_a_file_damaged_in_its_middle(spark: Any, numbers: str) -> None:
    """Spark has been given the rows before it: the action fails and says so; the next one reads a new run."""
    stream = penstock.readParquet(spark, numbers, numPartitions=1).mapInArrow(many_rows, "v long")
    frame = stream.toDF().where("v % 1000000 = 0")
    expected = rows(frame)
    job = last_job(spark)
    (file,) = [path for path in partition_files(spark, f"{job}-result0", 0) if path.name == "data.0"]
    data = bytearray(file.read_bytes())
    data[len(data) * 7 // 8] ^= 0xFF
    file.chmod(0o600)
    file.write_bytes(data)
    with pytest.raises(Exception, match="Spark has been given some of its rows"):
        frame.collect()
    assert rows(frame) == expected
    wait_until(lambda: last_job(spark) != job, "the new run is there")


@pytest.mark.thorough
def test_actions_that_read_twice(spark: Any, numbers: str) -> None:
    """A sort reads its input twice, a self-join has two readers: each of their tasks gets its partition."""
    frame = counted(spark, numbers, 16).toDF()
    assert rows(frame) == EXPECTED
    ordered, joined = frame.orderBy("k"), frame.alias("a").join(frame.alias("b"), "k")
    assert ordered.count() == joined.count() == KEYS
    kill_environment(spark)
    assert [tuple(row) for row in ordered.collect()] == EXPECTED
    kill_environment(spark)
    assert [row[0] for row in rows(joined)] == list(range(KEYS))
    kill_environment(spark)
    assert rows(frame.coalesce(1)) == EXPECTED
    assert len(frame.take(3)) == 3


@pytest.mark.thorough
def test_a_deal_is_not_mixed_with_an_earlier_one(spark: Any, numbers: str) -> None:
    """Rebalanced rows lie elsewhere on each run: who has read of the earlier run is told; the next one is right."""
    stream = penstock.readParquet(spark, numbers).rebalance(32, mode="blocking")
    frame = stream.toDF()
    expected = rows(frame)
    job = last_job(spark)
    # The last one, so that others have been read when its turn comes.
    remove_partition(spark, f"{job}-result1", 31)
    with pytest.raises(Exception, match=r"order in which they come.*run the action again"):
        frame.collect()
    assert rows(frame) == expected
    kill_environment(spark)
    assert rows(frame) == expected


def failing(folder: str) -> Stage:
    """A stage that fails once `fail` exists."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if Path(folder, "fail").exists():
            raise ValueError("not this time")
        yield from batches

    return stage


def test_a_rerun_that_fails(spark: Any, numbers: str, tmp_path: Path) -> None:
    """The action fails with the user's own error; once the cause is gone, the same DataFrame works again."""
    stream = penstock.readParquet(spark, numbers).mapInArrow(failing(str(tmp_path)), "k long, v long")
    frame = stream.keyBy("k", numPartitions=16, mode="blocking").agg(n=("*", "count")).toDF()
    assert rows(frame) == EXPECTED
    kill_environment(spark)
    Path(tmp_path, "fail").touch()
    with pytest.raises(Exception, match=r"(?s)could not be recomputed.*not this time"):
        frame.collect()
    Path(tmp_path, "fail").unlink()
    assert rows(frame) == EXPECTED


def gated(folder: str) -> Stage:
    """A stage that leaves a mark and, once `hold` exists, waits for `go`."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mark(f"{folder}/working")
        hold, go = Path(folder, "hold"), Path(folder, "go")
        wait_until(lambda: go.exists() or not hold.exists(), "its release")
        yield from batches

    return stage


@pytest.mark.thorough
def test_a_cancelled_action_does_not_take_the_job_with_it(spark: Any, numbers: str, tmp_path: Path) -> None:
    """Its tasks, which worked for the job, are killed; the job goes on with workers of its own."""
    probe = SessionProbe(spark)
    stream = penstock.readParquet(spark, numbers).mapInArrow(gated(str(tmp_path)), "k long, v long")
    frame = stream.keyBy("k", numPartitions=16, mode="blocking").agg(n=("*", "count")).toDF()
    assert rows(frame) == EXPECTED
    for pid in marks(tmp_path / "working"):
        (tmp_path / "working" / str(pid)).unlink()
    kill_environment(spark)
    Path(tmp_path, "hold").touch()
    errors: list[BaseException] = []

    def act() -> None:
        spark.sparkContext.setJobGroup("impatient", "cancelled by the test")
        try:
            frame.collect()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    action = threading.Thread(target=act)
    action.start()
    wait_until(lambda: marks(tmp_path / "working"), "readers work for the job")
    (job,) = probe.jobs()
    spark.sparkContext.cancelJobGroup("impatient")
    action.join(DEADLINE)
    assert errors
    Path(tmp_path, "go").touch()
    wait_until(lambda: probe.jobs() == [], "the job is over")
    assert last_job(spark) == job
    assert rows(frame) == EXPECTED
    assert last_job(spark) == job


def test_dataframe_with_a_slot_left(spark: Any) -> None:
    """Fewer partitions than slots: the job reads its DataFrame beside the waiting tasks."""
    frame = penstock.repartition(spark.range(0, 100, 1, 2), 3, "id")
    assert rows(frame) == [(number,) for number in range(100)]
    kill_environment(spark)
    assert rows(frame) == [(number,) for number in range(100)]


def test_dataframe_without_a_slot_says_so(spark: Any) -> None:
    """All slots wait: the action says what happened and what to do; done again, it reads what was made meanwhile."""
    frame = penstock.repartition(spark.range(0, 100, 1, 2), 16, "id", mode="blocking")
    assert rows(frame) == [(number,) for number in range(100)]
    kill_environment(spark)
    with pytest.raises(Exception, match=r"all 8 slots are held by tasks that wait for it\. Run the action again"):
        frame.collect()
    assert rows(frame) == [(number,) for number in range(100)]
    assert SessionProbe(spark).slots_in_use() == 0


@pytest.mark.thorough
def test_over_a_persisted_stream(spark: Any, numbers: str) -> None:
    """Its job may have to make what it reads first, so it is planned anew: a new action is, a planned one says so."""
    kept = penstock.readParquet(spark, numbers).rebalance(2).persist()
    frame = kept.keyBy("k", numPartitions=2, mode="blocking").agg(n=("*", "count")).toDF()
    assert rows(frame) == EXPECTED
    kill_environment(spark)
    with pytest.raises(Exception, match=r"make it again with toDF\(\)"):
        frame.collect()
    assert rows(kept.keyBy("k", numPartitions=2, mode="blocking").agg(n=("*", "count")).toDF()) == EXPECTED
    kept.unpersist()


# --- sessions of other kinds


def one_after_the_other(spark: Any, numbers: str, partitions: int) -> None:
    """All tasks lease their slots, at worst the only one; a job of several stages; a kill before each action."""
    frame = counted(spark, numbers, partitions).toDF()
    twice = penstock.readParquet(spark, numbers).keyBy("k", numPartitions=2, mode="blocking").agg(n=("*", "count"))
    thrice = twice.keyBy("n", numPartitions=3, mode="blocking").agg(keys=("*", "count")).toDF()
    total = [(FILES * ROWS // KEYS, KEYS)]
    assert rows(frame) == EXPECTED
    assert rows(thrice) == total
    kill_environment(spark)
    assert rows(frame) == EXPECTED
    assert rows(thrice) == total
    kill_environment(spark)
    assert rows(thrice) == total
    assert SessionProbe(spark).slots_in_use() == 0
    assert SessionProbe(spark).jobs() == []


@pytest.mark.thorough
def test_one_slot(sessions: Sessions, numbers: str) -> None:
    """FIFO, eight partitions and the only slot. Most tests above have half as many slots as partitions."""
    one_after_the_other(sessions.of(Kind("local[1]", 1)), numbers, 8)


@pytest.mark.thorough
def test_fair(sessions: Sessions, numbers: str) -> None:
    """FAIR, half as many slots as partitions: two actions of two pools at once after a kill, then one pool's."""
    spark = sessions.of(FAIR)
    frames = [counted(spark, numbers, partitions).toDF() for partitions in (2 * SLOTS, SLOTS + 4)]
    assert [rows(frame) for frame in frames] == [EXPECTED, EXPECTED]
    kill_environment(spark)
    found: list[Rows] = []

    def act(frame: Any, pool: str) -> None:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
        found.append(rows(frame))

    threads = [threading.Thread(target=act, args=(frame, f"pool{number}")) for number, frame in enumerate(frames)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert found == [EXPECTED, EXPECTED]
    one_after_the_other(spark, numbers, 2 * SLOTS)
