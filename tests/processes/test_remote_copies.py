# SPDX-License-Identifier: Apache-2.0
"""Workers of the remote service whose folder was copied: one of them is a worker, the others are told what to do."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from ess_process import free_port
from penstock import client
from penstock.testing import DEADLINE
from penstock.testing.waiting import wait_until
from remote_cluster import RemoteCluster, RemoteProcess

pytestmark = pytest.mark.processes

SCHEMA = pa.schema([("id", pa.int64())])
ROWS = 1 << 14


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RemoteCluster]:
    """A manager and one worker that has a result, and that may take its time to come back."""
    found = RemoteCluster(tmp_path / "remote", 1, manager_options=["--rejoin", "60s"])
    with connect(found) as service, service.write("kept", SCHEMA, 1) as writer:
        writer.write(pa.record_batch([pa.array(range(ROWS))], schema=SCHEMA))
    yield found
    found.close()


def connect(cluster: RemoteCluster) -> client.Service:
    """A client that waits long for a worker."""
    conf = {"spark.penstock.remote.retryTimeout": f"{DEADLINE:g}s"}
    return client.connect(cluster.manager.address, key=cluster.keys.read_text().strip(), conf=conf)


def rows_there(cluster: RemoteCluster) -> int:
    """The rows of the result."""
    with connect(cluster) as service:
        return int(service.read("kept").read_all().num_rows)


def copied(cluster: RemoteCluster, worker: RemoteProcess, name: str) -> RemoteProcess:
    """A process with a copy of a worker's folder, as it is now; it is not started."""
    place = cluster.folder / name
    shutil.copytree(worker.folder, place)
    arguments = [str(place) if each == worker.folder else each for each in worker.arguments]
    copy = RemoteProcess(arguments, cluster.folder / f"{name}.log")
    cluster.workers.append(copy)
    return copy


def starts_and_is_refused(cluster: RemoteCluster, process: RemoteProcess) -> None:
    """It ends with words about what to do, and the manager says so too."""
    with suppress(AssertionError):  # it may have ended before anybody has seen that it listened
        process.start()
    assert process.wait() == 2
    process.process = None
    for log in (process.log, cluster.manager.log):
        assert "is refused: it comes as" in log.read_text(), log
    assert f"Its folder is {process.folder}" in process.log.read_text()
    assert "--dir, which is empty" in process.log.read_text()


def known_at(cluster: RemoteCluster, times: int) -> None:
    """Wait until the manager has heard so many starts."""
    wait_until(lambda: cluster.times_known() == times, "the manager to know the worker again")


@pytest.mark.thorough
def test_a_copy_is_refused_while_the_first_lives(cluster: RemoteCluster) -> None:
    """The first goes on, also where it stands still as the copy comes; the copy with an empty folder is a worker."""
    first = cluster.workers[0]
    copy = copied(cluster, first, "copy")
    starts_and_is_refused(cluster, copy)
    assert rows_there(cluster) == ROWS
    first.tell(signal.SIGSTOP)
    try:
        copy.start()
        end = time.monotonic() + 3.0
        while time.monotonic() < end:  # long before its silence is taken for its end
            assert cluster.times_known() == 1, "the copy was taken"
    finally:
        first.tell(signal.SIGCONT)
    assert copy.wait() == 2
    copy.process = None
    assert rows_there(cluster) == ROWS
    shutil.rmtree(copy.folder)
    copy.start()
    known_at(cluster, 2)
    assert "is lost" not in cluster.manager.log.read_text()


@pytest.mark.thorough
def test_a_copy_of_a_dead_worker_is_the_worker_and_the_first_is_not_any_more(cluster: RemoteCluster) -> None:
    """It serves what was committed; the first one, started again, is refused, also after the manager's restart."""
    first = cluster.workers[0]
    copy = copied(cluster, first, "copy")
    first.kill()
    copy.start()
    known_at(cluster, 2)
    assert rows_there(cluster) == ROWS
    starts_and_is_refused(cluster, first)
    cluster.manager.kill()
    cluster.manager.start()
    known_at(cluster, 3)
    starts_and_is_refused(cluster, first)
    assert rows_there(cluster) == ROWS


def test_a_folder_that_is_started_again_is_taken(cluster: RemoteCluster) -> None:
    """After a kill, at another port, after starts without a manager, and after a clean end."""
    worker = cluster.workers[0]
    for starts, port in ((2, worker.port), (3, free_port())):
        worker.kill()
        worker.port = port
        worker.start()
        known_at(cluster, starts)
        assert rows_there(cluster) == ROWS
    cluster.manager.kill()
    for _ in range(2):
        worker.kill()
        worker.port = 0
        worker.start()
    cluster.manager.start()
    known_at(cluster, 4)

    def has_ended() -> bool:
        worker.tell(signal.SIGTERM)  # the second one ends it at once
        return worker.process is not None and worker.process.poll() is not None

    wait_until(has_ended, "the worker to end")
    worker.process = None
    worker.start()
    known_at(cluster, 5)
    assert rows_there(cluster) == ROWS
    assert "is refused" not in cluster.manager.log.read_text()
