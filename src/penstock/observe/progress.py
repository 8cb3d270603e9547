# SPDX-License-Identifier: Apache-2.0
"""A running job, or one that has just ended, as displays are told of it; and the rates of its stages.

Pure data, and numbers in few characters. `frames` puts it into lines and HTML, `displays` onto a terminal or below
the cell of a notebook.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RATE_SECONDS = 3.0
"""Rates are those of the last seconds: tasks report twice in one."""


@dataclass(frozen=True, slots=True)
class ShownVertex:
    """One job vertex: its subtasks that run, of how many, the rows and bytes it has read, the share done where known.

    `busy` is the share of the last seconds in which its busiest subtask worked.
    """

    name: str
    running: int
    total: int
    rows: int
    share: float | None = None
    bytes: int = 0
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence about one stage: what is said of it, its name, and the reason."""

    lead: str
    stage: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """A job at one moment, `seconds` after its start.

    `key` tells it from others, `job` is its name for people. `rows` and `bytes` are what its sources have read.
    `state` says how it has ended, in a word; empty while it runs, and where it goes on unseen.
    """

    job: str
    vertices: tuple[ShownVertex, ...]
    seconds: float
    key: str = ""
    rows: int = 0
    bytes: int = 0
    notes: tuple[Note, ...] = ()
    state: str = ""


class Rates:
    """Each stage's rows per second, by what was shown of its job before."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[ProgressSnapshot]] = {}

    def of(self, jobs: Sequence[ProgressSnapshot]) -> Mapping[str, tuple[float | None, ...]]:
        """The rates of these jobs, by key; jobs that are left out have ended."""
        self._seen = {job.key: self._seen.get(job.key, deque()) for job in jobs}
        return {job.key: self._rates(job, self._seen[job.key]) for job in jobs}

    @staticmethod
    def _rates(job: ProgressSnapshot, seen: deque[ProgressSnapshot]) -> tuple[float | None, ...]:
        seen.append(job)
        while len(seen) > 2 and seen[1].seconds <= job.seconds - RATE_SECONDS:
            seen.popleft()
        first = seen[0]
        seconds = job.seconds - first.seconds
        if seconds <= 0 or len(first.vertices) != len(job.vertices):
            return (None,) * len(job.vertices)
        pairs = zip(job.vertices, first.vertices, strict=True)
        return tuple(max(0, now.rows - then.rows) / seconds for now, then in pairs)


def whole_rates(job: ProgressSnapshot) -> tuple[float | None, ...]:
    """The rates over all the time of a job that has ended."""
    return tuple(vertex.rows / job.seconds if job.seconds > 0 else None for vertex in job.vertices)


def short_count(count: float) -> str:
    """A number in three or four characters and a unit: 999, 1.2k, 34M."""
    for unit in ("", "k", "M", "G", "T"):
        if round(count) < 1000 or unit == "T":
            break
        count /= 1000
    return f"{count:.0f}{unit}" if unit == "" or count >= 9.95 else f"{count:.1f}{unit}"


def short_bytes(count: float) -> str:
    """Bytes in as few: 999 B, 1.2 kB, 34 MB."""
    text = short_count(count)
    return f"{text} B" if text[-1].isdigit() else f"{text[:-1]} {text[-1]}B"


def short_time(seconds: float) -> str:
    """A duration: 3.2 s, 47 s, 12 min 5 s, 3 h 7 min."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
