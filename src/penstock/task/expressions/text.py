# SPDX-License-Identifier: Apache-2.0
"""Strings, by code points as in Spark. Patterns, positions and paddings must be constants.

Limits: regular expressions are RE2's, which has no look-around and no back references: such a pattern is refused.
Case is changed code point by code point, so a Greek sigma that ends a word is a plain one in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.task.expressions.tree import Call, UnsupportedError
from penstock.task.expressions.values import EMPTY, Datum, Kernel, array_of, columns_of_rows, number_scalar

_LENGTH_UNLIMITED = 2**31 - 1
_LETTERS = 0xFB20
"""Behind the last letter whose case has several letters."""
_GROUP = re.compile(r"\$(\d)")


def _only_text(call: Call, value: Datum) -> None:
    if not (pt.is_string(value.type) or pt.is_large_string(value.type)):
        raise UnsupportedError(f"{call.function} of {value.type}")


def _length(call: Call, values: list[Datum]) -> Datum:
    value = values[0]
    count = pc.binary_length(value) if pt.is_binary(value.type) else pc.utf8_length(value)
    return count.cast(pa.int32())


def _substring(call: Call, values: list[Datum]) -> Datum:
    _only_text(call, values[0])
    start, length = call.integer(1), call.integer(2) if len(values) > 2 else _LENGTH_UNLIMITED
    if length <= 0:
        return pc.utf8_slice_codeunits(values[0], 0, 0)
    if start > 0:
        return pc.utf8_slice_codeunits(values[0], start - 1, start - 1 + length)
    if start == 0:
        return pc.utf8_slice_codeunits(values[0], 0, length)
    return pc.utf8_slice_codeunits(values[0], start, start + length if start + length < 0 else None)


def _concat(call: Call, values: list[Datum]) -> Datum:
    for value in values:
        _only_text(call, value)
    return pc.binary_join_element_wise(*values, EMPTY) if len(values) > 1 else values[0]


def _concat_with(call: Call, values: list[Datum]) -> Datum:
    for value in values:
        _only_text(call, value)
    separator, *others = values
    if not others:
        return separator
    # Arrow gives no row at all, not an empty string, where it skips all values of a row.
    nothing = pc.is_null(others[0])
    for value in others[1:]:
        nothing = pc.and_(nothing, pc.is_null(value))
    others[0] = pc.if_else(nothing, EMPTY, others[0])
    return pc.binary_join_element_wise(*others, separator, null_handling="skip")


def _trim(name: str) -> Kernel:
    def kernel(call: Call, values: list[Datum]) -> Datum:
        characters = call.text(1) if len(values) > 1 else " "
        return getattr(pc, name)(values[0], characters=characters)

    return kernel


def _like(call: Call, values: list[Datum]) -> Datum:
    pattern = call.text(1)
    if call.option("escapeChar") not in (None, "\\"):
        raise UnsupportedError("LIKE with an escape character of its own")
    return pc.match_like(values[0], pattern)


def _pattern(text: str) -> str:
    """A Java pattern as RE2 understands it; raises where RE2 does not, by Arrow's check over no rows."""
    try:
        pc.match_substring_regex(EMPTY, text)
    except pa.ArrowInvalid as error:
        raise UnsupportedError(f"the regular expression {text!r} ({error})") from error
    return text


def _matches(call: Call, values: list[Datum]) -> Datum:
    return pc.match_substring_regex(values[0], _pattern(call.text(1)))


def _replace_pattern(call: Call, values: list[Datum]) -> Datum:
    pattern, replacement = _pattern(call.text(1)), call.text(2)
    if len(values) > 3 and call.integer(3) != 1:
        raise UnsupportedError("regexp_replace from a later position")
    if "\\" in replacement or re.search(r"\$(?!\d)|\$\d\d", replacement):
        raise UnsupportedError(f"the replacement {replacement!r}")
    return pc.replace_substring_regex(values[0], pattern, _GROUP.sub(r"\\\1", replacement))


def _extract_pattern(call: Call, values: list[Datum]) -> Datum:
    pattern = _with_one_group(_pattern(call.text(1)), call.integer(2) if len(values) > 2 else 1)
    found = pc.struct_field(pc.extract_regex(values[0], pattern), [0])
    return pc.if_else(pc.is_null(values[0]), pa.nulls(1, pa.string())[0], pc.coalesce(found, EMPTY))


def _with_one_group(pattern: str, wanted: int) -> str:
    """The pattern with group `wanted` named and all others not captured; 0 is the whole match."""
    parts: list[str] = []
    number = 0
    position = 0
    in_class = False
    while position < len(pattern):
        sign = pattern[position]
        if sign == "\\":
            parts.append(pattern[position : position + 2])
            position += 2
            continue
        if sign == "[" or (sign == "]" and in_class):
            in_class = sign == "["
        if sign == "(" and not in_class and pattern[position + 1 : position + 2] != "?":
            number += 1
            sign = "(?P<found>" if number == wanted else "(?:"
        parts.append(sign)
        position += 1
    if wanted > number:
        raise UnsupportedError(f"group {wanted} of the regular expression {pattern!r}, which has {number}")
    text = "".join(parts)
    return f"(?P<found>{text})" if wanted == 0 else text


