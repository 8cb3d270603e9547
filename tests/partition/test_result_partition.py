# SPDX-License-Identifier: Apache-2.0
"""The pipelined result partition over real pools and reference counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from effort import examples
from penstock.buffer import BufferSlice, DataType, NetworkBufferPool, SegmentReferences
from penstock.errors import (
    IllegalTransitionError,
    PartitionError,
    PartitionExpiredError,
    PartitionLostError,
    PartitionReleasedError,
    ProducerFailedError,
    ProtocolError,
)
from penstock.partition.lifecycle import PartitionEvent, PartitionState
from penstock.partition.result_partition import PartitionCallbacks, PipelinedPartition
from penstock.partition.subpartition import PipelinedView
from penstock.shuffle import DatasetId
from penstock.shuffle.ids import PartitionId

ID = PartitionId(DatasetId("job", 1), 3, 17)
SIZE = 64


class Setting:
    """A partition with everything around it that counts segments."""

    def __init__(self, subpartitions: int = 2, segments: int = 8) -> None:
        self.network = NetworkBufferPool(segments)
        self.pool = self.network.create_local_pool(segments, segments)
        self.references = SegmentReferences(segments, SIZE)
        self.writer = self.references.attach("writer")
        self.log: list[str] = []
        self.partition = PipelinedPartition(
            ID,
            subpartitions,
            PartitionCallbacks(
                on_recycle=self.recycle,
                on_consumable=lambda: self.log.append("consumable"),
                on_end=lambda state: self.log.append(state.value),
            ),
            host="host-a",
        )

    def recycle(self, piece: BufferSlice) -> None:
        """One reference less."""
        self.references.release(piece.segment)

    def piece(self, readers: int = 1) -> BufferSlice:
        """A finished slice of a fresh segment."""
        segment = self.pool.request()
        assert segment is not None
        self.writer.grant(segment, self.pool)
        piece = BufferSlice(segment, 0, SIZE, finished=True)
        self.writer.commit(piece, readers)
        return piece

    def read(self, view: PipelinedView) -> int:
        """Poll and recycle all; how many buffers those were."""
        buffers = 0
        while (item := view.poll()) is not None:
            if isinstance(item.payload, BufferSlice):
                buffers += 1
                self.recycle(item.payload)
        return buffers

    def views(self) -> list[PipelinedView]:
        """A view of each subpartition."""
        return [self.partition.create_view(index, lambda: None) for index in range(self.partition.subpartitions)]


@pytest.mark.parametrize("first", ["buffer", "event"])
def test_consumable_once_there_is_something(first: str) -> None:
    """Readers may be deployed at the first buffer or event, because a barrier waits for them too; it is said once."""
    setting = Setting()
    assert setting.log == []
    if first == "event":
        setting.partition.broadcast_event(b"e", DataType.EVENT)
    else:
        setting.partition.add(1, setting.piece())
    assert setting.log == ["consumable"]
    setting.partition.add(0, setting.piece())
    setting.partition.finish()
    assert setting.log == ["consumable"]


def test_empty_partition_is_consumable_at_its_end() -> None:
    """A producer without rows and events still lets its readers start."""
    setting = Setting()
    setting.partition.finish()
    assert setting.log == ["consumable"]


def test_released_after_all_consumed_and_producer_closed() -> None:
    """Neither the readers' end nor the producer's is enough alone, in whichever order they come."""
    for reader_first in (True, False):
        setting = Setting()
        views = setting.views()
        setting.partition.add(0, setting.piece())
        setting.partition.finish()
        steps: list[Callable[[], None]] = [views[0].release, views[1].release]
        steps = (
            [*steps, setting.partition.close_producer] if reader_first else [setting.partition.close_producer, *steps]
        )
        for step in steps:
            assert not setting.partition.state.is_end
            step()
        assert setting.partition.state is PartitionState.RELEASED
        assert setting.log == ["consumable", "released"]
        setting.partition.close_producer()
        setting.partition.release()
        assert setting.log == ["consumable", "released"]
        assert setting.network.free == 8


def test_consumers_that_stop_early_do_not_break_the_producer() -> None:
    """All readers gone, the producer writes on into the void, finishes and closes; no segment is lost."""
    setting = Setting()
    for view in setting.views():
        view.release()
    assert setting.partition.state is PartitionState.CONSUMED
    for _ in range(20):
        assert not setting.partition.add(0, setting.piece())
        assert setting.partition.broadcast(setting.piece(readers=2)) == 0
    assert setting.network.free == 8
    setting.partition.finish()
    setting.partition.close_producer()
    assert setting.partition.state is PartitionState.RELEASED


def test_broadcast_shares_one_segment() -> None:
    """All readers get the same slice, and the segment is free after the last of them."""
    setting = Setting(subpartitions=3)
    views = setting.views()
    assert setting.partition.broadcast(setting.piece(readers=3)) == 3
    assert setting.network.free == 7
    assert [setting.read(view) for view in views[:2]] == [1, 1]
    assert setting.network.free == 7
    assert setting.read(views[2]) == 1
    assert setting.network.free == 8


def test_broadcast_to_fewer_readers_recycles_the_rest() -> None:
    """A reader that has left takes its reference with it."""
    setting = Setting(subpartitions=3)
    views = setting.views()
    views[1].release()
    assert setting.partition.broadcast(setting.piece(readers=3)) == 2
    assert setting.read(views[0]) + setting.read(views[2]) == 2
    assert setting.network.free == 8


def test_failure_frees_everything_and_is_told() -> None:
    """Readers present and late hear the producer's cause and host; later writes are swallowed without a trace."""
    setting = Setting()
    view = setting.partition.create_view(0, lambda: setting.log.append("called"))
    setting.partition.add(0, setting.piece())
    setting.partition.add(1, setting.piece())
    setting.partition.fail(ValueError("bad row"))
    assert setting.network.free == 8
    assert isinstance(view.failure, ProducerFailedError)
    for part in (str(ID), "host-a", "ValueError: bad row"):
        assert part in str(view.failure)
    with pytest.raises(ProducerFailedError, match="bad row"):
        setting.partition.create_view(1, lambda: None)
    assert not setting.partition.add(0, setting.piece())
    assert not setting.partition.add_event(0, b"e", DataType.EVENT)
    setting.partition.finish()
    setting.partition.close_producer()
    setting.partition.release()
    assert setting.partition.state is PartitionState.FAILED
    assert setting.partition.cause == "ValueError: bad row"
    assert setting.log == ["called", "consumable", "called", "failed"]
    assert setting.network.free == 8


