# SPDX-License-Identifier: Apache-2.0
"""The writer of a partition that is one object: blocks as they are made, then an index."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING
from urllib.parse import quote

from penstock.errors import PenstockError, StorageError, TaskCancelledError
from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.partition.file_output import FileOptions
from penstock.partition.region_writer import RegionWriter
from penstock.remote.blocks import HEAD
from penstock.services.file_rows import FileRows
from penstock.services.file_writer import RowsAlone
from penstock.services.objects.places import DATA, FAILED, INDEX, OPEN, BlockPlace, ObjectFolder, PartitionIndex
from penstock.services.remote.block_sink import BlockSink
from penstock.services.remote.push_queue import PushedBlock
from penstock.settings import BlockingSettings
from penstock.shuffle import (
    Intake,
    OwnerContext,
    PartitionEnd,
    ResultPartitionDescriptor,
    TaskHost,
)
from penstock.shuffle.splits import Split

if TYPE_CHECKING:
    from pyarrow import NativeFile


class ObjectWriter(RowsAlone):
    """A `ResultPartitionWriter`: a store has always room, or fails the partition."""

    has_pending = False

    def __init__(
        self,
        host: TaskHost,
        owner: OwnerContext,
        descriptor: ResultPartitionDescriptor,
        settings: BlockingSettings,
        folder: ObjectFolder,
    ) -> None:
        super().__init__(descriptor.shuffle.partition)
        self._host = host
        self._metrics = owner.metrics
        self._folder = folder
        self._place = folder.place(self._partition)
        self._rows = FileRows(descriptor)
        wanted = descriptor.partition
        self._sink = BlockSink(secrets.randbits(63), wanted.subpartitions, self._give, is_broadcast=wanted.broadcast)
        self._files = 1 if wanted.broadcast else wanted.subpartitions
        options = FileOptions(settings.compression, settings.sort_buffer)
        name = f"partition {self._partition}"
        self._regions = RegionWriter(self._sink, name, descriptor.schema, wanted.subpartitions, options)
        self._stream: NativeFile | None = None
        self._blocks: list[BlockPlace] = []
        self._offset = 0
        self._lifecycle = WriterLifecycle(f"writer of {name}")

    def setup(self) -> Intake:
        """Say on which host it is written, and begin; StorageError where the store takes nothing."""
        self._folder.write(f"{self._place}/{OPEN}{quote(self._host.environment, safe='')}")
        try:
            self._stream = self._folder.filesystem.open_output_stream(f"{self._place}/{DATA}")
        except OSError as error:
            raise StorageError(f"{self._place} can't be written: {error}") from error
        self._lifecycle.move(WriterEvent.SET_UP)
        return self._rows.intake(self._regions)

    def offer(self, split: Split) -> int:
        """Take all rows; PenstockError, and the partition has failed, when they can't be stored."""
        self._writable()
        try:
            self._rows.append(self._regions, split)
        except (PenstockError, OSError) as error:
            self._fail(error)
            raise
        return split.rows

    def finish(self) -> PartitionEnd:
        """Write what is held, and the index."""
        self._writable()
        try:
            ends = self._regions.finish()
            self._close_stream()
            index = PartitionIndex(tuple(self._blocks), ends[: self._files])
            self._folder.write(f"{self._place}/{INDEX}", index.packed())
        except (PenstockError, OSError) as error:
            self._fail(error)
            raise
        self._lifecycle.move(WriterEvent.FINISH)
        end = PartitionEnd(ends)
        self._metrics.add("rows_out", sum(each.rows for each in ends))
        self._metrics.add("bytes_out", sum(end.sizes))
        self._metrics.add("bytes_stored", self._offset)
        return end

    def close(self, cause: BaseException | None = None) -> None:
        """Give up what was not finished; idempotent."""
        self._fail(cause or TaskCancelledError("the writer was closed before it was finished"))
        self._lifecycle.move(WriterEvent.CLOSE)

    def _fail(self, cause: BaseException) -> None:
        if self._lifecycle.state is not WriterState.WRITING:
            return
        self._lifecycle.move(WriterEvent.FAIL)
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
                self._blocks.append(BlockPlace(block.file, size, self._offset))
                self._offset += size
        except OSError as error:
            raise StorageError(f"{self._place} can't be written: {error}") from error

    def _writable(self) -> None:
        self._host.check_cancelled()
        if self._lifecycle.state is not WriterState.WRITING:
            raise PenstockError(f"{self._partition}: written to while {self._lifecycle.state.value}")
