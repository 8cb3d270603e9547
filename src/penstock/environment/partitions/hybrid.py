# SPDX-License-Identifier: Apache-2.0
"""A hybrid partition on the environment's side: its memory, its storage, its readers and its end.

The shell around `partition.hybrid_partition`. Orders are carried out in threads, one at a time for a partition.
Once it is finished and everything is stored, an index is written, and whoever comes then reads the files like those
of a blocking partition; readers that came before go on as they began. The files go with the first of its ends, but
never while a thread still writes them. Storage that fails takes the partition along: unfinished it has failed, and
its producer is told at once; finished it is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from penstock.buffer import BufferSlice
from penstock.buffer.view import DataListener, ServableView, SubpartitionView
from penstock.environment.memory import HostMemory, MemoryArbiter
from penstock.environment.partitions.file_view import FileView, LocalFileView, ServedFileView
from penstock.environment.partitions.folders import PartitionFolder, remove_folder
from penstock.environment.partitions.hybrid_views import LocalHybridView, ServedHybridView
from penstock.environment.partitions.producers import Producers
from penstock.environment.partitions.storage import Storage
from penstock.errors import PenstockError, StorageError
from penstock.link.calls import OpenWriter
from penstock.partition.answers import check_range, end_error
from penstock.partition.data_file import DataFile
from penstock.partition.endings import Endings
from penstock.partition.extents import Extent
from penstock.partition.file_header import FileHeader
from penstock.partition.file_input import FileOrigin
from penstock.partition.hybrid_cursor import HybridCursor
from penstock.partition.hybrid_items import SpillOrder
from penstock.partition.hybrid_partition import HybridPartition, HybridRules
from penstock.partition.index import pack_extents, write_index
from penstock.partition.lifecycle import PartitionEvent, PartitionState
from penstock.partition.stored import StoredRows
from penstock.shuffle import PartitionId
from penstock.shuffle.sums import sum_of

SETTLE_SECONDS = 1.0
"""A finished partition that has memory is stored after this time: those of a short job are read and gone by then."""

V = TypeVar("V", LocalFileView, ServedFileView)


class HybridWriter(Protocol):
    """The writer of a partition, as the partition sees it."""

    @property
    def share(self) -> int:
        """Segments that may hold data, where the writer has what it needs."""

    @property
    def spare(self) -> int:
        """Segments that may be lent to readers without the writer missing them."""

    def tell(self, error: PenstockError) -> None:
        """The partition can't go on: tell the task."""


@dataclass(frozen=True, slots=True)
class HybridPartitions:
    """The parts that all hybrid partitions use."""

    producers: Producers
    memory: HostMemory
    arbiter: MemoryArbiter
    storage: Storage

    def register(self, request: OpenWriter) -> HybridResult:
        """A new partition, known to readers; raises ProtocolError or StaleError where it can't be."""
        result = HybridResult(self, request)
        self.producers.registry.register(result)
        self.arbiter.hold(result)
        return result


