# SPDX-License-Identifier: Apache-2.0
"""A launcher whose tasks are threads that speak as an environment does, and a service that only gives names."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from master_client import MasterClient
from penstock.errors import FailureKind, PenstockError
from penstock.graph.deployment import TaskDeployment
from penstock.job.core.events import SparkJobReturned
from penstock.job.core.ids import SparkJob, SparkJobId, TaskId, WorkerId
from penstock.job.launcher import LaunchRequest
from penstock.link.commands import Command, Shutdown
from penstock.link.master import (
    AttachEnvironment,
    AwaitProducers,
    RegisterTask,
    TaskEnd,
    TaskFinished,
)
from penstock.shuffle import (
    AttemptId,
    Capabilities,
    DatasetId,
    JobShuffleContext,
    PartitionDescriptor,
    PartitionId,
    PartitionKind,
    ProducerDescriptor,
    ShuffleDescriptor,
    ShuffleEnvironment,
    ShuffleEnvironmentContext,
    ShuffleMaster,
    ShuffleMasterContext,
)
from penstock.shuffle.requests import Request
from penstock.testing import DEADLINE

A = TypeVar("A")
C = TypeVar("C", bound=Command)


class FakeShuffleService:
    """Gives descriptors, moves nothing, and writes down what it was asked."""

    name = "fake"
    capabilities = Capabilities(tuple(PartitionKind))

    def __init__(self) -> None:
        self.story: list[str] = []
        self.fail_registration = False
        self.gate: threading.Event | None = None
        """Registrations and releases wait until it is set, and say then that they have ended."""

    def create_shuffle_master(self, context: ShuffleMasterContext) -> ShuffleMaster:
        """The driver side: this object."""
        self.story.append("create")
        return self

    def create_shuffle_environment(self, context: ShuffleEnvironmentContext) -> ShuffleEnvironment:
        """There is none."""
        raise NotImplementedError

    def preload(self) -> None:
        """Nothing."""

    async def start(self) -> None:
        """Note it."""
        self.story.append("start")

    async def close(self) -> None:
        """Note it."""
        self.story.append("close")

    def register_job(self, context: JobShuffleContext) -> None:
        """Note it."""
        self.story.append(f"register {context.job}")

    def unregister_job(self, job: str) -> None:
        """Note it."""
        self.story.append(f"unregister {job}")

    async def register_partition_with_producer(
        self, job: str, partition: PartitionDescriptor, producer: ProducerDescriptor
    ) -> ShuffleDescriptor:
        """A descriptor beside the producer, or an error."""
        if self.fail_registration:
            raise PenstockError("the service is full")
        identity = PartitionId(partition.dataset, partition.index, producer.attempt.attempt)
        await self._pass("registered", partition.dataset)
        return ShuffleDescriptor(
            identity, "job_fakes:service", partition.kind, producer.environment, producer.address
        )

    async def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        """Note it."""
        self.story.append(f"release {descriptor.partition.dataset}")
        await self._pass("released", descriptor.partition.dataset)

    async def _pass(self, done: str, dataset: DatasetId) -> None:
        if self.gate is not None:
            assert await asyncio.to_thread(self.gate.wait, DEADLINE)
            self.story.append(f"{done} {dataset}")


_service = FakeShuffleService()


def service() -> FakeShuffleService:
    """The one service of the process, as the registry makes it."""
    return _service


def fresh_service() -> FakeShuffleService:
    """The service with nothing written down."""
    _service.story.clear()
    _service.fail_registration = False
    _service.gate = None
    return _service


class FakeEnvironment:
    """An environment: a connection, a thread on its commands, and calls for its tasks."""

    def __init__(self, address: str, secret: bytes, name: str) -> None:
        self.name = name
        self.client = MasterClient(address, secret, name)
        self.commands: list[Command] = []
        self.changed = threading.Condition()
        self.ended = threading.Event()
        self.stays = False
        """True of one that does not hang up when it is told to end: the JobMaster waits a moment for it."""
        try:
            self.client.ask(AttachEnvironment(name, "tcp://127.0.0.1:1", "h", 1))
        except BaseException:
            self.client.cut()
            raise
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def ask(self, request: Request[A], timeout: float = DEADLINE) -> A:
        """A question in the environment's name."""
        return self.client.ask(request, timeout)

    def register(self, task: TaskId, spark_job: SparkJobId) -> TaskDeployment | None:
        """A task asks for what to do; None: nothing more."""
        identity = task.to_attempt() if isinstance(task, WorkerId) else task
        wire: Any = self.ask(RegisterTask(identity, spark_job.to_wire(), self.name, "tcp://127.0.0.1:1")).deployment
        return None if wire is None else TaskDeployment.from_wire(tuple(wire))

    def finished(
        self,
        attempt: AttemptId,
        state: TaskEnd = TaskEnd.FINISHED,
        error: str = "",
        kind: FailureKind = FailureKind.CAUSE,
    ) -> None:
        """A task's end, in the words of Spark's side."""
        self.ask(TaskFinished(attempt, state, {"rows_out": 3.0}, error=error, failure=kind))

    def wait_for(self, kind: type[C], count: int = 1) -> list[C]:
        """The commands of this kind, once there are as many."""
        with self.changed:
            ready = self.changed.wait_for(lambda: len(self._of(kind)) >= count, DEADLINE)
            assert ready, f"{count} x {kind.__name__} expected, got {self.commands}"
            return self._of(kind)

    def close(self) -> None:
        """Hang up."""
        self.client.close()
        self._thread.join(DEADLINE)

    def _of(self, kind: type[C]) -> list[C]:
        return [command for command in self.commands if isinstance(command, kind)]

    def _listen(self) -> None:
        while (found := self.client.commands.get()) is not None:
            with self.changed:
                self.commands.append(found[1])
                self.changed.notify_all()
            if isinstance(found[1], Shutdown) and not self.stays:
                self.client.cut()
        self.ended.set()


