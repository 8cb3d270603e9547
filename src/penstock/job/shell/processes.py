# SPDX-License-Identifier: Apache-2.0
"""The environment processes of an application as a page shows them: what each said in its last heartbeat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.job.shell.environments import AttachedEnvironment
from penstock.job.shell.figures import TaskFigures
from penstock.observe.samples import busy_seconds
from penstock.shuffle import AttemptId


@dataclass(frozen=True, slots=True)
class TaskNow:
    """A task that runs beside an environment: its place in its job, rows so far, and shares of its last seconds."""

    job: str
    stage: int
    subtask: int
    rows: float
    busy_seconds: float
    shares: dict[str, float]


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


_Reports = Mapping[AttemptId, tuple[Mapping[str, float], dict[str, float]]]
"""Figures and shares of tasks."""


def processes_now(
    attached: Iterable[AttachedEnvironment], figures: TaskFigures, now: float
) -> tuple[ProcessNow, ...]:
    """All that are attached; `now` is a moment of the JobMaster's clock."""
    told = {attempt: (figured, shares) for attempt, figured, shares in figures}
    return tuple(_one(environment, told, now) for environment in attached)


def _one(environment: AttachedEnvironment, told: _Reports, now: float) -> ProcessNow:
    said, heard, silent = environment.said, environment.heard, max(0.0, now - environment.last_heard)
    if heard is None:
        return ProcessNow(said.environment, said.host, said.pid, "", silent, {}, (), ())
    partitions = tuple(
        {"service": each.service, "kind": each.kind, "state": each.state, "count": each.count, "bytes": each.bytes}
        for each in heard.partitions
    )
    tasks = tuple(_task(attempt, *told[attempt]) for attempt, _ in heard.tasks if attempt in told)
    place = (said.environment, said.host, said.pid, heard.metrics, silent)
    return ProcessNow(*place, dict(heard.statistics), partitions, tasks)


def _task(attempt: AttemptId, figures: Mapping[str, float], shares: dict[str, float]) -> TaskNow:
    rows = figures.get("rows_in", 0.0)
    return TaskNow(attempt.job, attempt.vertex, attempt.subtask, rows, busy_seconds(figures), shares)
