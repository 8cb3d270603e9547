# SPDX-License-Identifier: Apache-2.0
"""The input gate of the `memory` shuffle service: polled, fair, with sums checked at each epoch's and channel's end.

While no task writes a channel's partition, the request has a deadline and then PartitionNotProducedError. `close`
before a channel's end makes its producer drop the rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Container

from penstock.errors import PartitionNotProducedError
from penstock.shuffle import EpochAhead, EpochEnd, InputGateDescriptor, OwnerContext, Received
from penstock.testing.memory_channels import GateChannels, GateContext, MemoryChannel
from penstock.testing.memory_partition import Stored, decode


class MemoryInputGate:
    """An `InputGate` over the registry."""

    def __init__(self, context: GateContext, owner: OwnerContext, descriptor: InputGateDescriptor) -> None:
        self.descriptor = descriptor
        self._context = context
        self._registry = context.registry
        self._channels = GateChannels(context, owner, descriptor)
        self._marks: deque[tuple[MemoryChannel, EpochEnd]] = deque()
        """Barriers that were announced, and stand where their channels have been read to."""

    @property
    def is_ended(self) -> bool:
        """True if every channel has ended and all of it was given."""
        return not (self._channels.open or self._marks)

    def setup(self) -> None:
        """Become known to `update_partition_info`, and start the clocks of the requests."""
        self._channels.set_up()

    def poll(self, channels: Container[int] | None = None) -> Received | None:
        """Take the batch or event that is there now; None if nothing is there."""
        with self._registry.lock:
            self._channels.check()
            ahead = self._take_ahead()
            if ahead is not None:
                return ahead
            if self._marks:
                channel, mark = self._marks.popleft()
                return Received(channel.index, event=mark)
            found = self._channels.take(channels)
            if found is None:
                self._check_requests()
                return None
            channel, stored = found
            self._taken(channel, stored)
        if stored.data is None:
            return Received(channel.index, event=stored.event)
        return Received(channel.index, batch=decode(stored.data))

    def poll_ahead(self) -> Received | None:
        """The next priority event or EpochAhead."""
        with self._registry.lock:
            self._channels.check()
            return self._take_ahead()

    def resume_consumption(self, channel: int) -> None:
        """Let a channel that a blocking event stopped go on."""
        with self._registry.changing():
            self._channels.check()
            found = self._channels[channel]
            if found.partition is not None:
                found.partition.resume(found.subpartition)

    def close(self) -> None:
        """End all open channels: their producers drop what they still write for them; idempotent."""
        self._channels.close()

    def _take_ahead(self) -> Received | None:
        for channel in self._channels.open:
            stored = channel.take_ahead(self._registry)
            if stored is None or stored.event is None:
                continue
            self._registry.wake_all()
            if not isinstance(stored.event, EpochEnd):
                return Received(channel.index, event=stored.event)
            self._marks.append((channel, stored.event))
            self._channels.account(channel, stored)
            return Received(channel.index, event=EpochAhead(stored.event.payload))
        return None

    def _taken(self, channel: MemoryChannel, stored: Stored) -> None:
        """There may be room where it was."""
        kept = channel.partition is not None and channel.partition.kind.is_kept
        if stored.event is not None or not kept:
            self._registry.wake_all()

    def _check_requests(self) -> None:
        """Raise for a partition that no task has begun to write in time; wake for the next that may be late."""
        channels, timeout = self._channels, self._context.request_timeout
        waiting = [channel for channel in channels.open if channel.is_unproduced(self._registry)]
        for channel in waiting:
            left = channel.requested_at + timeout - time.monotonic()
            if left <= 0:
                raise PartitionNotProducedError(
                    f"{channels}, channel {channel.index}: partition {channel.source.partition} was not produced"
                    f" within {timeout} s"
                )
            self._context.host.wake_in(left)
