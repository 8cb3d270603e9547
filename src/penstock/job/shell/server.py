# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's server for environments: answers what they ask, and tells them what they are to do.

An environment proves itself at the door, attaches, and has one connection at a time: a newer one ends the older one,
which may hang where its end was not noticed. Commands are kept until the environment has said that it has them, so
a new connection goes on where the broken one ended. An operator of queries comes in by the same door, with a key that
opens nothing else (`link.operator`). Errors travel inside the answer, so a caller raises what was
raised here. A message of another shape is answered and nothing else happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from penstock.connection.door import Door, DoorSettings
from penstock.connection.frame_connection import FrameConnection
from penstock.connection.frames import OutgoingFrame, frame
from penstock.connection.handshake import Secrets, Service
from penstock.connection.transport import Endpoint, Listener, Transport
from penstock.errors import AuthenticationError, EnvironmentLostError, PenstockError, ProtocolError
from penstock.job.core import events
from penstock.job.core.ids import SparkJobId, task_of
from penstock.job.results.results import Results
from penstock.job.shell.driver import JobDriver
from penstock.job.shell.environments import AttachedEnvironment
from penstock.job.shell.operators import Operators
from penstock.link import control
from penstock.link import master as ask
from penstock.link.commands import Shutdown, instruction
from penstock.link.frames import LinkFrameType, read_call, reply_frame
from penstock.link.operator import OPERATOR
from penstock.link.rpc import FrameLogic
from penstock.link.wire import Done, Plain, from_wire, to_wire
from penstock.shuffle.requests import Request

_LOG = logging.getLogger(__name__)

_DOOR = DoorSettings(most=1024, most_of_one=256)
"""A large cluster's environments may all come in the second in which its first job starts."""
_LAST_SECONDS = 1.0
"""An environment that was told to end, or is given up, has so long to hang up by itself."""

Call = Callable[[str, Any], Awaitable[object]]
"""Answers a request of the environment with this name."""


