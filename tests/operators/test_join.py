# SPDX-License-Identifier: Apache-2.0
"""Equi-joins of one partition against nested loops: any rows, any cut, every type of join, spilled or not."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.operators import join as join_module
from penstock.operators.groups import Side
from penstock.operators.join import JOINS, EquiJoin, join_schema
from penstock.operators.memory import TaskMemory, limited_memory

LEFT = pa.schema([("f", pa.float64()), ("s", pa.string()), ("l", pa.int64())])
RIGHT = pa.schema([("r", pa.list_(pa.int64())), ("s", pa.string()), ("f", pa.float64())])

keys = st.fixed_dictionaries(
    {
        "f": st.sampled_from([0.0, -0.0, 1.5, math.nan, None]),
        "s": st.sampled_from(["", "a", "ä", None]),
    }
)


def sides(on: tuple[str, ...] = ("f", "s")) -> tuple[Side, Side]:
    """Both sides of most tests."""
    return Side(LEFT, on), Side(RIGHT, on)


def canonical(value: Any) -> Any:
    """A value that compares as Spark compares it."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return tuple(value) if isinstance(value, list) else value


def bag(rows: list[dict[str, Any]], names: list[str]) -> Counter[tuple[Any, ...]]:
    """Rows without their order."""
    return Counter(tuple(canonical(row[name]) for name in names) for row in rows)


def nested_loops(
    left: list[dict[str, Any]], right: list[dict[str, Any]], how: str, on: tuple[str, ...]
) -> list[dict[str, Any]]:
    """The oracle."""
    nothing: dict[str, Any] = dict.fromkeys((*LEFT.names, *RIGHT.names))

    def meets(one: dict[str, Any], other: dict[str, Any]) -> bool:
        return all(one[key] is not None and canonical(one[key]) == canonical(other[key]) for key in on)

    pairs = [(one, other) for one in left for other in right if meets(one, other)]
    alone = [one for one in left if not any(meets(one, other) for other in right)]
    alone_right = [other for other in right if not any(meets(one, other) for one in left)]
    if how == "left_semi":
        return [one for one in left if one not in alone]
    result = [] if how == "left_anti" else [{**other, **one} for one, other in pairs]
    if how in ("left", "full", "left_anti"):
        result += [{**nothing, **one} for one in alone]
    if how in ("right", "full"):
        result += [{**nothing, **other} for other in alone_right]
    return result


