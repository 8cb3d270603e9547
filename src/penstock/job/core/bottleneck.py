# SPDX-License-Identifier: Apache-2.0
"""The stage that holds a job back, and why: from the figures of its subtasks, without anything else.

In a query, where all stages run at once, it is the stage that works most and waits least for room. If none waits
for room, it must be at work most of the time: so a source's own stage is found too. A stage counts by its busiest
subtask, for the others wait for one that is slow or has most rows. In a batch job stages may run one after the other,
and stored exchanges hold up no stage: there it is the stage whose work bounds the time, by its longest subtask or
by all of them on the slots.

Why: the operator that took most of the time in the busiest subtask. If that one stands out among the others of its
stage, it has more rows than they, perhaps of one key, or is slower with as many. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import mean

from penstock.shuffle.metrics import KEY_GROUP, OPERATOR_GROUP, READING, WRITING

WAITING_SHARE = 0.05
"""A stage waits for room if it does so for this share of its time."""
BUSY_SHARE, BUSY_BEHIND = 0.6, 0.3
"""A stage is named that works as much if no stage waits for room, and if one does."""
_STANDS_OUT = 1.5
_BY_SHARE = 0.2
"""A subtask stands out that has so many times the work of the others, and so much of its time more."""
_HOT_SHARE = 0.3
"""A key is hot that has this part of its subtask's rows."""


class Cause(StrEnum):
    """The kinds of causes."""

    OPERATOR = "operator"
    SOURCE = "source"
    OUTPUT = "output"
    STORAGE = "storage"
    SUBTASK = "slow subtask"
    SKEW = "uneven rows"
    KEY = "hot key"


@dataclass(frozen=True, slots=True)
class Load:
    """The work of one subtask in some time: seconds, and rows. `keys` are shares of its rows."""

    span: float = 0.0
    busy: float = 0.0
    back_pressured: float = 0.0
    storing: float = 0.0
    rows: float = 0.0
    operators: Mapping[str, float] = field(default_factory=dict)
    keys: Mapping[str, float] = field(default_factory=dict)

    @property
    def work(self) -> float:
        """The share of its time in which it kept others waiting by itself."""
        return self.share(self.busy + self.storing)

    @property
    def lead(self) -> float:
        """The share of its work, less that of its waiting for room."""
        return self.work - self.share(self.back_pressured)

    def share(self, seconds: float) -> float:
        """So many seconds as a share of the time."""
        return min(1.0, seconds / self.span) if self.span > 0 else 0.0


@dataclass(frozen=True, slots=True)
class StageLoad:
    """A stage, and its subtasks in order."""

    id: int
    name: str
    subtasks: tuple[Load, ...]

    @property
    def pressed(self) -> float:
        """The largest share of a subtask's time that went on waiting for room."""
        return max((load.share(load.back_pressured) for load in self.subtasks), default=0.0)

    @property
    def busiest(self) -> int:
        """The subtask with most work that waits least for room."""
        return max(range(len(self.subtasks)), key=lambda index: self.subtasks[index].lead)

    @property
    def work(self) -> float:
        """The work of that one."""
        return self.subtasks[self.busiest].work

    @property
    def lead(self) -> float:
        """The lead of that one."""
        return self.subtasks[self.busiest].lead


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The stage that holds a job back. `busy` are seconds of its `subtask`, `span` those that it ran."""

    stage: int
    name: str
    cause: Cause
    operator: str
    subtask: int
    subtasks: int
    busy: float
    span: float
    keys: tuple[tuple[str, float], ...] = ()

    @property
    def text(self) -> str:
        """One sentence."""
        return f"{self.name}: {self.reason}"

    @property
    def reason(self) -> str:
        """The sentence without the stage's name."""
        where = f"subtask {self.subtask} of {self.subtasks} is busy {self.busy / self.span:.0%} of its time"
        cause = {
            Cause.OPERATOR: f"most of it in {self.operator or 'a call that has not come back yet'}",
            Cause.SOURCE: "most of it reading",
            Cause.OUTPUT: "most of it writing to its exchange",
            Cause.STORAGE: "most of it waiting for the log of its rows at the checkpoint location",
            Cause.SUBTASK: f"in {self.operator}, and slower than the others with as many rows",
            Cause.SKEW: f"in {self.operator}, and has more rows than the others",
            Cause.KEY: f"in {self.operator}, for it has a hot key{self._keys}",
        }[self.cause]
        return f"{where}, {cause}"

    @property
    def without_keys(self) -> Bottleneck:
        """As it may stand in a file: keys are rows' data."""
        return replace(self, keys=())

    @property
    def _keys(self) -> str:
        told = ", ".join(f"{key} ({share:.0%} of its rows)" for key, share in self.keys)
        return f": {told}" if told else ""