class MasterServer:
    """The calls of environments, over the connections there are. Made on the JobMaster's event loop."""

    def __init__(self, driver: JobDriver, secrets: Secrets, results: Results) -> None:
        self._driver = driver
        self._results = results
        self.operators = Operators()
        self._door: Door[Endpoint] = Door(Service.MASTER, secrets, self._enter, _DOOR)
        self._listener: Listener | None = None
        self._sessions: set[_Session] = set()
        self._calls: dict[type[Request[Any]], Call] = {
            ask.Heartbeat: self._heartbeat,
            ask.RegisterTask: self._register_task,
            ask.AwaitProducers: self._await_producers,
            ask.PartitionConsumable: self._partition_consumable,
            ask.TaskFinished: self._task_finished,
            ask.TaskLost: self._task_lost,
            ask.PutFlag: self._put_flag,
            **dict.fromkeys(ask.UNANSWERED, self._heard),
            ask.OpenResult: self._open_result,
            ask.ReadResult: self._read_result,
        }
        kinds: tuple[type[Request[Any]], ...] = (*self._calls, ask.AttachEnvironment)
        self._kinds = {kind.METHOD: kind for kind in kinds}
        self._empty = asyncio.Event()

    @property
    def unauthenticated(self) -> int:
        """The number of those that have connected, and have not proved themselves yet."""
        return self._door.waiting

    async def start(self, transport: Transport, address: str) -> str:
        """Listen; the address, with the real port. Raises OSError."""
        self._listener = await transport.listen(address, self._door.come)
        return self._listener.address

    async def close(self) -> None:
        """Close the door, wait a moment for environments that were told to end, and hang up."""
        if self._listener is not None:
            self._listener.close()
        self._door.close()
        if self._sessions:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS / 2):
                    await self._empty.wait()
        for session in list(self._sessions):
            session.connection.close()

    def answer(self, session: _Session, method: str, message: Plain, question: int) -> asyncio.Future[Plain]:
        """The answer to a call; work on a question goes on where its connection breaks, and it is asked again."""
        if session.name.startswith(OPERATOR):
            return asyncio.ensure_future(self.operators.answer(method, message))
        try:
            kind = self._kinds.get(method)
            if kind is None:
                raise ProtocolError(f"there is no call {method} for an environment")
            request: Request[Any] = from_wire(kind, message)
            named = getattr(request, "environment", session.name)
            if named != session.name:
                raise AuthenticationError(f"environment {session.name} spoke for {named}")
            if question < 0:
                raise ProtocolError(f"the number of a question can't be {question}")
            if question:
                answers = self._driver.environments.get(session.name).answers
                return answers.get(question, lambda: self._begun(session, request))
            return self._begun(session, request)
        except PenstockError as error:
            refused: asyncio.Future[Plain] = asyncio.get_running_loop().create_future()
            refused.set_result(control.error_message(error))
            return refused

    def _begun(self, session: _Session, request: Request[Any]) -> asyncio.Future[Plain]:
        return asyncio.ensure_future(self._carried_out(session, request))

    async def _carried_out(self, session: _Session, request: Request[Any]) -> Plain:
        try:
            if isinstance(request, ask.AttachEnvironment):
                return to_wire(self._attach(session, request))
            return to_wire(await self._calls[type(request)](session.name, request))
        except PenstockError as error:
            return control.error_message(error)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not look like silence
            _LOG.exception("%s failed", request.METHOD)
            return control.error_message(PenstockError(f"{request.METHOD} failed: {error!r}"))

    def _enter(self, endpoint: Endpoint, name: str) -> None:
        self._sessions.add(_Session(self, endpoint, name))

    def told_to_end(self, name: str) -> None:
        """An environment has got its last command: it is lost from now on."""
        self._driver.lose_environment(name, "it was told to end")

    def broke(self, environment: AttachedEnvironment) -> None:
        """An environment is not connected any more."""
        self._driver.line_broke(environment)

    def left(self, session: _Session) -> None:
        """A connection has ended."""
        self._sessions.discard(session)
        if not self._sessions:
            self._empty.set()

    def _attach(self, session: _Session, request: ask.AttachEnvironment) -> Done:
        if self._driver.environments.attach(AttachedEnvironment(request, self._driver.clock.now())):
            self._driver.lose_environment(session.name, "it attached a second time")
        attached = self._driver.environments.get(session.name)
        if attached.listener is None and not request.taken:
            for command in self._driver.flags.attached():
                attached.commands.put(command)
        session.listen(attached, request.taken)
        _LOG.info("environment %s attached from %s", session.name, request.host)
        return Done()

    async def _heartbeat(self, name: str, request: ask.Heartbeat) -> Done:
        environment = self._driver.environments.get(name)
        environment.last_heard = self._driver.clock.now()
        environment.heard = replace(request, tasks=())
        environment.commands.taken(request.taken)
        environment.answers.settle(request.asked)
        for attempt, metrics in request.tasks:
            self._driver.figures.report(attempt, metrics)
        return Done()

    async def _register_task(self, name: str, request: ask.RegisterTask) -> object:
        environment = self._driver.environments.get(name)
        environment.opened = request.address
        call = self._driver.calls.open()
        task, spark_job = task_of(request.attempt), SparkJobId.from_wire(request.spark_job)
        self._driver.handle(events.TaskRegistered(call, task, environment.name, request.address, spark_job))
        return await self._driver.calls.wait(call)

    async def _await_producers(self, _: str, request: ask.AwaitProducers) -> object:
        call = self._driver.calls.open()
        self._driver.handle(events.ProducersAwaited(call, request.attempt))
        return await self._driver.calls.wait(call)

    async def _heard(self, _: str, request: events.Event) -> Done:
        self._driver.handle(request)
        return Done()

    async def _partition_consumable(self, name: str, request: ask.PartitionConsumable) -> Done:
        return self._report(name, request, request)

    async def _task_finished(self, name: str, ended: ask.TaskFinished) -> Done:
        self._driver.figures.finish(ended.attempt, ended.metrics)
        return await self._heard(name, ended)

    async def _task_lost(self, name: str, request: ask.TaskLost) -> Done:
        return self._report(name, request, events.TaskGone(task_of(request.attempt), request.cause, request.counts))

    async def _put_flag(self, name: str, request: ask.PutFlag) -> Done:
        if self._is_new(name, request):
            told = self._driver.flags.put(name, request.job, request.flag, is_raised=request.is_raised)
            self._driver.tell_all(told)
        return Done()

    def _report(self, name: str, report: ask.Report, event: events.Event) -> Done:
        if self._is_new(name, report):
            self._driver.handle(event)
        return Done()

    def _is_new(self, name: str, report: ask.Report) -> bool:
        """An environment sends a report again where our answer was lost: it counts once."""
        environment = self._driver.environments.get(name)
        return report.number == 0 or environment.reports.take(report.number)

    async def _open_result(self, _: str, request: ask.OpenResult) -> ask.ResultOpened:
        return ask.ResultOpened(tuple(await self._results.open(request.result, request.action)))

    async def _read_result(self, _: str, request: ask.ReadResult) -> ask.ReadAnswer:
        return await self._results.read(request)


