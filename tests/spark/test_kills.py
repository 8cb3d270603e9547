# SPDX-License-Identifier: Apache-2.0
"""Processes killed in the middle of a job: the action ends soon and says why; the session goes on.

Also: input that was cut off is never taken for complete. The kill of a driver runs in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import penstock
from effort import with_all
from endless_jobs import Action, all_slots_work, endless, lives, running, watching
from held_stages import nothing_until
from penstock.errors import JobCancelledError
from penstock.testing import DEADLINE, wait_until
from session_probe import SessionProbe, mark, marks
from underway import listed, of_this_run

pytestmark = pytest.mark.spark

CUT_ROWS = 600_000
"""Several of Spark's batches of 65,536 rows for each of two partitions."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of the stages' marks; at the end children that they forked are told to go."""
    yield tmp_path
    (tmp_path / "release").touch()
    children = marks(tmp_path / "children")
    wait_until(lambda: not any(map(lives, children)), "the forked children are gone")


@pytest.fixture(autouse=True)
def no_restarts(spark: Any) -> Iterator[None]:
    """A killed process stays dead here; `test_restarts` has the other half."""
    spark.conf.set("spark.penstock.restart.strategy", "none")
    yield
    spark.conf.unset("spark.penstock.restart.strategy")


@pytest.mark.parametrize(
    ("victim", "how", "forks"),
    [
        ("producers", "run", "fork"),
        with_all("producers", "action", ""),
        with_all("consumers", "run", "multiprocessing"),
        with_all("consumers", "action", ""),
    ],
)
def test_killed_worker(spark: Any, folder: Path, victim: str, forks: str, how: str) -> None:
    """SIGKILL of one task's worker: the job fails and names it; nobody sees a clean end; the slots come back."""
    probe = SessionProbe(spark)
    before = probe.holdings()
    source = penstock.fromDataFrame(spark.range(0, 1000, 1, 2))
    producer = endless(str(folder), forks if victim == "producers" else "")
    consumer = watching(str(folder), forks if victim == "consumers" else "")
    stream = source.mapInArrow(producer, "id long").keyBy("id", numPartitions=2).mapInArrow(consumer, "id long")
    action = Action(stream.run if how == "run" else stream.toDF().count)
    wait_until(lambda: running(folder), "both ends run")
    began = time.monotonic()
    os.kill(marks(folder / victim)[0], signal.SIGKILL)
    error = action.wait()
    assert isinstance(error, Exception)
    assert action.ended - began < DEADLINE
    assert "was lost: its process (pid " in str(error)
    assert re.search(r"was killed( in mapInArrow\(| while it (read|wrote) its )", str(error))  # wherever it was
    assert "org.apache.spark" not in str(error)
    assert not (folder / "ended").exists()
    assert probe.slots_in_use() == 0
    probe.wait_as_before(before)
    all_slots_work(spark)
    print(f"killed one of {victim} ({forks or 'no'} child, {how}): {action.ended - began:.2f} s")


def test_killed_environment(spark: Any, folder: Path) -> None:
    """SIGKILL of the environment process: the job fails and says so; the next job gets a new environment.

    A result that was finished before is made again under the DataFrame that was planned over it.
    """
    probe = SessionProbe(spark)
    finished = penstock.repartition(spark.range(100), 2, "id")
    assert finished.count() == 100
    lazy = penstock.repartition(spark.range(100), 2, "id")
    source = penstock.fromDataFrame(spark.range(0, 1000, 1, 2)).mapInArrow(endless(str(folder)), "id long")
    frame = source.keyBy("id", numPartitions=2).mapInArrow(watching(str(folder)), "id long").toDF()
    action = Action(frame.count)
    wait_until(lambda: running(folder), "both ends run")
    victim = probe.environment_pid()
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    error = action.wait()
    assert isinstance(error, Exception)
    assert action.ended - began < DEADLINE
    assert "environment" in str(error)
    assert "is lost (its connection ended, and " in str(error)
    assert "it was killed, or its host is gone" in str(error)
    assert not (folder / "ended").exists()
    assert lazy.count() == 100
    assert probe.environment_pid() != victim
    all_slots_work(spark)
    assert finished.count() == 100
    print(f"killed environment: {action.ended - began:.2f} s")


@pytest.mark.thorough
def test_killed_environment_between_jobs(spark: Any) -> None:
    """Nobody is there when it dies: the next job starts a new one and sweeps what the old one left."""
    probe = SessionProbe(spark)
    kept = penstock.repartition(spark.range(100), 2, "id")
    assert kept.count() == 100
    assert probe.files()
    os.kill(probe.environment_pid(), signal.SIGKILL)
    all_slots_work(spark)
    environments = listed(Path(tempfile.gettempdir(), f"penstock-{os.getuid()}"), "*/s")
    assert len(environments) == 1


