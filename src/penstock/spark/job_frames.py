# SPDX-License-Identifier: Apache-2.0
"""Jobs as displays take them: out of the JobMaster's snapshots while they run, and out of their ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from penstock.graph.job_graph import JobGraph
from penstock.job.core.bottleneck import Bottleneck, StageLoad
from penstock.job.core.loads import JobLoads
from penstock.job.core.result import JobEnding, JobProgress
from penstock.job.core.result import VertexProgress as Figures
from penstock.job.core.states import JobState
from penstock.observe.progress import Note, ProgressSnapshot, ShownVertex

HELD_BACK = "held back by"
_WAITED = 0.05
"""A stage that was at work for less of its time is no reason to be told."""


class JobFrames:
    """The frames of one job."""

    def __init__(self, graph: JobGraph, clock: Callable[[], float] = time.monotonic) -> None:
        self._graph = graph
        self._clock = clock
        self._loads: JobLoads | None = None
        self.last: ProgressSnapshot | None = None

    def running(self, progress: JobProgress) -> ProgressSnapshot:
        """The job as it is now, with the stage that holds it back."""
        if self._loads is None:
            self._loads = JobLoads(sum(item.running for item in progress.vertices))
        loads, found = self._loads.look(progress, self._clock())
        frame = snapshot_of(self._graph, progress, {load.id: load for load in loads})
        self.last = replace(frame, notes=() if found is None else (_note(found),))
        return self.last

    def ended(self, ending: JobEnding | None) -> ProgressSnapshot:
        """The job's last frame: its final figures where it went well, else the last that were seen."""
        last = self.last or ProgressSnapshot(self._graph.name, (), 0.0)
        if ending is None:
            return replace(last, state="over")
        result = ending.result
        state = result.state.name.lower()
        if result.state is not JobState.FINISHED:
            return replace(last, seconds=result.seconds, state=state)
        stages = self._graph.vertices
        vertices = tuple(
            ShownVertex(item.name, 0, item.parallelism, rows, 1.0, size)
            for item, (rows, size) in ((each, _read(result.metrics.get(each.id, {}))) for each in stages)
        )
        notes = _notes(result.bottleneck, result.seconds)
        rows, size = read_by_sources(self._graph, result.metrics)
        return ProgressSnapshot(result.name, vertices, result.seconds, result.job, rows, size, notes, state)


def snapshot_of(
    graph: JobGraph, progress: JobProgress, loads: Mapping[int, StageLoad] | None = None
) -> ProgressSnapshot:
    """A job's progress as displays take it; `loads` are the work of its stages in the last seconds."""
    figures = {item.vertex: item for item in progress.vertices}
    vertices = []
    for item in progress.vertices:
        rows, size = _read(item.metrics)
        load = (loads or {}).get(item.vertex)
        busy = load.work if load is not None and load.subtasks and item.running else None
        share = _share(graph, figures, item)
        vertices.append(ShownVertex(item.name, item.running, item.parallelism, rows, share, size, busy))
    rows, size = read_by_sources(graph, {item.vertex: item.metrics for item in progress.vertices})
    return ProgressSnapshot(progress.title, tuple(vertices), progress.seconds, progress.job, rows, size)


def read_by_sources(graph: JobGraph, metrics: Mapping[int, Mapping[str, float]]) -> tuple[int, int]:
    """The rows and bytes that a job's sources have read."""
    read = [_read(metrics.get(vertex.id, {})) for vertex in graph.vertices if not graph.inputs_of(vertex.id)]
    return sum(rows for rows, _ in read), sum(size for _, size in read)


def _notes(found: Bottleneck | None, seconds: float) -> tuple[Note, ...]:
    if found is None or found.busy < _WAITED * seconds:
        return ()
    return (_note(found),)


def _note(found: Bottleneck) -> Note:
    return Note(HELD_BACK, found.name, found.reason)


def _read(metrics: Mapping[str, float]) -> tuple[int, int]:
    """Rows and bytes that a stage has read."""
    return int(metrics.get("rows_in", 0)), int(metrics.get("bytes_in", 0))


def _share(graph: JobGraph, figures: Mapping[int, Figures], item: Figures) -> float | None:
    """The share that is done: of the rows if all producers have ended and so all are known, else of the tasks."""
    done = item.finished / item.parallelism
    producers = [figures[edge.producer] for edge in graph.inputs_of(item.vertex) if not edge.is_broadcast]
    if producers and all(producer.finished >= producer.parallelism for producer in producers):
        rows = sum(producer.metrics.get("rows_out", 0.0) for producer in producers)
        if rows:
            done = max(done, min(1.0, item.metrics.get("rows_in", 0.0) / rows))
    return done if done or not item.running else None
