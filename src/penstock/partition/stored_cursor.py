# SPDX-License-Identifier: Apache-2.0
"""A reader's place in a stored partition, and the subpartitions as logs of items.

A range of subpartitions is read one after the other, as if it were one; its end has the sums of their ends.

Sans-I/O. Not here: what a reader gets, see `stored_reading`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from penstock.buffer.view import DataListener
from penstock.lifecycle.table import Lifecycle, Table
from penstock.partition.answers import check_range
from penstock.partition.extents import StoredPiece
from penstock.partition.stored_items import Item
from penstock.shuffle.events import EndOfData, EndOfPartition, encode_event
from penstock.shuffle.ids import PartitionId
from penstock.shuffle.sums import Sums


class Next(Enum):
    """The find of a reader: NOTHING yet, or something to be taken."""

    NOTHING = "nothing"
    MEMORY = "memory"
    STORED = "stored"
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class TakenRows:
    """Stored rows: these pieces; or, if there is a `count`, by the index those of so many subpartitions."""

    pieces: tuple[StoredPiece, ...] = ()
    first: int = 0
    count: int = 0


class CursorState(Enum):
    """READING goes from item to item; WAITING for storage, or for another reader. INDEXED goes by the index.

    DONE has passed all items, TOLD knows the files of its whole range, which it reads without the partition.
    """

    READING = "reading"
    WAITING = "waiting"
    INDEXED = "indexed"
    DONE = "done"
    TOLD = "told"
    FAILED = "failed"
    LEFT = "left"


class CursorEvent(Enum):
    """The events of a reader: what it finds, and what becomes of its partition."""

    WAIT = "wait"
    WAKE = "wake"
    INDEX = "index"
    END = "end"
    FAIL = "fail"
    LEAVE = "leave"


_BY_ITEMS = (CursorState.READING, CursorState.WAITING)
_MAY_FAIL = (*_BY_ITEMS, CursorState.INDEXED, CursorState.DONE)

CURSOR_TABLE: Final[Table[CursorState, CursorEvent]] = {
    (CursorState.READING, CursorEvent.WAIT): CursorState.WAITING,
    (CursorState.WAITING, CursorEvent.WAIT): CursorState.WAITING,
    (CursorState.WAITING, CursorEvent.WAKE): CursorState.READING,
    (CursorState.READING, CursorEvent.INDEX): CursorState.INDEXED,
    **{(state, CursorEvent.END): CursorState.DONE for state in _BY_ITEMS},
    (CursorState.INDEXED, CursorEvent.END): CursorState.TOLD,
    **{(state, CursorEvent.FAIL): CursorState.FAILED for state in _MAY_FAIL},
    (CursorState.TOLD, CursorEvent.FAIL): CursorState.TOLD,
    **{(state, CursorEvent.LEAVE): CursorState.LEFT for state in CursorState},
}
"""Every legal step."""


class StoredCursor:
    """One reader of `count` subpartitions from `first` on; `listener` wakes it."""

    __slots__ = ("_lifecycle", "count", "events", "failure", "first", "listener", "position", "subpartition", "sums")

    def __init__(self, partition: PartitionId, first: int, count: int, listener: DataListener) -> None:
        self.first = self.subpartition = first
        self.count = count
        self.listener = listener
        self.position = 0
        self.sums = Sums()
        self.events: deque[bytes] = deque()
        self.failure: BaseException | None = None
        self._lifecycle = Lifecycle(f"a reader of {partition}[{first}]", CURSOR_TABLE, CursorState.READING)

    @property
    def state(self) -> CursorState:
        """The state of its life."""
        return self._lifecycle.state

    @property
    def is_released(self) -> bool:
        """True once it has left."""
        return self._lifecycle.state is CursorState.LEFT

    def move(self, event: CursorEvent) -> None:
        """Go on to the state after this event."""
        self._lifecycle.move(event)

    def end(self, end: EndOfPartition) -> None:
        """It has everything: the closing events are left."""
        self.move(CursorEvent.END)
        self.events.extend((encode_event(EndOfData()), encode_event(end)))

    def fail(self, error: BaseException) -> None:
        """Nothing more will come, unless it needs nothing more."""
        self.move(CursorEvent.FAIL)
        if self.state is CursorState.FAILED:
            self.failure = error
            self.events.clear()

    def leave(self) -> bool:
        """The reader is done; whether it has taken everything."""
        has_all = self.state in (CursorState.DONE, CursorState.TOLD) and not self.events
        self.move(CursorEvent.LEAVE)
        self.events.clear()
        return has_all


class ReadClaim(Enum):
    """The claim on a subpartition that is read once: FREE, TAKEN by a reader, or LEFT by it."""

    FREE = "free"
    TAKEN = "taken"
    LEFT = "left"


@dataclass(slots=True, eq=False)
class Log:
    """One subpartition: its items (None where they are gone), and who reads it at the moment.

    `read` is how far the reader that is farthest has come.
    """

    items: list[Item | None] = field(default_factory=list)
    cursors: list[StoredCursor] = field(default_factory=list)
    read: int = 0
    claim: ReadClaim = ReadClaim.FREE

    @property
    def needs(self) -> int | None:
        """The sequence number of what is to be read next; None where that is not there."""
        item = self.items[self.read] if self.read < len(self.items) else None
        return None if item is None else item.sequence


class Logs:
    """The logs of a partition's subpartitions, each made when it is first asked for, and their ends."""

    __slots__ = ("_logs", "_partition", "ends")

    def __init__(self, partition: PartitionId, subpartitions: int) -> None:
        self._partition = partition
        self._logs: dict[int, Log] = {}
        self.ends: list[EndOfPartition | None] = [None] * subpartitions

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, subpartition: int) -> Log:
        """A subpartition; ProtocolError where there is none."""
        log = self._logs.get(subpartition)
        if log is None:
            check_range(self._partition, subpartition, 1, len(self.ends))
            log = self._logs[subpartition] = Log()
        return log

    def items_of(self, subpartition: int) -> list[Item | None]:
        """The items that a subpartition has; any thread, as nothing is made for it."""
        log = self._logs.get(subpartition)
        return [] if log is None else log.items

    def __iter__(self) -> Iterator[Log]:
        return map(self.__getitem__, range(len(self.ends)))

    @property
    def open(self) -> Iterable[tuple[int, Log]]:
        """The logs that there are, with their subpartitions."""
        return self._logs.items()

    def clear(self) -> None:
        """Forget all items and readers."""
        for log in self._logs.values():
            log.items.clear()
            log.cursors.clear()
        self._logs.clear()
