# SPDX-License-Identifier: Apache-2.0
"""The lives of jobs as events of their logs, and a finished job out of its log again.

| event | says |
|---|---|
| `job_submitted` | its name, its stages, whether it is a query |
| `trace` | an entry of its trace: seconds since it was submitted, name, ids |
| `checkpoint` | one that is complete or has failed, with the figures of its tasks |
| `progress` | sums of each stage's figures, every ten seconds |
| `subtask` | at its end: the last figures of one subtask |
| `job_ended` | its state, its seconds, and the error's first line |

The figures of a result are made of its subtasks' again when a log is read, so they are equal or the log is not whole.
Keys of rows stand in no log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.graph import JobGraph
from penstock.job.core.bottleneck import StageLoad, bounding, load_of
from penstock.job.core.result import JobProgress, JobResult, TraceEntry, entries_in, summed
from penstock.job.core.states import JobState
from penstock.observe.event_log import read_events
from penstock.observe.job_logs import JobLogs
from penstock.shuffle.errors import SettingError

PROGRESS_SECONDS = 10.0


class JobHistory:
    """The logs of the jobs of one JobMaster. On its event loop."""

    def __init__(self, logs: JobLogs) -> None:
        self._logs = logs
        self._traced: dict[str, int] = {}
        """The number of entries of each job's trace that are written."""
        self._checkpoints: dict[str, int] = {}
        self._progress_at: dict[str, float] = {}

    def opened(self, job: str, graph: JobGraph) -> None:
        """A job was submitted."""
        self._traced[job] = self._checkpoints[job] = 0
        self._progress_at[job] = 0.0
        stages = [{"id": each.id, "name": each.name, "parallelism": each.parallelism} for each in graph.vertices]
        said = {"name": graph.name, "stages": stages, "is_query": graph.streaming is not None}
        self._logs.say(job, "job_submitted", said)

    def looked(self, progress: JobProgress, trace: tuple[TraceEntry, ...]) -> None:
        """A job goes on; `trace` has the entries so far."""
        job = progress.job
        self._trace(job, trace)
        for report in progress.checkpoints.reports:
            if report.number > self._checkpoints[job]:
                self._checkpoints[job] = report.number
                said = {"number": report.number, "took": report.seconds, "cause": report.cause}
                tasks = {name: dict(figures) for name, figures in report.tasks.items()}
                self._logs.say(job, "checkpoint", {**said, "tasks": tasks})
        if progress.seconds - self._progress_at[job] >= PROGRESS_SECONDS:
            self._progress_at[job] = progress.seconds
            stages = {str(each.vertex): dict(each.metrics) for each in progress.vertices}
            self._logs.say(job, "progress", {"seconds": progress.seconds, "stages": stages})

    def ended(self, result: JobResult, error: str = "") -> None:
        """A job is over."""
        job = result.job
        self._trace(job, result.trace)
        for vertex, subtasks in result.subtasks.items():
            for number, figures in enumerate(subtasks):
                self._logs.say(job, "subtask", {"stage": vertex, "subtask": number, "figures": dict(figures)})
        said = {"state": result.state.name, "seconds": result.seconds, "slots": result.slots}
        self._logs.say(job, "job_ended", {**said, "error": error.partition("\n")[0]})
        self._logs.end(job)
        for known in (self._traced, self._checkpoints, self._progress_at):
            known.pop(job, None)

    def close(self) -> None:
        """Write what waits."""
        self._logs.close()

    def _trace(self, job: str, entries: tuple[TraceEntry, ...]) -> None:
        count = entries_in(entries)
        fresh, self._traced[job] = count - self._traced[job], count
        for seconds, name, ids in entries[len(entries) - min(fresh, len(entries)) :]:
            self._logs.say(job, "trace", {"seconds": seconds, "name": name, "ids": ids})


def replayed(path: Path) -> JobResult:
    """The result of a finished job out of its event log; raises SettingError where that is none, or has no end."""
    try:
        events = list(read_events(path))
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} can't be read as an event log: {error}") from error
    begun, ended = _one(events, "job_submitted", path), _one(events, "job_ended", path)
    stages = {each["id"]: each["name"] for each in begun["stages"]}
    subtasks = {stage: tuple(_figures(events, stage)) for stage in stages}
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
    )


def _figures(events: list[dict[str, Any]], stage: int) -> Iterator[Mapping[str, float]]:
    return (each["figures"] for each in events if each["event"] == "subtask" and each["stage"] == stage)


def _one(events: list[dict[str, Any]], name: str, path: Path) -> dict[str, Any]:
    found = [each for each in events if each["event"] == name]
    if len(found) != 1:
        raise SettingError(
            f"{path} has {len(found)} events {name}, and the log of a finished job has one: does the job still run,"
            " or has its driver gone?"
        )
    return found[0]
