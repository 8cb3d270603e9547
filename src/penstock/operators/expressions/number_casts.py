# SPDX-License-Identifier: Apache-2.0
"""Numbers as other numbers: null for each value that the other type has no room for.

Arrow's checked casts come first, as they are one pass; single values are looked at where one refuses the column.
A number is cut towards zero on its way to a whole one, a decimal is rounded half up on its way to fewer digits.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.expressions.decimals import HALF_UP, fitted_decimal, wide_decimal
from penstock.operators.expressions.tree import Call, ValuesError
from penstock.operators.expressions.values import Datum, array_of, columns_of_rows, missing_in, number_scalar, numbers

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""The digits of the largest whole number with so many bits."""


def null_but(mask: Datum, value: Datum) -> Datum:
    """The value where the mask is true, else null."""
    return pc.if_else(mask, value, pa.nulls(1, value.type)[0])


def has_room(source: pa.DataType, target: pa.DataType) -> bool:
    """A decimal type that holds every value of a type of whole numbers or decimals."""
    digits = source.precision - source.scale if pt.is_decimal(source) else _DIGITS[source.bit_width]
    scale = source.scale if pt.is_decimal(source) else 0
    return bool(target.scale >= scale and target.precision - target.scale >= digits)


def whole_to_whole(call: Call, value: Datum) -> Datum:
    """A whole number of another width; null where it does not fit."""
    try:
        return pc.cast(value, call.type)
    except pa.ArrowInvalid:
        low, high = (number_scalar(end, value.type) for end in _ends(call.type))
        inside = pc.and_(pc.greater_equal(value, low), pc.less_equal(value, high))
        return pc.cast(null_but(inside, value), call.type)


def real_to_whole(call: Call, value: Datum) -> Datum:
    """Spark compares as doubles: 2**63 passes as a long, and is the largest."""
    try:
        return pc.trunc(value).cast(call.type)
    except pa.ArrowInvalid:
        return _reals_that_fit(call, columns_of_rows([value])[0])


def _reals_that_fit(call: Call, column: pa.Array) -> pa.Array:
    reals = numbers(column).astype(np.float64)
    low, high = _ends(call.type)
    inside = (np.floor(reals) <= float(high)) & (np.ceil(reals) >= float(low))
    cut = np.where(inside, np.trunc(reals), 0.0)
    is_top = cut >= 2.0**63
    wholes = np.where(is_top, 0.0, cut).astype(np.int64)
    wholes[is_top] = high
    missing = missing_in(column)
    lost = ~inside if missing is None else ~inside | missing
    return array_of(wholes, pa.int64(), lost if lost.any() else None).cast(call.type)


def whole_to_decimal(call: Call, value: Datum) -> Datum:
    """Exact, or null."""
    wide = value.cast(pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal256(76, call.type.scale))
    return decimal_to_decimal(call, wide)


def decimal_to_decimal(call: Call, value: Datum) -> Datum:
    """Rounded half up."""
    kind = call.type
    try:
        return fitted_decimal(value, kind)
    except ValuesError:
        rounded = wide_decimal(value)
        if value.type.scale > kind.scale:
            rounded = pc.round(rounded, kind.scale, HALF_UP)
        whole = kind.precision - kind.scale
        inside = pc.less(pc.abs(rounded), _power_of_ten(whole, pa.decimal256(whole + 1, 0)))
        return fitted_decimal(null_but(inside, value), kind)


def decimal_to_whole(call: Call, value: Datum) -> Datum:
    """Cut towards zero."""
    cut = pc.round(value, 0, "towards_zero")
    try:
        return cut.cast(call.type)
    except pa.ArrowInvalid:
        kind = pa.decimal256(max(cut.type.precision, 20), 0)
        wide = cut.cast(kind)
        low, high = (number_scalar(end, pa.int64()).cast(pa.decimal128(19, 0)).cast(kind) for end in _ends(call.type))
        inside = pc.and_(pc.greater_equal(wide, low), pc.less_equal(wide, high))
        return null_but(inside, wide).cast(call.type)


def _ends(kind: pa.DataType) -> tuple[int, int]:
    most = 1 << (kind.bit_width - 1)
    return -most, most - 1


def _power_of_ten(digits: int, kind: pa.DataType) -> pa.Scalar:
    number = (10**digits).to_bytes(kind.bit_width // 8, "little")
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(number)])[0]
