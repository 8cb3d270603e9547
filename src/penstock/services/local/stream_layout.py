# SPDX-License-Identifier: Apache-2.0
"""The layout of a stream: whole messages in slices, so that a reader can stop between any two of them.

Each subpartition has a segment open, and what goes to all has one for itself. `SegmentFill` says how full a segment
gets. A message that does not fit the rest of a segment goes into a fresh one; the rest is lost, and counted as
`bytes_unused`. A row larger than a segment is the exception (`rows_spanning`): it is taken as a whole, and what finds
no room of it is pending.

If there is no room, a writer of many subpartitions gives up all open segments, so it gets on with few, in slices that
are shorter.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.buffer.builder import BufferBuilder
from penstock.buffer.data_types import BufferSlice
from penstock.link.calls import STREAM_BUILDERS
from penstock.link.frames import ALL
from penstock.record.framing import Message
from penstock.services.local.builders import Segments
from penstock.services.local.in_flight import SegmentFill
from penstock.services.local.messages import MessageMaker, WriterSums, framed
from penstock.shuffle import MetricGroup


class StreamSegments:
    """A `Layout`."""

    def __init__(
        self, end: Segments, messages: MessageMaker, sums: WriterSums, fill: SegmentFill, metrics: MetricGroup
    ) -> None:
        self._end = end
        self._messages = messages
        self._sums = sums
        self._fill = fill
        self._metrics = metrics
        self._builders: dict[int, BufferBuilder] = {}
        self._changed: dict[int, BufferBuilder] = {}
        self._rest: tuple[int, memoryview] | None = None
        self._continued: set[int] = set()
        """Segments that begin in the middle of a message, of which nothing is shipped yet."""

    @property
    def has_pending(self) -> bool:
        """True if a part of a row larger than a segment waits for room."""
        return self._rest is not None

    def put(self, target: int, batch: pa.RecordBatch) -> int:
        """Take rows from the batch's front for a subpartition, or for `ALL`: how many."""
        if (target == ALL) != (ALL in self._builders):
            self._finish_all()  # what goes to all keeps its place among what goes to one
        rows, taken = batch.num_rows, 0
        while taken < rows and self._rest is None:
            count = self._put(target, batch.slice(taken) if taken else batch)
            if not count:
                break
            taken += count
        return taken

    def relieve(self) -> bool:
        """Give out what there is room for of a row larger than a segment; whether that was all."""
        return self._rest is None or self._give_rest(*self._rest)

    def show(self) -> None:
        """Everything: only what readers see comes back as room."""
        self._commit()

    def commit(self) -> None:
        """Make everything visible, as far as there is room."""
        self.relieve()
        self._commit()

    def finish(self) -> bool:
        """Make everything visible, and give all segments up; False where there is no room."""
        if not self.relieve():
            return False
        self._finish_all()
        return True

    def drop(self, *, is_finished: bool) -> None:
        """Forget everything."""
        self._builders.clear()
        self._changed.clear()
        self._rest = None

    def _put(self, target: int, batch: pa.RecordBatch) -> int:
        """Append one message; the rows in it, 0 where there is no room."""
        builder = self._builders.get(target)
        room = 0 if builder is None else builder.remaining
        if room < self._messages.limit // 2 and self._messages.size(batch) > room:
            if (builder := self._open(target)) is None:
                return 0
            room = builder.remaining
        rows, message = self._messages.cut(batch, min(room, self._fill.limit))
        total = framed(message)
        if builder is not None and total > room and builder.written:  # a large row: it needs a segment for itself
            if (builder := self._open(target)) is None:
                return 0
            room = builder.remaining
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
        while len(rest):
            builder = self._builders.get(target)
            if builder is None or builder.is_full:
                builder = self._open(target)
                if builder is not None and is_begun:
                    self._continued.add(builder.segment)
            if builder is None:
                self._rest = target, rest
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
        builder = self._end.take() if self._end.at_hand else None
        if builder is None:
            if self._sums.subpartitions > STREAM_BUILDERS:  # others may hold all there is, so those come back too
                self._finish_all()
            return None
        self._builders[target] = builder
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

    def _note(self, target: int, piece: BufferSlice) -> None:
        if piece.length and piece.segment in self._continued:
            self._continued.discard(piece.segment)
            piece = piece._replace(continues=True)
        self._end.note(target, piece)
