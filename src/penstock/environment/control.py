# SPDX-License-Identifier: Apache-2.0
"""The environment's connection to the JobMaster: questions, commands, reports, and the lease.

The lease is a heartbeat every half second. When the JobMaster says `Shutdown`, when its process is gone, or when no
heartbeat got through for the lease's time, the environment ends: nothing of a dead application stays behind. A
connection that breaks is made anew meanwhile. Commands, reports and questions of tasks have numbers: what the other
side has not got comes again over the new connection, and what it has had counts once. A driver that pauses finds
everything that was asked of it meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from penstock.connection.frame_connection import FrameConnection
from penstock.connection.handshake import BrokenHandshakeError, Service
from penstock.connection.opening import HANDSHAKE_SECONDS, Opener, OpeningSettings
from penstock.connection.protection import HostAccess
from penstock.environment.master_line import MasterLine, NotAnsweredError
from penstock.environment.supervision import Supervisor
from penstock.errors import (
    ControlError,
    EnvironmentLostError,
    PenstockError,
)
from penstock.link.commands import Command, Shutdown, number_of, read_instruction
from penstock.link.control import raise_for_error
from penstock.link.leases import WakingClock
from penstock.link.master import RELAYED, AttachEnvironment, Heartbeat, PutFlag, Report
from penstock.link.outbox import Inbox, Outbox
from penstock.link.questions import Questions
from penstock.link.wire import Plain, from_wire
from penstock.shuffle.requests import Request

log = logging.getLogger("penstock.environment")

A = TypeVar("A")

_CALLS = 6
"""So many calls without an answer fit into the lease."""
_OF_TASKS = tuple(RELAYED.values())
"""Answered when the JobMaster can answer; one that is gone ends the environment, and with it the wait."""


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """The seconds of the link: the lease, from one heartbeat to the next, and until something is tried again."""

    lease: float
    heartbeat: float = 0.5
    again: float = 0.25
    refused: float = 2.0
    """A JobMaster whose host says for so long that no process listens there is gone."""
    broken: float = 10.0
    """A handshake that breaks off for so long is with another application; a connection may be cut in it, too."""

    @property
    def call(self) -> float:
        """The most that one call takes."""
        return self.lease / _CALLS


class Owned(Protocol):
    """The part of the environment that belongs to the JobMaster."""

    def obey(self, command: Command, *, from_task: bool = False) -> object:
        """Do what is commanded."""

    def heartbeat(self) -> Heartbeat:
        """The state of the environment and of its tasks."""


class NoMaster:
    """The stand-in if no JobMaster owns the environment: in tests, and for tools."""

    dismissed = True

    async def ask(self, request: Request[A]) -> A:
        """Refuse."""
        raise ControlError(f"this environment has no JobMaster to ask {request.METHOD}")

    def report(self, report: Report) -> None:
        """Drop it: there is no JobMaster."""

    def put(self, job: str, flag: str, *, is_raised: bool) -> None:
        """Do nothing: the socket's window is all that holds a sender back."""

    def forget(self, job: str) -> None:
        """No job has a flag."""

    async def close(self) -> None:
        """Nothing to close."""


