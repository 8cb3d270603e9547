# SPDX-License-Identifier: Apache-2.0
"""Runs a stream in this process: one thread for each subtask, the in-memory shuffle service, no Spark.

Everything but scheduling is what a Spark run uses: plan, partitioners, operators, task runner, writers and gates.
All edges go over the in-memory service, whatever service the stream names; modes are kept. `slots` is what the plan
is made for, and each region must fit them; but all regions start at once, and a reader of a blocking partition waits
for it. When not to use it: to measure, or for rows beyond memory.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.api.plan import Plan
from penstock.api.stream import Stream
from penstock.errors import (
    JobError,
    NotWantedError,
    PartitionError,
    PlanError,
    SlotsError,
    TaskCancelledError,
)
from penstock.graph import (
    RESULT_EDGE,
    ExecutionGraph,
    InputDeployment,
    JobGraph,
    JobVertex,
    OutputDeployment,
    TaskDeployment,
    regions,
    slots_needed,
)
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    ChannelDescriptor,
    DatasetId,
    InputGateDescriptor,
    MetricGroup,
    OwnerContext,
    PartitionDescriptor,
    ProducerDescriptor,
    ShuffleDescriptor,
    ShuffleEnvironment,
    ShuffleEnvironmentContext,
    ShuffleMasterContext,
)
from penstock.task import SubtaskPlan, failure_text, run_subtask
from penstock.task.blocking import BlockingInput
from penstock.testing.memory_host import MemoryHost
from penstock.testing.memory_service import MemoryShuffleService

_JOIN_SECONDS = 300.0
_numbers = itertools.count()


def run_local(stream: Stream, settings: Settings | None = None, slots: int = 8) -> pa.Table:
    """All rows of the stream, partition by partition; a failure in user code is the cause of the JobError."""
    return LocalRunner(settings, slots).run(stream).table()


@dataclass(frozen=True, slots=True)
class LocalResult:
    """The result of a local run: the batches of each result partition, and the figures of each subtask."""

    graph: JobGraph
    schema: pa.Schema
    partitions: tuple[tuple[pa.RecordBatch, ...], ...]
    metrics: Mapping[tuple[int, int], Mapping[str, float]]

    def table(self) -> pa.Table:
        """All rows."""
        batches = [batch for partition in self.partitions for batch in partition]
        return pa.Table.from_batches(batches, self.schema)


class LocalRunner:
    """Runs streams one after the other; holds nothing between them."""

    def __init__(self, settings: Settings | None = None, slots: int = 8) -> None:
        self._settings = settings if settings is not None else Settings()
        self._slots = slots

    def run(self, stream: Stream) -> LocalResult:
        """Run one stream to its end."""
        plan = stream.plan(self._settings, self._slots)
        if plan.dataframes:
            raise PlanError("a stream of a DataFrame needs Spark: use toDF(), or penstock.testing.fromBatches here")
        needed = max(slots_needed(plan.graph, region) for region in regions(plan.graph))
        if needed > self._slots:
            raise SlotsError(f"the stream needs {needed} task slots and the local runner has {self._slots}")
        job = _LocalJob(_with_memory_edges(plan), self._settings)
        try:
            return job.run()
        finally:
            job.close()


def _with_memory_edges(plan: Plan) -> JobGraph:
    edges = tuple(replace(edge, service=MemoryShuffleService().name) for edge in plan.graph.edges)
    return replace(plan.graph, edges=edges)


@dataclass(slots=True)
class _Control:
    """The line of one local task: producers need no confirmation, cancelling is an event."""

    cancelled: threading.Event
    unwanted: Container[int]
    vertex: int
    host: MemoryHost
    reports: list[Mapping[str, float]] = field(default_factory=list)

    @property
    def arrivals(self) -> int:
        return self.host.arrivals

    def wait(self, seen: int, seconds: float | None = None) -> None:
        self.host.wait(seen, seconds)
        self.check_cancelled()

    def await_producers(self) -> None:
        pass

    def check_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise TaskCancelledError("another task of the job failed")
        if self.vertex in self.unwanted:
            raise NotWantedError("all who read its rows have ended, and had enough")

    def report(self, metrics: Mapping[str, float]) -> None:
        self.reports.append(metrics)


class _LocalJob:
    """The JobMaster's part, reduced: describe partitions, start threads, keep the first failure."""

    def __init__(self, graph: JobGraph, settings: Settings) -> None:
        self._graph = graph
        self._settings = settings
        self._execution = ExecutionGraph(graph)
        self._job = f"local-{next(_numbers)}"
        service = MemoryShuffleService()
        self._master = service.create_shuffle_master(ShuffleMasterContext(self._job, settings, _ignore))
        self._service = service
        self._partitions: dict[tuple[int, int, int], ShuffleDescriptor] = {}
        self._cancelled = threading.Event()
        self._hosts: list[MemoryHost] = []
        self._environments: list[ShuffleEnvironment] = []
        self._failures: list[tuple[str, BaseException]] = []
        self._metrics: dict[tuple[int, int], Mapping[str, float]] = {}
        self._left: set[int] = set()
        """The edges that some task has not read to their end."""
        self._unwanted: set[int] = set()
        """The vertices whose rows are not wanted any more."""
        self._lock = threading.Lock()

    def run(self) -> LocalResult:
        asyncio.run(self._register())
        threads = [
            threading.Thread(target=self._run_task, args=item, name=f"penstock-local-{item[0].id}.{item[1]}")
            for item in self._execution.subtasks()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_JOIN_SECONDS)
        self._raise_first_failure()
        schema = self._graph.vertex(self._graph.result[0]).schema
        partitions = tuple(
            self._read_result(schema, self._partitions[vertex, RESULT_EDGE, subtask])
            for vertex in self._graph.result
            for subtask in range(self._graph.vertex(vertex).parallelism)
        )
        return LocalResult(self._graph, schema, partitions, self._metrics)

    def close(self) -> None:
        for environment in self._environments:
            environment.close()
        asyncio.run(self._master.close())

    async def _register(self) -> None:
        await self._master.start()
        for vertex, subtask in self._execution.subtasks():
            producer = ProducerDescriptor(self._attempt(vertex, subtask), "local", "")
            for edge, description in self._outputs(vertex, subtask):
                self._partitions[vertex.id, edge, subtask] = await self._master.register_partition_with_producer(
                    self._job, description, producer
                )

    def _outputs(self, vertex: JobVertex, subtask: int) -> list[tuple[int, PartitionDescriptor]]:
        outputs = []
        for edge in self._graph.outputs_of(vertex.id):
            count = self._execution.subpartitions_of(edge.id, subtask)
            dataset = DatasetId(self._job, edge.id)
            outputs.append((edge.id, PartitionDescriptor(dataset, subtask, edge.kind, count, edge.is_broadcast)))
        if vertex.id in self._graph.result:
            dataset = DatasetId(self._job, vertex.id, is_result=True)
            outputs.append((RESULT_EDGE, PartitionDescriptor(dataset, subtask, self._graph.keeper.kind, 1)))
        return outputs

    def _deployment(self, vertex: JobVertex, subtask: int) -> TaskDeployment:
        inputs = []
        for edge in self._graph.inputs_of(vertex.id):
            channels = tuple(
                (self._partitions[edge.producer, edge.id, partition], first, count)
                for partition, first, count in self._execution.channels_of(edge.id, subtask)
            )
            inputs.append(InputDeployment(edge.id, channels, await_confirmation=False))
        outputs = tuple(
            OutputDeployment(edge, self._partitions[vertex.id, edge, subtask], description.subpartitions)
            for edge, description in self._outputs(vertex, subtask)
        )
        return TaskDeployment(self._attempt(vertex, subtask), tuple(inputs), outputs)

    def _attempt(self, vertex: JobVertex, subtask: int) -> AttemptId:
        return AttemptId(self._job, vertex.id, subtask, 0)

    def _run_task(self, vertex: JobVertex, subtask: int) -> None:
        plan = SubtaskPlan(self._graph, vertex, self._deployment(vertex, subtask))
        host, environment = self._attached()
        control = _Control(self._cancelled, self._unwanted, vertex.id, host)
        try:
            report = run_subtask(plan, lambda _: environment, control, None, self._settings)
            with self._lock:
                self._metrics[vertex.id, subtask] = report.metrics
                self._left.update(report.left)
                self._unwanted.update(vertex.id for vertex in self._graph.vertices if self._is_unwanted(vertex))
            self._wake_all()
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            with self._lock:
                self._failures.append((plan.place, error))
            self._cancelled.set()
            self._wake_all()

    def _attached(self) -> tuple[MemoryHost, ShuffleEnvironment]:
        """A host and an environment, for one task."""
        host = MemoryHost("local")
        context = ShuffleEnvironmentContext(self._job, b"", self._settings, host)
        environment = self._service.create_shuffle_environment(context)
        with self._lock:
            self._hosts.append(host)
            self._environments.append(environment)
        return host, environment

    def _wake_all(self) -> None:
        """Each task looks whether it is to end."""
        with self._lock:
            hosts = list(self._hosts)
        for host in hosts:
            host.wake()

    def _is_unwanted(self, vertex: JobVertex) -> bool:
        edges = self._graph.outputs_of(vertex.id)
        if vertex.id in self._graph.result or not any(edge.id in self._left for edge in edges):
            return False
        readers = [self._graph.vertex(edge.consumer) for edge in edges]
        return all((each.id, subtask) in self._metrics for each in readers for subtask in range(each.parallelism))

    def _raise_first_failure(self) -> None:
        if not self._failures:
            return
        # An error that comes of another one says nothing: cancelled tasks, readers of failed producers.
        own = [item for item in self._failures if not isinstance(item[1], TaskCancelledError | PartitionError)]
        place, error = (own or self._failures)[0]
        raise JobError(f"{place} failed:\n{failure_text(error)}") from error

    def _read_result(self, schema: pa.Schema, source: ShuffleDescriptor) -> tuple[pa.RecordBatch, ...]:
        owner = OwnerContext(AttemptId(self._job, RESULT_EDGE, 0, 0), "result", MetricGroup("result"))
        descriptor = InputGateDescriptor(RESULT_EDGE, schema, (ChannelDescriptor(source, 0),))
        host, environment = self._attached()
        (gate,) = environment.create_input_gates(owner, [descriptor])
        gate.setup()
        batches, rows = [], BlockingInput([gate], host)
        try:
            while (received := rows.next(_JOIN_SECONDS)) is not None:
                if received.batch is not None:
                    batches.append(received.batch)
        finally:
            gate.close()
        return tuple(batches)


def _ignore(error: BaseException) -> None:
    """The in-memory service has no fatal errors."""
