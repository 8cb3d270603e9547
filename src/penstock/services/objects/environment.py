# SPDX-License-Identifier: Apache-2.0
"""The `objects` service in a task: its writers and gates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.errors import SettingError
from penstock.services.awaited_producers import GatesOfTasks
from penstock.services.objects.gate import ObjectGate
from penstock.services.objects.places import ObjectFolder
from penstock.services.objects.writer import ObjectWriter
from penstock.shuffle import (
    AttemptId,
    InputGate,
    InputGateDescriptor,
    OwnerContext,
    PartitionId,
    ResultPartitionDescriptor,
    ResultPartitionWriter,
    ShuffleDescriptor,
    ShuffleEnvironmentContext,
)


class ObjectEnvironment:
    """A `ShuffleEnvironment`."""

    def __init__(self, context: ShuffleEnvironmentContext) -> None:
        self._host = context.host
        self._settings = context.settings
        self._folder = ObjectFolder(context.settings.objects.uri, context.application)
        self._gates = GatesOfTasks()

    def create_result_partition_writers(
        self, owner: OwnerContext, descriptors: Sequence[ResultPartitionDescriptor]
    ) -> list[ResultPartitionWriter]:
        """Writers in the order of the descriptors."""
        if any(descriptor.is_stream for descriptor in descriptors):
            raise SettingError("the service objects carries no streams: use service='local'")
        host, settings, folder = self._host, self._settings.blocking, self._folder
        return [ObjectWriter(host, owner, descriptor, settings, folder) for descriptor in descriptors]

    def create_input_gates(self, owner: OwnerContext, descriptors: Sequence[InputGateDescriptor]) -> list[InputGate]:
        """Gates in the order of the descriptors."""
        late = self._settings.objects.request_timeout
        gates = [ObjectGate(self._host, owner, descriptor, self._folder, late) for descriptor in descriptors]
        self._gates.add(owner.attempt, gates)
        return list(gates)

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        """Release these, wherever they were written."""
        for partition in partitions:
            self._folder.release(partition)

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        """The partitions of this host that have objects."""
        return self._folder.held(self._host.environment)

    def update_partition_info(self, consumer: AttemptId, descriptor: ShuffleDescriptor) -> bool:
        """Replace an unknown producer of a gate by the real one; False where the gate is gone. Any thread."""
        return self._gates.update(consumer, descriptor)

    def close(self) -> None:
        """Keep the objects."""
