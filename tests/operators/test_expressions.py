# SPDX-License-Identifier: Apache-2.0
"""Kernels over trees as Spark's analyser gives them: nulls, NaN, overflow, laziness, zones, and no pandas."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.operators.expressions import (
    ArrowExpression,
    Call,
    ColumnRef,
    Constant,
    Expression,
    UnsupportedError,
    ValuesError,
    columns_of,
    conjuncts,
    evaluate,
    probe,
    selected,
)
from penstock.operators.expressions.portions import is_too_much

LONG, INT, DOUBLE, TEXT, BOOL = pa.int64(), pa.int32(), pa.float64(), pa.string(), pa.bool_()
ANSI = (("mode", "ANSI"),)
LEGACY = (("mode", "LEGACY"),)
BERLIN = (("zone", "Europe/Berlin"),)
NAN = float("nan")


def column(name: str, kind: pa.DataType) -> ColumnRef:
    """A column."""
    return ColumnRef(name, kind)


def constant(value: object, kind: pa.DataType) -> Constant:
    """A constant."""
    return Constant(pa.array([value], kind))


def call(function: str, kind: pa.DataType, *arguments: Expression, options: tuple = ANSI) -> Call:
    """A function of Spark's."""
    return Call(function, kind, arguments, options)


def batch(**columns: pa.Array) -> pa.RecordBatch:
    """Rows."""
    return pa.RecordBatch.from_pydict(columns)


N = column("n", LONG)
ROWS = batch(n=pa.array([1, 0, None, -7], LONG))


def test_ansi_arithmetic_refuses_what_leaves_its_type() -> None:
    """An overflow and a division by zero are errors that show the reason; nulls are nulls; legacy wraps and nulls."""
    most = constant(2**63 - 1, LONG)
    with pytest.raises(ValuesError, match="overflow"):
        evaluate(call("Add", LONG, N, most), ROWS)
    wrapped = evaluate(call("Add", LONG, N, most, options=LEGACY), ROWS.slice(0, 1))
    assert wrapped.to_pylist() == [-(2**63)]
    with pytest.raises(ValuesError, match="1 divided by zero"):
        evaluate(call("IntegralDivide", LONG, constant(1, LONG), N), ROWS)
    assert evaluate(call("IntegralDivide", LONG, constant(10, LONG), N, options=LEGACY), ROWS).to_pylist() == [
        *(10, None, None, -1)
    ]
    ends = batch(n=pa.array([-(2**63), 7, None], LONG))
    for minus in (constant(-1, LONG), call("Subtract", LONG, constant(0, LONG), constant(1, LONG))):
        assert evaluate(call("IntegralDivide", LONG, N, minus, options=LEGACY), ends).to_pylist() == [
            -(2**63),
            -7,
            None,
        ]
    with pytest.raises(ValuesError, match="overflow"):
        evaluate(call("IntegralDivide", LONG, N, constant(-1, LONG)), ends)
    assert evaluate(call("Remainder", LONG, N, constant(3, LONG)), ROWS).to_pylist() == [1, 0, None, -1]
    assert evaluate(call("Pmod", LONG, N, constant(3, LONG)), ROWS).to_pylist() == [1, 0, None, 2]


@pytest.mark.parametrize("function", ["Remainder", "Pmod"])
@pytest.mark.parametrize("kind", [INT, LONG, DOUBLE])
def test_a_remainder_by_one_number_is_that_by_a_column_of_it(function: str, kind: pa.DataType) -> None:
    """Also at the ends of a type, by nulls, by both zeros and by what is no number; zero is refused of each."""
    whole, numbers = kind != DOUBLE, [7, -7, 0, None, 1]
    ends = [2 ** (kind.bit_width - 1) - 1, -(2 ** (kind.bit_width - 1))] if whole else [NAN, -0.0, float("inf"), 5.5]
    divisors = [3, -3, -1, None, *ends, 0, *([] if whole else [-0.0, 0.25])]
    values = pa.array([*numbers, *ends], kind)
    for divisor in divisors:
        rows = batch(n=values, d=pa.array([divisor] * len(values), kind))
        by_column = Call(function, kind, (column("n", kind), column("d", kind)), LEGACY)
        by_one = Call(function, kind, (column("n", kind), constant(divisor, kind)), LEGACY)
        assert str(evaluate(by_one, rows).to_pylist()) == str(evaluate(by_column, rows).to_pylist())
    with pytest.raises(ValuesError, match="divided by zero"):
        evaluate(call(function, kind, column("n", kind), constant(0, kind)), batch(n=values))


