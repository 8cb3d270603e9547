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
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.buffer import BufferSlice
from penstock.environment.file_view import LocalFileView, ServedFileView, sum_of
from penstock.environment.folders import PartitionFolder, remove_folder
from penstock.environment.hybrid_views import LocalHybridView, ServedHybridView
from penstock.partition.answers import end_error
from penstock.partition.endings import Endings
from penstock.partition.extent_reader import ExtentReader
from penstock.partition.file_input import FileOrigin
from penstock.partition.hybrid_cursor import HybridCursor
from penstock.partition.hybrid_index import HybridRange, write_index
from penstock.partition.hybrid_items import Extent, SpillOrder
from penstock.partition.hybrid_partition import HybridEnvironment, HybridPartition, HybridRules
from penstock.partition.lifecycle import PartitionEvent, PartitionState
from penstock.partition.spill_policy import SpillPolicy, StoreEverything, StoreWhatDoesNotFit
from penstock.partition.tiers import NAMES, OWN, DiskTier, store
from penstock.partition.view import DataListener, SubpartitionView
from penstock.shuffle import PartitionId, PartitionKind
from penstock.shuffle.errors import PenstockError, ProtocolError

if TYPE_CHECKING:
    from penstock.environment.hybrid_port import HybridPort, WriterRequest
    from penstock.environment.spilling import HybridPartitions

POLICIES: dict[PartitionKind, SpillPolicy] = {
    PartitionKind.HYBRID_FULL: StoreEverything(),
    PartitionKind.HYBRID_SELECTIVE: StoreWhatDoesNotFit(),
}
"""How each kind deals with memory."""

V = TypeVar("V", LocalFileView, ServedFileView)


