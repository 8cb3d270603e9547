# SPDX-License-Identifier: Apache-2.0
"""The rate source: which values, when, and that they come again."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PlanError, SettingError
from penstock.stream.rate import PORTION_SECONDS, RateReader, RateSource


class Clock:
    """Time that a test sets; called, it says it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time that it is."""
        return self.now


def values(batch: pa.RecordBatch | None) -> list[int]:
    """The values of a batch."""
    return [] if batch is None else batch.column("value").to_pylist()


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 40), st.lists(st.integers(1, 7), min_size=1), st.data())
def test_each_value_comes_once_whatever_is_restored(
    partitions: int, parallelism: int, rows: int, sizes: list[int], data: st.DataObject
) -> None:
    """Of all subtasks together, with a new reader from the snapshot after any poll, also of another parallelism."""
    source = pickle.loads(pickle.dumps(RateSource(0, partitions, rows)))  # noqa: S301 - made here
    found: list[int] = []
    states: list[bytes] = []
    for attempt, size in enumerate([*sizes, 1000]):
        readers = [source.open(subtask, parallelism, states) for subtask in range(parallelism)]
        for reader in readers:
            turns = 1000 if attempt == len(sizes) else data.draw(st.integers(0, 3))
            for _ in range(turns):
                found += values(reader.poll(size))
        states = [reader.snapshot() for reader in readers]
        parallelism = data.draw(st.integers(1, 4))
    assert sorted(found) == list(range(rows))
    assert all(reader.is_ended for reader in readers)


def test_partition_p_of_n_gives_every_nth_value() -> None:
    """As PySpark's does."""
    assert values(RateSource(0, 3).open(1, 3, []).poll(4)) == [1, 4, 7, 10]


def test_rows_come_when_they_are_due() -> None:
    """At 100 rows a second one each 10 ms; `wake_at` says when the next one is, and its timestamp is that moment."""
    clock, wall = Clock(), Clock()
    reader = RateReader(RateSource(100), {0: 0}, clock, wall)
    first = reader.poll(10)
    assert values(first) == [0]
    assert reader.poll(10) is None
    assert reader.wake_at == pytest.approx(100.01)
    clock.now = 100.0351
    batch = reader.poll(10)
    assert values(batch) == [1, 2, 3]
    assert batch is not None
    seconds = [moment.timestamp() for moment in batch.column("timestamp").to_pylist()]
    assert seconds == pytest.approx([100.01, 100.02, 100.03])


def test_a_high_rate_wakes_its_task_a_hundred_times_a_second() -> None:
    """Rows that are due together come together, those of all partitions; the task sleeps between portions."""
    clock, wall = Clock(), Clock()
    reader = RateReader(RateSource(100_000, partitions=4), {0: 0, 1: 0, 2: 0, 3: 0}, clock, wall)
    found = values(reader.poll(5000))
    wakes = 0
    while clock.now < 101:
        assert reader.poll(5000) is None
        assert reader.wake_at == pytest.approx(clock.now + PORTION_SECONDS)
        clock.now = reader.wake_at
        found += values(reader.poll(5000))
        wakes += 1
    assert wakes == pytest.approx(100, abs=1)
    assert sorted(found) == list(range(len(found)))
    assert len(found) == pytest.approx(100_000, abs=1_100)


def test_portions_may_be_smaller() -> None:
    """Ten times as many, and as many rows in all."""
    clock, wall = Clock(), Clock()
    reader = RateReader(RateSource(10_000, portion=0.001), {0: 0}, clock, wall)
    found = values(reader.poll(5000))
    wakes = 0
    while clock.now < 101:
        assert reader.wake_at == pytest.approx(clock.now + 0.001)
        clock.now = reader.wake_at
        found += values(reader.poll(5000))
        wakes += 1
    assert wakes == pytest.approx(1000, abs=5)
    assert found == list(range(len(found)))


def test_what_is_due_beyond_a_step_is_given_without_a_pause() -> None:
    """A portion of a thousand rows, in steps of a hundred: the task is to come again at once until all is given."""
    clock, wall = Clock(), Clock()
    reader = RateReader(RateSource(100_000), {0: 0}, clock, wall)
    reader.poll(100)
    clock.now += PORTION_SECONDS
    steps = [len(values(reader.poll(100))) for _ in range(5)]
    assert steps == [100] * 5
    assert reader.wake_at is not None
    assert reader.wake_at <= clock.now


def test_a_restored_reader_keeps_the_rate() -> None:
    """Rows that an earlier attempt has given are not due at once."""
    state = RateSource(10).open(0, 1, []).snapshot()
    clock, wall = Clock(), Clock()
    reader = RateReader(RateSource(10), {0: 500}, clock, wall)
    assert values(reader.poll(100)) == [500]
    assert reader.poll(100) is None
    assert reader.snapshot() != state


def test_a_batch_job_reads_the_same_rows() -> None:
    """Without the rate, and only where there is an end."""
    rows = [value for batch in RateSource(1, 2, 10).read(1, 2) for value in values(batch)]
    assert rows == [1, 3, 5, 7, 9]
    with pytest.raises(PlanError, match="needs numRows"):
        list(RateSource(1).read(0, 1))


def test_what_makes_no_sense_is_refused() -> None:
    """Negative numbers, and another number of partitions than a checkpoint was taken with."""
    for wrong in ({"rows_per_second": -1}, {"partitions": 0}, {"num_rows": -1}):
        with pytest.raises(SettingError):
            RateSource(**wrong)
    state = RateSource(0, 2).open(0, 1, []).snapshot()
    with pytest.raises(PlanError, match="numPartitions is 3"):
        RateSource(0, 3).open(0, 1, [state])
