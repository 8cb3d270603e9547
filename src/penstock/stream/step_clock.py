# SPDX-License-Identifier: Apache-2.0
"""The time that steps take without what others took of it: a thread that waits for a core does not work.

Steps are sized by what their rows cost. On a machine that is busy a step stands still in its middle for tens of
milliseconds while others have the cores. Counted as its cost, that would make the next steps tiny, and tiny steps
cost much more for each row: queries would be slow because they are slow. The kernel says how long a thread waited for
a core; where it does not, all time counts.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

_SCHEDULED = "/proc/thread-self/schedstat"
"""Nanoseconds on a core, nanoseconds waiting for one, turns (Linux)."""
_LINE_BYTES = 96
_NANOSECONDS = 1e9


class StepClock:
    """Seconds of the thread that made it, less those in which it could have run and had no core."""

    def __init__(self, scheduled: str = _SCHEDULED) -> None:
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(scheduled, os.O_RDONLY)

    def __call__(self) -> float:
        """The time now, in seconds, less those in which the thread waited for a core."""
        return time.monotonic() - self._waited()

    def close(self) -> None:
        """Give the kernel's file back; from then on all time counts. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _waited(self) -> float:
        if self._file is None:
            return 0.0
        return int(os.pread(self._file, _LINE_BYTES, 0).split()[1]) / _NANOSECONDS
