# SPDX-License-Identifier: Apache-2.0
"""Reads an input gate out of shared segments, and never waits: what has come is there to be polled.

Slices are copied out when they are polled, so their segments go back at once. The environment hands over at most a
small window of slices per gate, channel after channel, so no channel waits for another and user code that keeps
batches can't hold network memory. Of data in files of this host the gate is told, and it reads them itself: finished
partitions, and extents of hybrid ones in order with their slices.

Slices that are fetched ahead of need, for a snapshot, keep their segments until the task polls in order again: it has
processed them then. Else each checkpoint would let so much more come, and what is in flight would grow. Priority
events overtake what has come and was not polled. The sums of each epoch are compared at its place among the messages:
an end that came ahead of it, as a barrier that overtook them, waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from penstock.buffer.arrow import PayloadFormat
from penstock.buffer.data_types import DataType
from penstock.errors import PartitionLostError, PenstockError, ProtocolError
from penstock.link.calls import ReportMissingFile
from penstock.link.control import unpack
from penstock.link.frames import IN_FILES
from penstock.partition.extent_reader import MAPPED, ExtentReader
from penstock.partition.sort_buffer import joined
from penstock.partition.stored import StoredRows
from penstock.record.codec import BatchCodec
from penstock.services.local.gate_channel import GateChannel
from penstock.services.local.gate_end import GateEnd, Item
from penstock.shuffle import (
    EndOfPartition,
    EpochAhead,
    EpochEnd,
    Event,
    InputGateDescriptor,
    OwnerContext,
    PartitionId,
    Received,
    TaskHost,
)
from penstock.shuffle.events import ProducerIs, Reattached, decode_event

_Thing = TypeVar("_Thing")
_AHEAD = (DataType.PRIORITY_EVENT, DataType.OVERTAKING_BARRIER)
_IN_ORDER = (DataType.EVENT, DataType.ALIGNED_BARRIER, DataType.OVERTAKING_BARRIER)

BATCH_BYTES = 128 << 10
"""Batches out of files are joined up to this many bytes."""


class SegmentInputGate:
    """An `InputGate` over the data plane of its host."""

    def __init__(
        self,
        host: TaskHost,
        owner: OwnerContext,
        descriptor: InputGateDescriptor,
        *,
        verify: bool = True,
        flow_control: str = "credit",
    ) -> None:
        self.descriptor = descriptor
        self._host = host
        self._memory = host.data_plane().memory
        self._end = GateEnd(host, owner, descriptor, flow_control)
        self._incoming = self._end.incoming
        self._open = len(descriptor.channels)
        """Channels that have not ended."""
        self._metrics = owner.metrics
        codec = BatchCodec(descriptor.schema)
        sources = [channel.source for channel in descriptor.channels]
        self._channels = [
            GateChannel(
                codec,
                f"partition {source.partition} (host environment {source.environment or 'unknown'})",
                verify=verify,
            )
            for source in sources
        ]
        self._files: deque[Iterator[Received]] = deque()
        self._ready: deque[Received] = deque()
        self._priority: deque[Received] = deque()
        self._verify = verify
        self._size = PayloadFormat(descriptor.schema).size

    @property
    def is_ended(self) -> bool:
        """True if every channel has ended and all of it was given."""
        return not (self._open or self._ready or self._priority or self._files)

    def setup(self) -> None:
        """Make the gate known and request the partitions that are known already."""
        self._end.open(self.on_event)

    def poll(self, channels: Container[int] | None = None) -> Received | None:
        """Take the batch or event that has come; None if there is nothing."""
        if self._priority:
            return self._priority.popleft()
        if channels is not None:
            return self._poll_ahead_of_need(channels)
        while not self._ready:
            if self._files:
                self._read_file()
            elif self._incoming:
                self._take(*self._incoming.popleft())
            else:
                self._end.ship()
                return None
        return self._ready.popleft()

    def poll_ahead(self) -> Received | None:
        """The next of what has come ahead of all rows."""
        return self._priority.popleft() if self._priority else None

    def resume_consumption(self, channel: int) -> None:
        """Let a channel that an event blocked at its sender go on."""
        self._end.resume(channel)

    def close(self) -> None:
        """Cancel what is still open and give back all buffers; idempotent."""
        self._end.close()
        self._ready.clear()
        self._files.clear()
        self._priority.clear()

    def on_event(self, channel: int, data_type: int, payload: bytes) -> None:
        """Note an event of a channel, or what names files of it; one with priority is the next to be polled."""
        if data_type == IN_FILES:
            self._incoming.append((channel, unpack(payload)))
            return
        if data_type in _AHEAD:
            event = decode_event(payload)
            ahead = EpochAhead(event.payload) if isinstance(event, EpochEnd) else event
            self._priority.append(Received(channel, event=ahead))
        if data_type in _IN_ORDER:
            self._incoming.append((channel, payload))
        elif data_type not in _AHEAD:
            raise ProtocolError(f"gate {self.descriptor.gate}: data of type {data_type}")

    def _poll_ahead_of_need(self, channels: Container[int]) -> Received | None:
        while (received := _pick(self._ready, channels, _channel_of)) is None:
            item = _pick(self._incoming, channels, _channel_in)
            if item is None:
                return None
            self._take(*item, is_ahead=True)
        return received

    def _take(self, channel: int, item: Item, *, is_ahead: bool = False) -> None:
        if isinstance(item, tuple):
            segment, offset, length = item
            self._metrics.add("bytes_in", length)
            batches = self._channels[channel].take(self._memory.view(segment, offset, length))
            (self._end.hold if is_ahead else self._end.recycle)(segment)
            self._ready.extend([Received(channel, batch) for batch in batches])
        elif isinstance(item, bytes):
            self._ready.append(Received(channel, event=self._checked(channel, decode_event(item))))
        elif isinstance(item, dict):
            self._files.append(self._read(channel, item))
        else:
            self._end.ship()  # the reader may be long in closing this gate
            raise item

    def _checked(self, channel: int, event: Event) -> Event:
        if isinstance(event, EpochEnd):
            self._channels[channel].end_epoch(event)
        elif isinstance(event, ProducerIs | Reattached):
            self._channels[channel].begin_anew(is_midway=isinstance(event, Reattached))
        elif isinstance(event, EndOfPartition):
            self._channels[channel].end(event)
            self._open -= 1
        return event

    def _read_file(self) -> None:
        received = next(self._files[0], None)
        if received is not None:
            self._ready.append(received)
            self._files.rotate(-1)
        else:
            self._files.popleft()

    def _read(self, channel: int, message: dict[str, Any]) -> Iterator[Received]:
        """Read files of this host: pieces among the channel's slices, or its whole range."""
        stored = StoredRows.from_message(message)
        self._channels[channel].stored = stored.origin.partition
        try:
            yield from self._read_stored(channel, stored)
        except PartitionLostError as error:
            raise self._answer(stored.origin.partition, error) from error

    def _read_stored(self, channel: int, stored: StoredRows) -> Iterator[Received]:
        """Stored rows. A batch in one piece is not copied, but small ones are joined: each costs the reader."""
        pieces = stored.find()
        with ExtentReader(stored.folder, stored.origin) as reader:
            if not stored.count:
                for piece in pieces:
                    reader.open(piece.extent.file)  # before the environment may let the files go
                self.resume_consumption(channel)  # the next ones come while these are read
            for batch in joined(self._stored_batches(channel, reader.read(pieces)), BATCH_BYTES):
                yield Received(channel, batch)

    def _stored_batches(self, channel: int, views: Iterator[memoryview]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Batches with their bytes, as much as is not joined where they come out of long extents."""
        for view in views:
            self._host.check_cancelled()
            self._metrics.add("bytes_in", len(view))
            self._metrics.add("disk_bytes_in", len(view))
            is_long = len(view) >= MAPPED
            for batch in self._channels[channel].take(view, is_kept=True):
                yield batch, BATCH_BYTES if is_long else self._size(batch)

    def _answer(self, partition: PartitionId, error: PartitionLostError) -> PenstockError:
        """A file is gone: the environment knows whether the partition was released meanwhile, or is lost."""
        try:
            self._host.ask(ReportMissingFile(partition, str(error)))
        except PenstockError as answer:
            return answer
        return error


def _pick(queue: deque[_Thing], channels: Container[int], channel_of: Callable[[_Thing], int]) -> _Thing | None:
    """The first thing of these channels; the others keep their order."""
    for place, thing in enumerate(queue):
        if channel_of(thing) in channels:
            del queue[place]
            return thing
    return None


def _channel_of(received: Received) -> int:
    return received.channel


def _channel_in(incoming: tuple[int, Item]) -> int:
    return incoming[0]
