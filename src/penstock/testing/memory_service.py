# SPDX-License-Identifier: Apache-2.0
"""`memory`: a whole shuffle service inside one process, for unit tests and for runs without Spark.

It keeps every promise of the plug-in interface (`tests/testing/test_memory_conformance.py` runs the conformance
suite over it) except spilling and processes: data lives in this process, tasks are threads, and an environment
is only a name.

Beyond the interface: `MemoryShuffleEnvironment.cancel` and `.lose`.
The service's `request_timeout` is the seconds after which an unproduced partition is PartitionNotProducedError
(otherwise `spark.penstock.job.slotsTimeout`), its `message_rows` the most rows of a streaming message: a streaming
partition has room for `exclusiveBuffersPerChannel` messages for each subpartition and `floatingBuffersPerGate` more.
When not to use it: for data that does not fit memory, for more than one
process, for any measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.errors import PenstockError, SettingError
from penstock.shuffle import (
    AttemptId,
    Capabilities,
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
from penstock.testing.memory_channels import GateContext
from penstock.testing.memory_gate import MemoryInputGate
from penstock.testing.memory_partition import MemoryPartition
from penstock.testing.memory_registry import attach, check_kind, detach
from penstock.testing.memory_writer import MemoryWriter

NAME = "memory"
MESSAGE_ROWS = 1024
"""Rows of a streaming message, where nothing else is said."""


class MemoryShuffleEnvironment:
    """One task's view of the registry, under its environment's name."""

    def __init__(self, context: ShuffleEnvironmentContext, request_timeout: float, message_rows: int) -> None:
        self.name = context.host.environment
        self._registry = attach(context.application)
        self._wake = context.host.waker()
        with self._registry.lock:
            self._registry.wakers.append(self._wake)
        self._network = context.settings.network
        self._gate_context = GateContext(self._registry, context.host, request_timeout)
        self._message_rows = message_rows
        self._members: list[MemoryWriter | MemoryInputGate] = []
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
        with self._registry.lock:
            self._registry.wakers.remove(self._wake)
        detach(self._registry)

    def _writer(self, owner: OwnerContext, descriptor: ResultPartitionDescriptor) -> MemoryWriter:
        kind, count = descriptor.partition.kind, descriptor.partition.subpartitions
        if descriptor.is_stream and not kind.carries_streams:
            raise SettingError(f"a streaming query exchanges rows through pipelined partitions, not {kind.label}")
        budget = self._network.exclusive_buffers_per_channel * count + self._network.floating_buffers_per_gate
        partition = MemoryPartition(descriptor.shuffle.partition, kind, self.name, count, max(1, budget))
        message_rows = self._message_rows if descriptor.is_stream else None
        return MemoryWriter(self._registry, owner, partition, descriptor.schema, message_rows)

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
        with self._registry.lock:
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
        with self._registry.lock:
            self._registry.registered.setdefault(job, set()).add(identity)
        return ShuffleDescriptor(identity, NAME, partition.kind, producer.environment, producer.address)

    async def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        """Nothing is held outside the environments."""


class MemoryShuffleService:
    """The plug-in; name it by `penstock.testing.memory_service:MemoryShuffleService`."""

    capabilities = Capabilities(
        (
            PartitionKind.PIPELINED_BOUNDED,
            PartitionKind.HYBRID_FULL,
            PartitionKind.HYBRID_SELECTIVE,
            PartitionKind.BLOCKING_SORT_MERGE,
            PartitionKind.BLOCKING_HASH,
            PartitionKind.BLOCKING_PERSISTENT,
        ),
        streams=True,
    )

    def __init__(self, *, request_timeout: float | None = None, message_rows: int = MESSAGE_ROWS) -> None:
        if message_rows < 1:
            raise PenstockError(f"message_rows is {message_rows}, not a number of rows")
        self._request_timeout = request_timeout
        self._message_rows = message_rows

    @property
    def name(self) -> str:
        """`memory`."""
        return NAME

    def create_shuffle_master(self, context: ShuffleMasterContext) -> MemoryShuffleMaster:
        """The driver side."""
        return MemoryShuffleMaster(context)

    def create_shuffle_environment(self, context: ShuffleEnvironmentContext) -> MemoryShuffleEnvironment:
        """The host side, for one task."""
        timeout = context.settings.job.slots_timeout if self._request_timeout is None else self._request_timeout
        return MemoryShuffleEnvironment(context, timeout, self._message_rows)

    def preload(self) -> None:
        """Nothing more is imported in tasks."""
