# SPDX-License-Identifier: Apache-2.0
"""Blocking partitions of the `local` service: files that the task itself writes, in one of two layouts.

The environment process knows the files and owns their life; the bytes pass through it only on their way to a reader
on another host. A reader on this host is told the files. If a partition is laid out by sort-merge, the task collects
rows in memory that the environment has granted it out of the network memory's budget.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.link.calls import FailFiles, FinishFiles, OpenFiles
from penstock.partition.file_output import FileOptions
from penstock.partition.region_rows import Split
from penstock.partition.sort_merge_writer import SortMergePaths, SortMergeWriter
from penstock.partition.stored import Layout, layout_of
from penstock.services.local.hash_files import HashFiles
from penstock.shuffle import OwnerContext, PartitionId, ResultPartitionDescriptor
from penstock.shuffle.errors import PenstockError, StorageError, TaskCancelledError
from penstock.shuffle.host import TaskHost
from penstock.shuffle.service import fingerprint_of
from penstock.shuffle.settings import BlockingSettings

T = TypeVar("T")


class BlockingPartitionWriter:
    """A `ResultPartitionWriter` of a blocking partition. A write that fails fails the partition, files and all."""

    def __init__(
        self,
        host: TaskHost,
        owner: OwnerContext,
        descriptor: ResultPartitionDescriptor,
        settings: BlockingSettings,
    ) -> None:
        self._host = host
        self._owner = owner
        self._descriptor = descriptor
        self._settings = settings
        self._metrics = owner.metrics
        self._files: HashFiles | SortMergeWriter | None = None
        self._sizes: tuple[int, ...] = ()
        self._fingerprint = 0
        self._lifecycle = WriterLifecycle(f"writer of partition {descriptor.shuffle.partition}")

    @property
    def partition(self) -> PartitionId:
        """The identity of what is written."""
        return self._descriptor.shuffle.partition

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return self._descriptor.partition.subpartitions

    def setup(self) -> None:
        """Register the partition and open its files; raises InsufficientBuffersError where memory is short."""
        settings = self._settings
        layout = layout_of(self._descriptor.partition, settings.hash_max_subpartitions)
        count, buffer = self.subpartitions, settings.sort_buffer
        opened = self._host.ask(OpenFiles(self._owner.attempt, self.partition, count, layout.value, buffer))
        self._lifecycle.move(WriterEvent.SET_UP)
        paths = [Path(path) for path in opened.paths]
        # Files for each subpartition need no memory of their own, but larger batches mean fewer and longer writes.
        buffer = opened.buffer if layout is Layout.SORT_MERGE else buffer
        options = FileOptions(settings.compression, buffer, settings.reserve)
        self._guarded(lambda: self._begin(layout, paths, options))

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Append a batch to a subpartition; PenstockError, and the partition has failed, when it can't be stored."""
        files = self._writable()
        self._guarded(lambda: files.write(batch, subpartition))

    @property
    def gather_bytes(self) -> int:
        """The number of bytes that are best split at once."""
        return self._writable().gather_bytes

    @property
    def holds_batches(self) -> bool:
        """True if a batch's memory is looked at again when the call that brought it has returned."""
        return self._writable().holds_batches

    def write_split(self, split: Split) -> None:
        """Append what one split gives each subpartition; errors as of `write`."""
        files = self._writable()
        self._guarded(lambda: files.write_split(split))

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Append a batch to all subpartitions; a sort-merge partition stores it once. Errors as of `write`."""
        files = self._writable()
        self._guarded(lambda: files.broadcast(batch))

    def flush(self) -> None:
        """Do nothing: a blocking partition is visible when it is finished."""

    def is_available(self) -> bool:
        """Always: a file takes what it is given."""
        return True

    def finish(self) -> None:
        """Close the files and make them readable."""
        files = self._writable()
        ends = self._guarded(files.finish)
        self._lifecycle.move(WriterEvent.FINISH)
        self._sizes = tuple(end.bytes for end in ends)
        self._fingerprint = fingerprint_of(ends)
        # Counted once, at the end: asking each small batch for its bytes costs as much as writing it.
        self._metrics.add("rows_out", sum(end.rows for end in ends))
        self._metrics.add("bytes_out", sum(self._sizes))
        self._metrics.add("bytes_stored", files.bytes_on_disk)
        self._host.ask(FinishFiles(self.partition, ends))

    def fail(self, cause: BaseException) -> None:
        """Remove the files; readers get ProducerFailedError."""
        if self._lifecycle.state is not WriterState.WRITING:
            return
        self._lifecycle.move(WriterEvent.FAIL)
        if self._files is not None:
            self._files.abort()
        is_storage = isinstance(cause, StorageError)
        self._host.hand_in(FailFiles(self.partition, f"{type(cause).__name__}: {cause}", is_storage))

    def subpartition_bytes(self) -> tuple[int, ...]:
        """The payload bytes of each subpartition as stored; empty before `finish`."""
        return self._sizes

    def fingerprint(self) -> int:
        """A number that depends on what was written and on nothing else; 0 before `finish`."""
        return self._fingerprint

    def close(self) -> None:
        """Give up what was not finished; idempotent."""
        self.fail(TaskCancelledError("the writer was closed before it was finished"))
        self._files = None

    def _begin(self, layout: Layout, paths: list[Path], options: FileOptions) -> None:
        schema = self._descriptor.schema
        if layout is Layout.SORT_MERGE:
            where = SortMergePaths(*paths)
            self._files = SortMergeWriter(where, schema, self.partition, self.subpartitions, options)
        else:
            self._files = HashFiles(paths, schema, self.partition, options)

    def _writable(self) -> HashFiles | SortMergeWriter:
        if self._lifecycle.state is not WriterState.WRITING or self._files is None:
            raise PenstockError(f"{self.partition}: written to while {self._lifecycle.state.value}")
        self._host.check_cancelled()
        return self._files

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (PenstockError, OSError) as error:
            self.fail(error)
            raise
