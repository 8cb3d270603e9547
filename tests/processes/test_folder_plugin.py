# SPDX-License-Identifier: Apache-2.0
"""The example of a plug-in under the whole engine: jobs whose rows no environment process ever sees.

JobMaster, executors, workers and environment processes are real; Spark is not there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from cut_cluster import CutCluster
from folder_harness import FolderShuffleService, folder_of
from penstock.job.core.result import FinishedJob
from penstock.job.shell.master import JobHandle
from penstock.shuffle import PartitionKind
from penstock.testing import DEADLINE, wait_until
from penstock.testing.sources import fromBatches
from penstock_torture import gates as gated
from penstock_torture.gates import Gates, HeldConsumer
from penstock_torture.process_launcher import Nursery
from pools import has_mapped_a_pool, with_pools
from process_cluster import PRELOADED, ProcessCluster, kill
from underway import listed

pytestmark = pytest.mark.processes

FOLDER = FolderShuffleService.name


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that all share."""
    folder = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FOLDER_SHUFFLE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def nursery(shared: Path) -> Iterator[Nursery]:
    """One for all tests of this file: it holds nothing of theirs."""
    with Nursery([*PRELOADED, "folder_shuffle"]) as nursery:
        yield nursery


@pytest.fixture
def whole(nursery: Nursery, shared: Path) -> Iterator[ProcessCluster]:
    """Two executors whose sessions name the folder as their service."""
    cluster = ProcessCluster(nursery, conf={"spark.penstock.shuffle.service": FOLDER})
    yield cluster
    cluster.close()
    assert not listed(shared), "the folder goes with the application"


@pytest.fixture
def mixed(nursery: Nursery, shared: Path) -> Iterator[ProcessCluster]:
    """Two executors whose sessions name no service."""
    cluster = ProcessCluster(nursery)
    yield cluster
    cluster.close()
    assert not listed(shared), "the folder goes with the application"


def kept_by(finished: FinishedJob) -> set[tuple[str, PartitionKind]]:
    """The services that keep a result, and the kinds of its partitions."""
    return {(item.service, item.kind) for item in finished.partitions}


def partitions_in(shared: Path) -> list[str]:
    """The partitions that lie in the folder."""
    return sorted(place.name for place in listed(shared, "folder-*/*/*/*/"))


def test_a_job_in_default_mode_starts_no_data_plane(whole: ProcessCluster, shared: Path) -> None:
    """Exchange and result are files; no task and no environment maps the pool, and rows survive the environments."""
    rows = pa.table({"k": [n % 7 for n in range(1000)], "v": list(range(1000))})
    stream = fromBatches(rows.to_batches(max_chunksize=100), partitions=3)
    schema = pa.schema([*rows.schema, ("mapped", pa.bool_())])
    keyed = stream.mapInArrow(with_pools, schema).keyBy("k", numPartitions=2)
    finished = whole.submit(keyed.agg(total=("v", "sum"), mapped=("mapped", "max"))).wait(DEADLINE)
    assert kept_by(finished) == {(FOLDER, PartitionKind.BLOCKING_SORT_MERGE)}
    wait_until(lambda: len(partitions_in(shared)) == 2, "the exchange is released, and the result is there")
    schema = pa.schema([("k", pa.int64()), ("total", pa.int64()), ("mapped", pa.bool_())])
    expected = {"k": list(range(7)), "total": [sum(range(k, 1000, 7)) for k in range(7)], "mapped": [False] * 7}
    assert whole.read(finished, schema).sort_by("k").to_pydict() == expected
    environments = whole.attached()
    assert len(environments) == 2
    assert not [pid for pid in environments if has_mapped_a_pool(pid)]
    assert not [pid for pid in environments if listening(pid)]
    for pid in environments:
        kill(pid)
    assert whole.read(finished, schema).sort_by("k").to_pydict() == expected
    whole.master.release_result(finished.result.job)
    wait_until(lambda: not listed(shared, "folder-*/*/*/"), "nothing is left of the job, no mark either")


