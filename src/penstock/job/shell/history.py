# SPDX-License-Identifier: Apache-2.0
"""The lives of jobs as events, for their logs and for a page, and a finished job out of its log again.

| event | says |
|---|---|
| `job_submitted` | its name, its stages and edges, whether it is a query, the line of code that asked for it |
| `trace` | an entry of its trace: seconds since it was submitted, name, ids |
| `checkpoint` | one that is complete or has failed, with the figures of its tasks |
| `progress` | sums of each stage's figures, its load, and what holds the job back: every second, later every ten |
| `profile` | the seconds of each stack of users' functions, by stage: after ten seconds, then more and more seldom |
| `subtask` | at its end: the last figures of one subtask, and where it ran |
| `job_ended` | its state, its seconds, the error's first line, and the rest of it |
| `result_read` | after that: the seconds in which its result was read, once whole or in parts |

The figures of a result are made of its subtasks' again when a log is read, so they are equal or the log is not whole.
Keys of rows are in no event.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import SettingError
from penstock.graph import JobGraph
from penstock.job.core.bottleneck import Bottleneck, StageLoad, bounding, load_of
from penstock.job.core.loads import JobLoads
from penstock.job.core.result import (
    CheckpointCounts,
    JobProgress,
    JobResult,
    SubtaskStatus,
    TraceEntry,
    entries_in,
    summed,
)
from penstock.job.core.slow_parts import SlowPart, slowest_part
from penstock.job.core.states import JobState
from penstock.job.launcher import Submission
from penstock.observe.event_log import read_events
from penstock.shuffle.metrics import PROFILE_GROUP

LEAST_SECONDS, MOST_SECONDS = 1.0, 10.0
"""Between two `progress` events at the beginning, and later on."""
_PACE = 60
"""An event of that kind comes when this part of the time before has passed again."""
OVER = 50
"""So many jobs that are over, the last ones, are known, so that it is told when their results are read."""
_PROFILE_SECONDS, _PROFILE_GROWTH, _PROFILE_PAUSE = 10.0, 1.5, 600.0
"""A profile is told after so many seconds, when the job is so many times as old again, and after such a pause."""
_DETAILS = 16_000
"""Characters of an error that are kept after its first line."""


class JobEvents(Protocol):
    """Takes the events of jobs. It never waits, and raises nothing."""

    def say(self, job: str, event: str, details: Mapping[str, object]) -> None:
        """Something has happened to a job."""

    def end(self, job: str) -> None:
        """Nothing more happens to a job."""

    def close(self) -> None:
        """Nothing happens any more."""


@dataclass(frozen=True, slots=True)
class JobMoment:
    """A job that runs, now: its progress, the loads of its stages, what holds it back, and its slowest snapshot."""

    progress: JobProgress
    loads: tuple[StageLoad, ...]
    found: Bottleneck | None
    slow: SlowPart | None


Look = Callable[[JobMoment], None]
"""Takes a job's present, every second; not kept in any event."""


@dataclass(slots=True)
class _Story:
    """The things that were said of a job so far."""

    loads: JobLoads
    stages: Mapping[str, str]
    """Names by uid."""
    trace: int = 0
    """The number of entries of its trace."""
    checkpoint: int = 0
    progress_at: float = 0.0
    profile_at: float = _PROFILE_SECONDS


