# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions beyond sums: a row's value of each group, and what needs all values of a group.

`first` and `last` take what comes first or last among the rows as they arrive; after an exchange that order is not
defined, as in Spark. Lists of a group's values are the states of `collect_list`, `collect_set`, `count_distinct` and
`median`: they skip nulls, and their memory is that of the values. `median` is exact, of numbers, and a float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.errors import PlanError
from penstock.operators.aggregates import (
    ALL_COLUMNS,
    MOMENTS,
    Aggregation,
    Function,
    State,
    aggregate_function,
    aggregate_names,
    merge_moments,
    plain_type,
)
from penstock.operators.columns import refuse_collated
from penstock.operators.keys import Codes, group_rows, int64_array, stable_order
from penstock.record.layout import element_positions, list_spans, take

Merge = Callable[[Codes, int, Sequence[pa.Array]], list[pa.Array]]

FIRST, LAST, VALUES, DISTINCT = "first row", "last row", "values", "distinct values"

_ALIASES = {
    "countdistinct": "count_distinct",
    "std": "stddev",
    "stddev_samp": "stddev",
    "var_samp": "variance",
    "collectlist": "collect_list",
    "every": "all",
    "some": "any",
    "bool_and": "all",
    "bool_or": "any",
}


def function_of(aggregation: Aggregation, schema: pa.Schema, *, ansi: bool = True) -> Function:
    """The function for this column; raises PlanError naming what there is."""
    named = _ALIASES.get(aggregation.function.lower(), aggregation.function)
    make = _FUNCTIONS.get(named)
    known = Aggregation(aggregation.name, aggregation.column, named)
    if make is None:
        if named not in aggregate_names():
            raise PlanError(
                f"{aggregation.name}: there is no function {aggregation.function!r}; supported are "
                f"{', '.join(sorted({*aggregate_names(), *_FUNCTIONS}))}. applyInArrow can compute anything over a "
                "whole group"
            )
        return aggregate_function(known, schema, ansi=ansi)
    # `count` takes every column, so it finds out whether there is one, and what its plain type is.
    aggregate_function(Aggregation(aggregation.name, aggregation.column, "count"), schema)
    if aggregation.column == ALL_COLUMNS:
        raise PlanError(f"{aggregation.name}: {named} needs a column, only count takes '*'")
    column = schema.field(aggregation.column)
    if named not in _KEEPING:
        refuse_collated(column, f"{aggregation.name}: {named}")  # compared, or in a list that says nothing of it
    kind = column.type
    function = make(plain_type(kind))
    if function is None:
        raise PlanError(
            f"{aggregation.name}: {named} of column {aggregation.column!r} ({kind}) is not possible; "
            "cast the column first, or use applyInArrow"
        )
    return function


def _row_of_group(merge: str) -> Callable[[pa.DataType], Function]:
    return lambda kind: Function(
        (State("value", kind, merge, lambda column: column),), kind, lambda column: column, keeps_type=True
    )


def _listed(column: pa.Array) -> pa.Array:
    """Each value as a list of its own; an empty list for null."""
    lengths = column.is_valid().cast(pa.int32())
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(np.frombuffer(lengths.buffers()[1], np.int32, len(lengths), lengths.offset * 4), out=offsets[1:])
    return _lists(offsets, column.drop_null())


def _lists(offsets: npt.NDArray[np.int32], values: pa.Array) -> pa.Array:
    kind = pa.list_(pa.field("element", values.type))
    ends = pa.Array.from_buffers(pa.int32(), len(offsets), [None, pa.py_buffer(offsets)])
    return pa.ListArray.from_arrays(ends, values, type=kind)


def _gathering(merge: str, result: Callable[[pa.DataType], pa.DataType], finish: Callable[..., pa.Array]) -> _Make:
    def make(kind: pa.DataType) -> Function | None:
        if merge == DISTINCT and (pt.is_nested(kind) or pt.is_float16(kind)):
            return None
        state = State("values", pa.list_(pa.field("element", kind)), merge, _listed)
        return Function((state,), result(kind), finish, may_be_null=False)

    return make


_Make = Callable[[pa.DataType], Function | None]


def _list_type(kind: pa.DataType) -> pa.DataType:
    """Of states, which Arrow's kernels make anew: they know nothing of what may be null."""
    return pa.list_(pa.field("element", kind))


def _values_type(kind: pa.DataType) -> pa.DataType:
    """The type of a result's values: nulls are left out."""
    return pa.list_(pa.field("element", kind, nullable=False))


def _all_values(lists: pa.Array) -> pa.Array:
    """The lists; an empty one for a group that saw no row."""
    if not lists.null_count:
        return lists
    spans = list_spans(lists)
    positions, _ = element_positions(spans)
    offsets = np.concatenate([[0], np.cumsum(spans.lengths)]).astype(np.int32)
    return _lists(offsets, take(spans.values, int64_array(positions)))


def _lengths(lists: pa.Array) -> pa.Array:
    return int64_array(list_spans(lists).lengths)


def _median(kind: pa.DataType) -> Function | None:
    if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)):
        return None
    state = State("values", _list_type(pa.float64()), VALUES, lambda column: _listed(_doubles(column)))
    return Function((state,), pa.float64(), _middles)


