# SPDX-License-Identifier: Apache-2.0
"""How many rows a step takes, so that it takes no longer than a few milliseconds.

A control action waits for a step at most, so steps are bounded in time; they are as large as that allows, because
everything costs per batch. The size follows the time that the last steps took for a row.
"""

from __future__ import annotations

STEP_SECONDS = 0.008
LEAST_ROWS = 1_000
FEWEST_ROWS = 100
"""Where each row takes so long that a step of these is as long as one may be."""
MOST_ROWS = 1 << 16
_WEIGHT = 0.3
_GROWTH = 2


class Pace:
    """The size of one task's steps."""

    def __init__(self) -> None:
        self._rows = LEAST_ROWS
        self._seconds_per_row: float | None = None

    @property
    def rows(self) -> int:
        """How many rows the next step takes at most."""
        return self._rows

    def took(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if rows < min(LEAST_ROWS, self._rows) and seconds < STEP_SECONDS:
            return  # what a small step takes says nothing about its rows
        cost = seconds / rows
        known = self._seconds_per_row
        # One that is slower than all before it counts at once: the bound is on time.
        slower = known is None or cost * self._rows > STEP_SECONDS
        self._seconds_per_row = cost if slower or known is None else known + _WEIGHT * (cost - known)
        wanted = int(STEP_SECONDS / max(self._seconds_per_row, 1e-9))
        self._rows = max(FEWEST_ROWS, min(MOST_ROWS, wanted, self._rows * _GROWTH))
