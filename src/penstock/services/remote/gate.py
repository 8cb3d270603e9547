# SPDX-License-Identifier: Apache-2.0
"""The gate over partitions of the remote service: the loop thread fetches blocks, the task's thread decodes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from penstock.plugin.gate import StoredGate
from penstock.services.remote.channel import ChannelRows
from penstock.services.remote.client import RemoteClient
from penstock.services.remote.fetcher import Fetched, FetchedBlock, FetchedEnd, Fetcher, WantedChannel
from penstock.services.remote.places import files_of
from penstock.shuffle import (
    ChannelDescriptor,
    InputGateDescriptor,
    OwnerContext,
    Received,
    TaskHost,
)


class RemoteGate(StoredGate):
    """An `InputGate`."""

    def __init__(
        self, host: TaskHost, owner: OwnerContext, descriptor: InputGateDescriptor, client: RemoteClient
    ) -> None:
        super().__init__(host, owner, descriptor)
        self._client = client
        self._rows: dict[int, ChannelRows] = {}
        self._fetched: deque[Fetched] = deque()
        self._fetcher: Fetcher | None = None
        self._current: Iterator[Received] = iter(())
        self._taken: Callable[[], None] | None = None
        self._ending = -1
        """The channel whose end is being given."""

    def has_open(self) -> bool:
        """Tell whether a channel that was opened has not ended."""
        return bool(self._rows)

    def let_go(self) -> None:
        """Fetch no more; idempotent."""
        if self._fetcher is not None:
            self._client.soon(self._fetcher.close)
            self._fetcher = None
        self._rows.clear()
        self._fetched.clear()
        self._current = iter(())

    def next(self) -> Received | None:
        """The batch or event that is there; None, and the fetcher ends the task's wait."""
        while True:
            received = next(self._current, None)
            if received is not None:
                return received
            self._finish_current()
            if not self._fetched:
                return None
            self._begin(self._fetched.popleft())

    def open(self, channels: Sequence[tuple[int, ChannelDescriptor]]) -> None:
        """Have channels fetched; PartitionError for a range that is none."""
        wanted = []
        for number, channel in channels:
            files, times, kept = files_of(channel)
            self._rows[number] = ChannelRows(number, channel, self.descriptor.schema, times)
            wanted.append(WantedChannel(number, channel.source.partition, files, kept))
        if wanted:
            if self._fetcher is None:
                self._fetcher = self._client.call(self._client.fetcher(self._fetched, self._host.waker()), self._host)
            self._client.soon(self._fetcher.want, wanted)

    def _begin(self, fetched: Fetched) -> None:
        if isinstance(fetched, FetchedBlock):
            self._metrics.add("bytes_in", len(fetched.data))
            self._taken = fetched.taken
            if (rows := self._rows.get(fetched.channel)) is not None:
                self._current = rows.batches(fetched.head, fetched.data)
        elif isinstance(fetched, FetchedEnd):
            self._current = self._rows[fetched.channel].end(fetched.sums, fetched.where)
            self._ending = fetched.channel
        else:
            raise fetched

    def _finish_current(self) -> None:
        """End what was given last: its credit goes back, or its channel is over."""
        if self._taken is not None:
            taken, self._taken = self._taken, None
            taken()
        if self._ending >= 0:
            self._rows.pop(self._ending, None)
            self._ending = -1
