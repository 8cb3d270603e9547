# SPDX-License-Identifier: Apache-2.0
"""Which attempt had a slot, from when to when, out of a job's trace.

A slot is no thing with a number: an attempt that comes takes the first line that is free, so there are as many lines
as slots were in use at once. Kept are the last spans, so many at most.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from dataclasses import dataclass, replace

SPANS = 3_000
"""Kept at most, the last ones."""
_ATTEMPT = re.compile(r"/v(\d+)\.(\d+)#(\d+)")


@dataclass(frozen=True, slots=True)
class SlotSpan:
    """One attempt on its slot: `ran` is when it was told its work, `end` its end, in seconds of its job."""

    stage: int
    subtask: int
    attempt: int
    begin: float
    ran: float | None = None
    end: float | None = None
    how: str = ""


class Timeline:
    """The spans of one job."""

    def __init__(self) -> None:
        self._open: dict[str, SlotSpan] = {}
        self._closed: deque[SlotSpan] = deque(maxlen=SPANS)
        self.dropped = 0
        """The number of those that are not kept."""

    def add(self, seconds: float, name: str, ids: str) -> None:
        """An entry of the trace; those that say nothing of attempts are passed over."""
        key, _, how = ids.partition(" ")
        match name:
            case "task_registered":
                found = _ATTEMPT.search(key)
                if found is not None:
                    stage, subtask, attempt = map(int, found.groups())
                    self._open[key] = SlotSpan(stage, subtask, attempt, seconds)
            case "task_deployed":
                if key in self._open:
                    self._open[key] = replace(self._open[key], ran=seconds)
            case "task_finished" | "task_lost":
                self._close(key, seconds, how.lower() or "lost")

    def end(self, seconds: float) -> None:
        """The job is over."""
        for key in list(self._open):
            self._close(key, seconds, "ended with its job")

    def spans(self) -> tuple[SlotSpan, ...]:
        """All that are kept, by their beginning."""
        return tuple(
            sorted((*self._closed, *self._open.values()), key=lambda span: (span.begin, span.stage, span.subtask))
        )

    def _close(self, key: str, seconds: float, how: str) -> None:
        span = self._open.pop(key, None)
        if span is not None:
            self.dropped += len(self._closed) == SPANS
            self._closed.append(replace(span, end=seconds, how=how))


def lined_up(spans: tuple[SlotSpan, ...]) -> list[int]:
    """The line of each of these spans, which are in order of their beginning."""
    free: list[int] = []
    taken: list[tuple[float, int]] = []
    lines = []
    for span in spans:
        while taken and taken[0][0] <= span.begin:
            heapq.heappush(free, heapq.heappop(taken)[1])
        line = heapq.heappop(free) if free else len(taken)
        lines.append(line)
        heapq.heappush(taken, (float("inf") if span.end is None else span.end, line))
    return lines