@pytest.mark.parametrize("function", ["CaseWhen", "If"])
def test_branches_see_only_their_rows(function: str) -> None:
    """CASE WHEN n <> 0 THEN 10 div n ELSE -5 END divides no row by zero, and null is not true."""
    is_set = call("Not", BOOL, call("EqualTo", BOOL, N, constant(0, LONG)))
    tenth = call("IntegralDivide", LONG, constant(10, LONG), N)
    found = evaluate(call(function, LONG, is_set, tenth, constant(-5, LONG)), ROWS)
    assert found.to_pylist() == [10, -5, -5, -1]


def test_and_or_and_coalesce_stop_early() -> None:
    """The right side of AND and OR, and later arguments of COALESCE, see only rows that are still open."""
    is_zero = call("EqualTo", BOOL, N, constant(0, LONG))
    is_large = call("GreaterThan", BOOL, call("IntegralDivide", LONG, constant(10, LONG), N), constant(1, LONG))
    assert evaluate(call("And", BOOL, call("Not", BOOL, is_zero), is_large), ROWS).to_pylist() == [
        *(True, False, None, False)
    ]
    assert evaluate(call("Or", BOOL, is_zero, is_large), ROWS).to_pylist() == [True, True, None, False]
    risky = call("IntegralDivide", LONG, constant(1, LONG), constant(0, LONG))
    full = batch(n=pa.array([1, 2], LONG))
    assert evaluate(call("Coalesce", LONG, N, risky), full).to_pylist() == [1, 2]
    with pytest.raises(ValuesError, match="divided by zero"):
        evaluate(call("Coalesce", LONG, N, risky), ROWS)


def test_nan_compares_as_in_spark() -> None:
    """NaN equals NaN and is above all numbers; null stays null; <=> knows null."""
    rows = batch(x=pa.array([1.0, NAN, NAN, None]), y=pa.array([NAN, NAN, 1.0, NAN]))
    x, y = column("x", DOUBLE), column("y", DOUBLE)
    answers = {
        "EqualTo": [False, True, False, None],
        "LessThan": [True, False, False, None],
        "LessThanOrEqual": [True, True, False, None],
        "GreaterThan": [False, False, True, None],
        "GreaterThanOrEqual": [False, True, True, None],
        "EqualNullSafe": [False, True, False, False],
    }
    for function, expected in answers.items():
        assert evaluate(call(function, BOOL, x, y), rows).to_pylist() == expected, function


def test_decimals_are_rounded_half_up() -> None:
    """Quotients and casts round half away from zero; what has too many digits is an error."""
    kind = pa.decimal128(10, 2)
    rows = batch(d=pa.array([Decimal("1.25"), Decimal("-1.25"), None], kind))
    d = column("d", kind)
    tenth = evaluate(call("Cast", pa.decimal128(5, 1), d), rows)
    assert tenth.to_pylist() == [Decimal("1.3"), Decimal("-1.3"), None]
    third = evaluate(call("Divide", pa.decimal128(21, 11), d, constant(Decimal(3), pa.decimal128(10, 0))), rows)
    assert third[0].as_py() == Decimal("0.41666666667")
    with pytest.raises(ValuesError, match=r"more digits than decimal\(2, 2\)"):
        evaluate(call("Cast", pa.decimal128(2, 2), d), rows)
    assert evaluate(call("Cast", DOUBLE, d), batch(d=pa.array([Decimal("99.99")], kind))).to_pylist() == [99.99]


def test_a_number_rounded_up_has_room_for_one_more_digit() -> None:
    """The whole number above 99.99 is 100; Arrow's own result, in the type of what it was given, is 0."""
    kind = pa.decimal128(4, 2)
    rows = batch(d=pa.array([Decimal("99.99"), Decimal("-99.99"), Decimal("0.01"), None], kind))
    for function, expected in (("Ceil", ["100", "-99", "1", None]), ("Floor", ["99", "-100", "0", None])):
        found = evaluate(call(function, pa.decimal128(3, 0), column("d", kind)), rows)
        assert [None if value is None else str(value) for value in found.to_pylist()] == expected


@pytest.mark.parametrize("function", ["Ceil", "Floor"])
@pytest.mark.parametrize("value", [1e30, -1e30, float("inf"), 2.0**63])
def test_a_double_beyond_all_longs_is_refused(function: str, value: float) -> None:
    """In ANSI mode the whole number above or below it is an error that shows it, else the end of the longs."""
    rows = batch(x=pa.array([value, 1.5, NAN, None, -(2.0**63)]))
    with pytest.raises(ValuesError, match="does not fit a long"):
        evaluate(call(function, LONG, column("x", DOUBLE), options=(("failOnError", True),)), rows)
    plain = evaluate(call(function, LONG, column("x", DOUBLE), options=(("failOnError", False),)), rows)
    end = 2**63 - 1 if value > 0 else -(2**63)
    assert plain.to_pylist() == [end, 2 if function == "Ceil" else 1, 0, None, -(2**63)]
    well = evaluate(call(function, LONG, column("x", DOUBLE), options=(("failOnError", True),)), rows.slice(1))
    assert well.to_pylist() == plain.to_pylist()[1:]


