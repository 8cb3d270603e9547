# SPDX-License-Identifier: Apache-2.0
"""The environment's line to the JobMaster: gRPC calls, the stream of commands, the reports, and the lease.

The lease is a heartbeat every half second. When the JobMaster says `Shutdown`, when the stream of commands ends, or
when no heartbeat got through for the lease's time, the environment ends: nothing of a dead application stays
behind. A driver that is killed ends the stream; one that pauses does not, and finds everything that was asked of it
meanwhile, or is asked again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Protocol, TypeVar

import grpc
import grpc.aio

from penstock.environment.config import Identity
from penstock.environment.outbox import Outbox
from penstock.environment.supervision import Supervisor
from penstock.link import control
from penstock.link.commands import Command, Shutdown, read_instruction
from penstock.link.leases import WakingClock
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
from penstock.link.wire import Request, from_wire, to_wire
from penstock.shuffle.errors import ControlError, PenstockError

log = logging.getLogger("penstock.environment")

A = TypeVar("A")

_HEARTBEAT_SECONDS = 0.5
_CALLS = 6
"""So many calls without an answer fit into the lease."""
_AGAIN_SECONDS = 0.25
_GONE_SECONDS = 10.0
"""How long one looks for a JobMaster where nobody listens."""
_OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.enable_http_proxy", 0)]
_OF_TASKS = tuple(RELAYED.values())
"""Answered when the JobMaster can answer; one that is gone ends the environment, and with it the wait."""


class NotAnsweredError(ControlError):
    """The JobMaster did not answer a call. `is_gone`: nobody listens where it was."""

    def __init__(self, text: str, *, is_gone: bool) -> None:
        super().__init__(text)
        self.is_gone = is_gone


class Owned(Protocol):
    """What belongs to the JobMaster."""

    def obey(self, command: Command, *, from_task: bool = False) -> object:
        """Do what is commanded."""

    def heartbeat(self) -> Heartbeat:
        """How it is."""


class NoMaster:
    """Where no JobMaster owns the environment: in tests, and for tools."""

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
        """Whether the JobMaster said that this is the end."""
        self._lease = lease
        self._call_seconds = lease / _CALLS
        self._master = master
        self._identity = identity
        self._owned = owned
        self._supervisor = supervisor
        self._channel = grpc.aio.insecure_channel(master, options=_OPTIONS)
        self._session: Metadata = ()
        self._outbox = Outbox()
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
                await self._channel.close()
                if loop.time() - began > (min(_GONE_SECONDS, self._lease) if error.is_gone else self._lease):
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)
                self._channel = grpc.aio.insecure_channel(self._master, options=_OPTIONS)
        self._supervisor.keep("line to the JobMaster", self._listen)
        self._supervisor.keep("lease", self._beat)
        self._supervisor.keep("outbox", self._post)

    async def ask(self, request: Request[A]) -> A:
        """Ask the JobMaster; raises what it raised, or NotAnsweredError."""
        stub = self._channel.unary_unary(f"/{control.SERVICE}/{request.METHOD}")
        timeout = None if isinstance(request, _OF_TASKS) else self._call_seconds
        message, metadata = call_of(request, self._session)
        try:
            data = await stub(message, timeout=timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            text = f"the JobMaster at {self._master} did not answer {request.METHOD}: {error.details()}"
            raise NotAnsweredError(text, is_gone=error.code() is grpc.StatusCode.UNAVAILABLE) from error
        answer: A = from_wire(request.ANSWER, control.raise_for_error(control.unpack(data)))
        return answer

    def report(self, report: Report) -> None:
        """Tell the JobMaster something, in order, until it has taken it."""
        self._outbox.put(report)

    async def close(self) -> None:
        """Hang up; idempotent."""
        await self._channel.close()

    async def _attach(self, address: str) -> None:
        proof = MasterProof(self._identity.secret, ENVIRONMENT, self._identity.environment)
        authenticated = await self.ask(proof.answer(await self.ask(Challenge())))
        self._session = ((control.SESSION_HEADER, proof.check(authenticated, self._master)),)
        host = os.uname().nodename
        await self.ask(AttachEnvironment(self._identity.environment, address, host, os.getpid()))

    async def _listen(self) -> None:
        stub = self._channel.unary_stream(f"/{control.SERVICE}/{Listen.METHOD}")
        request = control.pack(to_wire(Listen(self._identity.environment)))
        try:
            async for data in stub(request, metadata=self._session):
                command = read_instruction(control.raise_for_error(control.unpack(data)))
                self.dismissed = self.dismissed or isinstance(command, Shutdown)
                self._owned.obey(command)
        except grpc.aio.AioRpcError as error:
            log.info("the line to the JobMaster broke: %s", error.details())

    async def _beat(self) -> None:
        clock = WakingClock(most=self._call_seconds + 2 * _HEARTBEAT_SECONDS)
        last = clock.now()
        while True:
            try:
                await self.ask(self._owned.heartbeat())
                last = clock.now()
            except NotAnsweredError as error:
                if clock.now() - last > self._lease:
                    log.info("no heartbeat got through for %s s: %s", self._lease, error)
                    return
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    async def _post(self) -> None:
        """Send reports, one after the other; each again until it is taken, or refused for good."""
        while True:
            report = self._outbox.first
            if report is None:
                self._to_report.clear()
                await self._to_report.wait()
                continue
            try:
                await self.ask(report)
            except NotAnsweredError as error:
                log.info("%s is sent again: %s", report, error)
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            except PenstockError:
                log.exception("the JobMaster refuses %s", report)
            self._outbox.taken(report.number)
