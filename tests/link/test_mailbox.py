# SPDX-License-Identifier: Apache-2.0
"""The mailbox of a streaming task over a real environment: what ends its wait, what it hears, what it says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from environment_thread import EnvironmentThread, environment
from penstock.attachment.attachment import Attachment
from penstock.attachment.mailbox import AttachmentMailbox
from penstock.environment.control import NoMaster
from penstock.errors import ControlError, EnvironmentLostError, StaleError, TaskCancelledError
from penstock.link import commands
from penstock.link.master import AcknowledgeCheckpoint, DataEnded, DeclineCheckpoint, Registered, RegisterTask
from penstock.link.wire import Done
from penstock.shuffle import AttemptId
from penstock.shuffle.actions import Action, CheckpointCompleted, CheckpointGivenUp, StopSource, TriggerCheckpoint
from penstock.testing import DEADLINE

ATTEMPT = AttemptId("job", 1, 0, 7)
OTHER = AttemptId("job", 1, 0, 8)


class Master:
    """The questions to the JobMaster, and its answer: every attempt is deployed."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.answer: Callable[[], object] = Done

    async def ask(self, request: object) -> object:
        """Answer."""
        if isinstance(request, RegisterTask):
            return Registered((request.attempt.to_wire(), (), ()))
        self.asked.append(request)
        return self.answer()


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Master:
    """The JobMaster that the environment asks."""
    found = Master()

    def ask(_: NoMaster, request: Any) -> Any:
        return found.ask(request)

    monkeypatch.setattr(NoMaster, "ask", ask)
    return found


@pytest.fixture
def here(tmp_path: Path, master: Master) -> Iterator[EnvironmentThread]:
    """An environment with that JobMaster."""
    with environment(tmp_path) as found:
        yield found


@pytest.fixture
def task(here: EnvironmentThread) -> Iterator[Attachment]:
    """A task that works on the attempt."""
    found = here.attach()
    found.ask(RegisterTask(ATTEMPT), DEADLINE)
    yield found
    found.close()


def heard(mailbox: AttachmentMailbox, count: int) -> list[Action]:
    """So many actions, waited for."""
    found: list[Action] = []
    while len(found) < count:
        mailbox.wait(DEADLINE)
        found += mailbox.take_actions()
    return found


def test_actions_come_in_order_to_the_attempt_that_they_are_for(here: EnvironmentThread, task: Attachment) -> None:
    """Every kind; what another attempt is told does not reach this one."""
    told: list[commands.TaskAction] = [
        commands.TaskAction(ATTEMPT, TriggerCheckpoint(b"\x00barrier")),
        commands.TaskAction(OTHER, StopSource()),
        commands.TaskAction(ATTEMPT, CheckpointCompleted(3)),
        commands.TaskAction(ATTEMPT, CheckpointGivenUp(4)),
        commands.TaskAction(ATTEMPT, StopSource()),
    ]
    mailbox = AttachmentMailbox(task, ATTEMPT)
    for command in told:
        here.run(lambda command=command: here.host.obey(command))  # type: ignore[misc]
    wanted = [TriggerCheckpoint(b"\x00barrier"), CheckpointCompleted(3), CheckpointGivenUp(4), StopSource()]
    assert heard(mailbox, len(wanted)) == wanted
    assert mailbox.take_actions() == []


def test_an_action_that_came_before_its_task_is_told_when_it_is_there(here: EnvironmentThread) -> None:
    """The command is faster than the answer that deploys the attempt."""
    here.run(lambda: here.host.obey(commands.TaskAction(OTHER, TriggerCheckpoint(b"early"))))
    task = here.attach()
    task.ask(RegisterTask(OTHER), DEADLINE)
    assert heard(AttachmentMailbox(task, OTHER), 1) == [TriggerCheckpoint(b"early")]
    task.close()


