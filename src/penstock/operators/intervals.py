# SPDX-License-Identifier: Apache-2.0
"""Lengths of time as Spark's users write them, `10 minutes` or `1 hour 30 minutes`, in microseconds.

Months and years have no fixed length and are refused.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from penstock.errors import PlanError

SECOND: Final = 1_000_000
_UNITS: Final = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": SECOND,
    "minute": 60 * SECOND,
    "hour": 3600 * SECOND,
    "day": 86400 * SECOND,
    "week": 7 * 86400 * SECOND,
}
_PART: Final = re.compile(r"\s*([+-]?\s*\d+(?:\.\d+)?)\s*([a-z]+)")


def microseconds(text: object, what: str) -> int:
    """The microseconds of an interval; raises PlanError, which begins with `what`, for what is none."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is an interval such as '10 minutes', not {type(text).__name__}")
    rest = re.sub(r"^\s*interval\b", "", text.lower())
    total = Fraction(0)
    place = 0
    while rest[place:].strip():
        part = _PART.match(rest, place)
        if part is None:
            raise PlanError(f"{what}: {text!r} is no interval: write one such as '10 minutes' or '1 hour 30 minutes'")
        unit = part[2].removesuffix("s")
        if unit in ("month", "year"):
            raise PlanError(f"{what}: {text!r} has {unit}s, which have no fixed length: say days or weeks")
        if unit not in _UNITS:
            raise PlanError(f"{what}: {text!r}: there is no unit {part[2]!r}: use one of {', '.join(_UNITS)}")
        total += Fraction(part[1].replace(" ", "")) * _UNITS[unit]
        place = part.end()
    if not place:
        raise PlanError(f"{what}: an interval is missing, such as '10 minutes'")
    if total.denominator != 1:
        raise PlanError(f"{what}: {text!r} is finer than a microsecond")
    return int(total)


def interval_text(length: int) -> str:
    """An interval as short text, in the largest unit that divides it."""
    for unit, size in reversed(_UNITS.items()):
        if length % size == 0 and (length or unit == "second"):
            count = length // size
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{length} microseconds"
