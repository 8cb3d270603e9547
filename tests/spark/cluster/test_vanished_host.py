# SPDX-License-Identifier: Apache-2.0
"""A host that goes for good while a job runs whose tasks must run together: the job is planned anew for what is left.

Last of the folder: it takes an executor away that nobody replaces.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from endless_jobs import Action
from session_probe import wait_until

import penstock
from penstock.spark.runtime import SparkRuntime
from sessions import Sessions

pytestmark = pytest.mark.spark

ROWS = 20_000
WAIT = 120.0


@pytest.fixture
def doomed(cluster: Any, sessions: Sessions) -> Iterator[Any]:
    """The cluster, which nobody uses behind this test."""
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
        while kept is not None and not Path(folder, "go").exists() and time.monotonic() - began < WAIT:
            yield kept.slice(0, 0)
            pause.wait(0.05)

    return stage


def test_a_pipelined_job_that_lost_a_host_goes_on_with_the_slots_left(doomed: Any, tmp_path: Path) -> None:
    """Nobody asked for pipelined, so it is planned again for two slots, within a minute, and ends with all rows."""
    runtime = SparkRuntime.of(doomed)
    doomed.range(0, ROWS, 1, 4).write.parquet(str(tmp_path / "rows"))
    stream = penstock.readParquet(doomed, str(tmp_path / "rows")).mapInArrow(held(str(tmp_path)), "id long")
    counted = stream.keyBy("id").mapInArrow(lambda batches: batches, "id long")
    before = counted.plan(runtime.settings(), 4).graph
    assert any(edge.kind.runs_together for edge in before.edges), "it is planned pipelined, for all four slots"
    assert sum(vertex.parallelism for vertex in before.vertices) == 4
    action = Action(counted.toDF().count)
    wait_until("both producers", lambda: len(list(tmp_path.glob("begun-*"))) == 2, WAIT)
    scala = doomed.sparkContext._jsc.sc()
    gone = scala.getExecutorIds().apply(0)
    assert scala.killExecutors(doomed.sparkContext._jvm.PythonUtils.toSeq([gone]))
    wait_until("one executor less", lambda: runtime.total_slots() == 2, WAIT)
    (tmp_path / "go").touch()
    assert action.wait(WAIT) == ROWS