def test_producer_that_closes_unfinished_has_failed() -> None:
    """A task that dies between two batches leaves a failed partition, never a seemingly complete one."""
    setting = Setting()
    (view, _) = setting.views()
    setting.partition.add(0, setting.piece())
    setting.partition.close_producer()
    assert isinstance(view.failure, ProducerFailedError)
    assert "without finishing" in str(view.failure)
    assert setting.network.free == 8


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda partition: partition.release("no longer needed"), PartitionReleasedError),
        (lambda partition: partition.end(PartitionEvent.EXPIRE, ""), PartitionExpiredError),
        (lambda partition: partition.end(PartitionEvent.LOSE, "the disk broke"), PartitionLostError),
        (lambda partition: partition.fail("killed"), ProducerFailedError),
    ],
)
def test_ends_are_distinct_answers(end: Callable[[PipelinedPartition], None], error: type[PartitionError]) -> None:
    """Each way to end is its own error to a reader that is there and to one that comes later, and the first stays."""
    setting = Setting()
    (view, _) = setting.views()
    setting.partition.broadcast(setting.piece(readers=2))
    end(setting.partition)
    setting.partition.fail("something else")
    assert type(view.failure) is error
    with pytest.raises(error):
        setting.partition.create_view(1, lambda: None)
    assert setting.network.free == 8


def test_writing_after_finish_is_refused_and_takes_nothing() -> None:
    """The error tells the partition's last events; the reference stays the caller's."""
    setting = Setting()
    setting.partition.add(0, setting.piece())
    setting.partition.finish()
    piece = setting.piece(readers=2)
    with pytest.raises(IllegalTransitionError, match="write, finish"):
        setting.partition.broadcast(piece)
    with pytest.raises(IllegalTransitionError):
        setting.partition.add_event(0, b"e", DataType.EVENT)
    with pytest.raises(IllegalTransitionError):
        setting.partition.finish()
    assert setting.references.count(piece.segment) == 2


@pytest.mark.parametrize("index", [-1, 2, 1 << 40])
def test_unknown_subpartitions_are_refused(index: int) -> None:
    """A peer's index outside of the partition is its fault, for writing and for reading."""
    setting = Setting()
    piece = setting.piece()
    for act in (
        lambda: setting.partition.add(index, piece),
        lambda: setting.partition.add_event(index, b"e", DataType.EVENT),
        lambda: setting.partition.create_view(index, lambda: None),
    ):
        with pytest.raises(ProtocolError, match="no subpartition"):
            act()
    assert setting.partition.state is PartitionState.REGISTERED
    with pytest.raises(ValueError, match="0 subpartitions"):
        Setting(subpartitions=0)