def run(
    left: pa.RecordBatch, right: pa.RecordBatch, how: str, cut: int, memory: TaskMemory, on: tuple[str, ...]
) -> list[dict[str, Any]]:
    """The operator over batches of `cut` rows."""
    one, other = sides(on)

    def batches(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for start in range(0, rows.num_rows, cut):
            yield rows.slice(start, cut)

    with limited_memory(memory):
        join = EquiJoin(one, other, how, join_schema(one, other, how))
        return pa.Table.from_batches(join.apply([batches(left), batches(right)]), join.schema).to_pylist()


@settings(deadline=None, max_examples=examples(150))
@given(
    st.lists(keys, max_size=14),
    st.lists(keys, max_size=14),
    st.sampled_from(sorted(JOINS)),
    st.integers(1, 5),
    st.sampled_from([1, 300, 1 << 30]),
)
def test_joins_are_those_of_nested_loops(
    left: list[dict[str, Any]], right: list[dict[str, Any]], how: str, cut: int, limit: int
) -> None:
    """For any rows with nulls, NaN and both zeros, any batches, and any memory, down to one byte."""
    for number, row in enumerate(left):
        row["l"] = number
    for number, row in enumerate(right):
        row["r"] = [number]
    on = ("f", "s")
    memory = TaskMemory(limit, tempfile.gettempdir())
    found = run(
        pa.RecordBatch.from_pylist(left, LEFT), pa.RecordBatch.from_pylist(right, RIGHT), how, cut, memory, on
    )
    names = join_schema(*sides(on), how).names
    assert bag(found, names) == bag(nested_loops(left, right, how, on), names)


TYPED = [
    pa.array([True, False, None]),
    pa.array([1, 2, None], pa.int8()),
    pa.array([1, 2, None], pa.uint64()),
    pa.array([1, 2, None], pa.date32()),
    pa.array([1, 2, None], pa.timestamp("us", "UTC")),
    pa.array([1, 2, None], pa.duration("us")),
    pa.array([1, 2, None], pa.time64("ns")),
    pa.array([1, 2, None], pa.decimal128(9, 2)),
    pa.array([b"a", b"b", None]),
    pa.array([b"a", b"b", None], pa.binary(1)),
    pa.array(["a", "b", None], pa.large_string()),
    pa.array(["a", "b", None], pa.string_view()),
    pa.array(["a", "b", None]).dictionary_encode(),
]


@pytest.mark.parametrize("limit", [1, 1 << 30])
@pytest.mark.parametrize("column", TYPED, ids=lambda column: str(column.type))
def test_every_plain_type_can_be_a_key_and_any_a_payload(column: pa.Array, limit: int) -> None:
    """Each type matches itself and its null matches nothing; the same type is carried as a column."""
    left = pa.record_batch([column, column], ["k", "a"])
    right = pa.record_batch([column.slice(1), column.slice(1)], ["k", "b"])
    one, other = Side(left.schema, ("k",)), Side(right.schema, ("k",))
    with limited_memory(TaskMemory(limit, tempfile.gettempdir())):
        join = EquiJoin(one, other, "full", join_schema(one, other, "full"))
        rows = pa.Table.from_batches(join.apply([iter([left]), iter([right])]), join.schema).to_pylist()
    values = column.to_pylist()
    expected = Counter([(values[0], values[0], None), (values[1],) * 3, (None,) * 3, (None,) * 3])
    assert Counter((row["k"], row["a"], row["b"]) for row in rows) == expected


def test_keys_of_the_null_type_match_nothing() -> None:
    """A column that is null by its type gives no pair, and all rows of an outer join."""
    left = pa.record_batch([pa.nulls(2), pa.array([1, 2])], ["k", "a"])
    right = pa.record_batch([pa.nulls(3), pa.array([1, 2, 3])], ["k", "b"])
    one, other = Side(left.schema, ("k",)), Side(right.schema, ("k",))
    for how, rows in (("inner", 0), ("full", 5)):
        join = EquiJoin(one, other, how, join_schema(one, other, how))
        assert sum(batch.num_rows for batch in join.apply([iter([left]), iter([right])])) == rows


def test_nothing_is_read_where_nothing_can_meet() -> None:
    """An inner join with an empty right side ends without a look at the left one."""
    one, other = sides()

    def untouched() -> Iterator[pa.RecordBatch]:
        raise AssertionError("was read")
        yield

    assert not list(EquiJoin(one, other, "inner", join_schema(one, other, "inner")).apply([untouched(), iter([])]))


def test_what_is_held_stays_within_the_limit() -> None:
    """A right side of many times the memory is joined with the memory and one batch held, all else on disk."""
    rows = 200_000
    right = pa.record_batch([pa.array(range(rows)), pa.array(range(rows))], ["k", "b"])
    left = pa.record_batch([pa.array(range(0, 2 * rows, 2)), pa.array(range(rows))], ["k", "a"])
    one, other = Side(left.schema, ("k",)), Side(right.schema, ("k",))
    memory = TaskMemory(100_000, tempfile.gettempdir())
    with limited_memory(memory):
        join = EquiJoin(one, other, "inner", join_schema(one, other, "inner"))
        parts = [pa.Table.from_batches([rows]).to_batches(max_chunksize=1000) for rows in (left, right)]
        joined = pa.Table.from_batches(join.apply([iter(part) for part in parts]), join.schema)
    assert joined.num_rows == rows // 2
    assert joined["b"].equals(joined["k"])
    assert right.nbytes > 30 * memory.limit
    assert memory.peak_bytes <= memory.limit + 16_000
    assert memory.spilled_bytes > right.nbytes


@pytest.mark.parametrize(("how", "side"), [("inner", 0), ("left", 0), ("left_anti", 0), ("right", 1), ("full", None)])
def test_which_side_may_be_divided(how: str, side: int | None) -> None:
    """The streamed side, except of a full join, which must see a whole side to know what has met nothing."""
    one, other = sides()
    assert EquiJoin(one, other, how, join_schema(one, other, how)).divisible_side == side


def test_nulls_are_declared_where_a_side_may_be_missing() -> None:
    """Columns that are NOT NULL stay so, except those of a side that may have met nothing."""
    left = Side(
        pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("a", pa.int64(), nullable=False)]), ("k",)
    )
    right = Side(pa.schema([pa.field("k", pa.int64()), pa.field("b", pa.int64(), nullable=False)]), ("k",))
    found = {how: [field.nullable for field in join_schema(left, right, how)] for how in JOINS}
    assert found == {
        "inner": [False, False, False],
        "left": [False, False, True],
        "right": [True, True, False],
        "full": [True, True, True],
        "left_semi": [False, False],
        "left_anti": [False, False],
    }


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(keys, max_size=14), st.lists(keys, max_size=14), st.sampled_from(sorted(JOINS)), st.integers(1, 5))
def test_results_in_pieces_are_the_same(
    left: list[dict[str, Any]], right: list[dict[str, Any]], how: str, pairs: int
) -> None:
    """However few pairs are found at once, and bytes gathered, the rows are those of nested loops."""
    with patch.multiple(join_module, MOST_PAIRS=pairs, MOST_BYTES=40, _FEW_EQUAL=0):
        test_joins_are_those_of_nested_loops.hypothesis.inner_test(left, right, how, 3, 1 << 30)


