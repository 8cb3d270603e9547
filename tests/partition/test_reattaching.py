# SPDX-License-Identifier: Apache-2.0
"""Readers that follow each other on one subpartition, and the writer's sums that say what none of them got."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from effort import examples
from penstock.buffer import BufferSlice, DataType
from penstock.errors import PartitionReleasedError, ProducerFailedError
from penstock.partition.reattaching import ReattachableSubpartition
from penstock.partition.subpartition import PipelinedView, SubpartitionState
from penstock.shuffle.events import EndOfData, EndOfPartition, EpochEnd, Reattached, encode_event

ANEW = encode_event(Reattached())


class Parent:
    """A partition that keeps what comes back."""

    name, host = "job-e0.3#7", "host-a"

    def __init__(self) -> None:
        self.recycled: list[BufferSlice] = []

    def on_consumed(self, buffers: list[BufferSlice]) -> None:
        """Another reader may come, so nobody is ever done."""
        raise AssertionError("consumed")

    def on_detached(self, buffers: list[BufferSlice]) -> None:
        """A reader left."""
        self.recycled += buffers


def silent() -> None:
    """A listener that does nothing."""


def make() -> tuple[ReattachableSubpartition, PipelinedView, Parent]:
    """A subpartition with its first view."""
    parent = Parent()
    subpartition = ReattachableSubpartition(2, parent)
    return subpartition, subpartition.create_view(silent), parent


def piece(number: int, *, continues: bool = False) -> BufferSlice:
    """A slice that can be told from others."""
    return BufferSlice(number, 0, 8, continues=continues)


def read(view: PipelinedView) -> list[object]:
    """All that there is: segments' numbers, and events' bytes."""
    found: list[object] = []
    while (item := view.poll()) is not None:
        found.append(item.payload.segment if isinstance(item.payload, BufferSlice) else item.payload)
    return found


def test_the_first_reader_reads_from_the_beginning() -> None:
    """It is told nothing, and gets what was queued ahead of it."""
    subpartition = ReattachableSubpartition(0, Parent())
    assert subpartition.add(piece(1))
    assert read(subpartition.create_view(silent)) == [1]


def test_rows_for_nobody_are_dropped_at_once() -> None:
    """Queued buffers come back when the reader leaves, and those that come then are not taken."""
    subpartition, view, parent = make()
    subpartition.add(piece(1))
    view.release()
    assert [each.segment for each in parent.recycled] == [1]
    assert not subpartition.add(piece(2))
    assert not subpartition.add_event(b"\x03w", DataType.EVENT)
    assert subpartition.state is SubpartitionState.DETACHED
    view.release()


def test_the_next_reader_begins_with_a_message() -> None:
    """It hears that it came in the middle; the rest of a message whose beginning is lost is dropped."""
    subpartition, view, _ = make()
    view.release()
    after = subpartition.create_view(silent)
    taken = [subpartition.add(each) for each in (piece(1, continues=True), piece(2), piece(3, continues=True))]
    assert taken == [False, True, True]
    assert read(after) == [ANEW, 2, 3]


@pytest.mark.parametrize("when", ["queued", "read", "dropped"])
def test_the_next_reader_hears_which_epoch_ended_last(when: str) -> None:
    """Its barrier was under way to a reader that is gone, or for nobody: no other word of that checkpoint comes."""
    subpartition, view, _ = make()
    subpartition.add_event(encode_event(EpochEnd(b"one", 1, 8, 9, 1)), DataType.EVENT)
    if when == "dropped":
        view.release()
    subpartition.add_event(encode_event(EpochEnd(b"two", 2, 8, 9, 2)), DataType.EVENT)
    if when == "read":
        read(view)
    view.release()
    subpartition.add_event(b"\x03two", DataType.EVENT)
    assert read(subpartition.create_view(silent)) == [encode_event(Reattached(b"two"))]


def test_the_end_of_the_data_is_said_again() -> None:
    """Its words were dropped, or heard by a reader that is gone; the next one hears them, finished or not."""
    subpartition, view, _ = make()
    closing = [encode_event(EndOfData()), encode_event(EndOfPartition(5, 5, 5))]
    subpartition.add_event(closing[0], DataType.EVENT)
    assert read(view) == closing[:1]
    view.release()
    subpartition.add_event(closing[1], DataType.EVENT)
    subpartition.finish()
    assert read(subpartition.create_view(silent)) == [ANEW, *closing]


def test_a_second_reader_takes_the_place_of_the_first() -> None:
    """The first is of an attempt that is over: it gets nothing more, and its leaving changes nothing."""
    subpartition, first, parent = make()
    subpartition.add(piece(1))
    second = subpartition.create_view(silent)
    assert [each.segment for each in parent.recycled] == [1]
    assert (first.poll(), first.is_available) == (None, False)
    first.release()
    assert subpartition.add(piece(2))
    assert read(second) == [ANEW, 2]


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (ReattachableSubpartition.release, PartitionReleasedError),
        (lambda each: each.fail("it died"), ProducerFailedError),
    ],
)
def test_an_end_is_an_end(end: Callable[[ReattachableSubpartition], object], error: type[Exception]) -> None:
    """Of a partition that was released or has failed there is nothing to come back to, detached or not."""
    subpartition, view, _ = make()
    view.release()
    end(subpartition)
    with pytest.raises(error):
        subpartition.create_view(silent)
    assert not subpartition.add(piece(1))


class Readers(RuleBasedStateMachine):
    """Messages of one to three slices, and readers that come and go between any two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.parent = Parent()
        self.subpartition = ReattachableSubpartition(0, self.parent)
        self.view = self.subpartition.create_view(silent)
        self.sent = self.refused = 0
        self.read: list[BufferSlice] = []
        self.partial = 0
        """Slices that are missing of the message that is being sent."""
        self.expects_start = True

    @precondition(lambda self: not self.partial)
    @rule(slices=st.integers(1, 3))
    def begin(self, slices: int) -> None:
        """Send the first slice of a message."""
        self._send(continues=False)
        self.partial = slices - 1

    @precondition(lambda self: self.partial)
    @rule()
    def go_on(self) -> None:
        """Send the next slice of the message."""
        self._send(continues=True)
        self.partial -= 1

    def _send(self, *, continues: bool) -> None:
        self.refused += not self.subpartition.add(piece(self.sent, continues=continues))
        self.sent += 1

    @rule()
    def poll(self) -> None:
        """The reader reads, if there is one."""
        item = self.view.poll()
        if item is None:
            return
        if not isinstance(item.payload, BufferSlice):
            assert item.payload == ANEW
            self.expects_start = True
            return
        assert not (self.expects_start and item.payload.continues)
        self.expects_start = False
        self.read.append(item.payload)

    @rule()
    def leave(self) -> None:
        """The reader goes."""
        self.view.release()

    @rule()
    def come(self) -> None:
        """Another one comes, whether or not the last one has gone."""
        self.view = self.subpartition.create_view(silent)
        self.expects_start = True

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """Each slice was read, came back, was refused, or waits."""
        waiting = self.subpartition.backlog
        assert self.sent == len(self.read) + len(self.parent.recycled) + self.refused + waiting
        assert [each.segment for each in self.read] == sorted(each.segment for each in self.read)


Readers.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
TestReaders = Readers.TestCase
