# SPDX-License-Identifier: Apache-2.0
"""The words for a task before it is there, or after it has left, and the time that they are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.environment.tasks import task_registry
from penstock.environment.tasks.task_registry import TaskRegistry
from penstock.link.commands import CancelTask, TaskAction
from penstock.shuffle import AttemptId, DatasetId, PartitionId, PartitionKind, ShuffleDescriptor
from penstock.shuffle.actions import StopSource, TriggerCheckpoint


def attempt(number: int, job: str = "job") -> AttemptId:
    """An attempt."""
    return AttemptId(job, 0, number, number)


def place(index: int) -> ShuffleDescriptor:
    """A producer that is known."""
    return ShuffleDescriptor(
        PartitionId(DatasetId("job", 0), index, 1), "local", PartitionKind.PIPELINED_BOUNDED, "env"
    )


class Task:
    """A task that is told what came for its attempt."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def cancel(self, command: CancelTask) -> None:
        """It is to stop."""
        self.told.append(command)

    def act(self, action: TaskAction) -> None:
        """It is to do this."""
        self.told.append(action)


def caught_up(here: TaskRegistry, number: AttemptId) -> list[object]:
    """The words that a task hears when it is given this attempt."""
    task: Any = Task()
    here.catch_up(task, number)
    told: list[object] = task.told
    return told


class Gate:
    """A gate that waits for so many producers."""

    def __init__(self, reader: AttemptId, missing: int = 1) -> None:
        self.attempt = reader
        self.missing = missing

    @property
    def is_complete(self) -> bool:
        """True if all producers are known."""
        return not self.missing

    def update(self, _: ShuffleDescriptor) -> bool:
        """One has come."""
        self.missing -= 1
        return True


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[TaskRegistry]:
    """One that keeps three of everything."""
    for name in ("CANCELS", "ACTIONS", "UPDATES", "GATES"):
        monkeypatch.setattr(task_registry, name, 3)
    return TaskRegistry()


def left(here: TaskRegistry, *gates: Gate) -> None:
    """These gates have closed."""
    for gate in gates:
        closed: Any = gate
        here.leave(closed)


def test_what_comes_before_its_task_is_told_once() -> None:
    """A cancel and actions, in order, when the attempt is deployed."""
    here = TaskRegistry()
    actions = [TaskAction(attempt(1), TriggerCheckpoint(b"barrier")), TaskAction(attempt(1), StopSource())]
    for action in actions:
        here.act(action)
    cancel = CancelTask(attempt(1), "nobody reads it", is_unwanted=True)
    here.cancel(cancel)
    assert caught_up(here, attempt(2)) == []
    assert caught_up(here, attempt(1)) == [cancel, *actions]
    assert caught_up(here, attempt(1)) == []


def test_producers_that_come_first_are_there_for_each_gate_of_their_consumer() -> None:
    """Two inputs of a task may read the same dataset."""
    here = TaskRegistry()
    assert not here.update(attempt(1), place(0))
    assert not here.update(attempt(1), place(1))
    assert here.updates(attempt(1)) == here.updates(attempt(1)) == (place(0), place(1))
    assert here.updates(attempt(2)) == ()


def test_a_gate_that_left_is_told_of_its_producers_and_then_forgotten() -> None:
    """The words that it was told are not kept for another."""
    here = TaskRegistry()
    gate, complete = Gate(attempt(1), 2), Gate(attempt(1), 0)
    left(here, gate, complete)
    for index in (0, 1):
        here.update(attempt(1), place(index))
    assert gate.missing == 0
    assert complete.missing == 0
    assert here.updates(attempt(1)) == ()
    here.update(attempt(1), place(2))
    assert here.updates(attempt(1)) == (place(2),)


def test_everything_goes_with_its_job() -> None:
    """The words of another job stay."""
    here = TaskRegistry()
    gates = [Gate(attempt(1, job)) for job in ("a", "b")]
    left(here, *gates)
    for job in ("a", "b"):
        here.cancel(CancelTask(attempt(2, job), job))
        here.act(TaskAction(attempt(2, job), StopSource()))
        here.update(attempt(3, job), place(0))
    here.forget_job("a")
    assert [caught_up(here, attempt(2, job)) for job in ("a", "b")] == [
        [],
        [CancelTask(attempt(2, "b"), "b"), TaskAction(attempt(2, "b"), StopSource())],
    ]
    assert [len(here.updates(attempt(3, job))) for job in ("a", "b")] == [0, 1]
    for job in ("a", "b"):
        here.update(attempt(1, job), place(0))
    assert [gate.missing for gate in gates] == [1, 0]


def test_what_is_kept_is_bounded_and_the_oldest_goes_first(few: TaskRegistry) -> None:
    """Of cancels, actions, producers and gates."""
    gates = [Gate(attempt(number)) for number in range(5)]
    left(few, *gates)
    for number in range(5):
        few.cancel(CancelTask(attempt(10 + number), "cause"))
        few.act(TaskAction(attempt(30 + number), StopSource()))
        few.update(attempt(20 + number), place(number))
    assert [len(caught_up(few, attempt(10 + number))) for number in range(5)] == [0, 0, 1, 1, 1]
    assert [len(caught_up(few, attempt(30 + number))) for number in range(5)] == [0, 0, 1, 1, 1]
    assert [len(few.updates(attempt(20 + number))) for number in range(5)] == [0, 0, 1, 1, 1]
    for number in range(5):
        few.update(attempt(number), place(number))
    assert [gate.missing for gate in gates] == [1, 1, 0, 0, 0]
