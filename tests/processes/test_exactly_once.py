# SPDX-License-Identifier: Apache-2.0
"""Exactly once through kills: real environments and task processes, checkpoints as fast as they go, no Spark.

Numbers go from a source through an exchange by key into a count for each number, through another exchange into a sink
of two phases. The rows that the sink committed must hold each number once, with the count 1: a lost row is a number
that is missing, a row that came twice is one that is there twice, or with the count 2. Each run has its seed, and
with it its victims and its moments.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.writer import query_graph
from penstock.checkpoint.savepoints import SavepointFolder
from penstock.checkpoint.storage import CheckpointStorage
from penstock.errors import JobCancelledError, PlanError
from penstock.graph.streaming import CONTINUOUS, StreamingOptions
from penstock.job.query_storage import QueryStorage
from penstock.job.shell.master import JobHandle
from penstock.settings import RestartSettings
from penstock.stream.folder_sink import FolderSink
from penstock.stream.rate import RateSource
from penstock.testing import DEADLINE, wait_until
from penstock_torture.process_launcher import Nursery
from process_cluster import STREAMING_PRELOADED, ProcessCluster, give_way, kill
from query_shapes import PARTITIONS, QueryShape, rows_given
from underway import children, listed

pytestmark = pytest.mark.processes

RUNS = int(os.environ.get("PENSTOCK_EXACTLY_ONCE_RUNS", "0"))
SEEDS = range(RUNS) if RUNS else (4, 9)
"""The few have each kind of victim as the first one, and soon: driver, environment, task, executor."""
GRID_RUNS = int(os.environ.get("PENSTOCK_GRID_RUNS", "0"))
GRID = range(GRID_RUNS) if GRID_RUNS else (2, 20, 25)
KEEPING = range(GRID_RUNS) if GRID_RUNS else (3, 4)
"""Seeds; the few are of small queries, with a timeout of each kind; one gets other numbers of tasks."""
ROWS = 10_000
GRID_ROWS = 4_000
RATE = 10_000
SLOTS = 8
RESTARTS = RestartSettings("exponential", attempts=1 << 30, delay=0.02, max_delay=0.2, user_errors=10)
VICTIMS = ("task", "task", "task", "environment", "executor", "driver")


@dataclass(frozen=True)
class Places:
    """The folders in which a run keeps its checkpoints and its output, and the store of its state."""

    checkpoints: Path
    output: Path
    store: str = "memory"
    savepoint: str = ""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One for all tests of this file."""
    with Nursery(STREAMING_PRELOADED) as made:
        yield made


@pytest.fixture
def clusters(nursery: Nursery) -> Iterator[list[ProcessCluster]]:
    """The drivers of a run, each with its executors; the last one is the one that counts."""
    made = [ProcessCluster(nursery)]
    with contextlib.ExitStack() as stack:
        yield made
        for cluster in made:
            stack.callback(cluster.close)


def pipeline(counters: int = 2, rows: int | None = ROWS) -> Stream:
    """Two sources, two counters or three, and the sink."""
    source = RateSource(RATE, 2, rows)
    step = SourceStep(source.name, source.schema, source, partitions=2, streaming=True)  # type: ignore[arg-type]
    counted = Stream((step,)).keyBy("value", numPartitions=counters).agg(n=("value", "count"))
    return counted.rebalance(1)


def streaming(
    places: Places, consistency: str = "exactly_once", *, unaligned: bool = False, aligned_timeout: float = 0.0
) -> StreamingOptions:
    """Options with checkpoints as fast as they go."""
    return StreamingOptions(
        "q",
        "numbers",
        str(places.checkpoints),
        interval=0.02,
        buffer_timeout=0.01,
        consistency=consistency,
        unaligned=unaligned,
        aligned_timeout=aligned_timeout,
        savepoint=places.savepoint,
    )


def start(
    cluster: ProcessCluster,
    places: Places,
    consistency: str = "exactly_once",
    counters: int = 2,
    claimed: Callable[[], None] = lambda: None,
) -> JobHandle:
    """Start the query, as a new driver does: from what is at its location, once that is `claimed`."""
    return submitted(cluster, pipeline(counters), places, streaming(places, consistency), claimed)


