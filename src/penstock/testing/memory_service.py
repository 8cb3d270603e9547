# SPDX-License-Identifier: Apache-2.0
"""`memory`: a whole shuffle service inside one process, for unit tests and for runs without Spark.

It keeps every promise of the plug-in interface (`tests/testing/test_memory_conformance.py` runs the conformance
suite over it) except spilling and processes: data lives in this process, tasks are threads, and an environment
is only a name. A full back-pressured partition blocks its writer until a reader takes a batch, the task is
cancelled (`MemoryShuffleEnvironment.cancel`) or the partition ends.

Beyond the interface: `MemoryShuffleEnvironment.cancel`, `.lose` and `.create_task_line`.
`extras["partition_request_timeout"]` sets the seconds after which an unproduced partition is
PartitionNotProducedError (otherwise `spark.penstock.job.slotsTimeout`), `extras["message_rows"]` the most rows of a
streaming message: a streaming partition has room for `exclusiveBuffersPerChannel` messages for each subpartition and
`floatingBuffersPerGate` more. When not to use it: for data that does not fit memory, for more than one
process, for any measurement.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import pyarrow as pa

from penstock.partition.lifecycle import PartitionEvent, PartitionState
from penstock.shuffle import (
    AttemptId,
    Event,
    InputGate,
    InputGateDescriptor,
    JobShuffleContext,
    OwnerContext,
    PartitionDescriptor,
    PartitionId,
    PartitionKind,
    ProducerDescriptor,
    ResultPartitionDescriptor,
    ResultPartitionWriter,
    ShuffleDescriptor,
    ShuffleEnvironmentContext,
    ShuffleMasterContext,
)
from penstock.shuffle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.shuffle.errors import EnvironmentLostError, PenstockError, SchemaError, SettingError, TaskCancelledError
from penstock.shuffle.service import fingerprint_of
from penstock.shuffle.streaming import StreamInputGate, StreamPartitionWriter
from penstock.testing.memory_channels import GateContext
from penstock.testing.memory_gate import MemoryInputGate
from penstock.testing.memory_line import MemoryTaskLine
from penstock.testing.memory_partition import HOLDING_STATES, MemoryPartition, Stored
from penstock.testing.memory_registry import MemoryRegistry, attach, check_kind, detach
from penstock.testing.memory_stream_gate import MemoryStreamGate
from penstock.testing.memory_stream_writer import MemoryStreamWriter

NAME = "memory"
MESSAGE_ROWS = 1024
"""Rows of a streaming message, where nothing else is said."""


class MemoryResultPartitionWriter:
    """Writes one partition into the registry; see `ResultPartitionWriter` for the promises."""

    def __init__(
        self,
        registry: MemoryRegistry,
        owner: OwnerContext,
        descriptor: ResultPartitionDescriptor,
        target: MemoryPartition,
    ) -> None:
        self._registry = registry
        self._owner = owner
        self._partition = target
        self._types = list(zip(descriptor.schema.names, descriptor.schema.types, strict=True))
        self._lifecycle = WriterLifecycle(f"writer of {target.id} of {owner.name}")

    @property
    def partition(self) -> PartitionId:
        """The identity of what is written."""
        return self._partition.id

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return len(self._partition.subpartitions)

    def setup(self) -> None:
        """Make the partition known to readers."""
        self._lifecycle.move(WriterEvent.SET_UP)
        self._registry.add(self._partition)

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Append a batch to one subpartition; waits while the partition's budget is used up."""
        if not 0 <= subpartition < self.subpartitions:
            raise IndexError(f"{self} has no subpartition {subpartition}: it has {self.subpartitions}")
        self._append(batch, range(subpartition, subpartition + 1))

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Append a batch to all subpartitions, stored and counted against the budget once."""
        self._append(batch, range(self.subpartitions))

    def broadcast_event(self, event: Event) -> None:
        """Append an event to all subpartitions; never waits. PenstockError where a hybrid partition is written."""
        if self._partition.kind.is_hybrid:
            raise PenstockError(f"{self}: a {self._partition.kind.label} partition takes no event {event}")
        with self._registry.changing():
            self._check()
            self._partition.append(Stored.of_event(event), range(self.subpartitions))

    def flush(self) -> None:
        """Nothing to do: every write is visible at once."""

    def is_available(self) -> bool:
        """Whether a write would not wait."""
        with self._registry.condition:
            return self._partition.has_room()

    def finish(self) -> None:
        """Send the closing events; blocking partitions become readable."""
        with self._registry.changing():
            self._check()
            self._partition.finish()
            self._lifecycle.move(WriterEvent.FINISH)

    def fail(self, cause: BaseException) -> None:
        """Give the partition up; may come from another thread and wakes a waiting write."""
        with self._registry.changing():
            if self._partition.state is PartitionState.WRITING and self._state is WriterState.WRITING:
                self._partition.end(PartitionEvent.FAIL, cause)
            self._lifecycle.move(WriterEvent.FAIL)

    def close(self) -> None:
        """End the writing; a partition that was not finished has failed."""
        self.fail(PenstockError(f"{self} was closed before it was finished"))
        self._lifecycle.move(WriterEvent.CLOSE)

    def subpartition_bytes(self) -> tuple[int, ...]:
        """The payload bytes of each subpartition of a finished blocking or hybrid partition."""
        with self._registry.condition:
            return self._partition.sizes()

    def fingerprint(self) -> int:
        """A number that depends on what was written and on nothing else; 0 before `finish`."""
        with self._registry.condition:
            return fingerprint_of(self._partition.ends()) if self._state is WriterState.FINISHED else 0

    def take_task_events(self) -> list[tuple[int, bytes]]:
        """The events that readers sent backwards since the last call: subpartition and payload, in order."""
        with self._registry.condition:
            events = list(self._partition.task_events)
            self._partition.task_events.clear()
            return events

    @property
    def _state(self) -> WriterState:
        return self._lifecycle.state

    def __str__(self) -> str:
        return f"writer of {self._partition.id} of {self._owner.name}"

    def _append(self, batch: pa.RecordBatch, targets: range) -> None:
        if list(zip(batch.schema.names, batch.schema.types, strict=True)) != self._types:
            raise SchemaError(f"{self} takes {self._types}, not {batch.schema}")
        stored = Stored.of_batch(batch)
        with self._registry.changing():
            self._check()
            if not self._partition.has_room():
                self._wait_for_room()
            self._partition.append(stored, targets)

    def _wait_for_room(self) -> None:
        began = time.monotonic()
        self._owner.metrics.set("is_back_pressured", 1)
        try:
            while not self._partition.has_room():
                self._registry.condition.wait()
                self._check()
        finally:
            self._owner.metrics.set("is_back_pressured", 0)
            self._owner.metrics.add("back_pressured_seconds", time.monotonic() - began)

    def _check(self) -> None:
        if self._owner.attempt in self._registry.cancelled:
            raise TaskCancelledError(f"{self}: the task was told to stop")
        if self._state not in (WriterState.WRITING, WriterState.FAILED):
            raise PenstockError(f"{self} is {self._state.value}: it takes data between setup and finish")
        if self._partition.state is PartitionState.LOST:
            raise EnvironmentLostError(f"{self}: environment {self._partition.environment} is gone")
        if self._partition.state not in HOLDING_STATES:
            raise TaskCancelledError(f"{self}: the partition is {self._partition.state.value}, nobody can read it")


Member = MemoryResultPartitionWriter | MemoryInputGate | MemoryStreamWriter | MemoryStreamGate


class MemoryShuffleEnvironment:
    """One task's view of the registry, under its environment's name."""

    def __init__(self, context: ShuffleEnvironmentContext) -> None:
        self.name = context.environment
        self._registry = attach(context.application)
        self._network = context.settings.network
        timeout = context.extras.get("partition_request_timeout", context.settings.job.slots_timeout)
        if not isinstance(timeout, int | float):
            raise PenstockError(f"partition_request_timeout is {timeout!r}, not a number of seconds")
        self._gate_context = GateContext(self._registry, self.name, float(timeout))
        rows = context.extras.get("message_rows", MESSAGE_ROWS)
        if not isinstance(rows, int) or rows < 1:
            raise PenstockError(f"message_rows is {rows!r}, not a number of rows")
        self._message_rows = rows
        self._members: list[Member] = []
        self._closed = False

    def create_result_partition_writers(
        self, owner: OwnerContext, descriptors: Sequence[ResultPartitionDescriptor]
    ) -> list[ResultPartitionWriter]:
        """Writers in the order of the descriptors."""
        self._check()
        writers = [self._writer(owner, descriptor) for descriptor in descriptors]
        self._members.extend(writers)
        return list(writers)

    def create_input_gates(self, owner: OwnerContext, descriptors: Sequence[InputGateDescriptor]) -> list[InputGate]:
        """Gates in the order of the descriptors."""
        self._check()
        gates = [MemoryInputGate(self._gate_context, owner, descriptor) for descriptor in descriptors]
        self._members.extend(gates)
        return list(gates)

    def create_stream_writers(
        self, owner: OwnerContext, descriptors: Sequence[ResultPartitionDescriptor]
    ) -> list[StreamPartitionWriter]:
        """Writers of a streaming query, in the order of the descriptors; raises SettingError for another kind."""
        self._check()
        writers = []
        for descriptor in descriptors:
            kind = descriptor.partition.kind
            if kind is not PartitionKind.PIPELINED_BOUNDED:
                raise SettingError(f"a streaming query exchanges rows through pipelined partitions, not {kind.label}")
            target = self._partition(descriptor)
            writers.append(MemoryStreamWriter(self._registry, owner, descriptor, target, self._message_rows))
        self._members.extend(writers)
        return list(writers)

    def create_stream_gates(
        self, owner: OwnerContext, descriptors: Sequence[InputGateDescriptor]
    ) -> list[StreamInputGate]:
        """Gates of a streaming query, in the order of the descriptors."""
        self._check()
        gates = [MemoryStreamGate(self._gate_context, owner, descriptor) for descriptor in descriptors]
        self._members.extend(gates)
        return list(gates)

    def create_task_line(self, attempt: AttemptId) -> MemoryTaskLine:
        """The line of a streaming task; the test is the JobMaster at its other end."""
        return MemoryTaskLine(self._registry, self.name, attempt)

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        """Release what this environment holds of these partitions."""
        self._registry.release(partitions, self.name)

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        """The partitions written under this environment's name that still hold memory."""
        return self._registry.occupying(self.name)

    def update_partition_info(self, consumer: AttemptId, descriptor: ShuffleDescriptor) -> bool:
        """Tell the consumer's gates who produces a partition they wait for."""
        return self._registry.update(consumer, descriptor)

    def cancel(self, attempt: AttemptId) -> None:
        """Tell an attempt to stop: its waiting and later calls raise TaskCancelledError. Any thread."""
        self._registry.cancel(attempt)

    def lose(self, cause: str = "the environment was lost") -> None:
        """Behave as if this environment's host had died: its partitions are lost, its jobs are told. Any thread."""
        self._registry.lose_environment(self.name, cause)

    def close(self) -> None:
        """Close what is still open here; the last one of an application takes the data along."""
        if self._closed:
            return
        self._closed = True
        for member in self._members:
            member.close()
        self._members.clear()
        detach(self._registry)

    def _writer(self, owner: OwnerContext, descriptor: ResultPartitionDescriptor) -> MemoryResultPartitionWriter:
        return MemoryResultPartitionWriter(self._registry, owner, descriptor, self._partition(descriptor))

    def _partition(self, descriptor: ResultPartitionDescriptor) -> MemoryPartition:
        count = descriptor.partition.subpartitions
        budget = self._network.exclusive_buffers_per_channel * count + self._network.floating_buffers_per_gate
        partition = descriptor.shuffle.partition
        return MemoryPartition(partition, descriptor.partition.kind, self.name, count, max(1, budget))

    def _check(self) -> None:
        if self._closed:
            raise PenstockError(f"the memory environment {self.name} of this task is closed")


