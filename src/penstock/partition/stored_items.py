# SPDX-License-Identifier: Apache-2.0
"""The parts of a stored partition: items, the extents they are stored in, and the books of those in memory.

Rules:

- An *item* is one buffer as its producer shipped it, or an extent that the producer has stored by itself. It is in
  memory (`piece`), stored (`extent`), or both; what is broadcast is one item of several subpartitions.
- An *extent* is a run of items that follow each other in one subpartition (broadcast: in all of them), stored in one
  piece with one checksum; no longer than a segment, or, where the producer stored it, than a stretch of its file. A
  reader that has taken some of its items from memory leaves out the bytes before the next (`skip`).
- `MemoryBooks` knows by segment what is in memory, because memory comes free by segments: one is *idle* when all its
  items are stored, so that forgetting them frees it and loses nothing.

Sans-I/O. Not here: what is to be stored when, and reference counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.buffer import BufferSlice
from penstock.partition.extents import Extent


class Item:
    """One buffer. `rest` counts the items of its extent from this one on; `left` the readers that still need it."""

    __slots__ = (
        "extent", "is_spilling", "left", "length", "order", "piece", "rest", "sequence", "skip", "subpartition",
    )  # fmt: skip

    def __init__(self, source: BufferSlice | Extent, subpartition: int, order: int, sequence: int, left: int) -> None:
        self.piece: BufferSlice | None = source if isinstance(source, BufferSlice) else None
        self.extent: Extent | None = source if isinstance(source, Extent) else None
        self.length = source.length
        self.subpartition = subpartition
        self.order = order
        self.sequence = sequence
        self.left = left
        self.skip = 0
        self.rest = 1
        self.is_spilling = False

    @property
    def is_unspilled(self) -> bool:
        """True if it is in memory only, and is not being stored."""
        return self.extent is None and not self.is_spilling and self.piece is not None

    def follows(self, other: Item) -> bool:
        """Tell whether it comes right after the other wherever that is read."""
        return self.subpartition == other.subpartition and self.order == other.order + 1


@dataclass(frozen=True, slots=True, eq=False)
class SpillOrder:
    """Items that are to be stored: each run becomes one extent. They stay in memory until the order is done."""

    runs: tuple[tuple[Item, ...], ...]

    @property
    def size(self) -> int:
        """Bytes to be stored."""
        return sum(item.length for run in self.runs for item in run)


def runs_of(items: Iterable[Item], limit: int) -> tuple[tuple[Item, ...], ...]:
    """The items in order of subpartition and place, those that follow each other joined up to `limit` bytes."""
    runs: list[list[Item]] = []
    size = 0
    for item in sorted(items, key=lambda each: (each.subpartition, each.order)):
        if runs and item.follows(runs[-1][-1]) and size + item.length <= limit:
            runs[-1].append(item)
            size += item.length
        else:
            runs.append([item])
            size = item.length
    return tuple(map(tuple, runs))


class MemoryBooks:
    """Which items are in which segments, and which of them are stored nowhere yet."""

    __slots__ = ("_open", "_unspilled", "idle", "segments", "unspilled_bytes")

    def __init__(self) -> None:
        self.segments: dict[int, list[Item]] = {}
        self.idle: dict[int, None] = {}
        self.unspilled_bytes = 0
        self._unspilled: dict[Item, None] = {}
        self._open: dict[int, int] = {}  # per segment its items that are not stored

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def unspilled(self) -> Iterable[Item]:
        """Items in memory only that are not being stored, oldest first."""
        return self._unspilled

    @property
    def unspilled_segments(self) -> Iterable[int]:
        """The segments that those items are in; one with several of them comes several times."""
        return (item.piece.segment for item in self._unspilled if item.piece is not None)

    def add(self, item: Item) -> None:
        """A new item, in memory."""
        assert item.piece is not None  # noqa: S101 - for the type checker
        segment = item.piece.segment
        self.segments.setdefault(segment, []).append(item)
        self._open[segment] = self._open.get(segment, 0) + 1
        self.idle.pop(segment, None)
        self._unspilled[item] = None
        self.unspilled_bytes += item.length

    def begin(self, item: Item) -> None:
        """The item is being stored."""
        item.is_spilling = True
        del self._unspilled[item]
        self.unspilled_bytes -= item.length

    def stored(self, item: Item) -> None:
        """The item has its extent."""
        item.is_spilling = False
        if item.piece is not None:
            self._close(item.piece.segment)

    def drop(self, item: Item) -> BufferSlice:
        """Forget the item's memory: the piece to be recycled."""
        piece, item.piece = item.piece, None
        assert piece is not None  # noqa: S101 - for the type checker
        if item in self._unspilled:
            del self._unspilled[item]
            self.unspilled_bytes -= item.length
        items = self.segments[piece.segment]
        items.remove(item)
        if item.extent is None:
            self._close(piece.segment)
        if not items:
            del self.segments[piece.segment]
            self._open.pop(piece.segment, None)
            self.idle.pop(piece.segment, None)
        return piece

    def _close(self, segment: int) -> None:
        self._open[segment] -= 1
        if not self._open[segment]:
            del self._open[segment]
            self.idle[segment] = None

    def check(self) -> None:
        """Assert that the books agree with the items: used by tests after every step."""
        items = [item for held in self.segments.values() for item in held]
        rules = {
            "items are in memory": all(item.piece is not None for item in items),
            "no segment is empty": all(self.segments.values()),
            "unspilled items": set(self._unspilled) == {item for item in items if item.is_unspilled},
            "unspilled bytes": self.unspilled_bytes == sum(item.length for item in self._unspilled),
            "idle segments": set(self.idle)
            == {segment for segment, held in self.segments.items() if all(item.extent is not None for item in held)},
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise AssertionError(f"memory books: broken {', '.join(broken)}")
