# SPDX-License-Identifier: Apache-2.0
"""One job as its events tell it: those of a JobMaster that runs, or those of a log, in the same way.

So a job that is over and its replayed log are equal here. Only of a job that runs there is more: its present, with
the figures of each subtask. Memory is bounded, whatever the job does: a series, the last spans, checkpoints and
errors. Pure: it knows no clock and no file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.job.core.bottleneck import StageLoad, bounding, load_of
from penstock.job.core.result import SubtaskStatus, summed
from penstock.job.shell.history import JobMoment, held_back, profiles_in
from penstock.web.phases import JobPhase, JobTimes, phases_of
from penstock.web.series import OUTSTANDING, Series, SeriesPoint, rows_of
from penstock.web.timeline import Timeline
from penstock.web.titles import titles_of

CHECKPOINTS, ERRORS, PARTS = 100, 200, 1_000
"""Kept at most, the last ones; of tasks' parts all those of the newest checkpoint, however many they are."""
_FAULTS = {
    "restart": "restart",
    "task_lost": "task lost",
    "environment_lost": "environment lost",
    "checkpoint_given_up": "checkpoint given up",
    "checkpoint_damaged": "checkpoint damaged",
    "entries_dropped": "entries of the trace that are not kept",
}


@dataclass(slots=True)
class CheckpointSums:
    """All checkpoints of a job, in numbers."""

    completed: int = 0
    failed: int = 0
    seen: int = 0
    seconds: list[float] = field(default_factory=lambda: [float("inf"), 0.0, 0.0])
    """The least, the sum, the most."""
    bytes: list[float] = field(default_factory=lambda: [float("inf"), 0.0, 0.0])

    def add(self, took: float, size: float) -> None:
        """Count a complete checkpoint with its seconds and bytes."""
        self.seen += 1
        for sums, value in ((self.seconds, took), (self.bytes, size)):
            sums[:] = min(sums[0], value), sums[1] + value, max(sums[2], value)


