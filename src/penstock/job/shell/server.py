# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's gRPC face: one generic handler per method, MessagePack in and out.

Errors travel inside the answer, so a caller raises what was raised here. A message of another shape is answered and
nothing else happens. A call without a session is answered before its message is read: the handshake is in the head of
its calls. So an unauthenticated peer can have this process hold no more than HTTP/2 lets a connection send unasked,
64 KiB.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from penstock.job.core import events
from penstock.job.core.ids import SparkJobId, task_of
from penstock.job.results.results import Results
from penstock.job.shell.driver import JobDriver
from penstock.job.shell.environments import AttachedEnvironment
from penstock.job.shell.sessions import Session, Sessions
from penstock.link import control
from penstock.link import master as ask
from penstock.link.commands import Shutdown, instruction
from penstock.link.rpc import grpc
from penstock.link.wire import Done, from_wire, to_wire
from penstock.shuffle.errors import AuthenticationError, EnvironmentLostError, PenstockError, ProtocolError
from penstock.shuffle.requests import Request

_LOG = logging.getLogger(__name__)

MESSAGE_LIMIT = 64 << 20
_DIGITS = 18
"""No question has a longer number."""
OPTIONS = (
    # Nothing is read unasked that would have to be kept.
    ("grpc.max_metadata_size", 2 * control.HELLO_LIMIT),
    ("grpc.absolute_max_metadata_size", 2 * control.HELLO_LIMIT),
    ("grpc.http2.lookahead_bytes", 64 << 10),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.so_reuseport", 0),
    # A result may be waited for as long as its job takes; the caller's keepalive pings must not be punished.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
)

Messages = AsyncIterator[bytes]
"""The bytes that a caller sends: one message, which is on its way when it is asked for."""
Call = Callable[[Session, Any], Awaitable[object]]
"""Answers a request of a caller that has proved itself."""


