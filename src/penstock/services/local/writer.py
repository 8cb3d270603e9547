# SPDX-License-Identifier: Apache-2.0
"""Writes a result partition into shared segments, and never waits: pipelined ones, hybrid ones, and streams.

Batches become framed messages on one byte stream per subpartition. A layout says how they lie in segments
(`builders`, `hybrid_layout`, `stream_layout`). Full buffers are announced several at a time, the rest at `flush`. If
there is no room, all that was taken is made visible first where readers are to make it, and a writer that is in the
middle of a message asks for a segment more than they have room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from penstock.buffer.data_types import DataType
from penstock.errors import PenstockError, ProtocolError, StorageError, TaskCancelledError
from penstock.lifecycle.endpoints import WriterState
from penstock.link.frames import ALL, LinkFrameType, segments_frame
from penstock.services.local.builders import Layout, Segments
from penstock.services.local.messages import MessageMaker, WriterSums
from penstock.services.local.overtaken import OvertakenSlices
from penstock.services.local.port import OnStore, Port
from penstock.services.local.writer_end import WriterEnd
from penstock.shuffle import (
    EndOfData,
    EpochEnd,
    Event,
    EventKind,
    Intake,
    MetricGroup,
    OwnerContext,
    PartitionEnd,
    ResultPartitionDescriptor,
    TaskHost,
)
from penstock.shuffle.endpoints import Overtaken
from penstock.shuffle.events import decode_event
from penstock.shuffle.splits import Split

DATA_TYPES: Final = {
    EventKind.IN_ORDER: DataType.EVENT,
    EventKind.BLOCKING: DataType.ALIGNED_BARRIER,
    EventKind.PRIORITY: DataType.PRIORITY_EVENT,
}
"""The data type by which each kind of event travels."""


@dataclass(frozen=True, slots=True)
class LayoutParts:
    """The things that a layout is made with: the writer's port, and its messages and their sums."""

    end: Segments
    messages: MessageMaker
    sums: WriterSums
    metrics: MetricGroup
    is_packed: bool
    """The subpartitions are to share segments."""


@dataclass(frozen=True, slots=True)
class LayoutPolicy:
    """The way of a kind of partition: how it is laid out, and what the environment may tell its writer to store."""

    make: Callable[[LayoutParts], Layout]
    on_store: OnStore | None = None
    overdraws: bool = True
    """Its messages span segments, and one that was begun has to be ended."""


@dataclass(slots=True)
class _Written:
    """The notes of one writer."""

    closing: list[Event] = field(default_factory=lambda: [EndOfData()])
    """The events that its end begins with."""
    overdrawn: int = -1
    """The number of grants at the last overdraft."""
    error: BaseException | None = None
    """Why the environment can't keep what was written."""


