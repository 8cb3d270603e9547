# SPDX-License-Identifier: Apache-2.0
"""The environment, in a task, of a service whose gates are its own."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import SettingError
from penstock.plugin.awaited_producers import GatesOfTasks, UpdatedGate
from penstock.shuffle import (
    AttemptId,
    InputGate,
    InputGateDescriptor,
    OwnerContext,
    ResultPartitionDescriptor,
    ResultPartitionWriter,
    ShuffleDescriptor,
    ShuffleEnvironmentContext,
)


class BlockingEnvironment:
    """The base of a `ShuffleEnvironment` without streams.

    A service adds `writer`, `gate`, `release_partitions_locally` and `partitions_occupying_local_resources`.
    """

    def __init__(self, context: ShuffleEnvironmentContext) -> None:
        self._host = context.host
        self._settings = context.settings
        self._gates = GatesOfTasks()

    def writer(self, owner: OwnerContext, descriptor: ResultPartitionDescriptor) -> ResultPartitionWriter:
        """A writer of a blocking partition."""
        raise NotImplementedError

    def gate(self, owner: OwnerContext, descriptor: InputGateDescriptor) -> UpdatedGate:
        """A gate over partitions of this service."""
        raise NotImplementedError

    def create_result_partition_writers(
        self, owner: OwnerContext, descriptors: Sequence[ResultPartitionDescriptor]
    ) -> list[ResultPartitionWriter]:
        """Writers in the order of the descriptors; SettingError for a stream."""
        for descriptor in descriptors:
            if descriptor.is_stream:
                service = descriptor.shuffle.service
                raise SettingError(f"the service {service} carries no streams: use service='local'")
        return [self.writer(owner, descriptor) for descriptor in descriptors]

    def create_input_gates(self, owner: OwnerContext, descriptors: Sequence[InputGateDescriptor]) -> list[InputGate]:
        """Gates in the order of the descriptors."""
        gates = [self.gate(owner, descriptor) for descriptor in descriptors]
        self._gates.add(owner.attempt, gates)
        return list(gates)

    def update_partition_info(self, consumer: AttemptId, descriptor: ShuffleDescriptor) -> bool:
        """Replace an unknown producer of a gate by the real one; False where the gate is gone. Any thread."""
        return self._gates.update(consumer, descriptor)

    def close(self) -> None:
        """Keep finished partitions: they are not the task's."""
