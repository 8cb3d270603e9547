# SPDX-License-Identifier: Apache-2.0
"""Views of a stored partition, in memory and in files alike: one for readers of this host, one for those elsewhere.

A reader on this host gets slices of segments, and for what is only stored an event that says where; it reads that
itself. If the event names extents, the view is blocked after it until the reader resumes it, which it does when it
begins to read: so at most two are on their way, and the file is open before the partition can go. For a reader
elsewhere files are read here, in threads, and sent as data, cut into chunks; what it has credit for is read ahead.
"""

from __future__ import annotations

from typing import Protocol

from penstock.buffer.view import BufferOrEvent, DataListener
from penstock.environment.reading.chunks import ChunkedRows
from penstock.environment.reading.file_reads import FileReads
from penstock.environment.reading.read_ahead import AHEAD, ReadAhead, failure_of
from penstock.errors import PenstockError, ProtocolError
from penstock.link.control import pack
from penstock.link.frames import IN_FILES
from penstock.partition.stored import StoredRows
from penstock.partition.stored_cursor import Next, StoredCursor

TOGETHER = 16
"""Extents that a reader is told at once: so many that it has something to do while the next come."""


class ResultOfViews(Protocol):
    """The partition, as its views see it."""

    def open(self, first: int, count: int, listener: DataListener) -> StoredCursor:
        """A reader of a range; a PartitionError says why there is none to be had."""

    def look(self, cursor: StoredCursor) -> Next:
        """The kind of item that comes next."""

    def backlog(self, cursor: StoredCursor) -> int:
        """About the buffers that are there."""

    def take(self, cursor: StoredCursor) -> BufferOrEvent:
        """The next slice, which is leased, or the next event."""

    def take_stored(self, cursor: StoredCursor, most: int) -> StoredRows:
        """The next stored rows, in up to `most` pieces."""

    def leave(self, cursor: StoredCursor) -> None:
        """A reader is done; idempotent."""

    def lost(self, cause: str) -> PenstockError:
        """A file is gone: what the reader is told."""


class LocalView:
    """One reader on this host."""

    __slots__ = ("_cursor", "_is_blocked", "_result")

    def __init__(self, result: ResultOfViews, first: int, count: int, listener: DataListener) -> None:
        self._result = result
        self._cursor = result.open(first, count, listener)
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
        return self._look() is not Next.NOTHING

    @property
    def next_is_event(self) -> bool:
        """True if the next thing is an event; files cost room, as the task reads them like slices."""
        return self._look() is Next.EVENT

    def poll(self) -> BufferOrEvent | None:
        """The next slice, the next rows in files, or the next event."""
        found = self._look()
        if found is Next.NOTHING:
            return None
        if found is not Next.STORED:
            return self._result.take(self._cursor)
        stored = self._result.take_stored(self._cursor, TOGETHER)
        self._is_blocked = not stored.count
        return BufferOrEvent(IN_FILES, pack(stored.to_message()), self._cursor.first)

    def resume(self) -> None:
        """The reader has begun to read the extents."""
        self._is_blocked = False

    def release(self) -> None:
        """The reader is done; idempotent."""
        self._result.leave(self._cursor)

    def _look(self) -> Next:
        return Next.NOTHING if self._is_blocked else self._result.look(self._cursor)


class ServedView:
    """One reader elsewhere."""

    def __init__(
        self, result: ResultOfViews, first: int, count: int, reads: FileReads, listener: DataListener
    ) -> None:
        self._result = result
        self._chunk = reads.chunk
        self._listener: DataListener | None = listener
        self._ahead = ReadAhead(reads, self, first)
        self._rows: ChunkedRows | None = None
        """Stored rows that are being read."""
        self._error: BaseException | None = None
        self._cursor = result.open(first, count, self._changed)

    @property
    def backlog(self) -> int:
        """Chunks that were read and wait, those that could be read ahead, and buffers that are there."""
        if self._listener is None or self.failure is not None:
            return 0
        in_files = 0 if self._rows is None else min(AHEAD, self._rows.chunks_left)
        return len(self._ahead) + in_files + self._result.backlog(self._cursor)

    @property
    def failure(self) -> BaseException | None:
        """Why nothing more will come."""
        return self._error or self._cursor.failure

    @property
    def next_is_event(self) -> bool:
        """True if the next thing is an event."""
        return not self._ahead and self._rows is None and self._result.look(self._cursor) is Next.EVENT

    @property
    def is_available(self) -> bool:
        """True if there is something to poll or a failure to pass on.

        Asking begins a read where what comes next has left memory since the listener was called: nothing else does.
        """
        if self._listener is None:
            return False
        if self._ahead or self.failure is not None:
            return True
        self._read_on()
        return self._rows is None and self._result.look(self._cursor) in (Next.EVENT, Next.MEMORY)

    def poll(self) -> BufferOrEvent | None:
        """The next chunk, slice or event."""
        item = None
        if self._listener is None or self.failure is not None:
            return None
        if self._ahead:
            item = self._ahead.pop()
        elif self._rows is None and self._result.look(self._cursor) in (Next.EVENT, Next.MEMORY):
            item = self._result.take(self._cursor)
            if item.is_buffer:
                self._ahead.spend()
        self._read_on()
        return item

    def resume(self) -> None:
        """Raise ProtocolError: nothing blocks it."""
        raise ProtocolError("rows that are stored are read here, and block no reader elsewhere")

    def on_credit(self, buffers: int) -> None:
        """The reader can take more: read on."""
        self._ahead.grant(buffers)
        self._read_on()

    def release(self) -> None:
        """The reader is done; idempotent. Chunks that were read for it are dropped."""
        if self._listener is not None:
            self._listener = None
            self._ahead.close()
            self._drop()
            self._result.leave(self._cursor)

    @property
    def place(self) -> tuple[str, int]:
        """The file it is in, and the offset it reads next."""
        return ("", 0) if self._rows is None else self._rows.place

    def read(self) -> bytes | None:
        """The next chunk, in a thread; None once, when the place of the first is found."""
        rows = self._rows
        return None if rows is None else rows.read()

    def take(self, chunk: bytes | None, error: BaseException | None) -> None:
        """A chunk was read, or could not be."""
        self._ahead.take(chunk, is_wanted=self._rows is not None)
        if self._rows is None or self._listener is None:
            return
        if error is not None:
            self._error = failure_of(error, self._result.lost)
        elif self._rows.is_at_end:
            self._rows = None
        self._changed()

    def _read_on(self) -> None:
        if self.failure is not None or not self._ahead.may_read:
            return
        if self._rows is None and self._result.look(self._cursor) is Next.STORED:
            self._rows = ChunkedRows(self._result.take_stored(self._cursor, TOGETHER), self._chunk)
        if self._rows is not None:
            self._ahead.read()

    def _drop(self) -> None:
        """Give up what is read from files, and what was."""
        if self._rows is not None:
            self._rows.close()
        self._rows = None
        self._ahead.drop()

    def _changed(self) -> None:
        if self._listener is not None:
            if self.failure is not None:
                self._drop()
            self._read_on()
            self._listener()
