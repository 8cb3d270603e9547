# SPDX-License-Identifier: Apache-2.0
"""Views of a hybrid partition that is still (partly) in memory: one for a reader on this host, one for one elsewhere.

A reader on this host gets slices of segments, and for what is only stored an event that names extents; it reads them
itself. After such an event the view is blocked until the reader resumes it, which it does when it begins to read: so
at most two are on their way, and the file is open before the partition can go. For a reader elsewhere the extents
are read here, in threads, and sent as data, cut into chunks; what it has credit for is read ahead.
"""

from __future__ import annotations

from typing import Protocol

from penstock.buffer import DataType
from penstock.buffer.view import BufferOrEvent, DataListener
from penstock.environment.reading.chunks import fetched
from penstock.environment.reading.file_reads import FileReads
from penstock.environment.reading.read_ahead import ReadAhead, failure_of
from penstock.errors import PenstockError
from penstock.link.control import pack
from penstock.link.frames import EXTENTS
from penstock.partition.extent_reader import ExtentReader
from penstock.partition.extents import StoredPiece, data_name
from penstock.partition.file_input import FileOrigin
from penstock.partition.hybrid_cursor import HybridCursor, Next
from penstock.partition.hybrid_partition import HybridPartition
from penstock.partition.stored import StoredRows

TOGETHER = 16
"""Extents in one event: so many that the reader has something to do while the next event comes."""


class HybridOfViews(Protocol):
    """The partition, as its views see it."""

    @property
    def core(self) -> HybridPartition:
        """The partition's core: it knows the items in memory, and the places of the others."""

    @property
    def folder(self) -> str:
        """The folder of the files in which stored items are found."""

    @property
    def origin(self) -> FileOrigin:
        """The origin that its files should have, and their host."""

    def left(self, cursor: HybridCursor) -> None:
        """A reader is done."""

    def lost(self, cause: str) -> PenstockError:
        """A file is gone: what the reader is told."""


class LocalHybridView:
    """One reader on this host."""

    def __init__(self, result: HybridOfViews, first: int, count: int, listener: DataListener) -> None:
        self._result = result
        self._cursor = result.core.open(first, count, listener)
        self._is_blocked = False

    @property
    def failure(self) -> BaseException | None:
        """Why nothing more will come."""
        return self._cursor.failure

    @property
    def is_available(self) -> bool:
        """True if there is something to poll or a failure to pass on."""
        if self._cursor.failure is not None:
            return not self._cursor.is_released
        return not self._is_blocked and self._cursor.look() is not Next.NOTHING

    @property
    def next_is_event(self) -> bool:
        """True if the next thing is an event; extents cost room, as the task reads them like slices."""
        return not self._is_blocked and self._cursor.look() is Next.EVENT

    def poll(self) -> BufferOrEvent | None:
        """The next slice, the next extents, or the next event."""
        found = Next.NOTHING if self._is_blocked else self._cursor.look()
        if found is Next.MEMORY:
            return self._cursor.take()
        if found is Next.EVENT:
            return BufferOrEvent(DataType.EVENT, self._cursor.take_event(), self._cursor.first)
        if found is Next.STORED:
            self._is_blocked = True
            pieces = tuple(self._cursor.take_stored(TOGETHER))
            stored = StoredRows(self._result.folder, self._result.origin, pieces)
            return BufferOrEvent(EXTENTS, pack(stored.to_message()), self._cursor.first)
        return None

    def resume(self) -> None:
        """The reader has begun to read the extents."""
        self._is_blocked = False

    def release(self) -> None:
        """The reader is done; idempotent."""
        self._result.left(self._cursor)