class JobRecord:
    """The record of one job."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.plan: Mapping[str, Any] = {"name": job, "stages": [], "edges": [], "is_query": False}
        self.state = "CREATED"
        self.seconds = 0.0
        self.slots = 0
        self.waits = ""
        self.error = ""
        self.is_over = False
        self.figures: dict[int, list[Mapping[str, float]]] = {}
        self.statuses: dict[int, list[SubtaskStatus]] = {}
        self.loads: dict[int, StageLoad] = {}
        """Of the last seconds, while it runs; of all its time when it is over."""
        self.levels: Mapping[int, tuple[float, float]] = {}
        """Work and waiting for room, as events told them last."""
        self.totals: Mapping[int, Mapping[str, float]] = {}
        """Sums of the figures, as events told them last."""
        self.profiles: Mapping[str, Mapping[str, float]] = {}
        """The seconds of stacks of users' functions, by stage, as they were told last."""
        self.present: Mapping[str, Any] | None = None
        """The stage that holds it back now, without rows' data."""
        self.found: Mapping[str, Any] | None = None
        """The one that bounded a batch job, or held a query back when one did so last."""
        self.words = ""
        """The reason of the present one, with a hot key's value."""
        self.slow: Mapping[str, Any] | None = None
        self.sums = CheckpointSums()
        self.checkpoints: deque[Mapping[str, Any]] = deque(maxlen=CHECKPOINTS)
        """Without their tasks."""
        self.parts: dict[int, Mapping[str, Mapping[str, float]]] = {}
        """The figures of the tasks of the newest ones, by number."""
        self.errors: deque[tuple[float, str, str]] = deque(maxlen=ERRORS)
        self.series = Series()
        self.timeline = Timeline()
        self.times = JobTimes()
        self.titles: Mapping[int, str] = {}
        """The short names of its stages."""

    @property
    def is_query(self) -> bool:
        """True for a streaming query."""
        return bool(self.plan["is_query"])

    def whole_loads(self) -> list[StageLoad]:
        """The work of all stages in the whole time of a batch job so far."""
        figures = self.figures.items()
        return [StageLoad(stage, self.titles[stage], tuple(map(load_of, each))) for stage, each in figures]

    def phases(self) -> tuple[JobPhase, ...]:
        """The phases of a batch job so far; none of a query, which has no end."""
        if self.is_query:
            return ()
        fed = {edge["consumer"] for edge in self.plan["edges"]}
        return phases_of(self.times, self.seconds, self.whole_loads(), self.titles.keys() - fed)

    def statistics(self) -> dict[str, int]:
        """The sizes of what is kept."""
        return {
            "points": len(self.series.points()),
            "spans": len(self.timeline.spans()),
            "checkpoints": len(self.checkpoints),
            "parts": sum(map(len, self.parts.values())),
            "errors": len(self.errors),
            "subtasks": sum(map(len, self.figures.values())),
        }

    # --- events

    def take(self, event: str, said: Mapping[str, Any]) -> None:
        """Something has happened; events of other kinds are passed over."""
        match event:
            case "job_submitted":
                self.plan, self.slots = said, said.get("slots", 0)
                self.titles, self.times.planned = titles_of(said["stages"]), said.get("planned", 0.0)
                self.figures = {stage["id"]: [] for stage in said["stages"]}
                self.statuses = {stage["id"]: [] for stage in said["stages"]}
            case "trace":
                self._trace(said["seconds"], said["name"], said["ids"])
            case "checkpoint":
                self._checkpoint(said)
            case "progress":
                self._progress(said)
            case "profile":
                self.profiles = said["stages"]
            case "subtask":
                stage = said["stage"]
                if said["subtask"] == 0:
                    self.figures[stage], self.statuses[stage] = [], []
                self.figures[stage].append(said["figures"])
                self.statuses[stage].append(SubtaskStatus(said["state"], said["attempt"], said["environment"]))
            case "job_ended":
                self._end(said)
            case "result_read":
                self.times.back += said["seconds"]

    def _trace(self, seconds: float, name: str, ids: str) -> None:
        self.seconds = max(self.seconds, seconds)
        self.timeline.add(seconds, name, ids)
        self.times.add(seconds, name, ids)
        if name in _FAULTS:
            self.errors.append((seconds, _FAULTS[name], ids))
        elif name == "task_finished" and ids.endswith("FAILED"):
            self.errors.append((seconds, "task failed", ids.partition(" ")[0]))
        elif name == "job_admitted" and not self.is_over:
            self.state = "RUNNING"

    def _checkpoint(self, said: Mapping[str, Any]) -> None:
        self.sums.completed, self.sums.failed = said["completed"], said["failed"]
        sums = summed(said["tasks"].values())
        told = {name: sums.get(name, 0.0) for name in ("bytes", "in_flight_bytes")}
        self.checkpoints.append({**{name: said[name] for name in ("number", "seconds", "took", "cause")}, **told})
        self.parts[said["number"]] = said["tasks"]
        while len(self.parts) > 1 and sum(map(len, self.parts.values())) > PARTS:
            del self.parts[next(iter(self.parts))]
        if not said["cause"]:
            self.sums.add(said["took"], told["bytes"])

    def _progress(self, said: Mapping[str, Any]) -> None:
        self.seconds, self.slow, self.present = said["seconds"], said["slow_part"], said["held_back"]
        self.found = self.present or self.found
        self.totals = {int(stage): figures for stage, figures in said["stages"].items()}
        self.levels = {int(stage): (load[0], load[1]) for stage, load in said["loads"].items()}
        self.series.add(_point(self.seconds, self.totals, self.levels))

    def _end(self, said: Mapping[str, Any]) -> None:
        self.state, self.seconds, self.slots = said["state"], said["seconds"], said["slots"]
        self.error = "\n".join(filter(None, (said["error"], said.get("details", ""))))
        self.is_over, self.waits, self.words, self.present = True, "", "", None
        self.timeline.end(self.seconds)
        if self.error:
            self.errors.append((self.seconds, "the end", self.error))
        self.loads = {stage.id: stage for stage in self.whole_loads() if stage.subtasks}
        if not self.is_query:
            found = bounding(list(self.loads.values()), self.slots)
            self.found = None if found is None else held_back(found.without_keys)
        self.totals = {stage: summed(each) for stage, each in self.figures.items()}
        self.profiles = profiles_in(self.totals) or self.profiles
        self.series.add(_point(self.seconds, self.totals, {}))

    # --- the present of a job that runs

    def look(self, moment: JobMoment) -> None:
        """Take the job as it is now; nothing where it is over."""
        if self.is_over:
            return
        progress = moment.progress
        self.state, self.seconds, self.waits = progress.state.name, progress.seconds, progress.waits
        for stage in progress.vertices:
            self.figures[stage.vertex], self.statuses[stage.vertex] = list(stage.subtasks), list(stage.statuses)
        self.loads = {load.id: load for load in moment.loads}
        self.totals = {stage.vertex: stage.metrics for stage in progress.vertices}
        self.profiles = profiles_in(self.totals)
        self.words = "" if moment.found is None else moment.found.reason
        self.present = None if moment.found is None else held_back(moment.found.without_keys)
        self.slow = None if moment.slow is None else {"text": moment.slow.text, "seconds": moment.slow.seconds}


def _point(
    seconds: float, stages: Mapping[int, Mapping[str, float]], loads: Mapping[int, tuple[float, float]]
) -> SeriesPoint:
    waiting = [figures[OUTSTANDING] for figures in stages.values() if OUTSTANDING in figures]
    rows = {stage: rows_of(figures) for stage, figures in stages.items()}
    return SeriesPoint(seconds, rows, loads, sum(waiting) if waiting else None)
