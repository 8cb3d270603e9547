# SPDX-License-Identifier: Apache-2.0
"""Partitioners: every row once, in order, where the oracle says; errors name what is wrong."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.errors import SchemaError, SettingError
from penstock.record.partitioners import KINDS, RANGE_PLACES, Partitioner, PartitionerSpec
from penstock.record.spark_hash import spark_hash, spark_partition_ids
from penstock.record.word_hash import word_hash
from penstock.shuffle.splits import ALL
from record_samples import MAKERS, NO_KEYS, batch_of, sample

GATHERED = sorted(MAKERS)


def _modulo(batch: pa.RecordBatch) -> Any:
    return [(row * 7 + 1) % 3 for row in batch.column("row").to_pylist()]


def _spec(kind: str, keys: tuple[str, ...] = ("row",), spark: bool = False) -> PartitionerSpec:
    function = _modulo if kind == "custom" else None
    return PartitionerSpec(kind, keys if kind in ("hash", "range") else (), function, spark)


def _placed(partitioner: Partitioner, batch: pa.RecordBatch) -> dict[int, list[Any]]:
    """Rows per subpartition; checks what holds for every partitioner."""
    parts = list(partitioner.split(batch))
    assert len({channel for channel, _ in parts}) == len(parts)
    for channel, rows in parts:
        assert 0 <= channel < partitioner.subpartitions or (channel, len(parts)) == (ALL, 1)
        assert rows.num_rows > 0
        assert rows.schema.equals(batch.schema)
        rows.validate(full=True)
    return {channel: rows.to_pylist() for channel, rows in parts}


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(st.sampled_from(GATHERED), max_size=4),
    st.integers(0, 70),
    st.sampled_from([3, 4, 17, 300]),
    st.integers(0, 999),
)
def test_every_row_once_and_in_order(kind: str, names: list[str], rows: int, n: int, seed: int) -> None:
    """For any types, also in a slice, the parts are the batch, rows keep their order, nothing is altered."""
    batch = batch_of(names, rows + 3, seed).slice(2, rows)
    placed = _placed(_spec(kind).build(n, seed), batch)
    expected = batch.to_pylist()
    first = batch.column(0)[0].as_py() if rows else 0
    for part in placed.values():
        numbers = [row["row"] for row in part]
        assert numbers == sorted(numbers)
        assert part == [expected[number - first] for number in numbers]
    assert sum(len(part) for part in placed.values()) == rows


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(st.sampled_from(sorted(set(MAKERS) - NO_KEYS)), min_size=1, max_size=3),
    st.sampled_from([1, 2, 5, 256, 257]),
    st.integers(0, 99),
)
def test_hash_places_rows_by_their_keys(names: list[str], n: int, seed: int) -> None:
    """Each row is where its keys' hash says, for any hashable keys, batch after batch with one partitioner."""
    partitioner = None
    for turn in range(2):
        batch = batch_of(names, 40 + 20 * turn, seed + turn)
        keys = batch.schema.names[1:]
        partitioner = partitioner or PartitionerSpec("hash", tuple(keys)).build(n, 0)
        ids = [(h >> 32) * n >> 32 for h in word_hash([batch.column(key) for key in keys]).tolist()]
        for channel, part in _placed(partitioner, batch).items():
            assert [row["row"] for row in part] == [i for i, owner in enumerate(ids) if owner == channel]


