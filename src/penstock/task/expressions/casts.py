# SPDX-License-Identifier: Apache-2.0
"""Spark's casts, where Arrow can give the same answer.

In ANSI mode what does not fit is an error that shows the value. Outside it Spark gives null, a wrapped or a
saturated number for single values; casts that can meet such a value are refused there, and so is `try_cast`.
Limits: doubles as text (Java writes them in a form of its own), doubles as decimals, intervals, and nested types.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.task.expressions.calendar import floored, instant, local
from penstock.task.expressions.decimals import fitted_decimal
from penstock.task.expressions.tree import Call, UnsupportedError, ValuesError
from penstock.task.expressions.values import FALSE, Datum, number_scalar, refuse_where, text_scalar, zero_of

_SPACE = " \t\n\r\x0b\x0c"
_WHOLE = r"^[+-]?[0-9]+$"
_NUMBER = (
    r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?([iI][nN][fF]([iI][nN][iI][tT][yY])?)$|^[nN][aA][nN]$"
)
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIMESTAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)?$"
_YES = ("t", "true", "y", "yes", "1")
_NO = ("f", "false", "n", "no", "0")
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""Of the largest whole number with so many bits."""

Cast = Callable[[Call, Datum], Datum]


def cast(call: Call, values: list[Datum]) -> Datum:
    """The kernel of `Cast`."""
    value, target = values[0], call.type
    if value.type.equals(target):
        return value
    if pt.is_null(value.type):
        return pa.nulls(1, target)[0]
    convert = _conversion(value.type, target)
    if convert is None:
        raise UnsupportedError(f"a cast of {value.type} to {target}")
    try:
        return convert(call, value)
    except pa.ArrowInvalid as error:
        raise ValuesError(f"a value does not fit {target}: {error}") from error


def can_fail(call: Call) -> bool:
    """Whether some value may be refused."""
    (argument,) = call.arguments
    safe = (pt.is_integer, pt.is_boolean, pt.is_date, pt.is_null)
    widening = any(test(argument.type) for test in safe) and (
        pt.is_floating(call.type) or pt.is_string(call.type) or call.type in (pa.int64(), argument.type)
    )
    return not widening


def _conversion(source: pa.DataType, target: pa.DataType) -> Cast | None:
    for is_source, is_target, convert in _TABLE:
        if is_source(source) and is_target(target):
            return convert
    return None


def _plain(call: Call, value: Datum) -> Datum:
    return value.cast(call.type)


def _ansi(convert: Cast) -> Cast:
    def only_ansi(call: Call, value: Datum) -> Datum:
        if not call.is_ansi:
            raise UnsupportedError(f"a cast to {call.type} outside ANSI mode")
        return convert(call, value)

    return only_ansi


def _with_room(convert: Cast) -> Cast:
    """Any mode where no value can be too large; else as `_ansi`."""
    only_ansi = _ansi(convert)

    def kernel(call: Call, value: Datum) -> Datum:
        source, target = value.type, call.type
        digits = source.precision - source.scale if pt.is_decimal(source) else _DIGITS[source.bit_width]
        scale = source.scale if pt.is_decimal(source) else 0
        has_room = target.scale >= scale and target.precision - target.scale >= digits
        return (convert if has_room else only_ansi)(call, value)

    return kernel


def _whole_numbers(call: Call, value: Datum) -> Datum:
    if not call.is_ansi and call.type.bit_width < value.type.bit_width and call.option("mode") != "LEGACY":
        raise UnsupportedError(f"a try_cast to {call.type}")
    return pc.cast(value, call.type, safe=call.is_ansi)


def _lossy(call: Call, value: Datum) -> Datum:
    return pc.cast(value, call.type, safe=False)


def _from_bool(call: Call, value: Datum) -> Datum:
    return value.cast(pa.int32()).cast(call.type)


def _float_to_int(call: Call, value: Datum) -> Datum:
    return pc.trunc(value).cast(call.type)


def _to_bool(call: Call, value: Datum) -> Datum:
    return pc.not_equal(value, zero_of(value.type))


def _int_to_decimal(call: Call, value: Datum) -> Datum:
    wide = value.cast(pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal256(76, call.type.scale))
    return fitted_decimal(wide, call.type)


def _decimal_to_decimal(call: Call, value: Datum) -> Datum:
    return fitted_decimal(value, call.type)


def _decimal_to_int(call: Call, value: Datum) -> Datum:
    return pc.round(value, 0, "towards_zero").cast(call.type)


def _decimal_to_float(call: Call, value: Datum) -> Datum:
    # Through text: Arrow multiplies by a power of ten, which makes 99.99000000000001 of 99.99.
    return value.cast(pa.string()).cast(call.type)


def _decimal_to_text(call: Call, value: Datum) -> Datum:
    if value.type.scale > 6:
        raise UnsupportedError(f"{value.type} as text")
    return value.cast(call.type)


