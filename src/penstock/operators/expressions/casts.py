# SPDX-License-Identifier: Apache-2.0
"""Spark's casts, where Arrow can give the same answer.

A kernel gives null for each value that the target has no room for. That is `try_cast`, in any session; a cast in ANSI
mode makes an error of it that shows the value. Outside ANSI mode Spark gives null, a wrapped or a saturated number,
by the pair of types: casts that can meet such a value are refused there. Lists, maps and structs are cast part by
part.
Limits: doubles as text (Java writes them in a form of its own), doubles as decimals, and intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.graph import same_but_nulls
from penstock.operators.expressions.calendar import floored, instant, local
from penstock.operators.expressions.number_casts import (
    decimal_to_decimal,
    decimal_to_whole,
    has_room,
    null_but,
    real_to_whole,
    whole_to_decimal,
    whole_to_whole,
)
from penstock.operators.expressions.text_casts import text_to_bool, text_to_decimal, text_to_real, text_to_whole
from penstock.operators.expressions.text_times import text_to_date, text_to_timestamp
from penstock.operators.expressions.tree import Call, UnsupportedError, ValuesError
from penstock.operators.expressions.values import (
    Datum,
    column_of,
    columns_of_rows,
    number_scalar,
    of_type,
    refuse_where,
    zero_of,
)
from penstock.operators.layouts import refilled

_MOST_DAYS = 106_751_991
_MOST_SECONDS = (2**63 - 1) // 1_000_000
"""From 1970, as 64 bits hold microseconds."""

Cast = Callable[[Call, Datum], Datum]


def cast(call: Call, values: list[Datum]) -> Datum:
    """The kernel of `Cast`."""
    value, target = values[0], call.type
    if same_but_nulls(value.type, target):
        return of_type(value, target)
    if pt.is_null(value.type):
        return pa.nulls(1, target)[0]
    if pt.is_nested(value.type) or pt.is_nested(target):
        return _part_by_part(call, value)
    convert = _conversion(value.type, target)
    if convert is None:
        raise UnsupportedError(f"a {_named(call)} of {value.type} to {target}")
    try:
        found = convert(call, value)
    except pa.ArrowInvalid as error:
        raise ValuesError(f"a value does not fit {target}: {error}") from error
    if call.is_ansi:
        _refuse_lost(found, value, target)
    return found


_NESTED = (pt.is_list, pt.is_map, pt.is_struct)


def _part_by_part(call: Call, value: Datum) -> Datum:
    """What is inside, cast; under a null there is nothing that could be refused."""
    target = call.type
    if not any(test(value.type) and test(target) for test in _NESTED):
        raise UnsupportedError(f"a {_named(call)} of {value.type} to {target}")
    if isinstance(value, pa.Scalar):
        return _part_by_part(call, columns_of_rows([value])[0])[0]
    if not pt.is_struct(target):
        return refilled(value, target, lambda part, kind: _part(call, part, kind))
    parts = [_part(call, part, field.type) for part, field in zip(value.flatten(), target, strict=True)]
    return pa.StructArray.from_arrays(parts, fields=list(target), mask=value.is_null())


def _part(call: Call, part: pa.Array, kind: pa.DataType) -> pa.Array:
    found = cast(replace(call, type=kind), [part])
    return column_of(found, len(part))


def can_fail(call: Call) -> bool:
    """Tell whether some value may be refused."""
    (argument,) = call.arguments
    if call.option("mode") == "TRY":
        return bool(pt.is_string(argument.type))
    safe = (pt.is_integer, pt.is_boolean, pt.is_date, pt.is_null)
    widening = any(test(argument.type) for test in safe) and (
        pt.is_floating(call.type) or pt.is_string(call.type) or call.type in (pa.int64(), argument.type)
    )
    return not widening


def _named(call: Call) -> str:
    return "try_cast" if call.option("mode") == "TRY" else "cast"


def _refuse_lost(found: Datum, value: Datum, target: pa.DataType) -> None:
    """Raise ValuesError with the first value that has become null."""
    (values,), (results,) = columns_of_rows([value]), columns_of_rows([found])
    if results.null_count == values.null_count:
        return
    problem = f"cannot be cast to {target}"
    if pt.is_decimal(target) and not pt.is_string(value.type):
        problem = f"has more digits than decimal({target.precision}, {target.scale}) holds"
    refuse_where(pc.and_(results.is_null(), values.is_valid()), values, problem)


def _conversion(source: pa.DataType, target: pa.DataType) -> Cast | None:
    for is_source, is_target, convert in _TABLE:
        if is_source(source) and is_target(target):
            return convert
    return None


def _plain(call: Call, value: Datum) -> Datum:
    return value.cast(call.type)


def _not_legacy(convert: Cast) -> Cast:
    def kernel(call: Call, value: Datum) -> Datum:
        if call.option("mode") == "LEGACY":
            raise UnsupportedError(f"a cast of {value.type} to {call.type} outside ANSI mode")
        return convert(call, value)

    return kernel


def _with_room(convert: Cast) -> Cast:
    """Any mode where no value can be too large; else as `_not_legacy`."""
    careful = _not_legacy(convert)

    def kernel(call: Call, value: Datum) -> Datum:
        return (convert if has_room(value.type, call.type) else careful)(call, value)

    return kernel


def _whole_numbers(call: Call, value: Datum) -> Datum:
    return _lossy(call, value) if call.option("mode") == "LEGACY" else whole_to_whole(call, value)


def _bytes_to_text(call: Call, value: Datum) -> Datum:
    """The same bytes, as in Spark, whether or not they are UTF-8."""
    return pc.cast(value, options=pc.CastOptions(call.type, allow_invalid_utf8=True))


def _lossy(call: Call, value: Datum) -> Datum:
    return pc.cast(value, call.type, safe=False)


def _from_bool(call: Call, value: Datum) -> Datum:
    return value.cast(pa.int32()).cast(call.type)


def _to_bool(call: Call, value: Datum) -> Datum:
    return pc.not_equal(value, zero_of(value.type))


def _decimal_to_float(call: Call, value: Datum) -> Datum:
    # Through text: Arrow multiplies by a power of ten, which makes 99.99000000000001 of 99.99.
    return value.cast(pa.string()).cast(call.type)


def _decimal_to_text(call: Call, value: Datum) -> Datum:
    if value.type.scale > 6:
        raise UnsupportedError(f"{value.type} as text")
    return value.cast(call.type)


def _timestamp_to_text(call: Call, value: Datum) -> Datum:
    text = local(value, call.zone).cast(pa.string())
    text = pc.replace_substring_regex(text, r"(\.[0-9]*?)0+$", r"\1")
    return pc.replace_substring_regex(text, r"\.$", "")


def _timestamp_to_date(call: Call, value: Datum) -> Datum:
    return local(value, call.zone).cast(pa.date32())


def _timestamp_to_int(call: Call, value: Datum) -> Datum:
    return _whole_numbers(call, floored(value.cast(pa.int64()), 1_000_000))


def _int_to_timestamp(call: Call, value: Datum) -> Datum:
    """An instant beyond all is the last or the first of them."""
    seconds = value.cast(pa.int64())
    most, least = (number_scalar(end, pa.int64()) for end in (_MOST_SECONDS, -_MOST_SECONDS))
    micros = pc.multiply(seconds, number_scalar(1_000_000, pa.int64()))
    last, first = (number_scalar(end, pa.int64()) for end in (2**63 - 1, -(2**63)))
    micros = pc.if_else(pc.greater(seconds, most), last, pc.if_else(pc.less(seconds, least), first, micros))
    return micros.cast(call.type)


def _timestamp_to_timestamp(call: Call, value: Datum) -> Datum:
    return local(value, call.zone) if call.type.tz is None else instant(value, call.zone)


def _date_to_timestamp(call: Call, value: Datum) -> Datum:
    try:
        shown = value.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        days = value.cast(pa.int32())
        inside = pc.less_equal(pc.abs(days), number_scalar(_MOST_DAYS, pa.int32()))
        shown = null_but(inside, value).cast(pa.timestamp("us"))
    return shown if call.type.tz is None else instant(shown, call.zone)


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind) and kind.tz)


_TABLE: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool], Cast], ...] = (
    (pt.is_boolean, pt.is_string, _plain),
    (pt.is_boolean, pt.is_integer, _from_bool),
    (pt.is_boolean, pt.is_floating, _from_bool),
    (pt.is_integer, pt.is_integer, _whole_numbers),
    (pt.is_integer, pt.is_floating, _lossy),
    (pt.is_integer, pt.is_decimal, _with_room(whole_to_decimal)),
    (pt.is_integer, pt.is_boolean, _to_bool),
    (pt.is_integer, pt.is_string, _plain),
    (pt.is_integer, _is_instant, _int_to_timestamp),
    (pt.is_floating, pt.is_floating, _lossy),
    (pt.is_floating, pt.is_integer, _not_legacy(real_to_whole)),
    (pt.is_floating, pt.is_boolean, _to_bool),
    (pt.is_decimal, pt.is_decimal, _with_room(decimal_to_decimal)),
    (pt.is_decimal, pt.is_integer, _not_legacy(decimal_to_whole)),
    (pt.is_decimal, pt.is_floating, _decimal_to_float),
    (pt.is_decimal, pt.is_boolean, _to_bool),
    (pt.is_decimal, pt.is_string, _decimal_to_text),
    (pt.is_string, pt.is_integer, _not_legacy(text_to_whole)),
    (pt.is_string, pt.is_floating, _not_legacy(text_to_real)),
    (pt.is_string, pt.is_decimal, _not_legacy(text_to_decimal)),
    (pt.is_string, pt.is_boolean, _not_legacy(text_to_bool)),
    (pt.is_string, pt.is_date, _not_legacy(text_to_date)),
    (pt.is_string, pt.is_timestamp, _not_legacy(text_to_timestamp)),
    (pt.is_string, pt.is_binary, _plain),
    (pt.is_binary, pt.is_string, _bytes_to_text),
    (pt.is_date, pt.is_string, _plain),
    (pt.is_date, pt.is_timestamp, _date_to_timestamp),
    (pt.is_timestamp, pt.is_string, _timestamp_to_text),
    (pt.is_timestamp, pt.is_date, _timestamp_to_date),
    (_is_instant, pt.is_integer, _timestamp_to_int),
    (pt.is_timestamp, pt.is_timestamp, _timestamp_to_timestamp),
)
