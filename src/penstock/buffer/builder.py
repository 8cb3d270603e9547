# SPDX-License-Identifier: Apache-2.0
"""The buffer builder: a task writes into a granted segment in place and ships what it has, piece by piece.

Rules:

- One writer. `commit` ships the part since the last commit, and writing goes on after it in the same segment;
  `finish` ships the rest and says that nothing follows.
- After a commit, writing goes on at the next multiple of 8, so that a message that starts a piece is aligned as Arrow
  wants it. The gap of at most 7 bytes belongs to no piece.

Used by the task only; the environment sees the `BufferSlice`s and checks them.
"""

from __future__ import annotations

from penstock.buffer.data_types import BufferSlice

ALIGNMENT = 8


class BufferBuilder:
    """Fills one segment."""

    __slots__ = ("_committed", "_finished", "_size", "_view", "_written", "segment")

    def __init__(self, segment: int, view: memoryview) -> None:
        self.segment = segment
        self._view = view if view.format == "B" else view.cast("B")
        self._size = len(self._view)
        self._written = 0
        self._committed = 0
        self._finished = False

    @property
    def size(self) -> int:
        """Bytes that the builder fills its segment to."""
        return self._size

    @property
    def written(self) -> int:
        """The place of the next byte."""
        return self._written

    @property
    def remaining(self) -> int:
        """Bytes that still fit."""
        return 0 if self._finished else self._size - self._written

    @property
    def is_full(self) -> bool:
        """True if nothing more fits."""
        return self.remaining == 0

    @property
    def is_finished(self) -> bool:
        """True once `finish` was called."""
        return self._finished

    def append(self, data: memoryview) -> int:
        """Copy as much of `data` as fits; the number of bytes taken."""
        if self._finished:
            raise ValueError(f"the builder of segment {self.segment} is finished")
        if data.format != "B":
            data = data.cast("B")
        taken = min(len(data), self._size - self._written)
        end = self._written + taken
        self._view[self._written : end] = data if taken == len(data) else data[:taken]
        self._written = end
        return taken

    def commit(self) -> BufferSlice | None:
        """Ship the part since the last commit, or None where there is none. Writing goes on."""
        if self._finished or self._written == self._committed:
            return None
        piece = BufferSlice(self.segment, self._committed, self._written - self._committed)
        aligned = -(-self._written // ALIGNMENT) * ALIGNMENT
        self._written = self._committed = min(aligned, self._size)
        return piece

    def finish(self) -> BufferSlice | None:
        """Ship the rest, perhaps nothing, and close; None when it was finished before."""
        if self._finished:
            return None
        self._finished = True
        return BufferSlice(self.segment, self._committed, self._written - self._committed, finished=True)
