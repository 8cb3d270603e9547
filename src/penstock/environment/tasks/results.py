# SPDX-License-Identifier: Apache-2.0
"""The partitions of this host whose tasks store everything: what their writers may use, and their ends.

A task asks for a partition (`open`), writes its files itself and says when they are complete (`finish`). A partition
is registered before its writer is given memory, so a reader that waits sees that its producer is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.environment.partitions.sort_buffers import SortBuffers
from penstock.environment.partitions.stored import StoredPartitions, StoredResult
from penstock.environment.tasks.attached import AttachedTask
from penstock.errors import PenstockError, ProtocolError
from penstock.link.calls import OpenFiles
from penstock.partition.registry import PartitionRegistry
from penstock.shuffle import EndOfPartition, PartitionId, PartitionKind


class ResultFiles:
    """All of them."""

    def __init__(self, partitions: StoredPartitions, buffers: SortBuffers) -> None:
        self._partitions = partitions
        self._registry: PartitionRegistry = partitions.producers.registry
        self._loop = asyncio.get_running_loop()
        self._folders = partitions.storage.folders
        self._buffers = buffers
        self._written: dict[PartitionId, StoredResult] = {}

    async def open(self, task: AttachedTask, request: OpenFiles) -> tuple[str, int]:
        """A new partition: the folder of its files, and the bytes its writer may collect.

        Raises ProtocolError, StaleError, InsufficientBuffersError, or PenstockError where no directory can be used.
        """
        partition = request.partition
        result = self._partitions.register(partition, request.subpartitions, PartitionKind.BLOCKING_SORT_MERGE)
        task.results.add(partition)
        try:
            folder = await result.make_folder()
            granted = await self._reserve(task, request, result)
            if task.is_gone:
                raise PenstockError(f"the task of partition {partition} has ended before it could write")
            result.begin()
        except BaseException as error:
            task.results.discard(partition)
            self._registry.fail(partition, error)
            raise
        self._written[partition] = result
        return folder, granted

    def finish(self, partition: PartitionId, ends: Sequence[EndOfPartition]) -> None:
        """The files are complete."""
        result = self._written.pop(partition, None)
        self._registry.find(partition)
        if result is None:
            raise ProtocolError(f"partition {partition} is not being written in files")
        result.finish_indexed(ends)

    def fail(self, partition: PartitionId, cause: str, *, is_storage: bool = False) -> None:
        """The producer gave up; `is_storage`: because its files took no more."""
        result = self._written.pop(partition, None)
        if result is not None and is_storage:
            result.note_storage_failure()
        self._registry.fail(partition, cause)

    async def have_room(self) -> bool:
        """Tell whether a partition that could not be stored may be in another directory."""
        return await self._loop.run_in_executor(None, self._folders.have_room)

    def missing(self, partition: PartitionId, cause: str) -> PenstockError:
        """A reader on this host found a file gone: what it is told."""
        return self._registry.find(partition).lost(cause)

    async def _reserve(self, task: AttachedTask, request: OpenFiles, result: StoredResult) -> int:
        if not request.buffer:
            return 0
        buffer = await self._buffers.reserve(
            request.buffer,
            f"the writer of partition {request.partition}",
            lambda: task.state.is_stopped or result.state.is_end,
        )
        result.reserve(buffer.give_back)
        return buffer.bytes
