# SPDX-License-Identifier: Apache-2.0
"""A task's writer of a hybrid partition on the environment's side: grants segments as long as storing frees some.

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
  that idle writers have ahead are of no use to anybody, so for all of them together they are an eighth of the
  memory at most.
- A writer that is out of segments in the middle of a message gets one that is free, even beyond its share: that may
  have shrunk while readers hold what it was. If none is free, it *waits*, and its partition is asked for memory at
  each turn until it has one: a segment that came free may have gone to others.
"""

from __future__ import annotations

from penstock.buffer import BufferSlice, DataType, Holdings
from penstock.buffer.local_pool import LocalPoolStatistics
from penstock.environment.memory import packs
from penstock.environment.partitions.stored import StoredPartitions
from penstock.environment.task_frames import TaskFrames
from penstock.errors import PenstockError, ProtocolError
from penstock.link.calls import OpenWriter
from penstock.link.frames import ALL, FINISHED, LENGTH
from penstock.partition.extents import BROADCAST, Extent
from penstock.shuffle import EndOfData, EndOfPartition
from penstock.shuffle.events import decode_event

AHEAD = 16
"""Segments granted ahead at most: a writer goes on while its announcements and the next grants are on their way."""
BEGIN = 4
"""Segments granted ahead to begin with, where the limit for all writers allows it."""
RELIEF = 4
"""Segments a waiting writer's partition is asked for: for the rest of a message, as the next one is stored."""
LOW = 8
"""A writer is to store when less than this part of all memory is free: before it has to wait for some."""
HIGH = 2
"""It is granted memory again when this part of what is not guaranteed to anybody is free."""


