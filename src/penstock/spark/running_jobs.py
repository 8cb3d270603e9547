# SPDX-License-Identifier: Apache-2.0
"""The jobs of an application that may be running: for who shows or cancels them.

A job is added as its planning begins, by whichever way it then goes to the JobMaster, which alone knows when it ends.
So one is forgotten when the JobMaster, asked about it a while after its planning, knows nothing of it any more.
Planning may take long: it lists files, and waits for the first slots of a cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from penstock.errors import JobCancelledError
from penstock.graph.job_graph import JobGraph
from penstock.job.core.result import JobProgress

_SUBMITTED_SECONDS = 5.0
"""The seconds within which a job that was planned has been submitted."""

Ask = Callable[[str], JobProgress | None]
"""Tells the progress of a job; None if it is over, or not submitted yet."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """One job: its id, its plan, and when its planning ended, by the monotonic clock; None: it has not."""

    job: str
    graph: JobGraph
    planned_at: float | None = None


class RunningJobs:
    """Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, RunningJob] = {}
        self._stopped: dict[str, str] = {}
        """Why those that were told to stop are to stop."""

    def add(self, job: str, graph: JobGraph) -> None:
        """A job is being planned, which `planned` is to be around."""
        with self._lock:
            self._jobs[job] = RunningJob(job, graph)

    @contextmanager
    def planned(self, job: str) -> Iterator[None]:
        """The rest of its planning; raises JobCancelledError at the end if it was told to stop meanwhile."""
        try:
            yield
            self._refuse_stopped(job)
        except BaseException:
            self._drop(job)
            raise

    def all(self) -> tuple[RunningJob, ...]:
        """The jobs that may be running, oldest first."""
        with self._lock:
            return tuple(self._jobs.values())

    def stop(self, cause: str) -> tuple[str, ...]:
        """The jobs to be cancelled: all there are, those included that are planned and not submitted yet."""
        with self._lock:
            self._stopped.update(dict.fromkeys(self._jobs, cause))
            return tuple(self._jobs)

    def progress(self, ask: Ask) -> list[tuple[RunningJob, JobProgress]]:
        """Those that run, and how far they are; the others are forgotten."""
        found = []
        for running in self.all():
            progress = ask(running.job)
            if progress is not None:
                found.append((running, progress))
            elif running.planned_at is not None and self._clock() - running.planned_at > _SUBMITTED_SECONDS:
                self._drop(running.job)
        return found

    def _refuse_stopped(self, job: str) -> None:
        with self._lock:
            cause = self._stopped.get(job)
            if job in self._jobs:
                self._jobs[job] = replace(self._jobs[job], planned_at=self._clock())
        if cause is not None:
            raise JobCancelledError(f"job {job} was cancelled: {cause}")

    def _drop(self, job: str) -> None:
        with self._lock:
            self._jobs.pop(job, None)
            self._stopped.pop(job, None)
