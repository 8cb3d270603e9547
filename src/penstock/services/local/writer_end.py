# SPDX-License-Identifier: Apache-2.0
"""A writer's end of its host's data plane: its port, the segments that it was granted, and what it tells of them.

Pieces of segments that readers may see are noted in order and sent several in one message, or in front of events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from penstock.buffer.builder import BufferBuilder
from penstock.buffer.data_types import BufferSlice, DataType
from penstock.errors import PenstockError, StorageError
from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.link.calls import FailWriter, FinishWriter, OpenWriter
from penstock.link.frames import (
    CONTINUES,
    FINISHED,
    LinkFrameType,
    SliceRecord,
    event_frame,
    port_frame,
    slices_frame,
    stored_frame,
)
from penstock.partition.extents import Extent
from penstock.services.local.port import Port
from penstock.shuffle.descriptors import ResultPartitionDescriptor
from penstock.shuffle.events import Event, encode_event
from penstock.shuffle.host import TaskHost
from penstock.shuffle.ids import PartitionId
from penstock.shuffle.service import OwnerContext

_ERROR_LIMIT = 64 << 10
_SHIP_AT = 8
"""Pieces per message."""
_STREAM_SHIP_AT = 4
"""Pieces per message of a stream, whose readers are to be close behind."""


class WriterEnd:
    """The port of a writer into segments."""

    def __init__(self, host: TaskHost, owner: OwnerContext, descriptor: ResultPartitionDescriptor) -> None:
        self.partition: PartitionId = descriptor.shuffle.partition
        self.port = 0
        """Known from the opening on."""
        self._segments: deque[int] = deque()
        """Granted, and not begun."""
        self.grants = 0
        """The number of times that segments were granted."""
        self._host = host
        self._plane = host.data_plane()
        self._memory = self._plane.memory
        self._attempt = owner.attempt
        self._metrics = owner.metrics
        self._descriptor = descriptor
        self._noted: list[SliceRecord] = []
        self._lifecycle = WriterLifecycle(f"writer of partition {self.partition}")

    @property
    def state(self) -> WriterState:
        """The state of the writer's life."""
        return self._lifecycle.state

    def open(self, port: Port) -> bool:
        """Register the partition, and get the first segments; whether all subpartitions are to share them.

        Raises InsufficientBuffersError.
        """
        port.on_grant = self._on_grant
        self.port = self._plane.open_port(port)
        made, streams = self._descriptor.partition, self._descriptor.is_stream
        opening = OpenWriter(
            self.port, self._attempt, self.partition, made.subpartitions, made.broadcast, made.kind, streams
        )
        opened = self._host.ask(opening)
        self._lifecycle.move(WriterEvent.SET_UP)
        return opened.packed

    def check_writing(self) -> None:
        """Raise PenstockError where nothing may be written, or no more."""
        if self._lifecycle.state is not WriterState.WRITING:
            raise PenstockError(f"{self.partition}: written to while {self._lifecycle.state.value}")

    @property
    def at_hand(self) -> int:
        """The number of segments that were granted and not begun."""
        return len(self._segments)

    def look(self) -> int:
        """Take what has arrived; how many segments were granted and not begun."""
        self._host.look()
        return len(self._segments)

    def take(self) -> BufferBuilder | None:
        """A builder of a segment that was granted, if there is one."""
        if not self._segments and not self.look():
            return None
        segment = self._segments.pop()  # the last one: its memory is still in the cache
        return BufferBuilder(segment, self._memory.view(segment))

    def overdraw(self) -> None:
        """Ask for a segment more than readers have room for, so that a batch in hand can be ended."""
        self._plane.send(port_frame(LinkFrameType.OVERDRAFT, self.port))

    def note(self, target: int, piece: BufferSlice) -> None:
        """Keep a piece for the next message."""
        length = piece.length | FINISHED if piece.finished else piece.length
        if piece.continues:
            length |= CONTINUES
        self._noted.append((self.port, target, piece.segment, piece.offset, length))
        self._metrics.add("bytes_out", piece.length)

    def ship_if_due(self) -> None:
        """Send the message, where it is as long as it may be: fewer system calls, and readers run close behind."""
        if len(self._noted) >= (_STREAM_SHIP_AT if self._descriptor.is_stream else _SHIP_AT):
            self.ship()

    def ship(self) -> None:
        """Send what was noted, if there is any."""
        if self._noted:
            self._plane.send(self._told())

    def _told(self) -> bytes:
        """The message of what was noted; nothing where there is none."""
        if not self._noted:
            return b""
        self._metrics.add("buffers_out", len(self._noted))
        told = slices_frame(LinkFrameType.SLICES, self._noted)
        self._noted.clear()
        return told

    def tell_stored(self, extents: list[tuple[int, Extent]]) -> None:
        """Tell what the writer has stored by itself, and for which subpartition."""
        records = [(target, each.length, each.offset, each.checksum) for target, each in extents]
        size = sum(each.length for _, each in extents)
        self._metrics.add("bytes_out", size)
        self._metrics.add("bytes_stored", size)
        self._plane.send(stored_frame(self.port, records))

    def send_events(self, events: Iterable[tuple[int, Event]], data_type: DataType = DataType.EVENT) -> None:
        """Send each event to its subpartition, or to all, with what was noted in front: so readers wake once."""
        frames = [
            event_frame(LinkFrameType.WRITER_EVENT, self.port, data_type, target, encode_event(event))
            for target, event in events
        ]
        self._plane.send(b"".join([self._told(), *frames]))

    def finish(self) -> None:
        """Everything was sent, the closing events too."""
        self._lifecycle.move(WriterEvent.FINISH)
        self._host.ask(FinishWriter(self.partition))

    def fail(self, cause: BaseException) -> None:
        """Give the partition up, where it is being written: readers get ProducerFailedError with this cause."""
        if self._lifecycle.state is WriterState.WRITING:
            self._lifecycle.move(WriterEvent.FAIL)
            text = f"{type(cause).__name__}: {cause}"[:_ERROR_LIMIT]
            self._host.hand_in(FailWriter(self.partition, text, isinstance(cause, StorageError)))

    def close(self) -> None:
        """Forget the port and what was granted; idempotent."""
        self._lifecycle.move(WriterEvent.CLOSE)
        self._plane.close_port(self.port)
        self._segments.clear()

    def _on_grant(self, segments: tuple[int, ...]) -> None:
        self.grants += 1
        self._segments.extend(segments)
