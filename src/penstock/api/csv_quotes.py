# SPDX-License-Identifier: Apache-2.0
r"""Quoted CSV fields as Spark has them, for Arrow's reader, which has others.

Spark writes a quote in a quoted field as `\"` and a backslash ahead of one as `\\`, and reads both so; Arrow knows
quotes that are doubled. Outside quotes a backslash is one. A field ends on its line: Arrow would read on to the next
quote, over any number of lines, and make one row of them.

Only lines with a backslash are looked at one by one. A field that is none by Spark's rule, such as `"C:\"`, stays as
it is, and a doubled quote is a quote too.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

_ESCAPED = re.compile(rb'\\(["\\])')
_WITH_BACKSLASH = re.compile(rb"^[^\\\n]*\\[^\n]*", re.MULTILINE)


def with_doubled_quotes(lines: bytes, separator: str) -> bytes:
    """The lines with quotes in quoted fields doubled."""
    if b'"' not in lines or not (b'\\"' in lines or b"\\\\" in lines):
        return lines
    field = _field(separator.encode())
    return _WITH_BACKSLASH.sub(lambda line: field.sub(_doubled, line[0]), lines)


@lru_cache
def _field(separator: bytes) -> re.Pattern[bytes]:
    """A quoted field, from the begin or a separator to the next one or the end."""
    around = re.escape(separator)
    return re.compile(rb"(?:(?<=" + around + rb')|^)"((?:[^"\\]|\\.|"")*)"(?=' + around + rb"|\r*\Z)", re.DOTALL)


def _doubled(field: re.Match[bytes]) -> bytes:
    return b'"' + _ESCAPED.sub(lambda pair: b'""' if pair[1] == b'"' else b"\\", field[1]) + b'"'


def rows_in(lines: bytes) -> int:
    """How many lines hold anything."""
    held = np.frombuffer(lines, np.uint8)
    is_end = (held == ord("\n")) | (held == ord("\r"))
    begins = ~is_end
    begins[1:] &= is_end[:-1]
    return int(np.count_nonzero(begins))
