# SPDX-License-Identifier: Apache-2.0
"""The chunks of files that are read for one reader elsewhere, ahead of its connection.

Rules: one read at a time is under way, and no more chunks wait than the reader has credit for, nor more than `AHEAD`.
A chunk that was read is given back to the reads when it was sent, or dropped. Credit counts whatever costs some,
also what the view gives without having read it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.buffer import DataType
from penstock.buffer.view import BufferOrEvent
from penstock.environment.reading.file_reads import FileReader, FileReads
from penstock.errors import PartitionLostError, PenstockError

AHEAD = 4
"""Chunks a view reads ahead of its connection, where its reader has the credit for them."""


class ReadAhead:
    """The chunks of one view, and its reader's credit."""

    __slots__ = ("_chunks", "_credit", "_is_closed", "_is_reading", "_reader", "_reads", "_subpartition")

    def __init__(self, reads: FileReads, reader: FileReader, subpartition: int) -> None:
        self._reads = reads
        self._reader = reader
        self._subpartition = subpartition
        self._chunks: deque[BufferOrEvent] = deque()
        self._credit = 0
        self._is_reading = self._is_closed = False

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def may_read(self) -> bool:
        """True if another chunk may be read now."""
        return not self._is_reading and not self._is_closed and len(self._chunks) < min(AHEAD, self._credit)

    def grant(self, buffers: int) -> None:
        """The reader can take more."""
        self._credit += buffers

    def spend(self) -> None:
        """Something that costs credit is given to the reader."""
        self._credit -= 1

    def pop(self) -> BufferOrEvent:
        """The chunk that was read first."""
        self.spend()
        return self._chunks.popleft()

    def read(self) -> None:
        """Begin to read the next chunk; the reader's `take` is called when it is there."""
        self._is_reading = True
        self._reads.want(self._reader)

    def take(self, chunk: bytes | None, *, is_wanted: bool) -> None:
        """The read has ended: keep its chunk, or give it back."""
        self._is_reading = False
        if chunk is None:
            return
        if is_wanted and not self._is_closed:
            self._chunks.append(BufferOrEvent(DataType.DATA, chunk, self._subpartition, self._reads.give_back))
        else:
            self._reads.give_back()

    def drop(self) -> None:
        """Give back what was read and not sent."""
        chunks, self._chunks = self._chunks, deque()
        for _ in chunks:
            self._reads.give_back()

    def close(self) -> None:
        """The reader is gone; idempotent. A read that is under way ends by itself."""
        self._is_closed = True
        self._reads.withdraw(self._reader)
        self.drop()


def failure_of(error: BaseException, lost: Callable[[str], PenstockError]) -> BaseException:
    """The error that a reader gets for a read that failed; `lost` is the partition's answer if a file is gone."""
    if isinstance(error, PartitionLostError):
        return lost(str(error))
    if isinstance(error, PenstockError | OSError):
        return error
    return PenstockError(f"{type(error).__name__} while a file was read: {error}")
