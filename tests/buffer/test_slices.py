# SPDX-License-Identifier: Apache-2.0
"""Segment references and what tasks hold."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from effort import examples
from penstock.buffer import BufferSlice, NetworkBufferPool, SegmentReferences
from penstock.errors import ProtocolError

SIZE = 64


class Home:
    """A segment owner that counts what came back."""

    def __init__(self) -> None:
        self.returned: Counter[int] = Counter()

    def recycle(self, segment: int) -> None:
        """Count it."""
        self.returned[segment] += 1


def test_segment_lives_as_long_as_builder_or_slice() -> None:
    """Two slices shipped while writing goes on: the segment goes home with the last of the three."""
    home, references = Home(), SegmentReferences(4, SIZE)
    references.open(2, home)
    references.add(2, 2)
    assert not references.release(2)
    assert not references.close_builder(2)
    assert references.count(2) == 1
    assert home.returned == {}
    assert references.release(2)
    assert home.returned == {2: 1}
    assert references.in_use == 0
    references.check()


def test_broadcast_slice_is_freed_by_its_last_reader() -> None:
    """One slice with a reference per reader stays until the last one recycled it (not the first)."""
    home, references = Home(), SegmentReferences(1, SIZE)
    references.open(0, home)
    references.add(0, 3)
    references.close_builder(0)
    assert [references.release(0) for _ in range(3)] == [False, False, True]
    assert home.returned == {0: 1}


def test_received_segment_has_one_slice() -> None:
    """A segment from the network has no builder to close and goes home with its one reader."""
    home, references = Home(), SegmentReferences(1, SIZE)
    references.receive(0, home)
    with pytest.raises(ProtocolError, match="no open builder"):
        references.close_builder(0)
    assert references.release(0)
    references.receive(0, home)
    with pytest.raises(ValueError, match="in use already"):
        references.open(0, home)


@pytest.mark.parametrize("segment", [-1, 1, 99])
def test_unknown_segments_are_refused(segment: int) -> None:
    """Nothing can be done to a segment that is free or does not exist."""
    references = SegmentReferences(2, SIZE)
    references.open(0, Home())
    for act in (references.add, references.release, references.close_builder):
        with pytest.raises(ProtocolError, match="not in use"):
            act(segment)
    assert references.count(segment) == 0
    references.check()


def test_open_builder_cannot_be_recycled_away() -> None:
    """A recycle too many does not free a segment under its writer."""
    home, references = Home(), SegmentReferences(1, SIZE)
    references.open(0, home)
    with pytest.raises(ProtocolError, match="more often"):
        references.release(0)
    assert home.returned == {}
    assert references.close_builder(0)


def test_task_ships_only_what_it_builds() -> None:
    """Foreign segments, bytes outside, bytes shipped before and negative lengths are refused and change nothing."""
    references = SegmentReferences(4, SIZE)
    task, other = references.attach("writer"), references.attach("other")
    task.grant(0, Home())
    other.grant(1, Home())
    task.commit(BufferSlice(0, 0, 16), 1)
    for wrong in [
        BufferSlice(1, 0, 8),
        BufferSlice(2, 0, 8),
        BufferSlice(-1, 0, 8),
        BufferSlice(0, 8, 8),
        BufferSlice(0, 16, SIZE),
        BufferSlice(0, 32, -8),
        BufferSlice(0, 1 << 60, 8),
    ]:
        with pytest.raises(ProtocolError, match="task writer"):
            task.commit(wrong, 1)
    assert references.count(0) == 2
    task.commit(BufferSlice(0, 24, 40, finished=True), 1)  # a gap for alignment is fine
    assert references.count(0) == 2
    with pytest.raises(ProtocolError, match="does not build"):
        task.commit(BufferSlice(0, 64, 0, finished=True), 1)
    references.check()


def test_empty_finished_piece_frees_an_unread_segment() -> None:
    """A builder that finishes without having shipped anything gives its segment back."""
    home, references = Home(), SegmentReferences(1, SIZE)
    task = references.attach("writer")
    task.grant(0, home)
    task.commit(BufferSlice(0, 0, 0, finished=True), 5)
    assert home.returned == {0: 1}
    task.grant(0, home)
    task.give_back(0)
    assert home.returned == {0: 2}
    with pytest.raises(ProtocolError, match="gives back"):
        task.give_back(0)


def test_piece_nobody_reads_is_freed() -> None:
    """A slice shipped to no reader at all holds nothing."""
    home, references = Home(), SegmentReferences(1, SIZE)
    task = references.attach("writer")
    task.grant(0, home)
    task.commit(BufferSlice(0, 0, 32, finished=True), 0)
    assert home.returned == {0: 1}


def test_reader_recycles_each_delivery_once() -> None:
    """Two slices of one segment are two deliveries; a third recycle, or another task's, is refused."""
    home, references = Home(), SegmentReferences(2, SIZE)
    reader, other = references.attach("reader"), references.attach("other")
    references.receive(0, home)
    references.add(0)
    reader.deliver(0)
    reader.deliver(0)
    with pytest.raises(ProtocolError, match="task other"):
        other.recycle(0)
    assert not reader.recycle(0)
    assert reader.recycle(0)
    with pytest.raises(ProtocolError, match="not delivered"):
        reader.recycle(0)
    with pytest.raises(ProtocolError, match="not in use"):
        reader.deliver(1)
    assert home.returned == {0: 1}