class MemoryShuffleMaster:
    """The driver side: it only names partitions, and forgets a job's."""

    def __init__(self, context: ShuffleMasterContext) -> None:
        self._registry = attach(context.application)
        self._closed = False

    async def start(self) -> None:
        """Nothing to start."""

    async def close(self) -> None:
        """Let the registry go; idempotent."""
        if not self._closed:
            self._closed = True
            detach(self._registry)

    def register_job(self, context: JobShuffleContext) -> None:
        """Remember whom to tell about lost partitions."""
        with self._registry.condition:
            self._registry.jobs[context.job] = context

    def unregister_job(self, job: str) -> None:
        """Drop everything of the job except persistent partitions."""
        self._registry.forget_job(job)

    async def register_partition_with_producer(
        self, job: str, partition: PartitionDescriptor, producer: ProducerDescriptor
    ) -> ShuffleDescriptor:
        """A descriptor that names the producer's attempt and environment."""
        check_kind(partition.kind)
        identity = PartitionId(partition.dataset, partition.index, producer.attempt.attempt)
        with self._registry.condition:
            self._registry.registered.setdefault(job, set()).add(identity)
        return ShuffleDescriptor(identity, NAME, partition.kind, producer.environment, producer.address)

    async def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        """Nothing is held outside the environments."""


class MemoryShuffleService:
    """The plug-in; name it by `penstock.testing.memory_service:MemoryShuffleService`."""

    @property
    def name(self) -> str:
        """`memory`."""
        return NAME

    def create_shuffle_master(self, context: ShuffleMasterContext) -> MemoryShuffleMaster:
        """The driver side."""
        return MemoryShuffleMaster(context)

    def create_shuffle_environment(self, context: ShuffleEnvironmentContext) -> MemoryShuffleEnvironment:
        """The host side, for one task."""
        return MemoryShuffleEnvironment(context)
