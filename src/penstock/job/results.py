# SPDX-License-Identifier: Apache-2.0
"""Results that are made when they are first opened: what stands behind a lazy DataFrame.

A result has a name from the start and a job when somebody opens it. All who open it share the job. One whose job
failed, or whose partitions were lost, runs again when it is opened again. One that nobody has opened by the end
of its lease is released; one that was opened stays until the JobMaster closes, because Spark keeps what it
planned and may read it at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock.job.launcher import Submission
from penstock.shuffle import ShuffleDescriptor
from penstock.shuffle.errors import PartitionExpiredError

Build = Callable[[], Submission]
"""Plans the job; called on a thread of its own, when the result is opened."""
Partitions = tuple[ShuffleDescriptor, ...]
Run = Callable[[Submission], asyncio.Future[Partitions]]
"""Submits a job: its result's partitions, when it is over."""


@dataclass(slots=True)
class _Result:
    build: Build
    opening: asyncio.Future[Partitions] | None = None
    job: str | None = None
    opened: bool = False


class Results:
    """All lazy results of one application. Lives on the JobMaster's event loop."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._results: dict[str, _Result] = {}

    def add(self, name: str, build: Build) -> None:
        """Make a result known; nothing runs."""
        self._results[name] = _Result(build)

    async def open(self, name: str) -> Partitions:
        """The partitions of a result, whose job is run if it has not been; raises what the job raises."""
        result = self._results.get(name)
        if result is None:
            raise PartitionExpiredError(f"result {name} is not known to this application any more")
        if result.opening is None:
            result.opening = asyncio.ensure_future(self._make(result))
        partitions = await asyncio.shield(result.opening)
        result.opened = True
        return partitions

    def lost(self, job: str) -> None:
        """Partitions of a job's result are gone: the next who opens it runs the job again."""
        for result in self._results.values():
            if result.job == job:
                result.opening, result.job = None, None

    def is_opened(self, job: str) -> bool:
        """Whether somebody has got the partitions that this job made."""
        return any(result.job == job and result.opened for result in self._results.values())

    async def _make(self, result: _Result) -> Partitions:
        try:
            submission = await asyncio.to_thread(result.build)
            result.job, result.opened = submission.job, False
            return await self._run(submission)
        except BaseException:
            # A kept exception would keep the frames of all who waited for it, and the next opening is to run anew.
            result.opening = None
            raise
