# SPDX-License-Identifier: Apache-2.0
"""Aggregates over all values of a group: the same however rows are cut into partial states and merged."""

from __future__ import annotations

import random
import statistics
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest

from penstock.errors import PlanError, SchemaError
from penstock.operators.aggregate_operators import aggregate_pair
from penstock.operators.aggregates import Aggregation

FUNCTIONS = ("collect_list", "collect_set", "count_distinct", "median", "stddev_pop", "var_pop", "first", "last")


def aggregated(batches: list[pa.RecordBatch], keys: tuple[str, ...], *wanted: Aggregation) -> list[dict[str, object]]:
    """Each batch aggregated in part by a task of its own, then all of it in full."""
    partial, final, _ = aggregate_pair(batches[0].schema, keys, wanted)
    states = [state for batch in batches for state in partial.apply(iter([batch]))]
    return [row for batch in final.apply(iter(states)) for row in batch.to_pylist()]


def rows(seed: int, count: int) -> list[tuple[str, int | None]]:
    """Keys with values, some of them null."""
    draw = random.Random(seed)
    return [(draw.choice("abc"), None if draw.random() < 0.2 else draw.randint(-5, 5)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_values_of_groups(seed: int) -> None:
    """Random rows in random batches give what Python's own functions give of each group's values without nulls."""
    drawn = rows(seed, 200)
    draw = random.Random(seed)
    cuts = sorted({0, 200, *(draw.randrange(200) for _ in range(4))})
    batches = [
        pa.RecordBatch.from_pydict({"k": [k for k, _ in part], "v": pa.array([v for _, v in part], pa.int64())})
        for part in (drawn[start:end] for start, end in pairwise(cuts))
    ]
    wanted = [Aggregation(name, "v", name) for name in FUNCTIONS]
    for row in aggregated(batches, ("k",), *wanted):
        whole = [v for k, v in drawn if k == row["k"]]
        values = [v for v in whole if v is not None]
        assert row["collect_list"] == values
        assert sorted(row["collect_set"]) == sorted(set(values))  # type: ignore[call-overload]
        assert row["count_distinct"] == len(set(values))
        assert row["median"] == statistics.median(values)
        assert row["var_pop"] == pytest.approx(statistics.pvariance(values))
        assert row["stddev_pop"] == pytest.approx(statistics.pstdev(values))
        assert (row["first"], row["last"]) == (whole[0], whole[-1])


def test_groups_without_values() -> None:
    """A group of nulls, and all rows where there are none: empty lists, no distinct value, null else."""
    nulls = pa.RecordBatch.from_pydict({"k": ["a"], "v": pa.array([None], pa.int64())})
    wanted = [Aggregation(name, "v", name) for name in FUNCTIONS]
    expected = {"collect_list": [], "collect_set": [], "count_distinct": 0} | dict.fromkeys(FUNCTIONS[3:])
    assert aggregated([nulls], ("k",), *wanted) == [{"k": "a", **expected}]
    assert aggregated([nulls.slice(0, 0)], (), *wanted) == [expected]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[1, 2], None, [3]], pa.list_(pa.int32())),
        pa.array([{"a": 1}, {"a": 2}, None], pa.struct([("a", pa.int64())])),
        pa.array(["x", None, "y"]).dictionary_encode(),
        pa.array([Decimal("1.5"), None, Decimal("2.5")], pa.decimal128(5, 2)),
        pa.array([None, True, False]),
    ],
    ids=lambda values: str(values.type),
)
def test_first_and_last_take_any_type(values: pa.Array) -> None:
    """Whole values, nulls included, in the column's type."""
    batch = pa.RecordBatch.from_arrays([pa.array(["a", "a", "a"]), values], names=["k", "v"])
    both = (Aggregation("f", "v", "first"), Aggregation("l", "v", "last"))
    plain = values.to_pylist()
    assert aggregated([batch.slice(0, 2), batch.slice(2)], ("k",), *both) == [
        {"k": "a", "f": plain[0], "l": plain[2]}
    ]


def test_other_names_and_refusals() -> None:
    """PySpark's names for one function are one; a column that does not fit, or is not there, is refused by name."""
    batch = pa.RecordBatch.from_pydict({"v": [1, 1, 2], "s": ["a", "b", "b"], "n": [[1], [1], [2]]})
    same = [Aggregation(name, "v", name) for name in ("countDistinct", "count_distinct")]
    assert aggregated([batch], (), *same) == [{"countDistinct": 2, "count_distinct": 2}]
    assert aggregated([batch], (), Aggregation("s", "v", "std"))[0]["s"] == pytest.approx(statistics.stdev([1, 1, 2]))
    for wanted, error, message in (
        (Aggregation("m", "s", "median"), PlanError, "median of column 's' .string. is not possible"),
        (Aggregation("m", "n", "count_distinct"), PlanError, "count_distinct of column 'n'"),
        (Aggregation("m", "nope", "first"), SchemaError, "no column 'nope'; there are v, s, n"),
        (Aggregation("m", "*", "first"), PlanError, "first needs a column"),
    ):
        with pytest.raises(error, match=message):
            aggregate_pair(batch.schema, (), (wanted,))
