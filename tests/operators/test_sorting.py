# SPDX-License-Identifier: Apache-2.0
"""Orders and sorts of one task against Python's: every type, both directions, nulls, NaN, any memory."""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.operators.memory import TaskMemory, limited_memory
from penstock.operators.ordering import RowPlaces, SortKey, comparable, sorted_positions
from penstock.operators.sorting import CutRanges, KeySample, Order, SampleKeys, SortRows, TagRanges
from penstock.record import PartitionerSpec
from penstock.record.partitioners import RANGE_PLACES

SCHEMA = pa.schema([("f", pa.float64()), ("s", pa.string()), ("n", pa.int32()), ("row", pa.int64())])

rows_of_all = st.lists(
    st.fixed_dictionaries(
        {
            "f": st.sampled_from([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, None]),
            "s": st.sampled_from(["", "a", "ab", "b", "ä", "😀", None]),
            "n": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
        }
    ),
    max_size=40,
)
orders = st.lists(
    st.builds(SortKey, st.sampled_from(["f", "s", "n"]), st.booleans(), st.booleans()),
    min_size=1,
    max_size=3,
    unique_by=lambda key: key.column,
)


def rank(value: Any) -> Any:
    """A value that compares as Spark orders it: NaN above all numbers, strings by their bytes."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    return value.encode() if isinstance(value, str) else value


def compare(keys: list[SortKey], one: dict[str, Any], other: dict[str, Any]) -> int:
    """Which of two rows comes first: the oracle."""
    for key in keys:
        a, b = one[key.column], other[key.column]
        if a is None and b is None:
            continue
        if a is None or b is None:
            return -1 if (a is None) == key.nulls_first else 1
        if rank(a) != rank(b):
            return -1 if (rank(a) < rank(b)) == key.ascending else 1
    return 0


def numbered(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """A batch of rows that know where they were."""
    for number, row in enumerate(rows):
        row["row"] = number
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def expected_order(rows: list[dict[str, Any]], keys: list[SortKey]) -> list[int]:
    """The rows' numbers in stable order."""
    ordered = sorted(rows, key=functools.cmp_to_key(lambda one, other: compare(keys, one, other)))
    return [row["row"] for row in ordered]


@settings(deadline=None, max_examples=examples(200))
@given(rows_of_all, orders, st.integers(0, 3))
def test_positions_are_those_of_a_stable_sort(rows: list[dict[str, Any]], keys: list[SortKey], skip: int) -> None:
    """For any rows and keys, also in slices; rows that compare equal stay in their order."""
    batch = numbered(rows).slice(skip)
    columns = [comparable(batch.column(key.column)) for key in keys]
    found = batch.column("row").take(sorted_positions(keys, columns)).to_pylist()
    assert found == expected_order(rows[skip:], keys)


@settings(deadline=None, max_examples=examples(200))
@given(rows_of_all, rows_of_all, orders)
def test_places_among_cuts(rows: list[dict[str, Any]], cuts: list[dict[str, Any]], keys: list[SortKey]) -> None:
    """The number of cuts before a row, and of those that are not after it, with repeated cuts and nulls."""
    found = numbered(cuts)
    in_order = [cuts[number] for number in expected_order(cuts, keys)]
    batch = pa.RecordBatch.from_pylist(in_order, found.schema)
    places = RowPlaces(keys, [batch.column(key.column) for key in keys])
    rows_batch = numbered(rows)
    before, until = places.of([rows_batch.column(key.column) for key in keys])
    for number, row in enumerate(rows):
        assert before[number] == sum(compare(keys, cut, row) < 0 for cut in in_order)
        assert until[number] == sum(compare(keys, cut, row) <= 0 for cut in in_order)


def batches_of(rows: pa.RecordBatch, cut: int) -> Iterator[pa.RecordBatch]:
    """Small batches."""
    for start in range(0, rows.num_rows, cut):
        yield rows.slice(start, cut)