LONG = 1 << 20


@pytest.mark.parametrize("how", ["inner", "right", "full"])
def test_long_rows_that_meet_often(how: str) -> None:
    """A row of a megabyte meets 2,200 others, which is more than Arrow gathers at once: batches stay small."""
    wide = pa.record_batch({"k": [1, 2], "text": ["x" * LONG, "y" * LONG]})
    narrow = pa.record_batch({"k": pa.array([1] * 2200), "n": range(2200)})
    pair = Side(narrow.schema, ("k",)), Side(wide.schema, ("k",))
    join = EquiJoin(*pair, how, join_schema(*pair, how))
    largest = found = 0
    for batch in join.apply([iter([narrow]), iter([wide])]):
        largest, found = max(largest, batch.nbytes), found + batch.num_rows
    assert found == 2200 + (how != "inner")
    assert largest < 40 << 20


def test_frequent_keys_of_both_sides() -> None:
    """Six million pairs of one key are found in parts, among keys that meet once."""
    many = pa.record_batch({"k": [0] * 3000 + list(range(1, 2001)), "n": range(5000)})
    few = pa.record_batch({"k": [0] * 2000 + list(range(1, 2001)), "m": range(4000)})
    pair = Side(many.schema, ("k",)), Side(few.schema, ("k",))
    join = EquiJoin(*pair, "inner", join_schema(*pair, "inner"))
    parts: list[int] = []
    pairs_of = join_module._pairs

    def counted(how: str, stream: pa.Table, build: pa.Table) -> pa.Table:
        found = pairs_of(how, stream, build)
        parts.append(found.num_rows)
        return found

    with patch.object(join_module, "_pairs", counted):
        assert sum(batch.num_rows for batch in join.apply([iter([many]), iter([few])])) == 6_002_000
    assert max(parts) <= join_module.MOST_PAIRS


PEAK = """
import tempfile
import pyarrow as pa
from penstock.operators.groups import Side
from penstock.operators.join import EquiJoin, join_schema
from penstock.operators.memory import TaskMemory, limited_memory

LIMIT = 8 << 20
ROWS, TIMES, BYTES = 64, 60, 512 << 10

def texts(number):
    text = pa.repeat(pa.scalar("x" * BYTES), 1)
    return pa.record_batch({"k": [number], "text": pa.concat_arrays([text, text.slice(0, 0)])})

narrow = pa.record_batch({"k": list(range(ROWS)) * TIMES, "n": range(ROWS * TIMES)})
pair = Side(narrow.schema, ("k",)), Side(texts(0).schema, ("k",))
join = EquiJoin(*pair, "inner", join_schema(*pair, "inner"))
with limited_memory(TaskMemory(LIMIT, tempfile.gettempdir())) as memory:
    found = sum(batch.num_rows for batch in join.apply([iter([narrow]), map(texts, range(ROWS))]))
print(found == ROWS * TIMES and memory.spilled_bytes > 4 * LIMIT, pa.default_memory_pool().max_memory() / LIMIT)
"""


def test_a_built_side_of_four_times_the_memory() -> None:
    """Long rows that meet often are right, and Arrow holds less than twice the memory, copies included."""
    told = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    is_right, peak = told.stdout.split()
    assert is_right == "True"
    assert float(peak) < 2
