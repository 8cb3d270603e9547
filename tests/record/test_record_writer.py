# SPDX-License-Identifier: Apache-2.0
"""RecordWriter: gathers small batches, cuts large ones, loses nothing, flushes in time, reports failures."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.record.partitioners import PartitionerSpec
from penstock.record.record_writer import OutputFlusher, RecordWriter
from penstock.shuffle import Intake, PartitionEnd
from penstock.shuffle.splits import ALL, Split
from penstock.testing import DEADLINE
from record_samples import MAKERS, batch_of

STORING = Intake(1 << 20, 1 << 20, holds_batches=True)
"""Of a target that stores."""


class Target:
    """A result partition in memory. `gate`, when given, holds writes back until it is opened."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.calls: list[tuple[str, int, pa.RecordBatch | None]] = []
        self.entered = threading.Event()
        self._gate = gate
        self.failure: BaseException | None = None
        self.busy = 0

    def write(self, split: Split) -> None:
        """Keep the batches; two writes at once are a defect."""
        self.busy += 1
        assert self.busy == 1
        self.entered.set()
        if self._gate is not None:
            assert self._gate.wait(DEADLINE)
        for subpartition, batch in split:
            self.calls.append(("write", subpartition, batch))
        self.busy -= 1
        if self.failure is not None:
            raise self.failure

    def flush(self) -> None:
        """Say so."""
        assert not self.busy
        self.calls.append(("flush", -1, None))

    def finish(self) -> PartitionEnd:
        """Say so."""
        self.calls.append(("finish", -1, None))
        return PartitionEnd(())

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The batches that were written, in order."""
        return [batch for _, _, batch in self.calls if batch is not None]

    @property
    def names(self) -> list[str]:
        """The methods that were called, in order."""
        return [name for name, _, _ in self.calls]


class Clock:
    """A waiter that wakes when the test says so."""

    def __init__(self) -> None:
        self._ticks: queue.Queue[bool] = queue.Queue()
        self._returned = threading.Semaphore(0)
        self.timeouts: list[float] = []

    def wait(self, timeout: float) -> bool:
        """Wait for the test."""
        self.timeouts.append(timeout)
        self._returned.release()
        return self._ticks.get(timeout=DEADLINE)

    def set(self) -> None:
        """Stop."""
        self._ticks.put(True)

    def tick(self) -> None:
        """One interval passes: returns when the flusher waits again (or has ended)."""
        self.begin_tick()
        self.end_tick()

    def begin_tick(self) -> None:
        """One interval passes."""
        assert self._returned.acquire(timeout=DEADLINE)
        self._ticks.put(False)

    def end_tick(self) -> None:
        """Wait for the flusher to wait again, or to have ended."""
        assert self._returned.acquire(timeout=DEADLINE)
        self._returned.release()


def _writer(
    target: Target, kind: str = "forward", n: int = 1, timeout: float = -1, clock=None, intake: Intake | None = None
) -> RecordWriter:
    spec = PartitionerSpec(kind, ("row",) if kind == "hash" else ())
    return RecordWriter(spec.build(n, 0), target, intake or Intake(), timeout, clock)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not [t for t in threading.enumerate() if t.name == "penstock-output-flusher"]


def test_small_batches_are_gathered() -> None:
    """100 batches of 100 rows become messages of at least 4,096 rows, in order, and the rest at the end."""
    target = Target()
    writer = _writer(target)
    batches = [batch_of(["string"], 100, seed) for seed in range(100)]
    for batch in batches:
        writer.write(batch)
    assert [b.num_rows for b in target.batches] == [4100, 4100]
    writer.finish()
    assert [b.num_rows for b in target.batches] == [4100, 4100, 1800]
    assert target.names[-1] == "finish"
    assert pa.Table.from_batches(target.batches).equals(pa.Table.from_batches(batches))


def test_small_batches_are_kept_and_large_ones_are_not() -> None:
    """A giver of a large one may write into its memory again at once, unless the target stores what it gets."""
    writer = _writer(Target())
    assert writer.keeps(batch_of([], 4095))
    assert not writer.keeps(batch_of([], 4096))
    assert _writer(Target(), intake=STORING).keeps(batch_of([], 2 << 20))
    copying = replace(STORING, holds_batches=False)
    assert not _writer(Target(), intake=copying).keeps(batch_of([], 2 << 20))
    assert _writer(Target(), intake=copying).keeps(batch_of([], 4096))


def test_more_subpartitions_gather_more() -> None:
    """With 1,000 subpartitions a batch holds at least 128 rows for each."""
    target = Target()
    writer = _writer(target, "rebalance", 1000)
    for _ in range(31):
        writer.write(batch_of([], 4100))
    assert target.calls == []
    writer.write(batch_of([], 4100))
    assert len(target.calls) == 1000
    assert min(b.num_rows for b in target.batches) >= 128


def test_many_bytes_end_gathering() -> None:
    """8 MiB are enough, however few the rows."""
    target = Target()
    writer = _writer(target)
    row = pa.RecordBatch.from_arrays([pa.array(["x" * (3 << 20)])], ["c"])
    for _ in range(3):
        writer.write(row)
    assert [b.num_rows for b in target.batches] == [3]


def test_large_batches_are_cut() -> None:
    """More than a million rows, or 32 MiB, are cut into slices of the batch's own memory."""
    target = Target()
    writer = _writer(target)
    rows = (1 << 20) + 5
    wide = np.zeros((rows, 5), np.int64)
    columns = [pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(wide[:, i].copy())]) for i in range(5)]
    writer.write(pa.RecordBatch.from_arrays(columns[:1], ["a"]))
    assert [b.num_rows for b in target.batches] == [1 << 20, 5]
    target.calls.clear()
    writer.write(pa.RecordBatch.from_arrays(columns, list("abcde")))
    assert sum(b.num_rows for b in target.batches) == rows
    assert max(b.nbytes for b in target.batches) <= 32 << 20
    assert target.batches[0].column(2).buffers()[1].address == columns[2].buffers()[1].address