@settings(deadline=None, max_examples=examples(150))
@given(
    rows_of_all, orders, st.integers(1, 9), st.sampled_from([1, 200, 1000, 1 << 30]), st.integers(1, 4), st.booleans()
)
def test_ranges_sorted_one_after_the_other_are_a_sort(
    rows: list[dict[str, Any]], keys: list[SortKey], cut: int, limit: int, partitions: int, placed: bool
) -> None:
    """Sample, cut, tag, partition and sort, with any memory down to one byte: the stable order of all rows."""
    batch = numbered(rows)
    order = Order(SCHEMA, tuple(keys))
    with limited_memory(TaskMemory(limit, tempfile.gettempdir())):
        if not placed:
            found = pa.Table.from_batches(SortRows(order, placed=False).apply(batches_of(batch, cut)), SCHEMA)
            assert found["row"].to_pylist() == expected_order(rows, keys)
            return
        sample = SampleKeys(order).start()
        for part in batches_of(batch, cut):
            sample.add(part)
        tagged = SCHEMA.append(pa.field("place", pa.uint16(), nullable=False))
        cuts = CutRanges(order).apply(sample.rows())
        parts: list[list[pa.RecordBatch]] = [[] for _ in range(partitions)]
        split = PartitionerSpec("range", ("place",)).build(partitions, 0)
        for chunk in TagRanges(order, tagged).apply([cuts, batches_of(batch, cut)]):
            for number, part in split.split(chunk):
                parts[number].append(part)
        sorted_parts = [pa.Table.from_batches(SortRows(order, True).apply(iter(part)), SCHEMA) for part in parts]
    assert pa.concat_tables(sorted_parts)["row"].to_pylist() == expected_order(rows, keys)


TYPED = [
    pa.array([True, False, None]),
    pa.array([1, -2, None], pa.int8()),
    pa.array([2**63, 1, None], pa.uint64()),
    pa.array([1.0, -2.0, None], pa.float32()),
    pa.array([1, -2, None], pa.date32()),
    pa.array([1, -2, None], pa.timestamp("us", "UTC")),
    pa.array([1, -2, None], pa.duration("us")),
    pa.array([2, 1, None], pa.time64("ns")),
    pa.array([2, 1, None], pa.time32("s")),
    pa.array([1, -2, None], pa.decimal128(9, 2)),
    pa.array([b"b", b"a", None]),
    pa.array([b"b", b"a", None], pa.binary(1)),
    pa.array(["b", "a", None], pa.large_string()),
    pa.array(["b", "a", None], pa.string_view()),
    pa.array(["b", "a", None]).dictionary_encode(),
]


@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("column", TYPED, ids=lambda column: str(column.type))
def test_every_plain_type_is_sorted(column: pa.Array, ascending: bool) -> None:
    """Through the whole chain, spilled, with each type as key; its nulls where they are asked for."""
    rows = pa.record_batch([column, pa.array([0, 1, 2])], ["k", "row"])
    order = Order(rows.schema, (SortKey("k", ascending, nulls_first=not ascending),))
    sample = SampleKeys(order).start()
    sample.add(rows)
    tagged = rows.schema.append(pa.field("place", pa.uint16(), nullable=False))
    with limited_memory(TaskMemory(1, tempfile.gettempdir())):
        chunks = TagRanges(order, tagged).apply([CutRanges(order).apply(sample.rows()), batches_of(rows, 1)])
        found = pa.Table.from_batches(SortRows(order, placed=True).apply(chunks), rows.schema)
    assert found["row"].to_pylist() == ([1, 0, 2] if ascending else [2, 0, 1])
    assert found.schema == rows.schema


def test_keys_of_the_null_type_are_all_equal() -> None:
    """A column that is null by its type leaves the rows in their order."""
    rows = pa.record_batch([pa.nulls(3), pa.array([0, 1, 2])], ["k", "row"])
    order = Order(rows.schema, (SortKey("k"), SortKey("row", ascending=False)))
    assert pa.Table.from_batches(SortRows(order, False).apply(iter([rows])))["row"].to_pylist() == [2, 1, 0]


def test_a_sort_of_many_times_the_memory() -> None:
    """A random order of four megabytes in a quarter of one: in order, held within the limit and a batch."""
    values = np.random.default_rng(1).permutation(250_000)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    rows = pa.record_batch([pa.array(values), pa.array(values * 3)], schema=schema)
    order = Order(schema, (SortKey("k"),))
    memory = TaskMemory(256 << 10, tempfile.gettempdir())
    for placed in (False, True):
        with limited_memory(memory):
            sample = SampleKeys(order).start()
            for batch in batches_of(rows, 5000):
                sample.add(batch)
            given_rows = batches_of(rows, 5000)
            if placed:
                tagged = schema.append(pa.field("place", pa.uint16(), nullable=False))
                given_rows = TagRanges(order, tagged).apply([CutRanges(order).apply(sample.rows()), given_rows])
                given_rows = (part for chunk in given_rows for part in batches_of(chunk, 5000))
            found = pa.Table.from_batches(SortRows(order, placed).apply(given_rows), schema)
        assert np.array_equal(np.asarray(found["k"]), np.arange(250_000))
        assert np.array_equal(np.asarray(found["v"]), 3 * np.arange(250_000))
    assert memory.peak_bytes <= memory.limit + 5000 * 18
    assert memory.spilled_bytes > 2 * rows.nbytes


