# SPDX-License-Identifier: Apache-2.0
"""Numbers: arithmetic with Spark's overflow and division, and functions of doubles.

In ANSI mode, Spark's default, an overflow or a division by zero is an error; else integers wrap and a division by
zero is null. Limits: `try_add` and its kin are refused, but for `try_divide`. Logarithms, powers and the like are
the C library's, so the last bit may differ from Java's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.expressions.decimals import decimal_binary, fitted_decimal, wide_decimal
from penstock.operators.expressions.rounding import rounding
from penstock.operators.expressions.tree import Call, UnsupportedError
from penstock.operators.expressions.values import (
    Datum,
    Kernel,
    any_true,
    array_of,
    columns_of_rows,
    missing_in,
    number_scalar,
    numbers,
    refuse_where,
    zero_of,
)


def _binary(name: str) -> Kernel:
    checked, wrapping = getattr(pc, f"{name}_checked"), getattr(pc, name)

    def kernel(call: Call, values: list[Datum]) -> Datum:
        if pt.is_decimal(call.type):
            return decimal_binary(call, wrapping, values)
        if call.option("mode") == "TRY" and not pt.is_floating(call.type):
            raise UnsupportedError(f"try_{name} of whole numbers")
        return checked(*values) if call.is_ansi and not pt.is_floating(call.type) else wrapping(*values)

    return kernel


def _without_zeros(call: Call, divisor: Datum, zero: pa.Scalar, value: Datum) -> Datum:
    """The divisor, null in place of zero; in ANSI mode zeros under a value are refused."""
    is_zero = pc.equal(divisor, zero)
    if call.is_ansi:
        refuse_where(pc.and_(is_zero, pc.is_valid(value)), value, "divided by zero (try_divide gives null there)")
    return pc.if_else(is_zero, _null(divisor.type), divisor) if any_true(is_zero) else divisor


def _null(kind: pa.DataType) -> pa.Scalar:
    return pa.nulls(1, kind)[0]


def _divide(call: Call, values: list[Datum]) -> Datum:
    value, divisor = values
    divisor = _without_zeros(call, divisor, zero_of(divisor.type), value)
    if pt.is_decimal(call.type):
        return decimal_binary(call, pc.divide, [value, divisor])
    return pc.divide(value, divisor)


def _integral_divide(call: Call, values: list[Datum]) -> Datum:
    value, divisor = values
    if not pt.is_integer(divisor.type):
        raise UnsupportedError(f"div of {divisor.type}")
    divisor = _without_zeros(call, divisor, zero_of(divisor.type), value)
    if call.is_ansi:
        return pc.divide_checked(value, divisor)
    found, is_minus = pc.divide(value, divisor), pc.equal(divisor, number_scalar(-1, divisor.type))
    # To Java the least number stays what it is; to Arrow it becomes 0.
    return pc.if_else(is_minus, pc.negate(value), found) if any_true(is_minus) else found


Numbers = npt.NDArray[Any]
Remainder = Callable[[Numbers, Numbers], Numbers]


def _modulo(remainder: Remainder) -> Kernel:
    def kernel(call: Call, values: list[Datum]) -> Datum:
        value, divisor = values
        if pt.is_decimal(divisor.type):
            raise UnsupportedError("the remainder of decimals")
        one = divisor.as_py() if isinstance(divisor, pa.Scalar) and value.type == divisor.type else None
        if one and isinstance(value, pa.Array):  # there is no zero to look for
            missing, under = missing_in(value), numbers(value).dtype.type(one)
        else:
            divisor = _without_zeros(call, divisor, zero_of(divisor.type), value)
            value, divisor = columns_of_rows([value, divisor])
            missing, under = missing_in(value, divisor), numbers(divisor)
            if missing is not None:
                under = np.where(missing, under.dtype.type(1), under)
        with np.errstate(all="ignore"):
            return array_of(remainder(numbers(value), under), call.type, missing)

    return kernel


def _positive(value: Numbers, divisor: Numbers) -> Numbers:
    rest: Numbers = np.fmod(value, divisor)
    return np.where(rest < 0, np.fmod(rest + divisor, divisor), rest)


def _negate(call: Call, values: list[Datum]) -> Datum:
    mode = call.option("failOnError")
    return (pc.negate_checked if mode and pt.is_integer(call.type) else pc.negate)(values[0])


def _abs(call: Call, values: list[Datum]) -> Datum:
    mode = call.option("failOnError")
    return (pc.abs_checked if mode and pt.is_integer(call.type) else pc.abs)(values[0])


_LONG_END = number_scalar(2.0**63, pa.float64())


def _whole(function: Callable[[Datum], Datum]) -> Kernel:
    def kernel(call: Call, values: list[Datum]) -> Datum:
        if pt.is_decimal(values[0].type):
            # Arrow keeps the type, in which 9.99 has no room for the 10.00 above it.
            return fitted_decimal(function(wide_decimal(values[0])), call.type)
        if pt.is_integer(values[0].type):
            return values[0]
        (column,) = columns_of_rows([function(values[0])])
        found = numbers(column)
        if call.option("failOnError"):
            # NaN is 0, as in Java; what is beyond all longs is their end, and refused in ANSI mode.
            beyond = pc.or_(pc.greater_equal(column, _LONG_END), pc.less(column, pc.negate(_LONG_END)))
            refuse_where(beyond, column, "does not fit a long")
        with np.errstate(invalid="ignore"):
            inside = np.clip(np.nan_to_num(found, nan=0.0), -(2.0**63), 2.0**63 - 1024)
            result = inside.astype(np.int64)
        result[found >= 2.0**63] = np.iinfo(np.int64).max
        return array_of(result, pa.int64(), missing_in(column))

    return kernel


def _of_double(function: Callable[..., Datum]) -> Kernel:
    return lambda call, values: function(*values)


def _log(function: Callable[[Datum], Datum]) -> Kernel:
    """Null where the number is not positive, as in Spark."""

    def kernel(call: Call, values: list[Datum]) -> Datum:
        value = values[0]
        outside = pc.less_equal(value, number_scalar(0.0, pa.float64()))
        return function(pc.if_else(outside, _null(pa.float64()), value))

    return kernel


def _sign(call: Call, values: list[Datum]) -> Datum:
    value = values[0]
    if not pt.is_floating(value.type):
        return pc.cast(pc.sign(value), call.type)
    # Arrow makes 0.0 of -0.0; Java keeps it.
    return pc.cast(pc.if_else(pc.equal(value, zero_of(value.type)), value, pc.sign(value)), call.type)


ARITHMETIC: dict[str, Kernel] = {
    "Add": _binary("add"),
    "Subtract": _binary("subtract"),
    "Multiply": _binary("multiply"),
    "Divide": _divide,
    "IntegralDivide": _integral_divide,
    "Remainder": _modulo(np.fmod),
    "Pmod": _modulo(_positive),
    "UnaryMinus": _negate,
    "UnaryPositive": lambda call, values: values[0],
    "Abs": _abs,
    "Round": rounding("half_towards_infinity"),
    "BRound": rounding("half_to_even"),
    "Ceil": _whole(pc.ceil),
    "Floor": _whole(pc.floor),
    "Sqrt": _of_double(pc.sqrt),
    "Exp": _of_double(pc.exp),
    "Pow": _of_double(pc.power),
    "Log": _log(pc.ln),
    "Log10": _log(pc.log10),
    "Log2": _log(pc.log2),
    "Signum": _sign,
    "Sin": _of_double(pc.sin),
    "Cos": _of_double(pc.cos),
    "Tan": _of_double(pc.tan),
    "Atan": _of_double(pc.atan),
    "BitwiseAnd": _of_double(pc.bit_wise_and),
    "BitwiseOr": _of_double(pc.bit_wise_or),
    "BitwiseXor": _of_double(pc.bit_wise_xor),
    "BitwiseNot": _of_double(pc.bit_wise_not),
}
FAILING = frozenset(
    {"Add", "Subtract", "Multiply", "Divide", "IntegralDivide", "Remainder", "Pmod", "UnaryMinus", "Abs"}
    | {"Ceil", "Floor"}
)
"""The functions that may raise an error for some values, so that they must not see rows that Spark would not show
them.
"""
