# SPDX-License-Identifier: Apache-2.0
"""The environment's line to the JobMaster: gRPC calls, the stream of commands, the reports, and the lease.

The lease is a heartbeat every half second. When the JobMaster says `Shutdown`, when the stream of commands ends, or
when no heartbeat got through for the lease's time, the environment ends: nothing of a dead application stays
behind.
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
from penstock.link.master import (
    ENVIRONMENT,
    UNANSWERED,
    AttachEnvironment,
    AwaitProducers,
    Challenge,
    Heartbeat,
    Listen,
    MasterProof,
    RegisterTask,
    Report,
)
from penstock.link.wire import Request, from_wire, to_wire
from penstock.shuffle.errors import ControlError, PenstockError

log = logging.getLogger("penstock.environment")

A = TypeVar("A")

_HEARTBEAT_SECONDS = 0.5
_CALL_SECONDS = 10.0
_AGAIN_SECONDS = 0.25
_OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.enable_http_proxy", 0)]
_LONG_CALLS = (RegisterTask, AwaitProducers, *UNANSWERED)
"""Answered when the JobMaster can answer: their deadlines are the JobMaster's."""


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

    def __init__(self, master: str, identity: Identity, owned: Owned, supervisor: Supervisor) -> None:
        self.dismissed = False
        """Whether the JobMaster said that this is the end."""
        self._master = master
        self._identity = identity
        self._owned = owned
        self._supervisor = supervisor
        self._channel = grpc.aio.insecure_channel(master, options=_OPTIONS)
        self._session: tuple[tuple[str, str], ...] = ()
        self._outbox = Outbox()
        self._to_report = asyncio.Event()
        self._outbox.wake = self._to_report.set

    async def start(self, address: str, lease: float) -> None:
        """Prove, be proven to, attach, and begin to listen; tried until the lease's time has passed.

        Raises ControlError or AuthenticationError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + lease
        while not self._session:
            try:
                await self._attach(address)
            except ControlError:
                self._session = ()
                await self._channel.close()
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)
                self._channel = grpc.aio.insecure_channel(self._master, options=_OPTIONS)
        self._supervisor.keep("line to the JobMaster", self._listen)
        self._supervisor.keep("lease", lambda: self._beat(lease))
        self._supervisor.keep("outbox", self._post)

    async def ask(self, request: Request[A]) -> A:
        """Ask the JobMaster; raises what it raised, or ControlError."""
        stub = self._channel.unary_unary(f"/{control.SERVICE}/{request.METHOD}")
        timeout = None if isinstance(request, _LONG_CALLS) else _CALL_SECONDS
        try:
            data = await stub(control.pack(to_wire(request)), timeout=timeout, metadata=self._session)
        except grpc.aio.AioRpcError as error:
            raise ControlError(
                f"the JobMaster at {self._master} did not answer {request.METHOD}: {error.details()}"
            ) from error
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

    async def _beat(self, lease: float) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            try:
                await self.ask(self._owned.heartbeat())
                last = loop.time()
            except ControlError as error:
                if loop.time() - last > lease:
                    log.info("no heartbeat got through for %s s: %s", lease, error)
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
            except ControlError as error:
                log.info("%s is sent again: %s", report, error)
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            except PenstockError:
                log.exception("the JobMaster refuses %s", report)
            self._outbox.taken(report.number)
