# SPDX-License-Identifier: Apache-2.0
"""The bytes of rows in flight of a checkpoint are never more than the bound that a query says, also when restored.

Real environments and task processes; sources as fast as they go in front of a slow operator, so all that can hold
rows does.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import fs

from effort import THOROUGH, some_of
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.in_flight import most_in_flight
from penstock.api.streaming.writer import query_graph
from penstock.graph.streaming import AT_CHECKPOINT, CONTINUOUS, StreamingOptions
from penstock.job.core.result import CheckpointCounts
from penstock.job.query_storage import QueryStorage
from penstock.job.shell.master import JobHandle
from penstock.settings import RestartSettings
from penstock.stream.folder_sink import FolderSink
from penstock.stream.rate import RateSource
from penstock.testing import DEADLINE, wait_until
from penstock_torture.process_launcher import Nursery
from process_cluster import STREAMING_PRELOADED, ProcessCluster, kill
from query_shapes import FEWEST_TASKS, PARTITIONS, SCHEMA, QueryShape, slow
from underway import children

pytestmark = pytest.mark.processes

SLOTS = FEWEST_TASKS + 1
CHECKPOINTS = 8 if THOROUGH else 4
RESTARTS = RestartSettings("exponential", attempts=1 << 30, delay=0.02, max_delay=0.2, user_errors=10)
SHAPES = {
    "two by key": QueryShape(0, "line", ("key", "key"), (0.0, 0.0), counts=False, timeout=0.0, rescales=False),
    "a union": QueryShape(1, "union", ("rebalance", "key"), (0.0, 0.0), counts=False, timeout=0.0, rescales=False),
    "two inputs": QueryShape(2, "both", ("key",), (0.0,), counts=False, timeout=0.0, rescales=False),
    "one stays aligned": QueryShape(
        3, "line", ("key", "broadcast"), (0.0, 0.0), counts=False, timeout=0.0, rescales=False
    ),
}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One for all tests of this file."""
    with Nursery(STREAMING_PRELOADED) as made:
        yield made


def checkpoints(handle: JobHandle) -> CheckpointCounts:
    """The counts of checkpoints so far."""
    progress = handle.progress()
    return CheckpointCounts() if progress is None else progress.checkpoints


@pytest.mark.parametrize(
    ("name", "way"),
    some_of(list(zip(SHAPES, (CONTINUOUS, AT_CHECKPOINT, CONTINUOUS, AT_CHECKPOINT), strict=True)), 4),
)
def test_a_checkpoint_holds_no_more_than_the_bound(nursery: Nursery, tmp_path: Path, name: str, way: str) -> None:
    """Under full back-pressure, and after two kills, of which the second comes before restored rows are read."""
    shape = SHAPES[name]
    widths = shape.widths(random.Random(shape.seed), FEWEST_TASKS)
    sources = []
    for _ in range(shape.sources):
        source = RateSource(0, PARTITIONS, None)
        step = SourceStep(source.name, source.schema, source, partitions=1, streaming=True)  # type: ignore[arg-type]
        sources.append(Stream((step,)))
    stream = shape.stream(sources, widths).keyBy("value", numPartitions=1).mapInArrow(slow(20e-6), SCHEMA)
    sink = FolderSink(fs.LocalFileSystem(), str(tmp_path / "output"), stream.schema, "numbers")
    location = str(tmp_path / "checkpoints")
    options = StreamingOptions("q", "numbers", location, interval=0.05, unaligned=True, persist_in_flight=way)
    with contextlib.closing(ProcessCluster(nursery, executors=1)) as cluster:
        graph = query_graph(stream.branches, sink, cluster.settings, SLOTS + 1, options)
        bound = most_in_flight(graph, cluster.settings.network, one_host=True)
        storage = QueryStorage(options)
        storage.claim({vertex.uid: vertex.parallelism for vertex in graph.vertices})
        handle = cluster.submit_graph(graph, SLOTS, replace(cluster.settings, restart=RESTARTS), storage)
        held = [0.0]
        for kills in range(3):
            seen = checkpoints(handle).completed
            deadline = time.monotonic() + DEADLINE
            while (found := checkpoints(handle)).completed < seen + CHECKPOINTS // (1 + kills):
                assert time.monotonic() < deadline, found
                if found.restarts == kills and found.reports:
                    held.append(sum(each.get("in_flight_bytes", 0.0) for each in found.reports[-1].tasks.values()))
                    most = bound + (found.restored_bytes if kills else 0)
                    assert held[-1] <= most, f"{found.reports[-1]} with {found.restored_bytes} bytes restored"
                with contextlib.suppress(TimeoutError):
                    handle.wait(0.01)
            if kills < 2:
                kill(min(children(*(executor.pid for executor in cluster.launcher.executors))))
                wait_until(lambda: checkpoints(handle).restarts > kills, "a restart")  # noqa: B023
        assert max(held) > 0
        handle.cancel("seen enough")
