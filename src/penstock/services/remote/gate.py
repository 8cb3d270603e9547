# SPDX-License-Identifier: Apache-2.0
"""The gate over partitions of the remote service: the loop thread fetches blocks, the task's thread decodes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator

from penstock.errors import PartitionError, PenstockError
from penstock.lifecycle.endpoints import GateEvent, GateLifecycle
from penstock.services.awaited_producers import AwaitedProducers
from penstock.services.remote.channel import ChannelRows
from penstock.services.remote.client import RemoteClient
from penstock.services.remote.fetcher import Fetched, FetchedBlock, FetchedEnd, Fetcher, WantedChannel
from penstock.services.remote.places import files_of
from penstock.shuffle import (
    ChannelDescriptor,
    InputGateDescriptor,
    OwnerContext,
    Received,
    ShuffleDescriptor,
    TaskHost,
)


class RemoteGate:
    """An `InputGate`."""

    def __init__(
        self, host: TaskHost, owner: OwnerContext, descriptor: InputGateDescriptor, client: RemoteClient
    ) -> None:
        self.descriptor = descriptor
        self._host = host
        self._metrics = owner.metrics
        self._client = client
        self._awaited = AwaitedProducers()
        self._rows: dict[int, ChannelRows] = {}
        self._fetched: deque[Fetched] = deque()
        self._fetcher: Fetcher | None = None
        self._current: Iterator[Received] = iter(())
        self._taken: Callable[[], None] | None = None
        self._ending = -1
        """The channel whose end is being given."""
        self._error: PenstockError | None = None
        self._lifecycle = GateLifecycle(f"gate {descriptor.gate} of {owner.name}")

    def setup(self) -> None:
        """Begin with the partitions that are known already."""
        self._lifecycle.move(GateEvent.SET_UP)
        self._open(self._awaited.known(self.descriptor.channels))

    @property
    def is_ended(self) -> bool:
        """True if every channel has ended and all of it was given."""
        return not (self._rows or self._awaited)

    def poll(self, channels: Container[int] | None = None) -> Received | None:
        """Take the batch or event that is there; None if nothing is."""
        self._host.check_cancelled()
        if self._error is not None:
            raise self._error
        self._open(self._awaited.arrived())
        try:
            return self._next()
        except PenstockError as error:
            self._error = error
            raise

    def poll_ahead(self) -> None:
        """Nothing overtakes rows."""

    def resume_consumption(self, channel: int) -> None:
        """No channel is ever blocked."""

    def close(self) -> None:
        """Fetch no more; idempotent."""
        self._lifecycle.move(GateEvent.CLOSE)
        if self._fetcher is not None:
            self._client.soon(self._fetcher.close)
            self._fetcher = None
        self._rows.clear()
        self._awaited.clear()
        self._fetched.clear()
        self._current = iter(())

    def update(self, real: ShuffleDescriptor) -> bool:
        """Put a producer where it is unknown; whether this gate waits for it. Any thread."""
        is_awaited = self._awaited.learn(real)
        if is_awaited:
            self._host.waker()()
        return is_awaited

    def _next(self) -> Received | None:
        while True:
            received = next(self._current, None)
            if received is not None:
                if received.batch is not None:
                    self._metrics.add("rows_in", received.batch.num_rows)
                return received
            self._finish_current()
            if not self._fetched:
                return None
            self._begin(self._fetched.popleft())

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

    def _open(self, channels: list[tuple[int, ChannelDescriptor]]) -> None:
        wanted = []
        for number, channel in channels:
            try:
                files, times, kept = files_of(channel)
            except PartitionError as error:
                self._error = error
                return
            self._rows[number] = ChannelRows(number, channel, self.descriptor.schema, times)
            wanted.append(WantedChannel(number, channel.source.partition, files, kept))
        if wanted:
            if self._fetcher is None:
                self._fetcher = self._client.call(self._client.fetcher(self._fetched, self._host.waker()), self._host)
            self._client.soon(self._fetcher.want, wanted)
