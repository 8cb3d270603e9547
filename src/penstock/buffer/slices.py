# SPDX-License-Identifier: Apache-2.0
"""The needs for segments: reference counts, and the segments that each attached task holds.

A segment is shipped as several slices: a builder commits a prefix at a flush and goes on writing after it, and a
broadcast slice is queued at every subpartition. So a segment has one reference for its open builder and one for each
slice that is not yet recycled; at zero it goes back to the pool it came from.

Rules:

- A segment is opened by its builder, or by `receive` with one slice and no builder.
- Tasks are remote peers. The segments that they name are checked against those that they hold: unknown, double and
  out-of-range names raise ProtocolError, and change nothing.
- When a task dies, `Holdings.drop_all` gives back everything it held, once: granted segments with open builders,
  and slices delivered to it and not recycled. Slices it had committed belong to the subpartitions and stay.

One thread only. Not here: which slices a queue holds (the subpartitions know).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from penstock.buffer.data_types import BufferSlice
from penstock.errors import ProtocolError


class SegmentOwner(Protocol):
    """The owner to which a segment goes back without references: a local buffer pool."""

    def recycle(self, segment: int) -> None:
        """Take the segment back."""


class SegmentReferences:
    """Reference counts of all segments of one environment."""

    __slots__ = ("_building", "_counts", "_holdings", "_owners", "_segment_size")

    def __init__(self, count: int, segment_size: int) -> None:
        self._counts = [0] * count
        self._owners: list[SegmentOwner | None] = [None] * count
        self._building = bytearray(count)
        self._segment_size = segment_size
        self._holdings: dict[str, Holdings] = {}

    @property
    def segment_size(self) -> int:
        """Bytes of a segment."""
        return self._segment_size

    @property
    def in_use(self) -> int:
        """The number of segments with references."""
        return sum(owner is not None for owner in self._owners)

    def open(self, segment: int, owner: SegmentOwner) -> None:
        """A builder starts in a fresh segment of `owner`."""
        self._start(segment, owner)
        self._building[segment] = 1

    def receive(self, segment: int, owner: SegmentOwner) -> None:
        """A segment was filled from the network: it has one slice and no builder."""
        self._start(segment, owner)

    def _start(self, segment: int, owner: SegmentOwner) -> None:
        if self._owners[segment] is not None:
            raise ValueError(f"segment {segment} is in use already")
        self._owners[segment] = owner
        self._counts[segment] = 1

    def count(self, segment: int) -> int:
        """References of a segment, its builder's included; 0 when it is free."""
        return self._counts[segment] if 0 <= segment < len(self._counts) else 0

    def add(self, segment: int, references: int = 1) -> None:
        """Further slices of a segment in use."""
        if references < 0:
            raise ValueError(f"{references} references")
        self._known(segment)
        self._counts[segment] += references

    def release(self, segment: int) -> bool:
        """One slice is no longer needed; True when the segment went back to its pool with it."""
        self._known(segment)
        if self._counts[segment] <= self._building[segment]:
            raise ProtocolError(f"segment {segment} was recycled more often than it was shipped")
        return self._release(segment)

    def close_builder(self, segment: int) -> bool:
        """The builder writes no more; True when the segment went back to its pool with it."""
        self._known(segment)
        if not self._building[segment]:
            raise ProtocolError(f"segment {segment} has no open builder")
        self._building[segment] = 0
        return self._release(segment)

    def _known(self, segment: int) -> None:
        if not 0 <= segment < len(self._owners) or self._owners[segment] is None:
            raise ProtocolError(f"segment {segment} is not in use")

    def _release(self, segment: int) -> bool:
        self._counts[segment] -= 1
        if self._counts[segment]:
            return False
        owner, self._owners[segment] = self._owners[segment], None
        assert owner is not None  # noqa: S101  (for the type checker: `_known` was called)
        owner.recycle(segment)
        return True

    def attach(self, task: str) -> Holdings:
        """Books for a task process that attached; its name must be new."""
        if task in self._holdings:
            raise ValueError(f"task {task} is attached already")
        holdings = self._holdings[task] = Holdings(self, task)
        return holdings

    def forget(self, task: str) -> None:
        """A task's books are closed; called by `Holdings.drop_all`."""
        self._holdings.pop(task, None)

    def check(self) -> None:
        """Assert that the books agree with each other: used by tests after every step."""
        delivered: Counter[int] = Counter()
        building: Counter[int] = Counter()
        for holdings in self._holdings.values():
            held = holdings.snapshot()
            delivered.update(held.delivered)
            building.update(held.building)
        for segment, count in enumerate(self._counts):
            known = self._owners[segment] is not None
            if (
                known != (count > 0)
                or count < self._building[segment] + delivered[segment]
                or building[segment] > self._building[segment]
            ):
                raise AssertionError(
                    f"segment {segment}: {count} references, builder {self._building[segment]}, "
                    f"held by tasks {building[segment]} + {delivered[segment]}, owner {self._owners[segment]}"
                )


