# SPDX-License-Identifier: Apache-2.0
"""Comparisons as Spark has them: NaN equals NaN and is above all numbers, strings by their bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.expressions.tree import Call, Constant
from penstock.operators.expressions.values import FALSE, Datum, Kernel, array_of, columns_of_rows, missing_in, numbers

Compare = Callable[[Datum, Datum], Datum]


def equal(left: Datum, right: Datum) -> Datum:
    """Tell whether two values are equal; null where one is null."""
    same = pc.equal(left, right)
    if not pt.is_floating(left.type):
        return same
    return pc.or_(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def less(left: Datum, right: Datum) -> Datum:
    """Tell whether one value is below another; null where one is null."""
    below = pc.less(left, right)
    if not pt.is_floating(left.type):
        return below
    return pc.or_(below, pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))


def _less_or_equal(left: Datum, right: Datum) -> Datum:
    return pc.less_equal(left, right) if not pt.is_floating(left.type) else pc.invert(less(right, left))


def _comparison(compare: Compare, *, turned: bool = False) -> Kernel:
    def kernel(call: Call, values: list[Datum]) -> Datum:
        left, right = values
        return compare(right, left) if turned else compare(left, right)

    return kernel


def _null_safe(call: Call, values: list[Datum]) -> Datum:
    left, right = values
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.if_else(both_null, both_null, pc.coalesce(equal(left, right), FALSE))


def _in(call: Call, values: list[Datum]) -> Datum:
    value, choices = values[0], call.arguments[1:]
    constants = [choice.array for choice in choices if isinstance(choice, Constant)]
    if len(constants) < len(choices) or pt.is_floating(value.type) or pt.is_nested(value.type):
        return reduce(pc.or_kleene, (equal(value, choice) for choice in values[1:]))
    known = pa.concat_arrays([choice for choice in constants if choice.null_count == 0] or [constants[0].slice(0, 0)])
    found = pc.is_in(value, value_set=known)
    unknown = pc.is_null(value)
    if len(known) < len(choices):
        unknown = pc.or_(unknown, pc.invert(found))
    return pc.if_else(unknown, pa.nulls(1, pa.bool_())[0], found)


def _extreme(is_better: Compare) -> Kernel:
    """The greatest or least of several, nulls aside."""

    def kernel(call: Call, values: list[Datum]) -> Datum:
        first, *others = columns_of_rows(values)
        for value in others:
            wins = pc.coalesce(pc.or_kleene(pc.is_null(first), is_better(first, value)), FALSE)
            first = pc.if_else(pc.and_(wins, pc.is_valid(value)), value, first)
        return first

    return kernel


def _is_nan(call: Call, values: list[Datum]) -> Datum:
    return pc.coalesce(pc.is_nan(values[0]), FALSE)


def _without_nan(call: Call, values: list[Datum]) -> Datum:
    value, instead = values
    return pc.if_else(pc.coalesce(pc.is_nan(value), FALSE), instead, value)


def _normalised(call: Call, values: list[Datum]) -> Datum:
    (column,) = columns_of_rows(values)
    found = numbers(column) + 0.0
    return array_of(np.where(np.isnan(found), np.nan, found).astype(found.dtype), column.type, missing_in(column))


COMPARISON: dict[str, Kernel] = {
    "EqualTo": _comparison(equal),
    "EqualNullSafe": _null_safe,
    "LessThan": _comparison(less),
    "GreaterThan": _comparison(less, turned=True),
    "LessThanOrEqual": _comparison(_less_or_equal),
    "GreaterThanOrEqual": _comparison(_less_or_equal, turned=True),
    "In": _in,
    "Not": lambda call, values: pc.invert(values[0]),
    "IsNull": lambda call, values: pc.is_null(values[0]),
    "IsNotNull": lambda call, values: pc.is_valid(values[0]),
    "IsNaN": _is_nan,
    "NaNvl": _without_nan,
    "Greatest": _extreme(less),
    "Least": _extreme(lambda best, value: less(value, best)),
    "NormalizeNaNAndZero": _normalised,
}
