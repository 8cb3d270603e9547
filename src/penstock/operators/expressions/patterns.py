# SPDX-License-Identifier: Apache-2.0
"""Regular expressions over strings: `rlike`, `regexp_replace`, `regexp_extract` and `split`, by RE2.

`java_patterns` brings Spark's patterns, which are Java's, into what RE2 means likewise. Differences that then still
depend on the text are looked at here, once for each batch: a text that only Java could tell is an error, never
another answer.

Limits: a pattern that matches nothing at all, such as `b*`, neither splits nor is replaced, because Java also finds
it right behind a longer match; so `split` by something that asks for a begin or a word is refused too.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.expressions.java_patterns import Pattern, translated
from penstock.operators.expressions.tree import Call, UnsupportedError
from penstock.operators.expressions.values import EMPTY, Datum, Kernel, any_true, refuse_where

_LINE_END = r"(\r\n|[\n\r\x{85}\x{2028}\x{2029}])\z"
_OTHER_LETTERS = r"[^\x{0}-\x{7f}\PL]|[^\x{0}-\x{7f}\PN]|\pM"
_REPLACED = re.compile(r"\$(\d)(?!\d)|\\(.)|([^$\\]+)", re.DOTALL)


def pattern_can_fail(call: Call) -> bool:
    """Tell whether some text may be refused."""
    found = _translated(call)
    return found.ends_word or (found.ends_text and call.function != "RLike")


def _translated(call: Call, group: int | None = None) -> Pattern:
    """The pattern, known to RE2 too: Arrow looks at it over no rows."""
    found = translated(call.text(1), group)
    try:
        pc.match_substring_regex(EMPTY, found.text)
    except pa.ArrowInvalid as error:
        raise UnsupportedError(f"the regular expression {call.text(1)!r} ({error})") from error
    return found


def _refuse_doubts(pattern: Pattern, values: Datum, *, at_end: bool) -> None:
    """Raise ValuesError for texts where Java's answer is another one than RE2's."""
    if pattern.ends_word:
        letters = pc.match_substring_regex(values, _OTHER_LETTERS)
        refuse_where(letters, values, "has letters beyond ASCII, beside which \\b depends on the version of Java")
    if at_end and pattern.ends_text:
        ended = pc.match_substring_regex(values, _LINE_END)
        refuse_where(ended, values, "ends with a line end, and $ also stands ahead of it: write \\z for the very end")


def _matches(call: Call, values: list[Datum]) -> Datum:
    pattern = _translated(call)
    _refuse_doubts(pattern, values[0], at_end=False)
    found = pc.match_substring_regex(values[0], pattern.text)
    if pattern.ends_text and any_true(pc.match_substring_regex(values[0], _LINE_END)):
        ahead = pc.replace_substring_regex(values[0], _LINE_END, "")
        found = pc.or_(found, pc.match_substring_regex(ahead, pattern.text))
    return found


def _replaced(call: Call, values: list[Datum]) -> Datum:
    pattern = _translated(call)
    replacement = _replacement(call.text(2), pattern.groups)
    if len(values) > 3 and call.integer(3) != 1:
        raise UnsupportedError("regexp_replace from a later position")
    if pattern.matches_nothing and not pattern.is_anchored:
        raise UnsupportedError(f"regexp_replace of {call.text(1)!r}, which matches nothing at all,")
    _refuse_doubts(pattern, values[0], at_end=True)
    return pc.replace_substring_regex(values[0], pattern.text, replacement)


def _replacement(text: str, groups: int) -> str:
    """A replacement of Java's as RE2 has it: `$1` is a group, and a backslash makes the next character plain."""
    parts: list[str] = []
    place = 0
    while place < len(text):
        found = _REPLACED.match(text, place)
        if found is None or (found[1] is not None and int(found[1]) > groups):
            raise UnsupportedError(f"the replacement {text!r}")
        parts.append(f"\\{found[1]}" if found[1] else (found[2] or found[3]).replace("\\", "\\\\"))
        place = found.end()
    return "".join(parts)


def _extracted(call: Call, values: list[Datum]) -> Datum:
    group = call.integer(2) if len(values) > 2 else 1
    pattern = _translated(call, group)
    _refuse_doubts(pattern, values[0], at_end=True)
    found = pc.struct_field(pc.extract_regex(values[0], pattern.text), [0])
    return pc.if_else(pc.is_null(values[0]), pa.nulls(1, pa.string())[0], pc.coalesce(found, EMPTY))


def _split(call: Call, values: list[Datum]) -> Datum:
    pattern = _translated(call)
    if pattern.matches_nothing or pattern.looks_around:
        raise UnsupportedError(f"split by {call.text(1)!r}, which matches by what is around it,")
    _refuse_doubts(pattern, values[0], at_end=True)
    limit = call.integer(2) if len(values) > 2 else -1
    parts = pc.split_pattern_regex(values[0], pattern.text, max_splits=limit - 1 if limit > 0 else None)
    return parts.cast(call.type)


PATTERNS: dict[str, Kernel] = {
    "RLike": _matches,
    "RegExpReplace": _replaced,
    "RegExpExtract": _extracted,
    "StringSplit": _split,
}
