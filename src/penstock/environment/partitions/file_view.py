# SPDX-License-Identifier: Apache-2.0
"""Views of a finished partition's files: one for a reader on this host, one that sends their data elsewhere.

A reader on this host is given one event that names the files; it opens them itself. A reader elsewhere gets the
range's batches as messages of the record stream, cut into chunks, then the two closing events, so its gate checks
them like any other data.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from penstock.buffer import DataType
from penstock.buffer.view import BufferOrEvent, DataListener
from penstock.environment.reading.chunks import ChunkedRange
from penstock.environment.reading.file_reads import FileReads
from penstock.environment.reading.read_ahead import AHEAD, ReadAhead, failure_of
from penstock.errors import PenstockError
from penstock.link.control import pack
from penstock.link.frames import FILE
from penstock.partition.stored import StoredRows
from penstock.shuffle import EndOfData, EndOfPartition
from penstock.shuffle.events import encode_event


class FilesOfViews(Protocol):
    """The partition, as its views see it."""

    def leave(self, view: FileView) -> None:
        """A view is closed."""

    def lost(self, cause: str) -> PenstockError:
        """A file is gone: what the reader is told."""


class FileView:
    """One reader of `count` subpartitions from `first` on. `was_read` says whether it has everything."""

    def __init__(self, partition: FilesOfViews, first: int, count: int, listener: DataListener) -> None:
        self.first = first
        self.count = count
        self.was_read = False
        self.failure: BaseException | None = None
        self._partition = partition
        self._listener: DataListener | None = listener

    def start(self, stored: StoredRows, end: EndOfPartition) -> None:
        """The files are finished; `end` is what their writer counted for the range."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """The files will never be finished, or cannot be read."""
        self.failure = error
        self.notify()

    def release(self) -> None:
        """The reader is done; idempotent."""
        if self._listener is not None:
            self._listener = None
            self._partition.leave(self)

    @property
    def is_released(self) -> bool:
        """True once `release` was called."""
        return self._listener is None

    def notify(self) -> None:
        """There may be something."""
        if self._listener is not None:
            self._listener()


class LocalFileView(FileView):
    """One reader on this host: told the files once, it opens them itself."""

    def __init__(self, partition: FilesOfViews, first: int, count: int, listener: DataListener) -> None:
        super().__init__(partition, first, count, listener)
        self._due: bytes | None = None

    @property
    def is_available(self) -> bool:
        """True if there is something to poll or a failure to pass on."""
        return not self.is_released and (self._due is not None or self.failure is not None)

    @property
    def next_is_event(self) -> bool:
        """True if the files' names are to be told."""
        return not self.is_released and self._due is not None

    def start(self, stored: StoredRows, end: EndOfPartition) -> None:
        """The files are finished: tell their names."""
        self._due = pack({**stored.to_message(), "end": (end.rows, end.bytes, end.checksum)})
        self.notify()

    def poll(self) -> BufferOrEvent | None:
        """The files' names, once."""
        due, self._due = self._due, None
        if due is None:
            return None
        self.was_read = True
        return BufferOrEvent(FILE, due, self.first)


class ServedFileView(FileView):
    """One remote reader of a range."""

    def __init__(
        self, partition: FilesOfViews, first: int, count: int, reads: FileReads, listener: DataListener
    ) -> None:
        super().__init__(partition, first, count, listener)
        self._chunk = reads.chunk
        self._ahead = ReadAhead(reads, self, first)
        self._source: ChunkedRange | None = None
        self._end = EndOfPartition(0, 0, 0)
        self._events: deque[BufferOrEvent] = deque()

    def start(self, stored: StoredRows, end: EndOfPartition) -> None:
        """The files are finished: read as far as the credit goes."""
        self._end = end
        if end.bytes == 0:
            self._close_with_events()
        else:
            self._source = ChunkedRange(stored, self._chunk)
            self._read_on()
        self.notify()

    def fail(self, error: BaseException) -> None:
        """The files will never be finished, or cannot be read."""
        self._drop()
        super().fail(error)

    @property
    def backlog(self) -> int:
        """Chunks that were read and wait, and those still in the files, as far as they could be read ahead."""
        in_files = 0 if self._source is None else min(AHEAD, self._source.chunks_left)
        return len(self._ahead) + in_files

    @property
    def next_is_event(self) -> bool:
        """True if the next thing is an event."""
        return not self._ahead and bool(self._events)

    @property
    def is_available(self) -> bool:
        """True if there is something to poll or a failure to pass on."""
        return not self.is_released and (bool(self._ahead or self._events) or self.failure is not None)

    def poll(self) -> BufferOrEvent | None:
        """The next chunk or event."""
        if self.is_released:
            return None
        if self._ahead:
            chunk = self._ahead.pop()
            self._read_on()
            return chunk
        return self._events.popleft() if self._events else None

    def on_credit(self, buffers: int) -> None:
        """The reader can take more: read on."""
        self._ahead.grant(buffers)
        self._read_on()

    def release(self) -> None:
        """The reader is done; idempotent. Chunks that were read for it are dropped."""
        self._ahead.close()
        self._drop()
        super().release()

    @property
    def place(self) -> tuple[str, int]:
        """The file it is in, and the offset it reads next."""
        return ("", 0) if self._source is None else self._source.place

    def read(self) -> bytes | None:
        """The next chunk, in a thread; None once, when the place of the first is found."""
        source = self._source
        return None if source is None else source.read()

    def take(self, chunk: bytes | None, error: BaseException | None) -> None:
        """A chunk was read, or could not be."""
        source = self._source
        self._ahead.take(chunk, is_wanted=source is not None)
        if source is None:
            return
        if error is not None:
            self.fail(failure_of(error, self._partition.lost))
            return
        if source.is_at_end:
            self._close_with_events()
        self._read_on()
        self.notify()

    def _read_on(self) -> None:
        if self._source is not None and self._ahead.may_read:
            self._ahead.read()

    def _drop(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = None
        self._events.clear()
        self._ahead.drop()

    def _close_with_events(self) -> None:
        self._source = None
        self.was_read = True
        for event in (EndOfData(), self._end):
            self._events.append(BufferOrEvent(DataType.EVENT, encode_event(event), self.first))