class JobHistory:
    """Tells the lives of one JobMaster's jobs to one listener. On its event loop."""

    def __init__(self, listener: JobEvents, look: Look | None = None) -> None:
        self.listener = listener
        self._look = look
        self._told: dict[str, _Story] = {}
        self._over: deque[str] = deque(maxlen=OVER)

    def opened(self, submission: Submission, seconds: float = 0.0) -> None:
        """A job was submitted, so many seconds ago; nothing where that is known."""
        job, graph = submission.job, submission.graph
        if job in self._told:
            return
        slots = submission.slots_total if graph.streaming is None else None
        self._told[job] = _Story(JobLoads(slots), {each.uid: each.name for each in graph.vertices})
        began = round(time.time() - seconds, 3)
        said = {**plan_of(graph), "place": submission.place, "slots": submission.slots_total, "began": began}
        said |= {"planned": round(submission.planned, 3), "settings": submission.settings.told()}
        self.listener.say(job, "job_submitted", said)

    def looked(self, progress: JobProgress, trace: tuple[TraceEntry, ...]) -> None:
        """A job goes on; `trace` has the entries so far."""
        job, told = progress.job, self._told.get(progress.job)
        if told is None:
            return
        self._trace(job, told, trace)
        self._checkpoints(job, told, progress.checkpoints, progress.seconds)
        loads, found = told.loads.look(progress, time.monotonic())
        moment = JobMoment(progress, loads, found, slowest_part(progress.checkpoints, told.stages))
        if self._look is not None:
            self._look(moment)
        pace = min(MOST_SECONDS, max(LEAST_SECONDS, progress.seconds / _PACE))
        if progress.seconds - told.progress_at >= pace:
            told.progress_at = progress.seconds
            self.listener.say(job, "progress", _progress(moment))
        if progress.seconds >= told.profile_at:
            told.profile_at = min(_PROFILE_GROWTH * progress.seconds, progress.seconds + _PROFILE_PAUSE)
            if stages := profiles_in({each.vertex: each.metrics for each in progress.vertices}):
                self.listener.say(job, "profile", {"seconds": progress.seconds, "stages": stages})

    def ended(self, result: JobResult, error: str = "") -> None:
        """A job is over."""
        job, told = result.job, self._told.pop(result.job, None)
        if told is None:
            return
        self._trace(job, told, result.trace)
        self._checkpoints(job, told, result.checkpoints, result.seconds)
        for vertex, subtasks in result.subtasks.items():
            statuses = result.statuses.get(vertex, (SubtaskStatus("unknown"),) * len(subtasks))
            for number, (figures, status) in enumerate(zip(subtasks, statuses, strict=True)):
                said = {"stage": vertex, "subtask": number, "figures": dict(figures), **asdict(status)}
                self.listener.say(job, "subtask", said)
        first, _, rest = error.partition("\n")
        ended = {"state": result.state.name, "seconds": result.seconds, "slots": result.slots}
        self.listener.say(job, "job_ended", {**ended, "error": first, "details": rest[:_DETAILS]})
        self.listener.end(job)
        self._over.append(job)

    def read(self, job: str, seconds: float) -> None:
        """The result of a job that is over was read; nothing where its life was not told."""
        if job in self._over:
            self.listener.say(job, "result_read", {"seconds": round(seconds, 3)})
            self.listener.end(job)

    def close(self) -> None:
        """Write what waits."""
        self.listener.close()

    def _checkpoints(self, job: str, told: _Story, counts: CheckpointCounts, seconds: float) -> None:
        for report in counts.reports:
            if report.number > told.checkpoint:
                told.checkpoint = report.number
                said = {"seconds": seconds, "number": report.number, "took": report.seconds, "cause": report.cause}
                so_far = {"completed": counts.completed, "failed": counts.failed}
                tasks = {name: dict(figures) for name, figures in report.tasks.items()}
                self.listener.say(job, "checkpoint", {**said, **so_far, "tasks": tasks})

    def _trace(self, job: str, told: _Story, entries: tuple[TraceEntry, ...]) -> None:
        count = entries_in(entries)
        fresh, told.trace = count - told.trace, count
        for seconds, name, ids in entries[len(entries) - min(fresh, len(entries)) :]:
            self.listener.say(job, "trace", {"seconds": seconds, "name": name, "ids": ids})


