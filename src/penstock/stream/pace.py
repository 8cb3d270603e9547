# SPDX-License-Identifier: Apache-2.0
"""The number of rows of a step: it takes no longer than a few milliseconds, and its result is not much in flight.

A control action waits for a step at most, so steps are bounded in time; they are as large as that allows, because
everything costs per batch. The size follows what the last steps took for a step and for each row, without the time in
which others had the cores (`step_clock`). A function may take longer for a batch, whatever its rows, than a step may:
a model's call is one. Fewer rows would not make that step shorter, so it has as many as take as long again.

Rows that a step gave wait in the task if readers are slow, and are in flight as all others are. So a step also takes
no more rows than the readers take in a part of the time that rows are to be in flight, and no more bytes than a few
segments hold.
"""

from __future__ import annotations

STEP_SECONDS = 0.008
LEAST_ROWS = 1_000
FEWEST_ROWS = 100
"""However long each of them takes."""
MOST_ROWS = 1 << 16
STEP_BYTES = 4 << 20
"""Of the rows that a step takes or gives, by those of the steps before."""
_GROWTH = 2
_PART_OF_TIME = 4
_MEMORY = 0.8
"""The weight of a step beside that of the next one."""
_SPREAD = 0.1
"""The share by which sizes must differ so that they tell a step's own time from that of its rows."""
_FADING = 0.95
_SURPRISE = 2.0
"""Times as long as expected: the steps before do not count any more."""
_LEAST_SECONDS = 1e-9
_NONE: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0)


class StepCost:
    """The seconds of a step as so many for itself and so many for each row: a line through the last steps."""

    def __init__(self) -> None:
        self.fixed = 0.0
        self.per_row = 0.0
        self._sums = _NONE
        """Of the weights, and weighted those of rows, seconds, rows by rows, rows by seconds."""

    def took(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long. One that is slower than expected, and no smaller, counts alone."""
        is_smaller = rows * self._sums[0] < self._sums[1]
        if seconds > _SURPRISE * (self.fixed + self.per_row * rows) and not is_smaller:
            self._sums, self.fixed = _NONE, 0.0
        new = (1.0, rows, seconds, rows * rows, rows * seconds)
        self._sums = tuple(_MEMORY * old + each for old, each in zip(self._sums, new, strict=True))
        weight, of_rows, of_seconds, squares, products = self._sums
        size, mean = of_rows / weight, of_seconds / weight
        variance = squares / weight - size * size
        if variance > (_SPREAD * size) ** 2:
            slope = (products / weight - size * mean) / variance
            self.fixed = max(0.0, mean - max(0.0, slope) * size)
        else:  # all of one size: what was known of the step itself fades, so that other sizes are tried
            self.fixed = _FADING * min(self.fixed, mean)
        self.per_row = max(_LEAST_SECONDS, (mean - self.fixed) / size)


class Pace:
    """The size of one task's steps. `in_flight_time` is the target in seconds; 0: there is none."""

    def __init__(self, in_flight_time: float = 0.0) -> None:
        self._in_flight_time = in_flight_time
        self._room = self._rows = LEAST_ROWS
        self._cost = StepCost()

    @property
    def rows(self) -> int:
        """The number of rows that the next step takes at most."""
        return min(self._rows, self._room) if self._in_flight_time > 0 else self._rows

    def waited(self, rows: int, seconds: float) -> None:
        """All that a step of so many rows gave had found room so long after the step began."""
        if rows < min(LEAST_ROWS, self.rows) and seconds < STEP_SECONDS:
            return
        taken = int(rows / max(seconds, 1e-9) * self._in_flight_time / _PART_OF_TIME)
        self._room = max(FEWEST_ROWS, min(MOST_ROWS, taken, self._room * _GROWTH))

    def took(self, rows: int, seconds: float, size: int = 0) -> None:
        """A step of so many rows took so long, and what it took or gave had so many bytes."""
        if rows < min(LEAST_ROWS, self.rows) and seconds < STEP_SECONDS:
            return  # what a small step takes says nothing about its rows
        self._cost.took(rows, seconds)
        left = max(STEP_SECONDS - self._cost.fixed, self._cost.fixed)
        wanted = min(int(left / self._cost.per_row), STEP_BYTES * rows // max(size, 1))
        self._rows = max(FEWEST_ROWS, min(MOST_ROWS, wanted, self._rows * _GROWTH))
