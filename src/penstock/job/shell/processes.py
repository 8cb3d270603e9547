# SPDX-License-Identifier: Apache-2.0
"""The environment processes of an application as a page shows them: what each said in its last heartbeat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.job.core.result import JobProgress
from penstock.job.shell.environments import AttachedEnvironment
from penstock.job.shell.figures import TaskFigures
from penstock.link.figures import UseFigures
from penstock.observe.samples import busy_seconds
from penstock.shuffle.metrics import PEAK_RESIDENT, RESIDENT


@dataclass(frozen=True, slots=True)
class TaskNow:
    """A task that runs beside an environment: its place in its job, rows so far, and shares of its last seconds."""

    job: str
    stage: int
    subtask: int
    rows: float
    busy_seconds: float
    shares: dict[str, float]
    resident: float | None = None
    peak_resident: float | None = None
    """The memory of its process, and the most while it ran."""


@dataclass(frozen=True, slots=True)
class ProcessNow:
    """One environment process; `silent` are the seconds since its last word."""

    name: str
    host: str
    pid: int
    metrics: str
    silent: float
    figures: dict[str, float]
    partitions: tuple[dict[str, Any], ...]
    tasks: tuple[TaskNow, ...]
    uses: tuple[UseFigures, ...] = ()
    """Its disks, workers and users."""


def processes_now(
    attached: Iterable[AttachedEnvironment], running: Iterable[JobProgress], figures: TaskFigures, now: float
) -> tuple[ProcessNow, ...]:
    """All that are attached, with the tasks of jobs that run; `now` is a moment of the JobMaster's clock."""
    shares = {(attempt.job, attempt.vertex, attempt.subtask): told for attempt, _, told in figures}
    tasks: dict[str, list[TaskNow]] = {}
    for progress in running:
        for stage in progress.vertices:
            for number, (status, runs) in enumerate(zip(stage.statuses, stage.runs, strict=True)):
                if runs:
                    place = (progress.job, stage.vertex, number)
                    tasks.setdefault(status.environment, []).append(
                        _task(place, stage.subtasks[number], shares.get(place, {}))
                    )
    return tuple(_one(each, tuple(tasks.get(each.name, ())), now - each.last_heard) for each in attached)


def _one(environment: AttachedEnvironment, tasks: tuple[TaskNow, ...], silent: float) -> ProcessNow:
    said, heard = environment.said, environment.heard
    if heard is None:
        return ProcessNow(said.environment, said.host, said.pid, "", max(0.0, silent), {}, (), tasks)
    partitions = tuple(
        {"service": each.service, "kind": each.kind, "state": each.state, "count": each.count, "bytes": each.bytes}
        for each in heard.partitions
    )
    place = (said.environment, said.host, said.pid, heard.metrics, max(0.0, silent))
    return ProcessNow(*place, dict(heard.statistics), partitions, tasks, heard.uses)


def _task(place: tuple[str, int, int], figures: Mapping[str, float], shares: dict[str, float]) -> TaskNow:
    memory = (figures.get(name) for name in (RESIDENT, PEAK_RESIDENT))
    return TaskNow(*place, figures.get("rows_in", 0.0), busy_seconds(figures), shares, *memory)
