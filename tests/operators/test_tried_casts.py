# SPDX-License-Identifier: Apache-2.0
"""`try_cast` without Spark: null value by value, what has a value that is not read here, and what is refused.

`tests/spark/test_verbs_like_spark.py` compares a grid of values with Spark's.
"""

from __future__ import annotations

import decimal
import random
import re
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.operators.expressions import Call, ColumnRef, Constant, UnsupportedError, ValuesError, evaluate, probe

LONG, INT, TINY, DOUBLE, TEXT, BOOL = pa.int64(), pa.int32(), pa.int8(), pa.float64(), pa.string(), pa.bool_()
DAY, INSTANT, WALL = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")
MONEY = pa.decimal128(5, 2)
LOST = re.compile("cannot be cast to|more digits than")


def cast_of(column: pa.Array, kind: pa.DataType, mode: str = "TRY") -> pa.Array:
    """The column, cast in a session in Berlin."""
    call = Call("Cast", kind, (ColumnRef("c", column.type),), (("mode", mode), ("zone", "Europe/Berlin")))
    return evaluate(call, pa.RecordBatch.from_pydict({"c": column}))


def decimals(*texts: str | None) -> pa.Array:
    """A column of decimals with nine digits behind the point."""
    return pa.array([None if text is None else Decimal(text) for text in texts], pa.decimal128(38, 9))


CASTS: dict[str, tuple[pa.Array, pa.DataType, list[object]]] = {
    "text as an int": (pa.array([" 12 ", "+5", "1.5", "", "2147483648", None, "x"]), INT, [12, 5] + [None] * 5),
    "long text as a long": (pa.array(["0" * 30 + "7", "9" * 19, "-9223372036854775808"]), LONG, [7, None, -(2**63)]),
    "text as a double": (pa.array(["1d", "-inf", "1e400", ".", None]), DOUBLE, [1.0, -(1e999), 1e999, None, None]),
    "text as truth": (pa.array(["Yes", " 0", "maybe", None]), BOOL, [True, False, None, None]),
    "text as a decimal": (
        pa.array(["1.005", "-1.005", "999.995", "1e2", "1e3", "0e99", "1e-2147483647", "1e2147483647", "x", None]),
        MONEY,
        [*map(Decimal, ("1.01", "-1.01")), None, Decimal("100.00"), None, *[Decimal("0.00")] * 2, None, None, None],
    ),
    "a long as a byte": (pa.array([127, 128, -128, -129, None]), TINY, [127, None, -128, None, None]),
    "a double as a long": (
        pa.array([2.0**63, -(2.0**63), 1e30, float("nan"), -0.9, None]),
        LONG,
        [2**63 - 1, -(2**63), None, None, 0, None],
    ),
    "a long as a decimal": (pa.array([999, -1000, None]), MONEY, [Decimal(999), None, None]),
    "a decimal as a shorter one": (decimals("999.994", "999.995", None), MONEY, [Decimal("999.99"), None, None]),
    "a decimal as an int": (decimals("-2147483648.9", "2147483648", None), INT, [-(2**31), None, None]),
    "text as a day": (
        pa.array(["2020", "2020-2", "2020-02-30", " 2020-2-9 x", "2020-2-9x", None]).slice(1),
        pa.int32(),
        [18_293, None, 18_301, None, None],
    ),
    "text as days, most in the usual form": (
        pa.array(["2020-02-01", "x", None, "2020-2", "2020-02-02"]),
        pa.int32(),
        [18_293, None, None, 18_293, 18_294],
    ),
    "text as instants, most in the usual form": (
        pa.array(["2020-02-01", "x", None, "2020-2", "2020-02-01 00:00:01.5"]),
        pa.int64(),
        [1_580_511_600_000_000, None, None, 1_580_511_600_000_000, 1_580_511_601_500_000],
    ),
    "text as an instant": (
        pa.array(["2020-03-29 2:30", "2020-03-29 02:30:00.1234567-1", "2020-03-29 24:00:00", None]),
        pa.int64(),
        [1_585_445_400_000_000, 1_585_452_600_123_456, None, None],
    ),
}


def target_of(name: str, kind: pa.DataType) -> pa.DataType:
    """The type to cast to; days and instants are compared as numbers."""
    return DAY if " day" in name else INSTANT if " instant" in name else kind


