# SPDX-License-Identifier: Apache-2.0
"""When the next checkpoint of a query is due. Times are seconds of the coordinator's clock."""

from __future__ import annotations

FAILED_PAUSE = 1.0
"""Seconds between the first checkpoint that failed and the next one that ended tasks wait for."""

BACK_OFF = 5.0
"""Seconds that the next one waits at most after many failed ones, unless the interval is longer."""
_FACTOR = 4.0
_STEPS = 16


class Schedule:
    """`interval` None: none is due by itself. `min_pause` is kept after the end of each.

    After a failed one it is four times the interval, and four times that after each further one, up to BACK_OFF. The
    one that ended tasks wait for needs no interval: FAILED_PAUSE grows in the same way. So as many failures as are
    tolerated last for a while at any interval, and a location in trouble is not pestered.
    """

    def __init__(self, interval: float | None, min_pause: float) -> None:
        self._interval = interval
        self._min_pause = min_pause
        self._due: float | None = None
        self._ended = self._failed = float("-inf")
        self._failures = 0
        self._is_stopping = False

    @property
    def at(self) -> float | None:
        """The time of the next periodic one, if there is to be one."""
        if self._due is None:
            return None
        return max(self._due, self._ended + self._min_pause, self._failed + self._back_off(self._interval or 0.0))

    @property
    def retry_at(self) -> float:
        """From when on one is taken that ended tasks wait for."""
        return self._failed + self._back_off(FAILED_PAUSE / _FACTOR)

    @property
    def is_stopping(self) -> bool:
        """True if none is due any more, because the query is told to stop."""
        return self._is_stopping

    def begun(self, now: float) -> None:
        """The query runs, or a checkpoint was triggered: the next one is due an interval later."""
        self._due = None if self._interval is None or self._is_stopping else now + self._interval

    def hasten(self, now: float) -> None:
        """The next one is due now: tasks wait for its barriers."""
        self._due = None if self._interval is None or self._is_stopping else now

    def suspend(self) -> None:
        """Nothing runs: none is due before `begun`."""
        self._due = None

    def stop(self) -> None:
        """None is due any more."""
        self._is_stopping, self._due = True, None

    def go_on(self) -> None:
        """Those after the next begin are due again."""
        self._is_stopping = False

    def ended(self, now: float) -> None:
        """A checkpoint is complete, or was given up."""
        self._ended = now

    def completed(self) -> None:
        """Failures before are forgotten."""
        self._failures = 0

    def failed(self, now: float, in_a_row: int) -> None:
        """A checkpoint has failed, and so many since the last complete one."""
        self._failed = now
        self._failures = in_a_row

    def _back_off(self, unit: float) -> float:
        """The pause after the failures in a row: four times as long after each."""
        return min(unit * _FACTOR ** min(self._failures, _STEPS), BACK_OFF) if self._failures else 0.0