def test_a_huge_row_passes() -> None:
    """One row above the limit cannot be cut and is written as it is."""
    target = Target()
    row = pa.RecordBatch.from_arrays([pa.array([b"x" * (40 << 20)] * 2)], ["c"])
    writer = _writer(target)
    writer.write(row)
    assert [b.num_rows for b in target.batches] == [1, 1]


def test_a_broadcast_batch_is_written_once() -> None:
    """For all subpartitions; small batches are gathered all the same."""
    target = Target()
    writer = _writer(target, "broadcast", 4)
    writer.write(batch_of([], 10))
    writer.write(batch_of([], 5000))
    writer.finish()
    assert [(name, number) for name, number, _ in target.calls] == [("write", ALL), ("write", ALL), ("finish", -1)]
    assert [b.num_rows for b in target.batches] == [10, 5000]


@settings(max_examples=examples(50), deadline=None)
@given(
    st.sampled_from(["hash", "random", "rebalance", "forward"]),
    st.lists(st.sampled_from(sorted(MAKERS)), max_size=2),
    st.lists(st.one_of(st.integers(0, 60), st.just("flush")), max_size=8),
    st.sampled_from([-1, 0]),
)
def test_no_row_is_lost_or_reordered(kind: str, names: list[str], steps: list, timeout: float) -> None:
    """Any batches of any types and flushes between: every row once, in order per subpartition."""
    target = Target()
    writer = _writer(target, kind, 3, timeout)
    written = 0
    expected = []
    for step in steps:
        if step == "flush":
            writer.flush()
            assert sum(b.num_rows for b in target.batches) == written
            continue
        batch = batch_of(names, written + step, 1).slice(written)
        expected += batch.to_pylist()
        writer.write(batch)
        written += step
    writer.finish()
    for channel in range(3):
        found = [row for _, c, b in target.calls if c == channel and b is not None for row in b.to_pylist()]
        numbers = [row["row"] for row in found]
        assert numbers == sorted(numbers)
        assert found == [expected[number] for number in numbers]
    assert sum(b.num_rows for b in target.batches) == written


