# SPDX-License-Identifier: Apache-2.0
"""The `spark_ess` service in a task: its writers and gates. It needs nothing of its host's environment process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.services.awaited_producers import GatesOfTasks
from penstock.services.fetching.gate import FetchingGate
from penstock.services.file_writer import FileWriter
from penstock.services.spark_ess.client import Access
from penstock.services.spark_ess.files import files_by_partition, remove
from penstock.services.spark_ess.places import folders_for
from penstock.services.spark_ess.sources import EssSources
from penstock.services.spark_ess.writer import EssFiles
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


class EssEnvironment:
    """A `ShuffleEnvironment`."""

    def __init__(self, context: ShuffleEnvironmentContext) -> None:
        self._host = context.host
        self._settings = context.settings
        self._access = Access.of(context.settings.ess, context.application)
        self._gates = GatesOfTasks()

    def create_result_partition_writers(
        self, owner: OwnerContext, descriptors: Sequence[ResultPartitionDescriptor]
    ) -> list[ResultPartitionWriter]:
        """Writers in the order of the descriptors."""
        host, settings, access = self._host, self._settings, self._access
        return [
            FileWriter(host, owner, descriptor, EssFiles(host, descriptor, settings, access))
            for descriptor in descriptors
        ]

    def create_input_gates(self, owner: OwnerContext, descriptors: Sequence[InputGateDescriptor]) -> list[InputGate]:
        """Gates in the order of the descriptors."""
        sources = EssSources(self._settings.ess, self._access)
        gates = [FetchingGate(self._host, owner, descriptor, sources) for descriptor in descriptors]
        self._gates.add(owner.attempt, gates)
        return list(gates)

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        """Remove the files of these partitions that lie on this host."""
        wanted = set(partitions)
        for partition, number in files_by_partition(self._folders()):
            if partition in wanted:
                remove(self._folders(), number)

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        """The partitions whose files lie on this host."""
        return [partition for partition, _ in files_by_partition(self._folders())]

    def update_partition_info(self, consumer: AttemptId, descriptor: ShuffleDescriptor) -> bool:
        """Replace an unknown producer of a gate by the real one; False where the gate is gone. Any thread."""
        return self._gates.update(consumer, descriptor)

    def close(self) -> None:
        """Keep the files: they are the service's to give."""

    def _folders(self) -> tuple[str, ...]:
        return folders_for(self._access.application, self._settings.ess.directories)
