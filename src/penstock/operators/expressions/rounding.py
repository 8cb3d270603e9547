# SPDX-License-Identifier: Apache-2.0
"""`round` and `bround`: numbers rounded by their shortest decimal form, as Spark's go through Java's BigDecimal.

2.675 lies below that in binary, and is a tie by its digits. So floating arithmetic rounds whatever is clearly off a
tie, and the few rows near one become decimals of their digits, are rounded exactly, and come back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.expressions.decimals import rounded_decimal
from penstock.operators.expressions.tree import Call, UnsupportedError
from penstock.operators.expressions.values import Datum, Kernel, array_of, columns_of_rows, missing_in, numbers

Doubles = npt.NDArray[np.float64]
_FLOAT_DIGITS = 15
_EXACT = float(1 << 53)
_DIGITS_OF_A_TIE = pa.decimal256(76, 40)
"""Room for all doubles that can be near a tie: 17 digits, at most 33 places ahead of or behind the point."""
_BEYOND_TIES = 1e33


def rounding(mode: str) -> Kernel:
    """The kernel of `Round` (`half_towards_infinity`) or `BRound` (`half_to_even`)."""

    def kernel(call: Call, values: list[Datum]) -> Datum:
        digits = call.integer(1)
        value = values[0]
        if pt.is_decimal(value.type):
            return rounded_decimal(value, digits, call.type, mode)
        if pt.is_integer(value.type) and digits >= 0:
            return value
        if pt.is_integer(value.type) or abs(digits) > _FLOAT_DIGITS:
            raise UnsupportedError(f"round to {digits} digits of {value.type}")
        (column,) = columns_of_rows([pc.cast(value, pa.float64())])
        rounded = _rounded(numbers(column), digits, mode)
        return array_of(rounded, pa.float64(), missing_in(column)).cast(call.type)

    return kernel


def _rounded(raw: Doubles, digits: int, mode: str) -> Doubles:
    with np.errstate(all="ignore"):
        scale = 10.0 ** abs(digits)
        scaled = raw * scale if digits >= 0 else raw / scale
        whole = np.floor(scaled)
        part = scaled - whole
        near = np.where(part > 0.5, whole + 1, whole)
        result = near / scale if digits >= 0 else near * scale
        size = np.abs(scaled)
        # So far off may both sides be: the product is half a unit in the last place off.
        unclear = np.abs(part - 0.5) <= np.maximum(size, 1.0) * 4e-16
        # Wider than that, doubles have no digits behind the last one wanted, but whole numbers may.
        is_large = ~(size < _EXACT) if digits >= 0 else ~(np.abs(raw) < _EXACT)
    if digits < 0:
        unclear = (unclear & ~is_large) | (is_large & (np.abs(raw) < _BEYOND_TIES))
    else:
        unclear &= ~is_large
    result = np.where(is_large, raw, np.copysign(result, raw))
    places = np.flatnonzero(unclear)
    if len(places):
        result[places] = _by_digits(raw[places], digits, mode)
    # Spark goes through a BigDecimal, which has no negative zero.
    return np.where(result == 0, 0.0, result)


def _by_digits(raw: Doubles, digits: int, mode: str) -> npt.NDArray[Any]:
    """Rounded exactly, each from the shortest digits that name it."""
    exact = array_of(raw, pa.float64()).cast(pa.string()).cast(_DIGITS_OF_A_TIE)
    return numbers(pc.round(exact, digits, mode).cast(pa.string()).cast(pa.float64()))
