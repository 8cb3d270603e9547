# SPDX-License-Identifier: Apache-2.0
"""Text of CSV fields as values, as Spark's reader takes it: what is none becomes null, and is told.

Arrow casts a whole column; only where it finds something that it cannot read, or reads and Spark does not, patterns
say which texts are values. Limits: digits are ASCII's, and a time is one of ISO 8601; another form that Spark may
know, such as `10:00` or a zone's name, is an error, because it must not be taken for a null. So are whole numbers in
other digits, and doubles in hexadecimal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.expressions.values import FALSE, number_scalar, text_scalar
from penstock.operators.line_times import timed
from penstock.record.layout import contains, fixed_values, null_mask

Bools = npt.NDArray[np.bool_]
_WHOLE = r"^[+-]?[0-9]{1,70}$"
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
_DOUBLE = r"^[\x00-\x20]*[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?)[\x00-\x20]*$|^-?Inf$"
_OTHER_DIGITS = r"^[+-]?[\p{Nd}.,]*[^\x{0}-\x{7f}\P{Nd}][\p{Nd}.,]*([eE][+-]?\p{Nd}+)?$"
_HEXADECIMAL = r"^[\x00-\x20]*[+-]?0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*[pP][+-]?[0-9]+[dDfF]?[\x00-\x20]*$"
_MAY_BE_TIME = r"^[\x00-\x20]*([+-]?[0-9]{4,6}([-T \x00-\x20]|$)|T?[0-9]{1,2}:)"
_DAY = r"^[\x00-\x20]*([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
_CLOCK = r"([ T][0-9]{2}(:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?$"
_WIDE = pa.decimal256(76, 0)
_DEEP = pa.decimal256(76, 38)


def has_decimals(kind: pa.DataType) -> bool:
    """Tell whether this is a decimal, or holds some."""
    return contains(kind, pt.is_decimal)


def typed(column: pa.Array, field: pa.Field, zone: str) -> tuple[pa.Array, Bools | None]:
    """The values, and where a text is none; raises pa.ArrowInvalid, with the column, for what only Spark can tell."""
    kind = field.type
    if pt.is_string(kind):
        return column, None
    try:
        found = _all(column, field, zone)
    except pa.ArrowInvalid:
        found = None
    if found is not None:
        return found, None
    values = _some(column, field, zone)
    missing, were_missing = _nulls(values), _nulls(column)
    return values, missing & ~were_missing


def found_type(column: pa.Array, zone: str, *, with_zone: bool) -> pa.DataType:
    """The first type all texts are values of; string where no other is, or where there is no text."""
    instant, plain = pa.timestamp("us", "UTC"), pa.timestamp("us")
    if column.null_count == len(column):
        return pa.string()
    for kind in (pa.int64(), pa.bool_(), pa.date32(), instant if with_zone else plain, instant, pa.float64()):
        each = pa.field("value", kind)
        try:
            if pt.is_temporal(kind):
                _all(column, each, zone)
                return kind
            if (bad := typed(column, each, zone)[1]) is None or not bad.any():
                return kind
        except pa.ArrowInvalid:
            continue
    return pa.string()


def _nulls(column: pa.Array) -> Bools:
    mask = null_mask(column)
    return np.zeros(len(column), np.bool_) if mask is None else mask


def _all(column: pa.Array, field: pa.Field, zone: str) -> pa.Array | None:
    """All values by Arrow's cast; None where it may have read what Spark does not."""
    kind = field.type
    if pt.is_integer(kind) and pc.any(pc.match_substring(column, "x", ignore_case=True)).as_py():
        return None  # hexadecimal to Arrow
    if pt.is_boolean(kind):
        return None  # which may be 0 and 1 to Arrow
    found = timed(column, field, zone)
    if pt.is_floating(kind) and not pc.all(pc.is_finite(found)).as_py():
        return None  # nan and inf in any case of letters
    return found