def _doubles(column: pa.Array) -> pa.Array:
    """As Spark makes doubles: Arrow's of decimals are a bit off, and it refuses longs that it has to round."""
    if pt.is_decimal(column.type):
        column = column.cast(pa.string())
    return pc.cast(column, pa.float64(), safe=False)


def _middles(lists: pa.Array) -> pa.Array:
    """The mean of the two values in the middle of each list, or the one there is; null for an empty list."""
    spans = list_spans(lists)
    positions, _ = element_positions(spans)
    values = np.frombuffer(spans.values.buffers()[1], np.float64, len(spans.values), spans.values.offset * 8)[
        positions
    ]
    lists_of = np.repeat(np.arange(len(lists)), spans.lengths)
    ordered = values[np.lexsort((values, lists_of))]
    starts = np.cumsum(spans.lengths) - spans.lengths
    empty = spans.lengths == 0
    last = max(len(ordered) - 1, 0)
    low = np.minimum(starts + np.maximum(spans.lengths - 1, 0) // 2, last)
    high = np.minimum(starts + spans.lengths // 2, last)
    if not len(ordered):
        return pa.nulls(len(lists), pa.float64())
    # As Spark has it: half the way from one to the other, which other ways of writing it miss by a bit.
    with np.errstate(invalid="ignore", over="ignore"):
        half_way = ordered[low] + 0.5 * (ordered[high] - ordered[low])
    middles = np.where(ordered[low] == ordered[high], ordered[low], half_way)
    validity = pa.py_buffer(np.packbits(~empty, bitorder="little"))
    return pa.Array.from_buffers(pa.float64(), len(lists), [validity, pa.py_buffer(middles)])


def _population(name: str) -> _Make:
    """The variance of all there is: a sample's, scaled back."""

    def make(kind: pa.DataType) -> Function | None:
        if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)):
            return None
        sample = aggregate_function(Aggregation(name, "v", "variance"), pa.schema([("v", kind)]))

        def finish(count: pa.Array, mean: pa.Array, m2: pa.Array) -> pa.Array:  # noqa: ARG001 - states by position
            counts = np.frombuffer(count.buffers()[1], np.int64, len(count), count.offset * 8)
            squares = np.frombuffer(m2.buffers()[1], np.float64, len(m2), m2.offset * 8)
            found = np.divide(squares, counts, out=np.zeros(len(counts)), where=counts > 0)
            validity = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
            spread = np.sqrt(found) if name == "stddev_pop" else found
            return pa.Array.from_buffers(pa.float64(), len(counts), [validity, pa.py_buffer(spread)])

        return Function(sample.states, pa.float64(), finish)

    return make


_KEEPING = ("first", "last")
"""These give one of the column's values as it is."""
_FUNCTIONS: dict[str, _Make] = {
    "first": _row_of_group(FIRST),
    "last": _row_of_group(LAST),
    "collect_list": _gathering(VALUES, _values_type, _all_values),
    "collect_set": _gathering(DISTINCT, _values_type, _all_values),
    "count_distinct": _gathering(DISTINCT, lambda _: pa.int64(), _lengths),
    "median": _median,
    "stddev_pop": _population("stddev_pop"),
    "var_pop": _population("var_pop"),
}


def _first_rows(codes: Codes, groups: int, states: Sequence[pa.Array]) -> list[pa.Array]:
    rows = np.empty(groups, np.int64)
    rows[codes[::-1]] = np.arange(len(codes))[::-1]
    return [take(state, int64_array(rows)) for state in states]


def _last_rows(codes: Codes, groups: int, states: Sequence[pa.Array]) -> list[pa.Array]:
    rows = np.empty(groups, np.int64)
    rows[codes] = np.arange(len(codes))
    return [take(state, int64_array(rows)) for state in states]


def _joined(codes: Codes, groups: int, states: Sequence[pa.Array]) -> list[pa.Array]:
    """The lists of each group one after the other, in the order of the rows."""
    order = stable_order(codes, groups)
    (state,) = states
    spans = list_spans(take(state, int64_array(order)))
    positions, _ = element_positions(spans)
    lengths = np.bincount(codes[order], spans.lengths, groups).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return [_lists(offsets, take(spans.values, int64_array(positions)))]


def _joined_distinct(codes: Codes, groups: int, states: Sequence[pa.Array]) -> list[pa.Array]:
    """As `_joined`, each value once in a list."""
    (joined,) = _joined(codes, groups, states)
    spans = list_spans(joined)
    positions, _ = element_positions(spans)
    values = take(spans.values, int64_array(positions))
    owners = np.repeat(np.arange(groups), spans.lengths)
    found = group_rows([int64_array(owners), values], len(values))
    owners_found, distinct = found.keys
    owned = np.frombuffer(owners_found.buffers()[1], np.int64, len(owners_found), owners_found.offset * 8)
    lengths = np.bincount(owned, minlength=groups)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return [_lists(offsets, distinct)]


MERGES: dict[str, Merge] = {
    MOMENTS: merge_moments,
    FIRST: _first_rows,
    LAST: _last_rows,
    VALUES: _joined,
    DISTINCT: _joined_distinct,
}
"""The merges that Arrow's aggregation does not have: of group numbers, their count and states, to merged states."""