class HybridResult(Endings, HybridEnvironment):
    """One hybrid partition; a `ReadablePartition` of the registry."""

    def __init__(self, partitions: HybridPartitions, request: WriterRequest) -> None:
        host = partitions.host
        partition, count = request.partition, request.subpartitions
        rules = HybridRules(POLICIES[request.kind], request.kind.reconnectable, host.memory.segment_size)
        self.core = HybridPartition(partition, count, rules, self, host.environment)
        self.port: HybridPort | None = None
        self._partitions = partitions
        self._host = host
        self._folder = PartitionFolder(partitions.folders, partition)
        self._disk = DiskTier(partition, count, self._folder.path, host.settings.blocking.reserve)
        self._own = ""
        self._index = ""
        self._working = 0
        self._views: dict[LocalFileView | ServedFileView, None] = {}

    @property
    def partition_id(self) -> PartitionId:
        """Its identity."""
        return self.core.partition_id

    @property
    def state(self) -> PartitionState:
        """Where it is in its life."""
        return self.core.state

    @property
    def cause(self) -> str:
        """Why it ended."""
        return self.core.cause

    @property
    def origin(self) -> FileOrigin:
        """What its files should hold, and where they are."""
        return FileOrigin(self.partition_id, self._host.environment)

    @property
    def excess(self) -> int:
        """Segments it holds beyond its share."""
        return self.core.held - (self.port.share if self.port is not None else 0)

    def create_view(self, subpartition: int, listener: DataListener, count: int = 1) -> SubpartitionView:
        """A view for a reader on another host."""
        if self._is_indexed(subpartition, count):
            return self._opened(ServedFileView(self, subpartition, count, self._host.results.reads, listener))
        return ServedHybridView(self, subpartition, count, self._host.results.reads, listener)

    def create_local_view(self, first: int, count: int, listener: DataListener) -> SubpartitionView:
        """A view for a reader on this host."""
        if self._is_indexed(first, count):
            return self._opened(LocalFileView(self, first, count, listener))
        return LocalHybridView(self, first, count, listener)

    def reader(self) -> ExtentReader:
        """A reader of what is stored."""
        return ExtentReader(self.addresses, self.origin)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where readers find what is stored, by tier."""
        return (self._disk.address, self._own)

    def prepare_own(self, told: Callable[[str], None]) -> None:
        """Make the folder in which the producer may store by itself, in a thread; then say where that is."""

        def made(folder: object, error: BaseException | None) -> None:
            if error is not None:
                self._give_up(error)
            elif not self.state.is_end:
                self._own = str(Path(str(folder)) / NAMES[OWN])
                told(str(folder))

        self._work(self._folder.path, made)

    def leave(self, view: LocalFileView | ServedFileView) -> None:
        """A view of the files is closed."""
        self._views.pop(view, None)
        if view.was_read and not self.state.is_end:
            self.core.was_read(view.first, view.count)

    def left(self, cursor: HybridCursor) -> None:
        """A reader by cursor has left."""
        cursor.release()
        if self._index:
            self.core.forget()

    def lost(self, cause: str) -> PenstockError:
        """A reader found that a file is gone: what it is told."""
        self._host.registry.lose([self.partition_id], cause)
        return end_error(self.partition_id, self.state, self.cause, self._host.environment)

    def end(self, event: PartitionEvent, cause: BaseException | str) -> None:
        """End it; see `HybridPartition.end`."""
        self.core.end(event, cause)

    # What the partition tells its environment, and asks of it.

    def on_share(self, piece: BufferSlice) -> None:
        """A reader gets a reference of its own."""
        self._partitions.lent += 1
        self._host.references.add(piece.segment)

    def on_returned(self) -> None:
        """A reader has given back what it was lent."""
        self._partitions.returned()

    def on_recycle(self, piece: BufferSlice) -> bool:
        """One reference less."""
        return self._host.references.release(piece.segment)

    def on_spill(self, order: SpillOrder) -> None:
        """Store this, in a thread."""
        view = self._host.memory.view
        runs = [
            [view(item.piece.segment, item.piece.offset, item.length) for item in run if item.piece is not None]
            for run in order.runs
        ]
        self._work(lambda: store((self._disk,), runs), lambda extents, error: self._stored(order, extents, error))

    def on_stored(self) -> None:
        """Everything is stored: write the index, in a thread."""
        if not any(self.addresses):
            return  # there is nothing to be read but ends
        core = self.core

        def write() -> str:
            self._disk.close()
            path = self._folder.path() / "index"
            lists = [(core.extents(number), end) for number, end in enumerate(core.ends())]
            write_index(path, core.partition_id, lists)
            return str(path)

        self._work(write, self._indexed)

    def on_consumable(self) -> None:
        """It can be consumed."""
        self._host.consumable(self.partition_id)

    def on_end(self, state: PartitionState) -> None:
        """It has ended: what it has goes."""
        self._host.registry.bury(self.partition_id)
        self._partitions.forget(self)
        if not self._working:
            self._remove()

    def on_task_event(self, subpartition: int, payload: bytes) -> None:
        """An event from a reader to the producer."""
        if self.port is not None:
            self.port.task_event(subpartition, payload)

    def share(self) -> int:
        """Segments it may fill with data; all there are when nobody writes it, until others need them."""
        return self.port.share if self.port is not None else self._host.pool.total

    def may_lend(self, lent: int) -> bool:
        """Whether one more slice may go to a reader: some of the writer's memory always stays with the writer."""
        if self.port is not None and lent >= self.port.spare:
            return False
        return self._partitions.may_lend

    def _work(self, work: Callable[[], object], done: Callable[[object, BaseException | None], None]) -> None:
        def finished(result: object, error: BaseException | None) -> None:
            done(result, error)
            self._working -= 1
            if self.state.is_end and not self._working:
                self._remove()

        self._working += 1
        self._partitions.run(work, finished)

    def _stored(self, order: SpillOrder, extents: object, error: BaseException | None) -> None:
        if error is None and isinstance(extents, list):
            self._partitions.spilled_bytes += order.size
            self.core.spilled(order, [each for each in extents if isinstance(each, Extent)])
        else:
            self._give_up(error)
            self.core.spilled(order, ())
        self._partitions.stepped()

    def _indexed(self, path: object, error: BaseException | None) -> None:
        if self.state.is_end:
            return
        if error is not None:
            self._give_up(error)
        else:
            self._index = str(path)
            self.core.forget()
            self._partitions.forget(self)  # it holds no memory, and will hold none

    def _give_up(self, error: BaseException | None) -> None:
        if self.state.is_end:
            return
        told = error if isinstance(error, PenstockError) else PenstockError(f"{type(error).__name__}: {error}")
        port, registry = self.port, self._host.registry
        if self.core.is_finished:
            registry.lose([self.partition_id], str(told))
        else:
            registry.fail(self.partition_id, str(told))
        if port is not None:
            port.tell(told)

    def _is_indexed(self, first: int, count: int) -> bool:
        """Whether it is read from its files; raises the answer that fits where it can't be read."""
        if not self._index or self.state.is_end:
            return False  # the partition answers
        if first < 0 or count < 1 or first + count > self.core.subpartitions:
            raise ProtocolError(
                f"partition {self.partition_id} has no subpartitions {first} to {first + count - 1}: it has "
                f"{self.core.subpartitions}"
            )
        return True

    def _opened(self, view: V) -> V:
        self._views[view] = None
        stored = HybridRange(self._index, self.addresses, view.first, view.count, self.origin)
        view.start(stored, sum_of(self.core.ends()[view.first : view.first + view.count]))
        return view

    def _remove(self) -> None:
        folder = self._folder.made
        self._disk.remove()
        if folder is not None:
            self._partitions.run(lambda: remove_folder(folder), lambda *_: None)