def test_dead_task_gives_back_everything_once() -> None:
    """Open builders and undelivered recycles come back at once; committed slices stay with their queues."""
    network = NetworkBufferPool(8)
    pool = network.create_local_pool(8, 8)
    references = SegmentReferences(8, SIZE)
    writer, reader = references.attach("writer"), references.attach("reader")
    granted = [pool.request() for _ in range(3)]
    for segment in granted:
        writer.grant(segment, pool)  # type: ignore[arg-type]
    first, second, third = (int(segment) for segment in granted if segment is not None)
    writer.commit(BufferSlice(first, 0, 8), 2)
    writer.commit(BufferSlice(second, 0, 8, finished=True), 1)
    reader.deliver(first)
    assert writer.snapshot().building == {first, third}
    assert reader.snapshot().delivered == {first: 1}
    assert writer.drop_all() == 2
    assert writer.drop_all() == 0
    assert writer.snapshot().building == frozenset()
    assert network.free == 6
    assert reader.drop_all() == 1
    assert references.count(first) == 1
    assert references.release(first)
    assert references.release(second)
    assert network.free == 8
    references.check()
    network.check()


def test_detached_task_gets_nothing_more() -> None:
    """After its death a task can neither be given things nor say anything; its name may attach anew."""
    references = SegmentReferences(2, SIZE)
    task = references.attach("t")
    with pytest.raises(ValueError, match="attached already"):
        references.attach("t")
    task.drop_all()
    with pytest.raises(ValueError, match="detached"):
        task.grant(0, Home())
    references.receive(1, Home())
    with pytest.raises(ValueError, match="detached"):
        task.deliver(1)
    with pytest.raises(ProtocolError):
        task.recycle(1)
    assert references.count(0) == 0
    references.attach("t").deliver(1)


class ReferencesMachine(RuleBasedStateMachine):
    """Tasks that build, ship, read, recycle, lie and die at random, over a real pool."""

    TOTAL = 6

    def __init__(self) -> None:
        super().__init__()
        self.network = NetworkBufferPool(self.TOTAL)
        self.pool = self.network.create_local_pool(self.TOTAL, self.TOTAL)
        self.references = SegmentReferences(self.TOTAL, SIZE)
        self.tasks = {name: self.references.attach(name) for name in "abc"}
        self.queue: list[int] = []

    @rule(name=st.sampled_from("abc"))
    def grant(self, name: str) -> None:
        """A task gets a segment to build in, if there is one."""
        segment = self.pool.request()
        if segment is not None:
            self.tasks[name].grant(segment, self.pool)

    @rule(
        name=st.sampled_from("abc"),
        segment=st.integers(-1, TOTAL),
        start=st.integers(0, 8),
        length=st.integers(-1, 9),
        finished=st.booleans(),
        readers=st.integers(0, 3),
    )
    def commit(self, name: str, segment: int, start: int, length: int, finished: bool, readers: int) -> None:
        """A task ships something, right or wrong; what is accepted is queued."""
        piece = BufferSlice(segment, start * 8, length * 8, finished)
        builds = segment in self.tasks[name].snapshot().building
        try:
            self.tasks[name].commit(piece, readers)
        except ProtocolError:
            return
        assert builds
        assert 0 <= piece.offset <= piece.offset + piece.length <= SIZE
        if piece.length:
            self.queue += [segment] * readers

    @precondition(lambda self: self.queue)
    @rule(data=st.data(), name=st.sampled_from("abc"))
    def deliver(self, data: st.DataObject, name: str) -> None:
        """A queued slice goes to a task."""
        position = data.draw(st.integers(0, len(self.queue) - 1))
        self.tasks[name].deliver(self.queue.pop(position))

    @rule(name=st.sampled_from("abc"), segment=st.integers(-1, TOTAL))
    def recycle(self, name: str, segment: int) -> None:
        """A task recycles something; only what it was given counts."""
        had = segment in self.tasks[name].snapshot().delivered
        try:
            self.tasks[name].recycle(segment)
        except ProtocolError:
            assert not had
        else:
            assert had

    @precondition(lambda self: self.queue)
    @rule()
    def drop_queued(self) -> None:
        """A queue is released by its partition."""
        self.references.release(self.queue.pop())

    @rule(name=st.sampled_from("abc"))
    def die(self, name: str) -> None:
        """A task dies and another of the same name attaches."""
        held = self.tasks[name].snapshot()
        assert self.tasks[name].drop_all() == len(held.building) + sum(held.delivered.values())
        assert self.tasks[name].drop_all() == 0
        self.tasks[name] = self.references.attach(name)

    @invariant()
    def counts_are_exact(self) -> None:
        """References of a segment = its open builder + queued + delivered slices; at zero it is in the pool."""
        expected = Counter(self.queue)
        for task in self.tasks.values():
            held = task.snapshot()
            expected.update(held.building)
            expected.update(held.delivered)
        for segment in range(self.TOTAL):
            assert self.references.count(segment) == expected[segment]
        assert self.network.free == self.TOTAL - len(+expected)
        self.references.check()
        self.network.check()

    def teardown(self) -> None:
        """When all tasks are dead and the queues dropped, every segment is free."""
        for task in self.tasks.values():
            task.drop_all()
        for segment in self.queue:
            self.references.release(segment)
        assert self.network.free == self.TOTAL


ReferencesMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestReferencesMachine = ReferencesMachine.TestCase
