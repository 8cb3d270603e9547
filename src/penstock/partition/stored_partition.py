# SPDX-License-Identifier: Apache-2.0
"""The stored result partition: its producer waits for no reader, and what memory does not hold is in files.

Rules:

- Buffers are visible at once and stay in memory as long as there is some. Bytes that memory can't hold the producer
  stores by itself and says where (`add_stored`). Other items are stored as `storing` says; if it keeps, everything
  once it has settled. When all of it is stored it is indexed, and later readers need no item of it.
- A producer that stores all by itself, index and all, adds nothing: its partition can be read when it has finished
  (`finish_indexed`). Such a partition is what blocking ones are.
- A partition that *keeps* is read from its beginning by any number of readers, at any time. Items that it has stored
  stay in memory too, until they were read or others need the memory; the oldest is stored first. One that does not
  (`hybrid_selective`) has one reader a subpartition, and what is needed last is stored first.
- The partition owns one reference of each slice it was given, broadcast ones too. A reader gets one of its own.
- It can be consumed at the first buffer, or at the end where there is none. One that does not keep is released when
  all readers have left and the producer has closed. A producer that closes without having finished has failed.

Sans-I/O, one thread: each event leaves `instructions`, which its holder carries out before the next event of a reader
or writer that waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from penstock.buffer import BufferSlice
from penstock.buffer.view import DataListener
from penstock.errors import PartitionError, ProtocolError
from penstock.partition.answers import check_range, describe, end_error
from penstock.partition.endings import Endings
from penstock.partition.extents import BROADCAST, Extent
from penstock.partition.instructions import Announce, Instructions, Recycle, Remove, WriteIndex
from penstock.partition.lifecycle import (
    PartitionEvent,
    PartitionLifecycle,
    PartitionState,
    ProducerEvent,
    ProducerLifecycle,
    ProducerState,
)
from penstock.partition.stored_cursor import Log, Logs, ReadClaim, StoredCursor
from penstock.partition.stored_items import SpillOrder
from penstock.partition.stored_reading import StoredReaders
from penstock.partition.storing import StoredRules, Storing
from penstock.shuffle.events import EndOfPartition
from penstock.shuffle.ids import PartitionId


class StoredPartition(Endings):
    """One result partition. Life: adds, ends, `finish` or `fail`, `close_producer`; its readers have cursors."""

    def __init__(self, partition_id: PartitionId, subpartitions: int, rules: StoredRules, host: str = "") -> None:
        if subpartitions < 1:
            raise ValueError(f"partition {partition_id} with {subpartitions} subpartitions")
        self.partition_id = partition_id
        self.host = host
        self.keeps = rules.keeps
        self.cause = ""
        self.instructions: Instructions = deque()
        """To be carried out, in this order."""
        self._logs = Logs(partition_id, subpartitions)
        self._storing = Storing(self._logs, rules, self.instructions)
        self.readers = StoredReaders(partition_id, self._logs, self._storing, self.instructions, keeps=rules.keeps)
        """For what each of them gets; they come by `open` and go by `leave`."""
        self._lifecycle = PartitionLifecycle(partition_id)
        self._making = ProducerLifecycle(partition_id)

    @property
    def state(self) -> PartitionState:
        """The state of its life."""
        return self._lifecycle.state

    @property
    def is_finished(self) -> bool:
        """True if its producer has written everything."""
        return self._making.state.is_finished

    @property
    def is_indexed(self) -> bool:
        """True if all of it is stored and has an index."""
        return self._making.state is ProducerState.INDEXED

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return len(self._logs)

    @property
    def held(self) -> int:
        """Segments with data of this partition, readers' apart."""
        return len(self._storing.books)

    @property
    def stored_bytes(self) -> int:
        """The bytes of its rows, if all of it is stored."""
        return sum(end.bytes for end in self._logs.ends if end is not None) if self.is_indexed else 0

    def begin(self) -> None:
        """The producer writes into files."""
        self._lifecycle.move(PartitionEvent.WRITE)

    def add(self, subpartition: int, piece: BufferSlice) -> bool:
        """Append a slice to one subpartition or to `BROADCAST`; False when it is recycled: it will not be read."""
        return self._append(piece, subpartition, piece)

    def add_stored(self, subpartition: int, extent: Extent) -> None:
        """Append what the producer has stored by itself, to one subpartition or to `BROADCAST`."""
        self._append(extent, subpartition, None)

    def end_subpartition(self, subpartition: int, end: EndOfPartition) -> None:
        """The producer has written all of a subpartition; what it counted."""
        log = self._logs[subpartition]
        if self._logs.ends[subpartition] is not None:
            raise ProtocolError(f"{self.partition_id}[{subpartition}] is ended twice")
        self._logs.ends[subpartition] = end
        self.readers.wake(log.cursors)

    def finish(self) -> None:
        """The producer has written everything; ProtocolError where a subpartition has no end."""
        missing = [index for index, end in enumerate(self._logs.ends) if end is None]
        if missing:
            raise ProtocolError(f"partition {self.partition_id} is finished, but {missing} have no end")
        self._finish()
        self._storing.go_on()
        self._look_if_stored()

    def finish_indexed(self, ends: Sequence[EndOfPartition]) -> None:
        """The producer has stored everything and its index; ProtocolError unless there is an end for each."""
        if self._storing.sequence:
            raise ProtocolError(f"{self.partition_id}: its producer has an index of rows that are elsewhere")
        if len(ends) != len(self._logs):
            raise ProtocolError(f"{self.partition_id}: {len(ends)} ends of {len(self._logs)} subpartitions")
        self._logs.ends[:] = ends
        self._finish()
        self._making.move(ProducerEvent.STORE)
        self.indexed()

    def settle(self) -> None:
        """Finished some time ago, and still there: see to it that everything is stored."""
        if self.keeps and self.is_finished:  # what one that does not keep has left goes as it is read
            self._making.move(ProducerEvent.SETTLE)
            if not self.state.is_end:
                self._storing.settle()
                self._look_if_stored()

    def close_producer(self) -> None:
        """The producer lets go; idempotent. Not finished is failed; read to the end is released, unless kept."""
        if self._making.state.has_left:
            return
        self._making.move(ProducerEvent.LEAVE)
        if not self.is_finished:
            self.fail("it ended without finishing the partition")
        else:
            self._release_if_left()

    def stored(self, order: SpillOrder, extents: Sequence[Extent]) -> None:
        """An order was carried out: an extent for each run; none where it failed, and the partition has ended."""
        if self.state.is_end:
            self._storing.abandoned(order)
            return
        self._storing.stored(order, extents)
        self.readers.wake_waiting()
        self._look_if_stored()

    def relieve(self, segments: int) -> None:
        """Others need memory: forget what is stored, store what is not, until so many segments are free."""
        if not self.state.is_end:
            self._storing.relieve(segments)
            self._look_if_stored()

    def recycled(self, segments: int) -> None:
        """Pieces were recycled, and so many segments came free with them."""
        self._storing.recycled(segments)
        self._look_if_stored()

    def indexed(self) -> None:
        """The index is written: later readers go by it."""
        if not self.state.is_end:
            self._making.move(ProducerEvent.INDEX)
            self.readers.indexed()

    def extents(self, subpartition: int) -> list[Extent]:
        """The extents in which a subpartition is stored, in order; of a partition that keeps and that is stored.

        Any thread.
        """
        found: list[Extent] = []
        position, items = 0, self._logs.items_of(subpartition)
        while position < len(items):
            item = items[position]
            if item is None or item.extent is None:
                raise ProtocolError(f"{self.partition_id}[{subpartition}] is not stored")
            found.append(item.extent)
            position += item.rest
        return found

    def open(self, first: int, count: int, listener: DataListener) -> StoredCursor:
        """A reader of a range, from its beginning; a PartitionError says why there is none to be had."""
        if self.state.is_end:
            raise end_error(self.partition_id, self.state, self.cause, self.host)
        check_range(self.partition_id, first, count, len(self._logs))
        if not self.keeps:
            self._claim([self._logs[number] for number in range(first, first + count)], first)
        return self.readers.open(first, count, listener, is_indexed=self.is_indexed)

    def returned(self) -> None:
        """A reader has given back a slice that it had leased."""
        self._storing.returned()
        self.readers.returned()

    def leave(self, cursor: StoredCursor) -> None:
        """A reader is done, for good or bad; idempotent."""
        self.readers.leave(cursor)
        if self.state.is_end:
            return
        if self.readers.all_read:
            self._lifecycle.move(PartitionEvent.CONSUME)
        if self.is_indexed:
            self.readers.forget()
        self._release_if_left()

    def end(self, event: PartitionEvent, cause: BaseException | str) -> None:
        """End it: readers are told why, what is in memory is recycled; nothing happens when it has ended before."""
        if self.state.is_end:
            return
        state = self._lifecycle.move(event)
        self.cause = describe(cause)
        self._storing.drop_all()
        self._logs.clear()
        self.readers.end(end_error(self.partition_id, state, self.cause, self.host))
        self.instructions.append(Remove(state))

    def _claim(self, logs: list[Log], first: int) -> None:
        if any(log.claim is not ReadClaim.FREE for log in logs):
            raise PartitionError(
                f"partition {self.partition_id} on {self.host or 'this host'}: subpartition {first} was given to a "
                "reader already, and a hybrid_selective partition is read once: it keeps nothing that was read. Use "
                'mode="hybrid", or produce it again'
            )
        for log in logs:
            log.claim = ReadClaim.TAKEN

    def _append(self, source: BufferSlice | Extent, subpartition: int, piece: BufferSlice | None) -> bool:
        if subpartition == BROADCAST:
            logs, order = [log for log in self._logs if log.claim is not ReadClaim.LEFT], self._storing.sequence
        else:
            log = self._logs[subpartition]
            logs, order = [log] if log.claim is not ReadClaim.LEFT else [], len(log.items)
        self._check_writing(source, subpartition)
        if logs:
            item = self._storing.make(source, subpartition, order, len(logs))
            for log in logs:
                log.items.append(item)
        elif piece is not None:
            self.instructions.append(Recycle([piece]))
        self._show()
        for log in logs:
            if log.cursors:
                self.readers.wake(log.cursors)
        if piece is not None and piece.finished:  # memory comes and goes in segments
            self._storing.go_on()
        return bool(logs)

    def _check_writing(self, source: BufferSlice | Extent, subpartition: int) -> None:
        if source.length <= 0:
            raise ProtocolError(f"{self.partition_id}: an empty buffer")
        ends = self._logs.ends if subpartition == BROADCAST else self._logs.ends[subpartition : subpartition + 1]
        if self.is_finished or any(end is not None for end in ends):
            raise ProtocolError(f"{self.partition_id}: its producer writes after it has finished")
        if self._lifecycle.state is not PartitionState.WRITING:
            self._lifecycle.move(PartitionEvent.WRITE)

    def _finish(self) -> None:
        self._lifecycle.move(PartitionEvent.FINISH)
        self._show()
        self._making.move(ProducerEvent.FINISH)

    def _show(self) -> None:
        if self._making.state is ProducerState.SILENT and not self.state.is_end:
            self._making.move(ProducerEvent.SHOW)
            self.instructions.append(Announce())

    def _release_if_left(self) -> None:
        # A producer that is still there can't be told that its readers left: its next word would find no partition.
        if self._making.state.has_left and not self.keeps and all(log.claim is ReadClaim.LEFT for log in self._logs):
            self.release()

    def _look_if_stored(self) -> None:
        is_to_be = self.is_finished and self._making.state not in (ProducerState.STORED, ProducerState.INDEXED)
        if is_to_be and self.keeps and self._storing.is_through and not self.state.is_end:
            self._making.move(ProducerEvent.STORE)
            self._storing.forget(self.held)
            self.instructions.append(WriteIndex())