def submitted(
    cluster: ProcessCluster,
    stream: Stream,
    places: Places,
    options: StreamingOptions,
    claimed: Callable[[], None] = lambda: None,
) -> JobHandle:
    """Start a query of this stream."""
    sink = FolderSink(fs.LocalFileSystem(), str(places.output), stream.schema, "numbers")
    graph = query_graph(stream.branches, sink, cluster.settings, SLOTS + 1, options)
    storage = QueryStorage(options)
    storage.claim({vertex.uid: vertex.parallelism for vertex in graph.vertices})
    claimed()
    streaming_settings = replace(cluster.settings.streaming, state_store=places.store)
    settings = replace(cluster.settings, restart=RESTARTS, streaming=streaming_settings)
    return cluster.submit_graph(graph, SLOTS, settings, storage)


def committed(places: Places) -> tuple[int, int]:
    """The numbers that are missing in what a plain reader of the folder sees, and the rows that are too many."""
    table = pq.read_table(places.output)
    distinct = len(pc.unique(table["value"]))
    doubled = table.num_rows - distinct + pc.sum(pc.greater(table["n"], 1)).as_py()
    return ROWS - distinct, doubled


def strike(victim: str, cluster: ProcessCluster, chance: random.Random) -> None:
    """Kill one of these, whichever chance says."""
    executors = [executor for executor in cluster.launcher.executors if not executor.is_dead]
    if victim == "task":
        found = children(*(executor.pid for executor in executors))
        if found:
            kill(chance.choice(found))
    elif victim == "environment":
        attached = sorted(cluster.attached())
        if attached:
            kill(chance.choice(attached))
    elif executors:
        chance.choice(executors).kill()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_number_once_through_kills(
    clusters: list[ProcessCluster], nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    """Several random kills at random moments, of tasks, environments, executors and the driver: 0 lost, 0 doubled."""
    chance = random.Random(seed)
    places = Places(tmp_path / "checkpoints", tmp_path / "output")
    handle = start(clusters[-1], places)
    for _ in range(chance.randint(2, 4)):
        with contextlib.suppress(TimeoutError):
            handle.wait(chance.uniform(0.05, 0.7))
            break
        victim = chance.choice(VICTIMS)
        if victim == "driver":  # another one takes over while the first one still runs
            clusters.append(ProcessCluster(nursery))
            former, handle = handle, start(clusters[-1], places, counters=chance.choice((2, 3)))
            give_way(former, lambda: committed(places) == (0, 0))
        else:
            strike(victim, clusters[-1], chance)
    handle.wait(DEADLINE)
    assert committed(places) == (0, 0)


def start_shape(
    cluster: ProcessCluster, shape: QueryShape, places: Places, rows: int | None, chance: random.Random
) -> JobHandle:
    """Start a query of a random shape, with numbers of tasks that chance says."""
    widths = shape.widths(chance, SLOTS)
    sources = []
    for _ in range(shape.sources):
        source = RateSource(RATE, PARTITIONS, rows)
        step = SourceStep(source.name, source.schema, source, partitions=1, streaming=True)  # type: ignore[arg-type]
        sources.append(Stream((step,)))
    unaligned = shape.timeout is not None
    options = streaming(places, unaligned=unaligned, aligned_timeout=shape.timeout or 0.0)
    if unaligned and chance.random() < 0.5:
        options = replace(options, persist_in_flight=CONTINUOUS)
    return submitted(cluster, shape.stream(sources, widths), places, options)


@pytest.mark.parametrize("seed", GRID)
def test_every_number_once_in_a_query_of_any_shape(
    clusters: list[ProcessCluster], nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    """The same kills, and queries of random shapes: barriers overtake rows, and numbers of tasks change."""
    run_shape(QueryShape.of(seed), seed, clusters, nursery, Places(tmp_path / "checkpoints", tmp_path / "output"))


@pytest.mark.parametrize("seed", KEEPING)
def test_every_number_once_in_state_of_each_kind(
    clusters: list[ProcessCluster], nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    """The same, and a processor counts at the end, by a state of its own or when a timer fires; odd ones in files."""
    shape = QueryShape.keeping(seed)
    places = Places(tmp_path / "checkpoints", tmp_path / "output", "files" if seed % 2 else "memory")
    run_shape(shape, seed, clusters, nursery, places)


def through_savepoint(places: Places) -> Places:
    """Copy the newest checkpoint to a savepoint, remove its location, and go on from the savepoint at another one."""
    storage = CheckpointStorage(str(places.checkpoints))
    newest = storage.newest()
    assert newest.metadata is not None
    folder = SavepointFolder(f"{places.checkpoints}-saved")
    folder.prepare()
    folder.save(storage, newest.metadata)
    shutil.rmtree(places.checkpoints)
    return replace(places, checkpoints=places.checkpoints.with_name("again"), savepoint=folder.location)


def run_shape(shape: QueryShape, seed: int, clusters: list[ProcessCluster], nursery: Nursery, places: Places) -> None:
    """Run a query through kills, some with other numbers of tasks in between, and count its rows.

    Of odd seeds these begin with a savepoint.
    """
    chance = random.Random(seed)
    rows = GRID_ROWS
    handle = start_shape(clusters[-1], shape, places, None if shape.rescales else rows, chance)
    if shape.rescales:
        wait_until(lambda: any(listed(places.checkpoints, "chk-*/_metadata")), "a checkpoint is complete")
        strike("task", clusters[-1], chance)
        with contextlib.suppress(TimeoutError):
            handle.wait(chance.uniform(0.05, 0.3))
        handle.cancel("its driver is gone")
        with pytest.raises(JobCancelledError):
            handle.wait(DEADLINE)
        rows = max(rows, rows_given(str(places.checkpoints)))
        places = through_savepoint(places) if seed % 2 else places
        clusters.append(ProcessCluster(nursery))
        handle = start_shape(clusters[-1], shape, places, rows, chance)
    for _ in range(chance.randint(1, 3)):
        with contextlib.suppress(TimeoutError):
            handle.wait(chance.uniform(0.05, 0.5))
            break
        victim = chance.choice(VICTIMS)
        if victim == "driver":
            clusters.append(ProcessCluster(nursery))
            former = handle
            try:
                handle = start_shape(clusters[-1], shape, places, rows, chance)
            except PlanError as refusal:  # it has ended meanwhile, so there is nothing to take over
                if "has ended" not in str(refusal):
                    raise
                break
            give_way(former, lambda places=places, rows=rows: shape.faults(places.output, rows) == [])
        else:
            strike(victim, clusters[-1], chance)
    handle.wait(DEADLINE)
    assert shape.faults(places.output, rows) == [], shape


def test_rows_come_again_where_nothing_is_restored(
    clusters: list[ProcessCluster], nursery: Nursery, tmp_path: Path
) -> None:
    """The check sees what it is for: a driver that goes on without the checkpoints doubles what was committed."""
    places = Places(tmp_path / "checkpoints", tmp_path / "output")
    handle = start(clusters[-1], places)
    wait_until(lambda: any(listed(places.output, "part-*")), "rows were committed")
    handle.cancel("its driver is gone")
    with pytest.raises(JobCancelledError):
        handle.wait(DEADLINE)
    clusters.append(ProcessCluster(nursery))
    start(clusters[-1], replace(places, checkpoints=tmp_path / "elsewhere")).wait(DEADLINE)
    lost, doubled = committed(places)
    assert lost == 0
    assert doubled > 0


def lead(place: Path, to: Path) -> None:
    """Let a place be a link to a folder, at once: a checkpoint under way never finds neither and makes one."""
    link = place.with_name("link")
    link.symlink_to(to)
    link.rename(place)


def test_a_location_that_is_away_for_a_while_costs_nothing(clusters: list[ProcessCluster], tmp_path: Path) -> None:
    """It goes, a task is killed, so nobody can read what to begin with; it comes back: 0 lost, 0 doubled."""
    places = Places(tmp_path / "checkpoints", tmp_path / "output")
    (tmp_path / "here").mkdir()
    lead(places.checkpoints, tmp_path / "here")
    handle = start(clusters[-1], places)
    wait_until(lambda: any(listed(places.output, "part-*")), "rows were committed")
    lead(places.checkpoints, tmp_path / "nowhere")
    job = handle.job
    strike("task", clusters[-1], random.Random(1))
    wait_until(lambda: len(clusters[-1].trace(job, "restart")) > 1, "it was tried again")
    lead(places.checkpoints, tmp_path / "here")
    handle.wait(DEADLINE)
    assert committed(places) == (0, 0)


def test_a_damaged_state_gives_way_to_the_one_before(
    clusters: list[ProcessCluster], nursery: Nursery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bit of the newest checkpoint is wrong, as only the task that reads it finds: a warning, and nothing lost."""
    places = Places(tmp_path / "checkpoints", tmp_path / "output")
    handle = start(clusters[-1], places)
    wait_until(lambda: len(listed(places.checkpoints, "chk-*/_metadata")) > 1, "two checkpoints are kept")
    handle.cancel("its driver is gone")
    with pytest.raises(JobCancelledError):
        handle.wait(DEADLINE)
    newest = max(listed(places.checkpoints, "chk-*/_metadata")).parent
    part = max((path for path in listed(newest) if path.name != "_metadata"), key=lambda path: path.stat().st_size)

    def harm() -> None:
        data = part.read_bytes()
        part.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    clusters.append(ProcessCluster(nursery))
    start(clusters[-1], places, claimed=harm).wait(DEADLINE)
    assert committed(places)[0] == 0
    assert f"{newest.name}/{part.name}" in caplog.text
    assert "can't be restored from" in caplog.text


def held(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that stands still while there is a file `hold` in the folder, and says who does."""

    def standing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if (folder / "hold").exists():
                (folder / "held").write_text(str(os.getpid()))
                wait_until(lambda: not (folder / "hold").exists(), "the test goes on")
            yield batch

    return standing


def files_of_checkpoints(places: Places) -> list[list[str]]:
    """Of each checkpoint that is there the kinds of its files: `host`, `_metadata`, or a task's name."""
    found = []
    for folder in listed(places.checkpoints, "chk-*"):
        with contextlib.suppress(FileNotFoundError):
            found.append(sorted(path.name.partition("-")[0] for path in listed(folder)))
    return found


def test_tasks_of_a_host_share_a_file_and_one_that_dies_spoils_no_checkpoint(
    nursery: Nursery, tmp_path: Path
) -> None:
    """A checkpoint of one host is one file and its metadata; a task is killed that has handed its part over."""
    places = Places(tmp_path / "checkpoints", tmp_path / "output")
    stream = pipeline(3, None)
    with contextlib.closing(ProcessCluster(nursery, executors=1)) as cluster:
        stream = stream.mapInArrow(held(tmp_path), stream.schema)
        handle = submitted(cluster, stream, places, streaming(places, unaligned=True))
        wait_until(lambda: ["_metadata", "host"] in files_of_checkpoints(places), "a checkpoint is one file")
        (tmp_path / "hold").touch()
        wait_until((tmp_path / "held").exists, "a task stands still")
        wait_until(lambda: ["host"] in files_of_checkpoints(places), "the others have handed over")
        before = max(listed(places.checkpoints, "chk-*/_metadata"))
        (executor,) = cluster.launcher.executors
        kill(next(pid for pid in children(executor.pid) if str(pid) != (tmp_path / "held").read_text()))
        (tmp_path / "hold").unlink()
        wait_until(lambda: max(listed(places.checkpoints, "chk-*/_metadata"), default=before) > before, "it goes on")
        wait_until(lambda: any(listed(places.output, "part-*")), "rows were committed")
        handle.cancel("that was all")
        with pytest.raises(JobCancelledError):
            handle.wait(DEADLINE)
    table = pq.read_table(places.output)
    assert table.num_rows == len(pc.unique(table["value"])) == pc.sum(table["n"]).as_py()


def test_at_least_once_loses_nothing(clusters: list[ProcessCluster], tmp_path: Path) -> None:
    """Barriers that stop no channel: rows may count twice after a kill, and none is missing."""
    places = Places(tmp_path / "checkpoints", tmp_path / "output")
    handle = start(clusters[-1], places, "at_least_once")
    wait_until(lambda: any(listed(places.output, "part-*")), "rows were committed")
    strike("task", clusters[-1], random.Random(1))
    handle.wait(DEADLINE)
    assert committed(places)[0] == 0