def test_reader_that_leaves_from_inside_its_call() -> None:
    """A listener that releases views while the partition is being ended or written to leaves the books straight."""
    setting = Setting(subpartitions=3)
    views: list[PipelinedView] = []

    def leave() -> None:
        for view in views:
            view.release()

    views += [setting.partition.create_view(index, leave) for index in range(3)]
    assert setting.partition.broadcast(setting.piece(readers=3)) == 1
    assert setting.network.free == 8
    assert setting.partition.state is PartitionState.CONSUMED
    failing = Setting(subpartitions=3)
    piece = failing.piece(readers=3)
    failing.partition.broadcast(piece)
    views = [failing.partition.create_view(index, leave) for index in range(3)]
    failing.partition.fail("x")
    assert failing.partition.state is PartitionState.FAILED
    assert failing.network.free == 8


class PartitionMachine(RuleBasedStateMachine):
    """Producer, three readers and the owner at random: no segment is ever lost or freed twice."""

    COUNT = 3

    def __init__(self) -> None:
        super().__init__()
        self.setting = Setting(subpartitions=self.COUNT, segments=6)
        self.partition = self.setting.partition
        self.views: dict[int, PipelinedView] = {}
        self.held: list[BufferSlice] = []
        self.finished = False

    def can_write(self) -> bool:
        """True if the producer keeps to its protocol by writing."""
        return not self.finished and self.setting.pool.is_available

    @precondition(lambda self: self.can_write())
    @rule(index=st.integers(0, COUNT - 1))
    def add(self, index: int) -> None:
        """A buffer for one."""
        self.partition.add(index, self.setting.piece())

    @precondition(lambda self: self.can_write())
    @rule()
    def broadcast(self) -> None:
        """A buffer for all."""
        self.partition.broadcast(self.setting.piece(readers=self.COUNT))

    @precondition(lambda self: not self.finished)
    @rule()
    def finish(self) -> None:
        """The producer has written everything."""
        self.partition.finish()
        self.finished = True

    @precondition(lambda self: self.finished)
    @rule()
    def close(self) -> None:
        """The producer lets go."""
        self.partition.close_producer()

    @rule(index=st.integers(0, COUNT - 1))
    def create_view(self, index: int) -> None:
        """A reader comes, or is told why not."""
        try:
            self.views[index] = self.partition.create_view(index, lambda: None)
        except PartitionError:
            assert index in self.views or self.partition.state.is_end

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def poll(self, data: st.DataObject) -> None:
        """A reader takes something and holds it."""
        item = self.views[data.draw(st.sampled_from(sorted(self.views)))].poll()
        if item is not None and isinstance(item.payload, BufferSlice):
            self.held.append(item.payload)

    @precondition(lambda self: self.held)
    @rule()
    def recycle(self) -> None:
        """A reader is done with a slice, perhaps after the partition has ended."""
        self.setting.recycle(self.held.pop(0))

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A reader leaves."""
        self.views[data.draw(st.sampled_from(sorted(self.views)))].release()

    @rule(how=st.integers(0, 20))
    def end(self, how: int) -> None:
        """Now and then the partition is ended."""
        if how == 0:
            self.partition.release()
        elif how == 1:
            self.partition.fail("x")

    @invariant()
    def books(self) -> None:
        """References = queued + held; consumable and ends are said at most once; the state follows from the parts."""
        queued = sum(target._queued_buffers for target in self.partition._subpartitions)
        counts = [self.setting.references.count(segment) for segment in range(6)]
        assert sum(counts) == queued + len(self.held)
        assert self.setting.network.free == counts.count(0)
        assert self.setting.log.count("consumable") <= 1
        assert (
            len([entry for entry in self.setting.log if entry in ("released", "failed")])
            == self.partition.state.is_end
        )
        if self.partition._readers == 0 and self.partition._making.state.has_left:
            assert self.partition.state.is_end
        self.setting.references.check()

    def teardown(self) -> None:
        """After the end only what readers still hold is out."""
        self.partition.release()
        for piece in self.held:
            self.setting.recycle(piece)
        assert self.setting.network.free == 6


PartitionMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestPartitionMachine = PartitionMachine.TestCase
