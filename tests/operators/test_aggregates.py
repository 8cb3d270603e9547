# SPDX-License-Identifier: Apache-2.0
"""Aggregates against plain Python: any data, any cut into producers, batches and merges."""

from __future__ import annotations

import math
import pickle
import statistics
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError, SchemaError
from penstock.operators import aggregate_operators
from penstock.operators.aggregate_operators import aggregate_pair
from penstock.operators.aggregates import ALL_COLUMNS, Aggregation
from penstock.operators.groups import CHUNK_ROWS

SCHEMA = pa.schema([("k", pa.string()), ("i", pa.int32()), ("x", pa.float64()), ("b", pa.bool_())])
FUNCTIONS = {
    "i": ["count", "count_all", "sum", "min", "max", "mean", "product", "variance", "stddev"],
    "x": ["count", "sum", "min", "max", "mean", "variance"],
    "b": ["any", "all", "min", "max", "count"],
    "k": ["min", "max", "count"],
}
WANTED = [Aggregation(f"{c}_{f}", c, f) for c, functions in FUNCTIONS.items() for f in functions]

rows_of_all = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from(["a", "b", "c", None]),
            "i": st.one_of(st.none(), st.integers(-9, 9)),
            "x": st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, -2.5, math.nan, 1e6])),
            "b": st.sampled_from([True, False, None]),
        }
    ),
    max_size=40,
)


def oracle(values: list[Any], function: str) -> Any:
    """The result of Spark for these values, nulls included."""
    if function == "count_all":
        return len(values)
    valid = [value for value in values if value is not None]
    if function == "count":
        return len(valid)
    if function in ("variance", "stddev"):
        if len(valid) < 2:
            return None
        if any(math.isnan(value) for value in valid):
            return math.nan
        return statistics.variance(valid) if function == "variance" else statistics.stdev(valid)
    if not valid:
        return None
    as_spark_orders = lambda value: (isinstance(value, float) and math.isnan(value), value)  # noqa: E731 - one use
    return {
        "sum": lambda: sum(valid),
        "mean": lambda: sum(valid) / len(valid),
        "product": lambda: math.prod(valid),
        "min": lambda: min(valid, key=as_spark_orders),
        "max": lambda: max(valid, key=as_spark_orders),
        "any": lambda: any(valid),
        "all": lambda: all(valid),
    }[function]()


def run(
    schema: pa.Schema, keys: list[str], wanted: list[Aggregation], producers: list[list[pa.RecordBatch]]
) -> list[dict[str, Any]]:
    """Partial on each producer, then final over all, both having been pickled."""
    partial, final, plan = aggregate_pair(schema, keys, wanted)
    partial, final = pickle.loads(pickle.dumps((partial, final)))  # noqa: S301 - our own bytes
    states = [batch for batches in producers for batch in partial.apply(iter(batches))]
    assert all(batch.schema == plan.state_schema for batch in states)
    results = list(final.apply(iter(states)))
    assert all(batch.schema == plan.result_schema for batch in results)
    return [row for batch in results for row in batch.to_pylist()]


def same(one: Any, other: Any) -> bool:
    """Equal, with NaN equal to itself and rounding forgiven."""
    if isinstance(one, float) and isinstance(other, int | float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other) and type(one) is type(other)


@settings(deadline=None)
@given(rows_of_all, st.lists(st.integers(0, 2), max_size=40), st.sampled_from([["k"], ["k", "b"], []]), st.booleans())
def test_any_data_any_cut(rows: list[dict[str, Any]], cut: list[int], keys: list[str], eager: bool) -> None:
    """Every function gives what plain Python gives, however rows are spread and whenever states are merged."""
    producers: list[list[pa.RecordBatch]] = [[], [], []]
    for row, producer in zip(rows, cut + [0] * len(rows), strict=False):
        producers[producer].append(pa.RecordBatch.from_pylist([row], SCHEMA))
    wanted = [item for item in WANTED if item.column not in keys]
    limit = aggregate_operators._MERGE_ROWS
    try:
        aggregate_operators._MERGE_ROWS = 1 if eager else limit
        found = run(SCHEMA, keys, wanted, producers)
    finally:
        aggregate_operators._MERGE_ROWS = limit
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {} if keys else {(): []}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    assert {tuple(row[key] for key in keys) for row in found} == set(groups)
    assert len(found) == len(groups)
    for row in found:
        members = groups[tuple(row[key] for key in keys)]
        for item in wanted:
            expected = oracle([member[item.column] for member in members], item.function)
            is_float = item.function in ("mean", "variance", "product")
            expected = float(expected) if expected is not None and is_float else expected
            assert same(row[item.name], expected), (item, row, members)


