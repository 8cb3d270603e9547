# SPDX-License-Identifier: Apache-2.0
"""Compares two answers: tables, lists of rows, frames or numbers. Rows are a multiset unless their order counts.

Doubles are compared to twelve digits: sums of parts may differ in the last bits.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import pyarrow as pa

_MINUS_ZERO = re.compile(r"(?<![\w.])-0(?![\w.])")
_NAN = re.compile(r"(?<![\w.'])NaN(?![\w.'])")
_SHOWN = 3
_SHOWN_CHARACTERS = 600


def difference(ours: Any, theirs: Any, *, ordered: bool, signs: bool = True, nans: bool = True) -> str:
    """Empty where both are the same; else where they differ.

    Without `signs` a zero has none; without `nans` these are nulls.
    """
    mine, other = _rows(ours), _rows(theirs)
    if not nans:
        mine, other = ([_NAN.sub("None", row) for row in rows] for rows in (mine, other))
    if not signs:
        mine, other = ([_MINUS_ZERO.sub("0", row) for row in rows] for rows in (mine, other))
    if ordered and mine != other and Counter(mine) == Counter(other):
        place = next(number for number, (one, two) in enumerate(zip(mine, other, strict=True)) if one != two)
        return f"the order differs from row {place} on: ours {_cut(mine[place])}, theirs {_cut(other[place])}"
    more, fewer = Counter(mine) - Counter(other), Counter(other) - Counter(mine)
    if not more and not fewer:
        return ""
    return (
        f"{len(mine)} rows, theirs {len(other)}; only ours ({more.total()}): {_some(more)};"
        f" only theirs ({fewer.total()}): {_some(fewer)}"
    )


def _rows(answer: Any) -> list[str]:
    if isinstance(answer, pa.Table):
        columns = [column.to_pylist() for column in answer.columns]
        if not columns:
            return ["()"] * answer.num_rows
        return [_text(row) for row in zip(*columns, strict=True)]
    if hasattr(answer, "dtypes"):
        kinds = [str(kind) for kind in answer.dtypes]
        return [f"types {kinds}", *(_text(row) for row in answer.itertuples(index=False, name=None))]
    if isinstance(answer, list):
        return [_text(row) for row in answer]
    return [_text(answer)]


def _text(value: Any) -> str:
    """A text that is the same for equal values: NaN, doubles by their digits, maps by their keys."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value:.12g}"
    if isinstance(value, dict):
        inner = [f"{_text(key)}: {_text(part)}" for key, part in value.items()]
        return "{" + ", ".join(sorted(inner)) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_text, value)) + ")"
    if isinstance(value, list) or type(value).__name__ == "ndarray":
        parts = [_text(part) for part in value]
        is_map = bool(value) if isinstance(value, list) else False
        if is_map and all(isinstance(part, tuple) and len(part) == 2 for part in value):
            parts.sort()
        return "[" + ", ".join(parts) + "]"
    if isinstance(value, bytearray):
        return repr(bytes(value))
    return repr(value)


def _some(rows: Counter[str]) -> str:
    return "; ".join(_cut(row) for row in sorted(rows)[:_SHOWN]) or "none"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
