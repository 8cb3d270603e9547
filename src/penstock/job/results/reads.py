# SPDX-License-Identifier: Apache-2.0
"""Which runs of a result each Spark stage has read. Pure.

A result that is made again may hold its rows in another order, and, where its plan deals rows out by the order in
which they come, in other partitions. One Spark stage reads a DataFrame once, so all that its tasks read should be of
one run. Kept per result: for each of the last stages that read it, a bit per partition and run. Limit: of more stages
than that at the same time, the ones that began first are forgotten.
"""

from __future__ import annotations

from penstock.link.master import ReadResult

_STAGES = 256


class StageReads:
    """Which partitions of which run each Spark stage has read of one result."""

    def __init__(self) -> None:
        self._stages: dict[int, dict[str, int]] = {}

    def note(self, request: ReadResult, job: str) -> None:
        """It is told to read its partition of the run that this job was."""
        if request.stage < 0:
            return
        runs = self._stages.setdefault(request.stage, {})
        for other in runs:
            runs[other] &= ~(1 << request.index)
        runs[job] = runs.get(job, 0) | 1 << request.index
        while len(self._stages) > _STAGES:
            del self._stages[next(iter(self._stages))]

    def undo(self, request: ReadResult) -> None:
        """It could not, so nothing of that partition has been read."""
        runs = self._stages.get(request.stage, {})
        runs[request.job] = runs.get(request.job, 0) & ~(1 << request.index)

    def has_read_another(self, request: ReadResult, job: str) -> bool:
        """Tell whether other tasks of its stage were told to read another run than this job."""
        others = ~(1 << request.index)
        runs = self._stages.get(request.stage, {})
        return any(bits & others for run, bits in runs.items() if run != job)