class HybridPort:
    """One hybrid partition that a task is writing."""

    def __init__(
        self, partitions: StoredPartitions, to_task: TaskFrames, holdings: Holdings, request: OpenWriter
    ) -> None:
        self._memory = partitions.memory
        pool = self._memory.pool
        total = pool.total
        builders = 1 if request.broadcast else request.subpartitions
        self.is_packed = packs(pool, builders)
        self.port = request.port
        self._arbiter = partitions.arbiter
        self._to_task = to_task
        self._holdings = holdings
        self._builders = 1 if self.is_packed else builders
        self._granted: set[int] = set()
        self._ahead = 1
        self._is_open = True
        self._is_told = self._is_storing = False
        required = self._builders + 1
        self._pool = pool.create_local_pool(
            required, max(required, total), overdraft=total, owner=f"the writer of partition {request.partition}"
        )
        try:
            self.partition = partitions.register(request.partition, request.subpartitions, request.kind)
        except BaseException:
            self._pool.lazy_destroy()
            raise
        self.partition.writer = self
        self.partition.hold()
        self._grow_to(BEGIN)
        self._refill()

    @property
    def pool(self) -> LocalPoolStatistics:
        """Its buffers."""
        return self._pool.statistics()

    @property
    def queued(self) -> int:
        """Buffers that are written and not free again."""
        return self._pool.requested - len(self._granted)

    @property
    def share(self) -> int:
        """Segments that may hold data, where the writer has what it needs."""
        return max(0, self._pool.size - max(self._builders, len(self._granted)))

    @property
    def spare(self) -> int:
        """Segments that may be leased to readers without the writer missing them."""
        return self._pool.size - self._pool.limits.required

    def take_slice(self, target: int, segment: int, offset: int, marked: int) -> None:
        """The task ships a slice; raises ProtocolError for one it may not ship."""
        length = marked & LENGTH
        piece = BufferSlice(segment, offset, length, marked >= FINISHED)
        partition = self.partition
        if piece.finished:
            self._granted.discard(segment)  # before it may come back, and be granted again
        self._holdings.commit(piece, 1)
        if length and partition.state.is_end:
            self._memory.references.release(segment)
        elif length:
            try:
                partition.add(BROADCAST if target == ALL else target, piece)
            except ProtocolError:
                self._memory.references.release(segment)
                raise
        if piece.finished:
            self._refill()
            self._arbiter.stepped()

    def take_stored(self, target: int, extent: Extent) -> None:
        """The task has stored something by itself; raises ProtocolError where it may not."""
        if not self._is_told:
            raise ProtocolError(f"{self.partition.partition_id}: its writer stores without having been told where")
        if not self.partition.state.is_end:
            self.partition.add_stored(BROADCAST if target == ALL else target, extent)
            pool = self._memory.pool
            if self._is_storing and pool.free >= (pool.total - pool.guaranteed) // HIGH:
                self._is_storing = False
                self._grow()
                self._refill()

    def take_event(self, target: int, data_type: int, payload: bytes) -> None:
        """The task sends an event; raises ProtocolError for any but the two that end a subpartition."""
        event = decode_event(payload)
        if data_type != DataType.EVENT or not isinstance(event, EndOfData | EndOfPartition):
            raise ProtocolError(f"{self.partition.partition_id}: a hybrid partition takes no event but its end")
        if isinstance(event, EndOfPartition) and not self.partition.state.is_end:
            self.partition.end_subpartition(target, event)

    def overdraw(self) -> None:
        """The task is out of segments in the middle of a message."""
        if not self._is_open or self._arbiter.is_waiting(self):
            return
        if self._pool.is_available:
            self._grow()
        if self._give_one():
            self._refill()
            return
        if not self._pool.has_listeners:  # it may still be there from the time before
            self._pool.add_listener(self._on_segment)
        self._arbiter.wait(self)

    def relieve(self) -> None:
        """The task waits: what is stored is forgotten, and more is stored, until there is a segment for it."""
        if not self._give_one():
            self.partition.relieve(max(0, self._pool.requested - self._pool.size) + RELIEF)
            if self._arbiter.is_waiting(self):
                self._give_one()

    def give_up(self, error: Exception) -> None:
        """It could not be given memory: its session ends."""
        self._to_task.give_up(error)

    def finish(self) -> None:
        """The partition is complete; what the writer holds goes back, the data stays."""
        if not self.partition.state.is_end:
            self.partition.finish()
        self._close()

    def fail(self, cause: str) -> None:
        """The producer gives up: readers are told."""
        self.partition.fail(cause)
        self._close()

    def tell(self, error: PenstockError) -> None:
        """The partition can't go on: tell the task."""
        if self._is_open:
            self._to_task.error(self.port, 0, error)

    def _close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._arbiter.ahead.take_back(self._ahead - 1)
        self._arbiter.wait_no_more(self)
        self.partition.writer = None
        self._pool.lazy_destroy()
        granted, self._granted = self._granted, set()
        for segment in granted:
            self._holdings.give_back(segment)
        self.partition.close_producer()

    @property
    def _most(self) -> int:
        """Segments that may be out at the writer."""
        return self._builders + max(1, min(self._ahead, (self._pool.size - self._builders) // 2))

    def _grow(self) -> None:
        """It has needed more at once than was granted ahead."""
        self._grow_to(min(2 * self._ahead, AHEAD))

    def _grow_to(self, ahead: int) -> None:
        self._ahead += self._arbiter.ahead.grant(ahead - self._ahead)

    def _refill(self) -> None:
        most = self._most
        while self._is_open and not self._is_storing and len(self._granted) < most:
            segment = None if self._is_low else self._pool.request()
            if segment is None:
                self._store()
            else:
                self._grant(segment)

    @property
    def _is_low(self) -> bool:
        """Tell whether so little memory is left that the writer gets no more than it is guaranteed."""
        is_spent = self._memory.pool.free < self._memory.pool.total // LOW
        return is_spent and self._pool.requested >= self._pool.limits.required

    def _store(self) -> None:
        self._is_storing = True
        if not self._is_told:
            self._is_told = True
            self.partition.prepare_own(
                lambda folder: self._to_task.store(self.port, folder) if self._is_open else None
            )

    def _give_one(self) -> bool:
        """Grant a segment if any is free, whatever the writer's share."""
        segment = self._pool.request_overdraft()
        if segment is not None:
            self._arbiter.wait_no_more(self)
            self._grant(segment)
        return segment is not None

    def _on_segment(self, segment: int | None) -> bool:
        """One came free within the writer's share, or the pool is destroyed."""
        is_wanted = self._is_open and self._arbiter.is_waiting(self)
        self._arbiter.wait_no_more(self)
        if segment is None or not is_wanted:
            return False
        self._grant(segment)
        self._refill()
        return True

    def _grant(self, segment: int) -> None:
        self._holdings.grant(segment, self._pool)
        self._granted.add(segment)
        self._to_task.grant(self.port, segment)
