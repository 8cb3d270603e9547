# SPDX-License-Identifier: Apache-2.0
"""Blocking partitions of the `local` service: files that the task itself writes, one for all rows or many.

The environment process knows the files and owns their life; the bytes pass through it only on their way to a reader
on another host. A reader on this host is told the folder. If rows are sorted into one file, the task collects them in
memory that the environment has granted it out of the network memory's budget.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from penstock.errors import PenstockError, ProtocolError, StorageError, TaskCancelledError
from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.link.calls import FailWriter, FinishWriter, OpenWriter
from penstock.partition.file_output import FileOptions
from penstock.partition.hash_writer import HashWriter
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.services.file_rows import FileRows
from penstock.settings import BlockingSettings
from penstock.shuffle import (
    EndOfData,
    Event,
    EventKind,
    Intake,
    OwnerContext,
    PartitionDescriptor,
    PartitionEnd,
    PartitionKind,
    ResultPartitionDescriptor,
    TaskHost,
)
from penstock.shuffle.splits import Split

T = TypeVar("T")


class BlockingPartitionWriter:
    """A `ResultPartitionWriter` of a blocking partition. An offer that fails fails the partition, files and all."""

    has_pending = False

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
        self._partition = descriptor.shuffle.partition
        self._settings = settings
        self._metrics = owner.metrics
        self._files: HashWriter | SortMergeWriter | None = None
        self._rows = FileRows(descriptor)
        self._lifecycle = WriterLifecycle(f"writer of partition {descriptor.shuffle.partition}")

    def setup(self) -> Intake:
        """Register the partition and open its files; raises InsufficientBuffersError where memory is short."""
        settings = self._settings
        partition = self._descriptor.partition
        is_sorted = sorts(partition, settings.hash_max_subpartitions)
        count, wanted = partition.subpartitions, settings.sort_buffer if is_sorted else 0
        opened = self._host.ask(
            OpenWriter(
                0, self._owner.attempt, self._partition, count, partition.broadcast, partition.kind, buffer=wanted
            )
        )
        self._lifecycle.move(WriterEvent.SET_UP)
        # Files for each subpartition need no memory of their own, but larger batches mean fewer and longer writes.
        buffer = opened.buffer if is_sorted else settings.sort_buffer
        options = FileOptions(settings.compression, buffer, settings.reserve)
        made = SortMergeWriter if is_sorted else HashWriter
        schema, folder = self._descriptor.schema, Path(opened.folder)
        self._files = self._guarded(lambda: made(folder, schema, self._partition, count, options))
        return self._rows.intake(self._writable())

    def offer(self, split: Split) -> int:
        """Append all rows; PenstockError, and the partition has failed, when they can't be stored."""
        files = self._writable()
        self._guarded(lambda: self._rows.append(files, split))
        return split.rows

    def emit(self, event: Event, kind: EventKind = EventKind.IN_ORDER) -> None:
        """Refuse all but the end of the data, which needs no word: raises ProtocolError."""
        if not isinstance(event, EndOfData):
            raise ProtocolError(f"{self._partition}: a {type(event).__name__} has no place in a blocking partition")

    def end_epoch(self, payload: bytes, kind: EventKind, *, keep_overtaken: bool = False) -> None:
        """Raise ProtocolError."""
        raise ProtocolError(f"{self._partition}: a blocking partition has no epochs")

    def overtaken(self) -> None:
        """Nothing is overtaken."""

    def flush(self) -> None:
        """Do nothing: a blocking partition is visible when it is finished."""

    def finish(self) -> PartitionEnd:
        """Close the files and make them readable."""
        files = self._writable()
        ends = self._guarded(files.finish)
        self._lifecycle.move(WriterEvent.FINISH)
        end = PartitionEnd(ends)
        # Counted once, at the end: asking each small batch for its bytes costs as much as writing it.
        self._metrics.add("rows_out", sum(each.rows for each in ends))
        self._metrics.add("bytes_out", sum(end.sizes))
        self._metrics.add("bytes_stored", files.bytes_on_disk)
        self._host.ask(FinishWriter(self._partition, ends))
        return end

    def close(self, cause: BaseException | None = None) -> None:
        """Give up what was not finished, files and all; idempotent."""
        self._fail(cause or TaskCancelledError("the writer was closed before it was finished"))
        self._files = None

    def _fail(self, cause: BaseException) -> None:
        if self._lifecycle.state is not WriterState.WRITING:
            return
        self._lifecycle.move(WriterEvent.FAIL)
        if self._files is not None:
            self._files.abort()
        is_storage = isinstance(cause, StorageError)
        self._host.hand_in(FailWriter(self._partition, f"{type(cause).__name__}: {cause}", is_storage))

    def _writable(self) -> HashWriter | SortMergeWriter:
        if self._lifecycle.state is not WriterState.WRITING or self._files is None:
            raise PenstockError(f"{self._partition}: written to while {self._lifecycle.state.value}")
        self._host.check_cancelled()
        return self._files

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (PenstockError, OSError) as error:
            self._fail(error)
            raise


def sorts(partition: PartitionDescriptor, hash_max: int) -> bool:
    """Tell whether rows are sorted into one file: where that kind was asked for and it pays.

    It pays with more than `hash_max` subpartitions, and for what is broadcast to several: that is stored once.
    """
    pays = partition.subpartitions > (1 if partition.broadcast else hash_max)
    return partition.kind is PartitionKind.BLOCKING_SORT_MERGE and pays
