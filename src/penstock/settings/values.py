# SPDX-License-Identifier: Apache-2.0
"""The values of settings as people write them: sizes, durations, booleans, counts."""

from __future__ import annotations

import re

_SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIME_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME_WORDS = {"millisecond": "ms", "second": "s", "minute": "min", "hour": "h", "day": "d"}
_LEAST_LEASE = 0.5
"""Enough for a test; pages name what an operator needs."""


def parse_size(text: str) -> int:
    """Bytes of a Spark size such as `64m`, `256KiB` or `1048576`."""
    match = re.fullmatch(r"\s*(\d+)\s*([bkmgt]?)(?:i?b)?\s*", text.lower())
    if match is None:
        raise ValueError("a size such as 64m, 256k or 1048576")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def parse_seconds(text: str) -> float:
    """Seconds of a Spark duration such as `100ms`, `10s`, `5min` or `10 seconds`; a bare number is seconds."""
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    unit = "" if match is None else _TIME_WORDS.get(match[2].removesuffix("s"), match[2])
    if match is None or unit not in _TIME_UNITS:
        raise ValueError("a duration such as 100ms, 10s, 5min or 10 seconds")
    return float(match[1]) * _TIME_UNITS[unit]


def parse_lease(text: str) -> float:
    """Seconds of a lease. ValueError for 0, which would end everything at once, and is not "no limit"."""
    seconds = parse_seconds(text)
    if seconds < _LEAST_LEASE:
        raise ValueError(f"{_LEAST_LEASE:g} s at least, and has no end that is never: write 3650d for ten years")
    return seconds


def parse_bool(text: str) -> bool:
    """A Spark boolean."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError("true or false")


def parse_count(text: str) -> int:
    """A whole number that is not negative."""
    if re.fullmatch(r"\d+", text.strip()) is None:
        raise ValueError("a whole number that is not negative")
    return int(text)
