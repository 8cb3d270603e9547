# SPDX-License-Identifier: Apache-2.0
"""Sums, means and products, with Spark's result types and Spark's rules for what does not fit them.

- `sum` of integers is int64: beyond that an error with ANSI, else it wraps. Of floats float64. Of decimal(p, s)
  decimal(min(38, p + 10), s): beyond that an error with ANSI, else null. Unsigned 64-bit integers are decimal(20, 0).
- `mean` of decimal(p, s) is decimal(min(38, p + 4), min(38, s + 4)), rounded half up, from an exact sum. Of other
  numbers it is float64.
- `product` is float64, whatever it is made of.

A sum that has left its type in a part of the rows is lost, also where other rows would bring it back. Spark, which
checks row by row or task by task, is as strict, but where it draws the line depends on the order of rows.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.aggregate_states import Function, State, SumRules
from penstock.operators.group_merges import fitting

MAX_PRECISION = 38
_SUM_DIGITS = 10
_MEAN_DIGITS = 4
_COUNT_DIGITS = 19
_DIVISION_SCALE = 39
"""Spark divides to so many digits behind the point, and then rounds once more to the result's."""


def sum_function(kind: pa.DataType, rules: SumRules) -> Function | None:
    """The sum of a column of this type."""
    if pt.is_decimal(kind) or pt.is_uint64(kind):
        states, decimal = _decimal_sum(kind, rules)
        result = pa.decimal128(min(MAX_PRECISION, decimal.precision + _SUM_DIGITS), decimal.scale)
        return Function(states, result, lambda *columns: _checked(_kept(*columns), result, rules))
    if pt.is_integer(kind):
        state = State("sum", pa.int64(), "sum", lambda column: column, rules if rules.ansi else None)
        return Function((state,), pa.int64(), lambda column: column)
    if pt.is_floating(kind):
        return Function((State("sum", pa.float64(), "sum", lambda column: column),), pa.float64(), lambda c: c)
    return None


def mean_function(kind: pa.DataType, rules: SumRules) -> Function | None:
    """The mean of a column of this type."""
    count = State("count", pa.int64(), "sum", lambda column: column.is_valid())
    if pt.is_decimal(kind) or pt.is_uint64(kind):
        states, decimal = _decimal_sum(kind, rules)
        digits = (decimal.precision + _MEAN_DIGITS, decimal.scale + _MEAN_DIGITS)
        result = pa.decimal128(*(min(MAX_PRECISION, number) for number in digits))

        def finish(*columns: pa.Array) -> pa.Array:
            return _checked(_quotient(_kept(*columns[:-1]), columns[-1], result.scale), result, rules)

        return Function((*states, count), result, finish)
    if not (pt.is_integer(kind) or pt.is_floating(kind)):
        return None
    return Function((State("sum", pa.float64(), "sum", as_floats), count), pa.float64(), pc.divide)


def product_function(kind: pa.DataType) -> Function | None:
    """The product of a column of this type."""
    if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)):
        return None
    return Function((State("product", pa.float64(), "product", as_floats),), pa.float64(), lambda column: column)


def as_floats(column: pa.Array) -> pa.Array:
    """Numbers as float64, also where that rounds."""
    return column.cast(pa.float64(), safe=False)


def _decimal_sum(kind: pa.DataType, rules: SumRules) -> tuple[tuple[State, ...], pa.DataType]:
    """The states of a sum of decimals, and the decimal type that the column is summed as."""
    decimal = pa.decimal128(20, 0) if pt.is_uint64(kind) else kind
    state = State("sum", pa.decimal128(MAX_PRECISION, decimal.scale), "sum", lambda column: column, rules)
    if rules.ansi:
        return (state,), decimal
    return (state, State("overflow", pa.bool_(), "any", lambda column: pa.nulls(len(column), pa.bool_()))), decimal


def _kept(sums: pa.Array, lost: pa.Array | None = None) -> pa.Array:
    """The sums without those that have left their type on the way."""
    if lost is None or lost.null_count == len(lost):
        return sums
    return pc.if_else(lost.is_valid(), pa.nulls(len(sums), sums.type), sums)


def _quotient(sums: pa.Array, counts: pa.Array, scale: int) -> pa.Array:
    """Sums by counts, rounded half up to this scale."""
    wide = pa.decimal256(sums.type.precision, sums.type.scale)
    # Cut off behind many more digits than are kept, so that what is cut off decides no rounding.
    exact = pc.divide(sums.cast(wide), counts.cast(pa.decimal256(_COUNT_DIGITS, 0)))
    for digits in (_DIVISION_SCALE, scale):
        if digits < exact.type.scale:
            exact = pc.round(exact, ndigits=digits, round_mode="half_towards_infinity")
    return exact.cast(pa.decimal256(exact.type.precision, scale))


def _checked(decimals: pa.Array, kind: pa.DataType, rules: SumRules) -> pa.Array:
    try:
        return decimals.cast(kind)
    except pa.ArrowInvalid:
        if rules.ansi:
            raise rules.error(kind) from None
        return fitting(decimals, kind)[0]
