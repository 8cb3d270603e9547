# SPDX-License-Identifier: Apache-2.0
"""How a segment writer lays subpartitions into segments: each in segments of its own, or all in one after the other.

`OwnSegments` keeps a segment open for each subpartition, or a single one for all while broadcasting; changing between
the two finishes the builders of the other, so order per subpartition holds. Slices are long, and there are many open
segments. `SharedSegment` keeps one open, and ships what it holds whenever the subpartition changes: slices are short,
and memory does not grow with the number of subpartitions, which is what hybrid partitions with many need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.buffer.builder import BufferBuilder
from penstock.buffer.data_types import BufferSlice
from penstock.network.attachment import ALL

Take = Callable[[], BufferBuilder]
"""Gives a builder of a fresh segment; waits for one."""
Note = Callable[[int, BufferSlice], None]
"""Gets a slice that is to be shipped, and for which subpartition."""


class Builders(Protocol):
    """The open segments of one writer."""

    def append(self, target: int, parts: Iterable[bytes | memoryview]) -> None:
        """Append bytes to a subpartition, or to `ALL`."""

    def commit(self) -> None:
        """Ship everything so far."""

    def finish(self) -> None:
        """Ship everything, and give all segments up."""

    def drop(self) -> None:
        """Forget everything: the segments are gone."""


class OwnSegments:
    """A segment for each subpartition."""

    def __init__(self, subpartitions: int, take: Take, note: Note) -> None:
        self._take = take
        self._note = note
        self._builders: list[BufferBuilder | None] = [None] * subpartitions
        self._broadcast: BufferBuilder | None = None

    def append(self, target: int, parts: Iterable[bytes | memoryview]) -> None:
        """See the protocol."""
        if target == ALL:
            self._finish_own()
        elif self._broadcast is not None:
            self._finish(ALL)
        for data in parts:
            part = memoryview(data)
            start, length = 0, len(part)
            while start < length:
                builder = self._broadcast if target == ALL else self._builders[target]
                if builder is None:
                    builder = self._open(target)
                start += builder.append(part[start:])
                if builder.is_full:
                    self._finish(target)

    def commit(self) -> None:
        """See the protocol."""
        for target, builder in enumerate(self._builders):
            if builder is not None and (piece := builder.commit()) is not None:
                self._note(target, piece)
        if self._broadcast is not None and (piece := self._broadcast.commit()) is not None:
            self._note(ALL, piece)

    def finish(self) -> None:
        """See the protocol."""
        self._finish_own()
        self._finish(ALL)

    def drop(self) -> None:
        """See the protocol."""
        self._builders = [None] * len(self._builders)
        self._broadcast = None

    def _open(self, target: int) -> BufferBuilder:
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
    """One segment for all subpartitions."""

    def __init__(self, take: Take, note: Note) -> None:
        self._take = take
        self._note = note
        self._builder: BufferBuilder | None = None
        self._target = ALL

    def append(self, target: int, parts: Iterable[bytes | memoryview]) -> None:
        """See the protocol."""
        if target != self._target:
            self.commit()
            self._target = target
        for data in parts:
            part = memoryview(data)
            start, length = 0, len(part)
            while start < length:
                if self._builder is None:
                    self._builder = self._take()
                start += self._builder.append(part[start:])
                if self._builder.is_full:
                    self.finish()

    def commit(self) -> None:
        """See the protocol."""
        if self._builder is not None and (piece := self._builder.commit()) is not None:
            self._note(self._target, piece)
            if self._builder.is_full:  # of alignment alone
                self.finish()

    def finish(self) -> None:
        """See the protocol."""
        builder, self._builder = self._builder, None
        if builder is not None and (piece := builder.finish()) is not None:
            self._note(self._target, piece)

    def drop(self) -> None:
        """See the protocol."""
        self._builder = None