def _some(column: pa.Array, field: pa.Field, zone: str) -> pa.Array:
    """The values of what can be read, null elsewhere."""
    kind = field.type
    if pt.is_integer(kind) or pt.is_decimal(kind):
        _refuse_where(pc.match_substring_regex(column, _OTHER_DIGITS), column, field, "number in the digits 0 to 9")
    if pt.is_integer(kind):
        wide = _matching(column, _WHOLE).cast(_WIDE)
        least, most = (_decimal(text, _WIDE) for text in _ends(kind.bit_width))
        return _where(pc.and_(pc.greater_equal(wide, least), pc.less_equal(wide, most)), wide).cast(kind)
    if pt.is_boolean(kind):
        lower = pc.ascii_lower(column)
        return _where(
            pc.or_(pc.equal(lower, text_scalar("true")), pc.equal(lower, text_scalar("false"))), lower
        ).cast(kind)
    if pt.is_floating(kind):
        _refuse_where(pc.match_substring_regex(column, _HEXADECIMAL), column, field, "decimal number")
        text = pc.utf8_rtrim(pc.utf8_trim(_matching(column, _DOUBLE), "".join(map(chr, range(33)))), "dDfF")
        return pc.if_else(pc.match_substring_regex(column, r"^-?Inf$"), column, text).cast(kind)
    if pt.is_decimal(kind):
        text = _matching(pc.replace_substring(column, ",", ""), _DECIMAL)  # which Spark leaves out, wherever it is
        text = _where(pc.less(pc.abs(text.cast(pa.float64())), number_scalar(1e37, pa.float64())), text)
        exact = pc.round(text.cast(_DEEP), kind.scale, "half_towards_infinity")
        size = _decimal("9" * (kind.precision - kind.scale) + "." + "9" * kind.scale, _DEEP)
        return _where(pc.less_equal(pc.abs(exact), size), exact).cast(kind)
    return _times(column, field, zone)


def _times(column: pa.Array, field: pa.Field, zone: str) -> pa.Array:
    pattern = _DAY + (r"([ T].*)?[\x00-\x20]*$" if pt.is_date(field.type) else _CLOCK)
    is_time = pc.match_substring_regex(column, pattern)
    doubtful = pc.and_(pc.invert(is_time), pc.match_substring_regex(column, _MAY_BE_TIME))
    _refuse_where(doubtful, column, field, "time of the form 2024-01-02 03:04:05")
    text = pc.utf8_trim(_where(is_time, column), "".join(map(chr, range(33))))
    text = pc.replace_substring_regex(text, r"^([0-9]{4})-([0-9])(-|$)", r"\1-0\2\3")
    text = pc.replace_substring_regex(text, r"^([0-9]{4}-[0-9]{2})-([0-9])([ T]|$)", r"\1-0\2\3")
    if pt.is_date(field.type):
        text = pc.utf8_slice_codeunits(text, 0, 10)
    return timed(_where(_exists(text), text), field, zone)


def _refuse_where(doubtful: pa.Array, column: pa.Array, field: pa.Field, form: str) -> None:
    """Raise pa.ArrowInvalid for a text that Spark may read and Penstock does not."""
    if pc.any(doubtful).as_py():
        shown = column.filter(pc.coalesce(doubtful, FALSE))[0].as_py()
        raise pa.ArrowInvalid(
            f"column {field.name!r}: {shown!r} is no {form}: declare the column as string, and cast it after the "
            "reader"
        )


def _exists(text: pa.Array) -> pa.Array:
    """A mask that is true where there is such a day and time of day."""
    parts = [
        _number(text, start, start + width) for start, width in ((0, 4), (5, 2), (8, 2), (11, 2), (14, 2), (17, 2))
    ]
    year, month, day, hour, minute, second = parts
    month_is = (month >= 1) & (month <= 12)
    first = (year - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (np.where(month_is, month, 1) - 1)
    days = ((first + 1).astype("datetime64[D]") - first.astype("datetime64[D]")).astype(np.int64)
    there = month_is & (day >= 1) & (day <= days) & (year > 0) & (hour < 24) & (minute < 60) & (second < 60)
    return pa.Array.from_buffers(pa.bool_(), len(text), [None, pa.py_buffer(np.packbits(there, bitorder="little"))])


def _number(text: pa.Array, start: int, stop: int) -> npt.NDArray[Any]:
    part = pc.utf8_slice_codeunits(text, start, stop)
    digits = _where(pc.match_substring_regex(part, "^[0-9]+$"), part)
    return fixed_values(pc.coalesce(digits.cast(pa.int64()), number_scalar(0, pa.int64())), np.int64)


def _matching(column: pa.Array, pattern: str) -> pa.Array:
    return _where(pc.match_substring_regex(column, pattern), column)


def _where(mask: pa.Array, column: pa.Array) -> pa.Array:
    return pc.if_else(mask, column, pa.nulls(len(column), column.type))


def _ends(bits: int) -> tuple[str, str]:
    return str(-(2 ** (bits - 1))), str(2 ** (bits - 1) - 1)


def _decimal(text: str, kind: pa.DataType) -> pa.Scalar:
    return text_scalar(text).cast(kind)
