# SPDX-License-Identifier: Apache-2.0
"""The memory of a stored partition: what of it is stored next, and what is forgotten for whom.

Rules:

- Items are stored one order at a time: those that others need the memory of (`relieve`), those that a reader can't be
  leased (`urge`), and everything once it is to `settle`. To store nothing earlier is quickest:
  `docs/decisions/0010-hybrid-partitions.md`.
- Memory is forgotten that is stored and that others wait for; what came free says `recycled`, because a segment may
  have other owners. So one event may take several rounds of forgetting, and stores what is still missing.

Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.buffer import BufferSlice
from penstock.partition.extents import Extent
from penstock.partition.instructions import Instructions, Recycle, StoreRuns
from penstock.partition.stored_cursor import Logs
from penstock.partition.stored_items import Item, MemoryBooks, SpillOrder, runs_of
from penstock.partition.stored_order import distance_to_reading, farthest, oldest

ORDER_BYTES = 8 << 20
"""Bytes of one order: enough for long writes, few enough that memory comes back while the next is written."""
URGENT_BYTES = 1 << 20
"""Bytes that are stored at once for a reader that can't be leased more memory."""


@dataclass(frozen=True, slots=True)
class StoredRules:
    """The rules of a kind of stored partition: whether it keeps items that were read, and a segment's bytes."""

    keeps: bool
    segment_size: int


class Storing:
    """The memory of one partition."""

    __slots__ = ("_instructions", "_logs", "_order", "_owed", "_rules", "_wanted", "books", "sequence")

    def __init__(self, logs: Logs, rules: StoredRules, instructions: Instructions) -> None:
        self.books = MemoryBooks()
        self.sequence = 0
        """The number of items that there were."""
        self._logs = logs
        self._rules = rules
        self._instructions = instructions
        self._order: SpillOrder | None = None
        self._owed = 0  # segments that are still to be stored
        self._wanted = 0  # segments that others wait for

    @property
    def is_through(self) -> bool:
        """True if nothing is in memory only."""
        return self._order is None and not self.books.unspilled_bytes

    def make(self, source: BufferSlice | Extent, subpartition: int, order: int, readers: int) -> Item:
        """A new item, in memory or stored by the producer."""
        item = Item(source, subpartition, order, self.sequence, readers)
        self.sequence += 1
        if item.piece is not None:
            self.books.add(item)
        return item

    def settle(self) -> None:
        """Everything is to be stored."""
        self._owed = max(self._owed, -(-self.books.unspilled_bytes // self._rules.segment_size))
        self.go_on()

    def relieve(self, segments: int) -> None:
        """Others need memory: forget what is stored, store what is not, until so many segments are free."""
        self._wanted = max(self._wanted, min(segments, len(self.books)))
        self._forget_wanted()

    def returned(self) -> None:
        """A segment came back from a reader."""
        self._wanted = max(0, self._wanted - 1)

    def recycled(self, segments: int) -> None:
        """So many segments came free: forget more, if more are wanted still."""
        self._wanted = max(0, self._wanted - segments)
        self._forget_wanted()

    def urge(self, items: Iterable[Item | None]) -> None:
        """Store the first of these as soon as possible, where nothing else is being stored."""
        if self._order is not None:
            return
        chosen: list[Item] = []
        size = 0
        for item in items:
            if size >= URGENT_BYTES:
                break
            if item is not None and item.is_unspilled:
                chosen.append(item)
                size += item.length
        self._begin(chosen)

    def stored(self, order: SpillOrder, extents: Sequence[Extent]) -> None:
        """The order was carried out: an extent for each run."""
        self._order = None
        for run, extent in zip(order.runs, extents, strict=True):
            skip = 0
            for place, item in enumerate(run):
                item.extent, item.skip, item.rest = extent, skip, len(run) - place
                skip += item.length
                self.books.stored(item)
        done = [item for run in order.runs for item in run if not (self._rules.keeps and item.left)]
        if not self.drop(item for item in done if item.piece is not None):
            self._forget_wanted()

    def abandoned(self, order: SpillOrder) -> None:
        """The order is not carried out, as the partition has ended."""
        self._order = None
        self.drop(item for run in order.runs for item in run if item.piece is not None)

    def passed(self, items: Iterable[Item | None]) -> None:
        """Readers have passed these items: let go of those that no reader needs any more."""
        gone: list[Item] = []
        for item in items:
            if item is None:
                continue
            item.left -= 1
            is_safe = not self._rules.keeps or item.extent is not None
            if item.left == 0 and item.piece is not None and not item.is_spilling and is_safe:
                gone.append(item)
        self.drop(gone)

    def forget(self, segments: int) -> None:
        """Forget the memory of up to so many segments that are stored, what is needed last first."""
        chosen = farthest(self.books, self.books.idle, segments, distance_to_reading(self._logs, self.sequence))
        self.drop([item for segment in chosen for item in self.books.segments[segment]])

    def drop_all(self) -> None:
        """Forget everything but what is being stored at the moment."""
        self.drop([item for items in self.books.segments.values() for item in items if not item.is_spilling])

    def drop(self, items: Iterable[Item]) -> bool:
        """Forget the memory of these items; whether there was any."""
        pieces = [self.books.drop(item) for item in items]
        if pieces:
            self._instructions.append(Recycle(pieces))
        return bool(pieces)

    def go_on(self) -> None:
        """Store what is due, if anything is and nothing else is being stored."""
        if self._order is None:
            # The three demands are for the same segments: to add them up would store what was not asked for.
            self._owed = max(self._owed, self._wanted)
            if self._owed:
                self._begin(self._chosen())

    def _forget_wanted(self) -> None:
        """Forget what is wanted; where nothing is left of that, store more: some is in segments that stay out."""
        if self._wanted and self.books.idle:
            self.forget(self._wanted)
        else:
            self.go_on()

    def _chosen(self) -> list[Item]:
        """The items to be stored next, of those that are owed."""
        if not self.books.unspilled_bytes:
            self._owed = 0
            return []
        size = self._rules.segment_size
        count = min(self._owed, max(1, ORDER_BYTES // size))
        if self._rules.keeps:
            self._owed -= count
            return oldest(self.books, count * size)
        distance = distance_to_reading(self._logs, self.sequence)
        segments = farthest(self.books, dict.fromkeys(self.books.unspilled_segments), count, distance)
        self._owed -= len(segments)
        return [item for segment in segments for item in self.books.segments[segment] if item.is_unspilled]

    def _begin(self, items: Iterable[Item]) -> None:
        runs = runs_of(items, self._rules.segment_size)
        if not runs:
            return
        self._order = SpillOrder(runs)
        for run in runs:
            for item in run:
                self.books.begin(item)
        self._instructions.append(StoreRuns(self._order))
