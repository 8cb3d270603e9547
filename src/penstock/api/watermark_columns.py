# SPDX-License-Identifier: Apache-2.0
"""The columns whose times a watermark is of: a verb that trusts one asks here, and another column is refused by name.

A watermark says of one column that no earlier times come. That column stays the same through renames, filters,
exchanges, unions and joins with a bound; windows have its time in their own column. One that is computed of it, or
made by a function, has other times: rows would be late, or windows be closed, at any time. So has one behind steps
whose rows may have any age (joins without a bound, `top`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.api.lineage import ExchangeStep, OperatorStep, ResourcesStep, Step, parents_of
from penstock.errors import PlanError
from penstock.graph import INTERNAL, Operator
from penstock.operators.expressions import ColumnRef
from penstock.operators.join_sides import LEFT, AsSide
from penstock.operators.verbs import Explode, Project, Where, Widen
from penstock.operators.window_aggregates import PartialWindows


@dataclass(frozen=True, slots=True)
class EventTimes:
    """The watermarks that hold at one place of a plan, and the columns there that have their times."""

    delays: Mapping[str, int] = field(default_factory=dict)
    """The delay of each column, in microseconds."""
    watermarks: tuple[str, ...] = ()
    """The watermarks, as `explain` shows them."""
    is_everywhere: bool = False
    """True if all rows come from behind one."""
    lost_in: str = ""
    """The step behind which no column has their times any more."""

    def has(self, column: str) -> bool:
        """Tell whether no row comes whose time in this column is before the watermark, unless it is late."""
        return self.is_everywhere and column in self.delays

    def refuse_other(self, what: str, column: str) -> None:
        """Raise PlanError where there are watermarks, and this column, which `what` is about, is not theirs."""
        if not self.watermarks or column in self.delays:
            return
        names = " or ".join(map(repr, self.delays))
        here = f"which is {names} here" if names else f"which nothing here has after {self.lost_in}"
        if not self.lost_in and not names:
            here = "which is not among the columns here"
        shown, again = (
            ("an expression", "make it a column with withColumn, and write withWatermark(column, delay)")
            if column.startswith(INTERNAL)
            else (repr(column), f"write withWatermark({column!r}, delay)")
        )
        raise PlanError(
            f"{what} {shown} would go by {', '.join(self.watermarks)}, {here}: rows of other times are late, or "
            f"over, at any moment. Name the watermark's column, or {again} directly ahead"
        )


def event_times(branches: Sequence[Step]) -> EventTimes:
    """The event times of a stream, which may be a union."""
    found = [_after(step) for step in branches]
    timed = [each for each in found if each.watermarks]
    if not timed:
        return EventTimes()
    first, *others = timed
    return EventTimes(
        {
            name: max(each.delays[name] for each in timed)
            for name in first.delays
            if all(name in each.delays for each in others)
        },
        tuple(dict.fromkeys(text for each in timed for text in each.watermarks)),
        is_everywhere=all(each.is_everywhere for each in found),
        lost_in=next((each.lost_in for each in timed if each.lost_in), ""),
    )


def _after(step: Step) -> EventTimes:
    if not isinstance(step, OperatorStep):
        return event_times(parents_of(step)) if isinstance(step, ExchangeStep | ResourcesStep) else EventTimes()
    return _behind(step, step.operator)


def _behind(step: OperatorStep, operator: Operator) -> EventTimes:
    """Those behind an operator, by what it does with columns."""
    from penstock.stream.aggregate import KeyedAggregate
    from penstock.stream.duplicates import DropDuplicates
    from penstock.stream.late_rows import ByLateness
    from penstock.stream.stream_join import StreamJoin
    from penstock.stream.table_join import TableJoin
    from penstock.stream.watermark_step import AssignWatermark
    from penstock.stream.window_aggregate import WindowAggregate

    if isinstance(operator, AssignWatermark):
        return EventTimes({operator.column: operator.delay}, (operator.name,), is_everywhere=True)
    if isinstance(operator, StreamJoin):
        return _behind_join(step, operator)
    before = _after(step.parent)
    names: Mapping[str, str] = {}
    """The names in front of the operator, by those behind it."""
    if isinstance(operator, Project):
        pairs = zip(operator.schema.names, operator.expressions, strict=True)
        names = {name: made.name for name, made in pairs if isinstance(made, ColumnRef)}
    elif isinstance(operator, PartialWindows):
        names = {operator.spec.windows.name: operator.spec.windows.column}
    elif isinstance(operator, KeyedAggregate):
        names = dict(zip(operator.keys, operator.keys, strict=True))
    elif isinstance(operator, (Where, Widen, Explode, DropDuplicates, ByLateness, TableJoin, WindowAggregate)):
        names = {name: name for name in step.schema.names}
    delays = {name: before.delays[old] for name, old in names.items() if old in before.delays}
    lost = before.lost_in or ("" if delays or not before.delays else operator.name)
    return replace(before, delays=delays, lost_in=lost)


def _behind_join(step: OperatorStep, operator: object) -> EventTimes:
    """Behind a join of two streams: the times of both sides where they are bound, else rows of any age."""
    united = parents_of(step.parent)
    sides: tuple[list[Step], list[Step]] = ([], [])
    for side in united:
        assert isinstance(side, OperatorStep)  # noqa: S101 - made by `stream_joins`
        assert isinstance(side.operator, AsSide)  # noqa: S101 - the same
        sides[0 if side.operator.number == LEFT else 1].append(side.parent)
    times = [event_times(side) for side in sides]
    both = event_times(united)
    keys = operator.sides.left.keys  # type: ignore[attr-defined]
    delays: dict[str, int] = {}
    if operator.between is not None and operator.between.by_watermark:  # type: ignore[attr-defined]
        delays = {name: delay for each in times for name, delay in each.delays.items() if name not in keys}
    return replace(both, delays=delays, lost_in="" if delays else operator.name)  # type: ignore[attr-defined]