class JobMasterService:
    """The methods of `penstock.JobMaster`."""

    def __init__(self, driver: JobDriver, sessions: Sessions, results: Results) -> None:
        self._driver = driver
        self._sessions = sessions
        self._results = results
        self._calls: dict[type[Request[Any]], Call] = {
            ask.AttachEnvironment: self._attach_environment,
            ask.Heartbeat: self._heartbeat,
            ask.RegisterTask: self._register_task,
            ask.AwaitProducers: self._await_producers,
            ask.PartitionConsumable: self._partition_consumable,
            ask.TaskFinished: self._task_finished,
            ask.TaskLost: self._task_lost,
            **dict.fromkeys(ask.UNANSWERED, self._heard),
            ask.OpenResult: self._open_result,
            ask.ReadResult: self._read_result,
        }

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler that a gRPC server takes."""
        # As streams of messages, because those are read when we ask for them.
        one_answer = grpc.stream_unary_rpc_method_handler
        methods = {
            ask.Challenge.METHOD: one_answer(handshake(ask.Challenge, self._sessions.challenge)),
            ask.Authenticate.METHOD: one_answer(handshake(ask.Authenticate, self._sessions.authenticate)),
            ask.Listen.METHOD: grpc.stream_stream_rpc_method_handler(self._instructions),
        }
        methods.update({kind.METHOD: one_answer(self._answered(kind, call)) for kind, call in self._calls.items()})
        return grpc.method_handlers_generic_handler(control.SERVICE, methods)

    def _answered(self, kind: type[Request[Any]], call: Call) -> Callable[[Messages, Any], Awaitable[bytes]]:
        async def packed(session: Session, request: Request[Any]) -> bytes:
            try:
                return control.pack(to_wire(await call(session, request)))
            except PenstockError as error:
                return control.pack(control.error_message(error))
            except Exception as error:  # noqa: BLE001 - a fault of ours must not look like silence
                _LOG.exception("%s failed", kind.METHOD)
                return control.pack(control.error_message(PenstockError(f"{kind.METHOD} failed: {error!r}")))

        async def run(messages: Messages, context: Any) -> bytes:
            try:
                session, request = await self._open(kind, messages, context)
                number = _question(context)
                if not number:
                    return await packed(session, request)
                environment = self._driver.environments.get(session.identity)
                return await _once(environment, number, lambda: packed(session, request))
            except PenstockError as error:
                return control.pack(control.error_message(error))

        return run

    async def _open(self, kind: type[Request[Any]], messages: Messages, context: Any) -> tuple[Session, Any]:
        token = str(_head(context).get(control.SESSION_HEADER, ""))
        session = self._sessions.check(token, kind.METHOD, context.peer())
        async for data in messages:
            request = from_wire(kind, control.unpack(data))
            break
        else:
            raise ProtocolError(f"{context.peer()} called {kind.METHOD} without a message")
        named = getattr(request, "environment", session.identity)
        if session.role == ask.ENVIRONMENT and named != session.identity:
            raise AuthenticationError(f"environment {session.identity} spoke for {named}")
        return session, request

    async def _attach_environment(self, session: Session, request: ask.AttachEnvironment) -> Done:
        environment = AttachedEnvironment(request, self._driver.clock.now())
        if self._driver.environments.attach(environment):
            self._driver.lose_environment(session.identity, "it attached a second time")
            self._driver.environments.get(session.identity)
        _LOG.info("environment %s attached from %s", environment.name, request.host)
        return Done()

    async def _instructions(self, messages: Messages, context: Any) -> AsyncIterator[bytes]:
        try:
            session, request = await self._open(ask.Listen, messages, context)
            environment = self._driver.environments.get(session.identity)
            stream = environment.commands.open(request.taken)
        except PenstockError as error:
            yield control.pack(control.error_message(error))
            return
        environment.is_listening = True
        last = request.taken
        try:
            while (found := await environment.commands.next(stream, last)) is not None:
                last, command = found
                yield control.pack(instruction(command, last))
                if isinstance(command, Shutdown):
                    self._driver.lose_environment(environment.name, "it was told to end")
                    return
        finally:
            if environment.commands.close(stream):
                self._driver.line_broke(environment)

    async def _heartbeat(self, session: Session, request: ask.Heartbeat) -> Done:
        environment = self._driver.environments.get(session.identity)
        environment.last_heard = self._driver.clock.now()
        environment.heard = replace(request, tasks=())
        environment.commands.taken(request.taken)
        environment.answers.settle(request.asked)
        for attempt, metrics in request.tasks:
            self._driver.figures.report(attempt, metrics)
        return Done()

    async def _register_task(self, session: Session, request: ask.RegisterTask) -> object:
        environment = self._driver.environments.get(session.identity)
        call = self._driver.calls.open()
        task, spark_job = task_of(request.attempt), SparkJobId.from_wire(request.spark_job)
        self._driver.handle(events.TaskRegistered(call, task, environment.name, request.address, spark_job))
        return await self._driver.calls.wait(call)

    async def _await_producers(self, _: Session, request: ask.AwaitProducers) -> object:
        call = self._driver.calls.open()
        self._driver.handle(events.ProducersAwaited(call, request.attempt))
        return await self._driver.calls.wait(call)

    async def _heard(self, _: Session, request: events.Event) -> Done:
        self._driver.handle(request)
        return Done()

    async def _partition_consumable(self, session: Session, request: ask.PartitionConsumable) -> Done:
        self._report(session, request, request)
        return Done()

    async def _task_finished(self, session: Session, ended: ask.TaskFinished) -> Done:
        self._driver.figures.finish(ended.attempt, ended.metrics)
        return await self._heard(session, ended)

    async def _task_lost(self, session: Session, request: ask.TaskLost) -> Done:
        self._report(session, request, events.TaskLost(task_of(request.attempt), request.cause))
        return Done()

    def _report(self, session: Session, report: ask.Report, event: events.Event) -> None:
        """An environment sends a report again where our answer was lost: it counts once."""
        environment = self._driver.environments.get(session.identity)
        if report.number == 0 or environment.reports.take(report.number):
            self._driver.handle(event)

    async def _open_result(self, _: Session, request: ask.OpenResult) -> ask.ResultOpened:
        partitions = await self._results.open(request.result, request.action)
        return ask.ResultOpened(tuple(partitions), self._results.bytes_of(request.result))

    async def _read_result(self, _: Session, request: ask.ReadResult) -> ask.ReadAnswer:
        return await self._results.read(request)


def handshake(
    kind: type[Request[Any]], step: Callable[[Any, str], object]
) -> Callable[[Messages, Any], Awaitable[bytes]]:
    """The handler of a step of the handshake, which is in the head of its call."""

    async def run(_: Messages, context: Any) -> bytes:
        try:
            hello = _head(context).get(control.HELLO_HEADER, b"")
            if not isinstance(hello, bytes) or len(hello) > control.HELLO_LIMIT:
                raise ProtocolError(f"{context.peer()}: a {kind.METHOD} of {len(hello)} characters")
            return control.pack(to_wire(step(from_wire(kind, control.unpack(hello)), context.peer())))
        except PenstockError as error:
            return control.pack(control.error_message(error))

    return run


async def _once(environment: AttachedEnvironment, number: int, answer: Callable[[], Awaitable[bytes]]) -> bytes:
    """The answer to a question, which is carried out the first time that it comes.

    The work goes on where the connection breaks: the question comes again then, and takes the answer.
    """
    work = environment.answers.get(number, lambda: asyncio.ensure_future(answer()))
    await asyncio.wait([work])
    if work.cancelled():
        raise EnvironmentLostError(f"environment {environment.name} was given up: nobody needs an answer")
    return work.result()


def _question(context: Any) -> int:
    number = str(_head(context).get(control.QUESTION_HEADER, "0"))
    if not number.isdecimal() or len(number) > _DIGITS:
        raise ProtocolError(f"{context.peer()}: the number of a question can't be {number!r:.100}")
    return int(number)


def _head(context: Any) -> dict[str, str | bytes]:
    return dict(context.invocation_metadata() or ())
