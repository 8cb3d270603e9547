# SPDX-License-Identifier: Apache-2.0
"""The moments at which Spark's tasks have read parts of results, told to the driver by an accumulator.

A result is read by Spark's tasks after its job is over, and only they know when they end. Spark brings an
accumulator's updates with the end of each task, so nothing waits and no message is sent for it. One accumulator
serves an application: Spark never forgets one. Limit: a task that Spark ends early, as `take` does, tells nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pyspark import Accumulator, SparkContext
from pyspark.accumulators import AccumulatorParam

JOBS = 200
"""Results are timed of so many jobs, the last ones that were opened."""
Moments = dict[str, float]
"""The last moment, in seconds of the epoch, at which a task has read of the result of a job."""


class ReadMoments(AccumulatorParam[Any]):  # type: ignore[misc]
    """Merges the moments of tasks; the driver's own hands them on and keeps none."""

    def __init__(self, tell: Callable[[Moments], None] | None = None) -> None:
        self._tell = tell

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadMoments, ()

    def zero(self, value: Any) -> Moments:
        """No moment."""
        return {}

    def addInPlace(self, value1: Any, value2: Any) -> Moments:
        """The later moment of each job."""
        if self._tell is not None:
            self._tell(value2)
            return {}
        return {**value1, **{job: max(moment, value1.get(job, 0.0)) for job, moment in value2.items()}}


class ReadTimes:
    """Adds up how long the results of an application's jobs are read. `tell` gets a job and the seconds more."""

    def __init__(self, context: SparkContext, tell: Callable[[str, float], None]) -> None:
        self._tell = tell
        self._since: Moments = {}
        self.accumulator: Accumulator[Any] = context.accumulator({}, ReadMoments(self._read))

    def opened(self, job: str) -> None:
        """Spark has the partitions of a job's result, and reads them from now on."""
        self._since[job] = time.time()
        if len(self._since) > JOBS:
            del self._since[next(iter(self._since))]

    def _read(self, moments: Moments) -> None:
        for job, moment in moments.items():
            since = self._since.get(job)
            if since is not None and moment > since:
                self._since[job] = moment
                self._tell(job, moment - since)
