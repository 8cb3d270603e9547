# SPDX-License-Identifier: Apache-2.0
"""The pipelined subpartition and its view."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from effort import examples
from penstock.buffer import BufferSlice, DataType
from penstock.errors import (
    PartitionError,
    PartitionReleasedError,
    ProducerFailedError,
    ProtocolError,
)
from penstock.partition.subpartition import PipelinedSubpartition, PipelinedView, SubpartitionState


class Parent:
    """A partition that writes down what it is told."""

    name = "job-e0.3#7"
    host = "host-a"

    def __init__(self) -> None:
        self.consumed: list[list[BufferSlice]] = []

    def on_consumed(self, buffers: list[BufferSlice]) -> None:
        """A reader left."""
        self.consumed.append(buffers)


class Ears:
    """A listener that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        """Count."""
        self.calls += 1


def buffer(number: int, length: int = 10) -> BufferSlice:
    """A slice that can be told from others."""
    return BufferSlice(number, 0, length)


def make() -> tuple[PipelinedSubpartition, PipelinedView, Ears, Parent]:
    """A subpartition with its view."""
    parent, ears = Parent(), Ears()
    subpartition = PipelinedSubpartition(2, parent)
    return subpartition, subpartition.create_view(ears), ears, parent


def poll(view: PipelinedView) -> object:
    """The payload of the next thing: a segment's number, or an event's bytes."""
    item = view.poll()
    assert item is None or item.subpartition == 2
    if item is None:
        return None
    return item.payload.segment if isinstance(item.payload, BufferSlice) else item.payload


def test_first_in_first_out() -> None:
    """Buffers and events come in the order they were added, with their data types."""
    subpartition, view, _, _ = make()
    subpartition.add(buffer(1))
    subpartition.add_event(b"e", DataType.EVENT)
    subpartition.add(buffer(2))
    items = [view.poll() for _ in range(3)]
    assert [item.data_type for item in items if item] == [DataType.DATA, DataType.EVENT, DataType.DATA]
    assert [item.is_buffer for item in items if item] == [True, False, True]
    assert [item.payload for item in items if item] == [buffer(1), b"e", buffer(2)]
    assert view.poll() is None


def test_backlog_counts_data_buffers_at_each_step() -> None:
    """Events are no backlog: they need no credit."""
    subpartition, view, _, _ = make()
    seen = []
    for add in (
        lambda: subpartition.add(buffer(1)),
        lambda: subpartition.add_event(b"e", DataType.EVENT),
        lambda: subpartition.add(buffer(2)),
    ):
        add()
        seen.append(view.backlog)
    for _ in range(3):
        poll(view)
        seen.append(view.backlog)
    assert seen == [1, 1, 2, 1, 1, 0]


def test_listener_hears_only_of_the_turn_to_consumable() -> None:
    """One call for the first thing, none for those that queue behind it, one again after the queue ran dry."""
    subpartition, view, ears, _ = make()
    subpartition.add(buffer(1))
    subpartition.add(buffer(2))
    subpartition.add_event(b"e", DataType.EVENT)
    assert ears.calls == 1
    for _ in range(3):
        poll(view)
    assert not view.is_available
    subpartition.add(buffer(3))
    assert ears.calls == 2


def test_view_over_existing_data_looks_for_itself() -> None:
    """A reader that comes late finds what is there without being called."""
    ears = Ears()
    subpartition = PipelinedSubpartition(2, Parent())
    subpartition.add(buffer(1))
    view = subpartition.create_view(ears)
    assert ears.calls == 0
    assert view.is_available
    assert poll(view) == 1


def test_listener_may_poll_at_once() -> None:
    """When the listener is called the thing is there already."""
    got: list[object] = []
    subpartition = PipelinedSubpartition(2, Parent())
    view = subpartition.create_view(lambda: got.append(poll(view)))
    subpartition.add(buffer(1))
    subpartition.add(buffer(2))
    assert got == [1, 2]


def test_next_is_event() -> None:
    """The view says whether its head needs credit."""
    subpartition, view, _, _ = make()
    assert not view.next_is_event
    subpartition.add(buffer(1))
    assert not view.next_is_event
    subpartition.add_event(b"e", DataType.EVENT)
    poll(view)
    assert view.next_is_event


