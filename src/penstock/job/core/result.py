# SPDX-License-Identifier: Apache-2.0
"""The remains of a job that is over: figures and a trace, no data."""

from __future__ import annotations

import html
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.graph.job_graph import JobGraph
from penstock.job.core.bottleneck import Bottleneck
from penstock.job.core.recovery.lost_rows import LostRows
from penstock.job.core.states import JobState
from penstock.shuffle import ShuffleDescriptor
from penstock.shuffle.metrics import KEY_GROUP, PEAK_RESIDENT, RESIDENT, ROWS_GROUP, WATERMARK

TraceEntry = tuple[float, str, str]
"""Seconds since the job was submitted, the name of what happened, and to whom."""

FIRST = 2_000
LAST = 18_000
"""The number of entries that are kept of the beginning and of the rest."""


_DROPPED = "entries_dropped"


class Trace:
    """The entries of one job, in order: its beginning and its last part, however long it is."""

    def __init__(self) -> None:
        self._first: list[TraceEntry] = []
        self._last: deque[TraceEntry] = deque(maxlen=LAST)
        self._dropped = 0

    def add(self, seconds: float, name: str, ids: str) -> None:
        """Write down an entry."""
        if len(self._first) < FIRST:
            self._first.append((seconds, name, ids))
            return
        self._dropped += len(self._last) == LAST
        self._last.append((seconds, name, ids))

    def entries(self) -> tuple[TraceEntry, ...]:
        """All that is kept; where entries were dropped in the middle, one says how many."""
        if not self._dropped:
            return (*self._first, *self._last)
        gap = (self._last[0][0], _DROPPED, str(self._dropped))
        return (*self._first, gap, *self._last)


def entries_in(trace: tuple[TraceEntry, ...]) -> int:
    """The number of entries that a trace had, with those that were dropped in its middle."""
    return sum(int(ids) if name == _DROPPED else 1 for _, name, ids in trace)


