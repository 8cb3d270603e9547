# SPDX-License-Identifier: Apache-2.0
"""The blocking partitions of this host: where their files go, what their writers may use, and their ends.

A task asks for a partition (`open`), writes its files itself and says when they are complete (`finish`). A partition
is registered before its writer is given memory, so a reader that waits sees that its producer is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.environment.blocking import BlockingPartition, Home
from penstock.environment.folders import Folders, remove_folder
from penstock.environment.hybrid import HybridResult
from penstock.environment.reading import FileReads
from penstock.environment.sort_buffers import SortBuffers
from penstock.partition.stored import Layout, StoredFiles
from penstock.shuffle import EndOfPartition, PartitionId
from penstock.shuffle.errors import PartitionNotProducedError, PenstockError, ProtocolError

if TYPE_CHECKING:
    from penstock.environment.host import Host
    from penstock.environment.session import TaskSession


@dataclass(frozen=True, slots=True)
class FileRequest:
    """What a task asks for when it opens a blocking partition; `buffer` is what it would like to collect in."""

    partition: PartitionId
    subpartitions: int
    layout: Layout
    buffer: int


class ResultFiles:
    """All blocking partitions of one environment."""

    def __init__(self, host: Host) -> None:
        segment = host.memory.segment_size
        self.reads = FileReads(host.settings.blocking.read_memory, segment)
        self._host = host
        self._loop = asyncio.get_running_loop()
        self.folders = Folders(host.config.place, host.settings.blocking)
        self._buffers = SortBuffers(host.pool, segment)
        self._home = Home(host.environment, host.registry, self.reads, self._remove)

    async def open(self, session: TaskSession, request: FileRequest) -> tuple[StoredFiles, int]:
        """A new partition: its files' names, and the bytes its writer may collect.

        Raises ProtocolError, StaleError, InsufficientBuffersError, or PenstockError where no directory can be used.
        """
        partition = request.partition
        folder = await self._loop.run_in_executor(None, self.folders.make, partition)
        files = StoredFiles(request.layout, folder, request.subpartitions)
        result = BlockingPartition(partition, files, self._home)
        try:
            self._host.registry.register(result)
        except BaseException:
            self._remove(files)
            raise
        session.results.add(partition)
        try:
            granted = await self._reserve(session, request, result)
            if session.is_closed:
                raise PenstockError(f"the task of partition {partition} has ended before it could write")
            result.begin()
        except BaseException as error:
            session.results.discard(partition)
            self._host.registry.fail(partition, error)
            raise
        return files, granted

    def finish(self, partition: PartitionId, ends: Sequence[EndOfPartition]) -> None:
        """The files are complete."""
        self._get(partition).finish(ends)

    def fail(self, partition: PartitionId, cause: str) -> None:
        """The producer gave up."""
        self._host.registry.fail(partition, cause)

    def missing(self, partition: PartitionId, cause: str) -> PenstockError:
        """A reader on this host found a file gone: what it is told."""
        found = self._host.registry.get(partition)
        return found.lost(cause) if isinstance(found, HybridResult) else self._get(partition).lost(cause)

    async def close(self) -> None:
        """Wait for the reads under way; idempotent."""
        await self.reads.close()

    async def _reserve(self, session: TaskSession, request: FileRequest, result: BlockingPartition) -> int:
        if request.layout is not Layout.SORT_MERGE:
            return 0
        buffer = await self._buffers.reserve(
            request.buffer,
            f"the writer of partition {request.partition}",
            lambda: session.is_closed or session.is_cancelled or result.state.is_end,
        )
        result.reserve(buffer.give_back)
        return buffer.bytes

    def _get(self, partition: PartitionId) -> BlockingPartition:
        found = self._host.registry.get(partition)
        if isinstance(found, BlockingPartition):
            return found
        if found is not None:
            raise ProtocolError(f"partition {partition} has no files")
        answer = self._host.registry.answer(partition)
        raise answer or PartitionNotProducedError(f"partition {partition} is not known on {self._host.environment}")

    def _remove(self, files: StoredFiles) -> None:
        self._loop.run_in_executor(None, remove_folder, files.folder)
