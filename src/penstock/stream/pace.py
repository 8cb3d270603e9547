# SPDX-License-Identifier: Apache-2.0
"""The number of rows of a step: it takes no longer than a few milliseconds, and its result is not much in flight.

A control action waits for a step at most, so steps are bounded in time; they are as large as that allows, because
everything costs per batch. The size follows the time that the last steps took for a row, without the time in which
others had the cores (`step_clock`).

Rows that a step gave wait in the task if readers are slow, and are in flight as all others are. So a step also takes
no more rows than the readers take in a part of the time that rows are to be in flight, and no more bytes than a few
segments hold.
"""

from __future__ import annotations

STEP_SECONDS = 0.008
LEAST_ROWS = 1_000
FEWEST_ROWS = 100
"""The size at which each row takes so long that a step of these is as long as one may be."""
MOST_ROWS = 1 << 16
STEP_BYTES = 4 << 20
"""Of the rows that a step takes or gives, by those of the steps before."""
_WEIGHT = 0.3
_GROWTH = 2
_PART_OF_TIME = 4


class Pace:
    """The size of one task's steps. `in_flight_time` is the target in seconds; 0: there is none."""

    def __init__(self, in_flight_time: float = 0.0) -> None:
        self._in_flight_time = in_flight_time
        self._room = self._rows = LEAST_ROWS
        self._seconds_per_row: float | None = None

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
        cost = seconds / rows
        known = self._seconds_per_row
        # One that is slower than all before it counts at once: the bound is on time.
        slower = known is None or cost * self._rows > STEP_SECONDS
        self._seconds_per_row = cost if slower or known is None else known + _WEIGHT * (cost - known)
        wanted = min(int(STEP_SECONDS / max(self._seconds_per_row, 1e-9)), STEP_BYTES * rows // max(size, 1))
        self._rows = max(FEWEST_ROWS, min(MOST_ROWS, wanted, self._rows * _GROWTH))