def test_a_local_exchange_opens_the_data_port(whole: ProcessCluster) -> None:
    """In a session that needs none the first job that does has its environments listen, and its rows cross hosts."""
    rows = pa.table({"k": [n % 7 for n in range(1000)], "v": list(range(1000))})
    keyed = fromBatches(rows.to_batches(max_chunksize=100), partitions=3).keyBy("k", numPartitions=2, service="local")
    finished = whole.submit(keyed.agg(total=("v", "sum"))).wait(DEADLINE)
    found = whole.read(finished, pa.schema([("k", pa.int64()), ("total", pa.int64())]))
    assert found.sort_by("k").to_pydict() == {
        "k": list(range(7)),
        "total": [sum(range(k, 1000, 7)) for k in range(7)],
    }
    assert all(listening(pid) for pid in whole.attached())


def test_an_environment_that_serves_nobody_is_missed(whole: ProcessCluster, tmp_path: Path) -> None:
    """It is killed with a job at work: the job's tasks there run again, beside the next one."""
    gates = Gates(str(tmp_path))
    held = fromBatches(gated.rows(), 2).partitionCustom(gated.to_target, 2)
    handle = whole.submit(
        held.mapInArrow(HeldConsumer(gates), gated.rows().schema)
        .keyBy("target", numPartitions=1)
        .agg(n=("id", "count"))
    )
    ends_half(whole, gates, handle)
    kill(whole.environment_pid(whole.executor(gates.group("c1"))))
    counted = COUNTS.set(1, pa.field("n", pa.int64(), nullable=False))
    _, again = finish(whole, gates, handle, counted)
    assert "c1" in again
    assert not again & {"p0", "p1"}


@pytest.mark.parametrize("is_long", [False, True], ids=["soon mended", "for more than five seconds"])
def test_a_cut_costs_an_environment_that_serves_nobody_its_tasks_if_it_lasts(
    nursery: Nursery, shared: Path, tmp_path: Path, is_long: bool
) -> None:
    """Nobody can look whether its process is there, so it has five seconds of its lease to come back."""
    cut = CutCluster(nursery, service=FOLDER)
    try:
        gates, handle = cut.reach(tmp_path, "blocking", "writing")
        known = cut.cluster.attached()
        assert not [pid for pid in known if listening(pid)]
        cut.proxy.cut()
        if is_long:
            wait_until(lambda: not cut.cluster.attached(), "the driver gives them up")
        else:
            cut.proxy.wait_refused(2)
        cut.proxy.mend()
        gates.open_all()
        cut.check(handle.wait(DEADLINE), restarts=is_long)
        assert bool(cut.cluster.attached() & known) is not is_long
    finally:
        cut.close()


def test_the_pool_is_seen_where_it_is_mapped(mixed: ProcessCluster) -> None:
    """The same stage over the local service: its tasks map the pool."""
    rows = pa.table({"k": [1, 2], "v": [1, 2]})
    stream = fromBatches(rows, 2).mapInArrow(with_pools, pa.schema([*rows.schema, ("mapped", pa.bool_())]))
    finished = mixed.submit(stream).wait(DEADLINE)
    assert mixed.read(finished, pa.schema([*rows.schema, ("mapped", pa.bool_())]))["mapped"].to_pylist() == [True] * 2


def listening(pid: int) -> list[int]:
    """The TCP ports at which a process listens."""
    found = psutil.Process(pid).net_connections(kind="tcp")
    return [each.laddr.port for each in found if each.status == psutil.CONN_LISTEN]


def held_job(cluster: ProcessCluster, gates: Gates) -> JobHandle:
    """Producers p0 and p1, an exchange by files, consumers c0 and c1, a local one, and a stage that sums up."""
    held = fromBatches(gated.rows(), 2).partitionCustom(gated.to_target, 2, service=FOLDER)
    consumed = held.mapInArrow(HeldConsumer(gates), gated.rows().schema)
    return cluster.submit(consumed.keyBy("target", numPartitions=1, mode="hybrid").agg(n=("id", "count")))


def ends_half(cluster: ProcessCluster, gates: Gates, handle: JobHandle) -> None:
    """Lead the job to where c0 has ended well, and c1 is held at its first rows."""
    wait_until(lambda: gates.pids("c0") and gates.pids("c1"), "both consumers have seen rows")
    gates.open(f"{gated.READ}-c0")
    wait_until(lambda: any("/v1.0#" in entry for entry in cluster.trace(handle.job, "task_finished")), "c0 has ended")


COUNTS = pa.schema([("target", pa.int64()), ("n", pa.int64())])


