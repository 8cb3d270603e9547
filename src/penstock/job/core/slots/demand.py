# SPDX-License-Identifier: Apache-2.0
"""The subtasks that a job would run now if it had the slots, matched with the workers it has. Pure.

Needs come in the order of the regions, so producers come before their consumers; what running readers wait for comes
before all else. A region whose tasks must run together takes workers all at once or none, and those it waits for are
kept for it; every other subtask takes any worker that is idle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Group = tuple[int, int]
"""A vertex, and how many of its subtasks."""


@dataclass(frozen=True, slots=True)
class Need:
    """One region: subtasks that no task has taken, and DataFrames to be read, each as a vertex and its tasks.

    `urgent`: subtasks that run already, and hold slots, wait for these. `early`: they may start as soon as what comes
    before them in the order has, so their workers are launched along with those.
    """

    region: int
    groups: tuple[Group, ...]
    dataframes: tuple[Group, ...] = ()
    together: bool = False
    urgent: bool = False
    early: bool = False

    @property
    def count(self) -> int:
        """The number of workers that it takes."""
        return sum(count for _, count in self.groups)

    def first(self, count: int) -> list[Group]:
        """The first so many subtasks."""
        found = []
        for vertex, there in self.groups:
            if count > 0:
                found.append((vertex, min(there, count)))
                count -= there
        return found


@dataclass(frozen=True, slots=True)
class Demand:
    """Slots a job asks for: `workers`, and `dataframes` as `(vertex, tasks)`. `together`: all of them or none."""

    workers: int
    dataframes: tuple[Group, ...] = ()
    together: bool = False
    urgent: bool = False

    @property
    def slots(self) -> int:
        """The number of slots that it takes."""
        return self.workers + sum(tasks for _, tasks in self.dataframes)


@dataclass(frozen=True, slots=True)
class Match:
    """The work that idle workers may take now, how many of the others to keep, and what is missing.

    `firm` is how many idle workers must not be given to another job; `covered` are the regions that run together
    and whose workers are all there or on their way.
    """

    starts: tuple[Group, ...]
    kept: int
    firm: int
    covered: tuple[int, ...]
    demand: Demand | None


def match(needs: Iterable[Need], idle: int, coming: int) -> Match:
    """Give `idle` workers to the needs in order; `coming` ones are idle soon, so none is launched in their place."""
    starts: list[Group] = []
    dataframes: list[Group] = []
    covered: list[int] = []
    missing = kept = firm = 0
    urgent = False
    for need in sorted(needs, key=lambda need: not need.urgent):
        if (missing or dataframes) and (need.together or urgent > need.urgent):
            break  # what comes earlier gets its slots first
        now = min(idle, need.count)
        later = min(coming, need.count - now)
        lack = need.count - now - later
        if need.together and (lack or need.dataframes):
            demand = Demand(lack, need.dataframes, together=True, urgent=need.urgent)
            return Match(tuple(starts), kept + now, firm, tuple(covered), demand)
        idle, coming = idle - now, coming - later
        if need.together:
            covered.append(need.region)
        if need.early or (need.together and later):
            kept += now
        else:
            starts += need.first(now)
        firm += now if need.together or need.urgent else 0
        missing += lack
        dataframes += need.dataframes
        urgent = urgent or (need.urgent and bool(lack or need.dataframes))
    asked = Demand(missing, tuple(dataframes), urgent=urgent) if missing or dataframes else None
    return Match(tuple(starts), kept, firm, tuple(covered), asked)
