# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's side of a connection that breaks: nothing is carried out twice, nobody alive is lost."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import Any, TypeVar

import grpc
import pytest

from job_fakes import DEADLINE, FakeEnvironment, ThreadLauncher, fresh_service, run_well
from job_graphs import SERVICE, pipeline
from penstock.job.core.states import JobState
from penstock.job.launcher import Submission
from penstock.job.shell.client import MasterClient
from penstock.job.shell.master import JobMaster, MasterIdentity
from penstock.link import control
from penstock.link.commands import Command, ReleaseJob, number_of, read_instruction
from penstock.link.master import (
    ENVIRONMENT,
    RELAYED,
    AttachEnvironment,
    AwaitProducers,
    Heartbeat,
    Listen,
    RegisterTask,
    call_of,
)
from penstock.link.questions import Asked
from penstock.link.wire import from_wire
from penstock.shuffle import AttemptId, Settings
from penstock.shuffle.errors import ControlError, EnvironmentLostError, PenstockError, StaleError
from penstock.shuffle.requests import Request
from penstock.testing import wait_until

SECRET = b"s" * 32
A = TypeVar("A")


class Line:
    """An environment's calls, one by one; somebody listens at its address until `die`."""

    def __init__(self, master: str, name: str) -> None:
        self.client = MasterClient(master, SECRET, ENVIRONMENT, name)
        self.name = name
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.attach()

    def attach(self, pid: int = 1) -> None:
        """Say that it is there."""
        self.client.ask(AttachEnvironment(self.name, self.address, "h", pid))

    def listen(self, taken: int) -> Any:
        """A stream of instructions."""
        stream = self.client._channel.unary_stream(f"/{control.SERVICE}/{Listen.METHOD}")
        message, metadata = call_of(Listen(self.name, taken), self.client._metadata())
        return stream(message, metadata=metadata, timeout=DEADLINE)

    def ask(self, request: Request[A], number: int) -> Any:
        """The future answer to a question."""
        method = self.client._channel.unary_unary(f"/{control.SERVICE}/{request.METHOD}")
        message, metadata = call_of(request, self.client._metadata(), number)
        return method.future(message, metadata=metadata, timeout=DEADLINE)

    def die(self) -> None:
        """Hang up, and listen no more."""
        self._listener.close()
        self.client.close()


def read(instruction: bytes) -> tuple[int, Command]:
    """The number and the command of an instruction."""
    plain = control.unpack(instruction)
    return number_of(plain), read_instruction(plain)


def answer_of(future: Any) -> control.Message:
    """The answer; raises the error if it was one."""
    return control.raise_for_error(control.unpack(future.result(DEADLINE)))


class AskingTwice(FakeEnvironment):
    """Each question of a task comes twice at once, and a third time when it was answered."""

    numbers = itertools.count(1)

    def ask(self, request: Request[A], timeout: float = DEADLINE) -> A:
        """The answer, which is the same each time."""
        if type(request) not in RELAYED.values():
            return super().ask(request, timeout)
        number = next(self.numbers)
        method = self.client._channel.unary_unary(f"/{control.SERVICE}/{request.METHOD}")
        message, metadata = call_of(request, self.client._metadata(), number)
        try:
            futures = [method.future(message, metadata=metadata, timeout=timeout) for _ in range(2)]
            answers = [answer_of(future) for future in futures]
            answers.append(answer_of(method.future(message, metadata=metadata, timeout=timeout)))
        except grpc.RpcError as error:  # the JobMaster closes
            raise ControlError(str(error)) from error
        assert answers[0] == answers[1] == answers[2]
        answer: A = from_wire(request.ANSWER, answers[0])
        return answer


class Rig:
    """A JobMaster whose launcher runs well-behaved tasks."""

    def __init__(self) -> None:
        fresh_service()
        self.settings = Settings.from_conf({"spark.penstock.shuffle.service": SERVICE})
        self.launcher = ThreadLauncher(run_well)
        self.master = JobMaster(MasterIdentity("app", SECRET), self.launcher, self.settings)
        self.address = self.master.start()

    def attached(self) -> set[str]:
        """The environments that it knows."""
        return set(self.master._driver.environments._attached)


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A JobMaster, closed at the end."""
    rig = Rig()
    yield rig
    rig.master.close()


def test_a_job_whose_every_question_comes_three_times_runs_as_ever(rig: Rig) -> None:
    """Each gets one answer, and no task is registered, deployed or ended twice."""
    environment = rig.launcher.environment = AskingTwice(rig.address, SECRET, "env-1")
    try:
        handle = rig.master.submit(Submission(rig.master.new_job(), pipeline(), rig.settings, 8))
        result = handle.wait(DEADLINE).result
        assert result.state is JobState.FINISHED
        names = [name for _, name, _ in result.trace]
        assert (names.count("task_deployed"), names.count("task_finished")) == (4, 4)
    finally:
        rig.master.close()
        environment.close()


def test_a_stream_that_breaks_goes_on_behind_what_was_taken(rig: Rig) -> None:
    """While somebody listens at the environment's address it is not lost, and commands wait for it."""
    line = Line(rig.address, "env-1")
    tell = rig.master._driver.environments.tell
    first = line.listen(0)
    for job in ("j1", "j2", "j3"):
        rig.master._call(lambda job=job: tell("env-1", ReleaseJob(job)))  # type: ignore[misc]
    assert [read(next(first)) for _ in range(2)] == [(1, ReleaseJob("j1")), (2, ReleaseJob("j2"))]
    first.cancel()
    environment = rig.master._driver.environments.get("env-1")
    wait_until(lambda: not environment.commands.is_open, "the end is noticed")
    rig.master._call(lambda: tell("env-1", ReleaseJob("j4")))
    second = line.listen(1)
    assert [read(next(second)) for _ in range(3)] == [(n, ReleaseJob(f"j{n}")) for n in (2, 3, 4)]
    assert rig.attached() == {"env-1"}
    line.die()
    wait_until(lambda: not rig.attached(), "its process is gone, so it is lost long before its lease is over")