def test_zero_timeout_flushes_each_write() -> None:
    """Every batch is visible when `write` returns; an empty one costs nothing."""
    target = Target()
    writer = _writer(target, timeout=0)
    for rows in (1, 0, 2):
        writer.write(batch_of([], rows))
    assert target.names == ["write", "flush", "write", "flush"]
    writer.finish()


def test_the_timer_flushes_what_was_written_and_only_then() -> None:
    """A tick emits what was gathered; a tick with nothing new does nothing."""
    target, clock = Target(), Clock()
    with _writer(target, timeout=0.25, clock=clock) as writer:
        clock.tick()
        assert target.names == []
        writer.write(batch_of([], 3))
        assert target.names == []
        clock.tick()
        assert target.names == ["write", "flush"]
        clock.tick()
        assert target.names == ["write", "flush"]
    assert set(clock.timeouts) == {0.25}


def test_the_timer_waits_for_a_waiting_write() -> None:
    """A write that waits for room has shown all before: the timer never calls the target beside it."""
    gate, clock = threading.Event(), Clock()
    target = Target(gate)
    writer = _writer(target, timeout=1.0, clock=clock)
    task = threading.Thread(target=writer.write, args=(batch_of([], 5000),))
    task.start()
    assert target.entered.wait(DEADLINE)
    clock.begin_tick()
    gate.set()
    clock.end_tick()
    task.join(DEADLINE)
    writer.finish()
    assert target.names == ["write", "flush", "finish"]


def test_a_failure_in_the_timer_reaches_the_task() -> None:
    """The next write, flush and finish raise it, and the thread has ended."""
    target, clock = Target(), Clock()
    target.failure = RuntimeError("no disk")
    writer = _writer(target, timeout=1.0, clock=clock)
    writer.write(batch_of([], 1))
    clock._ticks.put(False)
    writer._flusher._thread.join(DEADLINE)
    for call in (lambda: writer.write(batch_of([], 1)), writer.flush, writer.finish):
        with pytest.raises(RuntimeError, match="no disk"):
            call()
    assert "finish" not in target.names
    writer.close()


def test_close_is_idempotent_and_drops_what_is_not_finished() -> None:
    """Closing without finishing writes nothing more: the partition will be failed by its owner."""
    target = Target()
    writer = _writer(target, timeout=60)
    writer.write(batch_of([], 1))
    writer.close()
    writer.close()
    assert target.calls == []


def test_the_real_waiter_stops_at_once() -> None:
    """Without a stand-in an Event waits; closing does not wait for the interval, even if never started."""
    flusher = OutputFlusher(lambda: None, 3600)
    flusher.start()
    flusher.close()
    OutputFlusher(lambda: None, 3600).close()


def test_batches_arrow_cannot_join_pass_one_by_one() -> None:
    """Different dictionaries inside another type: separate messages, same rows."""
    inner = [pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(words)) for words in (["a", "b"], ["c", "d"])]
    batches = [pa.RecordBatch.from_arrays([pa.StructArray.from_arrays([i], ["d"])], ["s"]) for i in inner]
    target = Target()
    writer = _writer(target)
    for batch in batches:
        writer.write(batch)
    writer.finish()
    assert [row for b in target.batches for row in b.to_pylist()] == [row for b in batches for row in b.to_pylist()]


def test_a_target_gets_as_many_bytes_at_once_as_it_takes_best() -> None:
    """However many rows: gathered until they are as many bytes as it asks for; what is larger passes as it is."""
    target = Target()
    writer = _writer(target, intake=STORING)
    rows = pa.RecordBatch.from_arrays([pa.array(["x" * 100] * 1000)], ["c"])
    for _ in range(10):
        writer.write(rows)
    assert target.calls == []
    writer.write(rows)
    assert [b.num_rows for b in target.batches] == [11_000]
    large = pa.RecordBatch.from_arrays([pa.array(["x" * 100] * 20_000)], ["c"])
    writer.write(large)
    assert target.batches[1] is large
    writer.finish()
