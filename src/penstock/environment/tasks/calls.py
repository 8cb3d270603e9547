# SPDX-License-Identifier: Apache-2.0
"""Answers what a task asks: its environment itself, or, through it, the JobMaster."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.environment.control import MasterLink, NoMaster
from penstock.environment.partitions.found import Partitions
from penstock.environment.partitions.storage import Storage
from penstock.environment.ports.inputs import GateParts, GatePort
from penstock.environment.ports.writers import Writers
from penstock.environment.supervision import Supervisor
from penstock.environment.tasks.attached import AttachedTask
from penstock.environment.tasks.checkpoint_files import CheckpointFiles
from penstock.environment.tasks.task_registry import TaskRegistry
from penstock.environment.throttling import Throttling
from penstock.errors import FailureKind, PenstockError, ProtocolError
from penstock.link import calls as ask
from penstock.link.commands import COMMANDS, Command
from penstock.link.control import error_message
from penstock.link.master import (
    RELAYED,
    UNANSWERED,
    AcknowledgeCheckpoint,
    AwaitProducers,
    DeclineCheckpoint,
    OpenResult,
    ReadResult,
    RegisterTask,
    TaskFinished,
    TaskLost,
)
from penstock.link.wire import Done, Plain, from_wire, to_wire
from penstock.shuffle import AttemptId, PartitionId
from penstock.shuffle.requests import Request

Answer = object | Awaitable[object]

REQUESTS: dict[str, type[Request[Any]]] = {**ask.CALLS, **COMMANDS, **RELAYED}
"""The requests of a task, by their names on the wire."""


class Office(Protocol):
    """The environment as a whole, as far as a task may ask for it."""

    @property
    def environment(self) -> str:
        """Its name."""

    @property
    def address(self) -> str:
        """The address at which others read its partitions; empty until one has needed it."""

    async def serve(self) -> str:
        """The same, made where there is none yet; raises SettingError."""

    def obey(self, command: Command, *, from_task: bool) -> object:
        """Do what is commanded; raises ProtocolError where a task may not."""

    def occupying(self) -> list[PartitionId]:
        """The partitions that hold memory or files here."""

    def statistics(self) -> dict[str, float]:
        """Its figures."""


@dataclass(frozen=True, slots=True)
class Services:
    """The services that the tasks of an environment may use."""

    writers: Writers
    partitions: Partitions
    storage: Storage
    reading: GateParts
    task_registry: TaskRegistry
    checkpoint_files: CheckpointFiles
    master: MasterLink | NoMaster
    office: Office
    supervisor: Supervisor
    throttling: Throttling


class TaskCalls:
    """The answers to one task."""

    def __init__(self, task: AttachedTask, services: Services) -> None:
        self._task = task
        self._services = services
        self._sharing: set[AttemptId] = set()
        """Attempts that say of each checkpoint what becomes of their part."""
        self._answers: dict[type, Callable[[Any], Answer]] = {
            ask.OpenWriter: self._open_writer,
            ask.FinishWriter: self._finish_writer,
            ask.FailWriter: self._fail_writer,
            ask.OpenGate: self._open_gate,
            ask.CloseGate: self._close_gate,
            ask.ReportMissingFile: self._missing_file,
            ask.ListOccupying: self._occupying,
            ask.GetStatistics: self._statistics,
            RegisterTask: self._register,
            TaskFinished: self._finished,
            ask.ShareFiles: self._share_files,
            ask.LeaveFiles: self._leave_files,
            ask.HandOverPart: self._hand_over,
            ask.ShareCounts: self._share_counts,
            ask.ShareWork: self._share_work,
            **dict.fromkeys((AwaitProducers, OpenResult, ReadResult, *UNANSWERED), services.master.ask),
            AcknowledgeCheckpoint: self._settled,
            DeclineCheckpoint: self._settled,
        }

    def enter(self) -> None:
        """The task is attached."""
        self._services.task_registry.tasks.add(self._task)

    def take(self, number: int, method: str, message: Plain) -> None:
        """Answer this call now, or when there is an answer; what goes wrong is answered too."""
        try:
            kind = REQUESTS.get(method)
            if kind is None:
                raise ProtocolError(f"there is no call {method} for a task")
            answer = self._answer(from_wire(kind, message))
        except PenstockError as error:
            self._reply(number, error_message(error))
            return
        if isinstance(answer, Awaitable):
            self._services.supervisor.run(lambda: self._reply_later(number, answer), self._task.to_task.give_up)
        else:
            self._reply(number, to_wire(answer))

    def leave(self, cause: str) -> None:
        """The task is gone."""
        services = self._services
        services.task_registry.tasks.discard(self._task)
        counts = self._task.counts()
        lost = self._task.end(cause)
        for attempt in self._sharing:
            services.checkpoint_files.left(attempt)
        if lost is not None:
            services.master.report(TaskLost(lost, cause, counts=counts))

    def _answer(self, request: Request[Any]) -> Answer:
        if isinstance(request, Command):
            return self._services.office.obey(request, from_task=True)
        return self._answers[type(request)](request)

    async def _reply_later(self, number: int, waited_for: Awaitable[object]) -> None:
        try:
            answer = to_wire(await waited_for)
        except PenstockError as error:
            answer = error_message(error)
        self._reply(number, answer)

    def _reply(self, number: int, answer: Plain) -> None:
        if not self._task.is_gone:
            self._task.to_task.reply(number, answer)

    def _open_writer(self, request: ask.OpenWriter) -> Answer:
        self._task.owns(request.attempt)
        opened = self._services.writers.open(self._task, request)
        self._services.throttling.settle(self._task)
        return opened

    def _finish_writer(self, request: ask.FinishWriter) -> Answer:
        self._task.take_writer(request.partition).finish(request.ends)
        return Done()

    def _fail_writer(self, request: ask.FailWriter) -> Answer:
        self._task.take_writer(request.partition).fail(request.cause, is_storage=request.is_storage)
        return Done()

    def _open_gate(self, request: ask.OpenGate) -> Answer:
        task, services = self._task, self._services
        task.owns(request.attempt)
        gate = task.gates[request.port] = GatePort(services.reading, task.to_task, task.holdings, request)
        services.throttling.settle(task)
        gate.open()
        for descriptor in services.task_registry.updates(request.attempt):
            gate.update(descriptor)
        return Done()

    def _close_gate(self, request: ask.CloseGate) -> Answer:
        gate = self._task.gates.pop(request.port, None)
        if gate is not None:
            gate.close()
        return Done()

    def _missing_file(self, request: ask.ReportMissingFile) -> Answer:
        raise self._services.partitions.missing(request.partition, request.cause)

    def _occupying(self, _: ask.ListOccupying) -> Answer:
        return ask.Occupying(tuple(self._services.office.occupying()))

    def _statistics(self, _: ask.GetStatistics) -> Answer:
        return ask.Statistics(self._services.office.statistics())

    def _share_files(self, request: ask.ShareFiles) -> Answer:
        self._sharing.add(request.attempt)
        self._services.checkpoint_files.join(request)
        return Done()

    def _leave_files(self, request: ask.LeaveFiles) -> Answer:
        self._sharing.discard(request.attempt)
        self._services.checkpoint_files.left(request.attempt)
        return Done()

    def _hand_over(self, request: ask.HandOverPart) -> Answer:
        return self._services.checkpoint_files.hand_over(request, self._task.pid)

    def _share_counts(self, request: ask.ShareCounts) -> Answer:
        try:
            self._task.share_counts(request.descriptor)
        except OSError as error:
            raise PenstockError(
                f"{request.attempt}: its counts of rows can't be read from another process of this host ({error}), so"
                " a query with recovery=approximate can't say here what is lost: leave the option out"
            ) from error
        return Done()

    def _share_work(self, request: ask.ShareWork) -> Answer:
        with contextlib.suppress(OSError):  # should it die, it stays unknown what it worked on
            self._task.share_work(request.descriptor)
        return Done()

    def _settled(self, request: AcknowledgeCheckpoint | DeclineCheckpoint) -> Answer:
        """A task speaks of its part by itself: no file of the host waits for it."""
        self._services.checkpoint_files.settled(request.attempt, request.checkpoint)
        return self._services.master.ask(request)

    def _register(self, request: RegisterTask) -> Answer:
        self._task.begin(request.attempt)
        return self._registered(request)

    async def _registered(self, request: RegisterTask) -> object:
        office = self._services.office
        address = await office.serve() if request.uses_data_plane and not office.address else office.address
        request = dataclasses.replace(request, environment=office.environment, address=address)
        answer = await self._services.master.ask(request)
        self._task.deployed(answer.attempt)
        if answer.attempt is not None and self._task.is_gone:
            # It went while it waited; where its question had to be asked again, the word of its end was there first.
            self._services.master.report(TaskLost(request.attempt, "it went before it had an answer"))
        elif answer.attempt is not None:
            self._services.task_registry.catch_up(self._task, answer.attempt)
        return answer

    async def _finished(self, request: TaskFinished) -> object:
        if request.failure is FailureKind.STORAGE and not await self._services.storage.have_room():
            request = dataclasses.replace(request, failure=FailureKind.NO_STORAGE)
        if counts := self._task.counts():
            request = dataclasses.replace(request, metrics={**request.metrics, **counts})
        try:
            answer = await self._services.master.ask(request)
            self._task.finished()
            return answer
        finally:
            identity = self._task.identity
            if self._task.is_gone and identity is not None and identity != request.attempt:
                # The loss named the attempt, which may be over for the JobMaster: it would wait for the worker.
                self._services.master.report(TaskLost(identity, "it went before its report was answered"))