class ServedHybridView:
    """One remote reader of a range."""

    def __init__(
        self, result: HybridOfViews, first: int, count: int, reads: FileReads, listener: DataListener
    ) -> None:
        self._result = result
        self._chunk = reads.chunk
        self._listener: DataListener | None = listener
        self._ahead = ReadAhead(reads, self, first)
        self._cursor = result.core.open(first, count, self._changed)
        self._piece: StoredPiece | None = None
        self._view: memoryview | None = None  # the piece's bytes, over the file
        self._done = 0  # bytes of it that were read
        self._error: BaseException | None = None

    @property
    def backlog(self) -> int:
        """Chunks that were read and wait, and buffers that are there."""
        if self._listener is None or self.failure is not None:
            return 0
        return len(self._ahead) + self._chunks_left + self._cursor.backlog

    @property
    def failure(self) -> BaseException | None:
        """Why nothing more will come."""
        return self._error or self._cursor.failure

    @property
    def next_is_event(self) -> bool:
        """True if the next thing is an event."""
        return not self._ahead and self._piece is None and self._cursor.look() is Next.EVENT

    @property
    def is_available(self) -> bool:
        """True if there is something to poll or a failure to pass on.

        Asking begins a read where what comes next has left memory since the listener was called: nobody else would.
        """
        if self._listener is None:
            return False
        if self._ahead or self.failure is not None:
            return True
        self._read_on()
        return self._piece is None and self._cursor.look() in (Next.EVENT, Next.MEMORY)

    def poll(self) -> BufferOrEvent | None:
        """The next chunk, slice or event."""
        item = None
        if self._listener is None:
            return None
        if self._ahead:
            item = self._ahead.pop()
        elif self._piece is None:
            found = self._cursor.look()
            if found is Next.EVENT:
                return BufferOrEvent(DataType.EVENT, self._cursor.take_event(), self._cursor.first)
            if found is Next.MEMORY:
                item = self._cursor.take()
                self._ahead.spend()
        self._read_on()
        return item

    def on_credit(self, buffers: int) -> None:
        """The reader can take more: read on."""
        self._ahead.grant(buffers)
        self._read_on()

    def release(self) -> None:
        """The reader is done; idempotent. Chunks that were read for it are dropped."""
        if self._listener is None:
            return
        self._listener = None
        self._ahead.close()
        self._result.left(self._cursor)

    @property
    def place(self) -> tuple[str, int]:
        """The file it is in, and the offset it reads next."""
        if self._piece is None:
            return "", 0
        extent = self._piece.extent
        return f"{self._result.folder}/{data_name(extent.file)}", extent.offset + self._piece.skip + self._done

    def read(self) -> bytes | None:
        """The next chunk of the extent, in a thread. With the first the extent is checked."""
        piece, view = self._piece, self._view
        if piece is None:
            return None
        if view is None:
            with ExtentReader(self._result.folder, self._result.origin) as reader:
                (view,) = fetched(reader, [piece])
            self._view = view
        return bytes(view[self._done : self._done + self._chunk])

    def take(self, chunk: bytes | None, error: BaseException | None) -> None:
        """A chunk was read, or could not be."""
        self._done += 0 if chunk is None else len(chunk)
        if error is not None or not self._chunks_left:
            self._piece = self._view = None
        self._ahead.take(chunk, is_wanted=self.failure is None)
        if self._listener is None or self.failure is not None:
            return
        if error is not None:
            self._error = failure_of(error, self._result.lost)
            self._ahead.drop()
        self._read_on()
        self._listener()

    @property
    def _chunks_left(self) -> int:
        """Chunks of the piece that are still to be read."""
        if self._piece is None:
            return 0
        return -(-(self._piece.extent.length - self._piece.skip - self._done) // self._chunk)

    def _read_on(self) -> None:
        if self.failure is not None or not self._ahead.may_read:
            return
        if self._piece is None and self._cursor.look() is Next.STORED:
            (self._piece,) = self._cursor.take_stored(1)
            self._done = 0
        if self._piece is not None:
            self._ahead.read()

    def _changed(self) -> None:
        if self._listener is not None:
            if self.failure is not None:
                self._ahead.drop()
            self._read_on()
            self._listener()
