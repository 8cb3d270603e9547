# SPDX-License-Identifier: Apache-2.0
"""The time of a batch job in phases, and the one sentence on where it went.

| phase | is the time |
|---|---|
| planning | from the action to the job's submission |
| slots | until the job had its turn and its slots |
| start | without a task at work before the first one and between two attempts of the job |
| reading, function, shuffle | with tasks at work, in parts as large as their work of each kind |
| end | from the last task's end until the job's |
| way back | in which Spark, or the driver, read the rows of the result |

They add up to the whole. `function` is the work of functions and verbs; `shuffle` that of exchanges: writing, reading
what others wrote, waiting for room and for rows that no task makes any more. A stage's share is that of the job's
time which its longest subtask, or all of them on the slots, took at least: forty rows are no busy stage. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

from penstock.job.core.bottleneck import Load, StageLoad, bound_seconds
from penstock.shuffle.metrics import READING, WRITING

PLANNING, SLOTS, START, END, BACK = "planning", "slots", "start", "end", "way back"
READ, FUNCTION, SHUFFLE = "reading", "function", "shuffle"
AT_WORK = (READ, FUNCTION, SHUFFLE)
_SAID = {
    PLANNING: "planning, before {stage} could be asked for",
    SLOTS: "waiting for slots, before {stage} could begin",
    START: "the start of tasks, before {stage} was at work",
    END: "the end, after {stage} had its last row",
    BACK: "the way back, in which Spark read the rows of {stage}",
}


@dataclass(frozen=True, slots=True)
class JobPhase:
    """One of them; `stage` is the one that was waited for, or had most of the work."""

    name: str
    seconds: float
    stage: int | None = None


@dataclass(slots=True)
class JobTimes:
    """The moments of one job, out of its trace, in seconds since it was submitted."""

    planned: float = 0.0
    """The seconds before it was submitted."""
    back: float = 0.0
    """The seconds of reading its result."""
    admitted: float | None = None
    first: tuple[float, int] | None = None
    """The first task at work, and its stage."""
    last: tuple[float, int] | None = None
    """The last one that ended."""
    quiet: float = 0.0
    """The seconds between first and last with no task at work."""
    stages: dict[int, tuple[float, float | None]] = field(default_factory=dict)
    """The beginning and the end of each stage; no end while tasks of it are at work."""
    _live: dict[str, int] = field(default_factory=dict)

    def add(self, seconds: float, name: str, ids: str) -> None:
        """An entry of the trace."""
        key, _, _ = ids.partition(" ")
        if name == "job_admitted" and self.admitted is None:
            self.admitted = seconds
        elif name == "task_deployed" and (stage := _stage_of(key)) is not None:
            if not self._live and self.last is not None:
                self.quiet += max(0.0, seconds - self.last[0])
            self.first = self.first or (seconds, stage)
            self._live[key] = stage
            self.stages[stage] = (self.stages.get(stage, (seconds, None))[0], None)
        elif name in ("task_finished", "task_lost") and key in self._live:
            stage = self._live.pop(key)
            self.last = (seconds, stage)
            if stage not in self._live.values():
                self.stages[stage] = (self.stages[stage][0], seconds)

    @property
    def is_quiet(self) -> bool:
        """True while no task is at work."""
        return not self._live

    def duration(self, stage: int, now: float) -> float | None:
        """The seconds of a stage, from its first task's beginning to its last one's end."""
        if stage not in self.stages:
            return None
        begin, end = self.stages[stage]
        return (now if end is None else end) - begin


def _stage_of(key: str) -> int | None:
    place = key.rpartition("/v")[2].partition(".")[0]
    return int(place) if place.isdigit() else None


def phases_of(
    times: JobTimes, now: float, stages: Sequence[StageLoad], sources: Iterable[int]
) -> tuple[JobPhase, ...]:
    """The phases of a job that is `now` so many seconds old, without those that took no time."""
    admitted = now if times.admitted is None else min(times.admitted, now)
    begun, first_stage = times.first or (now, None)
    begun = max(begun, admitted)
    ended, last_stage = (now, None) if not times.is_quiet or times.last is None else times.last
    first_stage = first_stage if first_stage is not None else next((stage.id for stage in stages), None)
    worked = max(0.0, ended - begun - times.quiet)
    work = _work(stages, frozenset(sources))
    found = [
        JobPhase(PLANNING, times.planned, first_stage),
        JobPhase(SLOTS, admitted, first_stage),
        JobPhase(START, begun - admitted + times.quiet, first_stage),
        *_parts_of(worked, work),
        JobPhase(END, max(0.0, now - max(ended, begun)), last_stage),
        JobPhase(BACK, times.back, last_stage),
    ]
    return tuple(phase for phase in found if phase.seconds > 0)


def _work(stages: Sequence[StageLoad], sources: frozenset[int]) -> dict[tuple[str, int], float]:
    """The seconds of all tasks by kind of work and stage."""
    work: dict[tuple[str, int], float] = {}
    for stage in stages:
        for load in stage.subtasks:
            for kind, seconds in _kinds(load, is_source=stage.id in sources).items():
                work[kind, stage.id] = work.get((kind, stage.id), 0.0) + seconds
    return work


def _kinds(load: Load, *, is_source: bool) -> dict[str, float]:
    kinds = dict.fromkeys(AT_WORK, 0.0)
    for operator, seconds in load.operators.items():
        kinds[kind_of(operator, is_source=is_source)] += seconds
    kinds[FUNCTION] += max(0.0, load.busy - sum(kinds.values()))
    kinds[SHUFFLE] += load.storing
    return kinds


def kind_of(operator: str, *, is_source: bool) -> str:
    """The phase to which the work of an operator belongs."""
    if operator == READING:
        return READ if is_source else SHUFFLE
    return SHUFFLE if operator == WRITING else FUNCTION


def _parts_of(seconds: float, work: Mapping[tuple[str, int], float]) -> list[JobPhase]:
    """So many seconds in parts, as the work was; what no task worked in went on rows under way."""
    total = sum(work.values())
    waited = max(0.0, seconds - total)
    parts = []
    for kind in AT_WORK:
        own = {stage: took for (each, stage), took in work.items() if each == kind}
        stage = max(own, key=lambda number: own[number], default=None)
        share = sum(own.values()) / total if total else 0.0
        more = waited if kind == SHUFFLE else 0.0
        parts.append(JobPhase(kind, share * (seconds - waited) + more, stage))
    return parts


def share_of(stage: StageLoad, slots: int, seconds: float) -> float:
    """The share of the job's time that a stage took at least."""
    return min(1.0, bound_seconds(stage, slots) / seconds) if seconds > 0 and stage.subtasks else 0.0


def said(phases: Sequence[JobPhase], titles: Mapping[int, str]) -> str:
    """The sentence on the phase that took most, where that was none of work; else empty."""
    work = sum(phase.seconds for phase in phases if phase.name in AT_WORK)
    most = max((phase for phase in phases if phase.name in _SAID), key=lambda phase: phase.seconds, default=None)
    if most is None or most.seconds <= work:
        return ""
    total = sum(phase.seconds for phase in phases)
    stage = titles.get(-1 if most.stage is None else most.stage, "its stages")
    return f"{most.seconds:.1f} of {total:.1f} s went on {_SAID[most.name].format(stage=stage)}."


def quartiles(figures: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """The seconds of a stage's tasks: the shortest, the quartiles, the longest."""
    took = sorted(each["seconds"] for each in figures if each.get("seconds"))
    if not took:
        return None
    inner = quantiles(took, n=4, method="inclusive") if len(took) > 1 else took * 3
    return [round(each, 3) for each in (took[0], *inner, took[-1])]
