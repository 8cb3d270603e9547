# SPDX-License-Identifier: Apache-2.0
"""Groups of one or two sides under any memory: each key once, rows in order, bounded memory, nothing left on disk."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.errors import PenstockError, PlanError
from penstock.operators.cogroup import takes_key
from penstock.operators.groups import GroupCollector, Side
from penstock.operators.keys import int64_array
from penstock.operators.memory import TaskMemory
from penstock.operators.spill import SpillFile, key_buckets

SCHEMA = pa.schema([("f", pa.float64()), ("s", pa.dictionary(pa.int32(), pa.string())), ("row", pa.int64())])
OTHER = pa.schema([("row", pa.int64()), ("s", pa.string()), ("f", pa.float64()), ("x", pa.list_(pa.int8()))])
KEYS = ("f", "s")

rows_of_all = st.lists(
    st.fixed_dictionaries(
        {
            "f": st.sampled_from([0.0, -0.0, 1.5, math.nan, None]),
            "s": st.sampled_from(["", "a", "b", "ab", None]),
        }
    ),
    max_size=50,
)


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """The key of a row as Spark compares it."""
    number = row["f"]
    if number is not None:
        number = "nan" if math.isnan(number) else number + 0.0
    return (number, row["s"])


def memory_of(limit: int) -> TaskMemory:
    """A memory with this limit."""
    return TaskMemory(limit, tempfile.gettempdir())


@settings(deadline=None, max_examples=examples(120))
@given(rows_of_all, rows_of_all, st.sampled_from([1, 400, 3000, 1 << 30]), st.integers(1, 9))
def test_groups_of_two_sides_are_those_of_dictionaries(
    left: list[dict[str, Any]], right: list[dict[str, Any]], limit: int, cut: int
) -> None:
    """For any rows and any memory: each key of either side once, each row once, rows in the order they came."""
    expected: dict[tuple[Any, ...], tuple[list[int], list[int]]] = {}
    for side, rows in enumerate((left, right)):
        for number, row in enumerate(rows):
            row["row"] = number
            expected.setdefault(key_of(row), ([], []))[side].append(number)
    memory = memory_of(limit)
    collector = GroupCollector((Side(SCHEMA, KEYS), Side(OTHER, KEYS)), memory)
    for side, (rows, schema) in enumerate(((left, SCHEMA), (right, OTHER))):
        batch = pa.RecordBatch.from_pylist(rows, schema)
        for start in range(0, len(rows), cut):
            collector.add(batch.slice(start, cut), side)
    found = {}
    for scalars, sides in collector.groups():
        key = key_of(dict(zip(KEYS, (scalar.as_py() for scalar in scalars), strict=True)))
        assert key not in found
        found[key] = tuple([n for part in slices for n in part.column("row").to_pylist()] for slices in sides)
    assert found == expected
    if not memory.spilled_bytes:
        assert list(found) == list(expected)


def _chunks(rows: int, groups: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, 1000):
        numbers = np.arange(start, start + 1000)
        yield pa.RecordBatch.from_arrays([int64_array(numbers % groups), int64_array(numbers)], names=["k", "v"])


@pytest.mark.thorough
def test_many_times_the_memory_is_grouped_within_it() -> None:
    """Sixteen megabytes with a limit of a quarter: what is held stays below the limit and one chunk."""
    memory = memory_of(256 << 10)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    collector = GroupCollector((Side(schema, ("k",)),), memory)
    for batch in _chunks(1_000_000, 50_000):
        collector.add(batch)
    seen = 0
    for (key,), (slices,) in collector.groups():
        values = np.concatenate([np.asarray(part.column("v")) for part in slices])
        assert len(values) == 20
        assert np.array_equal(values, np.arange(key.as_py(), 1_000_000, 50_000))
        seen += 1
    assert seen == 50_000
    assert memory.peak_bytes <= memory.limit * 1.25
    assert memory.spilled_bytes > 16_000_000


def test_one_group_is_not_spilled() -> None:
    """There is nothing to gain where all rows are one group: they stay, whatever the limit."""
    memory = memory_of(1000)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    for keys in (("k",), ()):
        collector = GroupCollector((Side(schema, keys),), memory)
        for batch in _chunks(20_000, 1):
            collector.add(batch)
        ((_, (slices,)),) = collector.groups()
        assert sum(part.num_rows for part in slices) == 20_000
    assert memory.spilled_bytes == 0


def test_a_large_group_beside_small_ones() -> None:
    """One group beyond the memory comes whole, and the small ones too."""
    memory = memory_of(50_000)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    collector = GroupCollector((Side(schema, ("k",)),), memory)
    for number, batch in enumerate(_chunks(50_000, 1)):
        small = pa.RecordBatch.from_arrays(
            [int64_array(np.arange(number * 9, number * 9 + 9) + 1)] * 2, names=["k", "v"]
        )
        collector.add(batch)
        collector.add(small)
    sizes = sorted(sum(part.num_rows for part in slices) for _, (slices,) in collector.groups())
    assert sizes == [1] * 450 + [50_000]


def test_the_order_is_the_same_every_time() -> None:
    """Spilled groups come in an order that depends on the input alone."""

    def order() -> list[int]:
        schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
        collector = GroupCollector((Side(schema, ("k",)),), memory_of(10_000))
        for batch in _chunks(30_000, 700):
            collector.add(batch)
        return [key.as_py() for (key,), _ in collector.groups()]

    first = order()
    assert first == order()
    assert sorted(first) == list(range(700))


def test_a_spill_file_has_no_name(tmp_path: Path) -> None:
    """Nothing is to be seen while it is written and read; buckets come back in order, any number of times."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    memory = TaskMemory(1, str(tmp_path))
    spill = SpillFile(schema, memory)
    for batch in _chunks(5000, 100):
        spill.write(batch, key_buckets([batch.column("k")], 0))
    assert list(tmp_path.iterdir()) == []
    assert sum(spill.size(bucket) for bucket in range(64)) == memory.spilled_bytes
    for _ in range(2):
        parts = [
            np.concatenate([np.asarray(b.column("v")) for b in spill.read(n)] or [np.zeros(0)]) for n in range(64)
        ]
        assert sum(map(len, parts)) == 5000
        assert all(np.all(np.diff(part) > 0) for part in parts)
    spill.close()
    spill.close()


