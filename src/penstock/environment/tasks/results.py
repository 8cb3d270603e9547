# SPDX-License-Identifier: Apache-2.0
"""The blocking partitions of this host: where their files go, what their writers may use, and their ends.

A task asks for a partition (`open`), writes its files itself and says when they are complete (`finish`). A partition
is registered before its writer is given memory, so a reader that waits sees that its producer is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from penstock.environment.partitions.blocking import BlockingPartition, Home
from penstock.environment.partitions.folders import Folders, remove_folder
from penstock.environment.partitions.hybrid import HybridResult
from penstock.environment.partitions.sort_buffers import SortBuffers
from penstock.environment.tasks.attached import AttachedTask
from penstock.errors import PartitionNotProducedError, PenstockError, ProtocolError
from penstock.link.calls import OpenFiles
from penstock.shuffle import EndOfPartition, PartitionId


class ResultFiles:
    """All blocking partitions of an environment."""

    def __init__(self, home: Home, buffers: SortBuffers, folders: Folders) -> None:
        self._home = home
        self._registry = home.producers.registry
        self._loop = asyncio.get_running_loop()
        self._folders = folders
        self._buffers = buffers

    async def open(self, task: AttachedTask, request: OpenFiles) -> tuple[Path, int]:
        """A new partition: the folder of its files, and the bytes its writer may collect.

        Raises ProtocolError, StaleError, InsufficientBuffersError, or PenstockError where no directory can be used.
        """
        partition = request.partition
        folder = await self._loop.run_in_executor(None, self._folders.make, partition)
        result = BlockingPartition(partition, request.subpartitions, folder, self._home)
        try:
            self._registry.register(result)
        except BaseException:
            self._home.remove(folder)
            raise
        task.results.add(partition)
        try:
            granted = await self._reserve(task, request, result)
            if task.is_gone:
                raise PenstockError(f"the task of partition {partition} has ended before it could write")
            result.begin()
        except BaseException as error:
            task.results.discard(partition)
            self._registry.fail(partition, error)
            raise
        return folder, granted

    def finish(self, partition: PartitionId, ends: Sequence[EndOfPartition]) -> None:
        """The files are complete."""
        self._get(partition).finish(ends)

    def fail(self, partition: PartitionId, cause: str, *, is_storage: bool = False) -> None:
        """The producer gave up; `is_storage`: because its files took no more."""
        if is_storage:
            self._folders.note_failure(self._get(partition).folder)
        self._registry.fail(partition, cause)

    async def have_room(self) -> bool:
        """Tell whether a partition that could not be stored may be in another directory."""
        return await self._loop.run_in_executor(None, self._folders.have_room)

    def missing(self, partition: PartitionId, cause: str) -> PenstockError:
        """A reader on this host found a file gone: what it is told."""
        found = self._registry.get(partition)
        return found.lost(cause) if isinstance(found, HybridResult) else self._get(partition).lost(cause)

    async def _reserve(self, task: AttachedTask, request: OpenFiles, result: BlockingPartition) -> int:
        if not request.buffer:
            return 0
        buffer = await self._buffers.reserve(
            request.buffer,
            f"the writer of partition {request.partition}",
            lambda: task.state.is_stopped or result.state.is_end,
        )
        result.reserve(buffer.give_back)
        return buffer.bytes

    def _get(self, partition: PartitionId) -> BlockingPartition:
        found = self._registry.get(partition)
        if isinstance(found, BlockingPartition):
            return found
        if found is not None:
            raise ProtocolError(f"partition {partition} has no files")
        answer, host = self._registry.answer(partition), self._home.producers.host
        raise answer or PartitionNotProducedError(f"partition {partition} is not known on {host}")


def remove_files(folder: Path) -> None:
    """Remove a partition's files and their folder, in a thread."""
    asyncio.get_running_loop().run_in_executor(None, remove_folder, folder)