def test_equal_keys_beyond_the_memory_are_not_sorted() -> None:
    """Many equal keys among others pass through as they came, and the others are around them."""
    keys = np.where(np.arange(100_000) % 10 == 0, np.arange(100_000) - 50_000, 7)
    schema = pa.schema([("k", pa.int64()), ("row", pa.int64())])
    rows = pa.record_batch([pa.array(keys), pa.array(range(100_000))], schema=schema)
    memory = TaskMemory(100_000, tempfile.gettempdir())
    with limited_memory(memory):
        found = pa.Table.from_batches(SortRows(Order(schema, (SortKey("k"),)), False).apply(batches_of(rows, 999)))
    assert np.array_equal(np.asarray(found["row"]), np.argsort(keys, kind="stable"))
    assert memory.peak_bytes <= memory.limit + 999 * 16


def test_the_sample_is_uniform_and_bounded() -> None:
    """Of a million rows a few hundred, from all parts alike, each standing for its share; of a few rows all."""
    schema = pa.schema([("k", pa.int64())])
    order = Order(schema, (SortKey("k"),))
    sample = KeySample(order, 500)
    for batch in batches_of(pa.record_batch([pa.array(range(1_000_000))], schema=schema), 10_000):
        sample.add(batch)
    (rows,) = sample.rows()
    values = np.asarray(rows.column(0))
    assert rows.num_rows == len(np.unique(values)) == 500
    assert rows.column(1).to_pylist() == [2000.0] * 500
    assert np.all(np.histogram(values, 4, (0, 1_000_000))[0] > 90)
    few = KeySample(order, 500)
    few.add(pa.record_batch([pa.array([3, 1, 2])], schema=schema))
    assert [batch.to_pydict() for batch in few.rows()] == [{"#k": [3, 1, 2], "weight": [1.0] * 3}]
    assert list(KeySample(order, 5).rows()) == []


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_rows_of_a_generator_are_drawn_evenly(seed: int) -> None:
    """Numbers that users draw with the seeds users choose have nothing to do with those the sample draws."""
    schema = pa.schema([("k", pa.float64())])
    sample = KeySample(Order(schema, (SortKey("k"),)), 1000)
    sample.add(pa.record_batch([pa.array(np.random.default_rng(seed).random(100_000))], schema=schema))
    (rows,) = sample.rows()
    assert np.all(np.histogram(np.asarray(rows.column(0)), 4, (0, 1))[0] > 200)


def test_ranges_are_even() -> None:
    """Skewed numbers are cut into partitions of about the same size, and a frequent key stays in one of them."""
    generator = np.random.default_rng(5)
    keys = np.concatenate([generator.exponential(1000, 300_000).astype(np.int64), np.full(100_000, 500)])
    generator.shuffle(keys)
    schema = pa.schema([("k", pa.int64())])
    rows = pa.record_batch([pa.array(keys)], schema=schema)
    order = Order(schema, (SortKey("k"),))
    sample = SampleKeys(order).start()
    sample.add(rows)
    tagged = schema.append(pa.field("place", pa.uint16(), nullable=False))
    split = PartitionerSpec("range", ("place",)).build(8, 0)
    parts: dict[int, list[int]] = {}
    for chunk in TagRanges(order, tagged).apply([CutRanges(order).apply(sample.rows()), iter([rows])]):
        assert max(chunk.column("place").to_pylist()) < RANGE_PLACES
        for number, part in split.split(chunk):
            parts.setdefault(number, []).extend(part.column("k").to_pylist())
    homes = [number for number, values in parts.items() if 500 in values]
    assert len(homes) == 1
    sizes = [len(values) for number, values in parts.items() if number not in homes]
    assert max(sizes) < 400_000 / 8 * 1.15
    assert len(parts[homes[0]]) < 100_000 + 400_000 / 8 * 1.15


@pytest.mark.parametrize("length", [20, 5_000, 600_000])
def test_samples_and_cuts_of_long_keys(length: int) -> None:
    """Fewer of them are drawn and sent, so both keep to their bytes; cuts are still at equal distances."""
    order = Order(pa.schema([("s", pa.string())]), (SortKey("s", True, True),))
    sample = SampleKeys(order).start()
    for start in range(0, 256, 8):
        keys = [f"{number:04}" + "x" * length for number in range(start, start + 8)]
        sample.add(pa.record_batch({"s": keys}, order.schema))
    drawn = list(sample.rows())
    assert sum(batch.nbytes for batch in drawn) <= max(9 << 20, 17 * length)
    (cuts,) = CutRanges(order).apply(iter(drawn))
    assert cuts.nbytes <= 33 << 20
    assert cuts.num_rows + 1 == (4096 if length < 6000 else 32)
    middle = int(cuts.column(0)[cuts.num_rows // 2].as_py()[:4])
    assert 60 < middle < 200
