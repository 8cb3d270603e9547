# SPDX-License-Identifier: Apache-2.0
"""The layout of subpartitions by a writer: each in segments of its own, or all in one.

`OwnSegments` keeps a segment open for each subpartition, or a single one for all while broadcasting; changing between
the two finishes the builders of the other, so order per subpartition holds. Slices are long, and there are many open
segments. `SharedSegment` keeps one open, and gathers what belongs to one subpartition in the task's own memory before
it copies that there and ships it: slices are shorter, and network memory does not grow with the number of
subpartitions, which is what hybrid partitions with many need. It gathers `GATHER_BYTES` at most.

Both lay out a batch as one message, which spans segments where it must. The part that finds no segment is pending,
and laid out when it is asked for again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import pyarrow as pa

from penstock.buffer.builder import BufferBuilder
from penstock.buffer.data_types import BufferSlice
from penstock.link.frames import ALL
from penstock.partition.extents import Extent
from penstock.services.local.gathered import GATHER_BYTES, Gathered
from penstock.services.local.messages import MessageMaker, WriterSums

SLICE_BYTES = 128 << 10
"""As much of one subpartition goes into a shared segment at once, where the memory for gathering suffices."""

Take = Callable[[], BufferBuilder | None]
"""Gives a builder of a fresh segment, if there is one."""
Note = Callable[[int, BufferSlice], None]
"""Gets a slice that is to be shipped, and for which subpartition."""


class Segments(Protocol):
    """The segments of a writer, and the word of what lies in them."""

    @property
    def at_hand(self) -> int:
        """The number of segments that were granted and not begun."""

    def look(self) -> int:
        """Take what has arrived; the segments at hand then."""

    def take(self) -> BufferBuilder | None:
        """A builder of a segment, if there is one."""

    def note(self, target: int, piece: BufferSlice, /) -> None:
        """Keep a piece that readers may see for the next message."""

    def ship(self) -> None:
        """Send what was noted."""

    def tell_stored(self, extents: list[tuple[int, Extent]], /) -> None:
        """Tell what the writer has stored by itself, and for which subpartition."""


class Layout(Protocol):
    """The places of a writer's messages."""

    @property
    def has_pending(self) -> bool:
        """True if a part of what was put waits for room; nothing more may be put then."""

    def relieve(self) -> bool:
        """Lay out what is pending, as far as there is room; whether that was all."""

    def put(self, target: int, batch: pa.RecordBatch) -> int:
        """Take rows from the batch's front for a subpartition, or for `ALL`: how many."""

    def show(self) -> None:
        """Room is short: make visible what readers are to make room of."""

    def commit(self) -> None:
        """Make everything visible, as far as there is room; the rest is pending."""

    def finish(self) -> bool:
        """Make everything visible, and give all segments up; False, and it is pending, where there is no room."""

    def drop(self, *, is_finished: bool) -> None:
        """Forget everything: the segments are gone, and the partition too if it was not finished."""


class Builders(Protocol):
    """Open segments that take messages of any size."""

    @property
    def has_pending(self) -> bool:
        """True if a part of what was appended waits for room."""

    def append(self, target: int, parts: Iterable[bytes | memoryview]) -> None:
        """Append a message to a subpartition, or to `ALL`; not while something is pending."""

    def relieve(self) -> bool:
        """See `Layout`."""

    def show(self) -> None:
        """See `Layout`."""

    def commit(self) -> None:
        """See `Layout`."""

    def finish(self) -> bool:
        """See `Layout`."""

    def drop(self) -> None:
        """Forget everything: the segments are gone."""


class WholeMessages:
    """A `Layout` of one message for each batch."""

    def __init__(self, builders: Builders, messages: MessageMaker, sums: WriterSums) -> None:
        self._builders = builders
        self._messages = messages
        self._sums = sums

    @property
    def has_pending(self) -> bool:
        """True if a part of what was put waits for room."""
        return self._builders.has_pending

    def put(self, target: int, batch: pa.RecordBatch) -> int:
        """All of the batch."""
        message = self._messages.whole(batch)
        self._sums.add(target, batch.num_rows, message)
        self._builders.append(target, message.parts)
        return int(batch.num_rows)

    def relieve(self) -> bool:
        """See the protocol."""
        return self._builders.relieve()

    def show(self) -> None:
        """See the protocol."""
        self._builders.show()

    def commit(self) -> None:
        """See the protocol."""
        self._builders.commit()

    def finish(self) -> bool:
        """See the protocol."""
        return self._builders.finish()

    def drop(self, *, is_finished: bool) -> None:
        """See the protocol."""
        self._builders.drop()


