# SPDX-License-Identifier: Apache-2.0
"""The gate of a streaming query in the `memory` shuffle service: polled, fair, each epoch's sums compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from penstock.shuffle import EpochAhead, EpochEnd, InputGateDescriptor, OwnerContext, Received
from penstock.testing.memory_channels import Channel, GateChannels, GateContext
from penstock.testing.memory_partition import decode


class MemoryStreamGate:
    """A `StreamInputGate` over the registry."""

    def __init__(self, context: GateContext, owner: OwnerContext, descriptor: InputGateDescriptor) -> None:
        self._registry = context.registry
        self._attempt = owner.attempt
        self._descriptor = descriptor
        self._channels = GateChannels(context, owner, descriptor)
        self._marks: deque[tuple[Channel, EpochEnd]] = deque()
        """Barriers that were announced, and stand where their channels have been read to."""

    @property
    def descriptor(self) -> InputGateDescriptor:
        """The descriptor that this gate was made from."""
        return self._descriptor

    @property
    def is_ended(self) -> bool:
        """True if every channel has ended and all of it was given."""
        return not (self._channels.open or self._marks)

    @property
    def positions(self) -> list[int]:
        """The number of messages of each channel that were given so far."""
        return [channel.messages for channel in self._channels.all]

    def setup(self) -> None:
        """Become known to `update_partition_info`."""
        self._channels.set_up()

    def poll(self, channels: Container[int] | None = None) -> Received | None:
        """Take the batch or event that is there now; None if nothing is there."""
        with self._registry.changing():
            self._channels.check()
            ahead = self._take_ahead()
            if ahead is not None:
                return ahead
            if self._marks:
                channel, mark = self._marks.popleft()
                return Received(channel.index, event=mark)
            found = self._channels.take(channels)
            if found is None:
                return None
            channel, stored = found
            if stored.data is None:
                return Received(channel.index, event=stored.event)
        return Received(channel.index, batch=decode(stored.data))

    def poll_ahead(self) -> Received | None:
        """The next priority event or EpochAhead."""
        with self._registry.changing():
            self._channels.check()
            return self._take_ahead()

    def resume_consumption(self, channel: int) -> None:
        """Let a channel that a blocking event stopped go on."""
        with self._registry.changing():
            self._channels.check()
            found = self._channels[channel]
            if found.partition is not None:
                found.partition.resume(found.subpartition)
                self._registry.tell(self._attempt)

    def close(self) -> None:
        """End all open channels: their producers drop what they still write for them; idempotent."""
        self._channels.close()

    def _take_ahead(self) -> Received | None:
        for channel in self._channels.open:
            stored = channel.take_ahead(self._registry)
            if stored is None or stored.event is None:
                continue
            if not isinstance(stored.event, EpochEnd):
                return Received(channel.index, event=stored.event)
            self._marks.append((channel, stored.event))
            self._channels.account(channel, stored)
            return Received(channel.index, event=EpochAhead(stored.event.payload))
        return None
