# SPDX-License-Identifier: Apache-2.0
"""The order in which several jobs that share an application's slots get the next ones. Pure.

- First comes what running subtasks of the same job wait for: they hold slots until they have it.
- Then jobs with less than their even share, and what must run together, in the order in which they have waited; then
  all others, those with the fewest slots first. No job passes the first in the line: what it wants at once is kept
  free for it.
- A job's even share is what it would have if the slots were dealt out one by one to all that want more.
- While the first in the line lacks slots, workers that ask for work are taken from jobs above their share, and for
  what must run together from all jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.job.core.slots.demand import Demand


@dataclass(frozen=True, slots=True)
class Claim:
    """The slots that one job holds and wants, and its wait: since `turn`, its last grant or its submission."""

    job: str
    held: int
    demand: Demand | None
    turn: int


def even_share(claims: Sequence[Claim], slots: int) -> int:
    """The slots above which a job has more than its share; at least one."""
    left, count = slots, len(claims)
    for want in sorted(claim.held + (claim.demand.slots if claim.demand else 0) for claim in claims):
        if want * count > left:
            break
        left, count = left - want, count - 1
    return max(1, left // count) if count else max(1, slots)


def in_line(claims: Sequence[Claim], share: int) -> list[Claim]:
    """The claims of those that want something, the first to be served first."""

    def place(claim: Claim) -> tuple[int, int, int]:
        demand = claim.demand
        if demand is not None and demand.urgent:
            return 0, 0, claim.turn
        if claim.held < share or (demand is not None and demand.together):
            return 1, 0, claim.turn
        return 2, claim.held, claim.turn

    return sorted((claim for claim in claims if claim.demand is not None), key=place)


def grant_of(line: Sequence[Claim], free: int, share: int) -> int:
    """The number of free slots that the first in the line gets now; none if it waits for more."""
    first = line[0]
    if first.demand is None or free < 1:
        return 0
    if first.demand.together:
        return first.demand.slots if first.demand.slots <= free else 0
    most = max(1, share - first.held) if len(line) > 1 else free
    return min(free, most, first.demand.slots)


def to_be_freed(
    line: Sequence[Claim], claims: Sequence[Claim], free: int, share: int
) -> tuple[int, list[tuple[str, int]]]:
    """The number of slots that the first in the line lacks, and how many workers each job may give when they ask."""
    if not line:
        return 0, []
    first, floor = line[0], share
    if first.demand is not None and (first.demand.together or first.demand.urgent):
        lacking, floor = first.demand.slots if first.demand.together else 1, 0
    elif short := [claim for claim in line if claim.held < share]:
        lacking = sum(min(share - claim.held, claim.demand.slots) for claim in short if claim.demand is not None)
    else:
        # Slots that do not come out even are dealt out too: no job has two slots more than another one that wants
        # more.
        lacking, floor = 1, first.held + 1
    others = sorted((claim for claim in claims if claim.job != first.job), key=lambda claim: -claim.held)
    return max(0, lacking - free), [(claim.job, claim.held - floor) for claim in others if claim.held > floor]
