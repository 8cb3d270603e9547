# SPDX-License-Identifier: Apache-2.0
"""The rows that a barrier has overtaken in the environment's queues, as its writer hears of them.

The environment leases the slices to the writer's task in the turn in which the barrier enters the queues, and says of
each subpartition when that was all. The task copies a slice when it hears of it and gives it back at once, so no
segment waits for a storage. Memory: what the partition's queues can hold, once.
"""

from __future__ import annotations

from penstock.shuffle.endpoints import Overtaken


class OvertakenSlices:
    """The copies of one writer, for its newest barrier."""

    def __init__(self, subpartitions: int) -> None:
        self._count = subpartitions
        self._payload: bytes | None = None
        self._slices: list[Overtaken] = []
        self._open: set[int] = set()

    @property
    def is_wanted(self) -> bool:
        """True if the newest barrier's snapshot still needs the slices."""
        return self._payload is not None

    def begin(self, payload: bytes) -> None:
        """A barrier was sent; what an earlier one has overtaken is not wanted any more."""
        self._payload = payload
        self._open = set(range(self._count))
        self._slices = [[] for _ in range(self._count)]

    def add(self, subpartition: int, data: bytes) -> None:
        """A slice: whole messages, or a part of one that spans slices."""
        if self._payload is not None:
            self._slices[subpartition].append(data)

    def end(self, subpartition: int, payload: bytes) -> None:
        """That was all of a subpartition, for the barrier with this payload."""
        if payload == self._payload:
            self._open.discard(subpartition)
        elif self._payload is not None:
            self._slices[subpartition].clear()  # it was for a barrier before this one

    def take(self) -> list[Overtaken] | None:
        """All of it, once it is known."""
        if self._payload is None or self._open:
            return None
        slices = self._slices
        self.drop()
        return slices

    def drop(self) -> None:
        """Drop the copies, and copy no more before the next barrier."""
        self._payload = None
        self._slices = []
        self._open.clear()
