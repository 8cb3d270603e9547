# SPDX-License-Identifier: Apache-2.0
"""A writer's end of its host's data plane: its port, the segments that it was granted, and what it tells of them.

Pieces of segments that readers may see are noted in order and sent several in one message. Other messages, an event
or the end, are the caller's to send after that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from penstock.buffer.builder import BufferBuilder
from penstock.buffer.data_types import BufferSlice, DataType
from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.link.calls import FailWriter, FinishWriter, OpenWriter
from penstock.link.frames import CONTINUES, FINISHED, FrameType, SliceRecord, event_frame, slices_frame
from penstock.services.local.port import Port
from penstock.shuffle.descriptors import ResultPartitionDescriptor
from penstock.shuffle.errors import PenstockError, StorageError
from penstock.shuffle.events import Event, encode_event
from penstock.shuffle.host import TaskHost
from penstock.shuffle.ids import PartitionId
from penstock.shuffle.service import OwnerContext

_ERROR_LIMIT = 64 << 10


class WriterEnd:
    """The common part of the writers of batch tasks and of streaming ones. `most` pieces go into one message."""

    def __init__(self, host: TaskHost, owner: OwnerContext, descriptor: ResultPartitionDescriptor, most: int) -> None:
        self.partition: PartitionId = descriptor.shuffle.partition
        self.port = 0
        """Known from the opening on."""
        self.segments: deque[int] = deque()
        """Granted, and not begun."""
        self._host = host
        self._plane = host.data_plane()
        self._memory = self._plane.memory
        self._attempt = owner.attempt
        self._metrics = owner.metrics
        self._descriptor = descriptor.partition
        self._most = most
        self._noted: list[SliceRecord] = []
        self._lifecycle = WriterLifecycle(f"writer of partition {self.partition}")

    @property
    def state(self) -> WriterState:
        """The state of the writer's life."""
        return self._lifecycle.state

    def open(self, port: Port, *, streams: bool = False) -> bool:
        """Register the partition, and get the first segments; whether all subpartitions are to share them.

        Raises InsufficientBuffersError.
        """
        port.on_grant = self.segments.extend
        self.port = self._plane.open_port(port)
        made = self._descriptor
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

    def begin_segment(self) -> BufferBuilder:
        """A builder of a segment that was granted."""
        segment = self.segments.pop()  # the last one: its memory is still in the cache
        return BufferBuilder(segment, self._memory.view(segment))

    def note(self, target: int, piece: BufferSlice) -> None:
        """Keep a piece for the next message."""
        length = piece.length | FINISHED if piece.finished else piece.length
        if piece.continues:
            length |= CONTINUES
        self._noted.append((self.port, target, piece.segment, piece.offset, length))
        self._metrics.add("bytes_out", piece.length)

    def ship_if_due(self) -> None:
        """Send the message, where it is as long as it may be: fewer system calls, and readers run close behind."""
        if len(self._noted) >= self._most:
            self.ship()

    def ship(self) -> None:
        """Send what was noted, if there is any."""
        if self._noted:
            self._metrics.add("buffers_out", len(self._noted))
            self._plane.send(slices_frame(FrameType.SLICES, self._noted))
            self._noted.clear()

    def send_events(self, events: Iterable[tuple[int, Event]], data_type: DataType = DataType.EVENT) -> None:
        """Send each event to its subpartition, or to all."""
        frames = [
            event_frame(FrameType.WRITER_EVENT, self.port, data_type, target, encode_event(event))
            for target, event in events
        ]
        self._plane.send(b"".join(frames))

    def finish(self) -> None:
        """Everything was sent, the closing events too."""
        self._lifecycle.move(WriterEvent.FINISH)
        self._host.ask(FinishWriter(self.port))

    def fail(self, cause: BaseException) -> None:
        """Give the partition up, where it is being written: readers get ProducerFailedError with this cause."""
        if self._lifecycle.state is WriterState.WRITING:
            self._lifecycle.move(WriterEvent.FAIL)
            text = f"{type(cause).__name__}: {cause}"[:_ERROR_LIMIT]
            self._host.hand_in(FailWriter(self.port, text, isinstance(cause, StorageError)))

    def close(self) -> None:
        """Forget the port and what was granted; idempotent."""
        self._lifecycle.move(WriterEvent.CLOSE)
        self._plane.close_port(self.port)
        self.segments.clear()
