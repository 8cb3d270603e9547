# SPDX-License-Identifier: Apache-2.0
"""Jobs over the remote service, with kills in the middle: exactly what can't be read any more is made again.

JobMaster, executors, workers, environment processes and the service's own processes are real; Spark is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.job.shell.master import JobHandle
from penstock.remote.manager_state import ManagerState
from penstock.remote.state_log import read_records
from penstock.shuffle import DatasetId, PartitionKind
from penstock.testing import DEADLINE, wait_until
from penstock.testing.sources import fromBatches
from penstock_torture import gates as gated
from penstock_torture.gates import Gates, HeldConsumer
from penstock_torture.process_launcher import Nursery
from process_cluster import PRELOADED, ProcessCluster, kill
from remote_cluster import RemoteCluster

pytestmark = pytest.mark.processes

COUNTS = pa.schema([("target", pa.int64()), pa.field("n", pa.int64(), nullable=False)])


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One for all tests of this file: it holds nothing of theirs."""
    with Nursery([*PRELOADED, "penstock.services.remote.environment"]) as nursery:
        yield nursery


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RemoteCluster]:
    """A manager and two workers."""
    found = RemoteCluster(tmp_path / "service")
    yield found
    found.close()


@pytest.fixture
def cluster(nursery: Nursery, service: RemoteCluster) -> Iterator[ProcessCluster]:
    """Two executors whose sessions name the service."""
    conf = {**service.conf(), "spark.penstock.shuffle.service": "remote"}
    found = ProcessCluster(nursery, conf=conf)
    yield found
    found.close()
    wait_until(lambda: not service.files(), "the rows go with their application")


def begun(cluster: ProcessCluster, gates: Gates) -> JobHandle:
    """A job of producers p0, p1, consumers c0, c1 and a last stage, led to where c0 has ended and c1 reads."""
    held = fromBatches(gated.rows(), 2).partitionCustom(gated.to_target, 2)
    consumed = held.mapInArrow(HeldConsumer(gates), gated.rows().schema)
    handle = cluster.submit(consumed.keyBy("target", numPartitions=1).agg(n=("id", "count")))
    wait_until(lambda: gates.pids("c0") and gates.pids("c1"), "both consumers have seen rows")
    gates.open(f"{gated.READ}-c0")
    wait_until(lambda: any("/v1.0#" in entry for entry in cluster.trace(handle.job, "task_finished")), "c0 has ended")
    return handle


def ran_again(cluster: ProcessCluster, gates: Gates, handle: JobHandle) -> set[str]:
    """Let the job end, with the right rows; the subtasks that ran again."""
    gates.open_all()
    finished = handle.wait(DEADLINE)
    half = gated.rows().num_rows // 2
    found = cluster.read(finished, COUNTS).sort_by("target")
    assert found.to_pydict() == {"target": [0, 1], "n": [half, half]}
    assert {(item.service, item.kind) for item in finished.partitions} == {
        ("remote", PartitionKind.BLOCKING_SORT_MERGE)
    }
    again = [ids.partition(".") for _, name, ids in finished.result.trace if name == "task_restarted"]
    cluster.master.release_result(finished.result.job)
    return {"pcs"[int(vertex[1:])] + index for vertex, _, index in again}


@pytest.mark.thorough
def test_executors_go_and_rows_stay(cluster: ProcessCluster, tmp_path: Path) -> None:
    """The environment of the task that reads is killed: it runs again, and no producer does."""
    gates = Gates(str(tmp_path))
    handle = begun(cluster, gates)
    kill(cluster.environment_pid(cluster.executor(gates.group("c1"))))
    again = ran_again(cluster, gates, handle)
    assert "c1" in again
    assert not again & {"p0", "p1"}


@pytest.mark.thorough
def test_a_manager_that_is_killed_costs_time(cluster: ProcessCluster, service: RemoteCluster, tmp_path: Path) -> None:
    """It is started again in the middle of the job: nothing runs again."""
    gates = Gates(str(tmp_path))
    handle = begun(cluster, gates)
    service.manager.kill()
    gates.open_all()
    service.manager.start()
    assert not ran_again(cluster, gates, handle)


def test_a_lost_worker_has_its_rows_made_again(
    cluster: ProcessCluster, service: RemoteCluster, tmp_path: Path
) -> None:
    """The worker of the one who reads is killed: producers and the reader run again; who has ended stays so."""
    gates = Gates(str(tmp_path))
    handle = begun(cluster, gates)
    rows_of_c1, rows_by_c0 = place_of(service, handle, 0, 1), place_of(service, handle, 1, 0)
    next(worker for worker in service.workers if worker.address == rows_of_c1).kill()
    wait_until(lambda: cluster.trace(handle.job, "task_restarted"), "the loss is told to the job")
    lost = {"p0", "p1", "c1"} | ({"c0"} if rows_by_c0 == rows_of_c1 else set())
    assert ran_again(cluster, gates, handle) == lost


def place_of(service: RemoteCluster, handle: JobHandle, edge: int, file: int) -> str:
    """The worker that has a file of an edge of the job, out of the manager's log."""
    state = ManagerState()
    for record in read_records(service.folder / "manager" / "manager.log"):
        state.apply(record)
    (dataset,) = [each for key, each in state.datasets.items() if key[1] == str(DatasetId(handle.job, edge))]
    return state.workers[dataset.places[file][-1]].address.removeprefix("tcp://")
