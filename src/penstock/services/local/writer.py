# SPDX-License-Identifier: Apache-2.0
"""Writes a pipelined result partition into shared segments.

Batches become framed messages on one byte stream per subpartition; a message spans buffers where it must. One
builder is open per subpartition, or a single one for all while broadcasting; changing between the two finishes
the builders of the other, so order per subpartition holds. Full buffers are announced several at a time, the
rest at `flush`. Whoever writes waits only for a buffer (back-pressure), never for the environment's answer.
"""

from __future__ import annotations

import threading
import time
from collections import deque

import pyarrow as pa

from penstock.buffer.builder import BufferBuilder
from penstock.buffer.data_types import BufferSlice
from penstock.network.attachment import ALL, EVENT, FINISHED, REQUEST, FrameType, frame, slices_frame
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import MessageWriter
from penstock.services.local.attachment import Attachment
from penstock.shuffle import EndOfData, Event, OwnerContext, PartitionId, ResultPartitionDescriptor
from penstock.shuffle.errors import PenstockError, TaskCancelledError
from penstock.shuffle.events import encode_event

_SHIP_AT = 8
"""Full buffers per announcement: fewer system calls, and readers still run close behind."""
_ERROR_LIMIT = 64 << 10


class SegmentPartitionWriter:
    """A `ResultPartitionWriter` over an attachment. The lock lets another thread flush."""

    def __init__(
        self,
        attachment: Attachment,
        owner: OwnerContext,
        descriptor: ResultPartitionDescriptor,
        *,
        verify: bool = True,
    ) -> None:
        self._attachment = attachment
        self._descriptor = descriptor
        self._owner = owner
        self._metrics = owner.metrics
        self._lock = threading.RLock()
        count = descriptor.partition.subpartitions
        self._builders: list[BufferBuilder | None] = [None] * count
        self._broadcast_builder: BufferBuilder | None = None
        self._counters = [CompletenessCounter() for _ in range(count)]
        self._broadcast_counter = CompletenessCounter()
        codec = BatchCodec(descriptor.schema)
        self._messages = [MessageWriter(codec, counter, verify) for counter in self._counters]
        self._broadcast_messages = MessageWriter(codec, self._broadcast_counter, verify)
        self._segments: deque[int] = deque()
        self._task_events: list[tuple[int, bytes]] = []
        self._pending: list[tuple[int, int, int, int, int, int]] = []
        self._port = 0
        self._state = "created"

    @property
    def partition(self) -> PartitionId:
        """The identity of what is written."""
        return self._descriptor.shuffle.partition

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return len(self._builders)

    def setup(self) -> None:
        """Register the partition and get the first buffers; raises InsufficientBuffersError."""
        self._port = self._attachment.open_port(self)
        self._attachment.call(
            "local.open_writer",
            {
                "port": self._port,
                "attempt": self._owner.attempt.to_wire(),
                "partition": self.partition.to_wire(),
                "subpartitions": self.subpartitions,
                "broadcast": self._descriptor.partition.broadcast,
            },
        )
        self._state = "writing"

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Append a batch to one subpartition; blocks while there is no buffer."""
        with self._lock:
            self._check_writing()
            if self._broadcast_builder is not None:
                self._finish_builder(ALL)
            for part in self._messages[subpartition].message(batch).parts:
                self._append(subpartition, part)
            self._metrics.add("rows_out", batch.num_rows)
            self._ship_if_due()

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Append a batch to all subpartitions, stored once."""
        with self._lock:
            self._check_writing()
            self._finish_unicast()
            for part in self._broadcast_messages.message(batch).parts:
                self._append(ALL, part)
            self._metrics.add("rows_out", batch.num_rows)
            self._ship_if_due()

    def broadcast_event(self, event: Event) -> None:
        """Append an event to all subpartitions, behind everything written so far."""
        with self._lock:
            self._check_writing()
            self._commit_open(finished=False)
            self._send_event(ALL, event)

    def flush(self) -> None:
        """Make everything written so far visible to readers. Any thread."""
        with self._lock:
            if self._state == "writing":
                self._commit_open(finished=False)
                self._ship()

    def is_available(self) -> bool:
        """Whether a write can start without waiting for a buffer."""
        if not self._segments:
            self._attachment.look()
        return bool(self._segments)

    def take_task_events(self) -> list[tuple[int, bytes]]:
        """The task events that readers have sent since the last call."""
        self._attachment.look()
        events, self._task_events = self._task_events, []
        return events

    def finish(self) -> None:
        """Flush, then EndOfData and EndOfPartition to all subpartitions."""
        with self._lock:
            self._check_writing()
            self._commit_open(finished=True)
            self._send_event(ALL, EndOfData())
            for subpartition, counter in enumerate(self._counters):
                self._send_event(subpartition, counter.merged(self._broadcast_counter).end_of_partition())
            self._state = "finished"
            self._attachment.call("local.finish_writer", {"port": self._port})

    def fail(self, cause: BaseException) -> None:
        """Give the partition up: readers get ProducerFailedError with this cause."""
        with self._lock:
            if self._state != "writing":
                return
            self._state = "failed"
            text = f"{type(cause).__name__}: {cause}"[:_ERROR_LIMIT]
            self._attachment.hand_in("local.fail_writer", {"port": self._port, "cause": text})

    def subpartition_bytes(self) -> tuple[int, ...]:
        """Empty: what is read while it is written has no final size."""
        return ()

    def close(self) -> None:
        """Give back what the writer holds; idempotent."""
        with self._lock:
            if self._state == "writing":
                self.fail(TaskCancelledError("the writer was closed before it was finished"))
            if self._state != "closed":
                self._state = "closed"
                self._attachment.close_port(self._port)
                self._segments.clear()
                self._builders = [None] * len(self._builders)
                self._broadcast_builder = None

    def on_grant(self, segments: tuple[int, ...]) -> None:
        """Take segments to write into."""
        self._segments.extend(segments)

    def on_slice(self, channel: int, segment: int, offset: int, length: int) -> None:
        """Refuse: a writer gets no data."""
        raise PenstockError(f"{self.partition}: data arrived at a writer")

    def on_event(self, channel: int, data_type: int, payload: bytes) -> None:
        """Note a reader's task event."""
        self._task_events.append((channel, payload))

    def on_error(self, channel: int, error: BaseException) -> None:
        """Ignore: an error of a writer is the answer to a call."""

    def _append(self, target: int, data: bytes | memoryview) -> None:
        part = memoryview(data)
        start, length = 0, len(part)
        while start < length:
            builder = self._broadcast_builder if target == ALL else self._builders[target]
            if builder is None:
                builder = self._open_builder(target)
            start += builder.append(part[start:])
            if builder.is_full:
                self._finish_builder(target)

    def _open_builder(self, target: int) -> BufferBuilder:
        if not self._segments:
            self._wait_for_segment()
        segment = self._segments.pop()  # the last one granted: its memory is still in the cache
        builder = BufferBuilder(segment, self._attachment.memory.view(segment))
        if target == ALL:
            self._broadcast_builder = builder
        else:
            self._builders[target] = builder
        return builder

    def _wait_for_segment(self) -> None:
        self._ship()
        self._attachment.look()
        if self._segments:
            return
        begin = time.monotonic()
        self._attachment.send(frame(FrameType.OVERDRAFT, REQUEST.pack(self._port)))
        try:
            self._attachment.wait(lambda: self._segments)
        finally:
            self._metrics.add("back_pressured_seconds", time.monotonic() - begin)

    def _finish_builder(self, target: int) -> None:
        builder = self._broadcast_builder if target == ALL else self._builders[target]
        if builder is None:
            return
        if target == ALL:
            self._broadcast_builder = None
        else:
            self._builders[target] = None
        self._note(target, builder.finish())

    def _note(self, target: int, piece: BufferSlice | None) -> None:
        if piece is not None:
            flags = FINISHED if piece.finished else 0
            self._pending.append((self._port, flags, target, piece.segment, piece.offset, piece.length))
            self._metrics.add("bytes_out", piece.length)

    def _finish_unicast(self) -> None:
        for subpartition, builder in enumerate(self._builders):
            if builder is not None:
                self._finish_builder(subpartition)

    def _commit_open(self, *, finished: bool) -> None:
        if finished:
            self._finish_unicast()
            self._finish_builder(ALL)
            return
        for subpartition, builder in enumerate(self._builders):
            if builder is not None:
                self._note(subpartition, builder.commit())
        if self._broadcast_builder is not None:
            self._note(ALL, self._broadcast_builder.commit())

    def _ship_if_due(self) -> None:
        if len(self._pending) >= _SHIP_AT:
            self._ship()

    def _ship(self) -> None:
        if self._pending:
            self._metrics.add("buffers_out", len(self._pending))
            self._attachment.send(slices_frame(FrameType.SLICES, self._pending))
            self._pending.clear()

    def _send_event(self, target: int, event: Event) -> None:
        self._ship()
        body = EVENT.pack(self._port, 1, target) + encode_event(event)
        self._attachment.send(frame(FrameType.WRITER_EVENT, body))

    def _check_writing(self) -> None:
        if self._state != "writing":
            raise PenstockError(f"{self.partition}: written to while {self._state}")
