# SPDX-License-Identifier: Apache-2.0
"""Strings, by code points as in Spark. Patterns, positions and paddings must be constants."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.expressions.tree import Call, UnsupportedError, ValuesError
from penstock.operators.expressions.values import EMPTY, Datum, Kernel, array_of, columns_of_rows, number_scalar

_LENGTH_UNLIMITED = 2**31 - 1
_LETTERS = 0xFB20
"""The code after that of the last letter whose case has several letters."""


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
    return pc.match_like(values[0], _like_pattern(call.text(1), str(call.option("escapeChar") or "\\")))


def _like_pattern(pattern: str, escape: str) -> str:
    """The pattern with backslashes for escapes, ahead of what may be escaped; raises where Spark would."""
    signs = iter(pattern)
    parts: list[str] = []
    for sign in signs:
        if sign == escape:
            escaped = next(signs, "")
            if escaped not in ("%", "_", escape) or not escaped:
                raise UnsupportedError(f"LIKE {pattern!r}, where {escape!r} stands ahead of what needs no escape,")
            parts.append(f"\\{escaped}")
        else:
            parts.append("\\\\" if sign == "\\" else sign)
    return "".join(parts)


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


def _padded(name: str) -> Kernel:
    def kernel(call: Call, values: list[Datum]) -> Datum:
        width, padding = call.integer(1), call.text(2) if len(values) > 2 else " "
        if len(padding) != 1:
            raise UnsupportedError(f"padding with {padding!r}: one character is possible")
        try:
            filled = getattr(pc, name)(values[0], width=max(width, 0), padding=padding)
        except pa.ArrowCapacityError as error:  # a few rows at once may do yet
            raise ValuesError(
                f"{call.function} to {width} characters has no room in a column: give a smaller width"
            ) from error
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
            codes = _codes_in(text)
            for code in codes & longer.keys():  # Arrow has one letter for each
                text = pc.replace_substring(text, chr(code), longer[code])
            if change is str.lower and ord("Σ") in codes:
                text = _with_last_sigmas(text)
        return getattr(pc, name)(text)

    return kernel


_CASED = r"[\p{Lu}\p{Ll}\p{Lt}]"
_IGNORED = r"[\p{Mn}\p{Me}\p{Cf}\p{Lm}\p{Sk}'.:\x{b7}\x{2019}]*"


def _with_last_sigmas(text: pa.Array) -> pa.Array:
    """A sigma in front of a letter is a plain one; of the others, one behind a letter ends its word."""
    for _ in range(2):  # a match has the letter behind it, which may be a sigma
        text = pc.replace_substring_regex(text, f"Σ({_IGNORED}{_CASED})", "\u03c3\\1")
    return pc.replace_substring_regex(text, f"({_CASED}{_IGNORED})Σ", "\\1\u03c2")


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
    "StartsWith": _search("starts_with"),
    "EndsWith": _search("ends_with"),
    "Contains": _search("match_substring"),
    "StringReplace": _replace,
    "StringLPad": _padded("utf8_lpad"),
    "StringRPad": _padded("utf8_rpad"),
    "StringInstr": _instr,
    "StringLocate": _locate,
    "StringRepeat": _repeat,
    "Reverse": _reverse,
}
