# SPDX-License-Identifier: Apache-2.0
"""A task's input as a model: channels that stop behind a barrier, and the task's answers to what it reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.checkpoint.alignment import Action, AlignedBarriers, Decline, Resume, Snapshot
from penstock.checkpoint.barriers import Alignment, CancelCheckpointMarker, CheckpointBarrier
from penstock.checkpoint.tracking import CountedBarriers

ROW = "row"
END = "end"
Item = str | CheckpointBarrier | CancelCheckpointMarker


def barrier(number: int, alignment: Alignment = Alignment.ALIGNED) -> CheckpointBarrier:
    """A barrier of this checkpoint, triggered at its number's second."""
    return CheckpointBarrier(number, float(number), alignment)


@dataclass
class Taken:
    """A snapshot, and how many rows of each channel had been read when it was taken."""

    checkpoint: int
    rows: tuple[int, ...]


@dataclass
class TaskModel:
    """Feeds a barrier core from channels, in any order that blocked channels allow."""

    core: AlignedBarriers | CountedBarriers
    channels: list[deque[Item]]
    blocked: set[int] = field(default_factory=set)
    rows: list[int] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    clock: float = 0.0

    def __post_init__(self) -> None:
        self.rows = [0] * len(self.channels)

    @property
    def ready(self) -> list[int]:
        """The channels that have something and are not stopped."""
        return [number for number, items in enumerate(self.channels) if items and number not in self.blocked]

    def step(self, channel: int) -> None:
        """Read one item of a channel, and do what the core says."""
        item = self.channels[channel].popleft()
        self.clock += 1.0
        if isinstance(item, CheckpointBarrier):
            if item.blocks_sender:
                self.blocked.add(channel)
            self._carry_out(self.core.barrier_came(channel, item, self.clock))
        elif isinstance(item, CancelCheckpointMarker):
            self._carry_out(self.core.marker_came(item.checkpoint))
        elif item == END:
            self._carry_out(self.core.channel_ended(channel))
        else:
            self.rows[channel] += 1
        self.core.check()

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Resume(channels):
                    assert self.blocked.issuperset(channels), "resumed a channel that was not stopped"
                    self.blocked.difference_update(channels)
                    self.resumed.extend(channels)
                case Snapshot(found, _):
                    self.taken.append(Taken(found.checkpoint, tuple(self.rows)))
                case Decline(checkpoint, _):
                    self.aborted.append(checkpoint)
