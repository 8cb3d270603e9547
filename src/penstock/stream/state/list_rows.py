# SPDX-License-Identifier: Apache-2.0
"""Rows of state for each slot, any number of them, in the order in which they were added.

All rows lie in batches that never change, one after the other. Rows that are added at once to a slot are a *piece*,
which knows the piece before it; `last` has the newest of each slot. So adding costs what is added, reading what is
read, and a snapshot copies nothing. A slot of many pieces gets one of its own, and where more rows are old than live
the live ones are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.record.layout import int64_array
from penstock.stream.arrow_pieces import rows_of_piece, width_of
from penstock.stream.key_index import Grown, Slots
from penstock.stream.run_rows import GATHERED_SLOTS, add_run, taken_rows
from penstock.stream.slot_array import FrozenSlots, SlotArray
from penstock.stream.state_place import bytes_of

_NONE = -1
SPARE_ROWS = 1 << 16
MOST_PIECES = 32


@dataclass(frozen=True, slots=True)
class Pieces:
    """Of each piece its first row, its number of rows, and the piece before it."""

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]

    def rows(self, last: Slots) -> tuple[Slots, Slots]:
        """The rows of lists by their newest pieces, oldest first: whose each is, and its number."""
        owners, pieces = self._walk(last)
        lengths = self.lengths[pieces]
        firsts = np.cumsum(lengths) - lengths
        inside = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(firsts, lengths)
        return np.repeat(owners, lengths), np.repeat(self.starts[pieces], lengths) + inside

    def _walk(self, last: Slots) -> tuple[Slots, Slots]:
        """All pieces of the lists, in the order of the lists, oldest first."""
        owners = np.flatnonzero(last != _NONE)
        pieces = last[owners]
        steps: list[tuple[Slots, Slots]] = []
        while len(pieces):
            steps.append((owners, pieces))
            pieces = self.before[pieces]
            there = pieces != _NONE
            owners, pieces = owners[there], pieces[there]
        if not steps:
            return owners, pieces
        owners = np.concatenate([owners for owners, _ in reversed(steps)])
        pieces = np.concatenate([pieces for _, pieces in reversed(steps)])
        if len(steps) > 1:
            order = np.argsort(owners, kind="stable")
            owners, pieces = owners[order], pieces[order]
        return owners, pieces


class FrozenListRows:
    """The rows of all slots at one moment."""

    def __init__(self, runs: Sequence[pa.RecordBatch], schema: pa.Schema, pieces: Pieces, last: FrozenSlots) -> None:
        self._runs = tuple(runs)
        self._schema = schema
        self._pieces = pieces
        self._last = last

    @property
    def width(self) -> float:
        """The bytes of a slot's rows, on average."""
        return width_of(self._runs, len(self._last))

    def present(self, start: int, end: int) -> tuple[Slots, list[pa.Array]]:
        """The rows of a range of slots in order: whose each is, and their columns."""
        owners, rows = self._pieces.rows(self._last.values(start, end))
        return owners + start, taken_rows(self._runs, self._schema, rows).columns

    def of(self, slots: Slots) -> tuple[Slots, list[pa.Array]]:
        """The same of these slots, which are in ascending order."""
        owners, rows = self._pieces.rows(self._last.at(slots))
        return slots[owners], taken_rows(self._runs, self._schema, rows).columns


