# SPDX-License-Identifier: Apache-2.0
r"""The quoting of CSV fields; it rewrites lines so that Arrow's reader finds in them the fields that Spark's does.

Arrow knows doubled quotes. Spark writes and reads a quote within a quoted field with an escape, a backslash unless it
is told otherwise; there a doubled one is none, but here it is one too as long as no option names the escape. Escaped
quotes are doubled. A line whose quotes do not close or open where fields do is strange: Arrow would read on to the
next quote, over any number of lines. Such a line is read here, as Spark reads it, sign by sign, and quoted anew.

Limits: only strange lines, and those with escapes, are looked at one by one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SettingError
from penstock.operators.expressions.java_patterns import literal


@dataclass(frozen=True, slots=True)
class Quoting:
    """The signs of a file; no quote means that nothing is quoted, no escape both a backslash and a doubled quote."""

    separator: str = ","
    quote: str = '"'
    escape: str = ""

    @property
    def doubles(self) -> bool:
        """True if a doubled quote within quotes is one."""
        return self.escape in ("", self.quote)

    @property
    def sign(self) -> str:
        """The sign ahead of a quote within quotes; empty if that is a quote itself."""
        return "" if self.escape == self.quote else self.escape or "\\"


def quoting(separator: object, quote: object, escape: object, verb: str) -> Quoting:
    """The signs that were given; raises SettingError for what is no single sign."""
    if not (isinstance(separator, str) and len(separator) == 1):
        raise SettingError(f"{verb}: sep must be one character, not {separator!r}")
    if not (isinstance(quote, str) and len(quote) < 2 and quote.isascii()):
        raise SettingError(f"{verb}: quote must be one character, or none for files without quotes, not {quote!r}")
    if escape is not None and not (isinstance(escape, str) and len(escape) == 1 and escape.isascii()):
        raise SettingError(f"{verb}: escape must be one character, not {escape!r}")
    return Quoting(separator, quote, escape or "")


def well_quoted(text: bytes, lines: pa.Array, quoting: Quoting) -> bytes:
    """The lines with quotes where Arrow expects them; `lines` are those of the text."""
    if not quoting.quote or quoting.quote.encode() not in text:
        return text
    strange = pc.invert(pc.match_substring_regex(lines, _well_quoted(quoting)))
    text = _with_doubled_quotes(text, quoting)
    if pc.any(strange).as_py():
        held = text.split(b"\n")
        for place in np.flatnonzero(strange.to_pylist()):
            held[place] = _quoted_anew(lines[int(place)].as_py(), quoting).encode()
        text = b"\n".join(held)
    return text


@lru_cache
def _well_quoted(quoting: Quoting) -> str:
    """RE2's pattern of a line whose quotes are around fields, or within fields that begin with another sign."""
    quote, separator = literal(quoting.quote), literal(quoting.separator)
    sign = literal(quoting.sign) if quoting.sign else ""
    within = [f"[^{quote}{sign}]", *([f"{sign}(?s:.)"] if sign else []), *([quote * 2] if quoting.doubles else [])]
    field = f"(?:{quote}(?:{'|'.join(within)})*{quote}|[^{quote}{separator}][^{separator}]*)?"
    return rf"\A{field}(?:{separator}{field})*\z"


def _with_doubled_quotes(text: bytes, quoting: Quoting) -> bytes:
    """The text with doubled quotes in place of escaped ones; only lines with an escape are looked at."""
    sign, quote = quoting.sign.encode(), quoting.quote.encode()
    if not sign or not (sign + quote in text or sign * 2 in text):
        return text
    plain = {sign + quote: quote * 2, sign * 2: sign}
    escaped = re.compile(re.escape(sign) + b"([" + re.escape(sign + quote) + b"])")
    return _lines_with(sign).sub(
        lambda line: _field(quoting).sub(lambda field: escaped.sub(lambda pair: plain[pair[0]], field[0]), line[0]),
        text,
    )


@lru_cache
def _lines_with(sign: bytes) -> re.Pattern[bytes]:
    other = re.escape(sign)
    return re.compile(rb"^[^" + other + rb"\n]*" + other + rb"[^\n]*", re.MULTILINE)


@lru_cache
def _field(quoting: Quoting) -> re.Pattern[bytes]:
    """A quoted field of a line, from the begin or a separator to the next one or the end."""
    around, quote, sign = (re.escape(part.encode()) for part in (quoting.separator, quoting.quote, quoting.sign))
    pair = rb"|" + quote * 2 if quoting.doubles else b""
    within = rb"(?:[^" + quote + sign + rb"]|" + sign + rb"." + pair + rb")*"
    return re.compile(
        rb"(?:(?<=" + around + rb")|^)" + quote + within + quote + rb"(?=" + around + rb"|\Z)", re.DOTALL
    )


def _quoted_anew(line: str, quoting: Quoting) -> str:
    """A strange line with all its fields in quotes, but those that are empty without any."""
    fields: list[str] = []
    place = 0
    while True:
        if line.startswith(quoting.quote, place):
            text, place = _quoted_field(line, place, quoting)
        else:
            end = _found(line, quoting.separator, place)
            text, place = line[place:end] or None, end
        doubled = quoting.quote * 2
        fields.append("" if text is None else quoting.quote + text.replace(quoting.quote, doubled) + quoting.quote)
        if place >= len(line):
            return quoting.separator.join(fields)
        place += 1


def _quoted_field(line: str, start: int, quoting: Quoting) -> tuple[str | None, int]:
    """The text of a field that begins with a quote, and the place of its end.

    A quote that neither ends it nor is escaped makes all of it plain text, quotes and escapes included. If it does
    not end, it is all that is left, without its first quote.
    """
    parts: list[str] = []
    place = start + 1
    while place < len(line):
        sign, following = line[place], line[place + 1 : place + 2]
        is_pair = (quoting.sign == sign and following in (quoting.quote, sign) and following) or (
            quoting.doubles and sign == following == quoting.quote
        )
        if is_pair:
            parts.append(following)
            place += 2
        elif sign != quoting.quote:
            if following or sign != quoting.sign:  # an escape of nothing is dropped
                parts.append(sign)
            place += 1
        else:
            if following == quoting.quote and _ends(line, place + 2, quoting) >= 0:
                parts.append(following)  # one that stands ahead of the closing quote
                place += 1
            end = _ends(line, place + 1, quoting)
            if end >= 0:
                return "".join(parts), end
            end = _found(line, quoting.separator, place)
            return quoting.quote + "".join(parts) + line[place:end], end
    return "".join(parts) if len(line) > start + 1 else quoting.quote, place


def _ends(line: str, place: int, quoting: Quoting) -> int:
    """Return the end of the field if only blanks are left of it; -1 if something else follows."""
    while place < len(line) and line[place] != quoting.separator:
        if line[place] > " ":
            return -1
        place += 1
    return place


def _found(line: str, sign: str, start: int) -> int:
    place = line.find(sign, start)
    return len(line) if place < 0 else place
