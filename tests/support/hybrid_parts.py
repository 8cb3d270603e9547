# SPDX-License-Identifier: Apache-2.0
"""A hybrid partition with everything around it in memory: segments with bytes, a file of bytes, and readers.

The bytes are real: what is recycled too early is overwritten, and shows.
"""

from __future__ import annotations

from collections import deque

from penstock.buffer import BufferSlice, NetworkBufferPool, SegmentReferences
from penstock.partition.extents import BROADCAST, Extent
from penstock.partition.hybrid_cursor import HybridCursor, Next
from penstock.partition.hybrid_items import SpillOrder
from penstock.partition.hybrid_partition import HybridPartition, HybridRules
from penstock.partition.lifecycle import PartitionState
from penstock.shuffle import DatasetId, EndOfPartition, PartitionId
from penstock.shuffle.events import decode_event

ID = PartitionId(DatasetId("job", 1), 3, 17)
SIZE = 64
PIECE = 8
"""Bytes of the shortest slice; each is filled with a number of its own."""


class World:
    """One partition, its memory, its storage, and its writer, who packs all subpartitions into one segment."""

    def __init__(
        self, subpartitions: int = 2, segments: int = 8, limit: int | None = None, *, keeps: bool = True
    ) -> None:
        self.network = NetworkBufferPool(segments)
        self.pool = self.network.create_local_pool(segments, segments)
        self.references = SegmentReferences(segments, SIZE)
        self.writer = self.references.attach("writer")
        self.memory = [bytearray(SIZE) for _ in range(segments)]
        self.storage = bytearray()
        self.limit = segments - 2 if limit is None else limit
        self.log: list[str] = []
        self.orders: deque[SpillOrder] = deque()
        self.written: list[list[int]] = [[] for _ in range(subpartitions)]
        self.open: tuple[int, int] | None = None
        self.number = 0
        self.partition = HybridPartition(ID, subpartitions, HybridRules(keeps, SIZE), self, "host-a")

    def on_share(self, piece: BufferSlice) -> None:
        """One reference more."""
        self.references.add(piece.segment)

    def on_returned(self) -> None:
        """Nobody waits for that here."""

    def on_recycle(self, piece: BufferSlice) -> bool:
        """One reference less; a free segment is overwritten."""
        is_free = self.references.release(piece.segment)
        if is_free:
            self.memory[piece.segment][:] = b"\xff" * SIZE
        return is_free

    def on_spill(self, order: SpillOrder) -> None:
        """Keep the order until the test carries it out."""
        assert order.runs
        assert not self.orders, "two orders at once"
        self.orders.append(order)

    def on_stored(self) -> None:
        """Note it."""
        self.log.append("stored")

    def on_consumable(self) -> None:
        """Note it."""
        self.log.append("consumable")

    def on_end(self, state: PartitionState) -> None:
        """Note it."""
        self.log.append(state.value)

    def may_lend(self, lent: int) -> bool:
        """Up to the limit."""
        return lent < self.limit

    def write(self, subpartition: int | None, length: int = SIZE) -> bool:
        """Write a slice to a subpartition, or to all; False where there is no memory for it."""
        if self.open is None:
            segment = self.pool.request()
            if segment is None:
                self.partition.relieve(1)
                segment = self.pool.request()
            if segment is None:
                return False
            self.writer.grant(segment, self.pool)
            self.open = (segment, 0)
        segment, offset = self.open
        length = min(length, SIZE - offset)
        self.number += 1
        self.memory[segment][offset : offset + length] = self.number.to_bytes(PIECE, "little") * (length // PIECE)
        finished = offset + length == SIZE
        self.open = None if finished else (segment, offset + length)
        piece = BufferSlice(segment, offset, length, finished)
        self.writer.commit(piece, 1)
        if self.partition.state.is_end:
            self.on_recycle(piece)
        elif subpartition is None:
            for log in self.written:
                log.extend([self.number] * (length // PIECE))
            self.partition.broadcast(piece)
        else:
            self.written[subpartition] += [self.number] * (length // PIECE)
            self.partition.add(subpartition, piece)
        return True

    def store(self, subpartition: int | None, length: int = SIZE) -> None:
        """The writer stores by itself what it has no memory for."""
        self.number += 1
        begin = len(self.storage)
        self.storage += self.number.to_bytes(PIECE, "little") * (length // PIECE)
        for log in self.written if subpartition is None else [self.written[subpartition]]:
            log.extend([self.number] * (length // PIECE))
        if not self.partition.state.is_end:
            extent = Extent(1, begin, len(self.storage) - begin, 0)
            self.partition.add_stored(BROADCAST if subpartition is None else subpartition, extent)

    def finish(self) -> None:
        """The writer ends, and nobody asks for the partition's end for a while."""
        self.give_up_segment()
        for subpartition, log in enumerate(self.written):
            self.partition.end_subpartition(subpartition, EndOfPartition(len(log), 0, sum(log)))
        self.partition.finish()
        self.partition.settle()

    def give_up_segment(self) -> None:
        """The writer gives back what it has begun."""
        if self.open is not None:
            self.writer.give_back(self.open[0])
            self.open = None

    def carry_out(self) -> None:
        """Store what was ordered."""
        order = self.orders.popleft()
        extents = []
        for run in order.runs:
            begin = len(self.storage)
            for item in run:
                assert item.piece is not None, "memory went while it was being stored"
                segment, offset, length, *_ = item.piece
                self.storage += self.memory[segment][offset : offset + length]
            assert len(self.storage) - begin <= SIZE, "an extent is longer than a segment"
            extents.append(Extent(0, begin, len(self.storage) - begin, 0))
        self.partition.spilled(order, extents)

    def settle(self) -> None:
        """Carry out orders until there are none."""
        while self.orders:
            self.carry_out()

    def check(self) -> None:
        """All books are straight."""
        self.partition._books.check()
        self.references.check()
        self.network.check()


class Reader:
    """A reader of a range: takes what there is, and gives slices back when it likes."""

    def __init__(self, world: World, first: int = 0, count: int = 1) -> None:
        self.world = world
        self.first, self.count = first, count
        self.numbers: list[int] = []
        self.events: list[object] = []
        self.held: deque[BufferSlice] = deque()
        self.calls = 0
        self.cursor: HybridCursor = world.partition.open(first, count, self._listen)

    def _listen(self) -> None:
        self.calls += 1

    def expected(self) -> list[int]:
        """The numbers that are written for it so far."""
        logs = self.world.written[self.first : self.first + self.count]
        return [number for log in logs for number in log]

    def step(self, most: int = 1) -> Next:
        """Take one thing, if there is one."""
        found = self.cursor.look()
        if found is Next.MEMORY:
            item = self.cursor.take()
            piece = item.payload
            assert isinstance(piece, BufferSlice)
            self.held.append(piece)
            self._read(self.world.memory[piece.segment][piece.offset : piece.offset + piece.length])
        elif found is Next.STORED:
            for extent, skip in self.cursor.take_stored(most):
                self._read(self.world.storage[extent.offset + skip : extent.offset + extent.length])
        elif found is Next.EVENT:
            self.events.append(decode_event(self.cursor.take_event()))
        return found

    def _read(self, data: bytearray) -> None:
        self.numbers += [int.from_bytes(data[i : i + PIECE], "little") for i in range(0, len(data), PIECE)]
        assert self.numbers == self.expected()[: len(self.numbers)], "lost, doubled, out of order or overwritten"

    def give_back(self) -> None:
        """Give the oldest slice back."""
        piece = self.held.popleft()
        self.world.on_recycle(piece)
        self.world.partition.returned()

    def read_all(self) -> None:
        """Take everything, giving back at once, with storage as quick as it has to be."""
        while (found := self.step(4)) is not Next.NOTHING or self.world.orders:
            if found is Next.NOTHING:
                self.world.carry_out()
            while self.held:
                self.give_back()
