# SPDX-License-Identifier: Apache-2.0
"""Views of a finished partition's files: one for a reader on this host, one that sends their data elsewhere.

A reader on this host is given one event that names the files; it opens them itself. What a reader elsewhere gets is
the range's batches as messages of the record stream, cut into chunks, then the two closing events, so its gate
checks them like any other data. A view has one read under way at a time, and no more chunks than its reader has
credit for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from penstock.buffer import DataType
from penstock.environment.chunks import ChunkedRange
from penstock.environment.reading import FileReads
from penstock.network.attachment import FILE
from penstock.partition.stored import StreamedRange
from penstock.partition.view import BufferOrEvent, DataListener
from penstock.shuffle import EndOfData, EndOfPartition
from penstock.shuffle.control import pack
from penstock.shuffle.errors import PartitionLostError, PenstockError
from penstock.shuffle.events import encode_event

AHEAD = 4
"""Chunks a view reads ahead of its connection, where its reader has the credit for them."""

_MASK = (1 << 64) - 1


def sum_of(ends: Iterable[EndOfPartition]) -> EndOfPartition:
    """What several subpartitions read as one hold."""
    rows = size = checksum = 0
    for end in ends:
        rows, size, checksum = rows + end.rows, size + end.bytes, (checksum + end.checksum) & _MASK
    return EndOfPartition(rows, size, checksum)


class FilesOfViews(Protocol):
    """The partition, as its views see it."""

    def leave(self, view: LocalFileView | ServedFileView) -> None:
        """A view is closed."""

    def lost(self, cause: str) -> PenstockError:
        """A file is gone: what the reader is told."""


class LocalFileView:
    """One reader on this host: told the files once, it opens them itself."""

    def __init__(self, partition: FilesOfViews, first: int, count: int, listener: DataListener) -> None:
        self.first = first
        self.count = count
        self.was_read = False
        self.failure: BaseException | None = None
        self.backlog = 0
        self._partition = partition
        self._listener: DataListener | None = listener
        self._due: bytes | None = None

    @property
    def is_available(self) -> bool:
        """Whether there is something to poll or a failure to pass on."""
        return self._listener is not None and (self._due is not None or self.failure is not None)

    @property
    def next_is_event(self) -> bool:
        """The files' names are an event."""
        return self._due is not None

    def start(self, stored: StreamedRange, end: EndOfPartition) -> None:
        """The files are finished."""
        self._due = pack({**stored.to_message(), "end": (end.rows, end.bytes, end.checksum)})
        if self._listener is not None:
            self._listener()

    def fail(self, error: BaseException) -> None:
        """The files will never be finished."""
        self.failure = error
        if self._listener is not None:
            self._listener()

    def poll(self) -> BufferOrEvent | None:
        """The files' names, once."""
        due, self._due = self._due, None
        if due is None:
            return None
        self.was_read = True
        return BufferOrEvent(FILE, due, self.first)

    def on_credit(self, buffers: int) -> None:
        """Ignore: names are an event, which costs none."""

    def resume(self) -> None:
        """Do nothing: a file never blocks."""

    def on_task_event(self, payload: bytes) -> None:
        """Ignore: the producer has ended."""

    def new_buffer_size(self, size: int) -> None:
        """Ignore: a file has no buffers."""

    def acknowledge(self, last_seq: int) -> None:
        """Ignore: a file is read as often as anybody likes."""

    def release(self) -> None:
        """The reader is done; idempotent."""
        if self._listener is not None:
            self._listener = None
            self._partition.leave(self)


class ServedFileView:
    """One remote reader of a range."""

    def __init__(
        self, partition: FilesOfViews, first: int, count: int, reads: FileReads, listener: DataListener
    ) -> None:
        self.first = first
        self.count = count
        self.was_read = False
        self.failure: BaseException | None = None
        self._partition = partition
        self._reads = reads
        self._listener: DataListener | None = listener
        self._source: ChunkedRange | None = None
        self._end = EndOfPartition(0, 0, 0)
        self._ready: deque[BufferOrEvent] = deque()
        self._chunks = 0
        self._credit = 0
        self._is_reading = False

    def start(self, stored: StreamedRange, end: EndOfPartition) -> None:
        """The files are finished: read as far as the credit goes."""
        self._end = end
        if end.bytes == 0:
            self._close_with_events()
        else:
            self._source = ChunkedRange(stored, self._reads.chunk)
            self._read_on()
        self._notify()

    def fail(self, error: BaseException) -> None:
        """The files will never be finished, or cannot be read."""
        self.failure = error
        self._source = None
        self._drop()
        self._notify()

    @property
    def backlog(self) -> int:
        """Chunks that were read and wait, and those still in the files, as far as they could be read ahead."""
        in_files = 0 if self._source is None else min(AHEAD, self._source.chunks_left)
        return self._chunks + in_files

    @property
    def next_is_event(self) -> bool:
        """Whether the next thing is an event."""
        return bool(self._ready) and not self._ready[0].is_buffer

    @property
    def is_available(self) -> bool:
        """Whether there is something to poll or a failure to pass on."""
        return self._listener is not None and (bool(self._ready) or self.failure is not None)

    def poll(self) -> BufferOrEvent | None:
        """The next chunk or event."""
        if not self._ready or self._listener is None:
            return None
        item = self._ready.popleft()
        if item.is_buffer:
            self._chunks -= 1
            self._credit -= 1
            self._read_on()
        return item

    def on_credit(self, buffers: int) -> None:
        """The reader can take more: read on."""
        self._credit += buffers
        self._read_on()

    def resume(self) -> None:
        """Do nothing: a file never blocks."""

    def on_task_event(self, payload: bytes) -> None:
        """Ignore: the producer has ended."""

    def new_buffer_size(self, size: int) -> None:
        """Ignore: chunks have one size."""

    def acknowledge(self, last_seq: int) -> None:
        """Ignore: a file is read as often as anybody likes."""

    def release(self) -> None:
        """The reader is done; idempotent. What was read for it is dropped."""
        if self._listener is None:
            return
        self._listener = None
        self._reads.withdraw(self)
        self._source = None
        self._drop()
        self._partition.leave(self)

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
        self._is_reading = False
        if self._listener is None or self._source is None:
            if chunk is not None:
                self._reads.give_back()
        elif error is not None:
            self._failed(error)
        else:
            if chunk is not None:
                self._chunks += 1
                self._ready.append(BufferOrEvent(DataType.DATA, chunk, self.first, self._reads.give_back))
            if self._source.is_at_end:
                self._close_with_events()
            self._read_on()
            self._notify()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, PartitionLostError):
            self.fail(self._partition.lost(str(error)))
        elif isinstance(error, PenstockError | OSError):
            self.fail(error)
        else:
            self.fail(PenstockError(f"{type(error).__name__} while a file was read: {error}"))

    def _drop(self) -> None:
        ready, self._ready = self._ready, deque()
        self._chunks = 0
        for item in ready:
            if item.recycle is not None:
                item.recycle()

    def _read_on(self) -> None:
        if self._source is None or self._is_reading or self._listener is None:
            return
        if self._chunks < min(AHEAD, self._credit):
            self._is_reading = True
            self._reads.want(self)

    def _close_with_events(self) -> None:
        self._source = None
        self.was_read = True
        for event in (EndOfData(), self._end):
            self._ready.append(BufferOrEvent(DataType.EVENT, encode_event(event), self.first))

    def _notify(self) -> None:
        if self._listener is not None:
            self._listener()
