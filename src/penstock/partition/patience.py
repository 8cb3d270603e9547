# SPDX-License-Identifier: Apache-2.0
"""The wait of a writer for room on a disk that is full: files of others may go in a moment.

A task that fails is run again from its beginning, so a fullness that passes is cheaper to sit out.
"""

from __future__ import annotations

import time
from time import sleep as pause

SECONDS = 3.0
_PAUSE_SECONDS = 0.1


class Patience:
    """One wait, from the first time that there was no room."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end: float | None = None

    def waits(self) -> bool:
        """There is no room: wait a little and give True, or give False when it has been so for SECONDS."""
        now = time.monotonic()
        if self._end is None:
            self._end = now + SECONDS
        if now >= self._end:
            return False
        pause(_PAUSE_SECONDS)
        return True
