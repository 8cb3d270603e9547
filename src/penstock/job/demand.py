# SPDX-License-Identifier: Apache-2.0
"""What a job would run now if it had the slots, matched with the workers it has. Pure.

Needs come in the order of the regions, so producers come before their consumers. A region whose tasks must run
together takes workers all at once or none, and those it waits for are kept for it; every other subtask takes any
worker that is idle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.job.job_tasks import Place


@dataclass(frozen=True, slots=True)
class Need:
    """Subtasks to run, for workers; the vertices whose DataFrame is to be read, with their tasks; together or not."""

    places: tuple[Place, ...]
    frames: tuple[tuple[int, int], ...] = ()
    together: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """Slots a job asks for: `workers`, and `frames` as `(vertex, tasks)`. `together`: all of them or none."""

    workers: int
    frames: tuple[tuple[int, int], ...] = ()
    together: bool = False

    @property
    def slots(self) -> int:
        """How many slots that is."""
        return self.workers + sum(tasks for _, tasks in self.frames)


@dataclass(frozen=True, slots=True)
class Match:
    """The subtasks that idle workers may take now, the idle workers to keep, and what is missing."""

    starts: tuple[Place, ...]
    kept: int
    demand: Demand | None


def match(needs: Iterable[Need], idle: int, coming: int) -> Match:
    """Give `idle` workers to the needs in order; `coming` ones will be idle soon, so nobody is launched for them."""
    starts: list[Place] = []
    missing = kept = 0
    for need in needs:
        count = len(need.places)
        if need.together or need.frames:
            lack = max(0, count - idle - coming)
            if missing:
                break  # what comes earlier gets its slots first
            if lack or need.frames:
                return Match(tuple(starts), kept + min(idle, count), Demand(lack, need.frames, need.together))
            if idle >= count:
                starts += need.places
                idle -= count
            else:
                coming -= count - idle
                kept, idle = kept + idle, 0
            continue
        now = min(idle, count)
        starts += need.places[:now]
        idle -= now
        later = min(coming, count - now)
        coming -= later
        missing += count - now - later
    return Match(tuple(starts), kept, Demand(missing) if missing else None)
