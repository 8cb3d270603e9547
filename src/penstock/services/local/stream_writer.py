# SPDX-License-Identifier: Apache-2.0
"""Writes a streaming query's result partition into shared segments, and never waits.

Each subpartition has a segment open, and what goes to all has one for itself. A slice holds whole messages, so a
reader can stop between any two slices. `SegmentFill` says how full a segment gets. A message that does not fit the
rest of a segment goes into a fresh one; the rest is lost, and counted as `bytes_unused`. A row larger than a segment
is the exception (`rows_spanning`): it is taken as a whole, and what finds no room of it waits here and is given out
by the next offers and flushes.

If there is no room, all that was taken is made visible first: only what readers see comes back as room. A writer of
many subpartitions then gives up all open segments, so it gets on with few, in slices that are shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from penstock.buffer.builder import BufferBuilder
from penstock.buffer.data_types import BufferSlice, DataType
from penstock.lifecycle.endpoints import WriterState
from penstock.link.calls import STREAM_BUILDERS
from penstock.link.frames import ALL, FrameType, segments_frame
from penstock.record.framing import Message
from penstock.services.local.in_flight import SegmentFill
from penstock.services.local.overtaken import OvertakenSlices
from penstock.services.local.port import Port
from penstock.services.local.stream_messages import MessageCutter, StreamSums, framed
from penstock.services.local.writer_end import WriterEnd
from penstock.shuffle.descriptors import ResultPartitionDescriptor
from penstock.shuffle.errors import PenstockError, ProtocolError, TaskCancelledError
from penstock.shuffle.events import EpochEnd, Event, decode_event
from penstock.shuffle.host import TaskHost
from penstock.shuffle.ids import PartitionId
from penstock.shuffle.service import OwnerContext
from penstock.shuffle.streaming import EventKind, Overtaken

DATA_TYPES: Final = {
    EventKind.IN_ORDER: DataType.EVENT,
    EventKind.BLOCKING: DataType.ALIGNED_BARRIER,
    EventKind.PRIORITY: DataType.PRIORITY_EVENT,
}
"""The data type by which each kind of event travels."""
_SHIP_AT = 4
"""Full segments per announcement."""


class SegmentStreamWriter:
    """A `StreamPartitionWriter` over the data plane of its host."""

    def __init__(
        self,
        host: TaskHost,
        owner: OwnerContext,
        descriptor: ResultPartitionDescriptor,
        fill: SegmentFill,
        *,
        verify: bool,
    ) -> None:
        self._plane = host.data_plane()
        self._metrics = owner.metrics
        self._descriptor = descriptor
        count = descriptor.partition.subpartitions
        self._segment_size = self._plane.memory.segment_size
        self._cutter = MessageCutter(descriptor.schema, self._segment_size, verify=verify)
        self._fill = fill
        self._sums = StreamSums(count)
        self._builders: dict[int, BufferBuilder] = {}
        self._changed: dict[int, BufferBuilder] = {}
        self._end = WriterEnd(host, owner, descriptor, _SHIP_AT)
        self._rest: tuple[int, memoryview] | None = None
        self._continued: set[int] = set()
        """Segments that begin in the middle of a message, of which nothing is shipped yet."""
        self._overtaken = OvertakenSlices(count)

    @property
    def partition(self) -> PartitionId:
        """The identity of what is written."""
        return self._end.partition

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return self._descriptor.partition.subpartitions

    @property
    def has_pending(self) -> bool:
        """True if a part of a row larger than a segment still waits in here."""
        return self._rest is not None

    @property
    def positions(self) -> list[int]:
        """The number of messages that were put into each subpartition so far."""
        return self._sums.positions

    def setup(self) -> None:
        """Register the partition; raises InsufficientBuffersError where its least memory is not to be had."""
        port = Port(str(self.partition), on_slice=self.on_slice, on_event=self.on_event)
        self._end.open(port, streams=True)

    def offer(self, batch: pa.RecordBatch, subpartition: int) -> int:
        """Take rows from the batch's front, as many as there is room for; their number."""
        return self._take(batch, subpartition)

    def broadcast(self, batch: pa.RecordBatch) -> int:
        """The same for all subpartitions, stored once."""
        return self._take(batch, ALL)

    def end_epoch(self, payload: bytes, kind: EventKind) -> None:
        """Send an EpochEnd after all that was taken, each subpartition's with its sums and its place."""
        self._check_whole()
        ends = [
            EpochEnd(payload, end.rows, end.bytes, end.checksum, messages, kind is EventKind.PRIORITY)
            for end, messages in zip(self._sums.ends(), self.positions, strict=True)
        ]
        if kind is not EventKind.PRIORITY:
            self._send_behind(ends, kind)
            return
        self._commit()
        self._overtaken.begin(payload)
        self._end.send_events(enumerate(ends), DataType.OVERTAKING_BARRIER)

    def overtaken(self) -> Sequence[Overtaken] | None:
        """The rows that the last EpochEnd with PRIORITY has overtaken, of each subpartition, once they are known."""
        return self._overtaken.take()

    def drop_overtaken(self) -> None:
        """Nobody wants it."""
        self._overtaken.drop()

    def emit(self, event: Event, kind: EventKind = EventKind.IN_ORDER) -> None:
        """Send an event to all subpartitions: after all that was taken, or ahead of it for PRIORITY."""
        if kind is EventKind.PRIORITY:
            self._end.check_writing()
        else:
            self._check_whole()
            self._commit()
        self._end.send_events([(ALL, event)], DATA_TYPES[kind])

    def flush(self) -> None:
        """Make what was taken visible to readers, and give out what there is room for of a row that spans."""
        if self._end.state is WriterState.WRITING and (self._rest is None or self._give_rest(*self._rest)):
            self._commit()

    def finish(self) -> None:
        """Send EndOfPartition with the sums of all; nothing may follow."""
        self._check_whole()
        self._finish_all()
        self._send_behind(self._sums.ends(), EventKind.IN_ORDER)
        self._end.finish()

    def fail(self, cause: BaseException) -> None:
        """Give the partition up: readers get ProducerFailedError with this cause."""
        self._end.fail(cause)

    def close(self) -> None:
        """Give back what the writer holds; idempotent. A partition that was not finished is failed."""
        self._end.fail(TaskCancelledError("the writer was closed before it was finished"))
        self._end.close()
        self._builders.clear()
        self._changed.clear()
        self._rest = None
        self._overtaken.drop()

    def on_slice(self, channel: int, segment: int, offset: int, length: int) -> None:
        """Copy a slice that a barrier has overtaken, where somebody wants it: it was lent."""
        if self._overtaken.is_wanted:
            self._overtaken.add(channel, bytes(self._plane.memory.view(segment, offset, length)))
        self._plane.send(segments_frame(FrameType.RECYCLE, self._end.port, [segment]))

    def on_event(self, channel: int, data_type: int, payload: bytes) -> None:
        """Note that all was lent which a barrier has overtaken of a subpartition; there are no other events."""
        event = decode_event(payload)
        if data_type != DataType.OVERTAKING_BARRIER or not isinstance(event, EpochEnd):
            raise PenstockError(f"{self.partition}: an event arrived at a streaming writer")
        self._overtaken.end(channel, event.payload)

    def _take(self, batch: pa.RecordBatch, target: int) -> int:
        self._end.check_writing()
        if self._rest is not None and not self._give_rest(*self._rest):
            return 0
        if (target == ALL) != (ALL in self._builders):
            self._finish_all()  # what goes to all keeps its place among what goes to one
        rows, taken = batch.num_rows, 0
        while taken < rows:
            count = self._put(target, batch.slice(taken) if taken else batch)
            taken += count
            if not count or self._rest is not None:
                self._commit()
                break
        if taken:
            self._metrics.add("rows_out", taken)
        self._end.ship_if_due()
        return taken

    def _put(self, target: int, batch: pa.RecordBatch) -> int:
        """Append one message; the rows in it, 0 where there is no room."""
        builder = self._builders.get(target)
        room = 0 if builder is None else builder.remaining
        if room < self._cutter.limit // 2 and self._cutter.size(batch) > room:
            if (builder := self._open(target)) is None:
                return 0
            room = builder.remaining
        rows, message = self._cutter.cut(batch, min(room, self._fill.limit))
        total = framed(message)
        if total > room and room < self._segment_size:  # a large row: it needs a segment for itself
            if (builder := self._open(target)) is None:
                return 0
            room = builder.remaining
        if target == ALL:
            self._sums.broadcast(rows, message)
        else:
            self._sums.add(target, rows, message)
        if total > room:
            self._metrics.add("rows_spanning")
            self._give_rest(target, memoryview(b"".join(message.parts)), is_begun=False)
        elif builder is not None:
            self._append(target, builder, message)
        return rows

    def _append(self, target: int, builder: BufferBuilder, message: Message) -> None:
        for part in message.parts:
            builder.append(memoryview(part))
        self._changed[target] = builder
        self._fill.took(framed(message))
        if builder.is_full or builder.written >= self._fill.limit:
            self._finish(target)

    def _give_rest(self, target: int, rest: memoryview, *, is_begun: bool = True) -> bool:
        """Give out what there is room for of a row larger than a segment; whether that was all."""
        while len(rest):
            builder = self._builders.get(target)
            if builder is None or builder.is_full:
                builder = self._open(target)
                if builder is not None and is_begun:
                    self._continued.add(builder.segment)
            if builder is None:
                self._rest = target, rest
                self._commit()
                return False
            rest = rest[builder.append(rest) :]
            is_begun = True
            self._changed[target] = builder
        self._rest = None
        return True

    def _open(self, target: int) -> BufferBuilder | None:
        """A fresh segment for a target, if there is one.

        Its former one is given up: it comes back when it is read.
        """
        self._finish(target)
        if not self._end.segments:
            if self.subpartitions > STREAM_BUILDERS:  # others may hold all there is, so those come back too
                self._finish_all()
            return None
        builder = self._builders[target] = self._end.begin_segment()
        return builder

    def _finish(self, target: int) -> None:
        builder = self._builders.pop(target, None)
        self._changed.pop(target, None)
        if builder is not None:
            if builder.remaining:
                self._metrics.add("bytes_unused", builder.remaining)
            piece = builder.finish()
            if piece is not None:
                self._note(target, piece)

    def _finish_all(self) -> None:
        for target in list(self._builders):
            self._finish(target)

    def _commit(self) -> None:
        for target, builder in self._changed.items():
            piece = builder.commit()
            if piece is not None:
                self._note(target, piece)
        self._changed.clear()
        self._end.ship()

    def _note(self, target: int, piece: BufferSlice) -> None:
        if piece.length and piece.segment in self._continued:
            self._continued.discard(piece.segment)
            piece = piece._replace(continues=True)
        self._end.note(target, piece)

    def _send_behind(self, events: Sequence[Event], kind: EventKind) -> None:
        """Each subpartition's event, after all that was taken."""
        self._commit()
        self._end.send_events(enumerate(events), DATA_TYPES[kind])

    def _check_whole(self) -> None:
        self._end.check_writing()
        if self._rest is not None:
            raise ProtocolError(f"{self.partition}: an event in the middle of a row that is not given out yet")
