# SPDX-License-Identifier: Apache-2.0
"""A blocking partition on the environment's side: it owns the files and their life, a task writes them.

Rules:

- It is read when it is finished, by any number of readers at once, one after the other, in ranges of subpartitions.
  A reader on this host is told the files and opens them itself; one elsewhere gets a view (`file_view`).
- Its folder of files and the memory reserved for its writer are given back by the first of its ends.
- A reader that has begun keeps what it has mapped: its data stays whole when the files are unlinked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from penstock.buffer.view import DataListener
from penstock.environment.partitions.file_view import FileView, LocalFileView, ServedFileView
from penstock.environment.partitions.producers import Producers
from penstock.environment.reading.file_reads import FileReads
from penstock.errors import PenstockError, ProtocolError
from penstock.partition.answers import check_range, describe, end_error
from penstock.partition.endings import Endings
from penstock.partition.file_input import FileOrigin
from penstock.partition.lifecycle import PartitionEvent, PartitionLifecycle, PartitionState
from penstock.partition.stored import StoredRows
from penstock.shuffle import EndOfPartition, PartitionId
from penstock.shuffle.sums import sum_of

READABLE = (PartitionState.FINISHED, PartitionState.CONSUMED)

V = TypeVar("V", LocalFileView, ServedFileView)


@dataclass(frozen=True, slots=True)
class Home:
    """The parts around partitions of files: who is told of them, who reads them, and the removal of files."""

    producers: Producers
    reads: FileReads
    remove: Callable[[Path], None]


class BlockingPartition(Endings):
    """One blocking partition; a `ReadablePartition` of the registry."""

    def __init__(self, partition: PartitionId, subpartitions: int, folder: Path, home: Home) -> None:
        self.partition_id = partition
        self.subpartitions = subpartitions
        self.folder = folder
        self.cause = ""
        self._home = home
        self._ends: tuple[EndOfPartition, ...] = ()
        self._views: dict[FileView, None] = {}
        self._unread = set(range(subpartitions))
        self._give_back: Callable[[], None] | None = None
        self._lifecycle = PartitionLifecycle(partition)

    @property
    def state(self) -> PartitionState:
        """The state of its life."""
        return self._lifecycle.state

    @property
    def is_readable(self) -> bool:
        """True if its data can be read now."""
        return self.state in READABLE

    @property
    def stored_bytes(self) -> int:
        """The bytes of its rows; 0 until it is finished."""
        return sum(end.bytes for end in self._ends)

    def reserve(self, give_back: Callable[[], None]) -> None:
        """Hold something for the writer; it is given back when the writing ends, or has ended."""
        if self.state.is_end:
            give_back()
        else:
            self._give_back = give_back

    def begin(self) -> None:
        """The producer may write; raises the answer that fits where the partition has ended meanwhile."""
        if self.state.is_end:
            raise end_error(self.partition_id, self.state, self.cause, self._home.producers.host)
        self._lifecycle.move(PartitionEvent.WRITE)

    def finish(self, ends: Sequence[EndOfPartition]) -> None:
        """The producer has closed the files; raises ProtocolError where its figures are not one a subpartition."""
        if len(ends) != self.subpartitions:
            raise ProtocolError(f"{self.partition_id}: {len(ends)} ends of {self.subpartitions} subpartitions")
        self._lifecycle.move(PartitionEvent.FINISH)
        self._ends = tuple(ends)
        self._end_writing()
        for view in list(self._views):
            self._start(view)

    def create_view(self, subpartition: int, listener: DataListener, count: int = 1) -> ServedFileView:
        """A view for a reader on another host; any number of them. It has something when the files are finished."""
        check_range(self.partition_id, subpartition, count, self.subpartitions)
        return self._opened(ServedFileView(self, subpartition, count, self._home.reads, listener))

    def create_local_view(self, subpartition: int, count: int, listener: DataListener) -> LocalFileView:
        """A view for a reader on this host: it tells the files once they are finished."""
        check_range(self.partition_id, subpartition, count, self.subpartitions)
        return self._opened(LocalFileView(self, subpartition, count, listener))

    def leave(self, view: FileView) -> None:
        """A view is closed; `was_read` says whether its reader has everything."""
        self._views.pop(view, None)
        if view.was_read and self.is_readable:
            self._unread.difference_update(range(view.first, view.first + view.count))
            if not self._unread:
                self._lifecycle.move(PartitionEvent.CONSUME)

    def end(self, event: PartitionEvent, cause: BaseException | str) -> None:
        """End it: readers that wait are told why, the files go; nothing happens when it has ended before."""
        if self.state.is_end:
            return
        unfinished = not self.is_readable
        state = self._lifecycle.move(event)
        self.cause = describe(cause)
        views, self._views = self._views, {}
        for view in views:
            if unfinished:
                view.fail(end_error(self.partition_id, state, self.cause, self._home.producers.host))
        self._home.producers.registry.bury(self.partition_id)
        self._end_writing()
        self._home.remove(self.folder)

    def lost(self, cause: str) -> PenstockError:
        """A reader found that a file is gone: what it is told. Of a partition that has ended that is its end."""
        self._home.producers.registry.lose([self.partition_id], cause)
        return end_error(self.partition_id, self.state, self.cause, self._home.producers.host)

    def _end_writing(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def _opened(self, view: V) -> V:
        self._views[view] = None
        if self.is_readable:
            self._start(view)
        return view

    def _start(self, view: FileView) -> None:
        origin = FileOrigin(self.partition_id, self._home.producers.host)
        stored = StoredRows(str(self.folder), origin, (), view.first, view.count)
        view.start(stored, sum_of(self._ends[view.first : view.first + view.count]))