def test_the_sign_of_a_zero_is_kept() -> None:
    """Java's signum gives a negative zero back as it is."""
    found = evaluate(call("Signum", DOUBLE, column("x", DOUBLE)), batch(x=pa.array([-0.0, 0.0, -3.0, None])))
    assert repr(found.to_pylist()) == "[-0.0, 0.0, -1.0, None]"


def test_rounding_goes_by_decimal_digits() -> None:
    """2.675 is below that in binary and rounds up, as Java's BigDecimal has it; NaN stays."""
    rows = batch(x=pa.array([2.675, -2.675, 1.005, 0.5, NAN, None]))
    found = evaluate(call("Round", DOUBLE, column("x", DOUBLE), constant(2, INT)), rows).to_pylist()
    assert found[:4] == [2.68, -2.68, 1.01, 0.5]
    assert found[4] != found[4]
    assert found[5] is None


def test_local_times_follow_the_zone() -> None:
    """A time that the clock skipped is moved on, one that it showed twice is the first; days go by the calendar."""
    zoned = pa.timestamp("us", "UTC")
    naive = batch(s=pa.array(["2020-03-29 02:30:00", "2020-10-25 02:30:00"]))
    found = evaluate(call("Cast", zoned, column("s", TEXT), options=ANSI + BERLIN), naive)
    assert [str(item) for item in found.cast(pa.timestamp("s")).to_pylist()] == [
        "2020-03-29 01:30:00",
        "2020-10-25 00:30:00",
    ]
    day = constant(86_400_000_000, pa.duration("us"))
    moment = batch(t=pa.array(["2020-10-24T10:00:00"]).cast(pa.timestamp("us")).cast(zoned))
    later = evaluate(call("TimestampAddInterval", zoned, column("t", zoned), day, options=BERLIN), moment)
    assert str(later.cast(pa.timestamp("s"))[0].as_py()) == "2020-10-25 11:00:00"


CASTS: dict[str, tuple[object, pa.DataType, pa.DataType, object]] = {
    "text with spaces": (" 12 ", TEXT, INT, 12),
    "text with a plus": ("+5", TEXT, LONG, 5),
    "text in scientific form": ("1e3", TEXT, DOUBLE, 1000.0),
    "yes": ("Yes", TEXT, BOOL, True),
    "a double cut off": (-2.9, DOUBLE, INT, -2),
    "a long beyond doubles": (2**53 + 1, LONG, DOUBLE, float(2**53)),
    "a number as truth": (7, LONG, BOOL, True),
    "truth as a number": (True, BOOL, LONG, 1),
    "a date as text": (0, pa.date32(), TEXT, "1970-01-01"),
    "a fraction of a second": (1_500_000, pa.timestamp("us"), TEXT, "1970-01-01 00:00:01.5"),
    "whole seconds": (10_000_000, pa.timestamp("us"), TEXT, "1970-01-01 00:00:10"),
}


@pytest.mark.parametrize("name", CASTS)
def test_casts(name: str) -> None:
    """Values as Spark casts them; null stays null."""
    value, source, target, expected = CASTS[name]
    stored = pa.array([value, None], pa.int64() if pa.types.is_timestamp(source) else None)
    if pa.types.is_date(source):
        stored = pa.array([value, None], pa.int32())
    rows = batch(c=stored.cast(source))
    assert evaluate(call("Cast", target, column("c", source)), rows).to_pylist() == [expected, None]


def test_decimals_with_room_are_cast_in_any_mode() -> None:
    """A type that holds every value of the other one needs no null; any other is refused outside ANSI mode."""
    rows = batch(i=pa.array([2**31 - 1, None], INT), d=pa.array([Decimal("9.99"), None], pa.decimal128(3, 2)))
    i, d = column("i", INT), column("d", pa.decimal128(3, 2))
    for source, target in ((i, pa.decimal128(13, 3)), (d, pa.decimal128(4, 3))):
        found = evaluate(call("Cast", target, source, options=LEGACY), rows)
        assert found.cast(TEXT).to_pylist() == [rows[source.name][0].as_py().__format__(".3f"), None]
    for source, target in ((i, pa.decimal128(12, 3)), (d, pa.decimal128(3, 3)), (d, pa.decimal128(4, 1))):
        with pytest.raises(UnsupportedError, match="outside ANSI mode"):
            evaluate(call("Cast", target, source, options=LEGACY), rows)


