# SPDX-License-Identifier: Apache-2.0
"""The fill of a streaming writer's segments, so that all rows in flight take about a given time to be read.

A writer has a bounded number of segments out at once, and gets one back when it is read. So while readers are slow,
what it can write in a second is what they read; with segments filled only so far that all of them hold a target time
of that, a barrier behind them waits for about that time. Fast readers get full segments. Each writer has a limit of
its own, so each exchange follows its own readers.

Its first segments are small: full ones, written before any is read, would be in flight until a slow reader is through
with them. The rate is a mean over time, each window by its length. Segments come back in bursts, after an unaligned
snapshot all at once: a short window with a burst in it must not count as much as the long one without.
"""

from __future__ import annotations

import math
from collections.abc import Callable

LEAST_BYTES = 4 << 10
"""Below this a segment costs more than its rows."""
WINDOW_SECONDS = 0.25
_FIRST_PART = 32
"""The first segments are filled to this part of their size, as no rate is known yet."""


class SegmentFill:
    """The bytes that go into a segment. `seconds` is the target time; 0 or less: always whole segments."""

    def __init__(self, seconds: float, segments: int, size: int, clock: Callable[[], float]) -> None:
        self.limit = size if seconds <= 0 else self._within(size // _FIRST_PART, size)
        """Bytes from which on a segment counts as full."""
        self._seconds = seconds
        self._segments = max(1, segments)
        self._size = size
        self._clock = clock
        self._since = clock()
        self._bytes = 0
        self._rate = 0.0

    def took(self, count: int) -> None:
        """So many bytes were written."""
        if self._seconds <= 0:
            return
        self._bytes += count
        now = self._clock()
        passed = now - self._since
        if passed < WINDOW_SECONDS:
            return
        weight = 1.0 - math.exp(-passed / max(self._seconds, WINDOW_SECONDS))
        self._rate += weight * (self._bytes / passed - self._rate)
        self.limit = self._within(int(self._rate * self._seconds / self._segments), self._size)
        self._since, self._bytes = now, 0

    @staticmethod
    def _within(wanted: int, size: int) -> int:
        return max(min(LEAST_BYTES, size // 16), min(size, wanted))
