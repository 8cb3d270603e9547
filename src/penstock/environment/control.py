# SPDX-License-Identifier: Apache-2.0
"""The environment's line to the JobMaster: gRPC calls, the stream of commands, the reports, and the lease.

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
from dataclasses import replace
from typing import Protocol, TypeVar

from penstock.environment.config import Identity
from penstock.environment.supervision import Supervisor
from penstock.link import control
from penstock.link.commands import Command, Shutdown, number_of, read_instruction
from penstock.link.leases import WakingClock
from penstock.link.listeners import nobody_listens
from penstock.link.master import (
    ENVIRONMENT,
    RELAYED,
    AttachEnvironment,
    Challenge,
    Heartbeat,
    Listen,
    MasterProof,
    Metadata,
    Report,
    call_of,
)
from penstock.link.outbox import Inbox, Outbox
from penstock.link.questions import Questions
from penstock.link.rpc import grpc
from penstock.link.wire import from_wire, to_wire
from penstock.shuffle.errors import ControlError, EnvironmentLostError, PenstockError
from penstock.shuffle.requests import Request

log = logging.getLogger("penstock.environment")

A = TypeVar("A")

_HEARTBEAT_SECONDS = 0.5
_CALLS = 6
"""So many calls without an answer fit into the lease."""
_AGAIN_SECONDS = 0.25
_GONE_SECONDS = 10.0
"""Seconds that one looks for a JobMaster where nobody listens."""
_REFUSED_SECONDS = 2.0
"""A JobMaster whose host says for so long that nobody listens there is gone."""
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
    # Each channel has a connection of its own: a new one does not find the old one's.
    ("grpc.use_local_subchannel_pool", 1),
    # The lease runs while a new connection is made.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 5000),
)
_OF_TASKS = tuple(RELAYED.values())
"""Answered when the JobMaster can answer; one that is gone ends the environment, and with it the wait."""
_BROKEN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
    }
)
"""The codes by which gRPC tells of a connection that broke, at whichever moment."""


class NotAnsweredError(ControlError):
    """The JobMaster did not answer a call. `is_gone`: nobody was reached; `is_broken`: it may answer another time."""

    def __init__(self, text: str, *, is_gone: bool, is_broken: bool) -> None:
        super().__init__(text)
        self.is_gone = is_gone
        self.is_broken = is_broken


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
        """Nobody wants to know."""

    async def close(self) -> None:
        """Nothing to close."""


class MasterLink:
    """The line to one JobMaster."""

    def __init__(self, master: str, identity: Identity, owned: Owned, supervisor: Supervisor, lease: float) -> None:
        self.dismissed = False
        """True if the JobMaster said that this is the end."""
        self._lease = lease
        self._call_seconds = lease / _CALLS
        self._master = master
        self._identity = identity
        self._owned = owned
        self._supervisor = supervisor
        self._channel = grpc.aio.insecure_channel(master, options=_OPTIONS)
        self._session: Metadata = ()
        self._commands = Inbox()
        self._questions = Questions()
        self._outbox: Outbox[Report] = Outbox()
        self._to_report = asyncio.Event()
        self._outbox.wake = self._to_report.set

    async def start(self, address: str) -> None:
        """Prove, be proven to, attach, and begin to listen; tried until the lease's time has passed.

        Raises ControlError or AuthenticationError; soon, where nobody listens.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self._session:
            try:
                await self._attach(address)
            except NotAnsweredError as error:
                self._session = ()
                if loop.time() - began > (min(_GONE_SECONDS, self._lease) if error.is_gone else self._lease):
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)
                await self._connect_anew()
        self._supervisor.keep("line to the JobMaster", self._listen)
        self._supervisor.keep("lease", self._beat)
        self._supervisor.keep("outbox", self._post)

    async def ask(self, request: Request[A]) -> A:
        """Ask the JobMaster; raises what it raised, or NotAnsweredError.

        A task's question is asked over each new connection until it is answered. If the JobMaster has given the
        environment up, that ends: its task asks again beside the next one.
        """
        if not isinstance(request, _OF_TASKS):
            return await self._ask(request)
        number = self._questions.ask()
        try:
            while True:
                try:
                    return await self._ask(request, number)
                except NotAnsweredError as error:
                    if not error.is_broken:
                        raise
                    log.info("%s is asked again: %s", request.METHOD, error)
                    await asyncio.sleep(_AGAIN_SECONDS)
        except EnvironmentLostError as error:
            self._supervisor.stop(f"the JobMaster has given it up: {error}")
            raise
        finally:
            self._questions.answered(number)

    def report(self, report: Report) -> None:
        """Tell the JobMaster something, in order, until it has taken it."""
        self._outbox.put(report)

    async def close(self) -> None:
        """Hang up; idempotent."""
        await self._channel.close()

    async def _ask(self, request: Request[A], question: int = 0) -> A:
        channel = self._channel
        stub = channel.unary_unary(f"/{control.SERVICE}/{request.METHOD}")
        message, metadata = call_of(request, self._session, question)
        try:
            # If there is no connection, a question waits for one.
            timeout = None if question else self._call_seconds
            data = await stub(message, timeout=timeout, metadata=metadata, wait_for_ready=question > 0)
        except grpc.aio.AioRpcError as error:
            code = error.code()
            text = f"the JobMaster at {self._master} did not answer {request.METHOD}: {error.details()}"
            is_gone = code is grpc.StatusCode.UNAVAILABLE
            raise NotAnsweredError(text, is_gone=is_gone, is_broken=code in _BROKEN) from error
        except asyncio.CancelledError as error:
            if not self._has_given_up(channel):
                raise
            text = f"{request.METHOD} was under way over a connection that was given up"
            raise NotAnsweredError(text, is_gone=False, is_broken=True) from error
        answer: A = from_wire(request.ANSWER, control.raise_for_error(control.unpack(data)))
        return answer

    async def _connect_anew(self) -> None:
        """Give the connection up; what was under way over it is asked over the next one."""
        former, self._channel = self._channel, grpc.aio.insecure_channel(self._master, options=_OPTIONS)
        await former.close()

    def _has_given_up(self, channel: grpc.aio.Channel) -> bool:
        """Tell whether gRPC raised a CancelledError for that: it does so if a call's channel is closed."""
        task = asyncio.current_task()
        return channel is not self._channel and task is not None and not task.cancelling()

    async def _attach(self, address: str) -> None:
        proof = MasterProof(self._identity.secret, ENVIRONMENT, self._identity.environment)
        authenticated = await self.ask(proof.answer(await self.ask(Challenge())))
        self._session = ((control.SESSION_HEADER, proof.check(authenticated, self._master)),)
        host = os.uname().nodename
        await self.ask(AttachEnvironment(self._identity.environment, address, host, os.getpid()))

    async def _listen(self) -> None:
        """Obey, over one connection after the other, to the JobMaster's last word or its end."""
        loop = asyncio.get_running_loop()
        last_seen = loop.time()
        while not self.dismissed:
            channel = self._channel
            try:
                await self._obey_stream()
            except grpc.aio.AioRpcError as error:
                log.info("the line to the JobMaster broke: %s", error.details())
            except asyncio.CancelledError:
                if not self._has_given_up(channel):
                    raise
            if not await nobody_listens(self._master):
                last_seen = loop.time()
            elif loop.time() - last_seen > _REFUSED_SECONDS:
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _obey_stream(self) -> None:
        stub = self._channel.unary_stream(f"/{control.SERVICE}/{Listen.METHOD}")
        request = control.pack(to_wire(Listen(self._identity.environment, self._commands.last)))
        async for data in stub(request, metadata=self._session):
            plain = control.raise_for_error(control.unpack(data))
            number, command = number_of(plain), read_instruction(plain)
            if number == 0 or self._commands.take(number):
                self.dismissed = self.dismissed or isinstance(command, Shutdown)
                self._owned.obey(command)

    async def _beat(self) -> None:
        clock = WakingClock(most=self._call_seconds + 2 * _HEARTBEAT_SECONDS)
        last = clock.now()
        while True:
            try:
                await self.ask(self._heartbeat())
                last = clock.now()
            except NotAnsweredError as error:
                if clock.now() - last > self._lease:
                    log.info("no heartbeat got through for %s s: %s", self._lease, error)
                    return
                if not error.is_broken:  # it is open and silent: the driver pauses, or nobody told us of its end
                    await self._connect_anew()
            await asyncio.sleep(_HEARTBEAT_SECONDS)

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
                await self.ask(replace(report, number=number))
            except NotAnsweredError as error:
                log.info("%s is sent again: %s", report, error)
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            except PenstockError:
                log.exception("the JobMaster refuses %s", report)
            self._outbox.taken(number)
