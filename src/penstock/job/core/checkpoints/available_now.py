# SPDX-License-Identifier: Apache-2.0
"""When a query that takes what is available stops: its sources have all given that, in one attempt.

A later attempt begins anew: its sources stand where the last checkpoint has them, and have to catch up again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class AvailableNow:
    """The sources of one query that have not caught up."""

    def __init__(self) -> None:
        self._behind: set[Hashable] | None = None
        self._has_caught_up = self._was_stopped = False

    def begun(self, sources: Iterable[Hashable]) -> None:
        """An attempt runs with these."""
        self._behind = set(sources)

    def caught_up(self, source: Hashable) -> bool:
        """One has given what was there; True if it was the last one, so that the query stops."""
        if self._behind is None or self._has_caught_up:
            return False
        self._behind.discard(source)
        self._has_caught_up = not self._behind
        return self._has_caught_up

    def stopped(self) -> None:
        """The query was told to stop: that holds in later attempts too."""
        self._was_stopped = True

    def interrupted(self) -> bool:
        """The attempt is over; True if the query had begun to stop, and the next attempt must not."""
        goes_on = self._has_caught_up and not self._was_stopped
        self._behind, self._has_caught_up = None, False
        return goes_on