@pytest.mark.parametrize("name", CASTS)
def test_a_value_that_does_not_fit_is_null(name: str) -> None:
    """The others keep their values; the same cast is an error in ANSI mode, and refused outside it."""
    column, kind, expected = CASTS[name]
    target = target_of(name, kind)
    found = cast_of(column, target)
    assert found.type == target
    assert found.cast(kind).to_pylist() == expected
    assert cast_of(column.slice(0, 0), target).to_pylist() == []
    with pytest.raises(ValuesError, match=LOST):
        cast_of(column, target, "ANSI")
    fitting = column.filter(found.is_valid())
    assert cast_of(fitting, target, "ANSI").equals(found.drop_null())
    if name != "a long as a byte":
        with pytest.raises(UnsupportedError, match=f"^a cast of {re.escape(str(column.type))} .* outside ANSI mode$"):
            cast_of(column, target, "LEGACY")


@pytest.mark.parametrize("name", CASTS)
def test_a_constant_is_cast_as_a_column_is(name: str) -> None:
    """One value stands for every row."""
    column, kind, _ = CASTS[name]
    target = target_of(name, kind)
    rows = pa.RecordBatch.from_pydict({"n": pa.array([1, 2])})
    for place, expected in enumerate(cast_of(column, target).to_pylist()):
        one = Constant(column.slice(place, 1))
        options = (("mode", "TRY"), ("zone", "Europe/Berlin"))
        assert evaluate(Call("Cast", target, (one,), options), rows).to_pylist() == [expected] * 2
        if expected is None and column[place].is_valid:
            with pytest.raises(ValuesError, match=LOST):
                evaluate(Call("Cast", target, (one,), (("mode", "ANSI"), ("zone", "Europe/Berlin"))), rows)


@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        ("0x1p3", DOUBLE, "hexadecimal"),
        ("\u0661\u0662", MONEY, "digits beyond ASCII"),
        ("12:30", INSTANT, "a time without a date"),
        ("2020-01-01 12:30:15 Asia/Tokyo", INSTANT, "names its time zone"),
        ("2020-01-01 12:30:15+0130", WALL, "names its time zone"),
    ],
)
def test_text_that_only_spark_reads_is_no_null(text: str, kind: pa.DataType, problem: str) -> None:
    """Spark has a value for it: the job fails and shows the text, because null would be a wrong answer."""
    with pytest.raises(ValuesError, match=problem) as caught:
        cast_of(pa.array(["x", text, None]), kind)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(("source", "kind"), [(DOUBLE, MONEY), (DOUBLE, TEXT), (TEXT, pa.list_(INT))])
def test_what_is_not_supported_is_named(source: pa.DataType, kind: pa.DataType) -> None:
    """A try_cast by its own name, in ANSI mode or not: the mode has no part in it."""
    call = Call("Cast", kind, (ColumnRef("c", source),), (("mode", "TRY"),))
    with pytest.raises(UnsupportedError, match=rf"^a try_cast of {source} to ") as caught:
        probe(call, pa.RecordBatch.from_pydict({"c": pa.nulls(0, source)}))
    assert "ANSI" not in str(caught.value)


def test_text_becomes_the_nearest_decimal() -> None:
    """Thousands of numbers in all forms, as Python's decimals are rounded half up; null where there is no room."""
    draw = random.Random(5)
    texts = []
    for _ in range(3000):
        whole, part = ("".join(draw.choices("0059", k=draw.choice((0, 1, 3, 20, 39)))) for _ in range(2))
        exponent = draw.choice(("", "", f"e{draw.randint(-45, 45)}", f"E+{draw.randint(0, 9)}"))
        texts.append(f"{draw.choice(('', '-', '+'))}{whole or '0'}{draw.choice(('', '.'))}{part}{exponent}")
    for kind in (MONEY, pa.decimal128(38, 0), pa.decimal128(38, 38), pa.decimal128(20, 11)):
        step = Decimal(1).scaleb(-kind.scale)
        with decimal.localcontext(prec=200, rounding=decimal.ROUND_HALF_UP):
            exact = [Decimal(text).quantize(step) for text in texts]
            room = Decimal(10) ** (kind.precision - kind.scale)
            expected = [value if abs(value) < room else None for value in exact]
        assert cast_of(pa.array(texts), kind).to_pylist() == expected


@pytest.mark.parametrize("mode", ["TRY", "ANSI", "LEGACY"])
def test_bytes_as_text_stay_the_same_bytes(mode: str) -> None:
    """As in Spark, also those that are no UTF-8."""
    found = cast_of(pa.array([b"caf\xc3\xa9", b"\xff", None, b""]), TEXT, mode)
    assert found.type == TEXT
    assert found.view(pa.binary()).to_pylist() == [b"caf\xc3\xa9", b"\xff", None, b""]
