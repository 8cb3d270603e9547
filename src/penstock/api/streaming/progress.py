# SPDX-License-Identifier: Apache-2.0
"""The content of a query's `lastProgress`: PySpark's fields, and beside them those of stages and checkpoints."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.graph import JobGraph
from penstock.graph.streaming import APPROXIMATE, vertex_of_part
from penstock.job.core.bottleneck import Bottleneck, Load, StageLoad, holding_back
from penstock.job.core.loads import Loads
from penstock.job.core.result import CheckpointCounts, CheckpointReport, JobProgress, VertexProgress
from penstock.job.core.slow_parts import slowest_part
from penstock.shuffle.metrics import OPERATOR_GROUP, WATERMARK

_TASK_FIGURES = {
    "startDelaySeconds": "start_seconds",
    "alignmentSeconds": "align_seconds",
    "syncSeconds": "freeze_seconds",
    "asyncSeconds": "store_seconds",
    "bytes": "bytes",
    "inFlightBytes": "in_flight_bytes",
    "referredBytes": "referred_bytes",
    "loggedBytes": "logged_bytes",
}
_SHOWN = 0.01


class ProgressReports:
    """Makes each report out of two snapshots of the job: rates are those of the time between them."""

    def __init__(self, graph: JobGraph, names: Mapping[str, str]) -> None:
        self._graph = graph
        self._names = dict(names)
        self._sources = [vertex.id for vertex in graph.vertices if not graph.inputs_of(vertex.id)]
        self._stages = {vertex.uid: vertex.name for vertex in graph.vertices}
        self._sinks = [vertex.id for vertex in graph.vertices if not graph.outputs_of(vertex.id)]
        self._last: dict[int, Mapping[str, float]] = {}
        self._loads: dict[int, Loads] = {}
        self._at = time.monotonic()
        self.is_idle = False
        """True if nothing came to any stage in the time of the last report. One that says nothing may be at work."""

    def report(self, progress: JobProgress) -> dict[str, Any]:
        """The report of the time since the last one."""
        now = time.monotonic()
        seconds, self._at = max(now - self._at, 1e-6), now
        loads = {vertex.vertex: self._load(vertex) for vertex in progress.vertices}
        stages = [self._stage(vertex, loads[vertex.vertex]) for vertex in progress.vertices]
        found = holding_back(list(loads.values()))
        operators = self._state_operators(progress)
        read = sum(stage["rowsIn"] for stage in stages if stage["id"] in self._sources)
        written = sum(stage["rowsIn"] for stage in stages if stage["id"] in self._sinks)
        self.is_idle = all(stage["rowsIn"] == 0 and self._has_told(stage["id"], progress) for stage in stages)
        self._last = {vertex.vertex: vertex.metrics for vertex in progress.vertices}
        rates = {"numInputRows": read, "inputRowsPerSecond": read / seconds, "processedRowsPerSecond": read / seconds}
        checkpoints = progress.checkpoints
        return {
            **self._names,
            "timestamp": timestamp(),
            "batchId": -1 if checkpoints.last is None else checkpoints.last,
            "batchDuration": round(seconds * 1000),
            **rates,
            "durationMs": {
                "triggerExecution": round(seconds * 1000),
                "checkpoint": round(checkpoints.seconds * 1000),
            },
            "eventTime": self._event_time(progress),
            "stateOperators": operators,
            "sources": [
                _source(vertex, stage, seconds)
                for vertex, stage in zip(progress.vertices, stages, strict=True)
                if stage["id"] in self._sources
            ],
            "sink": {"description": self._sink_name(), "numOutputRows": written},
            "stages": stages,
            "heldBackBy": None if found is None else found.name,
            "bottleneck": None if found is None else _shown(found),
            "checkpoints": _checkpoints(checkpoints, self._stages),
            "restarts": checkpoints.restarts,
            "lastRestart": restart_cause(checkpoints),
            "recovery": self._recovery(progress),
        }

    def _recovery(self, progress: JobProgress) -> dict[str, Any] | None:
        """The rows that were lost where tasks begin anew alone; None for a query that loses none."""
        found = progress.lost_rows
        if found is None:
            return None
        titles = {edge.id: self._graph.title_of(edge) for edge in self._graph.edges}
        return {
            "kind": APPROXIMATE,
            "restartsAlone": progress.checkpoints.restarts_alone,
            "rowsLost": sum(found.lost.values()),
            "rowsLostByExchange": {titles[edge]: rows for edge, rows in found.lost.items() if rows},
            "channelsNotCounted": found.open,
            "tasksNotCounted": found.uncounted,
            "rowsForgotten": found.forgotten,
            "rowsReadAgain": found.again,
        }

    def _event_time(self, progress: JobProgress) -> dict[str, str]:
        """The event time at the query's end, as PySpark writes it; empty where there is none yet."""
        ends = [vertex for vertex in progress.vertices if vertex.vertex in self._sinks]
        tasks = [figures for vertex in ends for figures in vertex.subtasks or (vertex.metrics,)]
        told = [figures[WATERMARK] for figures in tasks if WATERMARK in figures]
        return {"watermark": _moment(datetime.fromtimestamp(min(told), UTC))} if told else {}

    def _state_operators(self, progress: JobProgress) -> list[dict[str, Any]]:
        """The stages that have state, as PySpark reports operators: with what came since the last report."""
        seconds = _commit_seconds(progress.checkpoints)
        return [
            self._state_operator(vertex, seconds[self._graph.vertex(vertex.vertex).uid])
            for vertex in progress.vertices
            if "state_rows" in vertex.metrics
        ]

    def _state_operator(self, vertex: VertexProgress, commit_seconds: float) -> dict[str, Any]:
        """The entry of one stage in `stateOperators`."""
        late = self._since(vertex, "rows_late") - self._since(vertex, "rows_late_before")
        worked = sum(self._since(vertex, name) for name in vertex.metrics if name.startswith(OPERATOR_GROUP))
        return {
            "operatorName": vertex.name,
            "numRowsTotal": round(vertex.metrics["state_rows"]),
            "numRowsUpdated": round(self._since(vertex, "rows_in")),
            "numRowsRemoved": 0,
            "allUpdatesTimeMs": round(worked * 1000),
            "allRemovalsTimeMs": 0,
            "commitTimeMs": round(commit_seconds * 1000),
            "memoryUsedBytes": round(vertex.metrics.get("state_bytes", 0.0)),
            "numRowsDroppedByWatermark": max(0, round(late)),
            "numShufflePartitions": vertex.parallelism,
            "numStateStoreInstances": vertex.parallelism,
            "customMetrics": {},
        }

    def _load(self, vertex: VertexProgress) -> StageLoad:
        """The work of each subtask since the last report."""
        return self._loads.setdefault(vertex.vertex, Loads(vertex.vertex, vertex.name)).since_last(vertex, self._at)

    def _since(self, vertex: VertexProgress, name: str) -> float:
        """The growth of a stage's figure since the last report; all of it where the stage began anew."""
        before, now = self._last.get(vertex.vertex, {}).get(name, 0.0), vertex.metrics.get(name, 0.0)
        return now - before if now >= before else now

    def _stage(self, vertex: VertexProgress, load: StageLoad) -> dict[str, Any]:
        ran = self._since(vertex, "seconds")
        waits = ("idle_seconds", "back_pressured_seconds", "storing_seconds")
        shares = [min(1.0, self._since(vertex, name) / max(ran, 1e-6)) for name in waits]
        idle, pressed, storing = shares if ran else (1.0, 0.0, 0.0)  # one that does not run is busy with nothing
        return {
            "id": vertex.vertex,
            "name": vertex.name,
            "tasks": vertex.parallelism,
            "running": vertex.running,
            "rowsIn": round(self._since(vertex, "rows_in")),
            "rowsOut": round(self._since(vertex, "rows_out")),
            "busy": round(max(0.0, 1.0 - idle - pressed - storing), 3),
            "idle": round(idle, 3),
            "backPressured": round(pressed, 3),
            "busiest": {"subtask": load.busiest, "busy": round(load.work, 3)},
            "operators": _operators(load.subtasks[load.busiest]),
        }

    def _has_told(self, vertex: int, progress: JobProgress) -> bool:
        """Tell whether tasks of a stage have reported since the last report: one in a long call does not."""
        (now,) = (each.metrics.get("seconds", 0.0) for each in progress.vertices if each.vertex == vertex)
        return now != self._last.get(vertex, {}).get("seconds", 0.0)

    def _sink_name(self) -> str:
        return self._graph.vertex(self._sinks[0]).name.rpartition(" + ")[2] if self._sinks else ""


