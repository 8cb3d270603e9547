# SPDX-License-Identifier: Apache-2.0
"""Sums that leave their type, and means of decimals: exact, or an error, or null, never a wrong number."""

from __future__ import annotations

import decimal
import random
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ArithmeticOverflowError
from penstock.operators.aggregate_operators import aggregate_pair
from penstock.operators.aggregates import Aggregation

MOST = (1 << 63) - 1
DIGITS = 10**38 - 1


@pytest.fixture(autouse=True)
def _digits_enough() -> Iterator[None]:
    """Decimals of Python with more digits than any sum here."""
    with decimal.localcontext(prec=120):
        yield


def totals(
    kind: pa.DataType, parts: list[list[Any]], function: str = "sum", *, ansi: bool = True, keyed: bool = False
) -> Any:
    """The result of `function` over these parts, each its own producer; by key, for keys of alternating rows."""
    schema = pa.schema([("k", pa.int64()), ("v", kind)])
    keys = ["k"] if keyed else []
    partial, final, plan = aggregate_pair(schema, keys, [Aggregation("r", "v", function)], ansi=ansi)
    states = []
    for part in parts:
        batch = pa.record_batch([pa.array([i % 2 for i in range(len(part))]), pa.array(part, kind)], schema=schema)
        states += list(partial.apply(iter([batch])))
    results = pa.Table.from_batches(final.apply(iter(states)), plan.result_schema)
    results.validate(full=True)
    return {row["k"]: row["r"] for row in results.to_pylist()} if keyed else results.column("r").to_pylist()[0]


@pytest.mark.parametrize("parts", [[[MOST, 1]], [[MOST], [1]], [[-MOST - 1, -1]], [[-MOST - 1], [-1]]])
def test_integer_sums_that_leave_64_bits(parts: list[list[int]]) -> None:
    """With ANSI an error that names the column, before the exchange or after it; without, it wraps as in Spark."""
    with pytest.raises(ArithmeticOverflowError, match=r"^\[ARITHMETIC_OVERFLOW\].*r=sum\(v\).*ansi\.enabled"):
        totals(pa.int64(), parts)
    wrapped = sum(map(sum, parts))
    assert totals(pa.int64(), parts, ansi=False) == (wrapped + (1 << 63)) % (1 << 64) - (1 << 63)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", [pa.int64(), pa.decimal128(38, 4)])
def test_sums_of_the_largest_values(seed: int, kind: pa.DataType) -> None:
    """Sums of values as large as the type, of both signs and null, are those of Python's integers, or errors."""
    rng = random.Random(seed)
    limit, scale = (MOST, 0) if pa.types.is_integer(kind) else (DIGITS, 4)
    fitted = refused = 0
    for _ in range(60):
        numbers = [rng.choice([None, rng.randint(-limit, limit)]) for _ in range(rng.randint(1, 9))]
        values = numbers if scale == 0 else [None if n is None else Decimal(n).scaleb(-scale) for n in numbers]
        known = [value for value in values if value is not None]
        expected = sum(known) if known else None
        if expected is None or abs(expected) <= Decimal(limit).scaleb(-scale):
            assert totals(kind, [values]) == expected
            fitted += 1
        else:
            with pytest.raises(ArithmeticOverflowError):
                totals(kind, [values])
            refused += 1
    assert fitted > 10
    assert refused > 5


@pytest.mark.parametrize("function", ["sum", "mean"])
@pytest.mark.parametrize("parts", [[[1, DIGITS]], [[1], [DIGITS]], [[-1, -DIGITS], [5]]])
def test_decimal_sums_beyond_38_digits(function: str, parts: list[list[int]]) -> None:
    """With ANSI an error; without, null, whatever other rows or parts bring. Other groups are not touched."""
    decimals = [[Decimal(n) for n in part] for part in parts]
    with pytest.raises(ArithmeticOverflowError, match=r"\[ARITHMETIC_OVERFLOW\] Overflow in sum of decimals"):
        totals(pa.decimal128(38, 0), decimals, function)
    assert totals(pa.decimal128(38, 0), decimals, function, ansi=False) is None
    both = [[number for n in part for number in (n, Decimal(7))] for part in decimals]
    found = totals(pa.decimal128(38, 0), both, function, ansi=False, keyed=True)
    assert found == {0: None, 1: Decimal(7) * (1 if function == "mean" else sum(map(len, parts)))}


