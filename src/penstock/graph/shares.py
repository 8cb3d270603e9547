# SPDX-License-Identifier: Apache-2.0
"""The number of consumers of a blocking result, and the subpartitions of each: chosen from the bytes produced.

Rules. A share is a range of neighbouring subpartitions; all shares together read every byte once. As many as the
target asks for, at least one for each slot as long as each has a megabyte, never more than there are subpartitions.
A subpartition far above the average is cut where the operator allows it: several shares read it, each from its own
producers, and each reads all of the other inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FEW_BYTES = 1 << 20
"""A consumer for less than this costs more than it gives."""
_HUGE = 2
"""Times the fair share from which on a subpartition is cut."""


@dataclass(frozen=True, slots=True)
class Share:
    """The input of one consumer: `count` subpartitions from `first`; of `side` only every `parts`-th producer."""

    first: int
    count: int
    part: int = 0
    parts: int = 1
    side: int = 0

    def reads(self, side: int, producer: int) -> bool:
        """Tell whether this producer of this side is in the share."""
        return self.parts == 1 or side != self.side or producer % self.parts == self.part


@dataclass(frozen=True, slots=True)
class Cut:
    """The side whose subpartitions may be read by several consumers: its bytes, and its number of producers."""

    side: int
    sizes: Sequence[int]
    producers: int


def even_shares(subpartitions: int, consumers: int) -> tuple[Share, ...]:
    """Ranges of nearly equal length, for when nothing is known of sizes."""
    consumers = max(1, min(consumers, subpartitions))
    bounds = [index * subpartitions // consumers for index in range(consumers + 1)]
    return tuple(Share(first, end - first) for first, end in pairwise(bounds))


def choose_shares(sizes: Sequence[int], slots: int, target: int, cut: Cut | None = None) -> tuple[Share, ...]:
    """The shares for subpartitions of these bytes (all inputs together), in order of the subpartitions."""
    total = sum(sizes)
    wanted = max(1, -(-total // target), min(slots, total // FEW_BYTES))
    goal = total / min(wanted, len(sizes)) if total else 0.0
    shares: list[Share] = []
    first, held = 0, 0

    def close(end: int) -> None:
        nonlocal first, held
        if end > first:
            shares.append(Share(first, end - first))
        first, held = end, 0

    for index, size in enumerate(sizes):
        parts = _parts(index, goal, cut)
        if parts > 1 and cut is not None:
            close(index)
            shares.extend(Share(index, 1, part, parts, cut.side) for part in range(parts))
            first = index + 1
            continue
        if held and held + size / 2 > goal:
            close(index)
        held += size
    close(len(sizes))
    return tuple(shares)


def _parts(index: int, goal: float, cut: Cut | None) -> int:
    if cut is None or goal < FEW_BYTES or cut.sizes[index] <= _HUGE * goal:
        return 1
    return min(cut.producers, round(cut.sizes[index] / goal))
