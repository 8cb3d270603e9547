# SPDX-License-Identifier: Apache-2.0
"""The segments of a hybrid partition's writer, as long as storing frees some.

Rules:

- The writer's pool is guaranteed little and may take all that is spare. A segment it is granted is either open at the
  writer, or holds data that can be stored, or is leased to a reader; never so many are leased that none is left to
  write in. So the writer waits for storage at the worst, never for a reader.
- When memory is nearly spent, or the writer has its share of it, it is to *store*: it is granted no more than what it
  is guaranteed, and is told (once) where. From then on it stores by itself what it has no segments at hand for. It is
  granted memory again when much of that is free: changes are few that way, and each wakes the readers once more.
- With few subpartitions each has a segment of its own open. With more than the memory allows the writer *packs*: all
  share one open segment. Which of the two is decided here, once.
- Segments are granted ahead of need: a few, and twice as many each time that was too few, up to `AHEAD`. Segments
  that idle writers have ahead are of no use to others, so for all of them together they are an eighth of the
  memory at most.
- A writer that is out of segments in the middle of a message gets one that is free, even beyond its share: that may
  have shrunk while readers hold what it was. If none is free, it *waits*, and its partition is asked for memory at
  each turn until it has one: a segment that came free may have gone to others.
"""

from __future__ import annotations

from penstock.buffer.local_pool import LocalPoolStatistics
from penstock.environment.memory import HostMemory, MemoryArbiter, packs
from penstock.environment.partitions.stored import StoredResult
from penstock.environment.ports.grants import Grants
from penstock.errors import PenstockError, ProtocolError
from penstock.link.calls import OpenWriter

AHEAD = 16
"""Segments granted ahead at most: a writer goes on while its announcements and the next grants are on their way."""
BEGIN = 4
"""Segments granted ahead to begin with, where the limit for all writers allows it."""
RELIEF = 4
"""Segments a waiting writer's partition is asked for: for the rest of a message, as the next one is stored."""
LOW = 8
"""A writer is to store when less than this part of all memory is free: before it has to wait for some."""
HIGH = 2
"""It is granted memory again when this part of what is guaranteed to no pool is free."""


class StoringSupply:
    """A `Supply` out of a pool that may take all spare memory, and what a partition knows of its writer."""

    def __init__(self, memory: HostMemory, arbiter: MemoryArbiter, grants: Grants, request: OpenWriter) -> None:
        self._memory = memory.pool
        self._arbiter = arbiter
        self._grants = grants
        builders = 1 if request.broadcast else request.subpartitions
        self.is_packed = packs(memory.pool, builders)
        self._builders = 1 if self.is_packed else builders
        self._partition: StoredResult | None = None
        self._ahead = 1
        self._is_told = self._is_storing = False
        total, required = memory.pool.total, self._builders + 1
        self._pool = grants.pool = memory.pool.create_local_pool(
            required, max(required, total), overdraft=total, owner=f"the writer of partition {request.partition}"
        )

    def serve(self, partition: StoredResult) -> None:
        """Begin: this is the partition."""
        self._partition = partition
        partition.writer = self
        partition.hold()
        self._grow_to(BEGIN)

    @property
    def pool(self) -> LocalPoolStatistics:
        """Its buffers."""
        return self._pool.statistics()

    @property
    def share(self) -> int:
        """Segments that may hold data, where the writer has what it needs."""
        return max(0, self._pool.size - max(self._builders, len(self._grants)))

    @property
    def spare(self) -> int:
        """Segments that may be leased to readers without the writer missing them."""
        return self._pool.size - self._pool.limits.required

    def refill(self) -> None:
        """Grant what the writer may have, or tell it to store."""
        most = self._most
        while self._partition is not None and not self._is_storing and len(self._grants) < most:
            segment = None if self._is_low else self._pool.request()
            if segment is None:
                self._store(self._partition)
            else:
                self._grants.grant(segment)
        self._arbiter.stepped()

    def pause(self, *, is_paused: bool) -> None:
        """Nothing changes: it waits for no reader, so none has to be spared."""

    def overdraw(self) -> None:
        """The writer is out of segments in the middle of a message."""
        if self._partition is None or self._arbiter.is_waiting(self):
            return
        if self._pool.is_available:
            self._grow()
        if self._give_one():
            self.refill()
            return
        if not self._pool.has_listeners:  # it may still be there from the time before
            self._pool.add_listener(self._on_segment)
        self._arbiter.wait(self)

    def relieve(self) -> None:
        """The writer waits: what is stored is forgotten, and more is stored, until there is a segment for it."""
        if self._partition is not None and not self._give_one():
            self._partition.relieve(max(0, self._pool.requested - self._pool.size) + RELIEF)
            if self._arbiter.is_waiting(self):
                self._give_one()

    def give_up(self, error: Exception) -> None:
        """It could not be given memory: its session ends."""
        self._grants.to_task.give_up(error)

    def check_stores(self) -> None:
        """Raise ProtocolError unless it was told where to store."""
        if not self._is_told:
            raise ProtocolError("a writer stores without having been told where")

    def stored(self) -> None:
        """The writer has stored something by itself: it may have memory again when much of it is free."""
        pool = self._memory
        if self._is_storing and pool.free >= (pool.total - pool.guaranteed) // HIGH:
            self._is_storing = False
            self._grow()
            self.refill()

    def tell(self, error: PenstockError) -> None:
        """The partition can't go on: tell the task."""
        self._grants.to_task.error(self._grants.port, 0, error)

    def close(self) -> None:
        """Give up pool and allowance; idempotent."""
        partition, self._partition = self._partition, None
        self._arbiter.wait_no_more(self)
        if partition is not None:
            self._arbiter.ahead.take_back(self._ahead - 1)
            partition.writer = None
        self._pool.lazy_destroy()

    @property
    def _most(self) -> int:
        """Segments that may be out at the writer."""
        return self._builders + max(1, min(self._ahead, (self._pool.size - self._builders) // 2))

    def _grow(self) -> None:
        """It has needed more at once than was granted ahead."""
        self._grow_to(min(2 * self._ahead, AHEAD))

    def _grow_to(self, ahead: int) -> None:
        self._ahead += self._arbiter.ahead.grant(ahead - self._ahead)

    @property
    def _is_low(self) -> bool:
        """Tell whether so little memory is left that the writer gets no more than it is guaranteed."""
        is_spent = self._memory.free < self._memory.total // LOW
        return is_spent and self._pool.requested >= self._pool.limits.required

    def _store(self, partition: StoredResult) -> None:
        self._is_storing = True
        if not self._is_told:
            self._is_told = True
            partition.prepare_own(self._tell_folder)

    def _tell_folder(self, folder: str) -> None:
        if self._partition is not None:
            self._grants.to_task.store(self._grants.port, folder)

    def _give_one(self) -> bool:
        """Grant a segment if any is free, whatever the writer's share."""
        segment = self._pool.request_overdraft()
        if segment is not None:
            self._arbiter.wait_no_more(self)
            self._grants.grant(segment)
        return segment is not None

    def _on_segment(self, segment: int | None) -> bool:
        """One came free within the writer's share, or the pool is destroyed."""
        is_wanted = self._partition is not None and self._arbiter.is_waiting(self)
        self._arbiter.wait_no_more(self)
        if segment is None or not is_wanted:
            return False
        self._grants.grant(segment)
        self.refill()
        return True
