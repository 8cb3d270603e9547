# SPDX-License-Identifier: Apache-2.0
"""The network memory of one environment, and who may take how much of it.

Pools guarantee what was promised (`penstock.buffer`). Memory beyond that is shared here, between the hybrid
partitions of this host: they keep theirs until it is needed. When the pool runs low, those that hold more
than their share let go of it, at the end of the turn; finished ones have no share. As long as a writer waits for a
segment, there is a turn after each step that may free one. Segments that are leased to readers come back when those
like, so all partitions together lease out at most half of the memory; those that are granted to writers ahead of need
are an eighth of it at most.

All counters are changed here and nowhere else. One thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.buffer import NetworkBufferPool, SegmentMemory, SegmentReferences
from penstock.environment.turn import isolate

log = logging.getLogger("penstock.environment")

PACK_SHARE = 8
"""Open segments of one writer take at most this part of what is not guaranteed to others; else it packs."""
LOW = 16
"""The pool is low when less than this part of it is free."""
PIPELINED_AHEAD_SHARE = 4
"""Of what is granted ahead of need, pipelined writers all together have at most this part of the memory."""
LEASE_SHARE = 2
"""The segments leased to readers are at most this part of the memory."""
AHEAD_SHARE = 8
"""The segments granted to hybrid writers ahead of need, all together, are at most this part of the memory."""


class Holder(Protocol):
    """A partition that holds memory until it is needed."""

    @property
    def held(self) -> int:
        """Segments it holds, readers' apart."""

    @property
    def excess(self) -> int:
        """Segments it holds beyond its share."""

    def relieve(self, segments: int) -> None:
        """Let go of so many, now or when they are stored."""

    def give_up(self, error: Exception) -> None:
        """It could not: it has to end."""


class Waiting(Protocol):
    """A writer that is out of segments in the middle of a message."""

    def relieve(self) -> None:
        """Take a segment that is free, or have one freed."""

    def give_up(self, error: Exception) -> None:
        """It could not: its session has to end."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The segments of one environment, the pool that they come from, and who still needs which."""

    segments: SegmentMemory
    pool: NetworkBufferPool
    references: SegmentReferences

    @classmethod
    def of(cls, segments: SegmentMemory) -> HostMemory:
        """All of these segments, free."""
        count, size = segments.count, segments.segment_size
        return cls(segments, NetworkBufferPool(count), SegmentReferences(count, size))

    def figures(self) -> dict[str, float]:
        """Figures for the heartbeat."""
        pool = self.pool.statistics()
        return {
            "segments_total": pool.total,
            "segments_in_use": pool.in_use,
            "segments_guaranteed": pool.guaranteed,
            "memory_bytes": pool.total * self.segments.segment_size,
            "memory_in_use_bytes": pool.in_use * self.segments.segment_size,
        }

    def close(self) -> None:
        """Unmap; idempotent."""
        self.pool.close()
        self.segments.close()


class Allowance:
    """So many segments that may be granted ahead of need, to all writers of a kind together."""

    def __init__(self, segments: int) -> None:
        self._left = segments

    def grant(self, wanted: int) -> int:
        """The number that a writer that wants so many may have; `take_back` ends that."""
        more = max(0, min(wanted, self._left))
        self._left -= more
        return more

    def take_back(self, segments: int) -> None:
        """A writer has no more so many."""
        self._left += segments


def packs(pool: NetworkBufferPool, builders: int) -> bool:
    """Tell whether a writer with so many subpartitions keeps one open segment for all, instead of one for each."""
    return builders > 1 and builders >= (pool.total - pool.guaranteed) // PACK_SHARE


class MemoryArbiter:
    """The rights of hybrid partitions to a host's memory. `wake` has `relieve` called at the end of the turn."""

    def __init__(self, memory: HostMemory, wake: Callable[[], None]) -> None:
        self._pool = memory.pool
        self._references = memory.references
        self._wake = wake
        self._low = max(1, memory.pool.total // LOW)
        self.ahead = Allowance(memory.pool.total // AHEAD_SHARE)
        """For hybrid writers."""
        self._leased = 0
        self._holders: dict[Holder, None] = {}
        self._waiting: dict[Waiting, None] = {}

    @property
    def leased(self) -> int:
        """Slices leased to readers."""
        return self._leased

    @property
    def held(self) -> int:
        """Segments with data of hybrid partitions, readers' apart."""
        return sum(holder.held for holder in self._holders)

    @property
    def may_lease(self) -> bool:
        """True if one more slice may go to a reader."""
        return self._leased < max(1, self._pool.total // LEASE_SHARE)

    def lease(self, segment: int) -> None:
        """A reader gets a reference of its own to a slice of this segment."""
        self._leased += 1
        self._references.add(segment)

    def returned(self) -> None:
        """A reader has given back a slice that it had leased."""
        self._leased -= 1
        self.stepped()

    def hold(self, holder: Holder) -> None:
        """From now on the holder may be asked to let go of memory."""
        self._holders[holder] = None

    def drop(self, holder: Holder) -> None:
        """The holder has ended, or holds no memory any more; idempotent."""
        self._holders.pop(holder, None)

    def wait(self, writer: Waiting) -> None:
        """A writer waits for a segment."""
        self._waiting[writer] = None
        self._wake()

    def is_waiting(self, writer: Waiting) -> bool:
        """Tell whether a writer waits for a segment."""
        return writer in self._waiting

    def wait_no_more(self, writer: Waiting) -> None:
        """A writer waits no longer; idempotent."""
        self._waiting.pop(writer, None)

    def stepped(self) -> None:
        """Something has changed that may free memory."""
        if self._waiting:
            self._wake()

    def relieve(self) -> None:
        """For writers that wait, and where memory is low, take back what partitions hold beyond their share."""
        for writer in list(self._waiting):
            try:
                writer.relieve()
            except Exception as error:
                log.exception("a writer could not be given memory: its session ends")
                self.wait_no_more(writer)
                isolate(writer.give_up, error)
        needed = self._low - self._pool.free
        if needed <= 0:
            return
        for holder in list(self._holders):
            try:
                excess = holder.excess
                if excess > 0:
                    holder.relieve(min(excess, needed))
            except Exception as error:
                log.exception("a partition could not let go of memory: it ends")
                self.drop(holder)
                isolate(holder.give_up, error)
