# SPDX-License-Identifier: Apache-2.0
"""Exactly-once alignment: one task's snapshot is due when the barrier has come on all its open channels.

Rules. A channel is a number; the channels of all gates of a task are aligned together. Each call is one thing that
came, and returns what the task does about it, in order. Nothing is buffered here: a barrier that blocks stops its
channel *at the sender*, which goes on when it is resumed; so every barrier that blocked is answered with one `Resume`
of its channel, whatever becomes of its checkpoint.

- A newer barrier gives up the checkpoint that is being aligned: it was subsumed.
- A marker, or a word from the coordinator, gives up its checkpoint whether its barrier was seen or not.
- A channel that has ended has had every barrier. A task in front of which no task runs is told by the coordinator;
  where that word is faster than the ends of its channels, it waits for those.

Non-goals: unaligned barriers and the time-out of aligned ones (`unaligned`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.checkpoint.barriers import CheckpointBarrier
from penstock.errors import ProtocolError

NO_CHECKPOINT = 0
"""Numbers of checkpoints begin with one."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Let the senders of these channels go on."""

    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All rows in front of the barrier were handled, and none after it: take the task's snapshot, and pass it on.

    `aligned_since` is when its first channel was blocked, in the caller's seconds.
    """

    barrier: CheckpointBarrier
    aligned_since: float


IN_FRONT = "a task upstream of this one took no snapshot"
"""Why a checkpoint is declined that another task has declined, and said so itself."""
CAME_IN_THE_MIDDLE = "its reader came in its middle, and reads up to the next one out of logs"
"""Why a checkpoint is declined that is no failure: the next one may follow at once."""


@dataclass(frozen=True, slots=True)
class Decline:
    """This task takes no snapshot for the checkpoint: decline it, and pass a marker on."""

    checkpoint: int
    cause: str


Action = Resume | Snapshot | Decline


class AlignedBarriers:
    """The alignment of one task."""

    def __init__(self, channels: Iterable[int]) -> None:
        self._open = set(channels)
        self._current = NO_CHECKPOINT
        self._barrier: CheckpointBarrier | None = None
        self._since = 0.0
        self._aligned: set[int] = set()
        self._blocked: set[int] = set()

    @property
    def blocked(self) -> frozenset[int]:
        """The channels whose senders stand still."""
        return frozenset(self._blocked)

    @property
    def aligning(self) -> int | None:
        """The checkpoint whose barriers are coming in, if there is one."""
        return None if self._barrier is None else self._current

    def barrier_came(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Action]:
        """A barrier came on an open channel; raises ProtocolError for one that can't be."""
        if channel not in self._open or channel in self._blocked:
            state = "blocked" if channel in self._blocked else "ended"
            raise ProtocolError(f"a barrier of checkpoint {barrier.checkpoint} on channel {channel}: it is {state}")
        if barrier.blocks_sender:
            self._blocked.add(channel)
        if self._is_over(barrier.checkpoint):
            return self._resume(tuple(self._blocked & {channel}))
        actions: list[Action] = []
        if barrier.checkpoint > self._current:
            actions = self._begin(barrier, now, channel)
        self._aligned.add(channel)
        return actions + self._complete()

    def marker_came(self, checkpoint: int) -> list[Action]:
        """No (further) barrier of this checkpoint comes: a task in front took no snapshot, or it was given up."""
        if self._is_over(checkpoint):
            return []
        if checkpoint == self._current:
            return self._give_up(IN_FRONT)
        actions = self._give_up("a newer checkpoint was cancelled")
        self._current = checkpoint
        return [*actions, Decline(checkpoint, IN_FRONT)]

    def channel_ended(self, channel: int) -> list[Action]:
        """The last event of a channel came."""
        if channel not in self._open or channel in self._blocked:
            state = "is blocked" if channel in self._blocked else "has ended before"
            raise ProtocolError(f"the end of channel {channel}, which {state}")
        self._open.discard(channel)
        return self._complete()

    def triggered(self, barrier: CheckpointBarrier, now: float) -> list[Action]:
        """The coordinator triggers a task in front of which no task runs (any more)."""
        if barrier.checkpoint <= self._current:
            return []
        return self._begin(barrier, now) + self._complete()

    def check(self) -> None:
        """The invariants of this core; raises AssertionError."""
        if self._barrier is None and (self._aligned or self._blocked):
            raise AssertionError(f"channels {self._aligned | self._blocked} are aligned without a checkpoint")
        if not self._blocked <= self._aligned:
            raise AssertionError(f"channels {self._blocked - self._aligned} are blocked and have had no barrier")
        if self._barrier is not None and not self._open - self._aligned:
            raise AssertionError(f"checkpoint {self._current} has all its barriers, and nothing happened")

    def _is_over(self, checkpoint: int) -> bool:
        """Tell whether it was decided what this task does for the checkpoint."""
        return checkpoint < self._current or (checkpoint == self._current and self._barrier is None)

    def _begin(self, barrier: CheckpointBarrier, now: float, keep: int | None = None) -> list[Action]:
        """A new checkpoint; `keep` is the channel that its first barrier has blocked."""
        actions = self._give_up("a newer checkpoint came", keep)
        self._current, self._barrier, self._since = barrier.checkpoint, barrier, now
        return actions

    def _complete(self) -> list[Action]:
        barrier = self._barrier
        if barrier is None or self._open - self._aligned:
            return []
        self._barrier = None
        self._aligned.clear()
        return [Snapshot(barrier, self._since), *self._resume(tuple(sorted(self._blocked)))]

    def _give_up(self, cause: str, keep: int | None = None) -> list[Action]:
        """End the alignment under way; `keep` is blocked by the next one."""
        if self._barrier is None:
            return []
        self._barrier = None
        self._aligned.clear()
        return [Decline(self._current, cause), *self._resume(tuple(sorted(self._blocked - {keep})))]

    def _resume(self, channels: tuple[int, ...]) -> list[Action]:
        self._blocked.difference_update(channels)
        return [Resume(channels)] if channels else []
