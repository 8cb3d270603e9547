# SPDX-License-Identifier: Apache-2.0
"""The environment's line to the JobMaster, over real connections: what is lost comes again, its end is known."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable

import pytest

from penstock.connection.handshake import Credentials
from penstock.connection.protection import HostAccess, Protection
from penstock.environment.control import LinkTimes, MasterLink
from penstock.environment.supervision import Supervisor
from penstock.errors import EnvironmentLostError, ProtocolError
from penstock.link.commands import Command, ReleaseJob, Shutdown, instruction
from penstock.link.master import DataEnded, Heartbeat, PartitionConsumable, RegisterTask
from penstock.link.wire import Plain
from penstock.shuffle import AttemptId, DatasetId, PartitionId
from penstock.testing import DEADLINE
from scripted_master import SECRET, ScriptedMaster

NAME = "env-1"


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log that pytest keeps has tracebacks, and with them connections, that are gone for everybody else."""
    monkeypatch.setattr(logging.getLogger("penstock.environment"), "disabled", True)


TIMES = LinkTimes(DEADLINE)


class Owned:
    """An environment that notes what it is to do."""

    def __init__(self) -> None:
        self.obeyed: list[Command] = []
        self.reasons: list[str] = []
        self.ended = asyncio.Event()

    def obey(self, command: Command, *, from_task: bool = False) -> object:
        """Note it."""
        assert not from_task
        self.obeyed.append(command)
        return None

    def heartbeat(self) -> Heartbeat:
        """Nothing to say."""
        return Heartbeat(NAME)

    def stop(self, reason: str) -> None:
        """Note why."""
        self.reasons.append(reason)
        self.ended.set()


Test = Callable[[ScriptedMaster, Owned, MasterLink], Awaitable[None]]


def linked(test: Test, answer: Callable[[str, Plain], None] = lambda _, __: None, times: LinkTimes = TIMES) -> None:
    """Run a test with an environment that is attached to a scripted JobMaster."""

    async def run() -> None:
        master = ScriptedMaster(answer)
        await master.start()
        owned = Owned()
        supervisor = Supervisor(owned.stop)
        link = MasterLink(
            master.address, HostAccess(Credentials(NAME, SECRET), Protection()), owned, supervisor, times
        )
        try:
            await link.start("tcp://h:1")
            await test(master, owned, link)
        finally:
            await supervisor.close()
            await link.close()
            master.close()

    asyncio.run(asyncio.wait_for(run(), 4 * DEADLINE))


def partition(index: int) -> PartitionId:
    """One of several."""
    return PartitionId(DatasetId("job", 0), index, 1)


def test_a_report_whose_answer_is_lost_comes_again_under_its_number() -> None:
    """Twice for the first, once for the third, in order; a JobMaster that drops doubles has each once."""
    losses = {1: 2, 3: 1}

    def answer(method: str, message: Plain) -> None:
        if method == "PartitionConsumable" and losses.get(message["number"], 0):
            losses[message["number"]] -= 1
            raise ConnectionError

    async def test(master: ScriptedMaster, _: Owned, link: MasterLink) -> None:
        for index in range(4):
            link.report(PartitionConsumable(partition(index)))
        while len(master.told("PartitionConsumable")) < 7:
            master.changed.clear()
            await master.changed.wait()
        heard = [(each["number"], each["partition"][1]) for each in master.told("PartitionConsumable")]
        assert heard == [(1, 0), (1, 0), (1, 0), (2, 1), (3, 2), (3, 2), (4, 3)]

    linked(test, answer)


def test_a_report_that_is_refused_holds_up_no_other() -> None:
    """It is logged; sending it again would not help."""

    def answer(method: str, message: Plain) -> None:
        if method == "PartitionConsumable" and message["number"] == 1:
            raise ProtocolError("no such partition")

    async def test(master: ScriptedMaster, _: Owned, link: MasterLink) -> None:
        for index in range(2):
            link.report(PartitionConsumable(partition(index)))
        while len(master.told("PartitionConsumable")) < 2:
            master.changed.clear()
            await master.changed.wait()
        assert [each["number"] for each in master.told("PartitionConsumable")] == [1, 2]

    linked(test, answer)


def test_commands_are_obeyed_and_the_last_one_is_known() -> None:
    """The environment asks whether the end was meant when it cleans up."""

    async def test(master: ScriptedMaster, owned: Owned, link: MasterLink) -> None:
        assert not link.dismissed
        master.instruct(instruction(ReleaseJob("j1")), instruction(Shutdown()), None)
        await owned.ended.wait()
        assert owned.obeyed == [ReleaseJob("j1"), Shutdown()]
        assert link.dismissed

    linked(test)


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        ({"op": "checkpoint"}, "line to the JobMaster failed: ProtocolError.*checkpoint"),
        ({"op": "ReleaseJob"}, "line to the JobMaster failed: ProtocolError.*ReleaseJob is not complete"),
    ],
)
def test_an_environment_does_not_live_on_deaf(plain: Plain, reason: str) -> None:
    """An instruction that it can't read ends it with the reason."""

    async def test(master: ScriptedMaster, owned: Owned, _: MasterLink) -> None:
        master.instruct(plain)
        await owned.ended.wait()
        assert len(owned.reasons) == 1
        assert re.search(reason, owned.reasons[0])

    linked(test)