def test_priority_events_overtake_data_but_not_each_other() -> None:
    """A priority event goes before all data and ordinary events, after earlier priority events."""
    subpartition, view, _, _ = make()
    subpartition.add(buffer(1))
    subpartition.add_event(b"e", DataType.EVENT)
    subpartition.add_event(b"p1", DataType.PRIORITY_EVENT)
    subpartition.add_event(b"p2", DataType.PRIORITY_EVENT)
    subpartition.add(buffer(2))
    assert poll(view) == b"p1"
    subpartition.add_event(b"p3", DataType.PRIORITY_EVENT)
    assert [poll(view) for _ in range(6)] == [b"p2", b"p3", 1, b"e", 2, None]


def test_priority_event_calls_a_reader_that_waits_for_credit() -> None:
    """Overtaken data was announced before; the event must be too, for it can be taken without credit."""
    subpartition, view, ears, _ = make()
    subpartition.add(buffer(1))
    assert ears.calls == 1
    subpartition.add_event(b"p1", DataType.PRIORITY_EVENT)
    assert ears.calls == 2
    assert view.next_is_event
    subpartition.add_event(b"p2", DataType.PRIORITY_EVENT)
    assert ears.calls == 2


def test_aligned_barrier_blocks_until_resumed() -> None:
    """Behind the barrier nothing is visible: no data, no backlog, no call; resume makes it so."""
    subpartition, view, ears, _ = make()
    subpartition.add(buffer(1))
    subpartition.add_event(b"barrier", DataType.ALIGNED_BARRIER)
    subpartition.add(buffer(2))
    assert [poll(view), poll(view), poll(view)] == [1, b"barrier", None]
    assert (view.backlog, view.is_available, view.next_is_event) == (0, False, False)
    subpartition.add(buffer(3))
    subpartition.add_event(b"p", DataType.PRIORITY_EVENT)
    assert ears.calls == 1
    assert view.backlog == 0
    view.resume()
    assert ears.calls == 2
    assert view.backlog == 2
    assert [poll(view) for _ in range(4)] == [b"p", 2, 3, None]


def test_blocked_reader_is_not_called_for_new_data() -> None:
    """Data behind a barrier that was the last thing in the queue can't be read yet, so nobody is called."""
    subpartition, view, ears, _ = make()
    subpartition.add_event(b"barrier", DataType.ALIGNED_BARRIER)
    poll(view)
    subpartition.add(buffer(1))
    assert ears.calls == 1
    view.resume()
    assert ears.calls == 2


def test_resume_with_nothing_queued_is_silent() -> None:
    """The reader is called when the next buffer comes, not for nothing."""
    subpartition, view, ears, _ = make()
    subpartition.add_event(b"barrier", DataType.ALIGNED_BARRIER)
    poll(view)
    view.resume()
    assert ears.calls == 1
    subpartition.add(buffer(1))
    assert ears.calls == 2


def test_resume_without_block_is_the_peers_fault() -> None:
    """A reader that resumes what is not blocked does not keep to the protocol; before the poll it isn't blocked."""
    subpartition, view, _, _ = make()
    subpartition.add_event(b"barrier", DataType.ALIGNED_BARRIER)
    with pytest.raises(ProtocolError, match="resumed"):
        view.resume()


def test_second_reader_is_refused() -> None:
    """A pipelined subpartition is read once: neither beside another reader nor after one has left."""
    subpartition, view, _, _ = make()
    with pytest.raises(PartitionError, match="reader already"):
        subpartition.create_view(Ears())
    view.release()
    with pytest.raises(PartitionReleasedError, match="reader has left"):
        subpartition.create_view(Ears())


def test_reader_that_leaves_early_does_not_break_the_producer() -> None:
    """Queued slices are handed back once, and later ones are refused to the caller, without an error."""
    subpartition, view, ears, parent = make()
    subpartition.add(buffer(1))
    subpartition.add_event(b"e", DataType.EVENT)
    subpartition.add(buffer(2))
    view.release()
    view.release()
    assert parent.consumed == [[buffer(1), buffer(2)]]
    assert subpartition.state is SubpartitionState.CONSUMED
    assert not subpartition.add(buffer(3))
    assert not subpartition.add_event(b"e", DataType.EVENT)
    assert subpartition.release() == []
    assert ears.calls == 1
    assert (view.poll(), view.is_available, view.backlog, view.next_is_event) == (None, False, 0, False)
    view.resume()


