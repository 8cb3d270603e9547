# SPDX-License-Identifier: Apache-2.0
"""The layout of subpartitions by a segment writer: each in segments of its own, all in one, or in a file of its own.

`OwnSegments` keeps a segment open for each subpartition, or a single one for all while broadcasting; changing between
the two finishes the builders of the other, so order per subpartition holds. Slices are long, and there are many open
segments. `SharedSegment` keeps one open, and gathers what belongs to one subpartition in the task's own memory before
it copies that there and ships it: slices are shorter, and network memory does not grow with the number of
subpartitions, which is what hybrid partitions with many need. It gathers `GATHER_BYTES` at most.

`OwnFile` hands over what it has to the file `OWN` of its partition: a hybrid partition's readers then read it there,
which costs no copy more than a blocking partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.buffer.builder import BufferBuilder
from penstock.buffer.data_types import BufferSlice
from penstock.link.frames import ALL
from penstock.partition.extents import Extent
from penstock.partition.stretched_file import LONG, StretchedFile
from penstock.shuffle.errors import PenstockError

SLICE_BYTES = 128 << 10
"""As much of one subpartition goes into a shared segment at once, where the memory for gathering suffices."""
GATHER_BYTES = 8 << 20
"""The bytes that a writer gathers for all subpartitions together."""
TELL_BYTES = 16 << 20
"""The bytes that a writer stores before it tells of them: every word wakes the readers."""

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


class Gathered:
    """Bytes of several subpartitions that wait to go somewhere, each one's in order: referred to, not copied."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: dict[int, list[memoryview]] = {}
        self._sizes: dict[int, int] = {}

    def __contains__(self, target: int) -> bool:
        return target in self._parts

    @property
    def targets(self) -> list[int]:
        """The subpartitions that have something here; `ALL` is one of its own."""
        return list(self._parts)

    def add(self, target: int, parts: Iterable[bytes | memoryview]) -> int:
        """Add bytes to a subpartition; how many it has now."""
        views = [memoryview(part) for part in parts]
        size = sum(map(len, views))
        self._parts.setdefault(target, []).extend(views)
        self.size += size
        self._sizes[target] = self._sizes.get(target, 0) + size
        return self._sizes[target]

    def take(self, target: int) -> list[memoryview]:
        """Take the parts of a subpartition, which are no longer here then."""
        self.size -= self._sizes.pop(target)
        return self._parts.pop(target)

    def clear(self) -> None:
        """Forget everything."""
        self.size = 0
        self._parts.clear()
        self._sizes.clear()


class OwnFile:
    """A file of the writer's own. Long parts go there at once, the rest is gathered; both are told together."""

    def __init__(self, file: StretchedFile, note: Callable[[list[tuple[int, Extent]]], None]) -> None:
        self._file = file
        self._note = note
        self._gathered = Gathered()
        self._untold = 0
        self._is_for_all = False
        self._error: PenstockError | None = None

    @property
    def is_under_way(self) -> bool:
        """True if there is something that was not told yet."""
        return self._untold > 0

    def append(self, target: int, parts: Iterable[bytes | memoryview]) -> None:
        """See the protocol. Gathered parts are referred to, not copied. PenstockError where it can't be stored."""
        if (target == ALL) != self._is_for_all:
            self.commit()  # what goes to all keeps its place among what goes to one
            self._is_for_all = target == ALL
        before = self._gathered.size
        size = self._gathered.add(target, parts)
        self._untold += self._gathered.size - before
        if size >= LONG:
            self._write([target])
        elif self._gathered.size >= GATHER_BYTES:
            self._write(self._gathered.targets)
        if self._untold >= TELL_BYTES:
            self.commit()

    def commit(self) -> None:
        """See the protocol."""
        self._write(self._gathered.targets)
        self._untold = 0
        if self._error is None and (extents := self._file.take()):
            self._note(extents)

    def finish(self) -> None:
        """See the protocol; the file is complete."""
        self.commit()
        self._file.close()

    def drop(self) -> None:
        """Forget everything, file and all."""
        self._gathered.clear()
        self._file.remove()

    def _write(self, targets: list[int]) -> None:
        """Once that has failed the file is gone: it fails again, and nothing more is told."""
        runs = [(target, self._gathered.take(target)) for target in targets]
        if not runs:
            return
        if self._error is not None:
            raise self._error
        try:
            self._file.write(runs)
        except PenstockError as error:
            self._error = error
            raise


class SharedSegment:
    """One segment for all subpartitions, whose bytes are gathered before so that slices are not too short."""

    def __init__(self, take: Take, note: Note) -> None:
        self._take = take
        self._note = note
        self._builder: BufferBuilder | None = None
        self._gathered = Gathered()

    def append(self, target: int, parts: Iterable[bytes | memoryview]) -> None:
        """See the protocol. Gathered parts are referred to, not copied."""
        if self._gathered.size and (target == ALL) != (ALL in self._gathered):
            self._lay_all()  # what goes to all keeps its place among what goes to one
        if self._gathered.add(target, parts) >= SLICE_BYTES:
            self._lay(target)
        elif self._gathered.size >= GATHER_BYTES:
            self._lay_all()

    def commit(self) -> None:
        """See the protocol."""
        self._lay_all()

    def finish(self) -> None:
        """See the protocol."""
        self._lay_all()
        self._finish(ALL)

    def drop(self) -> None:
        """See the protocol."""
        self._builder = None
        self._gathered.clear()

    def _lay_all(self) -> None:
        for target in self._gathered.targets:
            self._lay(target)

    def _lay(self, target: int) -> None:
        """Copy what is gathered for a subpartition into the segment, and ship it."""
        for part in self._gathered.take(target):
            start, length = 0, len(part)
            while start < length:
                if self._builder is None:
                    self._builder = self._take()
                start += self._builder.append(part[start:])
                if self._builder.is_full:
                    self._finish(target)
        if self._builder is not None and (piece := self._builder.commit()) is not None:
            self._note(target, piece)
            if self._builder.is_full:  # of alignment alone
                self._finish(target)

    def _finish(self, target: int) -> None:
        builder, self._builder = self._builder, None
        if builder is not None and (piece := builder.finish()) is not None:
            self._note(target, piece)
