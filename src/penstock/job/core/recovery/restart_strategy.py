# SPDX-License-Identifier: Apache-2.0
"""The strategy by which a job goes on after a failure, or does not.

Pure: the caller says what time it is and does the waiting.

Rules. The strategy is asked once for each failure that leads to a restart, in order of time, and remembers what it
allowed. When it says None the job fails, and it stays that way. The caller says what one failure is: tasks that were
lost together with their host are one, not many. The settings are in `penstock.settings.RestartSettings`.
"""

from __future__ import annotations

from penstock.settings import RestartSettings

_FACTOR = 2.0


class RestartStrategy:
    """Never restarts; the others override `next_delay`."""

    @staticmethod
    def of(settings: RestartSettings) -> RestartStrategy:
        """The strategy that the settings name, as new."""
        if settings.strategy == "fixed":
            return FixedDelay(settings)
        return ExponentialDelay(settings) if settings.strategy == "exponential" else RestartStrategy()

    def next_delay(self, now: float) -> float | None:
        """There was a failure: the seconds to wait before the restart, or None to give up."""
        return None

    def describe(self) -> str:
        """The strategy in words, for a message that says why the job is given up."""
        return "no restarts (spark.penstock.restart.strategy is none)"


class FixedDelay(RestartStrategy):
    """A number of restarts for the whole job, each after the same wait."""

    def __init__(self, settings: RestartSettings) -> None:
        self._settings = settings
        self._used = 0

    def next_delay(self, now: float) -> float | None:
        """As `RestartStrategy.next_delay`."""
        if self._used >= self._settings.attempts:
            return None
        self._used += 1
        return self._settings.delay

    def describe(self) -> str:
        """As `RestartStrategy.describe`."""
        return (
            f"{self._used} of {self._settings.attempts} restarts used (spark.penstock.restart.attempts), "
            f"{self._settings.delay:g} s apart"
        )


class ExponentialDelay(RestartStrategy):
    """Waits that double from failure to failure, and begin anew when there was none for a while."""

    def __init__(self, settings: RestartSettings) -> None:
        self._settings = settings
        self._used = 0
        self._delay = settings.delay
        self._last_restart: float | None = None
        self._given_up = False

    def next_delay(self, now: float) -> float | None:
        """As `RestartStrategy.next_delay`. The quiet time counts from the restart, not from the failure before it."""
        if self._last_restart is not None and now - self._last_restart >= self._settings.reset_after:
            self._used, self._delay = 0, self._settings.delay
        if self._given_up or self._used >= self._settings.attempts:
            self._given_up = True
            return None
        delay = self._delay
        self._used += 1
        self._delay = min(delay * _FACTOR, self._settings.max_delay)
        self._last_restart = now + delay
        return delay

    def describe(self) -> str:
        """As `RestartStrategy.describe`."""
        settings = self._settings
        return (
            f"{self._used} of {settings.attempts} restarts used (spark.penstock.restart.attempts), after waits that "
            f"double from {settings.delay:g} s to at most {settings.max_delay:g} s and start over after "
            f"{settings.reset_after:g} s without a failure"
        )
