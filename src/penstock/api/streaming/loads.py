# SPDX-License-Identifier: Apache-2.0
"""The work of a stage's subtasks, in the last seconds and those before, which count the less the longer ago.

A task reports between two steps of its work, and a step may take as long as the time between two looks: so one look
says little, and each keeps a part of the former ones. A task that has said nothing since the last look may only be
late; one that is silent for longer is in a long call of a function, and busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.job.core.bottleneck import Load, StageLoad, load_of
from penstock.job.core.result import VertexProgress

LATE_SECONDS = 2.5
"""A report may be late by so much."""
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
        known.figures, known.load = {}, Load()
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
