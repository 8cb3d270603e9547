# SPDX-License-Identifier: Apache-2.0
"""Reports to the JobMaster: numbered, in order, each sent until the JobMaster has taken it.

A report whose answer did not come is sent again under the same number; the JobMaster drops what it has had. So none
is lost while the driver pauses or the line is mended, and none counts twice. Sans-I/O. Limit: what waits is not
bounded here; an environment reports once for each of its partitions and tasks, and ends when its lease runs out.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable

from penstock.link.master import Report


class Outbox:
    """What one environment has to report. `wake` is called when it is no longer empty."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = _nothing
        self._last = 0
        self._waiting: deque[Report] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def first(self) -> Report | None:
        """What is to be sent now, and again until it is taken."""
        return self._waiting[0] if self._waiting else None

    def put(self, report: Report) -> None:
        """Report this, behind everything else."""
        self._last += 1
        self._waiting.append(dataclasses.replace(report, number=self._last))
        if len(self._waiting) == 1:
            self.wake()

    def taken(self, number: int) -> None:
        """The JobMaster has this one, and what was before it; idempotent."""
        while self._waiting and self._waiting[0].number <= number:
            self._waiting.popleft()


def _nothing() -> None:
    pass