def test_what_a_worker_was_told_of_its_last_attempt_is_not_for_the_next(
    here: EnvironmentThread, task: Attachment
) -> None:
    """It takes none of its actions, goes on to another attempt, and hears that one's alone."""
    here.run(lambda: here.host.obey(commands.TaskAction(ATTEMPT, StopSource())))
    AttachmentMailbox(task, ATTEMPT).wait(DEADLINE)
    task.begin()
    task.ask(RegisterTask(OTHER), DEADLINE)
    here.run(lambda: here.host.obey(commands.TaskAction(OTHER, CheckpointCompleted(1))))
    assert heard(AttachmentMailbox(task, OTHER), 1) == [CheckpointCompleted(1)]


def test_what_is_said_is_not_waited_for(here: EnvironmentThread, task: Attachment, master: Master) -> None:
    """An acknowledgement from another thread, a refusal and the end of the data arrive with all they carry."""
    mailbox = AttachmentMailbox(task, ATTEMPT)
    thread = threading.Thread(target=lambda: mailbox.acknowledge(5, b"handle", {"bytes": 7.0}))
    thread.start()
    thread.join(DEADLINE)
    mailbox.decline(6, "the disk is full")
    mailbox.data_ended()
    task.ask(RegisterTask(ATTEMPT), DEADLINE)  # after them
    assert master.asked == [
        AcknowledgeCheckpoint(ATTEMPT, 5, b"handle", {"bytes": 7.0}),
        DeclineCheckpoint(ATTEMPT, 6, "the disk is full"),
        DataEnded(ATTEMPT),
    ]


def test_an_error_in_the_answer_is_raised_where_the_task_waits_next(task: Attachment, master: Master) -> None:
    """It ends the wait, once for each answer; the mailbox lives on."""

    def refuse() -> object:
        raise StaleError("attempt 7 was replaced")

    master.answer = refuse
    mailbox = AttachmentMailbox(task, ATTEMPT)
    mailbox.data_ended()
    with pytest.raises(StaleError, match="replaced"):
        mailbox.wait(DEADLINE)
    mailbox.wait(0)


def test_without_a_jobmaster_the_task_hears_that_there_is_none(tmp_path: Path) -> None:
    """Nothing is said into the void."""
    with environment(tmp_path) as alone:
        task = alone.attach()
        mailbox = AttachmentMailbox(task, ATTEMPT)
        mailbox.acknowledge(1, b"", {})
        with pytest.raises(ControlError, match="no JobMaster"):
            mailbox.wait(DEADLINE)
        task.close()


def test_a_wait_ends_after_its_seconds(task: Attachment) -> None:
    """Nothing has come; a look takes no time."""
    mailbox = AttachmentMailbox(task, ATTEMPT)
    mailbox.wait(0.01)
    begin = time.monotonic()
    mailbox.wait(0.05)
    assert 0.04 < time.monotonic() - begin < DEADLINE
    mailbox.wait(0)


def test_a_cancelled_task_hears_it_in_each_wait(here: EnvironmentThread, task: Attachment) -> None:
    """Also in one that only looks."""
    mailbox = AttachmentMailbox(task, ATTEMPT)
    here.run(lambda: here.host.obey(commands.CancelTask(ATTEMPT, "the user")))
    for seconds in (DEADLINE, 0):
        with pytest.raises(TaskCancelledError, match="the user"):
            mailbox.wait(seconds)


def test_an_environment_that_is_gone_ends_the_wait(here: EnvironmentThread) -> None:
    """The task does not wait for ever; what it says meanwhile, in a thread that stores, raises nothing there."""
    task = here.attach()
    mailbox = AttachmentMailbox(task, ATTEMPT)
    here.run(lambda: [each.end_session("gone") for each in list(here.host.task_registry.tasks)])
    for number in range(3):
        mailbox.acknowledge(number, b"", {})
    with pytest.raises(EnvironmentLostError):
        mailbox.wait(DEADLINE)
    task.close()