def test_a_connection_that_carries_nonsense_is_made_anew() -> None:
    """Its bytes were damaged on their way: what was under way comes again over the next one, and nothing ends."""
    damaged = [b"\xff" * 40]

    def answer(method: str, _: Plain) -> None:
        if method == "DataEnded" and damaged:
            for connection in masters[-1]._connections:
                connection.logic.send(damaged[0])
            damaged.pop()

    masters: list[ScriptedMaster] = []

    async def test(master: ScriptedMaster, owned: Owned, link: MasterLink) -> None:
        masters.append(master)
        await link.ask(DataEnded(AttemptId("j1", 0, 0, 1)))
        assert master.questions == [1, 1]
        assert len(master.told("AttachEnvironment")) == 2
        assert owned.reasons == []

    linked(test, answer)


def test_a_connection_that_ends_is_made_again_and_goes_on_behind_what_has_come() -> None:
    """It says what it has, and a command that comes a second time is not obeyed a second time."""

    async def test(master: ScriptedMaster, owned: Owned, _: MasterLink) -> None:
        master.instruct(
            *(instruction(ReleaseJob("j1"), 1), instruction(ReleaseJob("j2"), 2), None),
            *(instruction(ReleaseJob("j2"), 2), instruction(ReleaseJob("j3"), 3), None, None),
            instruction(Shutdown(), 4),
        )
        while not master.told("Heartbeat") or master.told("Heartbeat")[-1]["taken"] < 4:
            master.changed.clear()
            await master.changed.wait()
        master.instruct(None)
        await owned.ended.wait()
        assert owned.obeyed == [*map(ReleaseJob, ("j1", "j2", "j3")), Shutdown()]
        assert [each["taken"] for each in master.told("AttachEnvironment")] == [0, 2, 3, 3]

    linked(test)


def test_a_question_is_asked_again_under_its_number_until_it_is_answered() -> None:
    """A connection that breaks loses none, and heartbeats say which ones have their answers."""
    losses = [1, 1]

    def answer(method: str, _: Plain) -> None:
        if method == "DataEnded" and losses:
            losses.pop()
            raise ConnectionError

    async def test(master: ScriptedMaster, _: Owned, link: MasterLink) -> None:
        for index in range(2):
            await link.ask(DataEnded(AttemptId("j1", 0, index, 1)))
        assert master.questions == [1, 1, 1, 2]
        while not master.told("Heartbeat") or master.told("Heartbeat")[-1]["asked"] != (2, ()):
            master.changed.clear()
            await master.changed.wait()

    linked(test, answer)


def test_a_question_that_is_refused_is_not_asked_again() -> None:
    """Its error is its answer."""

    def answer(method: str, _: Plain) -> None:
        if method == "DataEnded":
            raise ProtocolError("there is no such attempt")

    async def test(master: ScriptedMaster, _: Owned, link: MasterLink) -> None:
        with pytest.raises(ProtocolError, match="no such attempt"):
            await link.ask(DataEnded(AttemptId("j1", 0, 0, 1)))
        assert master.questions == [1]

    linked(test, answer)


def test_a_jobmaster_that_is_gone_ends_the_environment() -> None:
    """Its host says that nobody listens there: long before the lease is over."""

    async def test(master: ScriptedMaster, owned: Owned, _: MasterLink) -> None:
        master.instruct(None)
        master.close()
        await owned.ended.wait()
        assert owned.reasons[0] == "its line to the JobMaster ended"

    linked(test, times=LinkTimes(DEADLINE, refused=0.1))


def test_a_heartbeat_that_is_refused_ends_the_environment() -> None:
    """The JobMaster has given it up."""

    def answer(method: str, _: Plain) -> None:
        if method == "Heartbeat":
            raise EnvironmentLostError("environment env-1 is not attached any more")

    async def test(_: ScriptedMaster, owned: Owned, __: MasterLink) -> None:
        await owned.ended.wait()
        assert "lease failed: EnvironmentLostError" in owned.reasons[0]

    linked(test, answer)


def test_a_task_that_asks_beside_one_that_was_given_up_ends_the_environment() -> None:
    """The task hears that its environment is lost, and can ask beside the next one: nobody has heard of it yet."""

    def answer(method: str, _: Plain) -> None:
        if method == "RegisterTask":
            raise EnvironmentLostError("environment env-1 is not attached any more")

    async def test(_: ScriptedMaster, owned: Owned, link: MasterLink) -> None:
        with pytest.raises(EnvironmentLostError):
            await link.ask(RegisterTask(AttemptId("job", 0, 0, 1)))
        assert "the JobMaster has given it up" in owned.reasons[0]

    linked(test, answer)


def test_a_fault_while_a_command_is_obeyed_ends_the_environment() -> None:
    """Injected: before, the stream was given up in silence and the environment went on."""

    async def test(master: ScriptedMaster, owned: Owned, _: MasterLink) -> None:
        def broken(*_: object, **__: object) -> object:
            raise KeyError("injected")

        owned.obey = broken  # type: ignore[method-assign]
        master.instruct(instruction(ReleaseJob("j1")))
        await owned.ended.wait()
        assert owned.reasons == ["its line to the JobMaster failed: KeyError('injected')"]

    linked(test)