class SegmentWriter:
    """A `ResultPartitionWriter` over the data plane of its host."""

    def __init__(
        self,
        host: TaskHost,
        owner: OwnerContext,
        descriptor: ResultPartitionDescriptor,
        policy: Callable[[Segments], LayoutPolicy],
        *,
        verify: bool,
    ) -> None:
        self._host = host
        self._plane = host.data_plane()
        self._metrics = owner.metrics
        self._descriptor = descriptor
        self._end = WriterEnd(host, owner, descriptor)
        self._policy = policy(self._end)
        self._messages = MessageMaker(descriptor.schema, self._plane.memory.segment_size, verify=verify)
        self._sums = WriterSums(descriptor.partition.subpartitions)
        self._layout = self._policy.make(self._parts(is_packed=False))
        self._overtaken = OvertakenSlices(descriptor.partition.subpartitions)
        self._written = _Written()

    @property
    def has_pending(self) -> bool:
        """True if a part of a message still waits in here for a segment."""
        return self._layout.has_pending

    def setup(self) -> Intake:
        """Register the partition; raises InsufficientBuffersError where its least memory is not to be had."""
        port = Port(str(self._end.partition), on_error=self.on_error, on_store=self._policy.on_store)
        if self._descriptor.is_stream:
            port.on_slice, port.on_event = self.on_slice, self.on_event
        if self._end.open(port):
            self._layout = self._policy.make(self._parts(is_packed=True))
        return Intake()

    def offer(self, split: Split) -> int:
        """Take rows from the split's front, as many as there is room for; their number."""
        self._check_writing()
        layout, taken = self._layout, 0
        with self._first_cause():
            if layout.relieve():
                for subpartition, batch in split:
                    count = layout.put(subpartition if subpartition >= 0 else ALL, batch)
                    taken += count
                    if count < batch.num_rows or layout.has_pending:
                        break
        if taken:
            self._metrics.add("rows_out", taken)
        if layout.has_pending or taken < split.rows:
            self._run_short()
        else:
            self._end.ship_if_due()
        return taken

    def emit(self, event: Event, kind: EventKind = EventKind.IN_ORDER) -> None:
        """Send an event to all subpartitions: after all that was taken, or ahead of it for PRIORITY."""
        if kind is EventKind.PRIORITY:
            self._check_writing()
        else:
            self._commit_whole()
        if isinstance(event, EndOfData):
            self._written.closing.clear()
        self._end.send_events([(ALL, event)], DATA_TYPES[kind])

    def end_epoch(self, payload: bytes, kind: EventKind, *, keep_overtaken: bool = False) -> None:
        """Send an EpochEnd after all that was taken, each subpartition's with its sums and its place."""
        self._commit_whole()
        overtakes = kind is EventKind.PRIORITY
        ends = [
            EpochEnd(payload, end.rows, end.bytes, end.checksum, messages, overtakes)
            for end, messages in zip(self._sums.ends(), self._sums.positions, strict=True)
        ]
        if keep_overtaken:
            self._overtaken.begin(payload)
        elif overtakes:
            self._overtaken.drop()
        self._end.send_events(enumerate(ends), DataType.OVERTAKING_BARRIER if overtakes else DATA_TYPES[kind])

    def overtaken(self) -> Sequence[Overtaken] | None:
        """The rows that the last EpochEnd with PRIORITY has overtaken, of each subpartition, once they are known."""
        return self._overtaken.take()

    def flush(self) -> None:
        """Make what was taken visible to readers, as far as there is room."""
        if self._end.state is WriterState.WRITING:
            self._commit()

    def finish(self) -> PartitionEnd | None:
        """Send the closing events; None while there is no room for what was taken."""
        self._check_writing()
        with self._first_cause():
            is_whole = self._layout.finish()
        self._ship()
        if not is_whole:
            return None
        ends = self._sums.ends()
        self._end.send_events([*((ALL, event) for event in self._written.closing), *enumerate(ends)])
        self._end.finish()
        return PartitionEnd(tuple(ends))

    def close(self, cause: BaseException | None = None) -> None:
        """Give back what the writer holds; idempotent. A partition that was not finished is failed."""
        self._end.fail(cause or TaskCancelledError("the writer was closed before it was finished"))
        if self._end.state is not WriterState.CLOSED:
            self._layout.drop(is_finished=self._end.state is WriterState.FINISHED)
            self._end.close()
            self._overtaken.drop()

    def on_error(self, channel: int, error: BaseException) -> None:
        """The environment can't keep what was written: the next offer says so."""
        self._written.error = error

    def on_slice(self, channel: int, segment: int, offset: int, length: int) -> None:
        """Copy a slice that a barrier has overtaken, if a snapshot needs it, and recycle it: it is leased."""
        if self._overtaken.is_wanted:
            self._overtaken.add(channel, bytes(self._plane.memory.view(segment, offset, length)))
        self._plane.send(segments_frame(LinkFrameType.RECYCLE, self._end.port, [segment]))

    def on_event(self, channel: int, data_type: int, payload: bytes) -> None:
        """Note that all was leased which a barrier has overtaken of a subpartition; there are no other events."""
        event = decode_event(payload)
        if data_type != DataType.OVERTAKING_BARRIER or not isinstance(event, EpochEnd):
            raise PenstockError(f"{self._end.partition}: an event arrived at a writer")
        self._overtaken.end(channel, event.payload)

    def _parts(self, *, is_packed: bool) -> LayoutParts:
        return LayoutParts(self._end, self._messages, self._sums, self._metrics, is_packed)

    def _commit(self) -> None:
        self._check_writing()
        with self._first_cause():
            self._layout.commit()
        self._ship()

    def _commit_whole(self) -> None:
        """Note everything, for the message of an event that stands after it."""
        self._check_writing()
        with self._first_cause():
            self._layout.commit()
        if self._layout.has_pending:
            self._ship()
            raise ProtocolError(f"{self._end.partition}: an event in the middle of a row that is not given out yet")

    def _run_short(self) -> None:
        """Send what was noted, as there is no room."""
        self._layout.show()
        self._ship()

    def _ship(self) -> None:
        """Tell of all pieces, and once for each shortage that one segment more is needed."""
        self._end.ship()
        written = self._written
        if self._policy.overdraws and self._layout.has_pending and written.overdrawn != self._end.grants:
            written.overdrawn = self._end.grants
            self._end.overdraw()

    def _check_writing(self) -> None:
        self._end.check_writing()
        if self._written.error is not None:
            raise self._written.error

    @contextmanager
    def _first_cause(self) -> Iterator[None]:
        """The environment removes the folder of a partition that it gives up: its reason is the error then."""
        try:
            yield
        except StorageError as error:
            self._host.look()
            if self._written.error is not None:
                raise self._written.error from error
            raise
