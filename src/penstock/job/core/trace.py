# SPDX-License-Identifier: Apache-2.0
"""What has happened in a job, in order: its beginning and its last part, however long it is."""

from __future__ import annotations

from collections import deque

TraceEntry = tuple[float, str, str]
"""Seconds since the job was submitted, the name of what happened, and to whom."""

FIRST = 2_000
LAST = 18_000
"""How many entries are kept of the beginning and of the rest."""


class Trace:
    """The trace of one job."""

    def __init__(self) -> None:
        self._first: list[TraceEntry] = []
        self._last: deque[TraceEntry] = deque(maxlen=LAST)
        self._dropped = 0

    def add(self, seconds: float, name: str, ids: str) -> None:
        """Write down an entry."""
        if len(self._first) < FIRST:
            self._first.append((seconds, name, ids))
            return
        self._dropped += len(self._last) == LAST
        self._last.append((seconds, name, ids))

    def entries(self) -> tuple[TraceEntry, ...]:
        """All that is kept; where entries were dropped in the middle, one says how many."""
        if not self._dropped:
            return (*self._first, *self._last)
        gap = (self._last[0][0], "entries_dropped", str(self._dropped))
        return (*self._first, gap, *self._last)
