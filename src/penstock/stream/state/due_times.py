# SPDX-License-Identifier: Apache-2.0
"""Times and the numbers that are due then: added in any order, taken in the order of the times.

Each batch of them is a sorted run, and runs of similar size are put together, so adding and taking cost the logarithm
of how many there are, without a step for each. Nothing is removed here: the caller looks whether what it takes still
counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.stream.key_index import Slots

Times = npt.NDArray[np.int64]


class _SortedTimes:
    """Sorted times, of which the first ones may have been taken."""

    def __init__(self, times: Times, numbers: npt.NDArray[np.int64]) -> None:
        self.times = times
        self.numbers = numbers
        self.taken = 0

    def __len__(self) -> int:
        return len(self.times) - self.taken


class DueTimes:
    """Numbers by the times at which they are due."""

    def __init__(self) -> None:
        self._runs: list[_SortedTimes] = []

    def __len__(self) -> int:
        return sum(len(run) for run in self._runs)

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return sum(run.times.nbytes + run.numbers.nbytes for run in self._runs)

    @property
    def next(self) -> int | None:
        """The least time; None if there is none."""
        return min((int(run.times[run.taken]) for run in self._runs), default=None)

    def add(self, times: Times, numbers: Slots) -> None:
        """Add numbers that are due at these times."""
        if not len(times):
            return
        order = np.argsort(times, kind="stable")
        self._runs.append(_SortedTimes(times[order], numbers[order]))
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            last, before = self._runs.pop(), self._runs.pop()
            self._runs.append(_merged(before, last))

    def take(self, now: int, most: int) -> tuple[Times, Slots]:
        """The numbers that are due at a time or before, in the order of their times, and not more than `most`."""
        dues = []
        for at, run in enumerate(self._runs):
            end = min(run.taken + most, int(np.searchsorted(run.times, now, "right")))
            times, numbers = run.times[run.taken : end], run.numbers[run.taken : end]
            dues.append((times, numbers, np.full(len(times), at)))
        if not dues:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        times, numbers, runs = (np.concatenate(parts) for parts in zip(*dues, strict=True))
        order = np.argsort(times, kind="stable")[:most]
        for run, count in zip(self._runs, np.bincount(runs[order], minlength=len(self._runs)), strict=True):
            run.taken += int(count)
        self._runs = [run for run in self._runs if len(run)]
        return times[order], numbers[order]


def _merged(before: _SortedTimes, last: _SortedTimes) -> _SortedTimes:
    times = np.concatenate([before.times[before.taken :], last.times[last.taken :]])
    numbers = np.concatenate([before.numbers[before.taken :], last.numbers[last.taken :]])
    order = np.argsort(times, kind="stable")
    return _SortedTimes(times[order], numbers[order])
