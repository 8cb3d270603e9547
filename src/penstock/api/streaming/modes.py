# SPDX-License-Identifier: Apache-2.0
"""Output modes: which rows the aggregations of a query give, and what a mode needs of the plan.

| aggregation | `append` | `update` | left out |
|---|---|---|---|
| by windows, behind a watermark | each window once | each window that has changed | `append` |
| by windows, without a watermark | refused | as above | `update` |
| by session windows, or windows that rows have | each window once | refused, sessions as by Spark | `append` |
| by keys alone | refused | each key that has changed | `update` |

Windows whose rows another step with state takes are given once in any mode: changes would be counted as rows.
`complete` is `update` for the tasks; the sink makes the whole result of that (`whole_results`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.api.lineage import ExchangeStep, OperatorStep, Step, in_order, parents_of, with_parents
from penstock.api.watermark_columns import event_times
from penstock.errors import PlanError
from penstock.operators.windows import FixedWindows

APPEND, UPDATE, COMPLETE = "append", "update", "complete"


def output_mode(mode: object) -> str:
    """A mode's name; raises TypeError or PlanError for what is none, or not possible here."""
    if not isinstance(mode, str):
        raise TypeError(f"writeStream.outputMode takes 'append', 'update' or 'complete', not {type(mode).__name__}")
    name = mode.lower()
    if name not in (APPEND, UPDATE, COMPLETE):
        raise PlanError(
            f"outputMode({mode!r}): there is no such mode (PySpark's STREAMING_OUTPUT_MODE.INVALID): say append, "
            "update or complete, or leave it out"
        )
    return name


def in_mode(branches: tuple[Step, ...], mode: str | None) -> tuple[Step, ...]:
    """The branches with aggregations that give what the mode says; raises PlanError where that can't be."""
    from penstock.stream.aggregate import KeyedAggregate
    from penstock.stream.window_aggregate import WindowAggregate

    mode = UPDATE if mode == COMPLETE else mode
    steps = list(in_order(branches))
    made: dict[int, Step] = {}
    for step in steps:
        new = with_parents(step, lambda parent: made[id(parent)])
        operator = step.operator if isinstance(step, OperatorStep) else None
        if isinstance(operator, KeyedAggregate) and mode == APPEND:
            raise PlanError(
                "outputMode('append') does not go with an aggregation that has no watermark (PySpark's "
                f"STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION): the rows of {operator.name} change as long as "
                "the query runs. Say outputMode('update'), which writes a row whenever a key has changed"
            )
        if isinstance(operator, WindowAggregate) and isinstance(new, OperatorStep):
            is_last = not any(_aggregates(later) and _reads(later, step) for later in steps)
            new = replace(new, operator=replace(operator, updates=_updates(step, operator, mode, is_last=is_last)))
        made[id(step)] = new
    return tuple(made[id(step)] for step in branches)


def _updates(step: Step, operator: object, mode: str | None, *, is_last: bool) -> bool:
    """Tell whether windows are given whenever they change, instead of once."""
    spec = operator.spec  # type: ignore[attr-defined]
    wanted = mode if is_last else APPEND
    has_watermark = event_times(parents_of(step)).is_everywhere
    if wanted == UPDATE or (wanted is None and not has_watermark):
        if not isinstance(spec.windows, FixedWindows):
            raise PlanError(
                f"{spec.windows.title} gives each window once: name the time with "
                "withWatermark(column, delay) ahead of groupBy, and leave outputMode('update') out"
            )
        return True
    if not has_watermark:
        why = "outputMode('append')" if is_last else "an aggregation of its rows"
        raise PlanError(
            f"{spec.windows.title}: {why} needs a watermark that says when a window is whole (PySpark's "
            "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION): write withWatermark(column, delay) ahead of groupBy, on "
            "each stream ahead of a union"
        )
    return False


def comes_by_key(step: Step, keys: Sequence[str]) -> bool:
    """Tell whether rows with equal keys come out of one task, in the order in which it made them."""
    from penstock.stream.aggregate import KeyedAggregate
    from penstock.stream.window_aggregate import WindowAggregate

    while isinstance(step, OperatorStep) and isinstance(step.operator, KeyedAggregate | WindowAggregate):
        step = step.parent
    return isinstance(step, ExchangeStep) and step.spec.kind == "hash" and set(step.spec.keys) <= set(keys)


def _aggregates(step: Step) -> bool:
    from penstock.stream.aggregate import KeyedAggregate
    from penstock.stream.duplicates import DropDuplicates
    from penstock.stream.state.operator import StatefulOperator
    from penstock.stream.stream_join import StreamJoin
    from penstock.stream.top_rows import TopRows
    from penstock.stream.window_aggregate import WindowAggregate

    kinds = (KeyedAggregate, WindowAggregate, StatefulOperator, StreamJoin, TopRows, DropDuplicates)
    return isinstance(step, OperatorStep) and isinstance(step.operator, kinds)


def _reads(step: Step, source: Step) -> bool:
    """Tell whether rows of another step reach this one."""
    return step is not source and any(each is source for each in in_order((step,)))