class MasterLink:
    """The connection to one JobMaster, and those that follow it."""

    def __init__(
        self, master: str, access: HostAccess, owned: Owned, supervisor: Supervisor, times: LinkTimes
    ) -> None:
        self.dismissed = False
        """True if the JobMaster said that this is the end."""
        self._times = times
        self._master = master
        self._environment = access.credentials.identity
        self._owned = owned
        self._supervisor = supervisor
        limits = OpeningSettings(times.call, min(HANDSHAKE_SECONDS, times.call), ())
        transport = access.protection.transport()
        self._scheme = transport.scheme
        self._opener = Opener(transport, Service.MASTER, access.credentials, limits)
        self._line: MasterLine | None = None
        self._attached = asyncio.Event()
        self._commands = Inbox()
        self._questions = Questions()
        self._outbox: Outbox[Report] = Outbox()
        self._to_report = asyncio.Event()
        self._outbox.wake = self._to_report.set

    async def start(self, address: str) -> None:
        """Prove, be proven to, and attach; tried until the lease's time has passed.

        Raises ControlError or AuthenticationError; soon, where no process listens.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        attach = AttachEnvironment(self._environment, address, os.uname().nodename, os.getpid())
        while True:
            try:
                line = await self._connect(attach)
                break
            except NotAnsweredError as error:
                if loop.time() - began > min(self._times.lease, error.patience or self._times.lease):
                    raise
                await asyncio.sleep(self._times.again)
        self._supervisor.keep("line to the JobMaster", lambda: self._hold(line, attach))
        self._supervisor.keep("lease", self._beat)
        self._supervisor.keep("outbox", self._post)

    async def ask(self, request: Request[A]) -> A:
        """Ask the JobMaster; raises what it raised, or NotAnsweredError.

        A task's question is asked over each new connection until it is answered. If the JobMaster has given the
        environment up, that ends: its task asks again beside the next one.
        """
        if not isinstance(request, _OF_TASKS):
            return await self._ask(request, self._times.call)
        number = self._questions.ask()
        try:
            while True:
                await self._attached.wait()
                try:
                    return await self._ask(request, None, number)
                except NotAnsweredError as error:
                    log.info("%s is asked again: %s", request.METHOD, error)
        except EnvironmentLostError as error:
            self._supervisor.stop(f"the JobMaster has given it up: {error}")
            raise
        finally:
            self._questions.answered(number)

    def report(self, report: Report) -> None:
        """Tell the JobMaster something, in order, until it has taken it."""
        self._outbox.put(report)

    def put(self, job: str, flag: str, *, is_raised: bool) -> None:
        """The JobMaster coordinates: a gate raises its flag, or takes it down."""
        self.report(PutFlag(job, flag, is_raised))

    def forget(self, job: str) -> None:
        """The JobMaster has said so."""

    async def close(self) -> None:
        """Hang up; idempotent."""
        if self._line is not None:
            self._line.connection.close()

    async def _ask(self, request: Request[A], seconds: float | None, question: int = 0) -> A:
        if self._line is None:
            raise NotAnsweredError(f"{request.METHOD}: there is no connection to the JobMaster at {self._master}")
        try:
            async with asyncio.timeout(seconds):
                answer = await self._line.ask(request, question)
        except TimeoutError:
            text = f"the JobMaster at {self._master} did not answer {request.METHOD} within {seconds:g} s"
            raise NotAnsweredError(text, is_late=True) from None
        found: A = from_wire(request.ANSWER, raise_for_error(answer))
        return found

    async def _connect(self, attach: AttachEnvironment) -> MasterLine:
        """A new connection, over which this environment is attached."""
        try:
            endpoint = await self._opener.open(f"{self._scheme}://{self._master}")
        except BrokenHandshakeError as error:
            raise NotAnsweredError(str(error), patience=self._times.broken) from error
        except EnvironmentLostError as error:
            patience = self._times.refused if isinstance(error.__cause__, ConnectionRefusedError) else None
            raise NotAnsweredError(f"the JobMaster is not reached: {error}", patience=patience) from error
        line = self._line = MasterLine(self._command)
        line.connection = FrameConnection(endpoint, line.logic, lambda _, cause: self._closed(line, cause))
        try:
            await self._ask(replace(attach, taken=self._commands.last), self._times.call)
        except BaseException:
            line.connection.close()
            raise
        if not line.connection.is_closed:
            self._attached.set()
        return line

    def _closed(self, line: MasterLine, cause: BaseException | None) -> None:
        """A connection has ended: from this moment on calls wait for the next one."""
        if line is self._line:
            self._line = None
            self._attached.clear()
        line.closed(cause)

    async def _hold(self, line: MasterLine, attach: AttachEnvironment) -> None:
        """Keep a connection, one after the other, to the JobMaster's last word or its end."""
        loop = asyncio.get_running_loop()
        while True:
            cause = await line.ended
            if self.dismissed:
                return
            log.info("the line to the JobMaster broke: %s", cause)
            last_seen = loop.time()
            while True:
                try:
                    line = await self._connect(attach)
                    break
                except NotAnsweredError as error:
                    if error.patience is None:
                        last_seen = loop.time()
                    elif loop.time() - last_seen > error.patience:
                        return
                    await asyncio.sleep(self._times.again)

    def _command(self, plain: Plain) -> None:
        number, command = number_of(plain), read_instruction(plain)
        if number == 0 or self._commands.take(number):
            self.dismissed = self.dismissed or isinstance(command, Shutdown)
            self._owned.obey(command)

    async def _beat(self) -> None:
        clock = WakingClock(most=self._times.call + 2 * self._times.heartbeat)
        last = clock.now()
        while True:
            line = self._line
            try:
                await self._ask(self._heartbeat(), self._times.call)
                last = clock.now()
            except NotAnsweredError as error:
                if clock.now() - last > self._times.lease:
                    log.info("no heartbeat got through for %s s: %s", self._times.lease, error)
                    return
                if error.is_late and line is not None:  # the driver pauses, or its end was not noticed
                    line.connection.close(EnvironmentLostError("it is open and silent"))
            await asyncio.sleep(self._times.heartbeat)

    def _heartbeat(self) -> Heartbeat:
        return replace(self._owned.heartbeat(), taken=self._commands.last, asked=self._questions.asked)

    async def _post(self) -> None:
        """Send reports, one after the other; each again until it is taken, or refused for good."""
        while True:
            found = self._outbox.first
            if found is None:
                self._to_report.clear()
                await self._to_report.wait()
                continue
            number, report = found
            try:
                await self._attached.wait()
                await self._ask(replace(report, number=number), self._times.call)
            except NotAnsweredError as error:
                log.info("%s is sent again: %s", report, error)
                await asyncio.sleep(self._times.again)
                continue
            except PenstockError:
                log.exception("the JobMaster refuses %s", report)
            self._outbox.taken(number)
