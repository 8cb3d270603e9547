# SPDX-License-Identifier: Apache-2.0
"""At-least-once: count the barriers of each checkpoint and block no channel.

A snapshot is taken when the last open channel's barrier has come, so it holds rows of faster channels that came after
theirs; these are replayed as well after a recovery. Several checkpoints may be under way; the completion of one drops
all older ones. At most `PENDING_LIMIT` are counted, then the oldest is forgotten: it can only expire.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.checkpoint.alignment import IN_FRONT, NO_CHECKPOINT, Action, Decline, Snapshot
from penstock.checkpoint.barriers import CheckpointBarrier
from penstock.errors import ProtocolError

PENDING_LIMIT = 50


@dataclass(slots=True)
class _Counted:
    barrier: CheckpointBarrier
    since: float
    channels: set[int] = field(default_factory=set)


class CountedBarriers:
    """The barriers of one task; takes the same calls as `AlignedBarriers`.

    Those of checkpoints up to `behind` are from before the task began: a task in front of it may still tell them.
    """

    def __init__(self, channels: Iterable[int], behind: int = NO_CHECKPOINT) -> None:
        self._open = set(channels)
        self._pending: OrderedDict[int, _Counted] = OrderedDict()
        self._latest = behind

    def barrier_came(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Action]:
        """A barrier came on an open channel; raises ProtocolError for one that can't be."""
        if channel not in self._open:
            raise ProtocolError(f"a barrier of checkpoint {barrier.checkpoint} on channel {channel}: it has ended")
        self._begin(barrier, now)
        counted = self._pending.get(barrier.checkpoint)
        if counted is None:
            return []
        counted.channels.add(channel)
        return self._complete()

    def marker_came(self, checkpoint: int) -> list[Action]:
        """No (further) barrier of this checkpoint comes; those before it are given up with it."""
        known = [pending for pending in self._pending if pending <= checkpoint]
        if checkpoint > self._latest:
            self._latest = checkpoint
            known.append(checkpoint)
        for pending in known:
            self._pending.pop(pending, None)
        return [Decline(pending, IN_FRONT) for pending in known]

    def channel_anew(self, channel: int) -> list[Action]:
        """Another attempt of a channel's producer follows: checkpoints that the one before took part in are over."""
        counted = [number for number, pending in self._pending.items() if channel in pending.channels]
        return self.marker_came(counted[-1]) if counted else []

    def channel_ended(self, channel: int) -> list[Action]:
        """The last event of a channel came."""
        if channel not in self._open:
            raise ProtocolError(f"channel {channel} has ended twice")
        self._open.discard(channel)
        return self._complete()

    def triggered(self, barrier: CheckpointBarrier, now: float) -> list[Action]:
        """The coordinator triggers a task in front of which no task runs (any more)."""
        self._begin(barrier, now)
        return self._complete()

    def check(self) -> None:
        """The invariants of this core; raises AssertionError."""
        numbers = list(self._pending)
        if len(numbers) > PENDING_LIMIT or numbers != sorted(numbers):
            raise AssertionError(f"too many checkpoints are counted, or they are out of order: {numbers}")
        for number, counted in self._pending.items():
            if not self._open - counted.channels:
                raise AssertionError(f"checkpoint {number} has all its barriers, and nothing happened")

    def _begin(self, barrier: CheckpointBarrier, now: float) -> None:
        if barrier.checkpoint > self._latest:
            self._latest = barrier.checkpoint
            self._pending[barrier.checkpoint] = _Counted(barrier, now)
            if len(self._pending) > PENDING_LIMIT:
                self._pending.popitem(last=False)

    def _complete(self) -> list[Action]:
        """The newest checkpoint that has all its barriers, and with it the end of all older ones."""
        whole = [number for number, counted in self._pending.items() if not self._open - counted.channels]
        if not whole:
            return []
        counted = self._pending[whole[-1]]
        for number in [number for number in self._pending if number <= whole[-1]]:
            del self._pending[number]
        return [Snapshot(counted.barrier, counted.since)]
