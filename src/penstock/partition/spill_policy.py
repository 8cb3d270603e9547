# SPDX-License-Identifier: Apache-2.0
"""When a hybrid partition stores what it has in memory, how much, which of it, and when it forgets memory copies.

A policy is asked after every change. It answers in segments, as memory comes and goes in segments; the partition
turns the answer into orders, one at a time. Whatever a policy says, a partition that is asked for memory
(`HybridPartition.relieve`) forgets what is stored and stores what is not: a policy is about speed, never about
getting stuck. The figures are measured: `docs/decisions/0010-hybrid-partitions.md`.

Sans-I/O; a policy keeps no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Load:
    """A partition's memory, in segments: its share, how much of that it holds, how much of that is not stored."""

    share: int
    held: int
    unspilled: int
    is_finished: bool


class SpillPolicy(Protocol):
    """How one kind of hybrid partition deals with memory."""

    @property
    def keeps_copies(self) -> bool:
        """Whether what is stored stays in memory too, until it was read or `release` says so."""

    @property
    def farthest_first(self) -> bool:
        """Whether to store first what is needed last; else what was written first."""

    def spill(self, load: Load) -> int:
        """How many segments to store now; 0 for none."""

    def release(self, load: Load) -> int:
        """How many segments to forget that are stored; 0 for none."""


@dataclass(frozen=True, slots=True)
class StoreEverything:
    """`hybrid_full`: everything is stored in the background.

    Writing begins when `begin` of the share, or `enough` segments, are not stored, whichever comes first; the rest
    goes when the producer has finished. Memory copies go when `full` of the share is held: `release` of it at once.
    """

    begin: float = 0.5
    enough: int = 16
    full: float = 0.7
    give: float = 0.4

    keeps_copies = True
    farthest_first = False

    def spill(self, load: Load) -> int:
        """All that is not stored, once that is enough to be worth a write."""
        due = load.unspilled >= max(1, min(self.enough, self.begin * load.share)) or load.is_finished
        return load.unspilled if due else 0

    def release(self, load: Load) -> int:
        """A part of the share at once, so that it is not done segment by segment."""
        return max(1, int(self.give * load.share)) if load.held >= self.full * load.share else 0


@dataclass(frozen=True, slots=True)
class StoreWhatDoesNotFit:
    """`hybrid_selective`: when `full` of the share is held, `give` of it is stored, what is needed last first."""

    full: float = 0.7
    give: float = 0.4

    keeps_copies = False
    farthest_first = True

    def spill(self, load: Load) -> int:
        """A part of the share at once."""
        return max(1, int(self.give * load.share)) if load.held >= max(1, self.full * load.share) else 0

    def release(self, load: Load) -> int:
        """None: what is stored has left memory."""
        return 0
