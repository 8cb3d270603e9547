# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's side of a connection that breaks: nothing is carried out twice, nobody alive is lost."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from job_fakes import DEADLINE, FakeEnvironment, ThreadLauncher, fresh_service, run_well
from job_graphs import SERVICE, pipeline
from master_client import MasterClient
from penstock.errors import ControlError, EnvironmentLostError, PenstockError, StaleError
from penstock.job.core.states import JobState
from penstock.job.launcher import Submission
from penstock.job.shell.master import JobMaster, MasterIdentity
from penstock.link.commands import ReleaseJob, Shutdown
from penstock.link.control import raise_for_error
from penstock.link.master import (
    RELAYED,
    AttachEnvironment,
    AwaitProducers,
    Heartbeat,
    RegisterTask,
)
from penstock.link.questions import Asked
from penstock.link.wire import Plain, from_wire
from penstock.settings import Settings
from penstock.shuffle import AttemptId
from penstock.shuffle.requests import Request
from penstock.testing import wait_until

SECRET = b"s" * 32
A = TypeVar("A")


class Line:
    """An environment's connections, one by one; somebody listens at its address until `die`."""

    def __init__(self, master: str, name: str) -> None:
        self.name = name
        self._master = master
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._clients: list[MasterClient] = []
        self.client = self.connect(0)

    def connect(self, taken: int, pid: int = 1) -> MasterClient:
        """A new connection, attached after the commands up to `taken`."""
        self.client = MasterClient(self._master, SECRET, self.name)
        self._clients.append(self.client)
        self.attach(taken, pid)
        return self.client

    def attach(self, taken: int = 0, pid: int = 1) -> None:
        """Say that it is there."""
        self.client.ask(AttachEnvironment(self.name, self.address, "h", pid, taken))

    def die(self) -> None:
        """Hang up, and listen no more."""
        self._listener.close()
        for client in self._clients:
            client.cut()


def answer_of(future: Any) -> Plain:
    """The answer; raises the error if it was one."""
    return raise_for_error(future.result(DEADLINE))


class AskingTwice(FakeEnvironment):
    """Each question of a task comes twice at once, and a third time when it was answered."""

    numbers = itertools.count(1)

    def ask(self, request: Request[A], timeout: float = DEADLINE) -> A:
        """The answer, which is the same each time."""
        if type(request) not in RELAYED.values():
            return super().ask(request, timeout)
        number = next(self.numbers)
        answers = [answer_of(future) for future in [self.client.begin(request, number) for _ in range(2)]]
        answers.append(answer_of(self.client.begin(request, number)))
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


def test_a_connection_that_breaks_goes_on_behind_what_was_taken(rig: Rig) -> None:
    """While somebody listens at the environment's address it is not lost, and commands wait for it."""
    line = Line(rig.address, "env-1")
    tell = rig.master._driver.environments.tell
    for job in ("j1", "j2", "j3"):
        rig.master._call(lambda job=job: tell("env-1", ReleaseJob(job)))  # type: ignore[misc]
    got = [line.client.commands.get(timeout=DEADLINE) for _ in range(2)]
    assert got == [(1, ReleaseJob("j1")), (2, ReleaseJob("j2"))]
    line.client.cut()
    environment = rig.master._driver.environments.get("env-1")
    wait_until(lambda: environment.listener is None, "the end is noticed")
    rig.master._call(lambda: tell("env-1", ReleaseJob("j4")))
    second = line.connect(1)
    got = [second.commands.get(timeout=DEADLINE) for _ in range(3)]
    assert got == [(n, ReleaseJob(f"j{n}")) for n in (2, 3, 4)]
    assert rig.attached() == {"env-1"}
    line.die()
    wait_until(lambda: not rig.attached(), "its process is gone, so it is lost long before its lease is over")


def test_a_newer_connection_ends_the_older_one(rig: Rig) -> None:
    """The older one may hang where nobody was told of its end; its end changes nothing."""
    line = Line(rig.address, "env-1")
    older = line.client
    newer = line.connect(0)
    assert older.commands.get(timeout=DEADLINE) is None
    rig.master._call(lambda: rig.master._driver.environments.tell("env-1", ReleaseJob("j1")))
    assert newer.commands.get(timeout=DEADLINE) == (1, ReleaseJob("j1"))
    assert rig.master._driver.environments.get("env-1").listener is not None
    line.die()


def test_one_that_is_cut_off_is_lost_when_another_has_its_address(rig: Rig) -> None:
    """If ports are fixed, its successor listens there, so it can't be asked whether it lives."""
    line = Line(rig.address, "env-1")
    line.client.ask(Heartbeat("env-1", taken=0, asked=Asked()))
    third = MasterClient(rig.address, SECRET, "env-3")
    third.ask(AttachEnvironment("env-3", line.address, "h", 3))
    assert "env-1" in rig.attached()
    line.client.cut()
    wait_until(lambda: "env-1" not in rig.attached(), "it is lost")
    assert "env-3" in rig.attached()
    rig.master._call(lambda: rig.master._driver.lose_environment("env-3", "the test is over"))
    third.cut()
    line.die()


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
    work = AttemptId("j9", 0, 0, 1)
    rig.master._call(lambda: rig.master._driver.lose_environment("env-1", "the test says so"))
    with pytest.raises(EnvironmentLostError, match="not attached to this JobMaster any more"):
        answer_of(line.client.begin(RegisterTask(work, environment="env-1"), 1))
    line.die()


def test_an_environment_that_is_given_up_is_hung_up_on(rig: Rig) -> None:
    """It hears that it is to end first; one that hangs, and reads nothing, keeps no connection open."""
    line = Line(rig.address, "env-1")
    rig.master._call(lambda: rig.master._driver.lose_environment("env-1", "the test says so"))
    assert line.client.commands.get(timeout=DEADLINE) == (1, Shutdown())
    assert line.client.commands.get(timeout=DEADLINE) is None
    line.die()


def test_an_environment_that_is_lost_gets_no_answer(rig: Rig) -> None:
    """Its questions are given up with it, and the number of a question is checked like the rest."""
    line = Line(rig.address, "env-1")
    question = AwaitProducers(AttemptId("j9", 0, 0, 1))
    with pytest.raises(PenstockError):
        answer_of(line.client.begin(question, 1))
    environment = rig.master._driver.environments.get("env-1")
    line.client.ask(Heartbeat("env-1", asked=Asked(1, ())))
    assert environment.answers.kept == {}
    with pytest.raises(StaleError, match="question 1 was answered before"):
        answer_of(line.client.begin(question, 1))
    with pytest.raises(PenstockError, match="the number of a question can't be -1"):
        answer_of(line.client.begin(question, -1))
    line.die()
    with pytest.raises(ControlError):
        line.client.begin(question, 2)
    wait_until(lambda: not rig.attached(), "it is lost")


def test_a_question_goes_on_over_the_next_connection(rig: Rig) -> None:
    """The work on it is not begun again, and its answer comes over whichever connection asks."""
    line = Line(rig.address, "env-1")
    question = RegisterTask(AttemptId("j9", 0, 0, 1), environment="env-1")
    begun: list[int] = []
    opened = rig.master._driver.calls.open
    rig.master._driver.calls.open = lambda: begun.append(1) or opened()  # type: ignore[method-assign, func-returns-value]
    with pytest.raises(PenstockError) as first:
        answer_of(line.client.begin(question, 1))
    with pytest.raises(PenstockError) as second:
        answer_of(line.connect(0).begin(question, 1))
    assert (str(first.value), begun) == (str(second.value), [1])
    line.die()
