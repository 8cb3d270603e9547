# SPDX-License-Identifier: Apache-2.0
"""Reads an input of a streaming task out of shared segments, and never waits: what has come is there to be polled.

Only the task's mailbox receives. Slices are copied out when they are polled, so their segments go back at
once. Those that are fetched ahead of need, for a snapshot, keep theirs until the task polls in order again: it has
processed them then. Else each checkpoint would let so much more come, and what is in flight would grow. Priority
events overtake what has come and was not polled. The sums of each epoch are compared at its place among the messages:
an end that came ahead of it, as a barrier that overtook them, waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import TypeVar

import pyarrow as pa

from penstock.buffer.data_types import DataType
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import MessageAssembler
from penstock.services.local.gate_end import GateEnd, Item
from penstock.shuffle.descriptors import InputGateDescriptor
from penstock.shuffle.errors import PenstockError
from penstock.shuffle.events import EndOfPartition, EpochAhead, EpochEnd, Event, decode_event
from penstock.shuffle.host import TaskHost
from penstock.shuffle.service import OwnerContext, Received
from penstock.shuffle.sums import EpochEnds

_Thing = TypeVar("_Thing")


class StreamChannel:
    """The messages that have come of one channel."""

    __slots__ = ("_ends", "assembler", "counter", "messages", "received", "verify", "where")

    def __init__(self, codec: BatchCodec, where: str, *, verify: bool) -> None:
        self.where = where
        self.verify = verify
        self.messages = 0
        self.received = 0
        """Messages that have come; those of `messages` were given."""
        self.counter = CompletenessCounter()
        self.assembler = MessageAssembler(codec, self.counter, verify=verify)
        self._ends = EpochEnds(where)

    def take(self, view: memoryview) -> list[pa.RecordBatch]:
        """The batches that these bytes complete; raises IncompleteDataError for an epoch that ends with them."""
        batches = self.assembler.feed(view)
        self.received += len(batches)
        if self._ends:
            for end in self._ends.reached(self.received):
                self._compare(end)
        return batches

    def end_epoch(self, event: EpochEnd) -> None:
        """Compare the epoch's sums when its last message has come; raises IncompleteDataError."""
        for end in self._ends.came(event, self.received):
            self._compare(end)

    def end(self, event: EndOfPartition) -> None:
        """Compare the sums of all; raises IncompleteDataError."""
        self._ends.finish(self.received)
        self._compare(event)

    def _compare(self, event: EpochEnd | EndOfPartition) -> None:
        self.assembler.finish()
        if self.verify:
            self.counter.verify(EndOfPartition(event.rows, event.bytes, event.checksum), self.where)


class SegmentStreamGate(GateEnd):
    """A `StreamInputGate` over the data plane of its host."""

    def __init__(self, host: TaskHost, owner: OwnerContext, descriptor: InputGateDescriptor, *, verify: bool) -> None:
        super().__init__(host, owner, descriptor)
        codec = BatchCodec(descriptor.schema)
        sources = [channel.source for channel in descriptor.channels]
        self._channels = [
            StreamChannel(codec, f"partition {each.partition} (host environment {each.environment})", verify=verify)
            for each in sources
        ]
        self._ready: deque[Received] = deque()
        self._priority: deque[Received] = deque()

    @property
    def is_ended(self) -> bool:
        """True if every channel has ended and all of it was given."""
        return not (self._open or self._ready or self._priority)

    @property
    def positions(self) -> list[int]:
        """The number of messages of each channel that were given so far."""
        return [channel.messages for channel in self._channels]

    def poll(self, channels: Container[int] | None = None) -> Received | None:
        """Take the batch or event that has come; None if there is nothing."""
        if self._priority:
            return self._priority.popleft()
        while (received := _pick(self._ready, channels, _channel_of)) is None:
            item = _pick(self._incoming, channels, _channel_in)
            if item is None:
                if channels is None:
                    self._ship()
                return None
            self._take(*item, is_ahead=channels is not None)
        if received.batch is not None:
            self._channels[received.channel].messages += 1
        return received

    def poll_ahead(self) -> Received | None:
        """The next of what has come ahead of all rows."""
        return self._priority.popleft() if self._priority else None

    def close(self) -> None:
        """Cancel what is still open and give back all buffers; idempotent."""
        super().close()
        self._ready.clear()
        self._priority.clear()

    def on_event(self, channel: int, data_type: int, payload: bytes) -> None:
        """Note an event of a channel; one with priority is the next to be polled."""
        if data_type in (DataType.PRIORITY_EVENT, DataType.OVERTAKING_BARRIER):
            event = decode_event(payload)
            ahead = EpochAhead(event.payload) if isinstance(event, EpochEnd) else event
            self._priority.append(Received(channel, event=ahead))
        if data_type in (DataType.EVENT, DataType.ALIGNED_BARRIER, DataType.OVERTAKING_BARRIER):
            self._incoming.append((channel, payload))
        elif data_type != DataType.PRIORITY_EVENT:
            raise PenstockError(f"gate {self._descriptor.gate}: data of type {data_type} in a streaming query")

    def _take(self, channel: int, item: Item, *, is_ahead: bool) -> None:
        if isinstance(item, tuple):
            segment, offset, length = item
            self._owner.metrics.add("bytes_in", length)
            batches = self._channels[channel].take(self._memory.view(segment, offset, length))
            (self._copied.append if is_ahead else self._recycle)(segment)
            self._ready.extend([Received(channel, batch) for batch in batches])
        elif isinstance(item, bytes):
            self._ready.append(Received(channel, event=self._checked(channel, decode_event(item))))
        elif isinstance(item, BaseException):
            self._ship()  # whoever reads may be long in coming to its close
            raise item

    def _checked(self, channel: int, event: Event) -> Event:
        if isinstance(event, EpochEnd):
            self._channels[channel].end_epoch(event)
        elif isinstance(event, EndOfPartition):
            self._channels[channel].end(event)
            self._open -= 1
        return event


def _pick(
    queue: deque[_Thing], channels: Container[int] | None, channel_of: Callable[[_Thing], int]
) -> _Thing | None:
    """The first thing, of these channels only where some are named; the others keep their order."""
    if not queue:
        return None
    if channels is None:
        return queue.popleft()
    for place, thing in enumerate(queue):
        if channel_of(thing) in channels:
            del queue[place]
            return thing
    return None


def _channel_of(received: Received) -> int:
    return received.channel


def _channel_in(incoming: tuple[int, Item]) -> int:
    return incoming[0]
