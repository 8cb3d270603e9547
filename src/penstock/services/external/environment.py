# SPDX-License-Identifier: Apache-2.0
"""The `external` service in a task: its writers and gates. It needs nothing of its host's environment process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.connection.protection import services_protection
from penstock.external.keys import ApplicationKey
from penstock.external.requests import ListHeld, ReleaseKept
from penstock.services.awaited_producers import GatesOfTasks
from penstock.services.external.host_line import HostLine
from penstock.services.external.sources import ExternalSources
from penstock.services.external.writer import ExternalFiles
from penstock.services.fetching.gate import FetchingGate
from penstock.services.file_writer import FileWriter
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


class ExternalEnvironment:
    """A `ShuffleEnvironment`."""

    def __init__(self, context: ShuffleEnvironmentContext) -> None:
        self._host = context.host
        self._settings = context.settings
        self._key = ApplicationKey.of(context.application, context.secret)
        self._gates = GatesOfTasks()

    def create_result_partition_writers(
        self, owner: OwnerContext, descriptors: Sequence[ResultPartitionDescriptor]
    ) -> list[ResultPartitionWriter]:
        """Writers in the order of the descriptors."""
        host, settings, key = self._host, self._settings, self._key
        return [
            FileWriter(host, owner, descriptor, ExternalFiles(host, descriptor, settings, key))
            for descriptor in descriptors
        ]

    def create_input_gates(self, owner: OwnerContext, descriptors: Sequence[InputGateDescriptor]) -> list[InputGate]:
        """Gates in the order of the descriptors."""
        sources = ExternalSources(self._settings.external, self._key, services_protection(self._settings.tls))
        gates = [FetchingGate(self._host, owner, descriptor, sources) for descriptor in descriptors]
        self._gates.add(owner.attempt, gates)
        return list(gates)

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        """Have this host's service remove these partitions."""
        line = self._line()
        try:
            line.ask(ReleaseKept(tuple(partitions)))
        finally:
            line.close()

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        """The application's partitions at this host's service."""
        line = self._line()
        try:
            return list(line.ask(ListHeld()).partitions)
        finally:
            line.close()

    def update_partition_info(self, consumer: AttemptId, descriptor: ShuffleDescriptor) -> bool:
        """Replace an unknown producer of a gate by the real one; False where the gate is gone. Any thread."""
        return self._gates.update(consumer, descriptor)

    def close(self) -> None:
        """Keep the partitions: they are the host service's."""

    def _line(self) -> HostLine:
        """A line of the environment's own: the task that it is of may have been told to stop."""
        settings = self._settings.external
        return HostLine(settings.socket, self._key, settings.retry_timeout, lambda: None)
