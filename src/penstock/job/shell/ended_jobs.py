# SPDX-License-Identifier: Apache-2.0
"""The ends of the last jobs, for displays that ask a moment later: without traces, so a hundred of them are small."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from penstock.job.core.result import JobEnding, JobResult

KEPT = 100


class EndedJobs:
    """On the JobMaster's event loop."""

    def __init__(self) -> None:
        self._endings: OrderedDict[str, JobEnding] = OrderedDict()

    def add(self, result: JobResult, error: str = "") -> None:
        """A job is over."""
        short = replace(result, trace=(), subtasks={})
        self._endings[result.job] = JobEnding(short, error.partition("\n")[0])
        while len(self._endings) > KEPT:
            self._endings.popitem(last=False)

    def of(self, job: str) -> JobEnding | None:
        """The end of a job; None where it is not over, or over for long."""
        return self._endings.get(job)