def summed(figures: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Added up by name, but of processes' memory the most; shares of keys and moments are none that could be."""
    sums: dict[str, float] = {}
    for told in figures:
        for name, value in told.items():
            if name in (RESIDENT, PEAK_RESIDENT):
                sums[name] = max(sums.get(name, 0.0), value)
            elif not name.startswith((KEY_GROUP, ROWS_GROUP, WATERMARK)):
                sums[name] = sums.get(name, 0.0) + value
    return sums


@dataclass(frozen=True, slots=True)
class SubtaskStatus:
    """One subtask: its state in a word, the number of its attempt, and the environment beside which that runs."""

    state: str
    attempt: int = 0
    environment: str = ""


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """A job in a few numbers. `back_pressured` is the share of the tasks' time spent waiting for buffers."""

    rows: int
    bytes: int
    seconds: float
    back_pressured: float


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """The report of one checkpoint. `cause` says why it failed, empty where it is complete.

    `tasks` has each task's figures, by its part's name: `start_seconds`, `align_seconds`, `freeze_seconds` (taking
    the snapshot), `store_seconds`, `bytes`, and of these `in_flight_bytes`.
    """

    number: int
    seconds: float
    cause: str
    tasks: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    """The number of checkpoints that a query took, the last complete one, and why the last one failed, if one has.

    `seconds` is how long the last one took; `restarts` counts how often the query began anew, `cause` says why last,
    `restarts_alone` those in which the tasks that had failed did so alone.
    `reports` are those of the last ones, oldest first. `restored_bytes` are those of the rows in flight with which
    the query began, or began anew: as long as they are not read, checkpoints hold them too.
    """

    completed: int = 0
    failed: int = 0
    last: int | None = None
    seconds: float = 0.0
    failure: str = ""
    restarts: int = 0
    restarts_alone: int = 0
    cause: str = ""
    reports: tuple[CheckpointReport, ...] = ()
    restored_bytes: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class JobResult:
    """The report of one job.

    `metrics` holds, per vertex id, the sums over its subtasks; `stages` the vertices' names.
    """

    job: str
    name: str
    state: JobState
    seconds: float
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    trace: tuple[TraceEntry, ...] = ()
    stages: Mapping[int, str] = field(default_factory=dict)
    bottleneck: Bottleneck | None = None
    """The stage whose work bounds the time."""
    subtasks: Mapping[int, tuple[Mapping[str, float], ...]] = field(default_factory=dict, repr=False)
    """The last figures of each subtask, per vertex id."""
    slots: int = 0
    """The application's task slots at its end."""
    statuses: Mapping[int, tuple[SubtaskStatus, ...]] = field(default_factory=dict, repr=False)
    """The end of each subtask, and where it ran last, per vertex id."""
    checkpoints: CheckpointCounts = field(default=CheckpointCounts(), repr=False, compare=False)
    """A query's last ones."""
    lost_rows: LostRows | None = field(default=None, repr=False, compare=False)
    """Those of a query whose tasks begin anew alone."""

    def __repr__(self) -> str:
        """One line for people."""
        figures = self.statistics()
        return (
            f"job {self.job} ({self.name}): {self.state.name.lower()} in {self.seconds:.2f} s,"
            f" {figures.rows:,} rows and {figures.bytes / 1e6:,.1f} MB written"
        )

    def _repr_html_(self) -> str:
        """A table for notebooks: a row for each stage."""
        heads = ("stage", "rows in", "rows out", "MB out", "task seconds", "back-pressured")
        rows = "".join(_html_row(self._stage(vertex), "td") for vertex in sorted(self.metrics))
        found = "" if self.bottleneck is None else f"<p>{html.escape(self.bottleneck.text)}</p>"
        return f"<p>{html.escape(repr(self))}</p><table>{_html_row(heads, 'th')}{rows}</table>{found}"

    def _stage(self, vertex: int) -> tuple[str, ...]:
        metrics = self.metrics[vertex]
        busy, waited = metrics.get("seconds", 0.0), metrics.get("back_pressured_seconds", 0.0)
        return (
            self.stages.get(vertex, f"stage {vertex}"),
            f"{int(metrics.get('rows_in', 0)):,}",
            f"{int(metrics.get('rows_out', 0)):,}",
            f"{metrics.get('bytes_out', 0) / 1e6:,.1f}",
            f"{busy:.2f}",
            f"{waited / busy if busy else 0:.0%}",
        )

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

    def last_progress(self) -> JobProgress:
        """The job at its end, as a snapshot."""
        vertices = tuple(
            VertexProgress(
                vertex, name, len(told), 0, len(told), self.metrics.get(vertex, {}), told, (False,) * len(told)
            )
            for vertex, name in self.stages.items()
            for told in (self.subtasks.get(vertex, ()),)
        )
        return JobProgress(
            self.job, self.name, self.state, self.seconds, vertices, self.checkpoints, lost_rows=self.lost_rows
        )

    def trace_of(self, name: str) -> tuple[TraceEntry, ...]:
        """The entries with this name, in order."""
        return tuple(entry for entry in self.trace if entry[1] == name)

    def _total(self, metric: str) -> float:
        return sum(values.get(metric, 0.0) for values in self.metrics.values())


@dataclass(frozen=True, slots=True)
class JobEnding:
    """The end of a job, for displays: its result without trace and subtasks, and the error's first line, or none."""

    result: JobResult
    error: str = ""


def _html_row(cells: tuple[str, ...], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job that went well: its figures, the partitions of its result, and the plan as it was run."""

    result: JobResult
    partitions: tuple[ShuffleDescriptor, ...]
    graph: JobGraph | None = field(default=None, repr=False)

    @property
    def result_bytes(self) -> int:
        """The bytes of the partitions, as Arrow."""
        return self._written("bytes_out")

    @property
    def result_rows(self) -> int:
        """The number of their rows."""
        return self._written("rows_out")

    def _written(self, metric: str) -> int:
        vertices = {item.partition.dataset.number for item in self.partitions}
        return int(sum(self.result.metrics.get(vertex, {}).get(metric, 0.0) for vertex in vertices))


@dataclass(frozen=True, slots=True)
class VertexProgress:
    """One vertex of a running job: how many subtasks run or ended, their sums so far, and the figures of each."""

    vertex: int
    name: str
    parallelism: int
    running: int
    finished: int
    metrics: Mapping[str, float]
    subtasks: tuple[Mapping[str, float], ...] = ()
    runs: tuple[bool, ...] = ()
    """Tells of each subtask whether it runs."""
    statuses: tuple[SubtaskStatus, ...] = ()
    """Tells of each subtask how far it is, and where."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A snapshot of a job for a display; `checkpoints` are those of a streaming query."""

    job: str
    name: str
    state: JobState
    seconds: float
    vertices: tuple[VertexProgress, ...]
    checkpoints: CheckpointCounts = CheckpointCounts()
    waits: str = ""
    """The thing that a job waits for if it can't begin, in words; empty if it waits for its turn alone."""
    lost_rows: LostRows | None = None
    """Of a query whose tasks begin anew alone: the rows that it has lost by that."""

    @property
    def title(self) -> str:
        """Its name, with what it waits for."""
        return f"{self.name} ({self.waits})" if self.waits else self.name
