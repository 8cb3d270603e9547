# SPDX-License-Identifier: Apache-2.0
"""Calls that wait, over a writer and gates that do not: they try again when anything has come, and miss nothing."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError, TaskCancelledError
from penstock.shuffle import EndOfPartition, Intake, MetricGroup, PartitionEnd
from penstock.shuffle.splits import Split
from penstock.task.blocking import BlockingWriter
from penstock.testing import Running, wait_until
from penstock.testing.memory_host import MemoryHost


class Narrow:
    """A writer that takes what there is room for, a row each; a row may be taken that has no room yet."""

    def __init__(self, rooms: list[int]) -> None:
        self.room = 0
        self.rooms = rooms
        self.given: list[tuple[int, int]] = []
        self.pending: list[tuple[int, int]] = []
        self.tries = 0

    @property
    def has_pending(self) -> bool:
        """True if a row waits for room."""
        return bool(self.pending)

    def setup(self) -> Intake:
        """Nothing is taken."""
        return Intake()

    def offer(self, split: Split) -> int:
        """Take rows for the room, and one more that is pending."""
        self.tries += 1
        self.flush()
        taken = 0
        for subpartition, batch in split:
            for value in batch.column(0).to_pylist():
                if self.pending:
                    return taken
                self.pending.append((subpartition, value))
                self.flush()
                taken += 1
        return taken

    def flush(self) -> None:
        """Give out what is pending."""
        while self.pending and self.room:
            self.given.append(self.pending.pop())
            self.room -= 1

    def finish(self) -> PartitionEnd | None:
        """Not while a row is pending."""
        self.flush()
        return None if self.pending else PartitionEnd((EndOfPartition(len(self.given), 0, 0),))


class Waiting:
    """A wait at whose end there is more room, or none, as the writer's program says; at last there is always some."""

    def __init__(self, writer: Narrow) -> None:
        self.arrivals = 0
        self._writer = writer

    def wait(self, seen: int, seconds: float | None = None) -> None:
        """Something comes."""
        assert seen == self.arrivals
        self.arrivals += 1
        self._writer.room += self._writer.rooms.pop() if self._writer.rooms else 1


ROWS = pa.record_batch([pa.array(range(6))], ["n"])


@given(
    rooms=st.lists(st.integers(0, 3), max_size=30),
    orders=st.lists(st.permutations(range(6)), min_size=1, max_size=4),
    counts=st.lists(st.integers(0, 6), min_size=2, max_size=2),
)
def test_every_row_goes_once_and_in_order_whatever_room_there_is(
    rooms: list[int], orders: list[list[int]], counts: list[int]
) -> None:
    """Splits with an order, of any runs, taken in any parts."""
    writer = Narrow(rooms)
    blocking = BlockingWriter(writer, Waiting(writer), MetricGroup("test"))  # type: ignore[arg-type]
    bounds = sorted(counts)
    runs = [bounds[0], bounds[1] - bounds[0], 6 - bounds[1]]
    numbers = [number for number, count in enumerate(runs) if count]
    expected: list[tuple[int, int]] = []
    for order in orders:
        of_row = [number for number, count in enumerate(runs) for _ in range(count)]
        expected += zip(of_row, order, strict=True)
        blocking.write(Split(ROWS, numbers, [count for count in runs if count], pa.array(order)))
        assert writer.given == expected, "what is written has left the writer"
    blocking.flush()
    assert blocking.finish().sums[0].rows == len(expected)


def test_rows_are_gathered_once_however_often_there_is_no_room() -> None:
    """A writer that takes a row at a time gets slices of one copy."""
    gathered = 0

    def gather(batch: pa.RecordBatch, order: pa.Array) -> pa.RecordBatch:
        nonlocal gathered
        gathered += 1
        return batch.take(order)

    writer = Narrow([])
    blocking = BlockingWriter(writer, Waiting(writer), MetricGroup("test"))  # type: ignore[arg-type]
    blocking.write(Split(ROWS, (1, 0), (3, 3), pa.array([5, 4, 3, 2, 1, 0]), gather))
    assert writer.tries > 3
    assert gathered == 1
    assert [value for _, value in writer.given] == [5, 4, 3, 2, 1, 0]


def test_a_call_that_waits_lets_its_task_tell_how_far_it_is() -> None:
    """Once for each wait: a task that says nothing looks as if it worked all the time."""
    told: list[float] = []
    writer, metrics = Narrow([]), MetricGroup("test")
    waiting = Waiting(writer)
    blocking = BlockingWriter(  # type: ignore[arg-type]
        writer, waiting, metrics, lambda: told.append(metrics.snapshot()["back_pressured_seconds"])
    )
    blocking.write(Split.whole(ROWS, 0))
    assert len(told) >= 3
    assert told == sorted(told)


def test_a_wait_that_is_told_to_stop_raises() -> None:
    """A write without room ends with its task."""
    host = MemoryHost("here")
    host.cancel("enough")
    with pytest.raises(TaskCancelledError, match="enough"):
        BlockingWriter(Narrow([]), host, MetricGroup("test")).write(Split.whole(ROWS, 0))  # type: ignore[arg-type]


def test_a_write_that_waits_ends_when_another_thread_closes() -> None:
    """A task that fails while its flusher waits for room: the writer is closed, and the flusher hears of it."""
    host = MemoryHost("here")
    closed = threading.Event()

    class Closable(Narrow):
        def offer(self, split: Split) -> int:
            """Refuse, once it is closed."""
            if closed.is_set():
                raise PenstockError("written to while closed")
            return super().offer(split)

        def close(self, cause: BaseException | None = None) -> None:
            """Note it."""
            closed.set()

    metrics = MetricGroup("test")
    blocking = BlockingWriter(Closable([]), host, metrics)  # type: ignore[arg-type]
    task = Running(lambda: blocking.write(Split.whole(ROWS, 0)))
    wait_until(lambda: metrics.values.get("is_back_pressured") == 1, "the write to wait")
    blocking.close(ValueError("the task has failed"))
    assert isinstance(task.outcome(), PenstockError)