def finish(
    cluster: ProcessCluster, gates: Gates, handle: JobHandle, schema: pa.Schema = COUNTS
) -> tuple[FinishedJob, set[str]]:
    """Let the job end with the right rows; the subtasks that ran again."""
    gates.open_all()
    finished = handle.wait(DEADLINE)
    found = cluster.read(finished, schema)
    half = gated.rows().num_rows // 2
    assert found.sort_by("target").to_pydict() == {"target": [0, 1], "n": [half, half]}
    again = [ids.partition(".") for _, name, ids in finished.result.trace if name == "task_restarted"]
    return finished, {"pcs"[int(vertex[1:])] + index for vertex, _, index in again}


def test_one_job_over_two_services(mixed: ProcessCluster, tmp_path: Path, shared: Path) -> None:
    """Each edge has its service's kind, the result is the session's; files of the edge go when they were read."""
    gates = Gates(str(tmp_path))
    gates.open_all()
    finished, again = finish(mixed, gates, held_job(mixed, gates))
    assert not again
    assert kept_by(finished) == {("local", PartitionKind.HYBRID_FULL)}
    wait_until(lambda: not partitions_in(shared), "the partitions of the edge are released")


def test_a_lost_environment_takes_what_the_local_service_kept(mixed: ProcessCluster, tmp_path: Path) -> None:
    """Consumers run again for their rows in memory, producers do not: their files are there.

    c1 is held until the loss is known. Files of an exchange go when all who read them have ended, so if it ended
    before, producers would run again too.
    """
    gates = Gates(str(tmp_path))
    handle = held_job(mixed, gates)
    ends_half(mixed, gates, handle)
    lost = mixed.environment_pid(mixed.executor(gates.group("c0")))
    kill(lost)
    wait_until(lambda: lost not in mixed.attached(), "the driver knows of it")
    _, again = finish(mixed, gates, handle)
    assert "c0" in again
    assert not again & {"p0", "p1"}


def test_lost_files_take_nothing_of_the_local_service(mixed: ProcessCluster, tmp_path: Path, shared: Path) -> None:
    """The producers whose files went run again for the one consumer that still reads; the other's rows are there."""
    gates = Gates(str(tmp_path))
    handle = held_job(mixed, gates)
    ends_half(mixed, gates, handle)
    for place in listed(shared, "folder-*/*/*/*-e0.*/"):
        shutil.rmtree(place)
    kill(gates.living("c1"))
    _, again = finish(mixed, gates, handle)
    assert again == {"p0", "p1", "c1"}


def test_damaged_files_are_written_again(mixed: ProcessCluster, tmp_path: Path, shared: Path) -> None:
    """A checksum that does not fit is the loss of that partition, and of no other."""
    gates = Gates(str(tmp_path))
    handle = held_job(mixed, gates)
    ends_half(mixed, gates, handle)
    (damaged,) = listed(shared, "folder-*/*/*/*-e0.1.*/batches")
    with damaged.open("r+b") as file:
        file.write(bytes(damaged.stat().st_size))
    kill(gates.living("c1"))
    _, again = finish(mixed, gates, handle)
    assert again == {"c1", "p1"}


DRIVER = """
import asyncio, sys
from folder_harness import FolderShuffleService
from penstock.settings import Settings
from penstock.shuffle import ShuffleMasterContext
master = FolderShuffleService().create_shuffle_master(ShuffleMasterContext(sys.argv[1], Settings(), print))
asyncio.run(master.start())
(master._folder / "host" / "job" / "rows").mkdir(parents=True)
print("ready", flush=True)
sys.stdin.read()
if sys.argv[2] == "close":
    asyncio.run(master.close())
"""


def driver(application: str, end: str = "") -> subprocess.Popen[str]:
    """A driver's process whose application has files; it ends when its input does."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, application, end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_files_of_a_killed_driver_go_with_the_next_one(shared: Path) -> None:
    """Those of one that lives stay; each takes its own along when it ends well."""
    living, killed = driver("living", "close"), driver("killed")
    try:
        killed.kill()
        killed.communicate()
        assert folder_of("killed").is_dir()
        with driver("next", "close") as after:
            assert {place.name for place in listed(shared)} == {"folder-shuffle-living", "folder-shuffle-next"}
            after.communicate()
        assert folder_of("living", "host").is_dir()
    finally:
        living.communicate()
    assert not listed(shared)