def test_result_types() -> None:
    """Counts are int64, integer sums int64, float sums float64, decimal sums and means wider, min and max as was."""
    schema = pa.schema(
        [
            ("k", pa.string_view()),
            ("i", pa.int8()),
            ("f", pa.float32()),
            ("d", pa.decimal128(7, 2)),
            ("t", pa.date32()),
        ]
    )
    wanted = [("count", "k"), ("sum", "i"), ("sum", "f"), ("sum", "d"), ("mean", "d"), ("max", "f"), ("min", "t")]
    plan = aggregate_pair(schema, ["k"], [Aggregation(f"r{n}", c, f) for n, (f, c) in enumerate(wanted)])[2]
    assert plan.result_schema.types == [
        pa.large_string(),
        pa.int64(),
        pa.int64(),
        pa.float64(),
        pa.decimal128(17, 2),
        pa.decimal128(11, 6),
        pa.float32(),
        pa.date32(),
    ]


TYPED = {
    "string": pa.array(["b", "a", None, "c"]),
    "view": pa.array(["b", "a", None, "c"], pa.string_view()),
    "dictionary": pa.array(["b", "a", None, "c"]).dictionary_encode(),
    "binary": pa.array([b"b", b"a", None, b"c"]),
    "date": pa.array([2, 1, None, 3], pa.date32()),
    "timestamp": pa.array([2, 1, None, 3], pa.timestamp("us", "UTC")),
    "duration": pa.array([2, 1, None, 3], pa.duration("us")),
    "time": pa.array([2000, 1000, None, 3000], pa.time64("ns")),
    "decimal": pa.array([Decimal(2), Decimal(1), None, Decimal(3)], pa.decimal128(5, 1)),
    "int8": pa.array([2, 1, None, 3], pa.int8()),
    "float32": pa.array([2, 1, None, 3], pa.float32()),
}


@pytest.mark.parametrize("name", TYPED)
def test_extremes_of_every_type(name: str) -> None:
    """min, max and count of each type that has an order, through partial and final."""
    column = TYPED[name]
    schema = pa.schema([("v", column.type)])
    wanted = [Aggregation("lo", "v", "min"), Aggregation("hi", "v", "max"), Aggregation("n", "v", "count")]
    batch = pa.record_batch([column], schema=schema)
    values = column.to_pylist()
    assert run(schema, [], wanted, [[batch.slice(0, 2)], [batch.slice(2)]]) == [
        {"lo": values[1], "hi": values[3], "n": 3}
    ]
    without_null = [[batch.slice(0, 2)], [batch.slice(3)]]
    assert run(schema, [], wanted, without_null) == [{"lo": values[1], "hi": values[3], "n": 3}]


def test_decimal_sums_are_exact() -> None:
    """Sums of decimals keep all digits."""
    values = [Decimal("99999.99")] * 1000
    schema = pa.schema([("d", pa.decimal128(7, 2))])
    batch = pa.record_batch([pa.array(values, pa.decimal128(7, 2))], schema=schema)
    found = run(schema, [], [Aggregation("s", "d", "sum"), Aggregation("m", "d", "mean")], [[batch], [batch]])
    assert found == [{"s": Decimal("199999980.00"), "m": Decimal("99999.990000")}]