class HybridResult(Endings):
    """One hybrid partition; a `ReadablePartition` of the registry, and a `Holder` of memory."""

    def __init__(self, partitions: HybridPartitions, request: OpenWriter) -> None:
        partition, count = request.partition, request.subpartitions
        segment = partitions.memory.segments.segment_size
        rules = HybridRules(request.kind.is_kept, segment)
        self.core = HybridPartition(partition, count, rules, self, partitions.producers.host)
        self.port: HybridWriter | None = None
        self._producers = partitions.producers
        self._memory = partitions.memory
        self._arbiter = partitions.arbiter
        self._storage = partitions.storage
        self._folder = PartitionFolder(self._storage.folders, partition)
        self._disk = DataFile(partition, count, self._folder.path, self._storage.reserve)
        self._is_indexed = False
        self._working = 0

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
    def origin(self) -> FileOrigin:
        """The origin that its files should have, and their host."""
        return FileOrigin(self.partition_id, self._producers.host)

    @property
    def held(self) -> int:
        """Segments it holds, readers' apart."""
        return self.core.held

    @property
    def excess(self) -> int:
        """Segments it holds beyond its share."""
        return self.core.held - (self.port.share if self.port is not None else 0)

    def relieve(self, segments: int) -> None:
        """Let go of so many segments, now or when they are stored."""
        self.core.relieve(segments)

    def settle_later(self) -> None:
        """It is finished: see later whether it is to be stored."""
        self._storage.later(SETTLE_SECONDS, self.core.settle)

    def create_view(self, subpartition: int, listener: DataListener, count: int = 1) -> ServableView:
        """A view for a reader on another host."""
        if self._reads_files(subpartition, count):
            return self._opened(ServedFileView(self, subpartition, count, self._storage.reads, listener))
        return ServedHybridView(self, subpartition, count, self._storage.reads, listener)

    def create_local_view(self, first: int, count: int, listener: DataListener) -> SubpartitionView:
        """A view for a reader on this host."""
        if self._reads_files(first, count):
            return self._opened(LocalFileView(self, first, count, listener))
        return LocalHybridView(self, first, count, listener)

    @property
    def folder(self) -> str:
        """The folder of its files; empty as long as there is none."""
        return str(self._folder.made or "")

    def prepare_own(self, told: Callable[[str], None]) -> None:
        """Make the folder in which the producer may store by itself, in a thread; then say where that is."""

        def made(folder: object, error: BaseException | None) -> None:
            if error is not None:
                self.give_up(error)
            elif not self.state.is_end:
                told(str(folder))

        self._work(self._folder.path, made)

    def leave(self, view: FileView) -> None:
        """A view of the files is closed."""
        if view.was_read and not self.state.is_end:
            self.core.was_read(view.first, view.count)

    def left(self, cursor: HybridCursor) -> None:
        """A reader by cursor has left."""
        cursor.release()
        if self._is_indexed:
            self.core.forget()

    def lost(self, cause: str) -> PenstockError:
        """A reader found that a file is gone: what it is told."""
        self._producers.registry.lose([self.partition_id], cause)
        return end_error(self.partition_id, self.state, self.cause, self._producers.host)

    def end(self, event: PartitionEvent, cause: BaseException | str) -> None:
        """End it; see `HybridPartition.end`."""
        self.core.end(event, cause)

    def give_up(self, error: BaseException | None) -> None:
        """It can't go on: its producer is told while it writes; what is finished is lost."""
        if self.state.is_end:
            return
        told = error if isinstance(error, PenstockError) else PenstockError(f"{type(error).__name__}: {error}")
        if isinstance(error, StorageError):
            self.note_storage_failure()
        port, registry = self.port, self._producers.registry
        if self.core.is_finished:
            registry.lose([self.partition_id], str(told))
        else:
            registry.fail(self.partition_id, str(told))
        if port is not None:
            port.tell(told)

    def note_storage_failure(self) -> None:
        """Its folder took no more: the next partitions go elsewhere."""
        folder = self._folder.made
        if folder is not None:
            self._storage.folders.note_failure(folder)

    # The partition's words to its environment, and its questions.

    def on_share(self, piece: BufferSlice) -> None:
        """A reader gets a reference of its own."""
        self._arbiter.lend(piece.segment)

    def on_returned(self) -> None:
        """A reader has given back what it was lent."""
        self._arbiter.returned()

    def on_recycle(self, piece: BufferSlice) -> bool:
        """One reference less."""
        return self._memory.references.release(piece.segment)

    def on_spill(self, order: SpillOrder) -> None:
        """Store this, in a thread."""
        view = self._memory.segments.view
        runs = [
            [view(item.piece.segment, item.piece.offset, item.length) for item in run if item.piece is not None]
            for run in order.runs
        ]
        self._work(lambda: self._disk.write(runs), lambda extents, error: self._stored(order, extents, error))

    def on_stored(self) -> None:
        """Everything is stored: write the index, in a thread."""
        if not self.folder:
            return  # there is nothing to be read but ends
        core = self.core

        def write() -> int:
            self._disk.close()
            lists = (pack_extents(core.extents(number)) for number in range(core.subpartitions))
            return write_index(self._folder.path(), FileHeader(core.partition_id, core.subpartitions), lists)

        self._work(write, self._indexed)

    def on_consumable(self) -> None:
        """It can be consumed."""
        self._producers.announce(self.partition_id)

    def on_end(self, state: PartitionState) -> None:
        """It has ended: what it has goes."""
        self._producers.registry.bury(self.partition_id)
        self._arbiter.drop(self)
        if not self._working:
            self._remove()

    def may_lend(self, lent: int) -> bool:
        """Tell whether one more slice may go to a reader: some of the writer's memory always stays with it."""
        if self.port is not None and lent >= self.port.spare:
            return False
        return self._arbiter.may_lend

    def _work(self, work: Callable[[], object], done: Callable[[object, BaseException | None], None]) -> None:
        def finished(result: object, error: BaseException | None) -> None:
            done(result, error)
            self._working -= 1
            if self.state.is_end and not self._working:
                self._remove()

        self._working += 1
        self._storage.run(work, finished)

    def _stored(self, order: SpillOrder, extents: object, error: BaseException | None) -> None:
        if error is None and isinstance(extents, list):
            self._storage.note_stored(order.size)
            self.core.spilled(order, [each for each in extents if isinstance(each, Extent)])
        else:
            self.give_up(error)
            self.core.spilled(order, ())
        self._arbiter.stepped()

    def _indexed(self, size: object, error: BaseException | None) -> None:
        if self.state.is_end:
            return
        if error is not None:
            self.give_up(error)
        else:
            self._is_indexed = True
            self.core.forget()
            self._arbiter.drop(self)  # it holds no memory, and will hold none

    def _reads_files(self, first: int, count: int) -> bool:
        """Tell whether it is read from its files; raises the answer that fits if it can't be read."""
        if not self._is_indexed or self.state.is_end:
            return False  # the partition answers
        check_range(self.partition_id, first, count, self.core.subpartitions)
        return True

    def _opened(self, view: V) -> V:
        stored = StoredRows(self.folder, self.origin, (), view.first, view.count)
        view.start(stored, sum_of(self.core.ends()[view.first : view.first + view.count]))
        return view

    def _remove(self) -> None:
        folder = self._folder.made
        self._disk.remove()
        if folder is not None:
            self._storage.run(lambda: remove_folder(folder), lambda *_: None)