def test_a_newer_stream_ends_the_older_one(rig: Rig) -> None:
    """The older one may hang in a connection whose end nobody was told of; its end changes nothing."""
    line = Line(rig.address, "env-1")
    older = line.listen(0)
    environment = rig.master._driver.environments.get("env-1")
    wait_until(lambda: environment.commands.is_open, "it listens")
    newer = line.listen(0)
    with pytest.raises(StopIteration):
        next(older)
    rig.master._call(lambda: rig.master._driver.environments.tell("env-1", ReleaseJob("j1")))
    assert read(next(newer)) == (1, ReleaseJob("j1"))
    assert environment.commands.is_open
    line.die()


def test_one_that_does_not_listen_is_lost_when_another_has_its_address(rig: Rig) -> None:
    """If ports are fixed, its successor listens there, so it can't be asked whether it lives."""
    line, other = Line(rig.address, "env-1"), Line(rig.address, "env-2")
    next_one = other.listen(0)
    stream = line.listen(0)
    environment = rig.master._driver.environments.get("env-1")
    wait_until(lambda: environment.commands.is_open, "it listens")
    line.client.ask(Heartbeat("env-1", taken=0, asked=Asked()))
    other.client.close()
    third = MasterClient(rig.address, SECRET, ENVIRONMENT, "env-3")
    third.ask(AttachEnvironment("env-3", line.address, "h", 3))
    assert "env-1" in rig.attached()
    stream.cancel()
    wait_until(lambda: "env-1" not in rig.attached(), "it is lost")
    assert "env-3" in rig.attached()
    rig.master._call(lambda: rig.master._driver.lose_environment("env-3", "the test is over"))
    third.close()
    next_one.cancel()
    line.die()
    other.die()


def test_who_attaches_again_because_the_answer_was_lost_is_the_same(rig: Rig) -> None:
    """Another process of that name is not: both are given up."""
    line = Line(rig.address, "env-1")
    line.attach()
    assert rig.attached() == {"env-1"}
    with pytest.raises(EnvironmentLostError, match="not attached to this JobMaster any more"):
        line.attach(pid=2)
    assert rig.attached() == set()
    line.die()


def test_a_task_beside_an_environment_that_was_given_up_is_told_so(rig: Rig) -> None:
    """Its own question is not stale: it is not told so, or it would end, and its job would wait for it."""
    line = Line(rig.address, "env-1")
    stream = line.listen(0)
    work = AttemptId("j9", 0, 0, 1)
    rig.master._call(lambda: rig.master._driver.lose_environment("env-1", "the test says so"))
    with pytest.raises(EnvironmentLostError, match="not attached to this JobMaster any more"):
        answer_of(line.ask(RegisterTask(work, environment="env-1"), 1))
    del stream
    line.die()


def test_an_environment_that_is_lost_gets_no_answer(rig: Rig) -> None:
    """Its questions are given up with it, and the number of a question is checked like the rest."""
    line = Line(rig.address, "env-1")
    stream = line.listen(0)
    waiting = line.ask(AwaitProducers(AttemptId("j9", 0, 0, 1)), 1)
    with pytest.raises(PenstockError):
        answer_of(waiting)
    environment = rig.master._driver.environments.get("env-1")
    line.client.ask(Heartbeat("env-1", asked=Asked(1, ())))
    assert environment.answers.kept == {}
    with pytest.raises(StaleError, match="question 1 was answered before"):
        answer_of(line.ask(AwaitProducers(AttemptId("j9", 0, 0, 1)), 1))
    method = line.client._channel.unary_unary(f"/{control.SERVICE}/{AwaitProducers.METHOD}")
    message, metadata = call_of(AwaitProducers(AttemptId("j9", 0, 0, 1)), line.client._metadata())
    data = method(message, metadata=(*metadata, (control.QUESTION_HEADER, "-1")), timeout=DEADLINE)
    with pytest.raises(PenstockError, match="the number of a question can't be '-1'"):
        control.raise_for_error(control.unpack(data))
    line.die()
    with pytest.raises((grpc.RpcError, ValueError)):
        line.ask(AwaitProducers(AttemptId("j9", 0, 0, 1)), 2).result(DEADLINE)
    del stream
    wait_until(lambda: not rig.attached(), "it is lost")
