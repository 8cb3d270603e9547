# SPDX-License-Identifier: Apache-2.0
"""Streaming queries in a whole JobMaster, real storage and connections; tasks are threads without a data plane."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from job_fakes import DEADLINE, fresh_service
from penstock.checkpoint.errors import CheckpointError, FencedError
from penstock.checkpoint.metadata import unpack_part
from penstock.checkpoint.stamps import Stamp
from penstock.checkpoint.storage import CheckpointStorage
from penstock.errors import PenstockError, PlanError
from penstock.graph.streaming import SavedParts
from penstock.job.query_storage import QueryStorage
from penstock.testing import wait_until
from query_driver import Driver, query
from underway import listed


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    """Drivers that are closed at the end."""
    fresh_service()
    made: list[Driver] = []
    with contextlib.ExitStack() as stack:
        yield made
        for driver in made:
            stack.callback(driver.close)


def test_query_takes_checkpoints_and_stops_with_a_last_one(drivers: list[Driver], tmp_path: Path) -> None:
    """Each is whole at its location, old ones go, and after `stop` the newest is the one that ended the tasks."""
    drivers.append(driver := Driver(query(tmp_path)))
    handle = driver.start()
    first = driver.master.checkpoint(handle.job, DEADLINE)
    second = driver.master.checkpoint(handle.job, DEADLINE)
    assert second > first
    driver.master.stop_query(handle.job)
    handle.wait(DEADLINE)
    found = CheckpointStorage(str(tmp_path)).newest()
    assert found.metadata is not None
    assert found.metadata.number > second
    assert {*found.metadata.parts, *found.metadata.finished} == {"u0.0", "u1.0"}
    with pytest.raises(CheckpointError, match="over"):
        driver.master.checkpoint(handle.job, DEADLINE)


def test_next_driver_goes_on_from_the_last_checkpoint(drivers: list[Driver], tmp_path: Path) -> None:
    """Its tasks get the parts that the earlier driver's tasks wrote, and its checkpoints have higher numbers."""
    drivers.append(first := Driver(query(tmp_path)))
    number = first.master.checkpoint(first.start().job, DEADLINE)
    first.master.close()
    drivers.append(second := Driver(query(tmp_path), "e2"))
    handle = second.start()
    assert second.master.checkpoint(handle.job, DEADLINE) > number
    told = second.tasks.deployed[0].streaming
    assert told is not None
    assert told.owner.startswith("000002-")
    assert [name for name, _ in told.restored] == [f"u{second.tasks.deployed[0].attempt.vertex}.0"]


def test_driver_whose_location_was_taken_ends_its_query(drivers: list[Driver], tmp_path: Path) -> None:
    """It may not commit any more: the query ends with FencedError, and the other one goes on."""
    drivers.append(first := Driver(query(tmp_path)))
    handle = first.start()
    first.master.checkpoint(handle.job, DEADLINE)
    drivers.append(second := Driver(query(tmp_path), "e2"))
    other = second.start()
    with pytest.raises(FencedError, match="another driver"):
        handle.wait(DEADLINE)
    assert second.master.checkpoint(other.job, DEADLINE)


def test_driver_whose_location_was_taken_ends_its_query_that_stores_nothing(
    drivers: list[Driver], tmp_path: Path
) -> None:
    """Its tasks decline all checkpoints, because their files went with the location, so it commits none."""
    drivers.append(first := Driver(query(tmp_path)))
    handle = first.start()
    first.master.checkpoint(handle.job, DEADLINE)
    first.tasks.declines.set()
    drivers.append(second := Driver(query(tmp_path), "e2"))
    second.start()
    with pytest.raises(FencedError, match="another driver"):
        handle.wait(DEADLINE)


def test_location_of_another_plan_is_refused(drivers: list[Driver], tmp_path: Path) -> None:
    """Its state would be lost without a word; another number of tasks divides it anew."""
    drivers.append(first := Driver(query(tmp_path)))
    first.master.checkpoint(first.start().job, DEADLINE)
    first.master.close()
    graph = query(tmp_path)
    other = replace(graph, vertices=tuple(replace(vertex, uid=f"x{vertex.id}") for vertex in graph.vertices))
    drivers.append(second := Driver(other, "e2"))
    with pytest.raises(PlanError, match="another plan"):
        second.start()
    drivers.append(third := Driver(query(tmp_path, 2), "e3"))
    third.master.checkpoint(third.start().job, DEADLINE)
    told = {task.attempt.vertex: task.streaming for task in third.tasks.deployed}
    assert told[0] is not None
    assert [name for name, _ in told[0].restored] == ["u0.0"], "the one part of the vertex, for both of its tasks"
    assert told[1] is not None
    assert [name for name, _ in told[1].restored] == ["u1.0", "u0.0"], "and what was in flight between the two"


