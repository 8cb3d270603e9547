# SPDX-License-Identifier: Apache-2.0
"""Processes that stop for a while (SIGSTOP), with all processes real and leases shortened.

A driver that pauses for three quarters of the lease is what 45 seconds are under the default of 60.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from effort import with_all
from penstock.settings import Settings
from penstock.testing import DEADLINE, wait_until
from penstock_torture import gates as gated
from penstock_torture.gates import Gates
from penstock_torture.process_launcher import Nursery
from process_cluster import PRELOADED, ProcessCluster, kill, lives

pytestmark = pytest.mark.processes

LEASE, PAUSE = 4.0, 3.0

PAUSER = """
import os, pathlib, signal, sys, threading
pid, seconds, *touched = sys.argv[1:]
os.kill(int(pid), signal.SIGSTOP)
try:
    for path in touched:
        pathlib.Path(path).touch()
    threading.Event().wait(float(seconds))
finally:
    os.kill(int(pid), signal.SIGCONT)
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One for all tests of this file."""
    with Nursery(PRELOADED) as nursery:
        yield nursery


@pytest.fixture
def cluster(nursery: Nursery) -> Iterator[ProcessCluster]:
    """A new one for each test, with short leases."""
    cluster = ProcessCluster(nursery, conf={"spark.penstock.environment.leaseTimeout": f"{LEASE:g}s"})
    yield cluster
    cluster.close()


def paused(pid: int, seconds: float, *touched: Path) -> subprocess.Popen[bytes]:
    """Another process that stops this one, makes these files, and lets it go on."""
    return subprocess.Popen([sys.executable, "-c", PAUSER, str(pid), str(seconds), *map(str, touched)])


@pytest.mark.parametrize(
    ("mode", "phase"), [("pipelined", "writing"), with_all("blocking", "reading"), with_all("hybrid", "writing")]
)
def test_a_driver_that_pauses_loses_nothing(cluster: ProcessCluster, tmp_path: Path, mode: str, phase: str) -> None:
    """The reports of tasks and environments meanwhile are taken afterwards: right rows, and nothing ran again."""
    gates = Gates(str(tmp_path))
    handle = cluster.submit(gated.stream(gates, mode))

    def has_ended(place: str) -> bool:
        name = f"/v{'pc'.index(place[0])}.{place[1]}#"
        return any(name in entry for entry in cluster.trace(handle.job, "task_finished"))

    gates.reach(phase, mode, has_ended)
    known = cluster.attached()
    names = [f"write-p{number}" for number in range(2)] + [f"read-c{number}" for number in range(2)]
    with paused(os.getpid(), PAUSE, *(tmp_path / f"gate-{name}" for name in names)) as pauser:
        finished = handle.wait(DEADLINE)
        assert pauser.wait(DEADLINE) == 0
    assert Settings().environment.lease_timeout * PAUSE / LEASE >= 45.0
    assert cluster.attached() == known, "the environments live, with all that they hold"
    assert [ids for _, name, ids in finished.result.trace if name in ("restart", "task_restarted")] == []
    found = cluster.read(finished, gated.rows().schema)
    assert found.sort_by("id").equals(gated.rows().sort_by("id").combine_chunks())


@pytest.mark.parametrize("mode", ["pipelined", "blocking"])
def test_a_host_whose_environment_hangs_goes_on_with_another(
    cluster: ProcessCluster, tmp_path: Path, mode: str
) -> None:
    """Its tasks notice when the lease is over and kill it; the job ends with the right rows, on both hosts."""
    gates = Gates(str(tmp_path))
    handle = cluster.submit(gated.stream(gates, mode))
    gates.reach("writing", mode, lambda _: False)
    executor = cluster.executor(gates.group("p0"))
    hung = cluster.environment_pid(executor)
    os.kill(hung, signal.SIGSTOP)
    gates.open_all()
    wait_until(lambda: not lives(hung), "it is killed")
    finished = handle.wait(DEADLINE)
    found = cluster.read(finished, gated.rows().schema)
    assert found.sort_by("id").equals(gated.rows().sort_by("id").combine_chunks())
    assert cluster.environment_pid(executor) != hung


def test_who_comes_to_a_hung_environment_waits_for_the_end_of_its_lease(
    cluster: ProcessCluster,
) -> None:
    """Nobody was attached to it, so nobody had noticed; it is killed, and a new one is there at once."""
    (executor, _) = cluster.launcher.executors
    hung = cluster.environment_pid(executor)
    os.kill(hung, signal.SIGSTOP)
    fresh = cluster.environment_pid(executor)
    assert fresh != hung
    assert not lives(hung)


def test_an_environment_that_wakes_up_after_its_lease_ends_itself(cluster: ProcessCluster) -> None:
    """The JobMaster has given it up and takes no word of it; it lets go of its memory and its folder."""
    hung = cluster.environment_pid(cluster.launcher.executors[0])
    wait_until(lambda: hung in cluster.attached(), "it is attached")
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: hung not in cluster.attached(), "it is lost")
    os.kill(hung, signal.SIGCONT)
    wait_until(lambda: not lives(hung), "it ends")


def test_a_killed_environment_is_seen_at_once_whatever_the_lease(nursery: Nursery) -> None:
    """Its sockets end with it, so nobody waits for the lease, which is longer than a test waits."""
    lease = f"{4 * DEADLINE:g}s"
    cluster = ProcessCluster(nursery, executors=1, conf={"spark.penstock.environment.leaseTimeout": lease})
    try:
        pid = cluster.environment_pid(cluster.launcher.executors[0])
        wait_until(lambda: pid in cluster.attached(), "it is attached")
        kill(pid)
        wait_until(lambda: pid not in cluster.attached(), "it is lost")
    finally:
        cluster.close()
