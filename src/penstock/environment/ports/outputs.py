# SPDX-License-Identifier: Apache-2.0
"""A task's pipelined partition on the environment's side: grants segments, takes slices, ends with the task.

With few subpartitions each has a segment of its own open at the writer. With more than the memory allows the writer
*packs*: all share one open segment, so it is guaranteed two segments, however many subpartitions there are. Which of
the two is decided here, once. Cost: a segment is free again when all have read what is in it.

A writer that has nothing to write holds no more than what it is guaranteed and a few segments ahead of need: else the
first writers would take what those that come later, perhaps the ones they wait for, are guaranteed.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.buffer import BufferSlice, DataType, Holdings
from penstock.buffer.local_pool import LocalPoolStatistics
from penstock.environment.memory import Allowance, HostMemory, packs
from penstock.environment.partitions.producers import Producers
from penstock.environment.task_frames import TaskFrames
from penstock.errors import ProtocolError
from penstock.link.calls import STREAM_BUILDERS, OpenWriter
from penstock.link.frames import ALL, CONTINUES, FINISHED, LENGTH
from penstock.partition.result_partition import PartitionCallbacks, PipelinedPartition
from penstock.settings import NetworkSettings

AHEAD = 8
"""Segments that are granted ahead of need at most."""


@dataclass(frozen=True, slots=True)
class PipelinedPartitions:
    """The parts that all pipelined partitions use."""

    producers: Producers
    memory: HostMemory
    ahead: Allowance
    network: NetworkSettings


class WriterPort:
    """One pipelined partition that a task is writing."""

    def __init__(
        self, partitions: PipelinedPartitions, to_task: TaskFrames, holdings: Holdings, request: OpenWriter
    ) -> None:
        network, producers = partitions.network, partitions.producers
        own = 1 if request.broadcast else request.subpartitions
        self.is_packed = not request.streams and packs(partitions.memory.pool, own)
        builders = 1 if self.is_packed else min(own, STREAM_BUILDERS) if request.streams else own
        self.port = request.port
        self._references = references = partitions.memory.references
        self._allowance = partitions.ahead
        self._to_task = to_task
        self._holdings = holdings
        self.leased = 0
        """Slices that a barrier has overtaken, and of which the task makes its copy."""
        self._granted: set[int] = set()
        self._open = True
        self._pool = partitions.memory.pool.create_local_pool(
            builders + 1,
            own * network.exclusive_buffers_per_channel + network.floating_buffers_per_gate,
            network.overdraft_buffers_per_gate,
            owner=f"the writer of partition {request.partition}",
        )
        self.partition = PipelinedPartition(
            request.partition,
            request.subpartitions,
            PartitionCallbacks(
                on_recycle=lambda piece: references.release(piece.segment),
                on_consumable=lambda: producers.announce(request.partition),
                on_end=lambda _: producers.registry.bury(request.partition),
                held=lambda: self._pool.requested,
            ),
            producers.host,
        )
        try:
            producers.registry.register(self.partition)
        except BaseException:
            self._pool.lazy_destroy()
            raise
        self._ahead = self._allowance.grant(min(AHEAD, self._pool.limits.maximum - self._pool.limits.required))
        self._refill()

    @property
    def pool(self) -> LocalPoolStatistics:
        """Its buffers."""
        return self._pool.statistics()

    @property
    def queued(self) -> int:
        """Buffers that are written and not free again."""
        return self._pool.requested - len(self._granted)

    def take_slice(self, target: int, segment: int, offset: int, marked: int) -> None:
        """The task ships a slice; raises ProtocolError for one it may not ship."""
        length = marked & LENGTH
        piece = BufferSlice(segment, offset, length, marked >= FINISHED, bool(marked & CONTINUES))
        readers = self.partition.subpartitions if target == ALL else 1
        if piece.finished:
            self._granted.discard(segment)  # before it may come back, and be granted again
        self._holdings.commit(piece, readers)
        if piece.finished:
            self._refill()
        if not length:
            return
        if self.partition.state.is_end:
            for _ in range(readers):
                self._references.release(segment)
        elif target == ALL:
            self.partition.broadcast(piece)
        else:
            try:
                self.partition.add(target, piece)
            except ProtocolError:
                self._references.release(segment)
                raise

    def take_event(self, target: int, data_type: int, payload: bytes) -> None:
        """The task sends an event."""
        if data_type == DataType.OVERTAKING_BARRIER:
            self._overtake(target, payload)
            return
        if self.partition.state.is_end:
            return
        if target == ALL:
            self.partition.broadcast_event(payload, data_type)
        else:
            self.partition.add_event(target, payload, data_type)

    def recycle(self, segments: tuple[int, ...]) -> None:
        """The task has copied slices that a barrier overtook; raises ProtocolError for what it had not leased."""
        for segment in segments:
            self._holdings.recycle(segment)
            self.leased -= 1

    def _overtake(self, target: int, payload: bytes) -> None:
        """A barrier passes the data of a subpartition: that is leased to the task, which saves a copy of it."""
        overtaken = [] if self.partition.state.is_end else self.partition.overtake(target, payload)
        for piece in overtaken:
            self._references.add(piece.segment)
            self._holdings.deliver(piece.segment)
            self.leased += 1
            self._to_task.deliver((self.port, target, piece.segment, piece.offset, piece.length))
        self._to_task.event(self.port, DataType.OVERTAKING_BARRIER, target, payload)

    def overdraw(self) -> None:
        """The task is in the middle of a batch and out of segments: one more, if the overdraft allows it."""
        segment = self._pool.request_overdraft() if self._open else None
        if segment is not None:
            self._grant(segment)

    def finish(self) -> None:
        """The partition is complete; what the writer holds goes back, the data stays."""
        if not self.partition.state.is_end:
            self.partition.finish()
        self._close()

    def fail(self, cause: str) -> None:
        """The producer gives up: readers are told."""
        self.partition.fail(cause)
        self._close()

    def _close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._allowance.take_back(self._ahead)
        self._pool.lazy_destroy()
        granted, self._granted = self._granted, set()
        for segment in granted:
            self._holdings.give_back(segment)
        self.partition.close_producer()

    @property
    def _has_enough(self) -> bool:
        return len(self._granted) >= self._pool.limits.required + self._ahead

    def _refill(self) -> None:
        while self._open and not self._has_enough and not self._pool.has_listeners:
            segment = self._pool.request()
            if segment is not None:
                self._grant(segment)
            elif self._pool.add_listener(self._on_segment):
                return

    def _on_segment(self, segment: int | None) -> bool:
        if segment is None or not self._open:
            return False
        self._grant(segment)
        if not self._has_enough:
            self._pool.add_listener(self._on_segment)
        return True

    def _grant(self, segment: int) -> None:
        self._holdings.grant(segment, self._pool)
        self._granted.add(segment)
        self._to_task.grant(self.port, segment)