def plan_of(graph: JobGraph) -> dict[str, Any]:
    """A job's plan, as its first event tells it."""
    stages = [
        {"id": each.id, "name": each.name, "parallelism": each.parallelism, "uid": each.uid}
        for each in graph.vertices
    ]
    edges = [
        {
            "id": each.id,
            "producer": each.producer,
            "consumer": each.consumer,
            "exchange": each.exchange.kind,
            "mode": each.kind.label,
            "service": each.service,
        }
        for each in graph.edges
    ]
    kept = None if graph.kept_by is None else {"service": graph.kept_by.service, "mode": graph.kept_by.kind.label}
    is_query = graph.streaming is not None
    plan = {"name": graph.name, "stages": stages, "edges": edges, "is_query": is_query}
    return {**plan, "result": list(graph.result), "kept_by": kept, "notes": list(graph.notes)}


def profiles_in(totals: Mapping[int, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The seconds of stacks by stage, of those that were profiled."""
    found = {
        str(stage): {
            name.removeprefix(PROFILE_GROUP): took for name, took in figures.items() if name.startswith(PROFILE_GROUP)
        }
        for stage, figures in totals.items()
    }
    return {stage: stacks for stage, stacks in found.items() if stacks}


def _without_profile(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if not name.startswith(PROFILE_GROUP)}


def _progress(moment: JobMoment) -> dict[str, Any]:
    found, slow = moment.found, moment.slow
    return {
        "seconds": moment.progress.seconds,
        "stages": {str(each.vertex): _without_profile(each.metrics) for each in moment.progress.vertices},
        "loads": {
            str(each.id): [round(each.work, 3), round(each.pressed, 3)] for each in moment.loads if each.subtasks
        },
        "held_back": None if found is None else held_back(found.without_keys),
        "slow_part": None if slow is None else {**asdict(slow), "text": slow.text},
    }


def held_back(found: Bottleneck) -> dict[str, Any]:
    """A bottleneck as an event tells it."""
    return {
        "stage": found.stage,
        "name": found.name,
        "cause": found.cause.value,
        "operator": found.operator,
        "subtask": found.subtask,
        "text": found.text,
    }


def replayed(path: Path) -> JobResult:
    """The result of a finished job out of its event log; raises SettingError where that is none, or has no end."""
    try:
        events = list(read_events(path))
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} can't be read as an event log: {error}") from error
    begun, ended = _one(events, "job_submitted", path), _one(events, "job_ended", path)
    stages = {each["id"]: each["name"] for each in begun["stages"]}
    told = {stage: list(_subtasks(events, stage)) for stage in stages}
    subtasks = {stage: tuple(each["figures"] for each in each_of) for stage, each_of in told.items()}
    loads = [StageLoad(stage, name, tuple(map(load_of, subtasks[stage]))) for stage, name in stages.items()]
    return JobResult(
        begun["job"],
        begun["name"],
        JobState[ended["state"]],
        ended["seconds"],
        {stage: summed(figures) for stage, figures in subtasks.items()},
        tuple((each["seconds"], each["name"], each["ids"]) for each in events if each["event"] == "trace"),
        stages,
        None if begun["is_query"] else bounding(loads, ended["slots"]),
        subtasks,
        ended["slots"],
        {stage: tuple(map(_status, each_of)) for stage, each_of in told.items()},
    )


def _subtasks(events: list[dict[str, Any]], stage: int) -> Iterator[dict[str, Any]]:
    return (each for each in events if each["event"] == "subtask" and each["stage"] == stage)


def _status(event: Mapping[str, Any]) -> SubtaskStatus:
    return SubtaskStatus(event["state"], event["attempt"], event["environment"])


def _one(events: list[dict[str, Any]], name: str, path: Path) -> dict[str, Any]:
    found = [each for each in events if each["event"] == name]
    if len(found) != 1:
        raise SettingError(
            f"{path} has {len(found)} events {name}, and the log of a finished job has one: does the job still run,"
            " or has its driver gone?"
        )
    return found[0]
