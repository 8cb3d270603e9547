# SPDX-License-Identifier: Apache-2.0
"""Stored rows as chunks to be sent: their record stream, gathered and cut to one size.

Everything but `place`, `chunks_left` and `is_at_end` waits for a disk and runs in a thread, one call at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from penstock.partition.extent_reader import MAPPED, TOGETHER, ExtentReader
from penstock.partition.extents import StoredPiece, end_of_stretch
from penstock.partition.stored import StoredRows


class ChunkedRows:
    """One reader's way through the pieces that it was told, or through its range."""

    __slots__ = (
        "_at_end", "_chunk", "_is_closed", "_left", "_lock", "_next", "_parts", "_pieces", "_reader", "_size",
        "_stored",
    )  # fmt: skip

    def __init__(self, stored: StoredRows, chunk: int) -> None:
        self._stored = stored
        self._chunk = chunk
        self._reader = ExtentReader(stored.folder, stored.origin)
        self._lock = threading.Lock()  # held while a thread reads
        self._is_closed = False
        self._pieces: Sequence[StoredPiece] | None = stored.pieces or None
        self._next = 0
        self._parts: list[memoryview] = []
        self._size = 0  # of the parts
        self._left = _size_of(stored.pieces) if stored.pieces else chunk  # bytes that were not read yet
        self._at_end = False

    @property
    def place(self) -> tuple[str, int]:
        """The file it is in, and the offset it reads next."""
        pieces = self._pieces
        if not pieces:
            return self._reader.path(0), 0
        extent = pieces[min(self._next, len(pieces) - 1)].extent
        return self._reader.path(extent.file), extent.offset

    @property
    def chunks_left(self) -> int:
        """About how many chunks there are still; at least one before the end."""
        return 0 if self._at_end else max(1, (self._left + self._size) // self._chunk)

    @property
    def is_at_end(self) -> bool:
        """True if the last chunk was given."""
        return self._at_end

    def read(self) -> bytes | None:
        """The next chunk; None where this call has found the place. Raises what is wrong."""
        try:
            with self._lock:
                return self._read()
        finally:
            if self._is_closed or self._at_end:
                self.close()

    def close(self) -> None:
        """Close the files, now or when the read that is under way has ended; idempotent. Any thread."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            self._reader.close()
            self._lock.release()

    def _read(self) -> bytes | None:
        if self._is_closed:
            return None
        if self._pieces is None:
            self._pieces = self._stored.find()
            self._left = _size_of(self._pieces)
            return None
        self._gather(self._pieces)
        chunk = self._cut()
        self._at_end = not self._left and not self._size
        return chunk

    def _gather(self, pieces: Sequence[StoredPiece]) -> None:
        while self._size < self._chunk and self._next < len(pieces):
            room = self._chunk - self._size
            length = pieces[self._next].extent.length
            if self._size and room < length < MAPPED:
                return  # the rest of it would stay in memory of this process until its reader has more credit
            end = end_of_stretch(pieces, self._next, room)
            for view in fetched(self._reader, pieces[self._next : end]):
                self._parts.append(view)
                self._size += len(view)
                self._left -= len(view)
            self._next = end

    def _cut(self) -> bytes:
        """At most a chunk of what was gathered; the rest stays."""
        parts, self._parts = self._parts, []
        over = self._size - self._chunk
        if over > 0:
            last = parts.pop()
            parts.append(last[: len(last) - over])
            self._parts.append(last[len(last) - over :])
        self._size = max(0, over)
        return b"".join(parts)


def _size_of(pieces: Sequence[StoredPiece]) -> int:
    return sum(piece.extent.length - piece.skip for piece in pieces)


def fetched(reader: ExtentReader, pieces: Sequence[StoredPiece]) -> list[memoryview]:
    """The bytes of pieces that lie together, checked."""
    return list(reader.read(pieces, TOGETHER if pieces[0].extent.length >= MAPPED else MAPPED - 1))
