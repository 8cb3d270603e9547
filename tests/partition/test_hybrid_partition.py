# SPDX-License-Identifier: Apache-2.0
"""The hybrid partition over real pools, reference counts and bytes: what it promises, and random interleavings."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from hybrid_parts import PIECE, SIZE, Reader, World
from penstock.errors import (
    PartitionError,
    PartitionReleasedError,
    ProducerFailedError,
    ProtocolError,
)
from penstock.partition.lifecycle import PartitionState
from penstock.partition.stored_cursor import CursorState, Next
from penstock.shuffle import EndOfData, EndOfPartition

KINDS = pytest.mark.parametrize("keeps", [True, False], ids=["full", "selective"])


@KINDS
def test_a_reader_from_before_gets_everything_in_order(keeps: bool) -> None:
    """A reader that comes first reads along; its end has what the producer counted."""
    world = World(keeps=keeps)
    reader = Reader(world)
    for number in range(40):
        while not world.write(number % 2, SIZE // 2):
            world.carry_out()
        reader.step()
        while reader.held:
            reader.give_back()
    world.finish()
    reader.read_all()
    assert reader.numbers == world.written[0]
    total = EndOfPartition(len(world.written[0]), 0, sum(world.written[0]))
    assert reader.events == [EndOfData(), total]


@KINDS
def test_the_producer_never_waits_for_a_reader(keeps: bool) -> None:
    """With no reader, and with one that gives nothing back, storing alone makes room for any amount of data."""
    for idle in (False, True):
        world = World(segments=4, keeps=keeps)
        reader = Reader(world) if idle else None
        for number in range(500):
            if reader is not None:
                reader.step()
            while not world.write(number % 2):
                assert world.orders, "no memory, and nothing is being stored"
                world.carry_out()
        world.finish()
        if reader is not None:
            assert len(reader.held) <= world.limit
            reader.read_all()
            assert reader.numbers == world.written[0]


def test_what_is_kept_is_read_again_by_several_readers_and_late_ones() -> None:
    """Readers from before, in the middle and after the end all get everything, as ranges too."""
    world = World(subpartitions=3, segments=4)
    readers = [Reader(world, 0, 3)]
    for number in range(60):
        while not world.write(number % 3 if number % 5 else None, PIECE * (1 + number % 8)):
            world.carry_out()
        if number == 30:
            readers += [Reader(world, 1, 2), Reader(world, 1, 1)]
        readers[0].step()
        while readers[0].held:
            readers[0].give_back()
    world.finish()
    world.settle()
    readers += [Reader(world, sub, 1) for sub in range(3)]
    for reader in readers:
        reader.read_all()
        assert reader.numbers == reader.expected()
        assert len(reader.events) == 2
        reader.leave()
    assert "stored" in world.log
    assert world.partition.state is PartitionState.CONSUMED
    world.close_producer()
    assert world.partition.state is PartitionState.CONSUMED, "reading it takes nothing away"


def test_what_is_stored_and_finished_holds_no_memory() -> None:
    """After the finish of a partition that keeps, storing goes on by itself until no segment is held."""
    world = World(segments=8)
    for number in range(6):
        assert world.write(number % 2)
    world.finish()
    world.settle()
    assert world.network.free == 8
    assert world.log == ["consumable", "stored"]
    assert [len(world.partition.extents(sub)) for sub in range(2)] == [3, 3]


def test_selective_frees_what_was_consumed_and_stores_only_what_does_not_fit() -> None:
    """A reader that keeps up needs no storage at all."""
    world = World(subpartitions=1, keeps=False)
    reader = Reader(world)
    for _ in range(100):
        assert world.write(0)
        assert reader.step() is Next.MEMORY
        reader.give_back()
        assert world.network.free == 8
    assert not world.storage
    for _ in range(20):
        while not world.write(0):
            world.carry_out()
    world.settle()
    assert 0 < len(world.storage) < 20 * SIZE


def test_selective_stores_first_what_is_needed_last() -> None:
    """Of a subpartition that is read and one that nobody reads yet, the latter leaves memory."""
    world = World(keeps=False, segments=8)
    Reader(world, 0)
    for number in range(6):
        assert world.write(number % 2)
    world.relieve(3)
    (order,) = world.orders
    assert {item.subpartition for run in order.runs for item in run} == {1}


def test_selective_refuses_a_second_reader_and_says_what_to_do() -> None:
    """One reader per subpartition, at the same time or later, ranges included."""
    world = World(subpartitions=3, keeps=False)
    reader = Reader(world, 1)
    for first, count in ((1, 1), (0, 2), (1, 2), (0, 3)):
        with pytest.raises(PartitionError, match=r'job-e1.*read once.*mode="hybrid"'):
            Reader(world, first, count)
    reader.leave()
    with pytest.raises(PartitionError, match="read once"):
        Reader(world, 1)
    Reader(world, 2).leave()
    Reader(world, 0).leave()
    assert world.partition.state is PartitionState.CONSUMED


def test_selective_is_released_when_all_have_left_and_the_producer_has_closed() -> None:
    """Like a pipelined one; what comes after the readers have left is dropped and never stored."""
    world = World(keeps=False)
    readers = [Reader(world, 0), Reader(world, 1)]
    for reader in readers:
        reader.leave()
    for number in range(50):
        assert world.write(number % 2 if number % 3 else None)
    assert not world.orders
    world.finish()
    assert not world.partition.state.is_end
    world.close_producer()
    assert world.partition.state is PartitionState.RELEASED
    assert world.network.free == 8


@KINDS
def test_broadcast_data_is_there_once(keeps: bool) -> None:
    """In memory and in storage, however many subpartitions there are."""
    world = World(subpartitions=20, keeps=keeps)
    for _ in range(20):
        while not world.write(None):
            world.carry_out()
    world.finish()
    world.relieve(8)
    world.settle()
    assert len(world.storage) == 20 * SIZE
    assert world.network.free == 8
    for subpartition in range(20):
        reader = Reader(world, subpartition)
        reader.read_all()
        assert len(reader.events) == 2
        reader.leave()


@KINDS
def test_a_failure_reaches_readers_and_gives_everything_back(keeps: bool) -> None:
    """In mid-data; what is being stored comes back when that is over, whatever became of it."""
    world = World(keeps=keeps, segments=6)
    reader = Reader(world)
    for number in range(5):
        world.write(number % 2)
    world.relieve(2)
    order = world.orders.popleft()
    world.fail("the disk is full")
    assert isinstance(reader.cursor.failure, ProducerFailedError)
    assert reader.look() is Next.NOTHING
    assert reader.calls > 0
    with pytest.raises(ProducerFailedError, match="the disk is full"):
        Reader(world)
    assert world.network.free < 6, "what a thread still reads must not be written over"
    world.give_up(order)
    assert world.network.free == 6
    assert world.log[-1] == "failed"


def test_a_closed_writer_that_did_not_finish_has_failed() -> None:
    """The end of a task is no end of data."""
    world = World()
    reader = Reader(world)
    world.write(0)
    world.close_producer()
    assert isinstance(reader.cursor.failure, ProducerFailedError)


def test_empty_partitions_are_consumable_at_their_end_and_end_at_once() -> None:
    """No buffer at all: the readers get their two events."""
    for keeps in (True, False):
        world = World(keeps=keeps)
        assert world.log == []
        world.finish()
        assert world.log[0] == "consumable"
        reader = Reader(world, 0, 2)
        reader.read_all()
        assert reader.events == [EndOfData(), EndOfPartition(0, 0, 0)]


def test_what_does_not_keep_to_the_protocol_is_refused() -> None:
    """Wrong subpartitions, double ends, a finish without ends, writes after it, empty ranges."""
    world = World()
    world.write(0)
    for first, count in ((-1, 1), (0, 0), (1, 2), (2, 1)):
        with pytest.raises(ProtocolError, match="no subpartitions"):
            Reader(world, first, count)
    with pytest.raises(ProtocolError, match="no end"):
        world.partition.finish()
    world.finish()
    with pytest.raises(ProtocolError, match="twice"):
        world.partition.end_subpartition(0, EndOfPartition(0, 0, 0))
    with pytest.raises(ProtocolError, match="after it has finished"):
        world.write(1)
    world.release()
    with pytest.raises(PartitionReleasedError):
        Reader(world)


def test_forgetting_what_lies_in_an_open_segment_does_not_count() -> None:
    """Everything is stored, the last in a segment that its writer fills on: who needs one gets another."""
    world = World(subpartitions=1, limit=0)
    for _ in range(3):
        world.write(0)
    world.write(0, SIZE // 2)
    assert Reader(world).step() is Next.NOTHING, "it may not be leased anything, so all is stored for it"
    world.settle()
    assert (world.partition.held, world.network.free) == (4, 4)
    world.relieve(1)
    assert world.network.free == 5
    assert not world.orders


def test_a_reader_leaves_out_what_it_has_of_an_extent() -> None:
    """One that took the first of two items from memory reads only the second of their extent."""
    world = World(subpartitions=1)
    reader = Reader(world)
    for _ in range(8):
        world.write(0, SIZE // 2)
    assert reader.step() is Next.MEMORY
    world.settle()
    world.relieve(8)
    world.settle()
    assert reader.step() is Next.STORED
    assert reader.numbers == world.written[0][: len(reader.numbers)]
    assert len(reader.numbers) == SIZE // PIECE


def test_a_waiting_reader_is_called_when_something_is_given_back() -> None:
    """A slice that may be leased again need not be stored first."""
    world = World(subpartitions=2, limit=1)
    taker, waiter = Reader(world, 0), Reader(world, 1)
    world.write(0)
    world.write(1)
    assert taker.step() is Next.MEMORY
    assert waiter.step() is Next.NOTHING
    calls = waiter.calls
    taker.give_back()
    assert waiter.calls > calls
    assert waiter.step() is Next.MEMORY


class Interleaving:
    """One partition and what befalls it, step by step, in an order that a seed decides."""

    def __init__(self, seed: int, world: World) -> None:
        self.random = random.Random(seed)
        self.world = world
        self.readers: list[Reader] = []
        self.gone: list[Reader] = []
        steps = {
            self.write: 8,
            self.store: 2,
            self.read: 8,
            self.give_back: 6,
            self.carry_out: 3,
            self.arrive: 2,
            self.leave: 1,
        }
        rare = {self.press: 1, self.finish: 0.15, self.end: 0.03, self.world.write_index: 0.5}
        self.steps, self.weights = zip(*(steps | rare).items(), strict=True)

    def run(self, count: int) -> None:
        """So many steps, then everything comes to its end."""
        for step in self.random.choices(self.steps, self.weights, k=count):
            step()
            self.check()
        self.close()

    @property
    def lives(self) -> bool:
        """True if the partition has not ended."""
        return not self.world.partition.state.is_end

    def write(self) -> None:
        """A slice for one or, one time in five, for all; no memory is only said while something is being stored."""
        if self.world.partition.is_finished:
            return
        target = self.random.randrange(len(self.world.written)) if self.random.random() < 0.8 else None
        if not self.world.write(target, PIECE * self.random.randint(1, SIZE // PIECE)):
            leased = sum(len(reader.held) for reader in [*self.readers, *self.gone])
            assert self.world.orders or not self.lives or leased, "stuck: no memory, nothing being stored"

    def store(self) -> None:
        """The producer stores something by itself, for one or for all."""
        if not self.world.partition.is_finished:
            target = self.random.randrange(len(self.world.written)) if self.random.random() < 0.8 else None
            self.world.store(target, PIECE * self.random.randint(1, SIZE // PIECE))

    def carry_out(self) -> None:
        """Store the order, unless the partition has ended meanwhile."""
        if self.world.orders and self.lives:
            self.world.carry_out()
        elif self.world.orders:
            self.world.give_up(self.world.orders.popleft())

    def arrive(self) -> None:
        """A reader comes; a selective partition may refuse it."""
        if not self.lives or len(self.readers) == 4:
            return
        count = len(self.world.written)
        first = self.random.randrange(count)
        try:
            self.readers.append(Reader(self.world, first, self.random.randint(1, count - first)))
        except PartitionError:
            assert not self.world.partition.keeps

    def read(self) -> None:
        """A reader takes some of what there is; one that waits for storage is called."""
        if self.readers:
            reader = self.random.choice(self.readers)
            for _ in range(self.random.randint(1, 5)):
                if (
                    reader.step(self.random.randint(1, 4)) is Next.NOTHING
                    and reader.cursor.state is CursorState.WAITING
                    and self.lives
                ):
                    before = reader.calls
                    assert self.world.orders, "a reader waits for storage, and nothing is being stored"
                    self.world.carry_out()
                    assert reader.calls > before, "a waiting reader was not called"

    def give_back(self) -> None:
        """A reader, also one that has left, gives a slice back."""
        holders = [reader for reader in [*self.readers, *self.gone] if reader.held]
        if holders:
            self.random.choice(holders).give_back()

    def leave(self) -> None:
        """A reader leaves, wherever it is."""
        if self.readers:
            reader = self.readers.pop(self.random.randrange(len(self.readers)))
            reader.leave()
            reader.leave()
            self.gone.append(reader)

    def press(self) -> None:
        """Somebody needs memory."""
        self.world.relieve(self.random.randint(1, 9))

    def finish(self) -> None:
        """The producer ends."""
        if self.lives and not self.world.partition.is_finished:
            self.world.finish()
            self.world.close_producer()

    def end(self) -> None:
        """The partition ends before its time."""
        if self.lives:
            how = self.random.choice([self.world.release, self.world.fail])
            how("the test says so")
            needing = [reader for reader in self.readers if reader.cursor.state is not CursorState.TOLD]
            assert all(reader.cursor.failure is not None for reader in needing)

    def check(self) -> None:
        """No segment is lost, doubled, or written over while somebody reads it (readers compare the bytes)."""
        self.world.check()
        held = sum(len(reader.held) for reader in [*self.readers, *self.gone])
        assert self.world.partition.readers.leased == held <= self.world.limit

    def close(self) -> None:
        """Every reader reads to its end; then all memory is free."""
        world = self.world
        self.finish()
        for reader in [*self.gone, *self.readers]:
            while reader.held:
                reader.give_back()
        for reader in self.readers if self.lives else ():
            reader.read_all()
            assert reader.numbers == reader.expected()
            assert len(reader.events) == 2
            reader.leave()
        if self.lives:
            world.settle()
        world.release()
        while world.orders:
            world.give_up(world.orders.popleft())
        world.give_up_segment()
        self.check()
        assert world.network.free == world.network.total
        assert world.log.count("consumable") <= 1


@given(
    seed=st.integers(0, 2**32),
    subpartitions=st.integers(1, 4),
    segments=st.integers(3, 9),
    keeps=st.booleans(),
    limit=st.integers(0, 3),
)
@settings(max_examples=examples(200), deadline=None)
def test_any_interleaving_keeps_the_promises(
    seed: int, subpartitions: int, segments: int, keeps: bool, limit: int
) -> None:
    """Any order of writing, storing, reading, giving back, leaving, pressure and ends: every byte once, in order."""
    world = World(subpartitions, segments, min(limit, segments - 2), keeps=keeps)
    Interleaving(seed, world).run(150)
