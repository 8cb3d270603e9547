# SPDX-License-Identifier: Apache-2.0
"""The hybrid result partition: read while it is written, yet its producer waits for no reader.

Rules:

- Buffers are visible at once and stay in memory as long as there is some. Bytes that memory can't hold the producer
  stores by itself and says where (`add_stored`). Other items are stored, one order at a time: those that others
  need the memory of (`relieve`), those that a reader can't be lent (`urge`), and, if it keeps, everything once it
  has settled; whoever carries an order out says `spilled`. To store nothing earlier is quickest:
  `docs/decisions/0010-hybrid-partitions.md`.
- A partition that *keeps* (`hybrid_full`) is read from its beginning by any number of readers, at any time. Items
  that it has stored stay in memory too, until they were read or somebody needs the memory; the oldest is stored
  first. One that does not (`hybrid_selective`) has one reader a subpartition; what that has read, or left, is gone,
  and what is needed last is stored first.
- The partition owns one reference of each slice it was given, broadcast ones too. A reader gets one of its own
  (`on_share`), or the partition's, when that needs it no more. Slices that are dropped come out through
  `on_recycle`.
- At most as many slices are lent to readers as the environment allows; see `hybrid_cursor`.
- `on_consumable` is called once: at the first buffer, or at the end where there is none. `on_stored` once: when the
  producer has finished and everything is stored, which is seen to from `settle` on. One that does not keep is
  released when all readers have left and the producer has closed. A producer that closes without having finished
  has failed.

Sans-I/O, one thread. Callbacks are called when the partition's own books are straight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.buffer import BufferSlice
from penstock.buffer.view import DataListener
from penstock.errors import PartitionError, ProtocolError
from penstock.partition.answers import check_range, describe, end_error
from penstock.partition.endings import Endings
from penstock.partition.extents import BROADCAST, Extent
from penstock.partition.hybrid_cursor import HybridCursor, Log
from penstock.partition.hybrid_items import Item, MemoryBooks, SpillOrder, runs_of
from penstock.partition.hybrid_order import distance_to_reading, farthest, oldest
from penstock.partition.lifecycle import (
    PartitionEvent,
    PartitionLifecycle,
    PartitionState,
    ProducerEvent,
    ProducerLifecycle,
    ProducerState,
)
from penstock.shuffle.events import EndOfPartition
from penstock.shuffle.ids import PartitionId

ORDER_BYTES = 8 << 20
"""Bytes of one order: enough for long writes, few enough that memory comes back while the next is written."""
URGENT_BYTES = 1 << 20
"""Bytes that are stored at once for a reader that can't be lent more memory."""


@dataclass(frozen=True, slots=True)
class HybridRules:
    """The rules of a kind of hybrid partition: whether it keeps items that were read, and a segment's bytes."""

    keeps: bool
    segment_size: int


class HybridEnvironment(Protocol):
    """The words of a partition to its environment, and its questions."""

    def on_share(self, piece: BufferSlice) -> None:
        """A reader gets a reference of its own."""

    def on_returned(self) -> None:
        """A reader has given back a slice that it was lent."""

    def on_recycle(self, piece: BufferSlice) -> bool:
        """One reference less; whether the segment came free with it, and no reader has a part of it."""

    def on_spill(self, order: SpillOrder) -> None:
        """Store this, then call `spilled`; where that fails, end the partition and call `spilled` with nothing."""

    def on_stored(self) -> None:
        """The producer has finished and everything is stored."""

    def on_consumable(self) -> None:
        """It can be consumed."""

    def on_end(self, state: PartitionState) -> None:
        """It has ended."""

    def may_lend(self, lent: int) -> bool:
        """Tell whether one more slice may go to a reader, while `lent` are out."""


