# SPDX-License-Identifier: Apache-2.0
"""A global order: sortBy as steps of a plan.

The stream's last stage sends a sample of its keys to one task, which cuts them into ranges; the rows wait in a
blocking exchange until that is known, whatever the job's mode. Then each row goes to the partition of its range and
is sorted there; that exchange is blocking too unless `mode` says otherwise, so that a sort needs no slots at the same
time. One partition needs no ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from penstock.api.lineage import CombineInput, CombineStep, ExchangeChoice, ExchangeStep, OperatorStep
from penstock.errors import PlanError, SchemaError
from penstock.operators.columns import only_column, refuse_collated
from penstock.operators.exchanges import exchange, range_exchange
from penstock.operators.keys import refuse_ungroupable
from penstock.operators.ordering import SortKey
from penstock.operators.sorting import CutRanges, Order, SampleKeys, SortRows, TagRanges

if TYPE_CHECKING:
    from penstock.api.stream import Stream

_BLOCKING = "blocking"
_PLACE = "#place"


def sort_keys(columns: Sequence[str], schema: pa.Schema, ascending: object, nulls: object) -> tuple[SortKey, ...]:
    """The keys of a sort; raises for arguments that do not fit."""
    if not columns:
        raise PlanError("sortBy needs at least one column")
    if len(set(columns)) != len(columns):
        raise PlanError(f"sortBy: each column once, not {', '.join(columns)}")
    for column in columns:
        field = only_column(schema, column, "sortBy")
        refuse_collated(field, "sortBy")
        kind = field.type
        is_rounded = pt.is_decimal(kind) and kind.scale < 0  # which Arrow does not compare
        if pt.is_interval(kind) or pt.is_nested(kind) or is_rounded:
            raise SchemaError(
                f"sortBy: column {column!r} of type {kind} has no order: make a plain column of it with withColumn"
            )
    refuse_ungroupable(schema, columns)
    if nulls not in (None, "first", "last"):
        raise PlanError(f"sortBy: nulls must be 'first', 'last' or None, not {nulls!r}")
    directions = _directions(ascending, len(columns))
    return tuple(
        SortKey(column, up, up if nulls is None else nulls == "first")
        for column, up in zip(columns, directions, strict=True)
    )


def _directions(ascending: object, count: int) -> list[bool]:
    given = ascending if isinstance(ascending, list | tuple) else [ascending] * count
    if not all(isinstance(item, bool | int) for item in given):
        raise TypeError(f"sortBy: ascending must be a boolean or a list of booleans, not {ascending!r}")
    if len(given) != count:
        raise PlanError(f"sortBy: {count} columns and {len(given)} directions: ascending needs one for each column")
    return [bool(item) for item in given]


def sorted_stream(stream: Stream, keys: tuple[SortKey, ...], choice: ExchangeChoice) -> Stream:
    """The stream in this order, from the first partition to the last."""
    order = Order(stream.schema, keys)
    if choice.partitions == 1:
        return stream.exchanged(exchange("to_one"), choice).applied(SortRows(order, placed=False), stream.schema)
    waiting = ExchangeChoice(mode=_BLOCKING, service=choice.service)
    one = ExchangeChoice(1, _BLOCKING, choice.service)
    samples = ExchangeStep(stream.branches, exchange("to_one"), one, SampleKeys(order))
    cuts = OperatorStep(samples, CutRanges(order), order.key_schema)
    place = _place_name(stream.schema)
    tagged = stream.schema.append(pa.field(place, pa.uint16(), nullable=False))
    inputs = (
        CombineInput((cuts,), exchange("broadcast"), waiting),
        CombineInput(stream.branches, exchange("rescale"), waiting),
    )
    placed = CombineStep(inputs, TagRanges(order, tagged), tagged)
    last = ExchangeChoice(choice.partitions, choice.mode or _BLOCKING, choice.service)
    ranges = ExchangeStep((placed,), range_exchange(place), last)
    return stream.over(OperatorStep(ranges, SortRows(order, placed=True), stream.schema))


def _place_name(schema: pa.Schema) -> str:
    name = _PLACE
    while name in schema.names:
        name += "#"
    return name