def test_a_folder_that_cannot_be_written_is_named() -> None:
    """The error says where, why and which settings help."""
    with pytest.raises(PenstockError, match=r"/nowhere: .*No such file.*blocking\.directories.*task\.groupMemory"):
        SpillFile(SCHEMA, TaskMemory(1, "/nowhere"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's ENOSPC, from a device that is always full, becomes an error with the remedy."""
    with Path("/dev/full").open("r+b", buffering=0) as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
        spill = SpillFile(pa.schema([("k", pa.int64()), ("v", pa.int64())]), memory_of(1))
        with pytest.raises(PenstockError, match="no space left"):
            spill.write(next(_chunks(1000, 10)), np.zeros(1000, np.uint8))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_what_finds_no_room_goes_to_the_next_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder that is gone and one that is full are passed over, and no row is lost."""
    folder = str(tmp_path)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    with Path("/dev/full").open("r+b", buffering=0) as full:
        real = tempfile.TemporaryFile

        def make(dir: str, buffering: int) -> object:  # noqa: A002 - its name in the library
            return full if dir == "full" else real(dir=dir, buffering=buffering)

        monkeypatch.setattr(tempfile, "TemporaryFile", make)
        memory = TaskMemory(1, "/nowhere", others=("full", folder))
        spill = SpillFile(schema, memory)
        for batch in _chunks(1000, 10):
            spill.write(batch, key_buckets([batch.column("k")], 0))
        found = pa.concat_tables(pa.Table.from_batches(spill.read(n), schema) for n in range(64))
        assert sorted(found["v"].to_pylist()) == list(range(1000))
        spill.close()


def test_levels_use_other_bits() -> None:
    """Rows that share a bucket are spread by the next level, and equal keys are together on each."""
    keys = int64_array(np.arange(100_000) // 2)
    first, second = key_buckets([keys], 0), key_buckets([keys], 1)
    assert np.array_equal(first[::2], first[1::2])
    inside = second[first == 5]
    assert len(np.unique(inside)) == 64


def test_forms_of_cogroup_functions() -> None:
    """Two or three arguments; others are refused with their number."""
    assert not takes_key(lambda left, right: left, "f")
    assert takes_key(lambda key, left, right: left, "f")
    with pytest.raises(PlanError, match=r"two arguments \(left, right\) or three \(key, left, right\).*takes 1"):
        takes_key(lambda rows: rows, "f")