def test_writing_after_finish_is_refused() -> None:
    """A finished subpartition gives what it has and takes no more: a task that goes on writing is at fault."""
    subpartition, view, _, _ = make()
    subpartition.add(buffer(1))
    subpartition.finish()
    subpartition.finish()
    for add in (lambda: subpartition.add(buffer(2)), lambda: subpartition.add_event(b"e", DataType.EVENT)):
        with pytest.raises(ProtocolError, match="finished"):
            add()
    assert [poll(view), poll(view)] == [1, None]


def test_malformed_additions_are_refused() -> None:
    """An empty slice, or an event that says it is data, would confuse credit accounting."""
    subpartition, _, ears, _ = make()
    with pytest.raises(ProtocolError, match="empty buffer"):
        subpartition.add(buffer(1, length=0))
    with pytest.raises(ProtocolError, match="claims to be data"):
        subpartition.add_event(b"e", DataType.DATA)
    assert ears.calls == 0


def test_failed_producer_is_told_to_its_reader() -> None:
    """Queued data is dropped and handed back, the reader is called and finds the cause and its host."""
    subpartition, view, ears, _ = make()
    subpartition.add(buffer(1))
    poll(view)
    subpartition.add(buffer(2))
    assert subpartition.fail(ZeroDivisionError("in row 5")) == [buffer(2)]
    assert ears.calls == 3
    assert view.poll() is None
    assert view.is_available
    assert isinstance(view.failure, ProducerFailedError)
    for part in ("job-e0.3#7[2]", "host-a", "ZeroDivisionError: in row 5"):
        assert part in str(view.failure)
    assert str(pickle.loads(pickle.dumps(view.failure))) == str(view.failure)  # noqa: S301  (our own bytes)
    assert subpartition.fail("again") == []
    assert ears.calls == 3
    view.release()
    assert not view.is_available


def test_reader_after_the_end_gets_the_reason() -> None:
    """A reader that asks later hears the same as one that was there: failed or released."""
    failed, released = PipelinedSubpartition(0, Parent()), PipelinedSubpartition(0, Parent())
    failed.fail("worker died")
    assert released.release("job is over") == []
    with pytest.raises(ProducerFailedError, match="worker died"):
        failed.create_view(Ears())
    with pytest.raises(PartitionReleasedError, match="job is over"):
        released.create_view(Ears())


@pytest.mark.parametrize("with_view", [True, False])
def test_release_hands_back_every_buffer_once(with_view: bool) -> None:
    """With and without a reader, and not again."""
    subpartition = PipelinedSubpartition(2, Parent())
    ears = Ears()
    view = subpartition.create_view(ears) if with_view else None
    for number in range(3):
        subpartition.add(buffer(number))
    assert subpartition.release() == [buffer(0), buffer(1), buffer(2)]
    assert subpartition.release() == []
    assert not subpartition.add(buffer(4))
    if view is not None:
        assert ears.calls == 2
        assert isinstance(view.failure, PartitionReleasedError)


def test_release_unblocks_a_blocked_reader() -> None:
    """A reader that waits behind a barrier is told about the end."""
    subpartition, view, ears, _ = make()
    subpartition.add_event(b"barrier", DataType.ALIGNED_BARRIER)
    poll(view)
    subpartition.release()
    assert ears.calls == 2
    assert view.is_available
    view.resume()


