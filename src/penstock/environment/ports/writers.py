# SPDX-License-Identifier: Apache-2.0
"""The opening of writers: a partition of the kind that is asked for, its supply, and the port of both.

A partition is registered before its writer is given memory to sort in, so a reader that waits sees that its producer
is there.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass

from penstock.environment.partitions.producers import Producers
from penstock.environment.partitions.sort_buffers import SortBuffers
from penstock.environment.partitions.stored import StoredPartitions
from penstock.environment.ports.grants import Grants
from penstock.environment.ports.storing_supply import StoringSupply
from penstock.environment.ports.waiting_supply import WaitingMemory, WaitingSupply
from penstock.environment.ports.whole_supply import WholeSupply
from penstock.environment.ports.writer_port import WriterPort
from penstock.environment.tasks.attached import AttachedTask
from penstock.errors import PenstockError
from penstock.link.calls import OpenWriter, WriterOpened
from penstock.partition.result_partition import PartitionCallbacks, PipelinedPartition


@dataclass(frozen=True, slots=True)
class Writers:
    """The parts that writers of all kinds use."""

    producers: Producers
    waiting: WaitingMemory
    stored: StoredPartitions
    buffers: SortBuffers

    def open(self, task: AttachedTask, request: OpenWriter) -> WriterOpened | Awaitable[WriterOpened]:
        """A writer of a new partition.

        Raises ProtocolError, StaleError, InsufficientBuffersError, or PenstockError where no directory can be used.
        """
        if not request.kind.pipelined:
            return self._open_whole(task, request)
        return self._open_storing(task, request) if request.kind.is_hybrid else self._open_waiting(task, request)

    def _open_waiting(self, task: AttachedTask, request: OpenWriter) -> WriterOpened:
        producers, references = self.producers, self.waiting.memory.references
        grants = self._grants(task, request)
        supply = WaitingSupply(self.waiting, grants, request)
        callbacks = PartitionCallbacks(
            on_recycle=lambda piece: references.release(piece.segment),
            on_consumable=lambda: producers.announce(request.partition),
            on_end=lambda _: producers.registry.bury(request.partition),
            held=lambda: supply.pool.requested,
        )
        partition = PipelinedPartition(
            request.partition,
            request.subpartitions,
            callbacks,
            producers.host,
            reattaches=request.kind.reattaches,
        )
        try:
            producers.registry.register(partition)
        except BaseException:
            supply.close()
            raise
        task.opened(request.partition, WriterPort(request.port, partition, supply, grants))
        supply.refill()
        return WriterOpened(supply.is_packed)

    def _open_storing(self, task: AttachedTask, request: OpenWriter) -> WriterOpened:
        grants = self._grants(task, request)
        supply = StoringSupply(self.stored.memory, self.stored.arbiter, grants, request)
        try:
            partition = self.stored.register(request.partition, request.subpartitions, request.kind)
        except BaseException:
            supply.close()
            raise
        task.opened(request.partition, WriterPort(request.port, partition, supply, grants))
        supply.serve(partition)
        supply.refill()
        return WriterOpened(supply.is_packed)

    async def _open_whole(self, task: AttachedTask, request: OpenWriter) -> WriterOpened:
        partition, supply = request.partition, WholeSupply()
        result = self.stored.register(partition, request.subpartitions, request.kind)
        task.opened(partition, WriterPort(0, result, supply, self._grants(task, request)))

        def is_unwanted() -> bool:
            return task.state.is_stopped or result.state.is_end

        try:
            folder = await result.make_folder()
            granted = await supply.reserve(
                self.buffers, request.buffer, f"the writer of partition {partition}", is_unwanted
            )
            if task.is_gone:
                raise PenstockError(f"the task of partition {partition} has ended before it could write")
            result.begin()
        except BaseException as error:
            task.take_writer(partition).fail(error)
            raise
        return WriterOpened(False, folder, granted)

    def _grants(self, task: AttachedTask, request: OpenWriter) -> Grants:
        return Grants(request.port, task.to_task, task.holdings, self.stored.memory.references)