@pytest.mark.parametrize("function", ["CaseWhen", "If", "Coalesce", "Or"])
def test_a_probe_sees_what_rows_may_never_need(function: str) -> None:
    """A cast that is not possible is found in a branch too, where there are no rows; a constant's error is not."""
    no_rows = ROWS.slice(0, 0)
    is_set = call("EqualTo", BOOL, N, constant(0, LONG))
    never = call("Cast", pa.decimal128(5, 0), N, options=LEGACY)
    zero = call("IntegralDivide", LONG, constant(1, LONG), constant(0, LONG))

    def guarded(value: Expression) -> Call:
        if function == "Or":
            return call(function, BOOL, is_set, call("IsNull", BOOL, value))
        last = value if function == "Coalesce" else constant(None, value.type)
        first = constant(None, value.type) if function == "Coalesce" else value
        return call(function, value.type, *([] if function == "Coalesce" else [is_set]), first, last)

    evaluate(guarded(zero), no_rows)
    probe(guarded(zero), no_rows)
    with pytest.raises(UnsupportedError, match="outside ANSI mode"):
        probe(guarded(never), no_rows)


@pytest.mark.parametrize(
    ("text", "target"), [("x", INT), ("1.5", INT), ("", DOUBLE), ("maybe", BOOL), ("2020-13", pa.date32())]
)
def test_text_that_does_not_fit_is_shown(text: str, target: pa.DataType) -> None:
    """A cast that Spark refuses names the value."""
    with pytest.raises(ValuesError, match=repr(text)):
        evaluate(call("Cast", target, column("c", TEXT)), batch(c=pa.array([text])))


STRINGS: dict[str, tuple[Callable[[], Call], list[object]]] = {
    "letters that become two": (lambda: call("Upper", TEXT, constant("Straße", TEXT)), ["STRASSE"] * 3),
    "a part": (
        lambda: call("Substring", TEXT, column("s", TEXT), constant(2, INT), constant(2, INT)),
        ["té", "b", None],
    ),
    "from the end": (
        lambda: call("Substring", TEXT, column("s", TEXT), constant(-5, INT), constant(3, INT)),
        ["é", "", None],
    ),
    "its place": (lambda: call("StringInstr", INT, column("s", TEXT), constant("é", TEXT)), [1, 0, None]),
    "joined": (
        lambda: call("ConcatWs", TEXT, constant("-", TEXT), column("s", TEXT), constant("z", TEXT)),
        ["été-z", "ab-z", "z"],
    ),
    "padded and cut": (
        lambda: call("StringLPad", TEXT, column("s", TEXT), constant(2, INT), constant("*", TEXT)),
        ["ét", "ab", None],
    ),
    "a group of a pattern": (
        lambda: call("RegExpExtract", TEXT, column("s", TEXT), constant("(a)(b)", TEXT), constant(2, INT)),
        ["", "b", None],
    ),
    "groups put in": (
        lambda: call("RegExpReplace", TEXT, column("s", TEXT), constant("(a)(b)", TEXT), constant("$2$1", TEXT)),
        ["été", "ba", None],
    ),
}


@pytest.mark.parametrize("name", STRINGS)
def test_strings_count_code_points(name: str) -> None:
    """Positions and lengths are of characters, not bytes; null in, null out, but for concat_ws."""
    make, expected = STRINGS[name]
    assert evaluate(make(), batch(s=pa.array(["été", "ab", None]))).to_pylist() == expected


@pytest.mark.parametrize("function", ["StringLPad", "StringRPad"])
def test_a_text_that_is_padded_beyond_all_room_is_refused(function: str) -> None:
    """The error names the width; it is still one for which fewer rows at once are tried."""
    padded = call(function, TEXT, column("s", TEXT), constant(2**31 - 1, INT), constant("*", TEXT))
    with pytest.raises(ValuesError, match="to 2147483647 characters has no room") as caught:
        evaluate(padded, batch(s=pa.array(["a"])))
    assert is_too_much(caught.value)