class OwnSegments:
    """A segment for each subpartition."""

    def __init__(self, subpartitions: int, take: Take, note: Note) -> None:
        self._take = take
        self._note = note
        self._builders: list[BufferBuilder | None] = [None] * subpartitions
        self._broadcast: BufferBuilder | None = None
        self._rest: tuple[int, list[bytes | memoryview]] | None = None

    @property
    def has_pending(self) -> bool:
        """True if a part of a message waits for a segment."""
        return self._rest is not None

    def append(self, target: int, parts: Iterable[bytes | memoryview]) -> None:
        """See the protocol."""
        if target == ALL:
            self._finish_own()
        elif self._broadcast is not None:
            self._finish(ALL)
        rest = iter(parts)
        for data in rest:
            part = memoryview(data)
            start, length = 0, len(part)
            while start < length:
                builder = self._broadcast if target == ALL else self._builders[target]
                if builder is None and (builder := self._open(target)) is None:
                    self._rest = target, [part[start:], *rest]
                    return
                start += builder.append(part[start:])
                if builder.is_full:
                    self._finish(target)

    def relieve(self) -> bool:
        """See the protocol."""
        if self._rest is not None:
            (target, parts), self._rest = self._rest, None
            self.append(target, parts)
        return self._rest is None

    def show(self) -> None:
        """Everything: one subpartition that is not read hides no row of the others."""
        self._commit()

    def commit(self) -> None:
        """See the protocol."""
        self.relieve()
        self._commit()

    def finish(self) -> bool:
        """See the protocol."""
        if not self.relieve():
            return False
        self._finish_own()
        self._finish(ALL)
        return True

    def drop(self) -> None:
        """See the protocol."""
        self._builders = [None] * len(self._builders)
        self._broadcast = self._rest = None

    def _commit(self) -> None:
        for target, builder in enumerate(self._builders):
            if builder is not None and (piece := builder.commit()) is not None:
                self._note(target, piece)
        if self._broadcast is not None and (piece := self._broadcast.commit()) is not None:
            self._note(ALL, piece)

    def _open(self, target: int) -> BufferBuilder | None:
        builder = self._take()
        if target == ALL:
            self._broadcast = builder
        else:
            self._builders[target] = builder
        return builder

    def _finish_own(self) -> None:
        for target, builder in enumerate(self._builders):
            if builder is not None:
                self._finish(target)

    def _finish(self, target: int) -> None:
        builder = self._broadcast if target == ALL else self._builders[target]
        if builder is None:
            return
        if target == ALL:
            self._broadcast = None
        else:
            self._builders[target] = None
        if (piece := builder.finish()) is not None:
            self._note(target, piece)


class SharedSegment:
    """One segment for all subpartitions, whose bytes are gathered before so that slices are not too short."""

    def __init__(self, take: Take, note: Note) -> None:
        self._take = take
        self._note = note
        self._builder: BufferBuilder | None = None
        self._gathered = Gathered()
        self._due: deque[int] = deque()
        """The subpartitions whose bytes are to be laid out."""
        self._next: tuple[int, Iterable[bytes | memoryview]] | None = None
        """The message that comes when they are."""

    @property
    def has_pending(self) -> bool:
        """True if what was to be laid out waits for a segment."""
        return bool(self._due)

    def append(self, target: int, parts: Iterable[bytes | memoryview]) -> None:
        """See the protocol. Gathered parts are referred to, not copied."""
        if self._gathered.size and (target == ALL) != (ALL in self._gathered):
            self._due.extend(self._gathered.targets)  # what goes to all keeps its place among what goes to one
            self._next = target, parts
            self.relieve()
            return
        if self._gathered.add(target, parts) >= SLICE_BYTES:
            self._due.append(target)
            self.relieve()
        elif self._gathered.size >= GATHER_BYTES:
            self._due.extend(self._gathered.targets)
            self.relieve()

    def relieve(self) -> bool:
        """See the protocol."""
        while self._due:
            if not self._lay(self._due[0]):
                return False
            self._due.popleft()
        if self._next is not None:
            (target, parts), self._next = self._next, None
            self.append(target, parts)
        return not self._due

    def show(self) -> None:
        """Nothing: what is gathered for one needs a segment, too."""

    def commit(self) -> None:
        """See the protocol."""
        if self.relieve():
            self._due.extend(self._gathered.targets)
            self.relieve()

    def finish(self) -> bool:
        """See the protocol."""
        self.commit()
        if self._due:
            return False
        self._finish(ALL)
        return True

    def drop(self) -> None:
        """See the protocol."""
        self._builder = self._next = None
        self._gathered.clear()
        self._due.clear()

    def _lay(self, target: int) -> bool:
        """Copy what is gathered for a subpartition into the segment, and ship it, as far as there is room."""
        rest = iter(self._gathered.take(target))
        for part in rest:
            start, length = 0, len(part)
            while start < length:
                if self._builder is None and (builder := self._take()) is not None:
                    self._builder = builder
                if self._builder is None:
                    self._gathered.put_back(target, [part[start:], *rest])
                    return False
                start += self._builder.append(part[start:])
                if self._builder.is_full:
                    self._finish(target)
        if self._builder is not None and (piece := self._builder.commit()) is not None:
            self._note(target, piece)
            if self._builder.is_full:  # of alignment alone
                self._finish(target)
        return True

    def _finish(self, target: int) -> None:
        builder, self._builder = self._builder, None
        if builder is not None and (piece := builder.finish()) is not None:
            self._note(target, piece)
