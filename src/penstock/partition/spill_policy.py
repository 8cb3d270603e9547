# SPDX-License-Identifier: Apache-2.0
"""When a hybrid partition stores what it has in memory, how much, which of it, and whether copies stay there.

A policy is asked after every change. It answers in segments, as memory comes and goes in segments; the partition
turns the answer into orders, one at a time. Whatever a policy says, a partition that is asked for memory
(`HybridPartition.relieve`) forgets what is stored and stores what is not, and a producer that has no memory stores by
itself: a policy is about speed, never about getting stuck. That is why both begin late: early storing competes with
the tasks for the cores. The figures are measured: `docs/decisions/0010-hybrid-partitions.md`.

Sans-I/O; a policy keeps no state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

NEVER = math.inf
"""More than any share."""


class Load(NamedTuple):
    """A partition's memory, in segments: its share, how much of that it holds, how much of that is not stored.

    `is_settled` says that the producer has finished some time ago and the partition is still wanted.
    """

    share: int
    held: int
    unspilled: int
    is_settled: bool


class SpillPolicy(Protocol):
    """How one kind of hybrid partition deals with memory."""

    @property
    def keeps_copies(self) -> bool:
        """Whether what is stored stays in memory too, until it was read or somebody needs the memory."""

    @property
    def farthest_first(self) -> bool:
        """Whether to store first what is needed last; else what was written first."""

    def spill(self, load: Load) -> int:
        """How many segments to store now; 0 for none."""


@dataclass(frozen=True, slots=True)
class StoreEverything:
    """`hybrid_full`: everything, once the partition has settled, or `begin` of the share is not stored."""

    begin: float = NEVER

    keeps_copies = True
    farthest_first = False

    def spill(self, load: Load) -> int:
        """All that is not stored, once that is due."""
        due = load.is_settled or load.unspilled >= max(1, self.begin * load.share)
        return load.unspilled if due else 0


@dataclass(frozen=True, slots=True)
class StoreWhatDoesNotFit:
    """`hybrid_selective`: when `full` of the share is held, `give` of it is stored, what is needed last first."""

    full: float = NEVER
    give: float = 0.4

    keeps_copies = False
    farthest_first = True

    def spill(self, load: Load) -> int:
        """A part of the share at once."""
        return max(1, int(self.give * load.share)) if load.held >= max(1, self.full * load.share) else 0