@dataclass(frozen=True, slots=True)
class Held:
    """The segments of a task: those it builds in, and the number of slices of each that it was given to read."""

    building: frozenset[int] = frozenset()
    delivered: dict[int, int] = field(default_factory=dict)


class Holdings:
    """The segments that one attached task holds. Made by `SegmentReferences.attach`, ended by `drop_all`."""

    __slots__ = ("_building", "_closed", "_delivered", "_references", "task")

    def __init__(self, references: SegmentReferences, task: str) -> None:
        self._references = references
        self.task = task
        # Segment -> end of what was committed: a commit never reaches back.
        self._building: dict[int, int] = {}
        self._delivered: dict[int, int] = {}
        self._closed = False

    def grant(self, segment: int, owner: SegmentOwner) -> None:
        """Give the task a fresh segment of `owner` to build in."""
        self._must_live()
        self._references.open(segment, owner)
        self._building[segment] = 0

    def commit(self, piece: BufferSlice, readers: int) -> None:
        """The task ships a piece of a segment to `readers` queues; a finished piece closes the builder.

        An empty piece gets no references: it must not be queued.
        """
        segment, offset, length, finished, _ = piece
        written = self._building.get(segment)
        if written is None:
            raise ProtocolError(f"task {self.task} ships segment {segment}, which it does not build")
        if offset < written or length < 0 or offset + length > self._references.segment_size:
            raise ProtocolError(
                f"task {self.task} ships bytes {offset}..{offset + length} of segment {segment}: it may ship "
                f"{written}..{self._references.segment_size}"
            )
        self._building[segment] = offset + length
        if length:
            self._references.add(segment, readers)
        if finished:
            self._close(segment)

    def give_back(self, segment: int) -> None:
        """The task returns a granted segment without shipping more of it."""
        if segment not in self._building:
            raise ProtocolError(f"task {self.task} gives back segment {segment}, which it does not build")
        self._close(segment)

    def _close(self, segment: int) -> None:
        del self._building[segment]
        self._references.close_builder(segment)

    def deliver(self, segment: int) -> None:
        """A slice taken from a queue goes to the task, and the slice's reference with it."""
        self._must_live()
        self._references.add(segment, 0)  # refuses a segment that is not in use
        self._delivered[segment] = self._delivered.get(segment, 0) + 1

    def recycle(self, segment: int) -> bool:
        """The task has copied a delivered slice; True when the segment went back to its pool."""
        left = self._delivered.get(segment, 0) - 1
        if left < 0:
            raise ProtocolError(f"task {self.task} recycles segment {segment}, which was not delivered to it")
        if left:
            self._delivered[segment] = left
        else:
            del self._delivered[segment]
        return self._references.release(segment)

    def drop_all(self) -> int:
        """The task is gone: give back all it held and say how many references that were; idempotent."""
        if self._closed:
            return 0
        self._closed = True
        # Pools call listeners, which may come back here: the books are empty before the first segment goes.
        building, self._building = self._building, {}
        delivered, self._delivered = self._delivered, {}
        self._references.forget(self.task)
        for segment in building:
            self._references.close_builder(segment)
        for segment, count in delivered.items():
            for _ in range(count):
                self._references.release(segment)
        return len(building) + sum(delivered.values())

    def snapshot(self) -> Held:
        """The segments that the task holds now."""
        return Held(frozenset(self._building), dict(self._delivered))

    def _must_live(self) -> None:
        if self._closed:
            raise ValueError(f"task {self.task} is detached: nothing can be given to it")
