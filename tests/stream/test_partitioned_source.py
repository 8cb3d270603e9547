# SPDX-License-Identifier: Apache-2.0
"""A user's own source: partitions read from an offset, each row once whatever is restored."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PlanError, SchemaError
from penstock.stream.partitioned_source import PartitionedReader, PartitionedSource

SCHEMA = pa.schema([("n", pa.int64())])


@dataclass
class Numbers:
    """Partition `p` has so many numbers from p * 100 on, in batches of `size`, with nothing now in between."""

    counts: dict[str, int]
    size: int = 3
    schema: pa.Schema = SCHEMA

    def partitions(self) -> Sequence[str]:
        """Their names."""
        return list(self.counts)

    def read(self, partition: str, offset: int | None) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        """The numbers after an offset."""
        at, end = offset or 0, self.counts[partition]
        while at < end:
            yield None, at
            numbers = range(at, min(end, at + self.size))
            at = numbers.stop
            yield pa.record_batch({"n": [int(partition) * 100 + number for number in numbers]}, SCHEMA), at


def source(numbers: Numbers) -> PartitionedSource:
    """The source as a task gets it; it asks whenever it is asked."""
    copy: PartitionedSource = pickle.loads(pickle.dumps(PartitionedSource(numbers, 0.0)))  # noqa: S301 - made here
    return copy


def rows(reader: PartitionedReader, most: int, polls: int = 1 << 30) -> list[int]:
    """The numbers that so many polls give, or all."""
    found: list[int] = []
    while polls and not reader.is_ended:
        batch = reader.poll(most)
        found += [] if batch is None else [int(value) for value in batch.column(0).to_pylist()]
        polls -= 1
    return found


@given(st.lists(st.integers(0, 12), min_size=1, max_size=3), st.integers(1, 3), st.data())
def test_each_row_comes_once(counts: list[int], parallelism: int, data: st.DataObject) -> None:
    """With readers that go on from snapshots after any poll, of another parallelism, and batches cut otherwise."""
    numbers = Numbers({str(at): count for at, count in enumerate(counts)})
    found: list[int] = []
    states: list[bytes] = []
    for _ in range(data.draw(st.integers(0, 4))):
        numbers.size = data.draw(st.integers(1, 5))
        readers = [source(numbers).open(subtask, parallelism, states) for subtask in range(parallelism)]
        for reader in readers:
            found += rows(reader, data.draw(st.integers(1, 4)), data.draw(st.integers(0, 6)))
        states = [reader.snapshot() for reader in readers]
        for reader in readers:
            reader.close()
        parallelism = data.draw(st.integers(1, 3))
    for subtask in range(parallelism):
        found += rows(source(numbers).open(subtask, parallelism, states), 2)
    assert sorted(found) == [at * 100 + number for at, count in enumerate(counts) for number in range(count)]


@given(st.integers(1, 3), st.data())
def test_partitions_that_appear_among_others_move_none(parallelism: int, data: st.DataObject) -> None:
    """In front, between and at the end, while the number of subtasks stays: each row of all comes once."""
    numbers = Numbers({"5": 4, "6": 7})
    found: list[int] = []
    states: list[list[bytes]] = [[] for _ in range(parallelism)]
    for _ in range(data.draw(st.integers(1, 4))):
        run = PartitionedSource(numbers, 0.0).pinned()
        readers = [run.open(subtask, parallelism, states[subtask]) for subtask in range(parallelism)]
        for reader in readers:
            found += rows(reader, 2, data.draw(st.integers(0, 5)))
        states = [[reader.snapshot()] for reader in readers]
        counts = list(numbers.counts.items())
        counts.insert(data.draw(st.integers(0, len(counts))), (str(len(counts) + 5), data.draw(st.integers(0, 4))))
        numbers = Numbers(dict(counts))
    run = PartitionedSource(numbers, 0.0).pinned()
    for subtask in range(parallelism):
        found += rows(run.open(subtask, parallelism, states[subtask]), 3)
    expected = [int(name) * 100 + at for name, count in numbers.counts.items() for at in range(count)]
    assert sorted(found) == sorted(expected)


def test_a_partition_that_has_gone_is_refused() -> None:
    """Its rows would be forgotten silently."""
    reader = source(Numbers({"0": 3, "1": 3})).open(0, 1, [])
    rows(reader, 10, 2)
    with pytest.raises(PlanError, match="partition '1' was read before"):
        source(Numbers({"0": 3})).open(0, 1, [reader.snapshot()])


def test_rows_must_fit_the_schema() -> None:
    """The message names the class."""
    wrong = Numbers({"0": 3}, schema=pa.schema([("other", pa.int64())]))
    reader = source(wrong).open(0, 1, [])
    with pytest.raises(SchemaError, match="Numbers"):
        rows(reader, 10)


def test_a_batch_job_reads_to_the_end() -> None:
    """It does so if there is one."""
    batches = list(source(Numbers({"0": 4, "1": 2})).read(0, 1))
    assert sorted(value for batch in batches for value in batch.column(0).to_pylist()) == [0, 1, 2, 3, 100, 101]


class Again(Numbers):
    """Writes all of its batches over one array."""

    def read(self, partition: str, offset: int | None) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        """The numbers after an offset."""
        values = np.zeros(self.size, np.int64)
        for at in range(offset or 0, self.counts[partition], self.size):
            values[:] = range(at, at + self.size)
            yield pa.RecordBatch.from_arrays([pa.array(values)], schema=SCHEMA), at + self.size


def test_a_source_may_use_its_memory_again() -> None:
    """Rows that wait in the task keep their values when the source is asked for more, whole batches and parts."""
    reader = source(Again({"0": 16}, 4)).open(0, 1, [])
    given = [reader.poll(3), reader.poll(3), reader.poll(100)]
    expected = [[0, 1, 2], [3, 4, 5], list(range(6, 16))]
    assert [batch["n"].to_pylist() for batch in given if batch is not None] == expected


class Sparse(Numbers):
    """Each number comes after so many batches without rows that have offsets of their own."""

    gap = 1000

    def read(self, partition: str, offset: int | None) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        """The numbers after an offset, which counts the batches."""
        for at in itertools.count(offset or 0):
            if at == self.gap * self.counts[partition]:
                return
            rows = [at // self.gap] if at % self.gap == self.gap - 1 else []
            yield pa.record_batch({"n": rows}, SCHEMA), at + 1


def test_batches_without_rows_hold_up_no_barrier() -> None:
    """A poll comes back in the midst of them with the offset moved, the next one goes on at once."""
    reader = PartitionedSource(Sparse({"0": 2}), 3600.0).open(0, 1, [])
    assert reader.poll(10) is None
    assert reader.wake_at is None
    again = PartitionedSource(Sparse({"0": 2}), 3600.0).open(0, 1, [reader.snapshot()])
    assert msgpack.unpackb(reader.snapshot())[1][0][1] > 0
    assert rows(reader, 10) == rows(again, 10) == [0, 1]


def test_a_stop_iteration_of_a_users_code_ends_no_partition() -> None:
    """Out of a function that `map` calls: the rows after it would be lost without a word."""

    class Mapped(Numbers):
        def read(self, partition: str, offset: int | None) -> Iterator[tuple[pa.RecordBatch | None, int]]:
            return map(first_two, super().read(partition, offset))

    def first_two(found: tuple[pa.RecordBatch | None, int]) -> tuple[pa.RecordBatch | None, int]:
        return found if found[1] < 6 else next(iter(()))

    with pytest.raises(RuntimeError, match="first_two raised StopIteration, which would end the rows"):
        rows(PartitionedSource(Mapped({"0": 9}), 0.0).open(0, 1, []), 5)
