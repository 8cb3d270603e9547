# SPDX-License-Identifier: Apache-2.0
"""The `objects` service in a task: its writers and gates."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.plugin.environment import BlockingEnvironment
from penstock.plugin.writer import StoredWriter
from penstock.services.objects.gate import ObjectGate
from penstock.services.objects.places import ObjectFolder
from penstock.services.objects.writer import ObjectRows
from penstock.shuffle import (
    InputGateDescriptor,
    OwnerContext,
    PartitionId,
    ResultPartitionDescriptor,
    ShuffleEnvironmentContext,
)


class ObjectEnvironment(BlockingEnvironment):
    """A `ShuffleEnvironment`."""

    def __init__(self, context: ShuffleEnvironmentContext) -> None:
        super().__init__(context)
        self._folder = ObjectFolder(context.settings.objects.uri, context.application)

    def writer(self, owner: OwnerContext, descriptor: ResultPartitionDescriptor) -> StoredWriter:
        """A writer of objects."""
        rows = ObjectRows(self._host, descriptor, self._settings.blocking, self._folder)
        return StoredWriter(self._host, owner, descriptor, rows)

    def gate(self, owner: OwnerContext, descriptor: InputGateDescriptor) -> ObjectGate:
        """A gate that reads objects."""
        return ObjectGate(self._host, owner, descriptor, self._folder, self._settings.objects.request_timeout)

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        """Release these, wherever they were written."""
        for partition in partitions:
            self._folder.release(partition)

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        """The partitions of this host that have objects."""
        return self._folder.held(self._host.environment)