class _Session:
    """One connection of an environment that has proved itself."""

    def __init__(self, server: MasterServer, endpoint: Endpoint, name: str) -> None:
        self.name = name
        self._server = server
        self._environment: AttachedEnvironment | None = None
        self._told = 0
        self._logic = FrameLogic({LinkFrameType.CALL: self._call}, self._next_command)
        self.connection = FrameConnection(endpoint, self._logic, self._closed)

    def listen(self, environment: AttachedEnvironment, taken: int) -> None:
        """From now on commands come this way, those after the number that it has taken."""
        environment.commands.taken(taken)
        older, environment.listener = environment.listener, self
        if older is not None and older is not self:
            older.connection.close()
        self._environment, self._told = environment, taken
        environment.commands.wake = self._logic.wake
        self._logic.wake()
        if self.connection.is_closed:
            self._leave()

    def end(self) -> None:
        """The environment is given up: it hears the last command if it listens, and is hung up on."""
        asyncio.get_running_loop().call_later(_LAST_SECONDS, self.connection.close)

    def _call(self, body: memoryview) -> None:
        number, method, message, question = read_call(body)
        answer = self._server.answer(self, method, message, question)
        answer.add_done_callback(functools.partial(self._reply, number))

    def _reply(self, number: int, answer: asyncio.Future[Plain]) -> None:
        if self.connection.is_closed:
            return
        if answer.cancelled():
            gone = EnvironmentLostError(f"environment {self.name} was given up: nobody needs an answer")
            self._logic.send(reply_frame(number, control.error_message(gone)))
        else:
            self._logic.send(reply_frame(number, answer.result()))

    def _next_command(self) -> OutgoingFrame | None:
        found = None if self._environment is None else self._environment.commands.after(self._told)
        if found is None:
            return None
        self._told, command = found
        data = frame(LinkFrameType.COMMAND, control.pack(instruction(command, self._told)))
        return OutgoingFrame((data,), len(data), self._told_to_end if isinstance(command, Shutdown) else None)

    def _told_to_end(self) -> None:
        asyncio.get_running_loop().call_soon(self._server.told_to_end, self.name)
        self.end()

    def _closed(self, _: object, error: BaseException | None) -> None:
        if isinstance(error, ProtocolError):
            _LOG.warning("closed the connection of environment %s: %s", self.name, error)
        self._server.left(self)
        self._leave()

    def _leave(self) -> None:
        environment = self._environment
        if environment is not None and environment.listener is self:
            environment.listener = None
            self._server.broke(environment)
