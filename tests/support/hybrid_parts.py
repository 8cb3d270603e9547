# SPDX-License-Identifier: Apache-2.0
"""A hybrid partition with everything around it in memory: segments with bytes, a file of bytes, and readers.

The bytes are real: what is recycled too early is overwritten, and shows.
"""

from __future__ import annotations

from collections import deque

from penstock.buffer import BufferSlice, NetworkBufferPool, SegmentReferences
from penstock.partition.extents import BROADCAST, Extent
from penstock.partition.instructions import Announce, Recycle, Remove, StoreRuns, Wake, WriteIndex
from penstock.partition.stored_cursor import Next, StoredCursor
from penstock.partition.stored_items import SpillOrder
from penstock.partition.stored_partition import StoredPartition
from penstock.partition.storing import StoredRules
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
        self.index: list[list[Extent]] = []
        """By subpartition, once it is written."""
        self.written: list[list[int]] = [[] for _ in range(subpartitions)]
        self.open: tuple[int, int] | None = None
        self.number = 0
        self.partition = StoredPartition(ID, subpartitions, StoredRules(keeps, SIZE), "host-a")

    def obey(self) -> None:
        """Carry out what the partition says; an order is kept until the test does."""
        instructions = self.partition.instructions
        while instructions:
            match instructions.popleft():
                case Recycle(pieces):
                    self.partition.recycled(sum(map(self.recycle, pieces)))
                case StoreRuns(order):
                    assert order.runs
                    assert not self.orders, "two orders at once"
                    self.orders.append(order)
                case Wake(listener):
                    listener()
                case WriteIndex():
                    self.log.append("stored")
                case Announce():
                    self.log.append("consumable")
                case Remove(state):
                    self.log.append(state.value)

    def recycle(self, piece: BufferSlice) -> bool:
        """One reference less; a free segment is overwritten."""
        is_free = self.references.release(piece.segment)
        if is_free:
            self.memory[piece.segment][:] = b"\xff" * SIZE
        return is_free

    @property
    def may_lease(self) -> bool:
        """Up to the limit."""
        return self.partition.readers.leased < self.limit

    def relieve(self, segments: int) -> None:
        """Somebody needs memory."""
        self.partition.relieve(segments)
        self.obey()

    def release(self, cause: str = "") -> None:
        """Nobody needs the partition any more."""
        self.partition.release(cause)
        self.obey()

    def fail(self, cause: str) -> None:
        """The producer has failed."""
        self.partition.fail(cause)
        self.obey()

    def close_producer(self) -> None:
        """The producer lets go."""
        self.partition.close_producer()
        self.obey()

    def give_up(self, order: SpillOrder) -> None:
        """An order is not carried out, as the partition has ended."""
        self.partition.stored(order, ())
        self.obey()

    def write(self, subpartition: int | None, length: int = SIZE) -> bool:
        """Write a slice to a subpartition, or to all; False where there is no memory for it."""
        if self.open is None:
            segment = self.pool.request()
            if segment is None:
                self.relieve(1)
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
            self.recycle(piece)
        elif subpartition is None:
            for log in self.written:
                log.extend([self.number] * (length // PIECE))
            self.partition.add(BROADCAST, piece)
        else:
            self.written[subpartition] += [self.number] * (length // PIECE)
            self.partition.add(subpartition, piece)
        self.obey()
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
            self.obey()

    def finish(self) -> None:
        """The writer ends, and nobody asks for the partition's end for a while."""
        self.give_up_segment()
        for subpartition, log in enumerate(self.written):
            self.partition.end_subpartition(subpartition, EndOfPartition(len(log), 0, sum(log)))
        self.partition.finish()
        self.partition.settle()
        self.obey()

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
        self.partition.stored(order, extents)
        self.obey()

    def write_index(self) -> None:
        """Write it, where the partition has said that it is stored, and the test wants it."""
        if "stored" in self.log and not self.index and not self.partition.state.is_end:
            self.index = [self.partition.extents(number) for number in range(len(self.written))]
            self.partition.indexed()
            self.obey()

    def settle(self) -> None:
        """Carry out orders until there are none."""
        while self.orders:
            self.carry_out()

    def check(self) -> None:
        """All books are straight."""
        self.partition._storing.books.check()
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
        self.cursor: StoredCursor = world.partition.open(first, count, self._listen)

    def _listen(self) -> None:
        self.calls += 1

    def expected(self) -> list[int]:
        """The numbers that are written for it so far."""
        logs = self.world.written[self.first : self.first + self.count]
        return [number for log in logs for number in log]

    def look(self) -> Next:
        """The kind of thing that comes next."""
        found = self.world.partition.readers.look(self.cursor, may_lease=self.world.may_lease)
        self.world.obey()
        return found

    def step(self, most: int = 1) -> Next:
        """Take one thing, if there is one."""
        world, partition = self.world, self.world.partition
        found = self.look()
        if found is Next.MEMORY:
            piece = partition.readers.take(self.cursor)
            world.references.add(piece.segment)
            world.obey()
            self.held.append(piece)
            self._read(world.memory[piece.segment][piece.offset : piece.offset + piece.length])
        elif found is Next.STORED:
            taken = partition.readers.take_stored(self.cursor, most, may_lease=world.may_lease)
            world.obey()
            for extent, skip in taken.pieces:
                self._read(world.storage[extent.offset + skip : extent.offset + extent.length])
            for extents in world.index[taken.first : taken.first + taken.count]:
                for extent in extents:
                    self._read(world.storage[extent.offset : extent.offset + extent.length])
        elif found is Next.EVENT:
            self.events.append(decode_event(self.cursor.events.popleft()))
        return found

    def leave(self) -> None:
        """It is done."""
        self.world.partition.leave(self.cursor)
        self.world.obey()

    def _read(self, data: bytearray) -> None:
        self.numbers += [int.from_bytes(data[i : i + PIECE], "little") for i in range(0, len(data), PIECE)]
        assert self.numbers == self.expected()[: len(self.numbers)], "lost, doubled, out of order or overwritten"

    def give_back(self) -> None:
        """Give the oldest slice back."""
        piece = self.held.popleft()
        self.world.recycle(piece)
        self.world.partition.returned()
        self.world.obey()

    def read_all(self) -> None:
        """Take everything, giving back at once, with storage as quick as it has to be."""
        while (found := self.step(4)) is not Next.NOTHING or self.world.orders:
            if found is Next.NOTHING:
                self.world.carry_out()
            while self.held:
                self.give_back()
