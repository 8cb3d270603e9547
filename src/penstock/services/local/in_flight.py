# SPDX-License-Identifier: Apache-2.0
"""How full a streaming writer's segments get, so that all that is in flight takes about a given time to be read.

A writer has a bounded number of segments out at once, and gets one back when it is read. So while readers are slow,
what it can write in a second is what they read; with segments filled only so far that all of them hold a target time
of that, a barrier behind them waits for about that time. Fast readers get full segments. Each writer has a limit of
its own, so each exchange follows its own readers.
"""

from __future__ import annotations

from collections.abc import Callable

LEAST_BYTES = 4 << 10
"""Below this a segment costs more than its rows."""
WINDOW_SECONDS = 0.25
_WEIGHT = 0.5


class SegmentFill:
    """The bytes that go into a segment. `seconds` is the target time; 0 or less: always whole segments."""

    def __init__(self, seconds: float, segments: int, size: int, clock: Callable[[], float]) -> None:
        self.limit = size
        """Bytes from which on a segment counts as full."""
        self._seconds = seconds
        self._segments = max(1, segments)
        self._size = size
        self._clock = clock
        self._since = clock()
        self._bytes = 0
        self._rate: float | None = None

    def took(self, count: int) -> None:
        """So many bytes were written."""
        if self._seconds <= 0:
            return
        self._bytes += count
        now = self._clock()
        passed = now - self._since
        if passed < WINDOW_SECONDS:
            return
        rate = self._bytes / passed
        self._rate = rate if self._rate is None else self._rate + _WEIGHT * (rate - self._rate)
        wanted = int(self._rate * self._seconds / self._segments)
        self.limit = max(min(LEAST_BYTES, self._size // 16), min(self._size, wanted))
        self._since, self._bytes = now, 0
