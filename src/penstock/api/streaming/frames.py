# SPDX-License-Identifier: Apache-2.0
"""A query as displays and notebooks show it: out of the last look at its job, and the report that was made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.graph import JobGraph
from penstock.graph.drawing import StageShares, draw_graph
from penstock.job.core.result import JobProgress, JobResult
from penstock.observe.frames import frame_html, last_html
from penstock.observe.progress import Note, ProgressSnapshot, ShownVertex

_LONG_SECONDS = 0.5
"""A task is named that a checkpoint has waited for as long."""


class QueryFrames:
    """The frames of one query; `key` tells it from other jobs."""

    def __init__(self, graph: JobGraph, title: str, key: str) -> None:
        self._graph = graph
        self._report: Mapping[str, Any] = {}
        vertices = tuple(ShownVertex(each.name, 0, each.parallelism, 0) for each in graph.vertices)
        self._last = ProgressSnapshot(title, vertices, 0.0, key)

    def look(self, progress: JobProgress, report: Mapping[str, Any] | None) -> None:
        """Its job is so now; a report is made as soon as it has its slots."""
        self._report = report or {}
        stages = {stage["id"]: stage for stage in self._report.get("stages", ())}
        vertices = tuple(
            ShownVertex(
                each.name,
                each.running,
                each.parallelism,
                int(each.metrics.get("rows_in", 0)),
                None,
                int(each.metrics.get("bytes_in", 0)),
                stages[each.vertex]["busiest"]["busy"] if each.vertex in stages and each.running else None,
            )
            for each in progress.vertices
        )
        self._keep(vertices, progress.seconds, tuple(notes_of(self._report)))

    def end(self, result: JobResult) -> None:
        """It has ended well, with these figures."""
        figures = [result.metrics.get(vertex.id, {}) for vertex in self._graph.vertices]
        vertices = tuple(
            ShownVertex(
                each.name, 0, each.parallelism, int(told.get("rows_in", 0)), None, int(told.get("bytes_in", 0))
            )
            for each, told in zip(self._graph.vertices, figures, strict=True)
        )
        self._report = {}
        self._keep(vertices, result.seconds, ())

    def _keep(self, vertices: tuple[ShownVertex, ...], seconds: float, notes: tuple[Note, ...]) -> None:
        pairs = zip(self._graph.vertices, vertices, strict=True)
        read = [each for vertex, each in pairs if not self._graph.inputs_of(vertex.id)]
        rows, size = sum(each.rows for each in read), sum(each.bytes for each in read)
        self._last = replace(self._last, vertices=vertices, seconds=seconds, rows=rows, bytes=size, notes=notes)

    def now(self, message: str = "", state: str = "") -> ProgressSnapshot:
        """The last frame: of a query that waits with a message of that, of one that has ended with its state."""
        title = f"{self._last.job} ({message})" if message else self._last.job
        return replace(self._last, job=title, state=state)

    def page(self, message: str = "", state: str = "") -> str:
        """The query as HTML: its graph, coloured by the last report, and its stages."""
        frame = self.now(message, state)
        unknown = (None,) * len(frame.vertices)
        shares = {
            stage["id"]: StageShares(stage["busy"], stage["backPressured"])
            for stage in self._report.get("stages", ())
        }
        found = self._report.get("bottleneck")
        drawn = draw_graph(self._graph, shares, None if found is None else found["stage"])
        return (last_html(frame) if state else frame_html(frame, unknown)) + drawn


def notes_of(report: Mapping[str, Any]) -> list[Note]:
    """The sentences of a report that name a stage: what holds the query back, and what its checkpoints wait for."""
    notes = []
    found = report.get("bottleneck")
    if found is not None:
        notes.append(Note("held back by", found["name"], found["text"].removeprefix(f"{found['name']}: ")))
    checkpoints = report.get("checkpoints", {})
    slowest = checkpoints.get("slowest")
    if slowest is not None and slowest["seconds"] >= _LONG_SECONDS:
        lead = f"checkpoint {checkpoints['last']} took {checkpoints['lastSeconds']:.1f} s and waited most for"
        notes.append(Note(lead, slowest["stage"], slowest["text"].removeprefix(f"{slowest['stage']}: ")))
    return notes