class ListRows:
    """The rows of one task's slots."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._clear_all()

    @property
    def live(self) -> int:
        """The number of rows of all slots."""
        return self._live

    @property
    def nbytes(self) -> int:
        """The bytes of all, with those of old rows that are still there."""
        pieces = (self._starts, self._lengths, self._before)
        return bytes_of((*self._runs, *pieces, self._last, self._depths, self._totals))

    def known(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Which of these slots have rows."""
        known: npt.NDArray[np.bool_] = self._last.at(slots) != _NONE
        return known

    def get(self, slots: Slots) -> tuple[Slots, pa.RecordBatch]:
        """The rows of these slots, slot after slot: at which place of `slots` each one's is, and the rows."""
        owners, rows = self._pieces().rows(self._last.at(slots))
        return owners, taken_rows(self._runs, self._schema, rows)

    def append(self, slots: Slots, rows: pa.RecordBatch) -> None:
        """Add a row to each of these slots, which may be there several times."""
        if not len(slots):
            return
        if (slots[1:] < slots[:-1]).any():
            order = np.argsort(slots, kind="stable")
            slots, rows = slots[order], rows.take(int64_array(order))
        firsts = np.flatnonzero(np.concatenate(([True], slots[1:] != slots[:-1])))
        lengths = np.diff(np.append(firsts, len(slots)))
        touched = slots[firsts]
        self._add_pieces(touched, firsts + self._rows, lengths)
        self._add_run(rows)
        self._shorten(touched)
        if self._rows > 2 * self._live + SPARE_ROWS:
            self._gather()

    def remove(self, slots: Slots) -> None:
        """Remove all rows of these slots, each of which is there once."""
        totals = self._totals.writable(slots, self._reach(slots))
        self._live -= int(totals[slots].sum())
        totals[slots] = 0
        self._last.writable(slots, self._count)[slots] = _NONE
        self._depths.writable(slots, self._count)[slots] = 0

    def frozen(self, count: int) -> FrozenListRows:
        """The rows of the first slots as they are now."""
        return FrozenListRows(self._runs, self._schema, self._pieces(), self._last.frozen(count))

    def _clear_all(self) -> None:
        self._runs: list[pa.RecordBatch] = []
        self._rows = self._live = self._count = 0
        self._starts, self._lengths, self._before = Grown(np.int64), Grown(np.int64), Grown(np.int64)
        self._last = SlotArray(np.int64, _NONE)
        self._depths, self._totals = SlotArray(np.int32), SlotArray(np.int64)

    def _pieces(self) -> Pieces:
        return Pieces(self._starts.values, self._lengths.values, self._before.values)

    def _reach(self, slots: Slots) -> int:
        self._count = max(self._count, int(slots.max(initial=-1)) + 1)
        return self._count

    def _add_pieces(self, slots: Slots, starts: Slots, lengths: Slots) -> None:
        """Give each of these slots, each of which is there once, a further piece."""
        count = self._reach(slots)
        last = self._last.writable(slots, count)
        numbers = np.arange(len(self._starts), len(self._starts) + len(slots), dtype=np.int64)
        self._starts.extend(starts)
        self._lengths.extend(lengths)
        self._before.extend(last[slots])
        last[slots] = numbers
        self._depths.writable(slots, count)[slots] += 1
        self._totals.writable(slots, count)[slots] += lengths
        self._live += int(lengths.sum())

    def _add_run(self, rows: pa.RecordBatch) -> None:
        add_run(self._runs, rows)
        self._rows += rows.num_rows

    def _shorten(self, slots: Slots) -> None:
        """Make one piece of the lists that have many, and more with each row that they have."""
        depths, totals = self._depths.at(slots), self._totals.at(slots)
        deep = slots[(depths > MOST_PIECES) & (depths.astype(np.int64) ** 2 > totals)]
        if len(deep):
            self._rewrite(deep)

    def _rewrite(self, slots: Slots) -> None:
        owners, rows = self.get(slots)
        self.remove(slots)
        lengths = np.bincount(owners, minlength=len(slots)).astype(np.int64)
        self._add_pieces(slots, np.cumsum(lengths) - lengths + self._rows, lengths)
        self._add_run(rows)

    def _gather(self) -> None:
        """Leave out the old rows."""
        count, former = self._count, self.frozen(self._count)
        self._clear_all()
        step = rows_of_piece(former.width, GATHERED_SLOTS)
        for start in range(0, count, step):
            slots, columns = former.present(start, min(count, start + step))
            self.append(slots, pa.RecordBatch.from_arrays(columns, schema=self._schema))
