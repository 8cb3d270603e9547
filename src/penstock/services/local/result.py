# SPDX-License-Identifier: Apache-2.0
"""Blocking partitions of the `local` service: files that the task itself writes, one for all rows or many.

The environment process knows the files and owns their life; the bytes pass through it only on their way to a reader
on another host. A reader on this host is told the folder. If rows are sorted into one file, the task collects
them in memory that the environment has granted it out of the network memory's budget.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.link.calls import FailFiles, FinishFiles, OpenFiles
from penstock.partition.file_output import FileOptions
from penstock.partition.hash_writer import HashWriter
from penstock.partition.region_rows import Split
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.shuffle import OwnerContext, PartitionDescriptor, PartitionId, PartitionKind, ResultPartitionDescriptor
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
        self._files: HashWriter | SortMergeWriter | None = None
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
        is_sorted = sorts(self._descriptor.partition, settings.hash_max_subpartitions)
        wanted = settings.sort_buffer if is_sorted else 0
        opened = self._host.ask(OpenFiles(self._owner.attempt, self.partition, self.subpartitions, wanted))
        self._lifecycle.move(WriterEvent.SET_UP)
        # Files for each subpartition need no memory of their own, but larger batches mean fewer and longer writes.
        buffer = opened.buffer if is_sorted else settings.sort_buffer
        options = FileOptions(settings.compression, buffer, settings.reserve)
        made = SortMergeWriter if is_sorted else HashWriter
        schema, folder = self._descriptor.schema, Path(opened.folder)
        self._files = self._guarded(lambda: made(folder, schema, self.partition, self.subpartitions, options))

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

    def _writable(self) -> HashWriter | SortMergeWriter:
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


def sorts(partition: PartitionDescriptor, hash_max: int) -> bool:
    """Tell whether rows are sorted into one file: where that kind was asked for and it pays.

    It pays with more than `hash_max` subpartitions, and for what is broadcast to several: that is stored once.
    """
    pays = partition.subpartitions > (1 if partition.broadcast else hash_max)
    return partition.kind is PartitionKind.BLOCKING_SORT_MERGE and pays