def timestamp() -> str:
    """This moment, as PySpark's reports write it."""
    return _moment(datetime.now(UTC))


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def restart_cause(counts: CheckpointCounts) -> str | None:
    """Why the query began anew last: the first line."""
    return counts.cause.partition("\n")[0] or None


def _commit_seconds(counts: CheckpointCounts) -> Counter[str]:
    """By the uids of stages the seconds of their tasks for the last complete checkpoint."""
    found: Counter[str] = Counter()
    last = next((report for report in reversed(counts.reports) if not report.cause), None)
    for part, figures in () if last is None else last.tasks.items():
        took = sum(figures.get(name, 0.0) for name in ("freeze_seconds", "store_seconds"))
        found[vertex_of_part(part)[0]] += took  # type: ignore[assignment]
    return found


def _source(vertex: VertexProgress, stage: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """A source's rows in the time of the report, and what it knows of and has not read yet, if it can tell.

    Its positions lie in checkpoints, so PySpark's offsets are empty.
    """
    outstanding = [vertex.metrics.get(f"{name}_outstanding") for name in ("files", "bytes")]
    files, size = (None if value is None else round(value) for value in outstanding)
    rate = stage["rowsIn"] / seconds
    return {
        "description": stage["name"],
        **dict.fromkeys(("startOffset", "endOffset", "latestOffset"), ""),
        "numInputRows": stage["rowsIn"],
        "inputRowsPerSecond": rate,
        "processedRowsPerSecond": rate,
        "numOutputRows": stage["rowsOut"],
        "filesOutstanding": files,
        "bytesOutstanding": size,
    }


def _operators(load: Load) -> dict[str, float]:
    """The operators of the busiest subtask that took more than a hundredth of its time, the largest first."""
    shares = {name: round(load.share(seconds), 3) for name, seconds in load.operators.items()}
    return {name: shares[name] for name in sorted(shares, key=lambda name: -shares[name]) if shares[name] > _SHOWN}


def _shown(found: Bottleneck) -> dict[str, Any]:
    return {
        "stage": found.stage,
        "name": found.name,
        "cause": found.cause.value,
        "operator": found.operator,
        "subtask": found.subtask,
        "busy": round(found.busy / found.span, 3),
        "keys": [{"key": key, "share": share} for key, share in found.keys],
        "text": found.text,
    }


def _slowest(counts: CheckpointCounts, stages: Mapping[str, str]) -> dict[str, Any] | None:
    """The task that took longest for the last complete checkpoint, and which part of it took longest there."""
    found = slowest_part(counts, stages)
    if found is None:
        return None
    return {
        "stage": found.stage,
        "subtask": found.subtask,
        "phase": found.phase,
        "seconds": round(found.seconds, 3),
        "text": found.text,
    }


def _checkpoints(counts: CheckpointCounts, stages: Mapping[str, str]) -> dict[str, Any]:
    return {
        "completed": counts.completed,
        "failed": counts.failed,
        "last": counts.last,
        "lastSeconds": round(counts.seconds, 3),
        "lastFailure": counts.failure or None,
        "slowest": _slowest(counts, stages),
    }


def checkpoint_reports(counts: CheckpointCounts) -> list[dict[str, Any]]:
    """The last checkpoints as the handle shows them, oldest first."""
    return [
        {
            "id": report.number,
            "seconds": round(report.seconds, 4),
            "failure": report.cause or None,
            "bytes": _sum_of(report, "bytes"),
            "inFlightBytes": _sum_of(report, "in_flight_bytes"),
            "referredBytes": _sum_of(report, "referred_bytes"),
            "tasks": [
                {"task": name, **{title: round(figures.get(key, 0.0), 4) for title, key in _TASK_FIGURES.items()}}
                for name, figures in sorted(report.tasks.items())
            ],
        }
        for report in counts.reports
    ]


def _sum_of(report: CheckpointReport, figure: str) -> int:
    """A figure of all tasks together."""
    return round(sum(figures.get(figure, 0.0) for figures in report.tasks.values()))