class HybridPartition(Endings):
    """One result partition. Life: adds, ends, `finish` or `fail`, `close_producer`; its readers have cursors."""

    def __init__(
        self,
        partition_id: PartitionId,
        subpartitions: int,
        rules: HybridRules,
        environment: HybridEnvironment,
        host: str = "",
    ) -> None:
        if subpartitions < 1:
            raise ValueError(f"partition {partition_id} with {subpartitions} subpartitions")
        self.partition_id = partition_id
        self.host = host
        self.keeps = rules.keeps
        self.cause = ""
        self.lent = 0
        self._rules = rules
        self._environment = environment
        self._lifecycle = PartitionLifecycle(partition_id)
        self._logs = [Log() for _ in range(subpartitions)]
        self._cursors: dict[HybridCursor, None] = {}
        self._books = MemoryBooks()
        self._order: SpillOrder | None = None
        self._owed = 0  # segments that are still to be stored
        self._wanted = 0  # segments that somebody waits for
        self._sequence = 0
        self._making = ProducerLifecycle(partition_id)

    @property
    def state(self) -> PartitionState:
        """The state of its life."""
        return self._lifecycle.state

    @property
    def is_finished(self) -> bool:
        """True if its producer has written everything."""
        return self._making.state.is_finished

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return len(self._logs)

    @property
    def held(self) -> int:
        """Segments with data of this partition, readers' apart."""
        return len(self._books)

    @property
    def readers(self) -> int:
        """Readers that have not left."""
        return len(self._cursors)

    @property
    def may_lend(self) -> bool:
        """Tell whether one more slice may go to a reader."""
        return self._environment.may_lend(self.lent)

    def log(self, subpartition: int) -> Log:
        """A subpartition; ProtocolError where there is none."""
        check_range(self.partition_id, subpartition, 1, len(self._logs))
        return self._logs[subpartition]

    def add(self, subpartition: int, piece: BufferSlice) -> bool:
        """Append a slice to one subpartition; False when it was recycled instead, because nobody will read it."""
        log = self.log(subpartition)
        return self._append([] if log.is_left else [log], piece, subpartition, len(log.items))

    def broadcast(self, piece: BufferSlice) -> bool:
        """Append one slice to all subpartitions; False when it was recycled instead."""
        return self._append([log for log in self._logs if not log.is_left], piece, BROADCAST, self._sequence)

    def add_stored(self, subpartition: int, extent: Extent) -> None:
        """Append what the producer has stored by itself, to one subpartition or to `BROADCAST`."""
        if subpartition == BROADCAST:
            self._append([log for log in self._logs if not log.is_left], extent, BROADCAST, self._sequence)
        else:
            log = self.log(subpartition)
            self._append([] if log.is_left else [log], extent, subpartition, len(log.items))

    def end_subpartition(self, subpartition: int, end: EndOfPartition) -> None:
        """The producer has written all of a subpartition; what it counted."""
        log = self.log(subpartition)
        if log.end is not None:
            raise ProtocolError(f"{self.partition_id}[{subpartition}] is ended twice")
        log.end = end
        self._wake(log.cursors)

    def finish(self) -> None:
        """The producer has written everything; ProtocolError where a subpartition has no end."""
        missing = [index for index, log in enumerate(self._logs) if log.end is None]
        if missing:
            raise ProtocolError(f"partition {self.partition_id} is finished, but {missing} have no end")
        self._lifecycle.move(PartitionEvent.FINISH)
        self._show()
        self._making.move(ProducerEvent.FINISH)
        self._go_on()

    def settle(self) -> None:
        """Finished some time ago, and still there: see to it that everything is stored."""
        if self.keeps and self.is_finished:  # what one that does not keep has left goes as it is read
            self._making.move(ProducerEvent.SETTLE)
            self._go_on()

    def close_producer(self) -> None:
        """The producer lets go; idempotent. Not finished is failed; read to the end is released, unless kept."""
        if self._making.state.has_left:
            return
        self._making.move(ProducerEvent.LEAVE)
        if not self.is_finished:
            self.fail("it ended without finishing the partition")
        else:
            self._release_if_left()

    def open(self, first: int, count: int, listener: DataListener) -> HybridCursor:
        """A reader of a range, from its beginning; a PartitionError says why there is none to be had."""
        if self.state.is_end:
            raise end_error(self.partition_id, self.state, self.cause, self.host)
        check_range(self.partition_id, first, count, len(self._logs))
        logs = self._logs[first : first + count]
        if not self.keeps and any(log.is_taken for log in logs):
            raise PartitionError(
                f"partition {self.partition_id} on {self.host or 'this host'}: subpartition {first} was given to a "
                "reader already, and a hybrid_selective partition is read once: it keeps nothing that was read. Use "
                'mode="hybrid", or produce it again'
            )
        for log in logs:
            log.is_taken = True
        cursor = HybridCursor(self, first, count, listener)
        self._cursors[cursor] = None
        logs[0].cursors.append(cursor)
        return cursor

    def spilled(self, order: SpillOrder, extents: Sequence[Extent]) -> None:
        """An order was carried out: an extent for each run; none where it failed, and the partition has ended."""
        self._order = None
        if self.state.is_end:
            for run in order.runs:
                self._drop(item for item in run if item.piece is not None)
            return
        for run, extent in zip(order.runs, extents, strict=True):
            skip = 0
            for place, item in enumerate(run):
                item.extent, item.skip, item.rest = extent, skip, len(run) - place
                skip += item.length
                self._books.stored(item)
        done = [item for run in order.runs for item in run if not (self.keeps and item.left)]
        self._drop(item for item in done if item.piece is not None)
        self._free_wanted()
        self._go_on()
        self._wake(cursor for cursor in self._cursors if cursor.is_blocked)

    def relieve(self, segments: int) -> None:
        """Somebody needs memory: forget what is stored, store what is not, until so many segments are free."""
        if self.state.is_end:
            return
        self._wanted = max(self._wanted, min(segments, len(self._books)))
        self._free_wanted()
        self._go_on()

    def extents(self, subpartition: int) -> list[Extent]:
        """The extents in which a subpartition is stored, in order; of a partition that keeps and that is stored.

        Any thread.
        """
        found: list[Extent] = []
        position, items = 0, self._logs[subpartition].items
        while position < len(items):
            item = items[position]
            if item is None or item.extent is None:
                raise ProtocolError(f"{self.partition_id}[{subpartition}] is not stored")
            found.append(item.extent)
            position += item.rest
        return found

    def forget(self) -> None:
        """Let go of all that only later readers would need: they read from storage without this partition's help."""
        if not self._cursors:
            for log in self._logs:
                log.items.clear()

    def ends(self) -> list[EndOfPartition]:
        """The sums that the producer counted; of a finished partition."""
        return [log.end for log in self._logs if log.end is not None]

    def was_read(self, first: int, count: int) -> None:
        """These subpartitions were given out to their end."""
        for log in self._logs[first : first + count]:
            log.was_read = True
        if all(log.was_read for log in self._logs):
            self._lifecycle.move(PartitionEvent.CONSUME)

    def end(self, event: PartitionEvent, cause: BaseException | str) -> None:
        """End it: readers are told why, what is in memory is recycled; nothing happens when it has ended before."""
        if self.state.is_end:
            return
        state = self._lifecycle.move(event)
        self.cause = describe(cause)
        error = end_error(self.partition_id, state, self.cause, self.host)
        self._drop([item for items in list(self._books.segments.values()) for item in items if not item.is_spilling])
        for log in self._logs:
            log.items.clear()
            log.cursors.clear()
        cursors, self._cursors = self._cursors, {}
        for cursor in cursors:
            cursor.fail(error)
        self._environment.on_end(state)

    # The requests of cursors.

    def lend(self, subpartition: int, position: int, item: Item) -> BufferSlice:
        """A reader takes this item from memory: a slice with a reference of the reader's own."""
        piece = item.piece
        assert piece is not None  # noqa: S101 - `look` has just seen it
        self.lent += 1
        self._environment.on_share(piece)
        self.passed(subpartition, position, position + 1)
        return piece

    def returned(self) -> None:
        """A reader has given back what it was lent."""
        self.lent -= 1
        self._wanted = max(0, self._wanted - 1)
        self._environment.on_returned()
        self._wake(cursor for cursor in self._cursors if cursor.is_blocked)

    def passed(self, subpartition: int, begin: int, end: int) -> None:
        """A reader has passed these items: the last one that needed them lets them go.

        whoever needed them last lets them go.
        """
        log = self._logs[subpartition]
        gone: list[Item] = []
        for position in range(max(begin, log.read), end):
            item = log.items[position]
            if item is None:
                continue
            item.left -= 1
            if not self.keeps:
                log.items[position] = None
            is_safe = not self.keeps or item.extent is not None
            if item.left == 0 and item.piece is not None and not item.is_spilling and is_safe:
                gone.append(item)
        log.read = max(log.read, end)
        self._drop(gone)

    def urge(self, cursor: HybridCursor) -> None:
        """A reader can't be lent what comes next for it: store that as soon as possible."""
        if self._order is None:
            self._begin(cursor.next_items(URGENT_BYTES))

    def move(self, cursor: HybridCursor, before: int, after: int | None) -> None:
        """A reader is through with a subpartition and comes to the next."""
        self._logs[before].cursors.remove(cursor)
        if after is not None:
            self._logs[after].cursors.append(cursor)

    def leave(self, cursor: HybridCursor, inside: int | None) -> None:
        """A reader has left, in the middle of a subpartition unless `inside` is None."""
        if self._cursors.pop(cursor, self) is self:
            return  # the partition has ended before
        if inside is not None:
            self._logs[inside].cursors.remove(cursor)
        if not self.keeps:
            for log in self._logs[cursor.first : cursor.first + cursor.count]:
                self._abandon(log)
        if cursor.is_done or not self.keeps:
            self.was_read(cursor.first, cursor.count)
        self._release_if_left()

    def _abandon(self, log: Log) -> None:
        items, log.items = log.items, []
        log.is_left = True
        log.read = 0
        rest = [item for item in items if item is not None]
        for item in rest:
            item.left -= 1
        self._drop([item for item in rest if not item.left and item.piece is not None and not item.is_spilling])

    def _release_if_left(self) -> None:
        # A producer that is still there could not be told that nobody reads: its next word would find no partition.
        if self._making.state.has_left and not self.keeps and all(log.is_left for log in self._logs):
            self.release()

    def _append(self, logs: list[Log], source: BufferSlice | Extent, subpartition: int, order: int) -> bool:
        if source.length <= 0:
            raise ProtocolError(f"{self.partition_id}: an empty buffer")
        if self.is_finished or [log for log in logs if log.end is not None]:
            raise ProtocolError(f"{self.partition_id}: its producer writes after it has finished")
        if self._lifecycle.state is not PartitionState.WRITING:
            self._lifecycle.move(PartitionEvent.WRITE)
        piece = source if isinstance(source, BufferSlice) else None
        if logs:
            item = Item(source, subpartition, order, self._sequence, len(logs))
            self._sequence += 1
            if piece is not None:
                self._books.add(item)
            for log in logs:
                log.items.append(item)
        elif piece is not None:
            self._environment.on_recycle(piece)
        self._show()
        for log in logs:
            if log.cursors:
                self._wake(log.cursors)
        if piece is not None and piece.finished:  # memory comes and goes in segments
            self._go_on()
        return bool(logs)

    def _show(self) -> None:
        if self._making.state is ProducerState.SILENT and not self.state.is_end:
            self._making.move(ProducerEvent.SHOW)
            self._environment.on_consumable()

    def _wake(self, cursors: Iterable[HybridCursor]) -> None:
        for cursor in list(cursors):
            cursor.is_blocked = False
            cursor.notify()

    def _go_on(self) -> None:
        """Store what is due, if anything is."""
        if self.state.is_end:
            return
        if self._order is None:
            size = self._rules.segment_size
            is_settled = self._making.state is ProducerState.SETTLED
            due = -(-self._books.unspilled_bytes // size) if is_settled else 0
            # The three demands are for the same segments: to add them up would store what nobody asked for.
            self._owed = max(self._owed, due, self._wanted)
            if self._owed:
                self._begin(self._chosen())
        self._look_if_stored()

    def _chosen(self) -> list[Item]:
        """The items to be stored next, of those that are owed."""
        if not self._books.unspilled_bytes:
            self._owed = 0
            return []
        size = self._rules.segment_size
        count = min(self._owed, max(1, ORDER_BYTES // size))
        if self.keeps:
            self._owed -= count
            return oldest(self._books, count * size)
        segments = farthest(self._books, dict.fromkeys(self._books.unspilled_segments), count, self._distance())
        self._owed -= len(segments)
        return [item for segment in segments for item in self._books.segments[segment] if item.is_unspilled]

    def _distance(self) -> Callable[[Item], int]:
        return distance_to_reading(self._logs, self._sequence)

    def _begin(self, items: Iterable[Item]) -> None:
        runs = runs_of(items, self._rules.segment_size)
        if not runs:
            return
        order = self._order = SpillOrder(runs)
        for run in runs:
            for item in run:
                self._books.begin(item)
        self._environment.on_spill(order)

    def _free(self, count: int) -> None:
        """Forget the memory of up to so many segments that are stored, what is needed last first."""
        if count and self._books.idle:
            chosen = farthest(self._books, self._books.idle, count, self._distance())
            self._drop([item for segment in chosen for item in self._books.segments[segment]])

    def _free_wanted(self) -> None:
        """Forget what is stored until what is wanted came free: some of it is in segments that stay out."""
        while self._wanted and self._books.idle:
            self._free(self._wanted)

    def _drop(self, items: Iterable[Item]) -> None:
        for piece in [self._books.drop(item) for item in list(items)]:
            if self._environment.on_recycle(piece) and self._wanted:
                self._wanted -= 1

    def _look_if_stored(self) -> None:
        is_to_be = self.is_finished and self._making.state is not ProducerState.STORED
        if is_to_be and self.keeps and self._order is None and not self._books.unspilled_bytes:
            self._making.move(ProducerEvent.STORE)
            self._free(len(self._books))
            self._environment.on_stored()