def test_a_lost_sum_stays_lost() -> None:
    """A group whose sum has left its type in one part is null although another part would bring it back."""
    parts = [[Decimal(DIGITS), Decimal(1)], [Decimal(-DIGITS)]]
    assert totals(pa.decimal128(38, 0), parts, ansi=False) is None


def test_a_sum_wider_than_its_result() -> None:
    """A sum that fits 38 digits and not the result's p + 10 is an error too, or null."""
    rules_type = pa.decimal128(2, 0)
    schema = pa.schema([("v", rules_type)])
    for ansi in (True, False):
        _, final, plan = aggregate_pair(schema, [], [Aggregation("r", "v", "sum")], ansi=ansi)
        arrays = [pa.array([Decimal(10**12)], pa.decimal128(38, 0)), pa.array([None], pa.bool_())]
        states = pa.RecordBatch.from_arrays(arrays[: len(plan.state_schema)], schema=plan.state_schema)
        if ansi:
            with pytest.raises(ArithmeticOverflowError, match=r"decimal128\(12, 0\)"):
                list(final.apply(iter([states])))
        else:
            assert next(final.apply(iter([states]))).to_pylist() == [{"r": None}]


@pytest.mark.parametrize(("precision", "scale"), [(5, 2), (20, 10), (38, 0), (38, 18), (38, 30)])
def test_means_of_decimals(precision: int, scale: int) -> None:
    """As a decimal with four more digits behind the point, as far as there is room, rounded half up."""
    rng = random.Random(scale)
    digits = min(38, scale + 4)
    for _ in range(50):
        numbers = [rng.randint(-(10 ** (precision - 5)), 10 ** (precision - 5)) for _ in range(rng.randint(1, 7))]
        values = [Decimal(number).scaleb(-scale) for number in numbers]
        exact = sum(values) / len(values)
        expected = exact.quantize(Decimal(1).scaleb(-digits), rounding=decimal.ROUND_HALF_UP)
        parts = [part for part in (values[:2], values[2:]) if part]
        assert totals(pa.decimal128(precision, scale), parts, "mean") == expected


def test_mean_that_has_no_room() -> None:
    """A mean whose whole digits leave no room for four behind the point: an error, or null."""
    values = [[Decimal(10**37)]]
    with pytest.raises(ArithmeticOverflowError):
        totals(pa.decimal128(38, 0), values, "mean")
    assert totals(pa.decimal128(38, 0), values, "mean", ansi=False) is None


def test_numbers_that_floats_do_not_hold() -> None:
    """Means, products and variances of integers beyond 53 bits are float64, rounded, not refused."""
    values = [[(1 << 53) + 1, (1 << 62) + 1]]
    assert totals(pa.int64(), values, "mean") == pytest.approx(sum(values[0]) / 2)
    assert totals(pa.int64(), values, "product") == pytest.approx(float(values[0][0]) * float(values[0][1]))
    assert totals(pa.int64(), values, "variance") == pytest.approx((values[0][1] - values[0][0]) ** 2 / 2)
    assert totals(pa.uint64(), [[(1 << 64) - 1, 1]]) == Decimal(1 << 64)
    assert totals(pa.uint64(), [[(1 << 64) - 1, 1]], "mean") == Decimal(1 << 63)


def test_the_usual_sum_is_not_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that cannot leave their type together are summed once, as Arrow does it."""

    def never(*_: object) -> Any:
        raise AssertionError("an exact sum was made")

    monkeypatch.setattr("penstock.operators.aggregate_operators.exact_sums", never)
    assert totals(pa.int64(), [list(range(1000))] * 3) == 3 * sum(range(1000))
    cents = [Decimal(n).scaleb(-2) for n in range(1000)]
    assert totals(pa.decimal128(10, 2), [cents, cents]) == 2 * sum(cents)
    # A batch in which every group is small enough, although all rows together would not be.
    many = [[1 << 60] * 6]
    assert totals(pa.int64(), many, keyed=True) == {0: 3 << 60, 1: 3 << 60}


def test_no_pandas_for_sums() -> None:
    """A worker that sums does not import pandas, which takes a fifth of a second."""
    import subprocess

    program = """
import sys, pyarrow as pa
from penstock.operators.keys import group_rows
from penstock.operators.group_merges import exact_sums, may_overflow
column = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer((1 << 62).to_bytes(8, "little") * 2)])
groups = group_rows([column], 2)
assert may_overflow(groups, column)
exact_sums(groups, column)
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
