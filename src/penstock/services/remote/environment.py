# SPDX-License-Identifier: Apache-2.0
"""The `remote` service in a task: its writers and gates. It needs nothing of its host's environment process."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.plugin.environment import BlockingEnvironment
from penstock.plugin.writer import StoredWriter
from penstock.remote import messages as ask
from penstock.services.remote.client import RemoteClient
from penstock.services.remote.gate import RemoteGate
from penstock.services.remote.lines import RemoteAccess
from penstock.services.remote.writer import PushedRows
from penstock.shuffle import (
    InputGateDescriptor,
    OwnerContext,
    PartitionId,
    ResultPartitionDescriptor,
    ShuffleEnvironmentContext,
)


class RemoteEnvironment(BlockingEnvironment):
    """A `ShuffleEnvironment`."""

    def __init__(self, context: ShuffleEnvironmentContext) -> None:
        super().__init__(context)
        access = RemoteAccess.of(context.settings, context.application, "task", context.secret)
        self._client = RemoteClient(access, "penstock-remote")

    def writer(self, owner: OwnerContext, descriptor: ResultPartitionDescriptor) -> StoredWriter:
        """A writer that pushes."""
        rows = PushedRows(self._host, descriptor, self._settings.blocking, self._client)
        return StoredWriter(self._host, owner, descriptor, rows)

    def gate(self, owner: OwnerContext, descriptor: InputGateDescriptor) -> RemoteGate:
        """A gate that fetches."""
        return RemoteGate(self._host, owner, descriptor, self._client)

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        """Release these, wherever they lie."""
        for piece in ask.pieces(partitions):
            self._client.call(self._client.ask(ask.DropPartitions(piece)))

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        """The partitions of this host that workers hold."""
        found: list[PartitionId] = []
        page = ask.WrittenThere(())
        while not found or len(page.partitions) == ask.MOST_ASKED:
            asked = ask.ListOfHost(self._host.environment, found[-1] if found else None)
            page = self._client.call(self._client.ask(asked))
            if not page.partitions:
                break
            found += page.partitions
        return found

    def close(self) -> None:
        """Hang up; finished partitions stay."""
        self._client.close()
