# SPDX-License-Identifier: Apache-2.0
"""The pipelined result partition: all subpartitions of one producer attempt, read while they are written.

Rules:

- `on_consumable` is called once: at the first buffer or event, or at the end where there is none. So a producer
  without rows does not hold a barrier up.
- One of the approximate kind keeps its subpartitions open for readers that come later (`reattaching`), so it is
  released by `release` only.
- It is released when all readers have left *and* the producer has closed; before that only by `release`, `fail`,
  `expire` or `lose`. A producer that closes without having finished has failed.
- A slice given to `add` carries one reference, to `broadcast` one per subpartition. A slice that is not queued, or
  is dropped later, comes out through `on_recycle`, once per reference. An add that raises has taken nothing.

Sans-I/O, one thread. Callbacks are called when the partition's own books are straight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.buffer import BufferSlice, DataType
from penstock.buffer.view import DataListener
from penstock.errors import PenstockError, ProtocolError
from penstock.partition.answers import check_range, describe, end_error
from penstock.partition.endings import Endings
from penstock.partition.extents import BROADCAST, Extent
from penstock.partition.lifecycle import (
    PartitionEvent,
    PartitionLifecycle,
    PartitionState,
    ProducerEvent,
    ProducerLifecycle,
    ProducerState,
)
from penstock.partition.reattaching import ReattachableSubpartition
from penstock.partition.subpartition import (
    PipelinedSubpartition,
    PipelinedView,
    SubpartitionEvent,
)
from penstock.shuffle.events import EndOfPartition
from penstock.shuffle.ids import PartitionId


def _ignore(*_: object) -> None:
    """Do nothing, for a callback that is not given."""


@dataclass(frozen=True, slots=True)
class PartitionCallbacks:
    """The calls of a partition to its environment."""

    on_recycle: Callable[[BufferSlice], object]
    on_consumable: Callable[[], None] = field(default=_ignore)
    on_end: Callable[[PartitionState], None] = field(default=_ignore)
    held: Callable[[], int] = field(default=int)
    """Tells the segments that it holds."""


class PipelinedPartition(Endings):
    """One result partition. Life: adds, `finish` or `fail`, `close_producer`. Its readers come and go by views."""

    label = "pipelined"
    """Its kind, for figures."""

    __slots__ = (
        "_callbacks", "_cause", "_lifecycle", "_making", "_readers", "_subpartitions", "host", "partition_id",
    )  # fmt: skip

    def __init__(
        self,
        partition_id: PartitionId,
        subpartitions: int,
        callbacks: PartitionCallbacks,
        host: str = "",
        *,
        reattaches: bool = False,
    ) -> None:
        if subpartitions < 1:
            raise ValueError(f"partition {partition_id} with {subpartitions} subpartitions")
        self.partition_id = partition_id
        self.host = host
        self._callbacks = callbacks
        self._lifecycle = PartitionLifecycle(partition_id)
        made = ReattachableSubpartition if reattaches else PipelinedSubpartition
        self._subpartitions: list[PipelinedSubpartition] = [made(index, self) for index in range(subpartitions)]
        self._readers = subpartitions
        self._making = ProducerLifecycle(partition_id)
        self._cause = ""

    @property
    def name(self) -> str:
        """The partition's name in messages."""
        return str(self.partition_id)

    @property
    def state(self) -> PartitionState:
        """The state of its life."""
        return self._lifecycle.state

    @property
    def cause(self) -> str:
        """Why it ended, where that is known."""
        return self._cause

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return len(self._subpartitions)

    @property
    def held(self) -> int:
        """Segments that it holds, with those that its writer fills."""
        return self._callbacks.held()

    def size(self, segment_size: int) -> int:
        """The bytes that it holds."""
        return self.held * segment_size

    def add(self, subpartition: int, buffer: BufferSlice) -> bool:
        """Queue a slice for one reader; False when it was recycled instead, because it will not be read."""
        target = self._target(subpartition)
        self._write()
        taken = target.add(buffer)
        if not taken:
            self._callbacks.on_recycle(buffer)
        self._show()
        return taken

    def broadcast(self, buffer: BufferSlice) -> int:
        """Queue one slice, with a reference per subpartition, for all readers; how many will read it."""
        self._write()
        taken = 0
        for target in self._subpartitions:
            if target.add(buffer):
                taken += 1
            else:
                self._callbacks.on_recycle(buffer)
        self._show()
        return taken

    def add_event(self, subpartition: int, payload: bytes, data_type: int) -> bool:
        """Queue an event for one reader; False when it will not be read."""
        target = self._target(subpartition)
        self._write()
        taken = target.add_event(payload, data_type)
        self._show()
        return taken

    def broadcast_event(self, payload: bytes, data_type: int) -> int:
        """Queue an event for all readers; how many will read it."""
        self._write()
        taken = sum(target.add_event(payload, data_type) for target in self._subpartitions)
        self._show()
        return taken

    def overtake(self, subpartition: int, payload: bytes) -> list[BufferSlice]:
        """Queue a barrier for one reader ahead of the data; the slices that it overtook, which stay queued."""
        target = self._target(subpartition)
        self._write()
        overtaken = target.overtake(payload)
        self._show()
        return overtaken

    # As a port writes it.

    def references(self, subpartition: int) -> int:
        """The references that a slice for a subpartition, or for `BROADCAST`, is to have."""
        return len(self._subpartitions) if subpartition == BROADCAST else 1

    def take_slice(self, subpartition: int, piece: BufferSlice) -> None:
        """Queue a slice for one reader, or for all."""
        if subpartition == BROADCAST:
            self.broadcast(piece)
        else:
            self.add(subpartition, piece)

    def take_event(self, subpartition: int, payload: bytes, data_type: int) -> Sequence[BufferSlice]:
        """Queue an event for one reader, or for all; the slices that it has overtaken, which stay queued."""
        if self.state.is_end:
            return ()
        if data_type == DataType.OVERTAKING_BARRIER:
            return self.overtake(subpartition, payload)
        if subpartition == BROADCAST:
            self.broadcast_event(payload, data_type)
        else:
            self.add_event(subpartition, payload, data_type)
        return ()

    def add_stored(self, subpartition: int, extent: Extent) -> None:
        """Raise ProtocolError: nothing of it is stored."""
        raise ProtocolError(f"partition {self.name} is pipelined: nothing of it is stored")

    def complete(self, ends: Sequence[EndOfPartition]) -> None:
        """The producer has written everything, unless the partition has ended before."""
        if not self.state.is_end:
            self.finish()

    def give_up_writing(self, cause: BaseException | str, *, is_storage: bool) -> None:
        """The producer has failed."""
        self.fail(cause)

    def _target(self, subpartition: int) -> PipelinedSubpartition:
        check_range(self.partition_id, subpartition, 1, len(self._subpartitions))
        return self._subpartitions[subpartition]

    def _write(self) -> None:
        if self._lifecycle.state is not PartitionState.WRITING:
            self._lifecycle.move(PartitionEvent.WRITE)

    def _show(self) -> None:
        if self._making.state is ProducerState.SILENT and not self.state.is_end:
            self._making.move(ProducerEvent.SHOW)
            self._callbacks.on_consumable()

    def finish(self) -> None:
        """The producer has written everything, its closing events included."""
        self._lifecycle.move(PartitionEvent.FINISH)
        for target in self._subpartitions:
            target.finish()
        self._show()
        self._making.move(ProducerEvent.FINISH)

    def close_producer(self) -> None:
        """The producer lets go; idempotent. Not finished means failed; read to the end means released."""
        if self._making.state.has_left:
            return
        self._making.move(ProducerEvent.LEAVE)
        if not self._making.state.is_finished:
            self.fail("it ended without finishing the partition")
        elif self._readers == 0:
            self.release()

    def create_view(self, subpartition: int, listener: DataListener, count: int = 1) -> PipelinedView:
        """The one view of a subpartition; a PartitionError says why it can't be read, ProtocolError for a range."""
        if self.state.is_end:
            raise end_error(self.name, self.state, self._cause, self.host)
        if count != 1:
            raise ProtocolError(
                f"partition {self.name} is pipelined: a channel reads one subpartition of it, not {count}"
            )
        return self._target(subpartition).create_view(listener)

    create_local_view = create_view
    """A reader of this host is as good as any."""

    def lost(self, cause: str) -> PenstockError:
        """A reader misses a file of it, and there are none: what it is told."""
        return ProtocolError(f"partition {self.name} has no files")

    def end(self, event: PartitionEvent, cause: BaseException | str) -> None:
        """End it: readers are told why, what is queued is recycled; nothing happens when it has ended before."""
        if self.state.is_end:
            return
        state = self._lifecycle.move(event)
        self._cause = describe(cause)
        error = end_error(self.name, state, self._cause, self.host)
        released = state is PartitionState.RELEASED
        ended = SubpartitionEvent.RELEASE if released else SubpartitionEvent.FAIL
        dropped = [buffer for target in self._subpartitions for buffer in target.end(ended, error)]
        for buffer in dropped:
            self._callbacks.on_recycle(buffer)
        self._callbacks.on_end(state)

    def on_consumed(self, buffers: list[BufferSlice]) -> None:
        """A reader has left. Called by the subpartition."""
        self._readers -= 1
        if self._readers == 0:
            self._lifecycle.move(PartitionEvent.CONSUME)
        for buffer in buffers:
            self._callbacks.on_recycle(buffer)
        if self._readers == 0 and self._making.state.has_left:
            self.release()

    def on_detached(self, buffers: list[BufferSlice]) -> None:
        """A reader has left that another one may follow. Called by the subpartition."""
        for buffer in buffers:
            self._callbacks.on_recycle(buffer)
