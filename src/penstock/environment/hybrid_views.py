# SPDX-License-Identifier: Apache-2.0
"""Views of a hybrid partition that is still (partly) in memory: one for a reader on this host, one for one elsewhere.

A reader on this host gets slices of segments, and for what is only stored an event that names extents; it reads them
itself. After such an event the view is blocked until the reader resumes it, which it does when it begins to read: so
at most two are on their way, and the file is open before the partition can go. For a reader elsewhere the extents
are read here, in threads, and sent as data, cut into chunks; what it has credit for is read ahead.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from penstock.buffer import DataType
from penstock.environment.chunks import fetch
from penstock.environment.file_view import AHEAD
from penstock.environment.reading import FileReads
from penstock.network.attachment import EXTENTS
from penstock.partition.extent_reader import MAPPED
from penstock.partition.hybrid_cursor import Next
from penstock.partition.hybrid_items import StoredPiece
from penstock.partition.view import BufferOrEvent, DataListener
from penstock.shuffle.control import pack
from penstock.shuffle.errors import PartitionLostError, PenstockError

if TYPE_CHECKING:
    from penstock.environment.hybrid import HybridResult

TOGETHER = 16
"""Extents in one event: so many that the reader has something to do while the next event comes."""


class LocalHybridView:
    """One reader on this host."""

    def __init__(self, result: HybridResult, first: int, count: int, listener: DataListener) -> None:
        self._result = result
        self._cursor = result.core.open(first, count, listener)
        self._is_blocked = False

    @property
    def backlog(self) -> int:
        """Buffers that are there."""
        return self._cursor.backlog

    @property
    def failure(self) -> BaseException | None:
        """Why nothing more will come."""
        return self._cursor.failure

    @property
    def next_is_event(self) -> bool:
        """Whether the next thing is an event: the names of extents are one."""
        return not self._is_blocked and self._cursor.look() in (Next.EVENT, Next.STORED)

    @property
    def is_available(self) -> bool:
        """Whether there is something to poll or a failure to pass on."""
        if self._cursor.failure is not None:
            return not self._cursor.is_released
        return not self._is_blocked and self._cursor.look() is not Next.NOTHING

    def poll(self) -> BufferOrEvent | None:
        """The next slice, the next extents, or the next event."""
        found = Next.NOTHING if self._is_blocked else self._cursor.look()
        if found is Next.MEMORY:
            return self._cursor.take()
        if found is Next.EVENT:
            return BufferOrEvent(DataType.EVENT, self._cursor.take_event(), self._cursor.first)
        if found is Next.STORED:
            self._is_blocked = True
            pieces = self._cursor.take_stored(TOGETHER)
            message = {
                "tiers": self._result.addresses,
                "extents": [(*extent, skip) for extent, skip in pieces],
                "origin": self._result.origin.to_wire(),
            }
            return BufferOrEvent(EXTENTS, pack(message), self._cursor.first)
        return None

    def on_credit(self, buffers: int) -> None:
        """Ignore: what a reader on this host takes costs none."""

    def resume(self) -> None:
        """The reader has begun to read the extents."""
        self._is_blocked = False

    def on_task_event(self, payload: bytes) -> None:
        """An event for the producer."""
        self._cursor.on_task_event(payload)

    def new_buffer_size(self, size: int) -> None:
        """Ignore: the producer fills its buffers."""

    def acknowledge(self, last_seq: int) -> None:
        """Ignore: what is kept is kept, and what is not has gone when it was read."""

    def release(self) -> None:
        """The reader is done; idempotent."""
        self._result.left(self._cursor)


class ServedHybridView:
    """One remote reader of a range."""

    def __init__(
        self, result: HybridResult, first: int, count: int, reads: FileReads, listener: DataListener
    ) -> None:
        self._result = result
        self._reads = reads
        self._listener: DataListener | None = listener
        self._cursor = result.core.open(first, count, self._changed)
        self._piece: StoredPiece | None = None
        self._view: memoryview | None = None  # the piece's bytes, over the file
        self._done = 0  # bytes of it that were read
        self._error: BaseException | None = None
        self._ready: deque[BufferOrEvent] = deque()
        self._credit = 0
        self._is_reading = False

    @property
    def backlog(self) -> int:
        """Chunks that were read and wait, and buffers that are there."""
        if self._listener is None or self.failure is not None:
            return 0
        return len(self._ready) + self._chunks_left + self._cursor.backlog

    @property
    def failure(self) -> BaseException | None:
        """Why nothing more will come."""
        return self._error or self._cursor.failure

    @property
    def next_is_event(self) -> bool:
        """Whether the next thing is an event."""
        return not self._ready and self._piece is None and self._cursor.look() is Next.EVENT

    @property
    def is_available(self) -> bool:
        """Whether there is something to poll or a failure to pass on.

        Asking begins a read where what comes next has left memory since the listener was called: nobody else would.
        """
        if self._listener is None:
            return False
        if self._ready or self.failure is not None:
            return True
        self._read_on()
        return self._piece is None and self._cursor.look() in (Next.EVENT, Next.MEMORY)

    def poll(self) -> BufferOrEvent | None:
        """The next chunk, slice or event."""
        item = None
        if self._listener is None:
            return None
        if self._ready:
            item = self._ready.popleft()
        elif self._piece is None:
            found = self._cursor.look()
            if found is Next.EVENT:
                return BufferOrEvent(DataType.EVENT, self._cursor.take_event(), self._cursor.first)
            if found is Next.MEMORY:
                item = self._cursor.take()
        if item is not None:
            self._credit -= 1
        self._read_on()
        return item

    def on_credit(self, buffers: int) -> None:
        """The reader can take more: read on."""
        self._credit += buffers
        self._read_on()

    def resume(self) -> None:
        """Do nothing: nothing blocks it."""

    def on_task_event(self, payload: bytes) -> None:
        """An event for the producer."""
        self._cursor.on_task_event(payload)

    def new_buffer_size(self, size: int) -> None:
        """Ignore: the producer fills its buffers."""

    def acknowledge(self, last_seq: int) -> None:
        """Ignore: what is kept is kept, and what is not has gone when it was read."""

    def release(self) -> None:
        """The reader is done; idempotent. What was read for it is dropped."""
        if self._listener is None:
            return
        self._listener = None
        self._reads.withdraw(self)
        self._drop()
        self._result.left(self._cursor)

    @property
    def place(self) -> tuple[str, int]:
        """The file it is in, and the offset it reads next."""
        if self._piece is None:
            return "", 0
        extent = self._piece.extent
        return self._result.addresses[extent.tier], extent.offset + self._piece.skip + self._done

    def read(self) -> bytes | None:
        """The next chunk of the extent, in a thread. With the first the extent is checked."""
        piece, view = self._piece, self._view
        if piece is None:
            return None
        if view is None:
            with self._result.reader() as reader:
                extent = piece.extent
                if extent.length >= MAPPED:
                    fetch(reader.paths[extent.tier], extent.offset, extent.length)
                (view,) = reader.read([piece])
            self._view = view
        return bytes(view[self._done : self._done + self._reads.chunk])

    def take(self, chunk: bytes | None, error: BaseException | None) -> None:
        """A chunk was read, or could not be."""
        self._is_reading = False
        self._done += 0 if chunk is None else len(chunk)
        if error is not None or not self._chunks_left:
            self._piece = self._view = None
        if self._listener is None or self.failure is not None:
            if chunk is not None:
                self._reads.give_back()
            return
        if error is not None:
            self._failed(error)
        elif chunk is not None:
            self._ready.append(BufferOrEvent(DataType.DATA, chunk, self._cursor.first, self._reads.give_back))
        self._read_on()
        self._listener()

    @property
    def _chunks_left(self) -> int:
        """Chunks of the piece that are still to be read."""
        if self._piece is None:
            return 0
        return -(-(self._piece.extent.length - self._piece.skip - self._done) // self._reads.chunk)

    def _read_on(self) -> None:
        if self._is_reading or self._listener is None or self.failure is not None:
            return
        if len(self._ready) >= min(AHEAD, self._credit):
            return
        if self._piece is None and self._cursor.look() is Next.STORED:
            (self._piece,) = self._cursor.take_stored(1)
            self._done = 0
        if self._piece is not None:
            self._is_reading = True
            self._reads.want(self)

    def _changed(self) -> None:
        if self._listener is not None:
            if self.failure is not None:
                self._drop()
            self._read_on()
            self._listener()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, PartitionLostError):
            self._error = self._result.lost(str(error))
        elif isinstance(error, PenstockError | OSError):
            self._error = error
        else:
            self._error = PenstockError(f"{type(error).__name__} while a file was read: {error}")
        self._drop()

    def _drop(self) -> None:
        ready, self._ready = self._ready, deque()
        for item in ready:
            if item.recycle is not None:
                item.recycle()
