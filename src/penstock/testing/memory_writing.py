# SPDX-License-Identifier: Apache-2.0
"""A partition of the `memory` shuffle service while a task writes it, whichever of the two writers that has."""

from __future__ import annotations

from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.partition.lifecycle import PartitionEvent, PartitionState
from penstock.shuffle import OwnerContext
from penstock.shuffle.errors import EnvironmentLostError, PenstockError, TaskCancelledError
from penstock.testing.memory_partition import HOLDING_STATES, MemoryPartition
from penstock.testing.memory_registry import MemoryRegistry


class Writing:
    """The state of the writer of `partition`; all but `set_up` and `close` within the registry's lock."""

    def __init__(self, registry: MemoryRegistry, owner: OwnerContext, partition: MemoryPartition) -> None:
        self.partition = partition
        self.registry = registry
        self.owner = owner
        self._lifecycle = WriterLifecycle(f"writer of {partition.id} of {owner.name}")

    def __str__(self) -> str:
        return self._lifecycle.name

    @property
    def state(self) -> WriterState:
        """Created, writing, or how it has ended."""
        return self._lifecycle.state

    def set_up(self) -> None:
        """Make the partition known to readers."""
        self._lifecycle.move(WriterEvent.SET_UP)
        self.registry.add(self.partition)

    def check(self) -> None:
        """Raise what ends the writing, where that has come."""
        if self.owner.attempt in self.registry.cancelled:
            raise TaskCancelledError(f"{self}: the task was told to stop")
        if self.state not in (WriterState.WRITING, WriterState.FAILED):
            raise PenstockError(f"{self} is {self.state.value}: it takes data between setup and finish")
        if self.partition.state is PartitionState.LOST:
            raise EnvironmentLostError(f"{self}: environment {self.partition.environment} is gone")
        if self.partition.state not in HOLDING_STATES:
            raise TaskCancelledError(f"{self}: the partition is {self.partition.state.value}, nobody can read it")

    def finish(self, *, end_of_data: bool = True) -> None:
        """Write the closing events; blocking partitions become readable."""
        self.partition.finish(end_of_data=end_of_data)
        self._lifecycle.move(WriterEvent.FINISH)

    def fail(self, cause: BaseException) -> None:
        """Give the partition up, if it is being written."""
        if self.partition.state is PartitionState.WRITING and self.state is WriterState.WRITING:
            self.partition.end(PartitionEvent.FAIL, cause)
        self._lifecycle.move(WriterEvent.FAIL)

    def close(self) -> None:
        """Nothing is written any more."""
        self._lifecycle.move(WriterEvent.CLOSE)
