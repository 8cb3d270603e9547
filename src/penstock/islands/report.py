# SPDX-License-Identifier: Apache-2.0
"""What ran where: a record of each action of an accelerated session that has Python in it, and plans with marks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.islands.finding import Found
from penstock.islands.plan_nodes import PlanNode

_KEPT = 1000
"""The actions that a report remembers, the newest ones."""
_MARKS = {True: "Penstock", False: "Spark"}


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """One action: its name and place in the program, how it went, and for each Python stage or exchange why not."""

    action: str
    place: str
    functions: int
    """The Python stages that ran through Penstock."""
    exchanges: int
    left: tuple[str, ...]
    """A line for each Python stage that was left to Spark: which one, and why."""
    seconds: float
    error: str = ""

    @property
    def is_placed(self) -> bool:
        """True if any of it ran through Penstock."""
        return self.functions > 0

    @property
    def line(self) -> str:
        """The action in one line."""
        went = f"{self.functions} functions, {self.exchanges} exchanges in Penstock" if self.is_placed else "Spark"
        failed = f", failed: {self.error}" if self.error else ""
        place = f" at {self.place}" if self.place else ""
        return f"{self.seconds:8.3f} s  {self.action}{place}: {went}{failed}"


class AccelerationReport:
    """The actions of a session that have Python in them, newest last; printed, those that took longest come first."""

    def __init__(self) -> None:
        self._records: deque[ActionRecord] = deque(maxlen=_KEPT)

    def __iter__(self) -> Iterator[ActionRecord]:
        return iter(list(self._records))

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: ActionRecord) -> None:
        """Keep the record of one more action."""
        self._records.append(record)

    def __repr__(self) -> str:
        """A line for each action, and below it why stages of it were left."""
        records = sorted(self, key=lambda record: -record.seconds)
        if not records:
            return "no action with Python in it yet"
        placed = sum(record.is_placed for record in records)
        lines = [f"{placed} of {len(records)} actions with Python in them ran through Penstock"]
        for record in records:
            lines += [record.line, *(f"            left to Spark: {why}" for why in record.left)]
        return "\n".join(lines)


def left_stages(plan: PlanNode, found: Found) -> tuple[str, ...]:
    """A line for each Python stage that is in no island."""
    return tuple(
        f"{node.title}: {found.left[node.path]}"
        for node in plan
        if node.function is not None and node.path in found.left
    )


def drawn(plan: PlanNode, found: Found) -> str:
    """The plan with each node marked; why a node was left stands beside those that one might look for."""
    inside = {path for island in found.islands for path in island.inside}
    lines = []
    for node in plan:
        mark = _MARKS[node.path in inside]
        why = found.left.get(node.path, "")
        said = f"  <- {why}" if why and (node.function is not None or node.kind in _TOLD) else ""
        lines.append(f"{mark:9}{'  ' * len(node.path)}{node.title}{said}")
    return "\n".join(lines)


_TOLD = ("Repartition", "RepartitionByExpression", "Aggregate", "Join", "Sort", "Window", "Union")
"""Nodes beside Python stages whose reason is worth a word."""
