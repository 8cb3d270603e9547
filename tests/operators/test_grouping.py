# SPDX-License-Identifier: Apache-2.0
"""Rows to groups: numbering, Spark's equality of keys, and groups collected over many batches."""

from __future__ import annotations

import math
import struct
import tempfile
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SchemaError
from penstock.operators.groups import GroupCollector, Side
from penstock.operators.keys import GroupIndex, group_rows, normalised, refuse_ungroupable, stable_order
from penstock.operators.memory import TaskMemory

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0123))[0]

floats = st.sampled_from([0.0, -0.0, 1.5, math.nan, OTHER_NAN, math.inf, None])
words = st.sampled_from(["", "a", "b", "ab", None])
numbers = st.one_of(st.none(), st.integers(-3, 3))


def canonical(value: Any) -> Any:
    """A value as Spark compares it in a group key."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def grouped(rows: list[dict[str, Any]], keys: list[str]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """The oracle: a dictionary of lists, in first-seen order."""
    result: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        result.setdefault(tuple(canonical(row[key]) for key in keys), []).append(row)
    return result


def collecting(schema: pa.Schema, keys: list[str], chunk_rows: int = 1 << 19) -> GroupCollector:
    """A collector of one input, in memory."""
    memory = TaskMemory(1 << 30, tempfile.gettempdir())
    return GroupCollector((Side(schema, tuple(keys)),), memory, chunk_rows=chunk_rows)


SCHEMA = pa.schema([("f", pa.float64()), ("s", pa.string()), ("n", pa.int32()), ("row", pa.int64())])
rows_of_all = st.lists(st.fixed_dictionaries({"f": floats, "s": words, "n": numbers}), max_size=60)


@settings(deadline=None)
@given(
    rows_of_all,
    st.lists(st.sampled_from(["f", "s", "n"]), unique=True),
    st.integers(1, 7),
    st.integers(1, 20),
)
def test_groups_are_those_of_a_dictionary(rows: list[dict[str, Any]], keys: list[str], cut: int, chunk: int) -> None:
    """For any keys, batches and chunks: the same groups in the same order, rows in order, each row once."""
    for number, row in enumerate(rows):
        row["row"] = number
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    collector = collecting(SCHEMA, keys, chunk)
    for start in range(0, len(rows), cut):
        collector.add(batch.slice(start, cut))
    found = {
        tuple(canonical(scalar.as_py()) for scalar in key): [
            n for part in slices for n in part.column("row").to_pylist()
        ]
        for key, (slices,) in collector.groups()
    }
    expected = {key: [row["row"] for row in group] for key, group in grouped(rows, keys).items()}
    assert list(found.items()) == list(expected.items())


TYPED = [
    pa.array([True, False, True, None]),
    pa.array([1, 2, 1, None], pa.int8()),
    pa.array([1, 2, 1, None], pa.uint64()),
    pa.array([1.0, 2.0, 1.0, None], pa.float32()),
    pa.array([1, 2, 1, None], pa.date32()),
    pa.array([1, 2, 1, None], pa.timestamp("us", "UTC")),
    pa.array([1, 2, 1, None], pa.duration("us")),
    pa.array([1, 2, 1, None], pa.time64("ns")),
    pa.array([1, 2, 1, None], pa.decimal128(9, 2)),
    pa.array([b"a", b"b", b"a", None]),
    pa.array([b"a", b"b", b"a", None], pa.binary(1)),
    pa.array(["a", "b", "a", None], pa.large_string()),
    pa.array(["a", "b", "a", None], pa.string_view()),
    pa.array(["a", "b", "a", None]).dictionary_encode(),
]


@pytest.mark.parametrize("column", TYPED, ids=lambda column: str(column.type))
def test_every_plain_type_can_be_a_key(column: pa.Array) -> None:
    """Each type is grouped, null is a group of its own, and numbers last over chunks and slices."""
    index = GroupIndex()
    first = group_rows([column], 4)
    assert first.codes.tolist() == [0, 1, 0, 2]
    assert index.numbers(first) == [0, 1, 2]
    assert index.numbers(group_rows([column.slice(1)], 3)) == [1, 0, 2]
    collector = collecting(pa.schema([("k", column.type)]), ["k"])
    collector.add(pa.record_batch([column], ["k"]))
    assert [sum(part.num_rows for part in parts) for _, (parts,) in collector.groups()] == [2, 1, 1]


def test_a_key_of_nulls_only() -> None:
    """A column of Arrow's null type is one group."""
    index = GroupIndex()
    assert index.numbers(group_rows([pa.nulls(3), pa.array([1, 1, 2])], 3)) == [0, 1]
    assert index.numbers(group_rows([pa.nulls(1), pa.array([2])], 1)) == [1]


def test_nan_bits_and_zeros_are_one() -> None:
    """All NaN have the same bits afterwards and -0.0 is 0.0, also in a slice; nulls stay."""
    column = pa.array([9.0, -0.0, math.nan, OTHER_NAN, None]).slice(1)
    values = normalised(column)
    raw = np.frombuffer(values.buffers()[1], np.uint64, 4, values.offset * 8)
    assert raw[0] == 0
    assert raw[1] == raw[2]
    assert values.is_null().to_pylist() == [False, False, False, True]


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.string())),
        *(pa.float16(), pa.decimal32(5, 2), pa.decimal64(5, 2), pa.uuid(), pa.bool8()),
    ],
    ids=str,
)
def test_nested_and_strange_keys_are_refused(kind: pa.DataType) -> None:
    """A type that Arrow can't number is refused with the column's name and what to do, before anything runs."""
    with pytest.raises(SchemaError, match=r"'k' of type .* cannot be grouped by: make plain columns"):
        refuse_ungroupable(pa.schema([("k", kind)]), ["k"])


@pytest.mark.parametrize("count", [1, 256, 257, 65536, 65537, 200_000])
def test_the_order_is_stable_for_any_number_of_groups(count: int) -> None:
    """Radix passes of one, two and two times two bytes all give NumPy's stable order."""
    codes = np.random.default_rng(count).integers(0, count, 300_000)
    assert np.array_equal(stable_order(codes, count), np.argsort(codes, kind="stable"))


def test_no_input_has_no_groups() -> None:
    """No rows, no groups: with and without keys."""
    for keys in ([], ["n"]):
        collector = collecting(SCHEMA, keys)
        collector.add(pa.RecordBatch.from_pylist([], SCHEMA))
        assert list(collector.groups()) == []
