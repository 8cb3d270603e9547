# SPDX-License-Identifier: Apache-2.0
"""The connection between driver and environments breaks while both live: all processes real, a proxy between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from cut_cluster import CutCluster
from effort import with_all
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.writer import query_graph
from penstock.graph.streaming import StreamingOptions
from penstock.job.query_storage import QueryStorage
from penstock.settings import RestartSettings
from penstock.stream.folder_sink import FolderSink
from penstock.stream.rate import RateSource
from penstock.testing import DEADLINE, wait_until
from penstock_torture.process_launcher import Nursery
from process_cluster import STREAMING_PRELOADED
from underway import listed

pytestmark = pytest.mark.processes

ROWS, RATE = 6_000, 4_000


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One for all tests of this file."""
    with Nursery(STREAMING_PRELOADED) as nursery:
        yield nursery


@pytest.fixture
def cut(nursery: Nursery) -> Iterator[CutCluster]:
    """A new one for each test."""
    cut = CutCluster(nursery)
    yield cut
    cut.close()


@pytest.mark.parametrize(
    ("mode", "phase"),
    [("pipelined", "writing"), ("hybrid", "writing"), with_all("blocking", "writing"), ("blocking", "reading")],
)
def test_a_connection_that_breaks_costs_no_row_and_no_restart(
    cut: CutCluster, tmp_path: Path, mode: str, phase: str
) -> None:
    """It is cut in mid-job, tasks go on to their ends meanwhile, and it is there again within the lease."""
    gates, handle = cut.reach(tmp_path, mode, phase)
    known = cut.cluster.attached()
    cut.proxy.cut()
    gates.open_all()
    cut.proxy.wait_refused(6)
    cut.proxy.mend()
    cut.check(handle.wait(DEADLINE))
    assert cut.cluster.attached() == known, "the environments live, with all that they hold"


def test_many_short_cuts_cost_nothing(cut: CutCluster, tmp_path: Path) -> None:
    """Each ends whatever is on its way, at another moment."""
    gates, handle = cut.reach(tmp_path, "hybrid", "writing")
    for place in ("p0", "p1", "c0", "c1"):
        cut.proxy.cut()
        gates.open(f"write-{place}" if place[0] == "p" else f"read-{place}")
        cut.proxy.wait_refused(1)
        cut.proxy.mend()
    gates.open_all()
    cut.check(handle.wait(DEADLINE))


def test_a_connection_that_says_nothing_any_more_is_made_anew(nursery: Nursery, tmp_path: Path) -> None:
    """As with a firewall that has forgotten it: nobody is told, and what is sent is lost; new connections work."""
    cut = CutCluster(nursery, lease="6s")
    try:
        gates, handle = cut.reach(tmp_path, "pipelined", "writing")
        cut.proxy.silence()
        gates.open_all()
        cut.check(handle.wait(DEADLINE))
    finally:
        cut.close()


def test_beyond_the_lease_the_environment_ends_and_the_job_runs_again(nursery: Nursery, tmp_path: Path) -> None:
    """Both sides give up, each by its own clock; new environments do the work once there is a way."""
    cut = CutCluster(nursery, lease="3s")
    try:
        gates, handle = cut.reach(tmp_path, "pipelined", "writing")
        known = cut.cluster.attached()
        cut.proxy.cut()
        wait_until(lambda: not cut.cluster.attached(), "the driver gives them up")
        cut.proxy.mend()
        gates.open_all()
        cut.check(handle.wait(DEADLINE), restarts=True)
        assert not cut.cluster.attached() & known
    finally:
        cut.close()


def test_a_query_goes_on_through_cuts_and_commits_each_row_once(cut: CutCluster, tmp_path: Path) -> None:
    """Checkpoints as fast as they go, and six cuts: no row is lost, none is there twice, nothing ran again."""
    source = RateSource(RATE, 2, ROWS)
    step = SourceStep(source.name, source.schema, source, partitions=2, streaming=True)  # type: ignore[arg-type]
    stream = Stream((step,)).keyBy("value", numPartitions=2).agg(n=("value", "count")).rebalance(1)
    options = StreamingOptions("q", "numbers", str(tmp_path / "checkpoints"), interval=0.02, buffer_timeout=0.01)
    sink = FolderSink(fs.LocalFileSystem(), str(tmp_path / "output"), stream.schema, "numbers")
    graph = query_graph(stream.branches, sink, cut.cluster.settings, 9, options)
    storage = QueryStorage(options)
    storage.claim({vertex.uid: vertex.parallelism for vertex in graph.vertices})
    settings = replace(cut.cluster.settings, restart=RestartSettings("none"))
    handle = cut.cluster.submit_graph(graph, 8, settings, storage)
    wait_until(lambda: (tmp_path / "checkpoints").exists() and any(listed(tmp_path / "output", "*")), "it commits")
    for _ in range(6):
        cut.proxy.cut()
        cut.proxy.wait_refused(2)
        cut.proxy.mend()
    handle.wait(DEADLINE)
    table = pq.read_table(tmp_path / "output")
    assert sorted(table["value"].to_pylist()) == list(range(ROWS))
    assert pc.max(table["n"]).as_py() == 1
