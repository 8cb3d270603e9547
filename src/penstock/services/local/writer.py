# SPDX-License-Identifier: Apache-2.0
"""Writes a pipelined result partition into shared segments; what hybrid ones do besides is in `hybrid_writer`.

Batches become framed messages on one byte stream per subpartition; a message spans buffers where it must. `builders`
says how the streams lie in segments. Full buffers are announced several at a time, the rest at `flush`. A writer
waits only for a buffer, one that a reader has given back (back-pressure), never for the environment's answer.
"""

from __future__ import annotations

import threading
import time

import pyarrow as pa

from penstock.buffer.builder import BufferBuilder
from penstock.lifecycle.endpoints import WriterState
from penstock.link.frames import ALL, FrameType, port_frame
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import Message, MessageWriter
from penstock.services.local.builders import Builders, OwnSegments, SharedSegment
from penstock.services.local.port import Port
from penstock.services.local.writer_end import WriterEnd
from penstock.shuffle import (
    EndOfData,
    EndOfPartition,
    OwnerContext,
    PartitionId,
    ResultPartitionDescriptor,
)
from penstock.shuffle.errors import TaskCancelledError
from penstock.shuffle.host import TaskHost
from penstock.shuffle.service import fingerprint_of

_SHIP_AT = 8
"""Full buffers per announcement."""
_FLUSH_LOOK_SECONDS = 0.01
"""Seconds between two looks of a flush that waits behind a write whether that waits too."""


class SegmentPartitionWriter:
    """A `ResultPartitionWriter` over the data plane of its host. The lock lets another thread flush."""

    def __init__(
        self,
        host: TaskHost,
        owner: OwnerContext,
        descriptor: ResultPartitionDescriptor,
        *,
        verify: bool = True,
    ) -> None:
        self._host = host
        self._plane = host.data_plane()
        self._descriptor = descriptor
        self._metrics = owner.metrics
        self._lock = threading.RLock()
        count = descriptor.partition.subpartitions
        self._end = WriterEnd(host, owner, descriptor, _SHIP_AT)
        self._builders: Builders = OwnSegments(count, self._take_segment, self._end.note)
        self._is_waiting = False
        self._counters = [CompletenessCounter() for _ in range(count)]
        self._broadcast_counter = CompletenessCounter()
        codec = BatchCodec(descriptor.schema)
        self._messages = [MessageWriter(codec, counter, verify) for counter in self._counters]
        self._broadcast_messages = MessageWriter(codec, self._broadcast_counter, verify)
        self._ends: tuple[EndOfPartition, ...] = ()
        self._error: BaseException | None = None

    @property
    def partition(self) -> PartitionId:
        """The identity of what is written."""
        return self._end.partition

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return self._descriptor.partition.subpartitions

    def setup(self) -> None:
        """Register the partition and get the first buffers; raises InsufficientBuffersError."""
        if self._end.open(self._listen()):
            self._builders = SharedSegment(self._take_segment, self._end.note)

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Append a batch to one subpartition; blocks while there is no buffer."""
        with self._lock:
            self._check_writing()
            self._append(subpartition, self._messages[subpartition].message(batch))
            self._metrics.add("rows_out", batch.num_rows)
            self._end.ship_if_due()

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Append a batch to all subpartitions, stored once."""
        with self._lock:
            self._check_writing()
            self._append(ALL, self._broadcast_messages.message(batch))
            self._metrics.add("rows_out", batch.num_rows)
            self._end.ship_if_due()

    def flush(self) -> None:
        """Make everything written so far visible to readers. Any thread.

        If a write waits for a buffer, there is nothing to do: it has done so before it waits.
        """
        while not self._lock.acquire(timeout=_FLUSH_LOOK_SECONDS):
            if self._is_waiting:
                return
        try:
            if self._end.state is WriterState.WRITING:
                self._commit()
        finally:
            self._lock.release()

    def is_available(self) -> bool:
        """True if a write can start without waiting for a buffer."""
        if not self._end.segments:
            self._host.look()
        return bool(self._end.segments)

    def finish(self) -> None:
        """Flush, then EndOfData and EndOfPartition to all subpartitions."""
        with self._lock:
            self._check_writing()
            self._complete()
            ends = tuple(each.merged(self._broadcast_counter).end_of_partition() for each in self._counters)
            self._end.send_events([(ALL, EndOfData()), *enumerate(ends)])
            self._end.finish()
            self._ends = ends

    def fail(self, cause: BaseException) -> None:
        """Give the partition up: readers get ProducerFailedError with this cause."""
        with self._lock:
            self._end.fail(cause)

    def subpartition_bytes(self) -> tuple[int, ...]:
        """Empty: nobody plans by the size of what is read while it is written."""
        return ()

    def fingerprint(self) -> int:
        """A number that depends on what was written and on nothing else; 0 before `finish`."""
        return fingerprint_of(self._ends)

    def close(self) -> None:
        """Give back what the writer holds; idempotent."""
        with self._lock:
            self._end.fail(TaskCancelledError("the writer was closed before it was finished"))
            if self._end.state is not WriterState.CLOSED:
                self._drop()
                self._end.close()

    def on_error(self, channel: int, error: BaseException) -> None:
        """The environment can't keep what was written: the next write says so."""
        self._error = error

    def _listen(self) -> Port:
        return Port(str(self.partition), on_error=self.on_error)

    def _append(self, target: int, message: Message) -> None:
        """Lay out a message; waits for segments."""
        self._builders.append(target, message.parts)

    def _commit(self) -> None:
        """Everything so far becomes visible."""
        self._builders.commit()
        self._end.ship()

    def _complete(self) -> None:
        """Everything becomes visible, and nothing follows."""
        self._builders.finish()
        self._end.ship()

    def _drop(self) -> None:
        """Let go of what is laid out; called once."""
        self._builders.drop()

    def _take_segment(self) -> BufferBuilder:
        if not self._end.segments:
            self._wait_for_segment()
        return self._end.begin_segment()

    def _wait_for_segment(self) -> None:
        self._end.ship()
        self._host.look()
        if self._end.segments:
            return
        self._show_all()
        begin = time.monotonic()
        self._plane.send(port_frame(FrameType.OVERDRAFT, self._end.port))
        self._is_waiting = True
        try:
            self._host.wait(lambda: self._end.segments or self._error)
        finally:
            self._is_waiting = False
            self._metrics.add("back_pressured_seconds", time.monotonic() - begin)
        if self._error is not None:
            raise self._error

    def _show_all(self) -> None:
        """Called ahead of a wait: one subpartition that is not read hides no row of the others.

        Not where they share segments: what is gathered for one needs a segment, too.
        """
        if isinstance(self._builders, OwnSegments):
            self._commit()

    def _check_writing(self) -> None:
        self._end.check_writing()
        if self._error is not None:
            raise self._error
