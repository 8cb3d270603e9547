# SPDX-License-Identifier: Apache-2.0
"""The reports of the last checkpoints of a query: how long each took, what each task did for it, why it failed.

A task says how long the barrier's alignment, the snapshot and its storing took. The rest of the time between the
trigger and its acknowledgement is its start delay: the barrier on its way, behind rows that were in front of it. So
no clock of another host is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.job.core.result import CheckpointReport

KEPT = 10
_PARTS = ("align_seconds", "freeze_seconds", "store_seconds")


@dataclass(slots=True)
class _Open:
    """A checkpoint under way."""

    triggered: float
    tasks: dict[str, Mapping[str, float]] = field(default_factory=dict)
    acknowledged: float = 0.0


class CheckpointReports:
    """Those of one query; times are the core's clock."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._ended: deque[CheckpointReport] = deque(maxlen=KEPT)

    def triggered(self, number: int, now: float) -> None:
        """It began; told again where more tasks are triggered."""
        self._open.setdefault(number, _Open(now))

    def acknowledged(self, number: int, part: str, figures: Mapping[str, float], now: float) -> None:
        """A task has stored its part."""
        found = self._open.get(number)
        if found is not None:
            delay = now - found.triggered - sum(figures.get(name, 0.0) for name in _PARTS)
            found.tasks[part] = {"start_seconds": max(0.0, delay), **figures}
            found.acknowledged = now

    def logged(self, number: int, part: str, size: int) -> None:
        """So many bytes of a task's log were in flight: the checkpoint refers to them."""
        found = self._open.get(number)
        if found is not None and part in found.tasks and size:
            figures = found.tasks[part]
            more = {name: figures.get(name, 0.0) + size for name in ("in_flight_bytes", "referred_bytes")}
            found.tasks[part] = {**figures, **more}

    def figures(self, number: int) -> tuple[float, dict[str, Mapping[str, float]]]:
        """Seconds from the trigger to the last acknowledgement, and the tasks' figures by their parts."""
        found = self._open.get(number)
        return (0.0, {}) if found is None else (max(0.0, found.acknowledged - found.triggered), dict(found.tasks))

    def ended(self, number: int, now: float, cause: str = "") -> float:
        """It is complete, or failed for a cause; returns the seconds since its trigger."""
        found = self._open.pop(number, None)
        if found is None:
            return 0.0
        self._ended.append(CheckpointReport(number, now - found.triggered, cause, found.tasks))
        return now - found.triggered

    def forget(self, number: int) -> None:
        """Nothing more comes of it."""
        self._open.pop(number, None)

    @property
    def last(self) -> tuple[CheckpointReport, ...]:
        """The last ones that ended, oldest first."""
        return tuple(self._ended)
