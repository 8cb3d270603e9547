# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's gRPC face: one generic handler per method, MessagePack in and out.

Errors travel inside the answer, so a caller raises what was raised here. A call without a session, and a message
of another shape, is answered and nothing else happens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from penstock.job import events
from penstock.job.driver import JobDriver
from penstock.job.environments import SHUTDOWN, AttachedEnvironment
from penstock.job.result_reads import ReadRequest
from penstock.job.results import Results
from penstock.job.sessions import ENVIRONMENT, Session, Sessions
from penstock.shuffle import AttemptId, PartitionId, control
from penstock.shuffle.control import Message
from penstock.shuffle.errors import AuthenticationError, PenstockError, ProtocolError

_LOG = logging.getLogger(__name__)

MESSAGE_LIMIT = 64 << 20
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.so_reuseport", 0),
    # A result may be waited for as long as its job takes; the caller's keepalive pings must not be punished.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
)

Call = Callable[[Session, Message], Awaitable[Message]]


class JobMasterService:
    """The methods of `penstock.JobMaster`."""

    def __init__(self, driver: JobDriver, sessions: Sessions, results: Results) -> None:
        self._driver = driver
        self._sessions = sessions
        self._results = results
        self._calls: dict[str, Call] = {
            control.ATTACH_ENVIRONMENT: self._attach_environment,
            control.HEARTBEAT: self._heartbeat,
            control.REGISTER_TASK: self._register_task,
            control.AWAIT_PRODUCERS: self._await_producers,
            control.PARTITION_CONSUMABLE: self._partition_consumable,
            control.TASK_FINISHED: self._task_finished,
            control.TASK_LOST: self._task_lost,
            control.OPEN_RESULT: self._open_result,
            control.READ_RESULT: self._read_result,
        }

    def handler(self) -> grpc.GenericRpcHandler:
        """What a gRPC server takes."""
        unary = grpc.unary_unary_rpc_method_handler
        methods = {
            control.CHALLENGE: unary(self._handshake(self._sessions.challenge)),
            control.AUTHENTICATE: unary(self._handshake(self._sessions.authenticate)),
            control.INSTRUCTIONS: grpc.unary_stream_rpc_method_handler(self._instructions),
        }
        methods.update({name: unary(self._unary(name, call)) for name, call in self._calls.items()})
        return grpc.method_handlers_generic_handler(control.SERVICE, methods)

    def _handshake(self, step: Callable[[Message, str], Message]) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def run(data: bytes, context: Any) -> bytes:
            try:
                return control.pack(step(control.unpack(data), context.peer()))
            except PenstockError as error:
                return control.pack(control.error_message(error))

        return run

    def _unary(self, name: str, call: Call) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def run(data: bytes, context: Any) -> bytes:
            try:
                session, message = self._open(name, data, context)
                return control.pack(await call(session, message))
            except PenstockError as error:
                return control.pack(control.error_message(error))
            except (KeyError, TypeError, ValueError) as error:
                _LOG.warning("%s from %s could not be read: %s", name, context.peer(), repr(error))
                return control.pack(control.error_message(ProtocolError(f"{name}: {error!r}")))
            except Exception as error:  # noqa: BLE001 - a fault of ours must not look like silence
                _LOG.exception("%s failed", name)
                return control.pack(control.error_message(PenstockError(f"{name} failed: {error!r}")))

        return run

    def _open(self, name: str, data: bytes, context: Any) -> tuple[Session, Message]:
        metadata = dict(context.invocation_metadata() or ())
        session = self._sessions.check(str(metadata.get(control.SESSION_HEADER, "")), name, context.peer())
        message = control.unpack(data)
        if session.role == ENVIRONMENT and message.get("environment", session.identity) != session.identity:
            raise AuthenticationError(f"environment {session.identity} spoke for {message['environment']}")
        return session, message

    async def _attach_environment(self, session: Session, message: Message) -> Message:
        environment = AttachedEnvironment(
            session.identity, str(message["address"]), str(message["host"]), int(message["pid"]), time.monotonic()
        )
        if self._driver.environments.attach(environment):
            self._driver.lose_environment(session.identity, "it attached a second time")
            self._driver.environments.get(session.identity)
        _LOG.info("environment %s attached from %s", environment.name, environment.host)
        return {}

    async def _instructions(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            session, _ = self._open(control.INSTRUCTIONS, data, context)
            environment = self._driver.environments.get(session.identity)
        except PenstockError as error:
            yield control.pack(control.error_message(error))
            return
        try:
            while True:
                message = await environment.queue.get()
                yield control.pack(message)
                if message == SHUTDOWN:
                    return
        finally:
            self._driver.lose_environment(session.identity, "its instruction stream ended")

    async def _heartbeat(self, session: Session, message: Message) -> Message:
        environment = self._driver.environments.get(session.identity)
        environment.last_heard = time.monotonic()
        environment.statistics = dict(message.get("statistics") or {})
        for attempt, metrics in message.get("tasks", ()):
            self._driver.environments.report(AttemptId.from_wire(tuple(attempt)), dict(metrics))
        return {}

    async def _register_task(self, session: Session, message: Message) -> Message:
        attempt = AttemptId.from_wire(tuple(message["attempt"]))
        environment = self._driver.environments.get(session.identity)
        call = self._driver.calls.open()
        address, part = str(message["address"]), int(message.get("part", 0))
        self._driver.handle(events.TaskRegistered(call, attempt, environment.name, address, part))
        try:
            return await self._driver.calls.wait(call)
        except asyncio.CancelledError:
            self._driver.handle(events.TaskLost(attempt, "its registration was given up"))
            raise

    async def _await_producers(self, _: Session, message: Message) -> Message:
        call = self._driver.calls.open()
        self._driver.handle(events.ProducersAwaited(call, AttemptId.from_wire(tuple(message["attempt"]))))
        return await self._driver.calls.wait(call)

    async def _partition_consumable(self, _: Session, message: Message) -> Message:
        self._driver.handle(events.PartitionConsumable(PartitionId.from_wire(tuple(message["partition"]))))
        return {}

    async def _task_finished(self, _: Session, message: Message) -> Message:
        attempt = AttemptId.from_wire(tuple(message["attempt"]))
        state, error, kind = (str(message.get(key) or "") for key in ("state", "error", "error_type"))
        if state not in ("FINISHED", "FAILED", "CANCELED"):
            raise ProtocolError(f"{attempt} ended as {state!r}, which is no end")
        metrics = {str(name): float(value) for name, value in dict(message.get("metrics") or {}).items()}
        counted = dict(message.get("sizes") or {}).items()
        sizes = {int(edge): tuple(int(size) for size in found) for edge, found in counted}
        prints = {int(edge): int(value) for edge, value in dict(message.get("fingerprints") or {}).items()}
        lost = PartitionId.from_wire(tuple(message["lost"])) if message.get("lost") else None
        self._driver.handle(events.TaskFinished(attempt, state, metrics, error, kind, sizes, prints, lost))
        return {}

    async def _task_lost(self, _: Session, message: Message) -> Message:
        attempt = AttemptId.from_wire(tuple(message["attempt"]))
        self._driver.handle(events.TaskLost(attempt, str(message["cause"])))
        return {}

    async def _open_result(self, _: Session, message: Message) -> Message:
        partitions = await self._results.open(str(message["result"]))
        return {"partitions": [descriptor.to_wire() for descriptor in partitions]}

    async def _read_result(self, _: Session, message: Message) -> Message:
        return (await self._results.read(ReadRequest.from_wire(message))).to_wire()
