# SPDX-License-Identifier: Apache-2.0
"""The rows of one side of a join, found by the slots of their keys: sorted runs of batches that never change.

A batch of rows becomes a run, sorted by slot. Runs of similar size are merged, so that there are few, and a row is
sorted a number of times that grows by the logarithm. A look-up is a binary search in each run for a whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.record.layout import int64_array
from penstock.stream.key_index import Slots

MOST_PAIRS = 1 << 18
"""So many pairs are made at once."""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Run:
    slots: npt.NDArray[np.int64]
    rows: pa.RecordBatch


class JoinSide:
    """One side's rows."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return sum(len(run.slots) for run in self._runs)

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """All rows."""
        return [run.rows for run in self._runs]

    def add(self, slots: Slots, rows: pa.RecordBatch) -> None:
        """Take rows with the slots of their keys."""
        if not len(slots):
            return
        self._runs.append(_sorted(slots, rows))
        while len(self._runs) > 1 and len(self._runs[-2].slots) < 2 * len(self._runs[-1].slots):
            last, before = self._runs.pop(), self._runs.pop()
            both = pa.concat_batches([before.rows, last.rows])
            self._runs.append(_sorted(np.concatenate([before.slots, last.slots]), both))

    def matches(self, slots: Slots) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
        """The pairs of rows with these slots and rows of this side: numbers of the former, and the latter."""
        for run in self._runs:
            first = np.searchsorted(run.slots, slots, "left")
            counts = np.searchsorted(run.slots, slots, "right") - first
            ends = np.cumsum(counts)
            total = int(ends[-1]) if len(ends) else 0
            for start in range(0, total, MOST_PAIRS):
                pairs = np.arange(start, min(total, start + MOST_PAIRS))
                given = np.searchsorted(ends, pairs, "right")
                places = first[given] + pairs - (ends[given] - counts[given])
                yield given, run.rows.take(int64_array(places))

    def drop(self, is_over: Callable[[pa.RecordBatch], Mask]) -> None:
        """Drop rows that are over, of runs where they are the half at least."""
        kept = []
        for run in self._runs:
            over = is_over(run.rows)
            if 2 * int(over.sum()) >= len(over):
                left = np.flatnonzero(~over)
                run = _Run(run.slots[left], run.rows.take(int64_array(left)))  # noqa: PLW2901 - the same, smaller
            if len(run.slots):
                kept.append(run)
        self._runs = kept


def _sorted(slots: Slots, rows: pa.RecordBatch) -> _Run:
    order = np.argsort(slots, kind="stable")
    return _Run(slots[order], rows.take(int64_array(order)))
