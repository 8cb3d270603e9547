# SPDX-License-Identifier: Apache-2.0
"""The rows of one side of a join, found by the slots of their keys: sorted runs of batches that never change.

A batch of rows becomes a run, sorted by slot. Runs of similar size are merged, so that there are few, and a row is
sorted a number of times that grows by the logarithm. A look-up is a binary search in each run for a whole batch.

For an outer join each row also knows if it is done: it has met a row, or was given out as one that meets nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.record.layout import int64_array
from penstock.stream.key_index import Slots
from penstock.stream.state_place import bytes_of, settled

MOST_PAIRS = 1 << 18
"""The most pairs that are made at once."""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Run:
    slots: npt.NDArray[np.int64]
    rows: pa.RecordBatch
    done: Mask


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of given rows and rows of a side: numbers of the former, and places of the latter in a run."""

    given: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    run: _Run

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows of the side, one for each pair."""
        return self.run.rows.take(int64_array(self.places))

    def mark(self, chosen: Mask) -> Slots:
        """These rows of the side are done; the slots of those that were not before, some of them several times."""
        places = self.places[chosen]
        places = places[~self.run.done[places]]
        self.run.done[places] = True
        return self.run.slots[places]


class JoinSide:
    """The rows of one side of a join."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return sum(len(run.slots) for run in self._runs)

    @property
    def nbytes(self) -> int:
        """The bytes of all rows, and of what finds them."""
        return bytes_of(part for run in self._runs for part in (run.slots, run.rows, run.done))

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """All rows."""
        return [run.rows for run in self._runs]

    @property
    def slots(self) -> list[Slots]:
        """The slots of the rows of each batch."""
        return [run.slots for run in self._runs]

    @property
    def done(self) -> list[Mask]:
        """Masks of the rows of each batch that are done, as they are now."""
        return [run.done.copy() for run in self._runs]

    def add(self, slots: Slots, rows: pa.RecordBatch, done: Mask | None = None) -> None:
        """Take rows with the slots of their keys; none of them is done unless told."""
        if not len(slots):
            return
        self._runs.append(_sorted(slots, rows, np.zeros(len(slots), np.bool_) if done is None else done))
        while len(self._runs) > 1 and len(self._runs[-2].slots) < 2 * len(self._runs[-1].slots):
            last, before = self._runs.pop(), self._runs.pop()
            both = pa.concat_batches([before.rows, last.rows])
            done = np.concatenate([before.done, last.done])
            self._runs.append(_sorted(np.concatenate([before.slots, last.slots]), both, done))

    def matches(self, slots: Slots) -> Iterator[Pairs]:
        """The pairs of rows with these slots and rows of this side."""
        for run in self._runs:
            first = np.searchsorted(run.slots, slots, "left")
            counts = np.searchsorted(run.slots, slots, "right") - first
            ends = np.cumsum(counts)
            total = int(ends[-1]) if len(ends) else 0
            for start in range(0, total, MOST_PAIRS):
                pairs = np.arange(start, min(total, start + MOST_PAIRS))
                given = np.searchsorted(ends, pairs, "right")
                places = first[given] + pairs - (ends[given] - counts[given])
                yield Pairs(given, places, run)

    def lonely(self, is_over: Callable[[pa.RecordBatch], Mask]) -> Iterator[pa.RecordBatch]:
        """The rows that are over and not done; they are done then."""
        for run in self._runs:
            found = np.flatnonzero(is_over(run.rows) & ~run.done)
            run.done[found] = True
            for start in range(0, len(found), MOST_PAIRS):
                yield run.rows.take(int64_array(found[start : start + MOST_PAIRS]))

    def drop(self, is_over: Callable[[pa.RecordBatch], Mask]) -> None:
        """Drop rows that are over, of runs where they are the half at least."""
        kept = []
        for run in self._runs:
            over = is_over(run.rows)
            if 2 * int(over.sum()) >= len(over):
                left = np.flatnonzero(~over)
                run = _Run(run.slots[left], run.rows.take(int64_array(left)), run.done[left])  # noqa: PLW2901 - the same, smaller
            if len(run.slots):
                kept.append(run)
        self._runs = kept


def _sorted(slots: Slots, rows: pa.RecordBatch, done: Mask) -> _Run:
    order = np.argsort(slots, kind="stable")
    return _Run(slots[order], settled(rows.take(int64_array(order))), done[order])
