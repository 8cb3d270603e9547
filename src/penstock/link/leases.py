# SPDX-License-Identifier: Apache-2.0
"""A clock for leases and deadlines that leaves out the time in which its own process did not run.

A process that was stopped, whose interpreter was held, or that was kept off the CPU, wakes up and finds all its
deadlines past, although what it waited for may have come long since and only lies unread. So each side of a lease
counts the time in which it could have heard something. Sans-I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable

TICK_SECONDS = 0.5
"""Seconds between two readings of a clock, so that it counts what passes."""


class WakingClock:
    """Seconds in which this process ran. Between two readings at most `most` seconds count: the rest was overslept.

    Its user sees to it that it is read more often than that. One thread.
    """

    def __init__(self, read: Callable[[], float] = time.monotonic, most: float = 2 * TICK_SECONDS) -> None:
        self._read = read
        self._most = most
        self._last = read()
        self._seconds = 0.0

    def now(self) -> float:
        """Seconds since it was made; never less than before."""
        current = self._read()
        self._seconds += min(max(0.0, current - self._last), self._most)
        self._last = current
        return self._seconds