def test_variance_does_not_cancel() -> None:
    """A small variance around a large mean survives merging."""
    schema = pa.schema([("x", pa.float64())])
    batches = [[pa.record_batch([pa.array([1e9 + v])], schema=schema)] for v in (4.0, 7.0, 13.0, 16.0)]
    (row,) = run(schema, [], [Aggregation("v", "x", "variance")], batches)
    assert row["v"] == pytest.approx(30.0)


def test_float_keys_meet() -> None:
    """-0.0 and 0.0 are one group, all NaN are one group, null is one."""
    schema = pa.schema([("k", pa.float64())])
    keys = [[0.0, math.nan], [-0.0, -math.nan, None], [None]]
    batches = [[pa.record_batch([pa.array(part, pa.float64())], schema=schema)] for part in keys]
    found = run(schema, ["k"], [Aggregation("n", "*", "count")], batches)
    assert sorted((str(row["k"]), row["n"]) for row in found) == [("0.0", 2), ("None", 2), ("nan", 2)]


def _distinct_keys(count: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, 1 << 18):
        values = np.arange(start, min(count, start + (1 << 18)), dtype=np.int64)
        array = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
        yield pa.RecordBatch.from_arrays([array], names=["k"])


def test_partials_pass_through_where_grouping_does_not_help() -> None:
    """With a group per row the partial side hands states on chunk by chunk instead of holding them."""
    partial, final, _ = aggregate_pair(pa.schema([("k", pa.int64())]), ["k"], [Aggregation("n", "k", "count")])
    states = partial.apply(_distinct_keys(3 << 20))
    first = next(states)
    assert (first.num_rows, sum(batch.num_rows for batch in states)) == (CHUNK_ROWS, (3 << 20) - CHUNK_ROWS)
    del final


def test_empty_input() -> None:
    """Grouped, nothing comes of nothing; over all rows, one row with a count of zero and nulls."""
    wanted = [Aggregation("n", "i", "count"), Aggregation("s", "i", "sum"), Aggregation("v", "i", "variance")]
    assert run(SCHEMA, ["k"], wanted, [[], []]) == []
    assert run(SCHEMA, [], wanted, [[], []]) == [{"n": 0, "s": None, "v": None}]


def test_rows_without_columns_are_counted() -> None:
    """`count()` of a stream that has no columns left, as of a DataFrame without any."""
    rows = pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([])))
    wanted = [Aggregation("n", ALL_COLUMNS, "count_all")]
    assert run(rows.schema, [], wanted, [[rows, rows], [rows.slice(2)], []]) == [{"n": 13}]


@pytest.mark.parametrize("function", ["tdigest", "list", "nonsense"])
def test_functions_that_do_not_merge_are_refused(function: str) -> None:
    """Refused by name, with the supported ones and the way out."""
    with pytest.raises(PlanError, match=f"'{function}'.*supported are all, any, .*applyInArrow"):
        aggregate_pair(SCHEMA, ["k"], [Aggregation("r", "i", function)])


@pytest.mark.parametrize(
    ("aggregation", "error", "message"),
    [
        (Aggregation("r", "nope", "sum"), SchemaError, "no column 'nope'; there are k, i, x, b"),
        (Aggregation("r", "k", "sum"), PlanError, "sum of column 'k'"),
        (Aggregation("r", "i", "any"), PlanError, "any of column 'i'"),
        (Aggregation("r", "*", "sum"), PlanError, "only count"),
        (Aggregation("k", "i", "sum"), PlanError, "each name may occur once"),
    ],
)
def test_wrong_arguments_are_refused(aggregation: Aggregation, error: type[Exception], message: str) -> None:
    """Unknown columns, unfit types and clashing names are refused when the aggregation is planned."""
    with pytest.raises(error, match=message.replace("*", r"\*")):
        aggregate_pair(SCHEMA, ["k"], [aggregation])


def test_moments_of_dates_are_refused() -> None:
    """There is no mean of a date."""
    with pytest.raises(PlanError, match="mean of column 'd'"):
        aggregate_pair(pa.schema([("d", pa.date32())]), [], [Aggregation("m", "d", "mean")])