class SubpartitionMachine(RuleBasedStateMachine):
    """Producer, reader and owner at random, against a list that says what must come out."""

    def __init__(self) -> None:
        super().__init__()
        self.parent = Parent()
        self.subpartition = PipelinedSubpartition(0, self.parent)
        self.view: PipelinedView | None = None
        self.expected: list[object] = []
        self.alive = True
        self.blocked = False
        self.finished = False
        self.pending = False  # a call of the listener that the reader has not followed up
        self.next = 0
        self.outstanding: set[int] = set()

    def drop(self, buffers: list[BufferSlice]) -> None:
        """Buffers handed back: each was outstanding, each comes once."""
        for each in buffers:
            self.outstanding.remove(each.segment)

    def call(self) -> None:
        """The listener: never called for nothing."""
        assert self.view is not None
        assert self.view.is_available
        self.pending = True

    def attempt(self, add: Callable[[], bool]) -> bool:
        """Add something; an error exactly when finished, refused exactly when ended."""
        try:
            taken = add()
        except ProtocolError:
            assert self.finished
            assert self.alive
            return False
        assert taken == self.alive
        assert not (taken and self.finished)
        return taken

    @rule()
    def add(self) -> None:
        """A buffer."""
        self.next += 1
        if self.attempt(lambda: self.subpartition.add(buffer(self.next))):
            self.outstanding.add(self.next)
            self.expected.append(self.next)

    @rule(data_type=st.sampled_from([DataType.EVENT, DataType.PRIORITY_EVENT, DataType.ALIGNED_BARRIER]))
    def add_event(self, data_type: DataType) -> None:
        """An event of any kind."""
        self.next += 1
        payload = f"{data_type.name} {self.next}".encode()
        if self.attempt(lambda: self.subpartition.add_event(payload, data_type)):
            if data_type is DataType.PRIORITY_EVENT:
                behind = [n for n, item in enumerate(self.expected) if str(item).startswith("b'PRIORITY")]
                self.expected.insert(behind[-1] + 1 if behind else 0, payload)
            else:
                self.expected.append(payload)

    @rule()
    def create_view(self) -> None:
        """A reader comes; only the first one, and only to what lives."""
        try:
            view = self.subpartition.create_view(self.call)
        except PartitionError:
            assert self.view is not None or not self.alive
        else:
            assert self.view is None
            assert self.alive
            self.view = view
            self.pending = view.is_available

    @rule()
    def poll(self) -> None:
        """The reader takes one thing."""
        if self.view is None:
            return
        item = self.view.poll()
        if not self.alive or self.blocked or not self.expected:
            assert item is None
            self.pending = self.pending and self.view.is_available
            return
        assert item is not None
        wanted = self.expected.pop(0)
        if isinstance(item.payload, BufferSlice):
            assert item.payload.segment == wanted
            self.outstanding.remove(item.payload.segment)
        else:
            assert item.payload == wanted
            self.blocked = item.data_type == DataType.ALIGNED_BARRIER
        self.pending = self.view.is_available

    @rule()
    def resume(self) -> None:
        """The reader resumes, rightly or not."""
        if self.view is None:
            return
        try:
            self.view.resume()
        except ProtocolError:
            assert self.alive
            assert not self.blocked
        else:
            assert self.blocked or not self.alive
        self.blocked = False

    @rule()
    def finish(self) -> None:
        """The producer ends."""
        self.subpartition.finish()
        self.finished = self.finished or self.alive

    def end(self) -> None:
        """Nothing can come out any more."""
        self.alive = False
        self.blocked = False
        self.expected = []

    @rule(fail=st.booleans(), now=st.integers(0, 5))
    def end_by_owner(self, fail: bool, now: int) -> None:
        """The partition is released or fails (now and then)."""
        if now == 0:
            self.drop(self.subpartition.fail("x") if fail else self.subpartition.release())
            self.end()

    @rule(now=st.integers(0, 5))
    def reader_leaves(self, now: int) -> None:
        """The reader leaves (now and then)."""
        if self.view is not None and now == 0:
            self.view.release()
            for buffers in self.parent.consumed:
                self.drop(buffers)
            self.parent.consumed.clear()
            self.end()
            self.pending = False

    @invariant()
    def books(self) -> None:
        """Backlog is what can be polled, nothing is lost, and a reader never misses the turn to available."""
        data = sum(isinstance(item, int) for item in self.expected)
        assert self.subpartition._queued_buffers == data == len(self.outstanding)
        assert len(self.subpartition._queue) == len(self.expected)
        assert self.subpartition._is_held == self.blocked
        if self.view is not None and not self.view.is_released:
            assert self.view.backlog == (0 if self.blocked else data)
            assert self.view.is_available == ((bool(self.expected) and not self.blocked) or not self.alive)
            assert self.pending or not self.view.is_available


SubpartitionMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestSubpartitionMachine = SubpartitionMachine.TestCase