def _trimmed(value: Datum) -> Datum:
    return pc.utf8_trim(value, characters=_SPACE)


def _checked(value: Datum, pattern: str, call: Call) -> Datum:
    text = _trimmed(value)
    wrong = pc.invert(pc.match_substring_regex(text, pattern))
    refuse_where(wrong, value, f"cannot be cast to {call.type}")
    return text


def _without_plus(text: Datum) -> Datum:
    return pc.utf8_ltrim(text, characters="+")


def _text_to_int(call: Call, value: Datum) -> Datum:
    return _without_plus(_checked(value, _WHOLE, call)).cast(call.type)


def _text_to_float(call: Call, value: Datum) -> Datum:
    return _without_plus(_checked(value, _NUMBER, call)).cast(call.type)


def _text_to_bool(call: Call, value: Datum) -> Datum:
    text = pc.utf8_lower(_trimmed(value))
    yes, no = (_one_of(text, words) for words in (_YES, _NO))
    refuse_where(pc.invert(pc.or_(yes, no)), value, "cannot be cast to bool")
    return yes


def _one_of(text: Datum, words: tuple[str, ...]) -> Datum:
    found = FALSE
    for word in words:
        found = pc.or_(found, pc.equal(text, text_scalar(word)))
    return found


def _text_to_date(call: Call, value: Datum) -> Datum:
    return _checked(value, _DATE, call).cast(call.type)


def _text_to_timestamp(call: Call, value: Datum) -> Datum:
    shown = _checked(value, _TIMESTAMP, call).cast(pa.timestamp("us"))
    return shown if call.type.tz is None else instant(shown, call.zone)


def _timestamp_to_text(call: Call, value: Datum) -> Datum:
    text = local(value, call.zone).cast(pa.string())
    text = pc.replace_substring_regex(text, r"(\.[0-9]*?)0+$", r"\1")
    return pc.replace_substring_regex(text, r"\.$", "")


def _timestamp_to_date(call: Call, value: Datum) -> Datum:
    return local(value, call.zone).cast(pa.date32())


def _timestamp_to_int(call: Call, value: Datum) -> Datum:
    return floored(value.cast(pa.int64()), 1_000_000).cast(call.type)


def _int_to_timestamp(call: Call, value: Datum) -> Datum:
    micros = pc.multiply_checked(value.cast(pa.int64()), number_scalar(1_000_000, pa.int64()))
    return micros.cast(call.type)


def _timestamp_to_timestamp(call: Call, value: Datum) -> Datum:
    return local(value, call.zone) if call.type.tz is None else instant(value, call.zone)


def _date_to_timestamp(call: Call, value: Datum) -> Datum:
    shown = value.cast(pa.timestamp("us"))
    return shown if call.type.tz is None else instant(shown, call.zone)


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind) and kind.tz)


_TABLE: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool], Cast], ...] = (
    (pt.is_boolean, pt.is_string, _plain),
    (pt.is_boolean, pt.is_integer, _from_bool),
    (pt.is_boolean, pt.is_floating, _from_bool),
    (pt.is_integer, pt.is_integer, _whole_numbers),
    (pt.is_integer, pt.is_floating, _lossy),
    (pt.is_integer, pt.is_decimal, _with_room(_int_to_decimal)),
    (pt.is_integer, pt.is_boolean, _to_bool),
    (pt.is_integer, pt.is_string, _plain),
    (pt.is_integer, _is_instant, _int_to_timestamp),
    (pt.is_floating, pt.is_floating, _lossy),
    (pt.is_floating, pt.is_integer, _ansi(_float_to_int)),
    (pt.is_floating, pt.is_boolean, _to_bool),
    (pt.is_decimal, pt.is_decimal, _with_room(_decimal_to_decimal)),
    (pt.is_decimal, pt.is_integer, _ansi(_decimal_to_int)),
    (pt.is_decimal, pt.is_floating, _decimal_to_float),
    (pt.is_decimal, pt.is_boolean, _to_bool),
    (pt.is_decimal, pt.is_string, _decimal_to_text),
    (pt.is_string, pt.is_integer, _ansi(_text_to_int)),
    (pt.is_string, pt.is_floating, _ansi(_text_to_float)),
    (pt.is_string, pt.is_boolean, _ansi(_text_to_bool)),
    (pt.is_string, pt.is_date, _ansi(_text_to_date)),
    (pt.is_string, pt.is_timestamp, _ansi(_text_to_timestamp)),
    (pt.is_string, pt.is_binary, _plain),
    (pt.is_date, pt.is_string, _plain),
    (pt.is_date, pt.is_timestamp, _date_to_timestamp),
    (pt.is_timestamp, pt.is_string, _timestamp_to_text),
    (pt.is_timestamp, pt.is_date, _timestamp_to_date),
    (_is_instant, pt.is_integer, _timestamp_to_int),
    (pt.is_timestamp, pt.is_timestamp, _timestamp_to_timestamp),
)
