# SPDX-License-Identifier: Apache-2.0
"""Streaming queries in a whole JobMaster: real storage and gRPC; tasks are threads that speak for a data plane."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from job_fakes import DEADLINE, FakeEnvironment, ThreadLauncher, fresh_service
from job_graphs import chain

from penstock.checkpoint.barriers import CheckpointBarrier, decode
from penstock.checkpoint.errors import CheckpointError, FencedError
from penstock.checkpoint.metadata import pack_part, unpack_part
from penstock.checkpoint.ownership import Stamp
from penstock.checkpoint.storage import CheckpointStorage
from penstock.graph.deployment import TaskDeployment
from penstock.graph.job_graph import JobGraph
from penstock.graph.streaming import SavedParts, StreamingOptions, part_name
from penstock.job.launcher import Submission
from penstock.job.query_storage import QueryStorage
from penstock.job.shell.master import JobHandle, JobMaster, MasterIdentity
from penstock.link import commands
from penstock.link.master import AcknowledgeCheckpoint, DataEnded
from penstock.shuffle import Settings
from penstock.shuffle.actions import CheckpointCompleted, StopSource, TriggerCheckpoint
from penstock.shuffle.errors import PenstockError, PlanError
from penstock.shuffle.settings import RestartSettings
from penstock.testing import wait_until

SETTINGS = replace(Settings(), restart=RestartSettings("exponential", attempts=1000, delay=0.01, max_delay=0.1))
SECRET = b"s" * 32


def query(location: Path, width: int = 1, **options: object) -> JobGraph:
    """A source and a counter."""
    graph = chain(width, width, result=False)
    vertices = tuple(replace(vertex, uid=f"u{vertex.id}") for vertex in graph.vertices)
    streaming = StreamingOptions("q", "counts", str(location), **{"interval": 0.05, **options})  # type: ignore[arg-type]
    return replace(graph, vertices=vertices, streaming=streaming)


class Tasks:
    """What tasks do: answer each trigger for all tasks with stored snapshots, and end when they are told to."""

    def __init__(self, graph: JobGraph) -> None:
        self.graph = graph
        self.deployed: list[TaskDeployment] = []
        self.storage = CheckpointStorage(graph.streaming.location if graph.streaming else "")

    def run(self, environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        """One task, until the JobMaster cancels it or it was stopped and its last checkpoint is complete."""
        self.deployed.append(deployment)
        attempt, seen, is_ending, covered = deployment.attempt, 0, False, 0
        while True:
            fresh = _commands_behind(environment, seen)
            seen += len(fresh)
            for command in fresh:
                match command:
                    case commands.CancelTask() if command.attempt == attempt:
                        environment.finished(attempt, "CANCELED")
                        return
                    case commands.TaskAction(_, TriggerCheckpoint(barrier)):
                        number = self._acknowledge(environment, deployment, barrier)
                        covered = covered or (number if is_ending else 0)
                    case commands.TaskAction(_, StopSource()):
                        environment.ask(DataEnded(attempt))
                        is_ending = True
                    case commands.TaskAction(_, CheckpointCompleted(number)) if covered and number >= covered:
                        environment.finished(attempt)
                        return
            if environment.ended.is_set():
                return

    def _acknowledge(self, environment: FakeEnvironment, deployment: TaskDeployment, payload: bytes) -> int:
        attempt, told = deployment.attempt, deployment.streaming
        barrier = decode(payload)
        assert isinstance(barrier, CheckpointBarrier)
        assert told is not None
        name = part_name(self.graph.vertex(attempt.vertex).uid, attempt.subtask)
        stamp = Stamp(barrier.checkpoint, told.epoch)
        try:
            handle = self.storage.write(stamp, name, [("n", b"%d" % barrier.checkpoint)])
        except OSError:  # it was given up, and its folder is gone
            return 0
        environment.ask(AcknowledgeCheckpoint(attempt, barrier.checkpoint, pack_part(handle)))
        return barrier.checkpoint


def _commands_behind(environment: FakeEnvironment, seen: int) -> list[commands.Command]:
    with environment.changed:
        environment.changed.wait_for(lambda: len(environment.commands) > seen, 0.5)
        return environment.commands[seen:]


class Driver:
    """A JobMaster with one environment; a second one may be another driver on the same location."""

    def __init__(self, graph: JobGraph, name: str = "e1") -> None:
        self.tasks = Tasks(graph)
        self.launcher = ThreadLauncher(self.tasks.run)
        self.master = JobMaster(MasterIdentity("app", SECRET), self.launcher, SETTINGS)
        self.environment = FakeEnvironment(self.master.start(), SECRET, name)
        self.launcher.environment = self.environment

    def start(self) -> JobHandle:
        """Claim the location and submit the query."""
        graph = self.tasks.graph
        assert graph.streaming is not None
        storage = QueryStorage(graph.streaming)
        storage.claim({vertex.uid: vertex.parallelism for vertex in graph.vertices})
        submission = Submission(self.master.new_job(), graph, SETTINGS, 4, checkpoints=storage)
        return self.master.submit(submission)

    def close(self) -> None:
        """End it."""
        self.master.close()
        self.environment.close()


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
    assert told.epoch == 2
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
    whole = sorted(path.parent for path in tmp_path.glob("chk-*/_metadata"))
    assert [Stamp.of(path.name) for path in whole] == [Stamp(number, 1) for number in numbers[-retained:]]
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
    assert sorted(path.name for path in tmp_path.glob("chk-*")) == [str(Stamp(2, 1)), str(Stamp(3, 1))]


def test_location_that_goes_away_fails_checkpoints_and_not_the_query(drivers: list[Driver], tmp_path: Path) -> None:
    """What can't be stored is said to whoever asked; the query goes on until too many have failed."""
    location = tmp_path / "checkpoints"
    drivers.append(driver := Driver(query(location, interval=None, tolerable_failures=1)))
    handle = driver.start()
    driver.master.checkpoint(handle.job, DEADLINE)
    for owner in (location / "owners").iterdir():
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
