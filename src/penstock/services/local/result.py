# SPDX-License-Identifier: Apache-2.0
"""Blocking partitions of the `local` service: files that the task itself writes, one for all rows or many.

The environment process knows the files and owns their life; the bytes pass through it only on their way to a reader
on another host. A reader on this host is told the folder. If rows are sorted into one file, the task collects them in
memory that the environment has granted it out of the network memory's budget.
"""

from __future__ import annotations

from pathlib import Path

from penstock.errors import StorageError
from penstock.link.calls import FailWriter, FinishWriter, OpenWriter
from penstock.partition.file_output import FileOptions
from penstock.partition.hash_writer import HashWriter
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.plugin.writer import RowStore
from penstock.settings import BlockingSettings
from penstock.shuffle import (
    AttemptId,
    EndOfPartition,
    PartitionDescriptor,
    PartitionKind,
    ResultPartitionDescriptor,
    TaskHost,
)


class LocalFiles(RowStore):
    """The store of one partition, in a folder of this host's environment."""

    def __init__(
        self,
        host: TaskHost,
        attempt: AttemptId,
        descriptor: ResultPartitionDescriptor,
        settings: BlockingSettings,
    ) -> None:
        self._host = host
        self._attempt = attempt
        self._descriptor = descriptor
        self._partition = descriptor.shuffle.partition
        self._settings = settings
        self._is_sorted = sorts(descriptor.partition, settings.hash_max_subpartitions)
        self._folder = Path()
        self._buffer = 0
        self._files: HashWriter | SortMergeWriter | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of what is finished."""
        return 0 if self._files is None else self._files.bytes_on_disk

    def register(self) -> None:
        """Tell the environment; raises InsufficientBuffersError where memory is short."""
        settings, partition = self._settings, self._descriptor.partition
        opened = self._host.ask(
            OpenWriter(
                0,
                self._attempt,
                self._partition,
                partition.subpartitions,
                partition.broadcast,
                partition.kind,
                buffer=settings.sort_buffer if self._is_sorted else 0,
            )
        )
        self._folder = Path(opened.folder)
        # Files for each subpartition need no memory of their own, but larger batches mean fewer and longer writes.
        self._buffer = opened.buffer if self._is_sorted else settings.sort_buffer

    def open(self) -> HashWriter | SortMergeWriter:
        """Begin one file for all subpartitions, or one for each."""
        options = FileOptions(self._settings.compression, self._buffer, self._settings.reserve)
        made = SortMergeWriter if self._is_sorted else HashWriter
        count, schema = self._descriptor.partition.subpartitions, self._descriptor.schema
        self._files = made(self._folder, schema, self._partition, count, options)
        return self._files

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Complete the files."""
        assert self._files is not None  # noqa: S101 - what has not begun is not finished
        return self._files.finish()

    def publish(self, ends: tuple[EndOfPartition, ...]) -> None:
        """Tell the environment, which lets readers in."""
        self._host.ask(FinishWriter(self._partition, ends))

    def abort(self, cause: BaseException) -> None:
        """Remove the files, and tell the environment, which tells readers."""
        if self._files is not None:
            self._files.abort()
        is_storage = isinstance(cause, StorageError)
        self._host.hand_in(FailWriter(self._partition, f"{type(cause).__name__}: {cause}", is_storage))


def sorts(partition: PartitionDescriptor, hash_max: int) -> bool:
    """Tell whether rows are sorted into one file: where that kind was asked for and it pays.

    It pays with more than `hash_max` subpartitions, and for what is broadcast to several: that is stored once.
    """
    pays = partition.subpartitions > (1 if partition.broadcast else hash_max)
    return partition.kind is PartitionKind.BLOCKING_SORT_MERGE and pays
