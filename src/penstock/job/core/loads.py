# SPDX-License-Identifier: Apache-2.0
"""The work of a stage's subtasks, in the last seconds and those before, which count the less the longer ago.

A task reports between two steps of its work, and a step may take as long as the time between two looks: so one look
says little, and each keeps a part of the former ones. A task that has said nothing since the last look may only be
late; one that is silent for longer is in a long call of a function, and busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.job.core.bottleneck import Bottleneck, Load, StageLoad, bounding, holding_back, load_of
from penstock.job.core.result import JobProgress, VertexProgress

LATE_SECONDS = 2.5
"""A report may be late by so much."""
EARLY_SECONDS = 2.0
"""A query that has just begun is held back by its own start."""
_WORTH = 0.05
"""A stage of a batch job that was at work for less of its time is not worth a word."""
FADING = 0.6
"""The part of what was seen that counts one look later."""


@dataclass(slots=True)
class _Known:
    """The last report of a subtask, when it came, and the work that it and those before told of."""

    figures: Mapping[str, float] = field(default_factory=dict)
    since: float = 0.0
    load: Load = field(default_factory=Load)


class Loads:
    """One stage."""

    def __init__(self, vertex: int, name: str) -> None:
        self._vertex = vertex
        self._name = name
        self._known: list[_Known] = []

    def since_last(self, vertex: VertexProgress, now: float) -> StageLoad:
        """The work that its subtasks have told of by now."""
        told = vertex.subtasks or (vertex.metrics,)
        runs = vertex.runs or (vertex.running > 0,) * len(told)
        if len(self._known) != len(told):
            self._known = [_Known(since=now) for _ in told]
        loads = (_looked(*each, now) for each in zip(self._known, told, runs, strict=True))
        return StageLoad(self._vertex, self._name, tuple(loads))


def _looked(known: _Known, figures: Mapping[str, float], runs: bool, now: float) -> Load:
    if not runs:
        known.figures, known.since, known.load = {}, now, Load()
    elif figures.get("seconds", 0.0) != known.figures.get("seconds", 0.0):
        known.load = _added(known.load, load_of(figures, known.figures))
        known.figures, known.since = figures, now
    elif now - known.since >= LATE_SECONDS:
        silent = now - known.since
        return replace(known.load, span=silent, busy=silent, back_pressured=0.0, storing=0.0)
    return known.load


def _added(old: Load, new: Load) -> Load:
    names = old.operators.keys() | new.operators.keys()
    return Load(
        FADING * old.span + new.span,
        FADING * old.busy + new.busy,
        FADING * old.back_pressured + new.back_pressured,
        FADING * old.storing + new.storing,
        FADING * old.rows + new.rows,
        {name: FADING * old.operators.get(name, 0.0) + new.operators.get(name, 0.0) for name in names},
        new.keys,
    )


class JobLoads:
    """All stages of a job, and the one that holds it back; a batch job has so many `slots`, a query none.

    A batch job that runs is held back by a stage that runs: one that has ended may have bounded its time so far, and
    does not hold it back any more. This is the rule of all who show a job that runs.
    """

    def __init__(self, slots: int | None) -> None:
        self._slots = slots
        self._stages: dict[int, Loads] = {}

    def look(self, progress: JobProgress, now: float) -> tuple[tuple[StageLoad, ...], Bottleneck | None]:
        """The work of the last seconds by stage, and the stage that holds the job back now."""
        stages = tuple(
            self._stages.setdefault(each.vertex, Loads(each.vertex, each.name)).since_last(each, now)
            for each in progress.vertices
        )
        if self._slots is None:
            return stages, holding_back(stages) if progress.seconds >= EARLY_SECONDS else None
        running = {each.vertex for each in progress.vertices if each.running}
        found = holding_back([each for each in stages if each.id in running])
        return stages, found or self._bounding_so_far(progress, running)

    def _bounding_so_far(self, progress: JobProgress, running: set[int]) -> Bottleneck | None:
        so_far = [StageLoad(each.vertex, each.name, tuple(map(load_of, each.subtasks))) for each in progress.vertices]
        found = bounding([each for each in so_far if each.subtasks], self._slots or 1)
        if found is None or found.stage not in running or found.busy < _WORTH * progress.seconds:
            return None
        return found