@pytest.mark.parametrize("how", [with_all("its own job"), "everything"])
def test_cut_off_dataframe_is_never_complete(spark: Any, folder: Path, how: str) -> None:
    """The Spark job that feeds a DataFrame is cancelled in mid-data; its task sees a clean end, the job does not."""
    go = folder / "go"

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number > 2:
                yield from nothing_until(go, batch, DEADLINE)
            yield batch

    # Ordinary PySpark stage before ours: what it gives reaches our task through the JVM, so a cancel cuts it off.
    source = spark.range(0, CUT_ROWS, 1, 2).mapInArrow(slowly, "id long")
    stream = penstock.fromDataFrame(source).keyBy("id", numPartitions=2)
    frame = stream.mapInArrow(watching(str(folder)), "id long").toDF()
    action = Action(frame.count)
    probe = SessionProbe(spark)
    wait_until(lambda: len(marks(folder / "consumers")) >= 1, "rows have reached the consumers")
    (job,) = probe.jobs()
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    jobs = sorted(tracker.getJobIdsForTag(f"penstock-{job}"))
    assert len(jobs) == 2
    began = time.monotonic()
    if how == "everything":
        spark.sparkContext.cancelAllJobs()
    else:
        spark.sparkContext._jsc.sc().cancelJob(jobs[-1], "the test cancels only the DataFrame's job")
    error = action.wait()
    assert isinstance(error, Exception)
    assert action.ended - began < DEADLINE
    assert "cancel" in str(error)
    assert not (folder / "ended").exists(), "a consumer took a truncated input for the whole"
    go.touch()
    assert frame.count() == CUT_ROWS
    print(f"cut off {how}: {action.ended - began:.2f} s")


@pytest.mark.thorough
def test_cut_off_dataframe_without_exchange(spark: Any, folder: Path) -> None:
    """The same where the DataFrame's own task writes the result: nothing of it is committed."""
    go = folder / "go"

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 10)
            mark(f"{folder}/producers")
            yield from nothing_until(go, batch, DEADLINE)
            yield batch.slice(10)

    stream = penstock.fromDataFrame(spark.range(0, 2000, 1, 2).mapInArrow(slowly, "id long"))
    frame = stream.toDF()
    probe = SessionProbe(spark)
    before = probe.holdings()
    action = Action(frame.count)
    wait_until(lambda: len(marks(folder / "producers")) >= 2, "the source runs")
    spark.sparkContext.cancelAllJobs()
    assert isinstance(action.wait(), Exception)
    probe.wait_as_before(before)
    action = Action(stream.run)
    wait_until(lambda: probe.statistics()["tasks"] == 2, "the second run is there")
    spark.sparkContext.cancelAllJobs()
    assert isinstance(action.wait(), JobCancelledError)
    probe.wait_as_before(before)
    go.touch()
    assert frame.count() == 2000


DRIVER = """
import sys, threading
from pathlib import Path
import pyarrow as pa
import session_probe, endless_jobs
from pyspark import cloudpickle
for module in (session_probe, endless_jobs):
    cloudpickle.register_pickle_by_value(module)
import penstock
from pyspark.sql import SparkSession
from penstock.spark.session import build_session
from penstock.testing import wait_until

def main(folder):
    spark = SparkSession.builder.master("local[6]").config("spark.ui.enabled", "false").config(
        "spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").config(
        "spark.ui.showConsoleProgress", "false").config("spark.penstock.restart.strategy", "none").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    assert penstock.repartition(spark.range(100), 2, "id").count() == 100
    stream = penstock.fromDataFrame(spark.range(0, 1000, 1, 2)).mapInArrow(endless_jobs.endless(folder), "id long")
    stream = stream.keyBy("id", numPartitions=2).mapInArrow(endless_jobs.watching(folder), "id long")
    action = endless_jobs.Action(stream.run)
    wait_until(lambda: endless_jobs.running(Path(folder)), "both ends run")
    print("ready", session_probe.SessionProbe(spark).environment_pid(), flush=True)
    action.wait()

main(sys.argv[1])
"""


@contextlib.contextmanager
def driver(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A driver of its own with an endless job, in a temporary folder of its own; ready when this gives it."""
    own = Path(tempfile.mkdtemp(prefix="d-"))
    paths = filter(None, sys.path)
    env = {**os.environ, "TMPDIR": str(own), "PYTHONPATH": os.pathsep.join(paths), "PYSPARK_PYTHON": sys.executable}
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )
    try:
        yield process, own
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def marked_processes(own: Path) -> list[psutil.Process]:
    """Every process that runs with this temporary folder."""
    return of_this_run(lambda process: process.environ().get("TMPDIR") == str(own))


def test_killed_driver(folder: Path) -> None:
    """SIGKILL of the driver: environment, workers, sockets, folders, the secret's file: all gone by themselves."""
    with driver(folder) as (process, own):
        assert process.stdout is not None
        word = process.stdout.readline().split()
        assert word[:1] == ["ready"]
        environment = psutil.Process(int(word[1]))
        assert listed(own, "penstock-*"), "the test looks at the wrong folder"
        began = time.monotonic()
        process.kill()
        process.wait()
        wait_until(lambda: not environment.is_running(), "the environment is gone")
        wait_until(lambda: not marked_processes(own), "all processes are gone")
        seconds = time.monotonic() - began
        assert seconds < DEADLINE
        left = [str(path.relative_to(own)) for path in listed(own, f"penstock-{os.getuid()}/**")]  # logs are kept
        assert left in ([], [f"penstock-{os.getuid()}"]), left
        assert not (folder / "ended").exists()
    print(f"killed driver: everything gone after {seconds:.2f} s")
