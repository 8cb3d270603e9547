# SPDX-License-Identifier: Apache-2.0
"""The writer of a partition that is one object: blocks as they are made, then an index."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING
from urllib.parse import quote

from penstock.errors import PenstockError, StorageError
from penstock.partition.file_output import FileOptions
from penstock.partition.region_writer import RegionWriter
from penstock.plugin.writer import RowStore
from penstock.remote.blocks import HEAD
from penstock.services.objects.places import DATA, FAILED, INDEX, OPEN, BlockSpan, ObjectFolder, PartitionIndex
from penstock.services.remote.block_sink import BlockSink
from penstock.services.remote.push_queue import PushedBlock
from penstock.settings import BlockingSettings
from penstock.shuffle import EndOfPartition, ResultPartitionDescriptor, TaskHost

if TYPE_CHECKING:
    from pyarrow import NativeFile


class ObjectRows(RowStore):
    """The store of one partition: it has always room, or fails the partition."""

    def __init__(
        self, host: TaskHost, descriptor: ResultPartitionDescriptor, settings: BlockingSettings, folder: ObjectFolder
    ) -> None:
        self._host = host
        self._folder = folder
        self._place = folder.place(descriptor.shuffle.partition)
        wanted = descriptor.partition
        self._sink = BlockSink(secrets.randbits(63), wanted.subpartitions, self._give, is_broadcast=wanted.broadcast)
        self._files = 1 if wanted.broadcast else wanted.subpartitions
        options = FileOptions(settings.compression, settings.sort_buffer)
        name = f"partition {descriptor.shuffle.partition}"
        self._regions = RegionWriter(self._sink, name, descriptor.schema, wanted.subpartitions, options)
        self._stream: NativeFile | None = None
        self._blocks: list[BlockSpan] = []
        self._offset = 0

    @property
    def nbytes(self) -> int:
        """The bytes of its blocks."""
        return self._offset

    def register(self) -> None:
        """Say on which host it is written; StorageError where the store takes nothing."""
        self._folder.write(f"{self._place}/{OPEN}{quote(self._host.environment, safe='')}")

    def open(self) -> RegionWriter:
        """Begin; StorageError where the store takes nothing."""
        try:
            self._stream = self._folder.output(f"{self._place}/{DATA}")
        except OSError as error:
            raise StorageError(f"{self._place} can't be written: {error}") from error
        return self._regions

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Write what is held, and the index."""
        ends = self._regions.finish()
        self._close_stream()
        index = PartitionIndex(tuple(self._blocks), ends[: self._files])
        self._folder.write(f"{self._place}/{INDEX}", index.packed())
        return ends

    def abort(self, cause: BaseException) -> None:
        """Remove the rows, and leave the cause to readers."""
        self._regions.abort()
        text = f"{type(cause).__name__}: {cause}".encode()
        for step in (  # the rows first: a full store has room for the cause then
            self._close_stream,
            lambda: self._folder.remove(self._place, {DATA}),
            lambda: self._folder.write(f"{self._place}/{FAILED}", text),
        ):
            with contextlib.suppress(OSError, PenstockError):  # a store that is away: readers wait for their deadline
                step()

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _give(self, blocks: list[PushedBlock]) -> None:
        stream = self._stream
        if stream is None:
            return
        try:
            for block in blocks:
                for part in (block.head, *block.parts):
                    stream.write(part)
                size = HEAD.size + block.length
                self._blocks.append(BlockSpan(block.file, size, self._offset))
                self._offset += size
        except OSError as error:
            raise StorageError(f"{self._place} can't be written: {error}") from error
