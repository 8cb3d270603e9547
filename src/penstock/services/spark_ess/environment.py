# SPDX-License-Identifier: Apache-2.0
"""The `spark_ess` service in a task: its writers and gates. It needs nothing of its host's environment process."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.plugin.environment import BlockingEnvironment
from penstock.plugin.writer import StoredWriter
from penstock.services.fetching.gate import FetchingGate
from penstock.services.spark_ess.client import Access
from penstock.services.spark_ess.files import files_by_partition, remove
from penstock.services.spark_ess.places import folders_for
from penstock.services.spark_ess.sources import EssSources
from penstock.services.spark_ess.writer import EssFiles
from penstock.shuffle import (
    InputGateDescriptor,
    OwnerContext,
    PartitionId,
    ResultPartitionDescriptor,
    ShuffleEnvironmentContext,
)


class EssEnvironment(BlockingEnvironment):
    """A `ShuffleEnvironment`."""

    def __init__(self, context: ShuffleEnvironmentContext) -> None:
        super().__init__(context)
        self._access = Access.of(context.settings.ess, context.application)

    def writer(self, owner: OwnerContext, descriptor: ResultPartitionDescriptor) -> StoredWriter:
        """A writer of files that Spark's service will give."""
        files = EssFiles(self._host, descriptor, self._settings, self._access)
        return StoredWriter(self._host, owner, descriptor, files)

    def gate(self, owner: OwnerContext, descriptor: InputGateDescriptor) -> FetchingGate:
        """A gate that asks Spark's services."""
        return FetchingGate(self._host, owner, descriptor, EssSources(self._settings.ess, self._access))

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        """Remove the files of these partitions that lie on this host."""
        wanted = set(partitions)
        for partition, number in files_by_partition(self._folders()):
            if partition in wanted:
                remove(self._folders(), number)

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        """The partitions whose files lie on this host."""
        return [partition for partition, _ in files_by_partition(self._folders())]

    def _folders(self) -> tuple[str, ...]:
        return folders_for(self._access.application, self._settings.ess.directories)
