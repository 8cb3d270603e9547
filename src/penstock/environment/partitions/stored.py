# SPDX-License-Identifier: Apache-2.0
"""A stored partition on the environment's side: its memory, its readers and its end.

The shell around `partition.stored_partition`: it carries out what that says, on its files in threads (`StoredFiles`).
Once it is finished and everything is stored, an index is written, by its producer where that stores everything, and
later readers read the files by it. Storage that fails takes the partition along: unfinished it has failed, and
its producer is told at once; finished it is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.buffer import BufferSlice, DataType
from penstock.buffer.view import BufferOrEvent, DataListener
from penstock.environment.memory import HostMemory, MemoryArbiter
from penstock.environment.partitions.producers import Producers
from penstock.environment.partitions.storage import Storage
from penstock.environment.partitions.stored_files import StoredFiles
from penstock.environment.partitions.views import LocalView, ServedView
from penstock.errors import PenstockError, ProtocolError, StorageError
from penstock.partition.answers import end_error
from penstock.partition.endings import Endings
from penstock.partition.extents import Extent
from penstock.partition.file_input import FileOrigin
from penstock.partition.instructions import Announce, Recycle, Remove, StoreRuns, Wake, WriteIndex
from penstock.partition.lifecycle import PartitionEvent, PartitionState
from penstock.partition.stored import StoredRows
from penstock.partition.stored_cursor import Next, StoredCursor
from penstock.partition.stored_items import SpillOrder
from penstock.partition.stored_partition import StoredPartition
from penstock.partition.storing import StoredRules
from penstock.shuffle import EndOfData, EndOfPartition, PartitionId, PartitionKind
from penstock.shuffle.events import decode_event

SETTLE_SECONDS = 1.0
"""A finished partition that has memory is stored after this time: those of a short job are read and gone by then."""


class StoringWriter(Protocol):
    """The writer of a partition that is in memory, as the partition sees it."""

    @property
    def share(self) -> int:
        """Segments that may hold data, where the writer has what it needs."""

    @property
    def spare(self) -> int:
        """Segments that may be leased to readers without the writer missing them."""

    def tell(self, error: PenstockError) -> None:
        """The partition can't go on: tell the task."""


@dataclass(frozen=True, slots=True)
class StoredPartitions:
    """The parts that all stored partitions use."""

    producers: Producers
    memory: HostMemory
    arbiter: MemoryArbiter
    storage: Storage

    def register(self, partition: PartitionId, subpartitions: int, kind: PartitionKind) -> StoredResult:
        """A new partition, known to readers; raises ProtocolError or StaleError where it can't be."""
        result = StoredResult(self, partition, subpartitions, kind)
        self.producers.registry.register(result)
        return result


