# SPDX-License-Identifier: Apache-2.0
"""Timers of the JobMaster's loop that count only the time in which the driver ran.

After a pause of the driver all timers are due at once, before what came meanwhile has been read. One of these looks
again then, so that a job is not failed for an answer that lies there unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.link.leases import WakingClock


class WakingTimer:
    """Calls `passed` once, on the running loop, after so many seconds of the clock."""

    def __init__(self, clock: WakingClock, seconds: float, passed: Callable[[], None]) -> None:
        self._clock = clock
        self._due = clock.now() + seconds
        self._passed = passed
        self._handle = asyncio.get_running_loop().call_later(seconds, self._look)

    def cancel(self) -> None:
        """Never call it; idempotent."""
        self._handle.cancel()

    def _look(self) -> None:
        left = self._due - self._clock.now()
        if left > 0:
            self._handle = asyncio.get_running_loop().call_later(left, self._look)
        else:
            self._passed()
