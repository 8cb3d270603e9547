# SPDX-License-Identifier: Apache-2.0
"""The measurements, out of the times at which batches were given and taken. Pure; times in seconds of one clock."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

BIN = 0.1
"""Rates are counted in bins of so many seconds."""
STARVING = 0.1
"""A consumer that has room and gets nothing for so long is starving, from the last batch on."""
PAUSE = 0.02
"""A source without room for so long has noticed; less is the jitter of a machine."""


@dataclass(slots=True)
class SourceTrace:
    """The life of one source: when each batch was taken off it, by channel, and when it had no room."""

    given: list[tuple[float, int]] = field(default_factory=list)
    refused: list[tuple[float, float]] = field(default_factory=list)
    """From when to when there was no room; the last one may be open: until infinity."""
    triggered: dict[int, float] = field(default_factory=dict)
    """When the barrier of a checkpoint was to be sent."""

    def times(self, channel: int | None = None) -> list[float]:
        """When batches were given, to one channel or to any."""
        return [moment for moment, target in self.given if channel is None or target == channel]


@dataclass(slots=True)
class SinkTrace:
    """The life of one consumer: when each batch came to it, and each barrier."""

    taken: list[float] = field(default_factory=list)
    barriers: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Window:
    """The time from `begin` to `end`."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


def count(times: Sequence[float], window: Window) -> int:
    """The number of ascending times within a window."""
    return bisect.bisect_left(times, window.end) - bisect.bisect_left(times, window.begin)


def rate(times: Sequence[float], window: Window) -> float:
    """Their number per second of a window."""
    return count(times, window) / window.seconds


def per_bin(times: Sequence[float], window: Window, width: float = BIN) -> list[int]:
    """Their number in each whole bin of a window."""
    bins = int(window.seconds / width + 1e-9)
    edges = [bisect.bisect_left(times, window.begin + number * width) for number in range(bins + 1)]
    return [high - low for low, high in itertools.pairwise(edges)]


def variation(counts: Sequence[int]) -> float:
    """The standard deviation over the mean: 0 for a steady rate; 0 also where nothing moves."""
    mean = statistics.fmean(counts) if counts else 0.0
    return statistics.pstdev(counts) / mean if mean else 0.0


def starvation(times: Sequence[float], window: Window) -> float:
    """The seconds of a window that lie in gaps of at least STARVING between two of the times."""
    marks = [window.begin, *times[bisect.bisect_left(times, window.begin) : bisect.bisect_left(times, window.end)]]
    gaps = [later - earlier for earlier, later in zip(marks, [*marks[1:], window.end], strict=True)]
    return sum(gap for gap in gaps if gap >= STARVING)


def noticed(trace: SourceTrace, moment: float) -> float | None:
    """The seconds from a moment until the source first had no room for PAUSE; None if it never had."""
    for begin, end in trace.refused:
        if end - begin >= PAUSE and end > moment:
            return max(0.0, begin - moment)
    return None


def in_flight(given: Sequence[float], taken: Sequence[float], window: Window, width: float = BIN) -> list[int]:
    """The batches that were given and not taken, at the end of each whole bin of a window."""
    ends = [window.begin + (number + 1) * width for number in range(int(window.seconds / width + 1e-9))]
    return [bisect.bisect_right(given, end) - bisect.bisect_right(taken, end) for end in ends]


def checkpoints(trace: SourceTrace, sinks: Sequence[SinkTrace]) -> list[float]:
    """The seconds that each complete checkpoint took, from its trigger until the last consumer had its barrier."""
    return [
        max(sink.barriers[number] for sink in sinks) - begin
        for number, begin in sorted(trace.triggered.items())
        if all(number in sink.barriers for sink in sinks)
    ]


def median(values: Sequence[float]) -> float | None:
    """The middle one; None where there is none."""
    return statistics.median(values) if values else None