def test_key_groups_are_dealt_out_in_runs() -> None:
    """Each task has a run of groups, so that another number of tasks moves whole groups; all have some."""
    batch = pa.record_batch({"k": pa.array(range(1000))})
    groups = spark_partition_ids([batch.column(0)], 16)
    for tasks in (2, 3, 16):
        split = PartitionerSpec("hash", ("k",), groups=16).build(tasks, 0).split(batch)
        owner = {value: number for number, part in split for value in part.column(0).to_pylist()}
        assert [owner[row] for row in range(1000)] == (groups.astype(int) * tasks // 16).tolist()
    with pytest.raises(SettingError, match="16 key groups for 17 tasks"):
        PartitionerSpec("hash", ("k",), groups=16).build(17, 0)


def test_spark_compatible_hash() -> None:
    """With `spark_compatible` a row is where Spark's repartition would put it."""
    batch = batch_of(["string", "int64"], 200)
    ids = [int(h) % 7 for h in spark_hash([batch.column(1), batch.column(2)])]
    placed = _placed(_spec("hash", ("0_string", "1_int64"), spark=True).build(7, 0), batch)
    assert placed == {c: [row for row, i in zip(batch.to_pylist(), ids, strict=True) if i == c] for c in set(ids)}


@pytest.mark.parametrize("kind", ["rebalance", "rescale"])
@pytest.mark.parametrize("rows", [1, 5, 13, 100])
def test_round_robin_stays_even(kind: str, rows: int) -> None:
    """After any number of batches, however small, subpartitions differ by at most one row."""
    partitioner = _spec(kind).build(8, 5)
    counts: Counter[int] = Counter()
    for _ in range(11):
        batch = batch_of([], rows)
        counts.update({channel: len(part) for channel, part in _placed(partitioner, batch).items()})
        assert max(counts.values()) - min(counts[c] for c in range(8)) <= 1


def test_where_round_robin_starts() -> None:
    """Rebalance starts at a channel that depends on the subtask, rescale at its first."""
    one_row = batch_of([], 1)
    assert [next(iter(_placed(_spec("rebalance").build(4, subtask), one_row))) for subtask in range(6)] == [
        0,
        1,
        2,
        3,
        0,
        1,
    ]
    assert [next(iter(_placed(_spec("rescale").build(4, subtask), one_row))) for subtask in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("kind", ["forward", "to_one", "broadcast"])
def test_single_channel_kinds(kind: str) -> None:
    """The batch itself, uncopied, for channel 0, or of broadcast for all."""
    batch = batch_of(["string"], 10)
    partitioner = _spec(kind).build(4, 2)
    ((channel, rows),) = partitioner.split(batch)
    assert channel == (ALL if kind == "broadcast" else 0)
    assert rows is batch


def test_a_rerun_repeats_itself() -> None:
    """A second attempt of the same subtask sends every row where the first did; other subtasks differ."""
    batch = batch_of([], 1000)
    first, again, other = (_placed(_spec("random").build(5, subtask), batch) for subtask in (3, 3, 4))
    assert first == again != other
    assert min(len(part) for part in first.values()) > 120


def test_gathers_nothing_it_need_not() -> None:
    """One subpartition, or all rows in one: the batch itself is handed on."""
    batch = batch_of(["string"], 10)
    ((_, rows),) = _spec("hash").build(1, 0).split(batch)
    assert rows is batch
    same = pa.RecordBatch.from_arrays([pa.array([7] * 10)], ["row"])
    ((_, rows),) = _spec("hash").build(9, 0).split(same)
    assert rows is same


def test_parts_stay_valid_after_the_next_split() -> None:
    """Scratch memory is reused, the parts' memory is not."""
    partitioner = _spec("hash").build(4, 0)
    batches = [batch_of(["int64", "string"], 500, seed) for seed in range(3)]
    kept = [list(partitioner.split(batch)) for batch in batches]
    for batch, parts in zip(batches, kept, strict=True):
        assert sorted(row["row"] for _, part in parts for row in part.to_pylist()) == list(range(500))
        rows = batch.to_pylist()
        assert all(row == rows[row["row"]] for _, part in parts for row in part.to_pylist())


@pytest.mark.parametrize(
    "form",
    [
        np.array,
        np.uint8,
        pa.array,
        lambda ids: pa.array(ids, pa.uint16()).slice(0),
        lambda ids: pa.chunked_array([ids]),
        list,
    ],
)
def test_custom_takes_any_integer_array(form: Any) -> None:
    """NumPy, Arrow and lists of integers."""
    function = (lambda ids: np.array(ids, np.uint8)) if form is np.uint8 else form
    spec = PartitionerSpec("custom", function=lambda batch: function(_modulo(batch)))
    batch = batch_of(["string"], 30)
    assert _placed(spec.build(3, 0), batch) == _placed(_spec("custom").build(3, 0), batch)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([0, 1], "2 values for a batch of 3 rows"),
        ([0, 3, 1], "returned 3 for row 1: it must be 0 to 2"),
        ([0, 1, -1], "returned -1 for row 2: it must be 0 to 2"),
        ([0.0, 1.0, 2.0], "returned 0.0 for row 0 .*type float64"),
        (pa.array([0.0, 1.0, 2.0]), "type double"),
        (pa.array([0, None, 1]), "returned null for row 1"),
        ([0, None, 1], "returned None for row 1"),
        ([True, False, True], "type bool"),
        (np.zeros((3, 1), np.int64), "2-dimensional"),
        (np.int64(1), "0-dimensional"),
        ([[0], [1, 2], 3], "no integer array"),
        (["a", "b", "c"], "integer"),
    ],
)
def test_custom_functions_that_are_wrong(result: Any, message: str) -> None:
    """The error names the value, the row and the rule."""
    with pytest.raises(SchemaError, match=message):
        PartitionerSpec("custom", function=lambda _: result).build(3, 0).split(batch_of([], 3))


