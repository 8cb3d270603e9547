# SPDX-License-Identifier: Apache-2.0
"""The figures of the tasks that run, as heartbeats told them, in bounded memory.

Kept is one report for each subtask of a job that is not over, the newest attempt's, and of earlier ones only the few
numbers from which shares of the last seconds are made. Of a task that
tells more, `NAMES` figures are kept. A report of a job that is over or unknown is dropped: heartbeats that were under
way come late. One thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from penstock.observe.samples import busy_seconds
from penstock.shuffle import AttemptId

NAMES = 256
"""Figures of one task that are kept."""
SHARE_SECONDS = 5.0
"""Shares are of the last five to ten seconds."""


class _Mark(NamedTuple):
    """The times of a task at one moment."""

    seconds: float
    busy: float
    idle: float
    back_pressured: float


@dataclass(slots=True)
class _Told:
    """The last report of a subtask's newest attempt, and marks on the way to it."""

    attempt: AttemptId
    figures: Mapping[str, float] = field(default_factory=dict)
    marks: deque[_Mark] = field(default_factory=lambda: deque(maxlen=2))


class TaskFigures:
    """The last figures of each subtask of each job."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[tuple[int, int], _Told]] = {}

    def open_job(self, job: str) -> None:
        """From now on its tasks are heard."""
        self._jobs.setdefault(job, {})

    def forget_job(self, job: str) -> None:
        """The job is over: drop what its tasks told, and hear them no more."""
        self._jobs.pop(job, None)

    def report(self, attempt: AttemptId, figures: dict[str, float]) -> None:
        """Keep what a heartbeat said of a task; an older attempt's word changes nothing.

        A worker that waits for work goes by its own name, which is no task's: it has no figures.
        """
        tasks = self._jobs.get(attempt.job)
        if tasks is None or attempt.vertex < 0 or not figures:
            return
        if len(figures) > NAMES:
            figures = dict(islice(figures.items(), NAMES))
        place = attempt.vertex, attempt.subtask
        told = tasks.get(place)
        if told is None or told.attempt.attempt < attempt.attempt:
            told = tasks[place] = _Told(attempt)
        elif told.attempt != attempt:
            return
        told.figures = figures
        seconds = figures.get("seconds", 0.0)
        if not told.marks or seconds - told.marks[-1].seconds >= SHARE_SECONDS:
            told.marks.append(_mark(figures))

    def finish(self, attempt: AttemptId, figures: Mapping[str, float]) -> None:
        """A task has ended and told its last figures; what its host counted for it stays as it was heard last."""
        self.report(attempt, {**self.of(attempt), **figures})

    def of(self, attempt: AttemptId) -> dict[str, float]:
        """The last figures of a task; none where nothing was heard."""
        told = self._jobs.get(attempt.job, {}).get((attempt.vertex, attempt.subtask))
        return dict(told.figures) if told is not None and told.attempt == attempt else {}

    def __iter__(self) -> Iterator[tuple[AttemptId, Mapping[str, float], dict[str, float]]]:
        """Each task, with its figures and the shares of its last seconds."""
        for tasks in self._jobs.values():
            for told in tasks.values():
                yield told.attempt, told.figures, _shares(told)


def _mark(figures: Mapping[str, float]) -> _Mark:
    idle, pressed = figures.get("idle_seconds", 0.0), figures.get("back_pressured_seconds", 0.0)
    return _Mark(figures.get("seconds", 0.0), busy_seconds(figures), idle, pressed)


def _shares(told: _Told) -> dict[str, float]:
    now, then = _mark(told.figures), told.marks[0]
    seconds = now.seconds - then.seconds
    if seconds <= 0:
        return {}
    pairs = zip(_Mark._fields[1:], now[1:], then[1:], strict=True)
    return {name: round(min(1.0, max(0.0, (new - old) / seconds)), 3) for name, new, old in pairs}
