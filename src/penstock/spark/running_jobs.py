# SPDX-License-Identifier: Apache-2.0
"""The jobs of an application that may be running: for who shows or cancels them.

A job is added when it is planned, by whichever way it then goes to the JobMaster, which alone knows when it ends. So
one is forgotten when the JobMaster, asked about it later, knows nothing of it any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.graph.job_graph import JobGraph
from penstock.job.core.result import JobProgress
from penstock.shuffle.errors import JobCancelledError

_SUBMITTED_SECONDS = 5.0
"""By then a job that was planned has been submitted."""

Ask = Callable[[str], JobProgress | None]
"""How far a job is; None where it is over, or not submitted yet."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """One job: its id, its plan, and when it was planned, by the monotonic clock."""

    job: str
    graph: JobGraph
    planned_at: float


class RunningJobs:
    """Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, RunningJob] = {}
        self._stopped: dict[str, str] = {}
        """Why those that were told to stop are to stop."""

    def add(self, job: str, graph: JobGraph) -> None:
        """A job has been planned."""
        with self._lock:
            self._jobs[job] = RunningJob(job, graph, self._clock())

    def all(self) -> tuple[RunningJob, ...]:
        """Those that may be running, oldest first."""
        with self._lock:
            return tuple(self._jobs.values())

    def stop(self, cause: str) -> tuple[str, ...]:
        """The jobs to be cancelled: all there are, those included that are planned and not submitted yet."""
        with self._lock:
            self._stopped.update(dict.fromkeys(self._jobs, cause))
            return tuple(self._jobs)

    def refuse_stopped(self, job: str) -> None:
        """Before a job is submitted: raise JobCancelledError if it was told to stop meanwhile."""
        with self._lock:
            cause = self._stopped.get(job)
        if cause is not None:
            raise JobCancelledError(f"job {job} was cancelled: {cause}")

    def progress(self, ask: Ask) -> list[tuple[RunningJob, JobProgress]]:
        """Those that run, and how far they are; the others are forgotten."""
        found = []
        for running in self.all():
            progress = ask(running.job)
            if progress is not None:
                found.append((running, progress))
            elif self._clock() - running.planned_at > _SUBMITTED_SECONDS:
                with self._lock:
                    self._jobs.pop(running.job, None)
                    self._stopped.pop(running.job, None)
        return found