def load_of(figures: Mapping[str, float], before: Mapping[str, float] | None = None) -> Load:
    """A subtask's work between two reports of it; one that counts less than before has begun anew."""
    before = before or {}

    def since(name: str) -> float:
        now, then = figures.get(name, 0.0), before.get(name, 0.0)
        return now - then if now >= then else now

    span = since("seconds")
    idle, pressed, storing = (since(name) for name in ("idle_seconds", "back_pressured_seconds", "storing_seconds"))
    operators = {_own(name): since(name) for name in figures if name.startswith(OPERATOR_GROUP)}
    keys = {_own(name): share for name, share in figures.items() if name.startswith(KEY_GROUP)}
    busy = max(0.0, span - idle - pressed - storing)
    return Load(span, busy, pressed, storing, since("rows_in"), operators, keys)


def _own(name: str) -> str:
    """A figure's name in its group."""
    return name.partition(".")[2]


def holding_back(stages: Sequence[StageLoad]) -> Bottleneck | None:
    """The stage of a query that the others wait for; None if none waits and none is busy."""
    running = [stage for stage in stages if any(load.span > 0 for load in stage.subtasks)]
    if not running:
        return None
    waits = any(stage.pressed > WAITING_SHARE for stage in running)
    first = max(running, key=lambda stage: stage.lead)
    return _explained(first) if first.work >= (BUSY_BEHIND if waits else BUSY_SHARE) else None


def bounding(stages: Sequence[StageLoad], slots: int) -> Bottleneck | None:
    """The stage of a batch job whose work bounds its time; None if no stage has worked."""
    worked = [stage for stage in stages if any(load.busy > 0 for load in stage.subtasks)]
    if not worked:
        return None
    longest = max(worked, key=lambda stage: bound_seconds(stage, slots))
    order = sorted(range(len(longest.subtasks)), key=lambda index: longest.subtasks[index].busy)
    return _explained(longest, order[-1])


def bound_seconds(stage: StageLoad, slots: int) -> float:
    """Seconds that the stage takes at least."""
    busy = [load.busy + load.storing for load in stage.subtasks]
    return max(*busy, sum(busy) / max(1, min(slots, len(busy))))


def _explained(stage: StageLoad, chosen: int | None = None) -> Bottleneck:
    subtask = stage.busiest if chosen is None else chosen
    load = stage.subtasks[subtask]
    operator = max(load.operators, key=lambda name: load.operators[name], default="")
    operator = operator if load.operators.get(operator) else ""
    hot = tuple(sorted(load.keys.items(), key=lambda pair: -pair[1]))
    cause = _cause(load, [other for index, other in enumerate(stage.subtasks) if index != subtask], operator)
    keys = hot if cause is Cause.KEY else ()
    busy, span = load.busy + load.storing, max(load.span, 1e-9)
    return Bottleneck(stage.id, stage.name, cause, operator, subtask, len(stage.subtasks), busy, span, keys)


def _cause(load: Load, others: list[Load], operator: str) -> Cause:
    if load.storing > load.busy:
        return Cause.STORAGE
    if others and _stands_out(load, others):
        if load.rows <= _STANDS_OUT * mean(other.rows for other in others):
            return Cause.SUBTASK
        return Cause.KEY if max(load.keys.values(), default=0.0) >= _HOT_SHARE else Cause.SKEW
    return {READING: Cause.SOURCE, WRITING: Cause.OUTPUT}.get(operator, Cause.OPERATOR)


def _stands_out(load: Load, others: list[Load]) -> bool:
    usual = mean(other.busy for other in others)
    return load.busy > _STANDS_OUT * usual and load.share(load.busy - usual) > _BY_SHARE
