# SPDX-License-Identifier: Apache-2.0
"""A job's figures over its time, in bounded memory: when there are too many points, every second one goes.

Counts are kept as they were told, summed since a task began, so rates are right also between points that are far
apart. A count that is smaller than before has begun anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

POINTS = 480
"""Kept at most."""
OUTSTANDING = "bytes_outstanding"


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """One moment: rows by stage, the load of each stage (work and waiting for room), bytes that wait at sources."""

    seconds: float
    rows: Mapping[int, float]
    loads: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    outstanding: float | None = None


class Series:
    """The points of one job."""

    def __init__(self) -> None:
        self._points: list[SeriesPoint] = [SeriesPoint(0.0, {})]

    def add(self, point: SeriesPoint) -> None:
        """A later moment; one that is no later takes the place of the last."""
        if point.seconds <= self._points[-1].seconds:
            self._points.pop()
        self._points.append(point)
        if len(self._points) > POINTS:
            self._points[1:-1] = self._points[2:-1:2]

    def points(self) -> tuple[SeriesPoint, ...]:
        """All of them, from the job's beginning on."""
        return tuple(self._points)


def rows_of(figures: Mapping[str, float]) -> float:
    """The rows of a stage so far: those that it has read, or, of one that reads none, those that it gave."""
    return figures.get("rows_in", 0.0) or figures.get("rows_out", 0.0)


def drawn(points: tuple[SeriesPoint, ...], stages: list[int]) -> dict[str, Any]:
    """The points as columns: rows per second between two of them, shares, bytes that wait."""
    later = points[1:]
    rates = {
        str(stage): [_rate(old, new, stage) for old, new in zip(points, later, strict=False)] for stage in stages
    }
    waits = [point.outstanding for point in later]
    return {
        "seconds": [round(point.seconds, 2) for point in later],
        "rows": rates,
        "busy": {str(stage): [_load(point, stage, 0) for point in later] for stage in stages},
        "pressed": {str(stage): [_load(point, stage, 1) for point in later] for stage in stages},
        "outstanding": waits if any(value is not None for value in waits) else [],
    }


def _rate(old: SeriesPoint, new: SeriesPoint, stage: int) -> float:
    before, now = old.rows.get(stage, 0.0), new.rows.get(stage, 0.0)
    grown = now - before if now >= before else now
    return round(grown / max(new.seconds - old.seconds, 1e-3), 1)


def _load(point: SeriesPoint, stage: int, which: int) -> float | None:
    load = point.loads.get(stage)
    return None if load is None else load[which]