@pytest.mark.parametrize("retained", [1, 3])
def test_kept_checkpoints_outlive_their_driver(drivers: list[Driver], tmp_path: Path, retained: int) -> None:
    """The next driver keeps as many as it is told; from a damaged newest one it warns, and takes the one before."""
    drivers.append(first := Driver(query(tmp_path, interval=None, retained=retained)))
    handle = first.start()
    numbers = [first.master.checkpoint(handle.job, DEADLINE) for _ in range(4)]
    first.master.close()
    drivers.append(second := Driver(query(tmp_path, interval=None, retained=retained), "e2"))
    second.start()
    whole = sorted(path.parent for path in listed(tmp_path, "chk-*/_metadata"))
    assert [found.number for path in whole if (found := Stamp.of(path.name)) is not None] == numbers[-retained:]
    second.master.close()
    (whole[-1] / "_metadata").write_bytes(b"half of it")
    drivers.append(third := Driver(query(tmp_path, interval=None, retained=retained), "e3"))
    if retained == 1:
        with pytest.raises(CheckpointError, match=r"none of the checkpoints .* can be restored from"):
            third.start()
        return
    with pytest.warns(RuntimeWarning, match=f"{whole[-1].name} can't be restored from"):
        third.start()
    wait_until(lambda: bool(third.tasks.deployed), "a task is deployed")
    told = third.tasks.deployed[0].streaming
    assert told is not None
    assert unpack_part(told.restored[0][1]).path.startswith(whole[-2].name)


def test_the_end_of_a_query_removes_more_than_it_keeps(tmp_path: Path) -> None:
    """Its last checkpoint is stored as its tasks go: nobody is there any more who says that an older one may go."""
    graph = query(tmp_path, retained=2)
    assert graph.streaming is not None
    storage = QueryStorage(graph.streaming)
    storage.claim({})
    for number in (1, 2, 3):
        storage.store(SavedParts(number, {}, frozenset(), {}))
    storage.end()
    assert sorted(path.name for path in listed(tmp_path, "chk-*")) == [
        str(Stamp.by(storage.beginning.owner, number)) for number in (2, 3)
    ]


def test_driver_that_lost_its_location_ends_when_a_task_fails(drivers: list[Driver], tmp_path: Path) -> None:
    """Its successor has removed what it would begin with: it ends with FencedError, and does not try for ever."""
    drivers.append(first := Driver(query(tmp_path, interval=None)))
    handle = first.start()
    first.master.checkpoint(handle.job, DEADLINE)
    drivers.append(second := Driver(query(tmp_path, interval=None, retained=1), "e2"))
    own = second.start()
    second.master.checkpoint(own.job, DEADLINE)
    wait_until(lambda: len(listed(tmp_path, "chk-*")) == 1, "what the second does not need is removed")
    first.tasks.fails.set()
    with pytest.raises(FencedError, match="another driver has taken over"):
        handle.wait(DEADLINE)


def test_a_start_that_is_refused_leaves_the_location_to_the_query_that_runs(
    drivers: list[Driver], tmp_path: Path
) -> None:
    """Of another plan: it looks before it claims, and the query that runs completes further checkpoints."""
    drivers.append(driver := Driver(query(tmp_path, interval=None)))
    handle = driver.start()
    driver.master.checkpoint(handle.job, DEADLINE)
    assert driver.tasks.graph.streaming is not None
    other = QueryStorage(driver.tasks.graph.streaming)
    for claim in (other.look, other.claim):
        with pytest.raises(PlanError, match="another plan"):
            claim({"other": 1})
    driver.master.checkpoint(handle.job, DEADLINE)
    driver.master.stop_query(handle.job)
    handle.wait(DEADLINE)


def test_a_warning_that_is_an_error_gives_the_location_back(drivers: list[Driver], tmp_path: Path) -> None:
    """Of a damaged checkpoint, where somebody has made errors of warnings: the query that runs goes on."""
    drivers.append(driver := Driver(query(tmp_path, interval=None)))
    handle = driver.start()
    for _ in range(2):
        driver.master.checkpoint(handle.job, DEADLINE)
    newest = max(listed(tmp_path, "chk-*/_metadata"))
    newest.write_bytes(b"half of it")
    assert driver.tasks.graph.streaming is not None
    other = QueryStorage(driver.tasks.graph.streaming)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="can't be restored from"):
            other.claim({"u0": 1, "u1": 1})
    driver.master.checkpoint(handle.job, DEADLINE)


def test_location_that_goes_away_fails_checkpoints_and_not_the_query(drivers: list[Driver], tmp_path: Path) -> None:
    """The asker is told of a checkpoint that can't be stored; the query goes on until too many have failed."""
    location = tmp_path / "checkpoints"
    drivers.append(driver := Driver(query(location, interval=None, tolerable_failures=1)))
    handle = driver.start()
    driver.master.checkpoint(handle.job, DEADLINE)
    for owner in listed(location / "owners"):
        owner.unlink()
    (location / "owners").rmdir()
    (location / "owners").write_text("a file where a folder should be")
    with pytest.raises(PenstockError, match="could not be stored"):
        driver.master.checkpoint(handle.job, DEADLINE)
    assert handle.progress() is not None
    with pytest.raises(PenstockError, match="could not be stored"):
        driver.master.checkpoint(handle.job, DEADLINE)
    with pytest.raises(CheckpointError, match="tolerableFailedCheckpoints=1"):
        handle.wait(DEADLINE)