def test_joined_nulls_are_an_empty_string() -> None:
    """concat_ws of nothing but nulls gives a row, as in Spark; without a separator it is null."""
    rows = batch(s=pa.array(["a", None, None]), t=pa.array([None, None, "b"]), by=pa.array(["-", "-", None]))
    s, t = column("s", TEXT), column("t", TEXT)
    assert evaluate(call("ConcatWs", TEXT, constant("-", TEXT), s, t), rows).to_pylist() == ["a", "", "b"]
    assert evaluate(call("ConcatWs", TEXT, constant("-", TEXT), s), rows).to_pylist() == ["a", "", ""]
    assert evaluate(call("ConcatWs", TEXT, column("by", TEXT), s, t), rows).to_pylist() == ["a", "", None]


def test_in_knows_what_it_cannot_know() -> None:
    """A null among the choices makes null of false; NaN is found; a null value gives null."""
    rows = batch(x=pa.array([1.0, NAN, 3.0, None]))
    x = column("x", DOUBLE)
    known = call("In", BOOL, x, constant(1.0, DOUBLE), constant(NAN, DOUBLE))
    assert evaluate(known, rows).to_pylist() == [True, True, False, None]
    unknown = call("In", BOOL, N, constant(1, LONG), constant(None, LONG))
    assert evaluate(unknown, ROWS).to_pylist() == [True, None, None, None]


def test_unknown_functions_are_refused() -> None:
    """By the name Spark has for them; so are patterns that RE2 does not know."""
    with pytest.raises(UnsupportedError, match="Levenshtein"):
        evaluate(call("Levenshtein", INT, column("s", TEXT), column("s", TEXT)), batch(s=pa.array(["a"])))
    with pytest.raises(UnsupportedError, match="regular expression"):
        evaluate(call("RLike", BOOL, column("s", TEXT), constant("(?=a)", TEXT)), batch(s=pa.array(["a"])))


def test_what_a_tree_reads() -> None:
    """Columns each once, and conditions joined by AND apart."""
    both = call(
        "And", BOOL, call("IsNull", BOOL, N), call("And", BOOL, call("IsNotNull", BOOL, N), column("b", BOOL))
    )
    assert columns_of(both) == ("n", "b")
    assert len(conjuncts(both)) == 3
    arrow = ArrowExpression(pc.field("n") > 0, BOOL, ("n",))
    assert selected(arrow, ROWS).column("n").to_pylist() == [1]
    assert selected(constant(None, BOOL), ROWS).num_rows == 0


def test_a_worker_needs_no_pandas() -> None:
    """Trees travel, and are computed, without the import that costs a new worker a fifth of a second."""
    program = """
import pickle, sys, pyarrow as pa
tree, batch = pickle.loads(bytes.fromhex(sys.stdin.read()))
from penstock.operators.expressions import evaluate
evaluate(tree, batch)
print("pandas" in sys.modules)
"""
    total = call("Add", LONG, N, constant(1, LONG))
    word = call("Concat", TEXT, call("Cast", TEXT, total), constant("x", TEXT))
    tree = call("CaseWhen", TEXT, call("In", BOOL, N, constant(1, LONG)), word, constant("none", TEXT))
    packed = pickle.dumps((tree, ROWS)).hex()
    ran = subprocess.run([sys.executable, "-c", program], input=packed, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_a_column_that_spark_has_no_room_for_is_refused_by_name() -> None:
    """Nanoseconds are microseconds to Spark: what would be lost is said with the column, and what to do."""
    rows = batch(t=pa.array([1], pa.timestamp("ns")))
    with pytest.raises(ValuesError, match=r"'t' of type timestamp\[ns\] does not fit timestamp\[us\].*mapInArrow"):
        evaluate(call("IsNull", BOOL, column("t", pa.timestamp("us"))), rows)


def test_dates_are_formatted_as_sparks_or_refused() -> None:
    """A year alone has the digits it has; signs that Spark's patterns keep for themselves are refused."""
    days = batch(t=pa.array([-717_000, 18_262, None], INT).cast(pa.date32()))
    moment = call("Cast", pa.timestamp("us"), column("t", pa.date32()), options=BERLIN)
    made = [
        evaluate(call("DateFormatClass", TEXT, moment, constant(form, TEXT)), days).to_pylist()
        for form in ("y", "yyyy", "y-MM", "'y'y")
    ]
    assert made == [
        *(["6", "2020", None], ["0006", "2020", None], ["6-12", "2020-01", None], ["y6", "y2020", None]),
    ]
    for form in ("[yyyy]", "yyyy'", "{y}", "yyyy#"):
        with pytest.raises(UnsupportedError, match="date_format with"):
            probe(call("DateFormatClass", TEXT, moment, constant(form, TEXT)), days.slice(0, 0))
    with pytest.raises(ValuesError, match="AddMonths leaves the dates that there are"):
        evaluate(call("AddMonths", pa.date32(), column("t", pa.date32()), constant(-(2**31), INT)), days)
