# SPDX-License-Identifier: Apache-2.0
"""The segments that one writer was granted and has not filled, and those that it has leased to copy them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.buffer import BufferSlice, DataType, Holdings
from penstock.buffer.local_pool import LocalBufferPool
from penstock.buffer.slices import SegmentReferences
from penstock.environment.task_frames import TaskFrames


class Grants:
    """The books of one writer, and the words to its task. `pool` is None for one that gets no segments."""

    def __init__(self, port: int, to_task: TaskFrames, holdings: Holdings, references: SegmentReferences) -> None:
        self.to_task = to_task
        self.port = port
        self.pool: LocalBufferPool | None = None
        self._holdings = holdings
        self._references = references
        self._granted: set[int] = set()

    def __len__(self) -> int:
        """Segments that are out at the writer."""
        return len(self._granted)

    @property
    def written(self) -> int:
        """Segments that are written and not free again."""
        return 0 if self.pool is None else self.pool.requested - len(self._granted)

    def grant(self, segment: int) -> None:
        """Give the writer a segment of the pool."""
        assert self.pool is not None  # noqa: S101 - a supply sets it before it grants
        self._holdings.grant(segment, self.pool)
        self._granted.add(segment)
        self.to_task.grant(self.port, segment)

    def commit(self, piece: BufferSlice, references: int) -> None:
        """The writer ships a piece; raises ProtocolError for one it may not ship."""
        if piece.finished:
            self._granted.discard(piece.segment)  # before it may come back, and be granted again
        self._holdings.commit(piece, references)

    def release(self, segment: int, references: int) -> None:
        """A piece that was shipped has no place."""
        for _ in range(references):
            self._references.release(segment)

    def lease(self, target: int, pieces: Sequence[BufferSlice], payload: bytes) -> None:
        """Let the task read these again, which an event has overtaken; that comes last."""
        for piece in pieces:
            self._references.add(piece.segment)
            self._holdings.deliver(piece.segment)
            self.to_task.deliver((self.port, target, piece.segment, piece.offset, piece.length))
        self.to_task.event(self.port, DataType.OVERTAKING_BARRIER, target, payload)

    def take_back(self, segments: Sequence[int]) -> None:
        """Take back what was leased; raises ProtocolError for what was not."""
        for segment in segments:
            self._holdings.recycle(segment)

    def close(self) -> None:
        """Give back what the writer has not filled; idempotent."""
        granted, self._granted = self._granted, set()
        for segment in granted:
            self._holdings.give_back(segment)
