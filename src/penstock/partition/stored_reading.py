# SPDX-License-Identifier: Apache-2.0
"""The readers of a stored partition: what each gets next, from memory or from files, and then the end.

Rules:

- `look` says what comes next; `take`, `take_stored` and `take_event` take it. An item in memory is read there,
  unless no more of it may be leased: then the reader waits until it is stored, or another has given something back.
  So readers that stand still can't keep the producer from its memory.
- A reader that comes when all is stored and indexed, or that has waited for a producer which stores everything, gets
  its whole range at once, by the index. One that came before goes on as it began.
- A partition that keeps is read by any number of readers. Of one that does not, each subpartition has one reader,
  once; what that has read, or left, is gone.
- A reader is woken when there may be something after `look` said that there is nothing, and on a failure.

Sans-I/O. Not here: whether more may be leased, and references: who takes an item gets one of its own before what
`take` has brought up is carried out.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.buffer import BufferSlice
from penstock.buffer.view import DataListener
from penstock.errors import PartitionError
from penstock.partition.extents import StoredPiece
from penstock.partition.instructions import Instructions, Wake
from penstock.partition.stored_cursor import (
    CursorEvent,
    CursorState,
    Log,
    Logs,
    Next,
    ReadClaim,
    StoredCursor,
    TakenRows,
)
from penstock.partition.stored_items import Item
from penstock.partition.storing import Storing
from penstock.shuffle.events import EndOfPartition
from penstock.shuffle.ids import PartitionId
from penstock.shuffle.sums import sum_of

_BY_ITEMS = (CursorState.READING, CursorState.WAITING)


class StoredReaders:
    """The readers of one partition."""

    __slots__ = ("_cursors", "_instructions", "_keeps", "_logs", "_partition", "_read", "_storing", "leased")

    def __init__(
        self, partition: PartitionId, logs: Logs, storing: Storing, instructions: Instructions, *, keeps: bool
    ) -> None:
        self._partition = partition
        self._logs = logs
        self._storing = storing
        self._instructions = instructions
        self._keeps = keeps
        self._cursors: dict[StoredCursor, None] = {}
        self._read = bytearray(len(logs))  # 1 for each subpartition that was given out to its end
        self.leased = 0
        """Slices that are out at readers."""

    def __len__(self) -> int:
        """Readers that have not left."""
        return len(self._cursors)

    @property
    def all_read(self) -> bool:
        """True if each subpartition was given out to its end."""
        return 0 not in self._read

    def open(self, first: int, count: int, listener: DataListener, *, is_indexed: bool) -> StoredCursor:
        """A reader of a range, from its beginning."""
        cursor = StoredCursor(self._partition, first, count, listener)
        self._cursors[cursor] = None
        if is_indexed:
            self._go_by_index(cursor)
        else:
            self._logs[first].cursors.append(cursor)
        return cursor

    def backlog(self, cursor: StoredCursor) -> int:
        """Buffers that are there for it, of the subpartition it is in; of files that it reads by the index one."""
        if cursor.state in _BY_ITEMS:
            return len(self._logs[cursor.subpartition].items) - cursor.position
        return int(cursor.state is CursorState.INDEXED)

    def look(self, cursor: StoredCursor, *, may_lease: bool) -> Next:
        """The kind of item that comes next."""
        while cursor.state in _BY_ITEMS:
            log = self._logs[cursor.subpartition]
            if cursor.position < len(log.items):
                return self._look_at(cursor, log, may_lease)
            end = self._logs.ends[cursor.subpartition]
            if end is None:
                return Next.NOTHING
            self._end_subpartition(cursor, log, end)
        if cursor.state is CursorState.INDEXED:
            return Next.STORED
        return Next.EVENT if cursor.events else Next.NOTHING

    def take(self, cursor: StoredCursor) -> BufferSlice:
        """The next buffer, where `look` has said MEMORY: it is leased until `returned`."""
        log, position = self._logs[cursor.subpartition], cursor.position
        item = _there(log.items[position])
        piece = item.piece
        assert piece is not None  # noqa: S101 - `look` has just seen it
        self.leased += 1
        cursor.position += 1
        self._pass(log, position, position + 1)
        return piece

    def take_stored(self, cursor: StoredCursor, most: int, *, may_lease: bool) -> TakenRows:
        """Up to `most` stored pieces one after the other, or the whole range, after `look` has said STORED."""
        if cursor.state is CursorState.INDEXED:
            cursor.end(self._sums(cursor))
            return TakenRows((), cursor.first, cursor.count)
        found: list[StoredPiece] = []
        while len(found) < most and self.look(cursor, may_lease=may_lease) is Next.STORED:
            log, position = self._logs[cursor.subpartition], cursor.position
            item = _there(log.items[position])
            assert item.extent is not None  # noqa: S101 - that is what STORED means
            found.append(StoredPiece(item.extent, item.skip))
            cursor.position += item.rest
            self._pass(log, position, cursor.position)
        return TakenRows(tuple(found))

    def returned(self) -> None:
        """A reader has given back what it had leased."""
        self.leased -= 1
        self.wake(cursor for cursor in self._cursors if cursor.state is CursorState.WAITING)

    def leave(self, cursor: StoredCursor) -> None:
        """A reader is done, for good or bad; idempotent."""
        if cursor.is_released:
            return
        if cursor.state in _BY_ITEMS:
            self._logs[cursor.subpartition].cursors.remove(cursor)
        has_all = cursor.leave()
        if self._cursors.pop(cursor, self) is self:
            return  # the partition has ended before
        rest: list[Item | None] = []
        for log in () if self._keeps else [self._logs[number] for number in _range(cursor)]:
            rest += log.items
            log.items, log.read, log.claim = [], 0, ReadClaim.LEFT
        self._storing.passed(rest)
        if has_all or not self._keeps:
            self._read[cursor.first : cursor.first + cursor.count] = b"\1" * cursor.count

    def end(self, error: PartitionError) -> None:
        """The partition has ended: readers that have not got everything are told why."""
        cursors, self._cursors = self._cursors, {}
        for cursor in cursors:
            cursor.fail(error)
            self._instructions.append(Wake(cursor.listener))

    def indexed(self) -> None:
        """All is stored and indexed: readers that wait for the first of it go by the index."""
        if not self._storing.sequence:
            waiting = [cursor for cursor in self._cursors if cursor.state in _BY_ITEMS]
            for cursor in waiting:
                self._go_by_index(cursor)
            self.wake(waiting)
        self.forget()

    def forget(self) -> None:
        """Let go of all that only later readers would need, as they go by the index."""
        if self._logs.open and not any(cursor.state in _BY_ITEMS for cursor in self._cursors):
            self._logs.clear()

    def wake(self, cursors: Iterable[StoredCursor]) -> None:
        """There may be something for these."""
        for cursor in cursors:
            if cursor.state is CursorState.WAITING:
                cursor.move(CursorEvent.WAKE)
            self._instructions.append(Wake(cursor.listener))

    def wake_waiting(self) -> None:
        """Something was stored."""
        self.wake([cursor for cursor in self._cursors if cursor.state is CursorState.WAITING])

    def _look_at(self, cursor: StoredCursor, log: Log, may_lease: bool) -> Next:
        item = _there(log.items[cursor.position])
        if item.piece is not None and may_lease:
            return Next.MEMORY
        if item.extent is not None:
            return Next.STORED
        cursor.move(CursorEvent.WAIT)
        self._storing.urge(log.items[position] for position in range(cursor.position, len(log.items)))
        return Next.NOTHING

    def _pass(self, log: Log, begin: int, end: int) -> None:
        begin = max(begin, log.read)
        passed = log.items[begin:end]
        if not self._keeps:
            log.items[begin:end] = [None] * len(passed)
        log.read = max(log.read, end)
        self._storing.passed(passed)

    def _end_subpartition(self, cursor: StoredCursor, log: Log, end: EndOfPartition) -> None:
        cursor.sums.add(end.rows, end.bytes, end.checksum)
        log.cursors.remove(cursor)
        if cursor.subpartition + 1 == cursor.first + cursor.count:
            cursor.end(cursor.sums.end_of_partition())
        else:
            cursor.subpartition += 1
            cursor.position = 0
            self._logs[cursor.subpartition].cursors.append(cursor)

    def _go_by_index(self, cursor: StoredCursor) -> None:
        """Give it all of its range at once, from the files."""
        end = self._sums(cursor)
        if end.bytes or end.rows:
            cursor.move(CursorEvent.INDEX)
        else:
            cursor.end(end)

    def _sums(self, cursor: StoredCursor) -> EndOfPartition:
        return sum_of(end for number in _range(cursor) if (end := self._logs.ends[number]) is not None)


def _range(cursor: StoredCursor) -> range:
    return range(cursor.first, cursor.first + cursor.count)


def _there(item: Item | None) -> Item:
    assert item is not None  # noqa: S101 - only what a reader has passed is gone
    return item
