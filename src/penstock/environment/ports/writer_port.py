# SPDX-License-Identifier: Apache-2.0
"""A writer's port on the environment's side, whatever its partition: takes slices, events and ends of one task.

A writer writes into its *supply*, and there is one for each policy: it waits for segments that readers give back
(`waiting_supply`), it stores what has no room (`storing_supply`), or it stores everything (`whole_supply`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.buffer import BufferSlice, DataType
from penstock.buffer.local_pool import LocalPoolStatistics
from penstock.environment.ports.grants import Grants
from penstock.errors import ProtocolError
from penstock.link.frames import ALL, CONTINUES, FINISHED, LENGTH
from penstock.partition.extents import BROADCAST, Extent
from penstock.partition.lifecycle import PartitionState
from penstock.shuffle import EndOfPartition


class WrittenPartition(Protocol):
    """A partition as its writer's port sees it. After its end it takes whatever comes, and keeps nothing."""

    @property
    def state(self) -> PartitionState:
        """The state of its life."""

    def references(self, subpartition: int) -> int:
        """The references that a slice for a subpartition, or for `BROADCAST`, is to have."""

    def take_slice(self, subpartition: int, piece: BufferSlice) -> None:
        """Take a slice. ProtocolError, and nothing is taken, where it has no place."""

    def add_stored(self, subpartition: int, extent: Extent) -> None:
        """Note what the writer has stored by itself; ProtocolError where it stores nothing."""

    def take_event(self, subpartition: int, payload: bytes, data_type: int) -> Sequence[BufferSlice]:
        """Take an event; the slices that it has overtaken, which stay where they are. ProtocolError for others."""

    def complete(self, ends: Sequence[EndOfPartition]) -> None:
        """The writer has written everything; `ends` where it has not sent them as events."""

    def give_up_writing(self, cause: BaseException | str, *, is_storage: bool) -> None:
        """The writer has failed; `is_storage`: its files took no more."""

    def close_producer(self) -> None:
        """The writer lets go; idempotent."""


class Supply(Protocol):
    """The segments that one writer may write into."""

    @property
    def is_packed(self) -> bool:
        """True if all subpartitions are to share one open segment."""

    @property
    def pool(self) -> LocalPoolStatistics | None:
        """Its buffers, if it has any."""

    def refill(self) -> None:
        """Grant the writer what it may have: it has begun, or filled a segment."""

    def pause(self, *, is_paused: bool) -> None:
        """Grant nothing more for the time being, or go on; without effect on what never waits."""

    def overdraw(self) -> None:
        """The writer is in the middle of a message and out of segments."""

    def check_stores(self) -> None:
        """Raise ProtocolError where the writer may not store by itself."""

    def stored(self) -> None:
        """The writer has stored something by itself."""

    def close(self) -> None:
        """Give up what it has; idempotent."""


class WriterPort:
    """One partition that a task is writing. `number` is 0 for one of which no frames tell."""

    def __init__(self, number: int, partition: WrittenPartition, supply: Supply, grants: Grants) -> None:
        self.number = number
        self.leased = 0
        """Slices that a barrier has overtaken, and of which the task makes its copy."""
        self._partition = partition
        self._supply = supply
        self._grants = grants

    @property
    def pool(self) -> LocalPoolStatistics | None:
        """Its buffers."""
        return self._supply.pool

    @property
    def queued(self) -> int:
        """Buffers that are written and not free again."""
        return self._grants.written

    def take_slice(self, target: int, segment: int, offset: int, marked: int) -> None:
        """The task ships a slice; raises ProtocolError for one it may not ship."""
        length = marked & LENGTH
        piece = BufferSlice(segment, offset, length, marked >= FINISHED, bool(marked & CONTINUES))
        partition, subpartition = self._partition, _subpartition(target)
        references = partition.references(subpartition)
        self._grants.commit(piece, references)
        if length and partition.state.is_end:
            self._grants.release(segment, references)
        elif length:
            try:
                partition.take_slice(subpartition, piece)
            except ProtocolError:
                self._grants.release(segment, references)
                raise
        if piece.finished:
            self._supply.refill()

    def take_stored(self, target: int, extent: Extent) -> None:
        """The task has stored something by itself; raises ProtocolError where it may not."""
        self._supply.check_stores()
        if not self._partition.state.is_end:
            self._partition.add_stored(_subpartition(target), extent)
            self._supply.stored()

    def take_event(self, target: int, data_type: int, payload: bytes) -> None:
        """The task sends an event. Of data that a barrier passes the task gets a lease, and saves a copy."""
        overtaken = self._partition.take_event(_subpartition(target), payload, data_type)
        if data_type == DataType.OVERTAKING_BARRIER:
            self.leased += len(overtaken)
            self._grants.lease(target, overtaken, payload)

    def recycle(self, segments: tuple[int, ...]) -> None:
        """The task has copied slices that a barrier overtook; raises ProtocolError for what it had not leased."""
        if len(segments) > self.leased:
            raise ProtocolError(f"{len(segments)} slices come back to a writer that had leased {self.leased}")
        self._grants.take_back(segments)
        self.leased -= len(segments)

    def pause(self, *, is_paused: bool) -> None:
        """The task's job is throttled, or not any more."""
        self._supply.pause(is_paused=is_paused)

    def overdraw(self) -> None:
        """The task is in the middle of a message and out of segments."""
        self._supply.overdraw()

    def finish(self, ends: Sequence[EndOfPartition] = ()) -> None:
        """The partition is complete; what the writer holds goes back, the data stays."""
        try:
            self._partition.complete(ends)
        finally:
            self._close()

    def fail(self, cause: BaseException | str, *, is_storage: bool = False) -> None:
        """The producer gives up: readers are told."""
        self._partition.give_up_writing(cause, is_storage=is_storage)
        self._close()

    def _close(self) -> None:
        self._supply.close()
        self._grants.close()
        self._partition.close_producer()


def _subpartition(target: int) -> int:
    return BROADCAST if target == ALL else target
