# SPDX-License-Identifier: Apache-2.0
"""Text as numbers and truth: null for each text that is none, or has no room.

Java reads numbers in three ways, and so does this: a whole number may stand between blanks and control characters of
any kind, a double and a decimal between those up to the space; a double may end in `d` or `f`; a decimal may have an
exponent, but is no `inf`.

Limits: doubles in hexadecimal digits and decimals in digits beyond ASCII are refused, as Spark has a value for them.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.expressions.number_casts import decimal_to_decimal, decimal_to_whole, null_but
from penstock.operators.expressions.tree import Call
from penstock.operators.expressions.values import (
    EMPTY,
    FALSE,
    Datum,
    any_true,
    columns_of_rows,
    number_scalar,
    refuse_where,
    text_scalar,
)

_BLANKS = "".join(map(chr, range(33)))
_ALL_BLANKS = _BLANKS + "\x7f"
_WHOLE = r"^[+-]?[0-9]+$"
_USUAL_REAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_REAL = (
    r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?$"
    r"|^[+-]?(NaN|[iI][nN][fF]([iI][nN][iI][tT][yY])?)$|^[nN][aA][nN]$"
)
_HEXADECIMAL = r"^[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[dDfF]?$"
_DECIMAL = (
    r"^(?P<sign>[+-]?)0*(?P<whole>[0-9]*)\.?(?P<part>[0-9]*)"
    r"(?:[eE](?P<exponent>[+-]?0*[0-9]{1,10}))?$"
)
_PLAIN = r"^[+-]?[0-9]{0,38}(\.[0-9]{0,38})?$"
"""Arrow crashes at exponents of ten digits."""
_HAS_DIGITS = r"^[+-]?\.?[0-9]"
_FOREIGN = r"^[+-]?[\pN]*\.?[\pN]*([eE][+-]?[\pN]+)?$"
_LEAST_EXPONENT = 1 - 2**31
_YES = ("t", "true", "y", "yes", "1")
_NO = ("f", "false", "n", "no", "0")


def trimmed(value: Datum) -> Datum:
    """Without the blanks and control characters around it."""
    return pc.utf8_trim(value, characters=_ALL_BLANKS)


def matches(text: Datum, pattern: str) -> Datum:
    """A mask that is true where a regular expression is found; null for null."""
    return pc.match_substring_regex(text, pattern)


def text_to_whole(call: Call, value: Datum) -> Datum:
    """Digits after a sign."""
    text = trimmed(value)
    text = _without_plus(null_but(matches(text, _WHOLE), text))
    try:
        return text.cast(call.type)
    except pa.ArrowInvalid:
        digits = pc.replace_substring_regex(text, r"^(-?)0+([0-9])", r"\1\2")
        short = null_but(pc.less(pc.utf8_length(digits), number_scalar(22, pa.int32())), digits)
        return decimal_to_whole(call, short.cast(pa.decimal128(38, 0)))


def text_to_real(call: Call, value: Datum) -> Datum:
    """A number that is too large is infinite, and no error."""
    text = pc.utf8_trim(value, characters=_BLANKS)
    if any_true(pc.invert(matches(text, _USUAL_REAL))):
        hexadecimal = matches(text, _HEXADECIMAL)
        refuse_where(hexadecimal, value, "is a number in hexadecimal digits, which cannot be read here")
        text = null_but(matches(text, _REAL), text)
        text = pc.replace_substring_regex(text, r"([0-9.])[dDfF]$", r"\1")
    return _without_plus(text).cast(call.type)


def text_to_bool(_call: Call, value: Datum) -> Datum:
    """Some words for yes and some for no."""
    text = pc.utf8_lower(trimmed(value))
    yes, no = (_one_of(text, words) for words in (_YES, _NO))
    return null_but(pc.or_(yes, no), yes)


def text_to_decimal(call: Call, value: Datum) -> Datum:
    """Rounded half up."""
    text = pc.utf8_trim(value, characters=_BLANKS)
    is_foreign = pc.and_(matches(text, _FOREIGN), matches(text, r"[^\x00-\x7f]"))
    refuse_where(is_foreign, value, "has digits beyond ASCII, which cannot be read here")
    text = null_but(pc.and_(matches(text, _HAS_DIGITS), matches(text, _DECIMAL)), text)
    if not any_true(pc.invert(matches(text, _PLAIN))):
        try:
            return text.cast(call.type)
        except pa.ArrowInvalid:  # as digits are to be rounded away, or there is no room
            pass
    return _shifted(call, columns_of_rows([text])[0])


def _shifted(call: Call, text: pa.Array) -> pa.Array:
    """Decimals written anew: all digits that there is room for in front of the point, one too many behind it."""
    kind = call.type
    room = kind.precision - kind.scale
    parts = pc.extract_regex(text, _DECIMAL)
    sign, whole, part, exponent = (parts.field(place) for place in range(4))
    exponent = pc.if_else(pc.equal(exponent, EMPTY), text_scalar("0"), _without_plus(exponent)).cast(pa.int64())
    digits = pc.utf8_ltrim(pc.binary_join_element_wise(whole, part, EMPTY), characters="0")
    # The value is 0.digits, and so many places to the left.
    above = pc.subtract(pc.utf8_length(digits), pc.utf8_length(part)).cast(pa.int64())
    above = pc.add(above, exponent)
    is_zero = pc.or_(pc.equal(digits, EMPTY), pc.less(above, _long(-kind.scale)))
    digits, above = pc.if_else(is_zero, EMPTY, digits), pc.if_else(is_zero, _long(0), above)
    fits = pc.and_(pc.less_equal(above, _long(room)), pc.greater_equal(exponent, _long(_LEAST_EXPONENT)))
    fits = pc.and_(fits, text.is_valid())
    ahead = pc.if_else(fits, pc.subtract(_long(room), above), _long(0))
    placed = pc.binary_join_element_wise(pc.binary_repeat(text_scalar("0"), ahead), digits, EMPTY)
    placed = pc.utf8_rpad(placed, kind.precision + 1, padding="0")
    front, behind = (
        pc.utf8_slice_codeunits(placed, 0, room),
        pc.utf8_slice_codeunits(placed, room, kind.precision + 1),
    )
    minus = pc.if_else(pc.equal(sign, text_scalar("-")), text_scalar("-0"), text_scalar("0"))
    written = pc.binary_join_element_wise(minus, front, text_scalar("."), behind, EMPTY)
    exact = null_but(fits, written).cast(pa.decimal256(kind.precision + 1, kind.scale + 1))
    return decimal_to_decimal(call, exact)


def _without_plus(text: Datum) -> Datum:
    return pc.utf8_ltrim(text, characters="+")


def _long(value: int) -> pa.Scalar:
    return number_scalar(value, pa.int64())


def _one_of(text: Datum, words: tuple[str, ...]) -> Datum:
    found = FALSE
    for word in words:
        found = pc.or_(found, pc.equal(text, text_scalar(word)))
    return found