def _search(name: str) -> Kernel:
    def kernel(call: Call, values: list[Datum]) -> Datum:
        _only_text(call, values[0])
        return getattr(pc, name)(values[0], call.text(1))

    return kernel


def _replace(call: Call, values: list[Datum]) -> Datum:
    search = call.text(1)
    if not search:
        return values[0]
    return pc.replace_substring(values[0], search, call.text(2) if len(values) > 2 else "")


def _split(call: Call, values: list[Datum]) -> Datum:
    pattern = _pattern(call.text(1))
    if re.match(pattern, ""):
        raise UnsupportedError(f"split by {pattern!r}, which matches nothing at all")
    limit = call.integer(2) if len(values) > 2 else -1
    parts = pc.split_pattern_regex(values[0], pattern, max_splits=limit - 1 if limit > 0 else None)
    return parts.cast(call.type)


def _padded(name: str) -> Kernel:
    def kernel(call: Call, values: list[Datum]) -> Datum:
        width, padding = call.integer(1), call.text(2) if len(values) > 2 else " "
        if len(padding) != 1:
            raise UnsupportedError(f"padding with {padding!r}: one character is possible")
        filled = getattr(pc, name)(values[0], width=max(width, 0), padding=padding)
        return pc.utf8_slice_codeunits(filled, 0, max(width, 0))

    return kernel


def _position(text: Datum, part: str) -> Datum:
    """The place of the first occurrence, from one on, in code points; zero where there is none."""
    if not part:
        return pc.if_else(pc.is_null(text), pa.nulls(1, pa.int32())[0], number_scalar(1, pa.int32()))
    ahead = pc.list_element(pc.split_pattern(text, part, max_splits=1), 0)
    place = pc.add(pc.utf8_length(ahead), number_scalar(1, pa.int32()))
    return pc.if_else(pc.match_substring(text, part), place, number_scalar(0, pa.int32())).cast(pa.int32())


def _instr(call: Call, values: list[Datum]) -> Datum:
    return _position(values[0], call.text(1))


def _locate(call: Call, values: list[Datum]) -> Datum:
    if len(values) > 2 and call.integer(2) != 1:
        raise UnsupportedError("locate from a later position")
    return _position(values[1], call.text(0))


def _reverse(call: Call, values: list[Datum]) -> Datum:
    _only_text(call, values[0])
    return pc.utf8_reverse(values[0])


def _repeat(call: Call, values: list[Datum]) -> Datum:
    return pc.binary_repeat(values[0], number_scalar(max(0, call.integer(1)), pa.int64()))


@cache
def _longer(change: Callable[[str], str]) -> dict[int, str]:
    """The letters that become several, by code point: `ß` is `SS`."""
    return {code: change(chr(code)) for code in range(128, _LETTERS) if len(change(chr(code))) > 1}


def _cased(name: str, change: Callable[[str], str]) -> Kernel:
    def kernel(call: Call, values: list[Datum]) -> Datum:
        (text,) = columns_of_rows(values)
        if not pc.all(pc.string_is_ascii(text)).as_py():
            longer = _longer(change)
            for code in _codes_in(text) & longer.keys():  # Arrow has one letter for each
                text = pc.replace_substring(text, chr(code), longer[code])
        return getattr(pc, name)(text)

    return kernel


def _codes_in(text: pa.Array) -> set[int]:
    """The code points that a column uses."""
    valid = text.drop_null()
    ends = array_of(np.array([0, len(valid)], np.int32), pa.int32())
    whole = str(pc.binary_join(pa.ListArray.from_arrays(ends, valid), "")[0]).encode("utf-32-le")
    seen = np.zeros(0x110000, np.bool_)
    seen[np.frombuffer(whole, np.uint32)] = True
    return set(np.flatnonzero(seen).tolist())


TEXT: dict[str, Kernel] = {
    "Upper": _cased("utf8_upper", str.upper),
    "Lower": _cased("utf8_lower", str.lower),
    "Length": _length,
    "OctetLength": lambda call, values: pc.binary_length(values[0]).cast(pa.int32()),
    "Substring": _substring,
    "Concat": _concat,
    "ConcatWs": _concat_with,
    "StringTrim": _trim("utf8_trim"),
    "StringTrimLeft": _trim("utf8_ltrim"),
    "StringTrimRight": _trim("utf8_rtrim"),
    "Like": _like,
    "RLike": _matches,
    "RegExpReplace": _replace_pattern,
    "RegExpExtract": _extract_pattern,
    "StartsWith": _search("starts_with"),
    "EndsWith": _search("ends_with"),
    "Contains": _search("match_substring"),
    "StringReplace": _replace,
    "StringSplit": _split,
    "StringLPad": _padded("utf8_lpad"),
    "StringRPad": _padded("utf8_rpad"),
    "StringInstr": _instr,
    "StringLocate": _locate,
    "StringRepeat": _repeat,
    "Reverse": _reverse,
}