def test_missing_and_unhashable_keys() -> None:
    """The error names the column, and the columns there are."""
    batch = batch_of(["map", "uint8"], 3)
    with pytest.raises(SchemaError, match="'nope' is missing; the columns are row, 0_map, 1_uint8"):
        _spec("hash", ("nope",)).build(2, 0).split(batch)
    with pytest.raises(SchemaError, match=r"'0_map' of type map<.*cannot be hashed"):
        _spec("hash", ("0_map",)).build(1, 0).split(batch)
    with pytest.raises(SchemaError, match="'1_uint8' of type uint8 cannot be hashed: Spark has no such type"):
        _spec("hash", ("1_uint8",), spark=True).build(2, 0).split(batch)
    twice = pa.RecordBatch.from_arrays([sample("int8", 1)] * 2, ["a", "a"])
    with pytest.raises(SchemaError, match="'a' is there more than once"):
        _spec("hash", ("a",)).build(2, 0).split(twice)


def test_specs_are_checked_and_travel() -> None:
    """A wrong spec is refused at once; a right one survives pickling."""
    for wrong, message in (
        ({"kind": "nearest"}, "unknown partitioner 'nearest'"),
        ({"kind": "range"}, "one column that holds the places"),
        ({"kind": "hash"}, "key"),
        ({"kind": "custom"}, "function"),
    ):
        with pytest.raises(SettingError, match=message):
            PartitionerSpec(**wrong)
    with pytest.raises(SettingError, match="0 subpartitions"):
        _spec("forward").build(0, 0)
    for kind in KINDS:
        spec = pickle.loads(pickle.dumps(_spec(kind)))  # noqa: S301 - our own bytes
        assert spec == _spec(kind)


@pytest.mark.parametrize("n", [1, 3, 8, 300])
def test_ranges_have_equal_shares_of_the_places(n: int) -> None:
    """Subpartitions are in order of the places, and each has as many places as the others."""
    batch = pa.record_batch([pa.array(range(RANGE_PLACES), pa.uint16())], ["row"])
    placed = _placed(_spec("range").build(n, 0), batch)
    assert [row["row"] for channel in sorted(placed) for row in placed[channel]] == list(range(RANGE_PLACES))
    assert {len(rows) for rows in placed.values()} <= {RANGE_PLACES // n, RANGE_PLACES // n + 1}


def test_zero_columns_and_zero_rows() -> None:
    """Rows without columns are still rows; no rows give no parts."""
    nothing = batch_of([], 9).select([])
    placed = [part.num_rows for _, part in _spec("random").build(3, 1).split(nothing)]
    assert sum(placed) == 9
    assert sum(part.num_rows for _, part in _spec("rebalance").build(4, 1).split(nothing)) == 9
    for kind in KINDS:
        assert list(_spec(kind).build(3, 0).split(batch_of(["string"], 0))) == []


def test_types_arrow_cannot_gather_are_refused() -> None:
    """Run ends inside another type: an error that says what to do."""
    inner = sample("run_ends", 20)
    batch = pa.RecordBatch.from_arrays(
        [pa.StructArray.from_arrays([inner], ["r"]), pa.array(range(20))], ["s", "row"]
    )
    with pytest.raises(SchemaError, match="cast the column"):
        list(_spec("hash").build(4, 0).split(batch))


def test_the_oracle_of_scatter() -> None:
    """Random ids over the sizes where the way of counting and the id type change."""
    rng = random.Random(4)
    for n in (2, 16, 17, 256, 257, 70_000):
        ids = [rng.randrange(n) for _ in range(400)]
        batch = batch_of([], 400)
        placed = _placed(PartitionerSpec("custom", function=lambda _, ids=ids: ids).build(n, 0), batch)
        assert {c: [row["row"] for row in part] for c, part in placed.items()} == {
            c: [i for i, owner in enumerate(ids) if owner == c] for c in set(ids)
        }
