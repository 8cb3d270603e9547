# SPDX-License-Identifier: Apache-2.0
"""Values in lines that Arrow and Spark read differently: Spark's are given, or the job ends."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import readCsv, readJson
from penstock.api.json_numbers import JsonNumbers
from penstock.errors import JobError
from penstock.testing.local_runner import run_local


def rows(stream: Any) -> list[tuple[Any, ...]]:
    """The rows as tuples."""
    return [tuple(row.values()) for row in run_local(stream).to_pylist()]


def test_a_decimal_in_json_has_no_more_digits_than_declared(tmp_path: Path) -> None:
    """At any depth: Arrow's reader gives 100.00 as a decimal(4,2), which is bad to Spark."""
    lines = ['{"v":99.99}', '{"v":100}', '{"l":[1,100]}', '{"s":{"x":-100}}', '{"v":1}']
    (tmp_path / "a.json").write_text("\n".join(lines))
    schema = "v decimal(4,2), l array<decimal(4,2)>, s struct<x:decimal(4,2)>, _corrupt_record string"
    assert rows(readJson(None, tmp_path, schema)) == [
        (Decimal("99.99"), None, None, None),
        (None, None, None, lines[1]),
        (None, None, None, lines[2]),
        (None, None, {"x": None}, lines[3]),
        (Decimal("1.00"), None, None, None),
    ]


def test_an_object_over_several_lines_is_no_row_of_another_line(tmp_path: Path) -> None:
    """Two objects in a line and one in two lines are as many as there are lines, and yet no line is whole."""
    (tmp_path / "a.json").write_text('{"v":1}{"v":2}\n{"v":\n3}\n {"v":4} \n')
    assert rows(readJson(None, tmp_path, "v int, _corrupt_record string")) == [
        (1, None), (None, '{"v":'), (None, "3}"), (4, None),
    ]  # fmt: skip


def test_commas_in_a_decimal_of_csv_are_left_out(tmp_path: Path) -> None:
    """As Spark does, which takes them for those between thousands, wherever they are."""
    (tmp_path / "a.csv").write_text("1,234.5\n12,3\n1\nx,1\n")
    found = rows(readCsv(None, tmp_path, "v decimal(6,2), _corrupt_record string", sep=";"))
    assert found == [(Decimal("1234.50"), None), (Decimal("123.00"), None), (Decimal("1.00"), None), (None, "x,1")]


@pytest.mark.parametrize(
    ("kind", "text"), [("int", "\u0664"), ("decimal(4,2)", "1.\u0664"), ("double", "0x1.8p3"), ("float", " -0X1P3f")]
)
def test_a_number_that_spark_alone_reads_ends_the_job(tmp_path: Path, kind: str, text: str) -> None:
    """So nobody takes it for a null: other digits than 0 to 9, and doubles in hexadecimal; words are none."""
    (tmp_path / "a.csv").write_text(f"1\n{text}\n")
    with pytest.raises(JobError, match=r"column 'v': .* is no .*: declare the column as string"):
        run_local(readCsv(None, tmp_path, f"v {kind}"))
    (tmp_path / "a.csv").write_text("1\n\u00e9\n0x1F\n")
    assert [row[0] is None for row in rows(readCsv(None, tmp_path, f"v {kind}"))] == [False, True, True]


def test_numbers_that_json_lacks_are_read_where_floats_are_declared(tmp_path: Path) -> None:
    """Spark writes NaN and the infinities as strings; a column of strings keeps them."""
    lines = [
        '{"v":"NaN","s":"NaN","n":{"w":"-Infinity"}}',
        '{"v":"+INF","s":"\\"v\\":\\"NaN\\"","n":{"w": 1.5}}',
        '{"v" : "Infinity","s":"Infinity"}',
        '{"v":"INF","s":"INF"}',
    ]
    (tmp_path / "a.json").write_text("\n".join(lines))
    found = rows(readJson(None, tmp_path, "v double, s string, n struct<w:float>, _corrupt_record string"))
    assert [(str(v), s, n) for v, s, n, _ in found] == [
        ("nan", "NaN", {"w": float("-inf")}),
        ("inf", '"v":"NaN"', {"w": 1.5}),
        ("inf", "Infinity", None),
        ("None", "INF", None),
    ]
    assert [bad for *_, bad in found] == [None, None, None, lines[3]]


def test_lists_of_floats_hold_numbers_that_json_lacks_where_no_strings_are(tmp_path: Path) -> None:
    """Beside strings nobody can tell by the text, and the job ends."""
    (tmp_path / "a.json").write_text('{"l":[1.0,"NaN","-INF"],"NaN":1}')
    assert str(rows(readJson(None, tmp_path, "l array<double>"))) == "[([1.0, nan, -inf],)]"
    with pytest.raises(JobError, match="can't be read here"):
        run_local(readJson(None, tmp_path, "l array<double>, s string"))


def test_a_text_that_holds_such_a_word_stays_where_only_floats_are_declared(tmp_path: Path) -> None:
    """A field that the schema does not name may hold a quote and the word behind it, or be called by it."""
    lines = [
        r'{"note":"say \"NaN","v":1.5}',
        r'{"note":"\"-INF\", \"NaN","NaN":"NaN","v": "NaN" }',
        '{"v":"Infinity"}',
    ]
    (tmp_path / "a.json").write_text("\n".join(lines))
    assert str(rows(readJson(None, tmp_path, "v double"))) == "[(1.5,), (nan,), (inf,)]"
    text = lines[0].encode()
    assert JsonNumbers.of(pa.schema([("v", pa.float64())])).bare(text) == text  # so it is read with all others
