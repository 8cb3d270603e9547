# SPDX-License-Identifier: Apache-2.0
"""The parts of kill grid and torture: which cells there are, what a seed gives, how workers tell their ends."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import pytest
from pyspark import cloudpickle

from penstock.testing import DEADLINE
from penstock_torture.grid import PHASES, VICTIMS, Cell, cells
from penstock_torture.process_launcher import Nursery, ProcessLauncher
from penstock_torture.tpch import random_run

pytestmark = pytest.mark.processes


@pytest.fixture
def launcher() -> Iterator[ProcessLauncher]:
    """Two executors."""
    with Nursery(["pyspark.cloudpickle"]) as nursery:
        launcher = ProcessLauncher(nursery, 2)
        yield launcher
        launcher.close_executors()


def run(launcher: ProcessLauncher, work: Callable[[int, int], object]) -> int:
    """The exit code of a worker with this work."""
    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    launcher.start_worker(bytes(cloudpickle.dumps(work)), 7, codes.put)
    return codes.get(timeout=DEADLINE)


def test_every_cell_is_there_once() -> None:
    """Four modes, three phases, four victims, less the one that can't be; executors on a cluster only."""
    assert len(set(cells(cluster=True))) == 4 * len(PHASES) * len(VICTIMS) - 1
    assert not [cell for cell in cells(cluster=False) if cell.victim == "executor"]
    assert not Cell("blocking", "writing", "consumer").makes_sense


def test_a_seed_gives_the_same_runs() -> None:
    """The same run from the same seed, others from others, and every victim at some time."""
    runs = [random_run(3, number, (3, 18)) for number in range(200)]
    assert runs == [random_run(3, number, (3, 18)) for number in range(200)]
    assert runs != [random_run(4, number, (3, 18)) for number in range(200)]
    assert {run.victim for run in runs} == {"worker", "environment"}
    assert {run.query for run in runs} == {3, 18}


def test_workers_tell_their_ends(launcher: ProcessLauncher) -> None:
    """A worker that returns, raises or is killed ends with 0, 1 or its signal; a dead executor is replaced."""

    def suicide(number: int, attempt: int) -> None:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)

    assert run(launcher, lambda number, attempt: None) == 0
    assert run(launcher, lambda number, attempt: 1 // 0) == 1
    assert run(launcher, suicide) == -9
    first, second = launcher.executors
    first.kill()
    assert first.is_dead
    assert not second.is_dead
    assert run(launcher, lambda number, attempt: None) == 0
    assert launcher.executors[0].pid != first.pid
