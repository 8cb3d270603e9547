# SPDX-License-Identifier: Apache-2.0
"""A reader's way through a hybrid partition: item after item, from memory or from storage, and then the end.

Rules:

- A range of subpartitions is read one after the other, as if it were one; its end has the sums of their ends.
- `look` says what comes next; `take`, `take_stored` and `take_event` take it. An item in memory is read there,
  unless the partition lends no more of it: then the reader waits until it is stored. So readers that stand still
  can't keep the producer from its memory.
- The listener is called when there may be something after `look` said that there is nothing, and on a failure. It is
  called as the last step of a change, so it may call back; one call too many does no harm.

Sans-I/O, one thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from penstock.buffer import BufferSlice, DataType
from penstock.buffer.view import BufferOrEvent, DataListener
from penstock.partition.extents import StoredPiece
from penstock.partition.hybrid_items import Item
from penstock.shuffle.events import EndOfData, EndOfPartition, encode_event
from penstock.shuffle.sums import Sums


class Next(Enum):
    """The find of a cursor: NOTHING yet, or something to be taken."""

    NOTHING = "nothing"
    MEMORY = "memory"
    STORED = "stored"
    EVENT = "event"


@dataclass(slots=True, eq=False)
class Log:
    """One subpartition: its items (None where they are gone), its end, and who reads it at the moment.

    `read` is how far the reader that is farthest has come. `is_left` where readers that come now get nothing more.
    """

    items: list[Item | None] = field(default_factory=list)
    end: EndOfPartition | None = None
    cursors: list[HybridCursor] = field(default_factory=list)
    read: int = 0
    is_taken: bool = False
    is_left: bool = False
    was_read: bool = False

    @property
    def needs(self) -> int | None:
        """The sequence number of what is to be read next; None where that is not there."""
        item = self.items[self.read] if self.read < len(self.items) else None
        return None if item is None else item.sequence


class CursorPartition(Protocol):
    """The partition, as its cursors see it."""

    @property
    def may_lend(self) -> bool:
        """Tell whether one more slice may go to a reader."""

    def log(self, subpartition: int) -> Log:
        """A subpartition."""

    def lend(self, subpartition: int, position: int, item: Item) -> BufferSlice:
        """A reader takes this item from memory: a slice with a reference of the reader's own."""

    def returned(self) -> None:
        """A reader has given back what it was lent."""

    def passed(self, subpartition: int, begin: int, end: int) -> None:
        """A reader has passed these items."""

    def urge(self, cursor: HybridCursor) -> None:
        """A reader can't be lent what comes next for it: that should be stored soon."""

    def move(self, cursor: HybridCursor, before: int, after: int | None) -> None:
        """A reader goes on to the next subpartition, or has reached its end."""

    def leave(self, cursor: HybridCursor, inside: int | None) -> None:
        """A reader has left, in the middle of a subpartition unless `inside` is None."""


class HybridCursor:
    """One reader of `count` subpartitions from `first` on. Made by `HybridPartition.open`, ended by `release`."""

    __slots__ = (
        "_events", "_listener", "_partition", "_position", "_subpartition", "_sums", "count", "failure", "first",
        "is_blocked", "is_done",
    )  # fmt: skip

    def __init__(self, partition: CursorPartition, first: int, count: int, listener: DataListener) -> None:
        self.first = first
        self.count = count
        self.failure: BaseException | None = None
        self.is_blocked = False
        self.is_done = False
        self._partition = partition
        self._listener: DataListener | None = listener
        self._subpartition = first
        self._position = 0
        self._sums = Sums()
        self._events: deque[bytes] = deque()

    @property
    def is_released(self) -> bool:
        """True once `release` was called."""
        return self._listener is None

    @property
    def backlog(self) -> int:
        """Buffers that are there for it, of the subpartition it is in."""
        if self._listener is None or self.is_done or self.failure is not None:
            return 0
        return len(self._log.items) - self._position

    @property
    def _log(self) -> Log:
        return self._partition.log(self._subpartition)

    def look(self) -> Next:
        """The kind of item that comes next."""
        if self._listener is None or self.failure is not None:
            return Next.NOTHING
        while not self._events and not self.is_done:
            log = self._log
            if self._position < len(log.items):
                return self._look_at(log.items[self._position])
            if log.end is None:
                return Next.NOTHING
            self._end_subpartition(log.end)
        return Next.EVENT if self._events else Next.NOTHING

    def _look_at(self, item: Item | None) -> Next:
        assert item is not None  # noqa: S101 - only what a reader has passed is gone
        if item.piece is not None and self._partition.may_lend:
            return Next.MEMORY
        if item.extent is not None:
            return Next.STORED
        self.is_blocked = True
        self._partition.urge(self)
        return Next.NOTHING

    def take(self) -> BufferOrEvent:
        """The next buffer, where `look` has said MEMORY: its taker owns a reference, and calls `recycle` last."""
        item = self._item()
        self._position += 1
        piece = self._partition.lend(self._subpartition, self._position - 1, item)
        return BufferOrEvent(DataType.DATA, piece, self._subpartition, self._partition.returned)

    def take_stored(self, most: int) -> list[StoredPiece]:
        """Up to `most` stored pieces one after the other, after `look` has said STORED."""
        found: list[StoredPiece] = []
        while len(found) < most and self.look() is Next.STORED:
            item = self._item()
            assert item.extent is not None  # noqa: S101 - that is what STORED means
            found.append(StoredPiece(item.extent, item.skip))
            begin, self._position = self._position, self._position + item.rest
            self._partition.passed(self._subpartition, begin, self._position)
        return found

    def take_event(self) -> bytes:
        """The next event, after `look` has said EVENT."""
        return self._events.popleft()

    def next_items(self, most: int) -> list[Item]:
        """The items from here on that are in memory only, up to so many bytes of them and at least one."""
        found: list[Item] = []
        size = 0
        log = self._log
        for position in range(self._position, len(log.items)):
            item = log.items[position]
            if size >= most:
                break
            if item is not None and item.is_unspilled:
                found.append(item)
                size += item.length
        return found

    def notify(self) -> None:
        """There may be something."""
        if self._listener is not None:
            self._listener()

    def fail(self, error: BaseException) -> None:
        """Nothing more will come."""
        self.failure = error
        self._events.clear()
        self.notify()

    def release(self) -> None:
        """The reader is done, for good or bad; idempotent."""
        if self._listener is not None:
            self._listener = None
            self._partition.leave(self, None if self.is_done else self._subpartition)

    def _item(self) -> Item:
        item = self._log.items[self._position]
        assert item is not None  # noqa: S101 - `look` has just seen it
        return item

    def _end_subpartition(self, end: EndOfPartition) -> None:
        self._sums.add(end.rows, end.bytes, end.checksum)
        self.is_done = self._subpartition + 1 == self.first + self.count
        following = None if self.is_done else self._subpartition + 1
        self._partition.move(self, self._subpartition, following)
        if following is None:
            self._events.extend((encode_event(EndOfData()), encode_event(self._sums.end_of_partition())))
        else:
            self._subpartition = following
            self._position = 0
