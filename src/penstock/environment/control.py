# SPDX-License-Identifier: Apache-2.0
"""The environment's line to the JobMaster: gRPC calls, the stream of instructions, and the lease.

The lease is a heartbeat every second. When the JobMaster says `shutdown`, when the line is broken and can't be
mended at once, or when no heartbeat got through for the lease's time, the environment ends: nothing of a dead
application stays behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import grpc
import grpc.aio

from penstock.environment.host import Host
from penstock.shuffle import AttemptId, PartitionId, ShuffleDescriptor, control
from penstock.shuffle.errors import AuthenticationError, ControlError, PenstockError

log = logging.getLogger("penstock.environment")

_HEARTBEAT_SECONDS = 0.5
_CALL_SECONDS = 10.0
_REDIAL_SECONDS = 0.25
_OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.enable_http_proxy", 0)]
_LONG_CALLS = frozenset({control.REGISTER_TASK, control.AWAIT_PRODUCERS})
"""Answered when the JobMaster can answer: their deadlines are the JobMaster's."""


class MasterLink:
    """The line to one JobMaster."""

    def __init__(self, host: Host) -> None:
        self.dismissed = False
        """Whether the JobMaster said that this is the end."""
        self._host = host
        self._channel = grpc.aio.insecure_channel(host.config.master, options=_OPTIONS)
        self._session: tuple[tuple[str, str], ...] = ()
        self._tasks: list[asyncio.Task[None]] = []
        self._outbox: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    async def start(self) -> None:
        """Prove, be proven to, attach, and begin to listen; raises ControlError or AuthenticationError."""
        await self._authenticate()
        host = self._host
        attach = {"environment": host.environment, "address": host.address, "host": "", "pid": 0}
        await self.call(control.ATTACH_ENVIRONMENT, attach)
        self._tasks = [
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._post()),
        ]

    async def call(self, method: str, message: dict[str, Any]) -> dict[str, Any]:
        """Ask the JobMaster; raises what it raised, or ControlError."""
        stub = self._channel.unary_unary(f"/{control.SERVICE}/{method}")
        timeout = None if method in _LONG_CALLS else _CALL_SECONDS
        try:
            answer = await stub(control.pack(message), timeout=timeout, metadata=self._session)
        except grpc.aio.AioRpcError as error:
            raise ControlError(
                f"the JobMaster at {self._host.config.master} did not answer {method}: {error.details()}"
            ) from error
        return control.raise_for_error(control.unpack(answer))

    def tell(self, method: str, message: dict[str, Any]) -> None:
        """Tell the JobMaster something, in order."""
        self._outbox.put_nowait((method, message))

    async def close(self) -> None:
        """Stop listening; idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    async def _authenticate(self) -> None:
        secret, identity = self._host.config.secret, self._host.environment
        challenge = (await self.call(control.CHALLENGE, {}))["nonce"]
        mine = control.nonce()
        proof = control.proof(secret, "environment", challenge, mine, identity)
        message = {
            "nonce": challenge,
            "client_nonce": mine,
            "role": "environment",
            "identity": identity,
            "proof": proof,
        }
        answer = await self.call(control.AUTHENTICATE, message)
        expected = control.proof(secret, "master", mine, challenge, identity)
        if not control.proof_matches(expected, answer["proof"]):
            raise AuthenticationError(f"the JobMaster at {self._host.config.master} does not know the secret")
        self._session = ((control.SESSION_HEADER, str(answer["session"])),)

    async def _listen(self) -> None:
        stub = self._channel.unary_stream(f"/{control.SERVICE}/{control.INSTRUCTIONS}")
        request = control.pack({"environment": self._host.environment})
        try:
            async for data in stub(request, metadata=self._session):
                self._obey(control.unpack(data))
            log.info("the JobMaster ended the stream of instructions")
        except grpc.aio.AioRpcError as error:
            log.info("the line to the JobMaster broke: %s", error.details())
        except PenstockError:
            log.exception("an instruction could not be read")
        self._host.stopping.set()

    async def _beat(self) -> None:
        lease = self._host.settings.environment.lease_timeout
        last = self._host.now()
        while True:
            beat = {
                "environment": self._host.environment,
                "statistics": self._host.statistics(),
                "tasks": self._host.task_metrics(),
            }
            try:
                await self.call(control.HEARTBEAT, beat)
                last = self._host.now()
            except ControlError as error:
                if self._host.now() - last > lease:
                    log.info("the lease ran out: %s", error)
                    self._host.stopping.set()
                    return
            except PenstockError as error:
                log.info("the JobMaster refuses this environment: %s", error)
                self._host.stopping.set()
                return
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    async def _post(self) -> None:
        while True:
            method, message = await self._outbox.get()
            try:
                await self.call(method, message)
            except PenstockError as error:
                log.warning("the JobMaster did not take %s: %s", method, error)

    def _obey(self, instruction: dict[str, Any]) -> None:
        host = self._host
        match instruction.get("op"):
            case "cancel_task":
                host.cancel_task(AttemptId.from_wire(tuple(instruction["attempt"])), str(instruction["cause"]))
            case "update_partition_info":
                consumer = AttemptId.from_wire(tuple(instruction["consumer"]))
                host.update_partition_info(consumer, ShuffleDescriptor.from_wire(tuple(instruction["descriptor"])))
            case "release_partitions":
                host.registry.release(PartitionId.from_wire(tuple(wire)) for wire in instruction["partitions"])
            case "expire_partitions":
                host.registry.expire(PartitionId.from_wire(tuple(wire)) for wire in instruction["partitions"])
            case "release_job":
                host.release_job(str(instruction["job"]))
            case "shutdown":
                self.dismissed = True
                host.stopping.set()
            case other:
                log.warning("unknown instruction %r", other)


async def redial(host: Host) -> MasterLink:
    """A started link, tried until the lease's time has passed; raises ControlError."""
    deadline = host.now() + host.settings.environment.lease_timeout
    while True:
        link = MasterLink(host)
        try:
            await link.start()
            return link
        except ControlError:
            await link.close()
            if host.now() > deadline:
                raise
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(_REDIAL_SECONDS)
