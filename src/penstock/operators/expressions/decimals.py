# SPDX-License-Identifier: Apache-2.0
"""Decimals: results in the precision and scale that Spark has derived, rounded half up, computed in 256 bits.

An overflow of the result's precision is an error in ANSI mode and else refused too, because Spark would give null
for single rows and Arrow's cast knows only all or none.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.expressions.tree import Call, UnsupportedError, ValuesError
from penstock.operators.expressions.values import Datum

_WIDE = 76
HALF_UP = "half_towards_infinity"


def decimal_binary(call: Call, function: Callable[[Datum, Datum], Datum], values: list[Datum]) -> Datum:
    """Add, subtract, multiply or divide two decimals."""
    left, right = values
    if call.option("mode") == "TRY":
        raise UnsupportedError("try_ functions of decimals")
    if not (pt.is_decimal(left.type) and pt.is_decimal(right.type)):
        raise UnsupportedError(f"{call.function} of {left.type} and {right.type}")
    if function is pc.divide:
        return _quotient(left, right, call.type)
    exact = function(wide_decimal(left), wide_decimal(right))
    return fitted_decimal(exact, call.type)


def rounded_decimal(value: Datum, digits: int, kind: pa.DataType, mode: str) -> Datum:
    """A decimal rounded to so many digits, in the type Spark gives it."""
    if digits >= value.type.scale:
        return fitted_decimal(value, kind)
    return _cast(pc.round(wide_decimal(value), digits, mode), kind)


def fitted_decimal(value: Datum, kind: pa.DataType) -> Datum:
    """A decimal in another precision and scale, rounded half up."""
    if value.type.scale > kind.scale:
        value = pc.round(wide_decimal(value), kind.scale, HALF_UP)
    return _cast(value, kind)


def _quotient(left: Datum, right: Datum, kind: pa.DataType) -> Datum:
    # One digit more than the result has, cut off: it still says which way a half is rounded.
    scale = kind.scale + 1 + right.type.scale
    digits = max(left.type.precision + scale - left.type.scale, scale)
    wide = pa.decimal256(digits, scale)
    if digits + right.type.scale + 4 > _WIDE:
        raise UnsupportedError(f"{left.type} divided by {right.type}")
    quotient = pc.divide(pc.cast(left, wide), pc.cast(right, pa.decimal256(right.type.precision, right.type.scale)))
    cut = pc.round(quotient, kind.scale + 1, "towards_zero")
    return _cast(pc.round(cut, kind.scale, HALF_UP), kind)


def wide_decimal(value: Datum) -> Datum:
    """The same value with a digit to spare, so that rounding up 9.99 to 10.0 has room."""
    kind = value.type
    return value.cast(pa.decimal256(min(_WIDE, kind.precision + 1), kind.scale))


def _cast(value: Datum, kind: pa.DataType) -> Datum:
    try:
        return value.cast(kind)
    except pa.ArrowInvalid as error:
        raise ValuesError(f"a result has more digits than decimal({kind.precision}, {kind.scale}) holds") from error
