# SPDX-License-Identifier: Apache-2.0
"""The `remote` service in a task: its writers and gates. It needs nothing of its host's environment process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.errors import SettingError
from penstock.remote import messages as ask
from penstock.services.awaited_producers import GatesOfTasks
from penstock.services.remote.client import RemoteClient
from penstock.services.remote.gate import RemoteGate
from penstock.services.remote.lines import RemoteAccess
from penstock.services.remote.writer import RemoteWriter
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


class RemoteEnvironment:
    """A `ShuffleEnvironment`."""

    def __init__(self, context: ShuffleEnvironmentContext) -> None:
        self._host = context.host
        self._blocking = context.settings.blocking
        access = RemoteAccess.of(context.settings, context.application, "task", context.secret)
        self._client = RemoteClient(access, "penstock-remote")
        self._gates = GatesOfTasks()

    def create_result_partition_writers(
        self, owner: OwnerContext, descriptors: Sequence[ResultPartitionDescriptor]
    ) -> list[ResultPartitionWriter]:
        """Writers in the order of the descriptors."""
        if any(descriptor.is_stream for descriptor in descriptors):
            raise SettingError("the remote shuffle service carries no streams: use service='local'")
        host, settings, client = self._host, self._blocking, self._client
        return [RemoteWriter(host, owner, descriptor, settings, client) for descriptor in descriptors]

    def create_input_gates(self, owner: OwnerContext, descriptors: Sequence[InputGateDescriptor]) -> list[InputGate]:
        """Gates in the order of the descriptors."""
        gates = [RemoteGate(self._host, owner, descriptor, self._client) for descriptor in descriptors]
        self._gates.add(owner.attempt, gates)
        return list(gates)

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        """Release these, wherever they lie."""
        self._client.call(self._client.ask(ask.DropPartitions(tuple(partitions))))

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        """The partitions of this host that workers hold."""
        return list(self._client.call(self._client.ask(ask.ListOfHost(self._host.environment))).partitions)

    def update_partition_info(self, consumer: AttemptId, descriptor: ShuffleDescriptor) -> bool:
        """Replace an unknown producer of a gate by the real one; False where the gate is gone. Any thread."""
        return self._gates.update(consumer, descriptor)

    def close(self) -> None:
        """Hang up; finished partitions stay."""
        self._client.close()