class StoredResult(Endings):
    """One stored partition; a `ReadablePartition` of the registry, and a `Holder` of memory."""

    def __init__(
        self, partitions: StoredPartitions, partition: PartitionId, subpartitions: int, kind: PartitionKind
    ) -> None:
        self.label = "hybrid" if kind.is_hybrid else "blocking"
        """Its kind, for figures."""
        rules = StoredRules(kind.is_kept, partitions.memory.segments.segment_size)
        self.core = StoredPartition(partition, subpartitions, rules, partitions.producers.host)
        self.writer: StoringWriter | None = None
        self._producers = partitions.producers
        self._memory = partitions.memory
        self._arbiter = partitions.arbiter
        self._storage = partitions.storage
        self._files = StoredFiles(self.core, self._storage)

    @property
    def partition_id(self) -> PartitionId:
        """Its identity."""
        return self.core.partition_id

    @property
    def state(self) -> PartitionState:
        """The state of its life."""
        return self.core.state

    @property
    def cause(self) -> str:
        """Why it ended."""
        return self.core.cause

    @property
    def held(self) -> int:
        """Segments it holds, readers' apart."""
        return self.core.held

    @property
    def excess(self) -> int:
        """Segments it holds beyond its share."""
        return self.core.held - (self.writer.share if self.writer is not None else 0)

    @property
    def folder(self) -> str:
        """The folder of its files; empty as long as there is none."""
        return self._files.folder

    def size(self, segment_size: int) -> int:
        """The bytes that it holds, in files as far as they are complete."""
        return self.core.held * segment_size + self.core.stored_bytes

    def hold(self) -> None:
        """It has memory, which others may need."""
        self._arbiter.hold(self)

    def create_view(self, subpartition: int, listener: DataListener, count: int = 1) -> ServedView:
        """A view for a reader on another host."""
        return ServedView(self, subpartition, count, self._storage.reads, listener)

    def create_local_view(self, subpartition: int, listener: DataListener, count: int = 1) -> LocalView:
        """A view for a reader on this host."""
        return LocalView(self, subpartition, count, listener)

    # The producer, as its port says it, and those who need memory.

    def references(self, subpartition: int) -> int:
        """One, whomever a slice is for."""
        return 1

    def take_slice(self, subpartition: int, piece: BufferSlice) -> None:
        """Take a slice for a subpartition, or for `BROADCAST`."""
        self.core.add(subpartition, piece)
        self._obey()

    def add_stored(self, subpartition: int, extent: Extent) -> None:
        """Note what the producer has stored by itself."""
        self.core.add_stored(subpartition, extent)
        self._obey()
        self._storage.note_stored(extent.length)

    def take_event(self, subpartition: int, payload: bytes, data_type: int) -> Sequence[BufferSlice]:
        """The end of a subpartition; ProtocolError for any other event but that of its data, which says nothing."""
        event = decode_event(payload)
        if data_type != DataType.EVENT or not isinstance(event, EndOfData | EndOfPartition):
            raise ProtocolError(f"{self.partition_id}: a hybrid partition takes no event but its end")
        if isinstance(event, EndOfPartition) and not self.state.is_end:
            self.core.end_subpartition(subpartition, event)
            self._obey()
        return ()

    def complete(self, ends: Sequence[EndOfPartition]) -> None:
        """The producer has written everything: with its index, or see later whether the rest is to be stored.

        Raises the answer that fits where a producer that stores everything finds the partition ended.
        """
        if ends:
            self._check_alive()
            self.core.finish_indexed(ends)
            self._obey()
        elif not self.state.is_end:
            self.core.finish()
            self._obey()
            self._storage.later(SETTLE_SECONDS, self.settle)

    def give_up_writing(self, cause: BaseException | str, *, is_storage: bool) -> None:
        """The producer has failed; `is_storage`: the next partitions go to another disk."""
        if is_storage:
            self._files.note_failure()
        self.fail(cause)

    def settle(self) -> None:
        """It has finished some time ago: what is left in memory is to be stored."""
        self.core.settle()
        self._obey()

    def close_producer(self) -> None:
        """The producer lets go."""
        self.core.close_producer()
        self._obey()

    def relieve(self, segments: int) -> None:
        """Let go of so many segments, now or when they are stored."""
        self.core.relieve(segments)
        self._obey()

    def prepare_own(self, told: Callable[[str], None]) -> None:
        """Make the folder in which the producer may store by itself, in a thread; then say where that is."""

        def made(folder: Path) -> None:
            if not self.state.is_end:
                told(str(folder))

        self._files.work(self._files.make_folder, made, self.give_up)

    async def make_folder(self) -> str:
        """Make the folder for a producer that stores everything; raises what is wrong with it, or the partition."""
        made: asyncio.Future[Path] = asyncio.get_running_loop().create_future()
        self._files.work(
            self._files.make_folder,
            lambda folder: None if made.done() else made.set_result(folder),
            lambda error: None if made.done() else made.set_exception(error),
        )
        return str(await made)

    def begin(self) -> None:
        """The producer may store; raises the answer that fits where the partition has ended meanwhile."""
        self._check_alive()
        self.core.begin()

    # The readers.

    def open(self, first: int, count: int, listener: DataListener) -> StoredCursor:
        """A reader of a range; a PartitionError says why there is none to be had."""
        return self.core.open(first, count, listener)

    def look(self, cursor: StoredCursor) -> Next:
        """The kind of item that comes next."""
        found = self.core.readers.look(cursor, may_lease=self._may_lease)
        self._obey()
        return found

    def backlog(self, cursor: StoredCursor) -> int:
        """About the buffers that are there."""
        return self.core.readers.backlog(cursor)

    def take(self, cursor: StoredCursor) -> BufferOrEvent:
        """The next slice, which is leased until its `recycle` is called, or the next event."""
        if cursor.events:
            return BufferOrEvent(DataType.EVENT, cursor.events.popleft(), cursor.first)
        subpartition = cursor.subpartition
        piece = self.core.readers.take(cursor)
        self._arbiter.lease(piece.segment)
        self._obey()
        return BufferOrEvent(DataType.DATA, piece, subpartition, self._returned)

    def take_stored(self, cursor: StoredCursor, most: int) -> StoredRows:
        """The next stored rows, in up to `most` pieces."""
        taken = self.core.readers.take_stored(cursor, most, may_lease=self._may_lease)
        self._obey()
        origin = FileOrigin(self.partition_id, self._producers.host)
        return StoredRows(self.folder, origin, taken.pieces, taken.first, taken.count)

    def leave(self, cursor: StoredCursor) -> None:
        """A reader is done; idempotent."""
        self.core.leave(cursor)
        self._obey()

    # Its end.

    def lost(self, cause: str) -> PenstockError:
        """A reader found that a file is gone: what it is told. Of a partition that has ended that is its end."""
        self._producers.registry.lose([self.partition_id], cause)
        return end_error(self.partition_id, self.state, self.cause, self._producers.host)

    def end(self, event: PartitionEvent, cause: BaseException | str) -> None:
        """End it; see `StoredPartition.end`."""
        self.core.end(event, cause)
        self._obey()

    def give_up(self, error: BaseException) -> None:
        """It can't go on: its producer is told while it writes; what is finished is lost."""
        if self.state.is_end:
            return
        told = error if isinstance(error, PenstockError) else PenstockError(f"{type(error).__name__}: {error}")
        if isinstance(error, StorageError):
            self._files.note_failure()
        writer, registry = self.writer, self._producers.registry
        if self.core.is_finished:
            registry.lose([self.partition_id], str(told))
        else:
            registry.fail(self.partition_id, str(told))
        if writer is not None:
            writer.tell(told)

    # The instructions of the core.

    def _obey(self) -> None:
        instructions = self.core.instructions
        while instructions:
            match instructions.popleft():
                case Recycle(pieces):
                    release = self._memory.references.release
                    self.core.recycled(sum(release(piece.segment) for piece in pieces))
                case Wake(listener):
                    listener()
                case StoreRuns(order):
                    self._store(order)
                case WriteIndex():
                    self._write_index()
                case Announce():
                    self._producers.announce(self.partition_id)
                case Remove():
                    self._producers.registry.bury(self.partition_id)
                    self._arbiter.drop(self)
                    self._files.remove()

    @property
    def _may_lease(self) -> bool:
        """Tell whether one more slice may go to a reader: some of the writer's memory always stays with it."""
        if self.writer is not None and self.core.readers.leased >= self.writer.spare:
            return False
        return self._arbiter.may_lease

    def _returned(self) -> None:
        self.core.returned()
        self._arbiter.returned()
        self._obey()

    def _store(self, order: SpillOrder) -> None:
        """Store this, in a thread."""
        view = self._memory.segments.view
        runs = [
            [view(item.piece.segment, item.piece.offset, item.length) for item in run if item.piece is not None]
            for run in order.runs
        ]

        def stored(extents: Sequence[Extent]) -> None:
            self._storage.note_stored(order.size)
            done(extents)

        def failed(error: BaseException) -> None:
            self.give_up(error)
            done(())

        def done(extents: Sequence[Extent]) -> None:
            self.core.stored(order, extents)
            self._obey()
            self._arbiter.stepped()

        self._files.work(lambda: self._files.write(runs), stored, failed)

    def _write_index(self) -> None:
        """Everything is stored: write the index, in a thread."""
        if not self.folder:
            return  # there is nothing to be read but ends

        def written(_: int) -> None:
            self.core.indexed()
            self._obey()
            self._arbiter.drop(self)  # it holds no memory, and will hold none

        self._files.work(self._files.write_index, written, self.give_up)

    def _check_alive(self) -> None:
        if self.state.is_end:
            raise end_error(self.partition_id, self.state, self.cause, self._producers.host)
