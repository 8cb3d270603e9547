# SPDX-License-Identifier: Apache-2.0
"""The `external` service in a task: its writers and gates. It needs nothing of its host's environment process."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.connection.protection import services_protection
from penstock.external.keys import ApplicationKey
from penstock.external.requests import HeldPartitions, ListHeld, releases
from penstock.plugin.environment import BlockingEnvironment
from penstock.plugin.writer import StoredWriter
from penstock.services.external.host_line import HostLine, HostSocket
from penstock.services.external.sources import ExternalSources
from penstock.services.external.writer import ExternalFiles
from penstock.services.fetching.gate import FetchingGate
from penstock.shuffle import (
    InputGateDescriptor,
    OwnerContext,
    PartitionId,
    ResultPartitionDescriptor,
    ShuffleEnvironmentContext,
)


class ExternalEnvironment(BlockingEnvironment):
    """A `ShuffleEnvironment`."""

    def __init__(self, context: ShuffleEnvironmentContext) -> None:
        super().__init__(context)
        self._key = ApplicationKey.of(context.application, context.secret)

    def writer(self, owner: OwnerContext, descriptor: ResultPartitionDescriptor) -> StoredWriter:
        """A writer of the host service's files."""
        files = ExternalFiles(self._host, descriptor, self._settings, self._key)
        return StoredWriter(self._host, owner, descriptor, files)

    def gate(self, owner: OwnerContext, descriptor: InputGateDescriptor) -> FetchingGate:
        """A gate that asks host services."""
        protection = services_protection(self._settings.tls)
        sources = ExternalSources(self._settings.external, self._key, protection, owner.metrics)
        return FetchingGate(self._host, owner, descriptor, sources)

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        """Have this host's service remove these partitions."""
        line = self._line()
        try:
            for request in releases(partitions):
                line.ask(request)
        finally:
            line.close()

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        """The application's partitions at this host's service."""
        line = self._line()
        try:
            found: list[PartitionId] = []
            page = HeldPartitions((), -1)
            while page.last:
                page = line.ask(ListHeld(max(0, page.last)))
                found += page.partitions
            return found
        finally:
            line.close()

    def _line(self) -> HostLine:
        """A line of the environment's own: the task that it is of may have been told to stop."""
        settings = self._settings.external
        return HostLine(HostSocket(settings.socket, settings.user), self._key, settings.retry_timeout, lambda: None)