Task = Callable[[FakeEnvironment, TaskDeployment], None]
"""The work of a task with its deployment, its report included."""


class ThreadLauncher:
    """Runs workers and tasks of DataFrames as threads; a Spark job returns when its threads have ended."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._numbers = itertools.count(1)
        self.environment: FakeEnvironment | None = None
        self.cancelled: list[str] = []
        self.launched: list[str] = []
        self.absent: set[int] = set()
        """Workers that Spark never starts."""
        self.errors: list[BaseException] = []

    def launch(self, request: LaunchRequest) -> None:
        """Start the threads."""
        self.launched.append(request.submission.job)
        for launched in request.spark_jobs:
            threading.Thread(target=self._run_spark_job, args=(request, launched), daemon=True).start()

    def cancel(self, job: str, spark_job: SparkJobId | None = None) -> None:
        """Note it; threads can't be cancelled."""
        self.cancelled.append(job if spark_job is None else f"{job} {spark_job}")

    def close(self) -> None:
        """Nothing to close."""

    def _run_spark_job(self, request: LaunchRequest, launched: SparkJob) -> None:
        job, vertex = request.submission.job, launched.vertex
        present = [number for number in launched.workers if number not in self.absent]
        tasks: list[TaskId] = [WorkerId(job, number, next(self._numbers)) for number in present]
        if vertex is not None:
            width = request.graph.vertex(vertex).parallelism
            tasks = [AttemptId(job, vertex, subtask, next(self._numbers)) for subtask in range(width)]
        threads = [threading.Thread(target=self._run_task, args=(t, launched.id), daemon=True) for t in tasks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        request.returned(SparkJobReturned(job, launched.id))

    def _run_task(self, task: TaskId, spark_job: SparkJobId) -> None:
        assert self.environment is not None
        environment = self.environment
        try:
            while (deployment := environment.register(task, spark_job)) is not None:
                self._task(environment, deployment)
                if not isinstance(task, WorkerId):
                    return
        except PenstockError as error:
            self.errors.append(error)


def run_well(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
    """A task that does nothing, well."""
    for gate in deployment.inputs:
        if gate.await_confirmation:
            environment.ask(AwaitProducers(deployment.attempt))
    environment.finished(deployment.attempt)
