# SPDX-License-Identifier: Apache-2.0
"""Persisted results without Spark: states, who makes one, and what a drop or a loss meanwhile does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock.errors import JobError
from penstock.job.core.result import FinishedJob, JobResult
from penstock.job.core.states import JobState
from penstock.shuffle import DatasetId, PartitionId, PartitionKind, ShuffleDescriptor
from penstock.spark.datasets import KeptAs, PersistedResult, PersistedResults
from penstock.testing import DEADLINE


class Maker:
    """Makes a result of two vertices and keeps what it was told."""

    def __init__(self) -> None:
        self.lost: list[Callable[[], None]] = []
        self.released: list[str] = []
        self.before: Callable[[], None] = lambda: None

    def __call__(self, lost: Callable[[], None]) -> FinishedJob:
        """One job more."""
        self.lost.append(lost)
        self.before()
        job = f"j{len(self.lost)}"
        figures = {
            1: {"rows_out": 3.0, "bytes_out": 24.0},
            2: {"rows_out": 4.0, "bytes_out": 32.0},
            0: {"rows_out": 9},
        }
        partitions = (
            ShuffleDescriptor(
                PartitionId(DatasetId(job, 1, is_result=True), 0, 7),
                "local",
                PartitionKind.BLOCKING_PERSISTENT,
                "b-1-x",
            ),
            ShuffleDescriptor(
                PartitionId(DatasetId(job, 2, is_result=True), 0, 7),
                "local",
                PartitionKind.BLOCKING_PERSISTENT,
                "a-2-x",
            ),
            ShuffleDescriptor(
                PartitionId(DatasetId(job, 2, is_result=True), 1, -1),
                "local",
                PartitionKind.BLOCKING_PERSISTENT,
                empty=True,
            ),
        )
        return FinishedJob(JobResult(job, "test", JobState.FINISHED, 1.0, figures), partitions)


def made() -> tuple[Maker, PersistedResult]:
    """A maker and a result that nobody has needed yet."""
    maker = Maker()
    return maker, PersistedResult("d1", object(), maker.released.append, KeptAs())


def test_figures_are_those_of_the_result() -> None:
    """Rows and bytes of the vertices in the result, hosts by name, partitions that exist."""
    maker, result = made()
    assert result.state == "lazy"
    held = result.get(maker)
    assert held is not None
    assert (held.rows, held.bytes, held.place, len(held.present)) == (7, 56, "a, b", 2)
    assert result.get(maker) is held
    assert result.state == "materialised"


def test_dropped_is_released_once() -> None:
    """When it is dropped, or as soon as it is there when it was dropped while it was made."""
    maker, result = made()
    result.get(maker)
    result.drop()
    result.drop()
    assert maker.released == ["j1"]
    assert result.get(maker) is None
    maker, result = made()
    maker.before = result.drop
    assert result.get(maker) is None
    assert maker.released == ["j1"]


def test_lost_is_made_again() -> None:
    """A loss is known at once; one while it was made counts too; word of a former making does not."""
    maker, result = made()
    result.get(maker)
    maker.lost[0]()
    assert result.state == "lost"
    assert result.get(maker) is not None
    maker.lost[0]()
    assert result.state == "materialised"
    maker.lost[1]()

    def lose() -> None:
        maker.lost[-1]()

    maker.before = lose
    assert result.get(maker) is None
    assert maker.released == ["j3"]
    assert result.state == "lost"


def test_failure_keeps_nothing() -> None:
    """It is raised, and the next caller makes it."""
    maker, result = made()

    def fail() -> None:
        raise JobError("boom")

    maker.before = fail
    with pytest.raises(JobError, match="boom"):
        result.get(maker)
    assert result.state == "lazy"
    maker.before = lambda: None
    assert result.get(maker) is not None


def test_one_of_many_makes_it() -> None:
    """The others wait for him and get what he made."""
    maker, result = made()
    all_here = threading.Barrier(5)
    found: list[object] = []

    def act() -> None:
        all_here.wait(DEADLINE)
        found.append(result.get(maker))

    threads = [threading.Thread(target=act) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(maker.lost) == 1
    assert found == [result.held] * 5


def test_one_result_for_each_step() -> None:
    """Known by identity; removing drops it, and the step may be added again under a new number."""
    maker = Maker()
    results = PersistedResults(maker.released.append)
    step = [1]
    one = results.add(step, "map")
    assert results.add(step, "map") is one
    assert results.find([1]) is None
    assert one.name == "d1 map"
    one.get(maker)
    results.remove(step)
    results.remove(step)
    assert maker.released == ["j1"]
    assert results.find(step) is None
    assert results.add(step, "map").name == "d2 map"
    assert [result.name for result in results] == ["d2 map"]
