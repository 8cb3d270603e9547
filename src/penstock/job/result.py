# SPDX-License-Identifier: Apache-2.0
"""What is left of a job when it is over: figures and a trace, no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.job.states import JobState

TraceEntry = tuple[float, str, str]
"""Seconds since the job was submitted, the name of what happened, and to whom."""


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """A job in a few numbers. `back_pressured` is the share of the tasks' time spent waiting for buffers."""

    rows: int
    bytes: int
    seconds: float
    back_pressured: float


@dataclass(frozen=True, slots=True)
class JobResult:
    """How one job went. `metrics` holds, per vertex id, the sums over its subtasks."""

    job: str
    name: str
    state: JobState
    seconds: float
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    trace: tuple[TraceEntry, ...] = ()

    def statistics(self) -> JobStatistics:
        """Rows and bytes written by all vertices, and how much of their time was back-pressure."""
        busy = self._total("seconds")
        waited = self._total("back_pressured_seconds")
        return JobStatistics(
            rows=int(self._total("rows_out")),
            bytes=int(self._total("bytes_out")),
            seconds=self.seconds,
            back_pressured=waited / busy if busy else 0.0,
        )

    def trace_of(self, name: str) -> tuple[TraceEntry, ...]:
        """The entries with this name, in order."""
        return tuple(entry for entry in self.trace if entry[1] == name)

    def _total(self, metric: str) -> float:
        return sum(values.get(metric, 0.0) for values in self.metrics.values())


@dataclass(frozen=True, slots=True)
class VertexProgress:
    """One vertex of a running job: how many of its subtasks run or ended, and their sums so far."""

    vertex: int
    name: str
    parallelism: int
    running: int
    finished: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A snapshot of a job for a display."""

    job: str
    name: str
    state: JobState
    seconds: float
    vertices: tuple[VertexProgress, ...]
