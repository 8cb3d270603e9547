# SPDX-License-Identifier: Apache-2.0
"""A host that goes while a job runs whose tasks must run together, and nobody replaces it in time.

The job is planned anew for what is left. If its exchange was asked to be pipelined, and there is no such plan, it
waits for the host. Last of the folder: the last test takes an executor away for good.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from endless_jobs import Action
from penstock.errors import SlotsLostError
from penstock.spark import slots
from penstock.spark.interrupts import CAUSE
from penstock.spark.runtime import SparkRuntime
from penstock.testing import DEADLINE, wait_until
from sessions import Sessions
from underway import listed

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

ROWS = 20_000
TIMEOUT = "spark.penstock.job.slotsTimeout"


@pytest.fixture
def doomed(cluster: Any, sessions: Sessions) -> Iterator[Any]:
    """The cluster, which nobody uses after this test."""
    yield cluster
    sessions.stop()


def held(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A producer that has given its rows and goes on until it is told to end."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began, pause, kept = time.monotonic(), threading.Event(), None
        for batch in batches:
            kept = batch
            yield batch
        Path(folder, f"begun-{time.monotonic_ns()}").touch()
        while kept is not None and not Path(folder, "go").exists() and time.monotonic() - began < DEADLINE:
            yield kept.slice(0, 0)
            pause.wait(0.05)

    return stage


class Host:
    """The host that goes while a job runs, and the job."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.runtime = SparkRuntime.of(spark)
        self.spark = spark
        self._folder = folder
        self._scala = spark.sparkContext._jsc.sc()
        spark.range(0, ROWS, 1, 4).write.parquet(str(folder / "rows"))

    def stream(self, **asked: Any) -> penstock.Stream:
        """Two producers that are held, before an exchange."""
        rows = penstock.readParquet(self.spark, str(self._folder / "rows"), numPartitions=2)
        held_rows = rows.mapInArrow(held(str(self._folder)), "id long")
        return held_rows.keyBy("id", **asked).mapInArrow(lambda batches: batches, "id long")

    def lose(self) -> None:
        """Once both producers have given their rows; then they may end."""
        wait_until(lambda: len(listed(self._folder, "begun-*")) == 2, "both producers")
        self._want(1)  # or the master, which knows of no number, starts another at once
        gone = self._scala.getExecutorIds().apply(0)
        wait_until(lambda: self._is_without(gone), "one executor less")
        (self._folder / "go").touch()

    def _is_without(self, executor: str) -> bool:
        """Ask for it until its process is gone: Spark may refuse, and counts none that it wants to be gone."""
        if slots.slots_now(self.spark.sparkContext) == 4:
            self._scala.killExecutors(self.spark.sparkContext._jvm.PythonUtils.toSeq([executor]))
        return not self._scala.getExecutorIds().contains(executor)

    def come_back(self) -> None:
        """There are two again."""
        self._want(2)
        wait_until(lambda: self.runtime.total_slots() == 4, "one executor more")

    def _want(self, executors: int) -> None:
        nowhere = getattr(self.spark.sparkContext._jvm.scala.collection.immutable, "Map$")
        self._scala.requestTotalExecutors(executors, 0, getattr(nowhere, "MODULE$").empty())

    def is_waited_for(self) -> bool:
        """Tell whether a job's progress says so."""
        application = self.runtime._application
        found = [application._progress(running.job) for running in application.running.all()]
        return any(progress is not None and "waits for lost slots" in progress.title for progress in found)


@pytest.fixture
def host(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host whose executor is missed at once; it is there again after the test."""
    monkeypatch.setattr(slots, "REPLACED_SECONDS", 0.5)
    host = Host(cluster, tmp_path)
    yield host
    host.come_back()


@pytest.mark.parametrize("lazy", [True, False])
def test_a_job_that_was_asked_to_be_pipelined_waits_for_its_host(host: Host, *, lazy: bool) -> None:
    """It is not refused at once, and is planned for what came back: it could do with one reader, and has two."""
    stream = host.stream(mode="pipelined")
    action = Action(stream.toDF().count if lazy else stream.run)
    host.lose()
    wait_until(host.is_waited_for, "the job waits")
    host.come_back()
    outcome = action.wait(DEADLINE)
    if lazy:
        assert outcome == ROWS
    else:
        assert outcome.metrics[1]["rows_in"] == ROWS
        assert [text for _, _, text in outcome.trace_of("slots_granted")] == ["4 of 4"]


def test_a_host_that_stays_away_is_named_with_how_long_it_was_waited_for(host: Host) -> None:
    """In the error, which comes after `slotsTimeout`."""
    host.spark.conf.set(TIMEOUT, "2s")
    try:
        action = Action(host.stream(mode="pipelined").run)
        host.lose()
        error = action.wait(DEADLINE)
    finally:
        host.spark.conf.unset(TIMEOUT)
    assert isinstance(error, SlotsLostError)
    for part in ("of 4 the application has 2 left", "waited 2 s", "it needs 3, and 2 are there"):
        assert part in str(error)


def test_a_ctrl_c_ends_the_wait_at_once(host: Host) -> None:
    """Also where the action waits in the JVM; `tests/job/test_shrinking.py` has the cancel of one that waits."""
    action = Action(host.stream(mode="pipelined").toDF().count)
    host.lose()
    wait_until(host.is_waited_for, "the job waits")
    host.runtime._application.cancel_jobs(CAUSE)
    wait_until(lambda: not host.is_waited_for(), "nothing waits any more")
    error = str(action.wait(DEADLINE))  # Spark starts a task to tell it, which takes its time on a busy machine
    assert CAUSE in error, error


def test_a_pipelined_job_that_lost_a_host_goes_on_with_the_slots_left(doomed: Any, tmp_path: Path) -> None:
    """Nobody asked for pipelined, so it is planned again for two slots, within a minute, and ends with all rows."""
    host = Host(doomed, tmp_path)
    counted = host.stream()
    before = counted.plan(host.runtime.settings(), 4).graph
    assert any(edge.kind.runs_together for edge in before.edges), "it is planned pipelined, for all four slots"
    assert sum(vertex.parallelism for vertex in before.vertices) == 4
    action = Action(counted.toDF().count)
    host.lose()
    assert action.wait(DEADLINE) == ROWS
