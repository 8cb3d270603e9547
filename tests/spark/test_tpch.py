# SPDX-License-Identifier: Apache-2.0
"""The TPC-H example on a real Spark session: every query gives DuckDB's answer, and what differs is told."""

from __future__ import annotations

import decimal
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from effort import some_of
from underway import listed

pytestmark = pytest.mark.spark

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "tpch"
QUERIES = (3, 5, 10, 12, 18)
LONGEST = (5, 18)
"""Those with the most stages and joins."""
SCALE = 0.05


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The example's script as a module; the names it imports are gone afterwards."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("run")
    finally:
        sys.path.remove(str(FOLDER))
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(FOLDER)):
                del sys.modules[name]


@pytest.fixture(scope="module")
def tables(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the tables, made by the generator."""
    folder = tmp_path_factory.mktemp("tpch")
    example.generate(folder, SCALE)
    return str(folder)


@pytest.fixture
def session(spark: Any, mode: str) -> Iterator[Any]:
    """The Spark session, with this mode for every exchange."""
    spark.conf.set("spark.penstock.shuffle.mode", mode)
    yield spark
    spark.conf.unset("spark.penstock.shuffle.mode")


@pytest.mark.parametrize(
    ("number", "mode"),
    [
        *((number, "blocking") for number in some_of(QUERIES, 8)),
        *((number, "pipelined") for number in some_of(LONGEST, 2)),
    ],
)
def test_the_answer_is_duckdbs(example: ModuleType, session: Any, tables: str, number: int, capsys: Any) -> None:
    """Row for row in order, decimals to the last digit; blocking exchanges, and all stages at once on eight slots."""
    assert example.compare(session, tables, number) == 0
    line = capsys.readouterr().out.split()
    assert int(line[0]) == number
    assert int(line[1]) > 0
    assert line[-1] == "equal"


@pytest.mark.thorough
def test_a_differing_answer_is_told(
    example: ModuleType, spark: Any, tables: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison can fail: another reference query gives exit code 1 and the first row that differs."""
    query = example.QUERIES[12]
    monkeypatch.setattr(query, "SQL", query.SQL.replace("'2-HIGH'", "'3-MEDIUM'"))
    assert example.compare(spark, tables, 12) == 1
    assert "row 0 is ('MAIL', " in capsys.readouterr().out


def test_a_failing_query_is_told(example: ModuleType, spark: Any, tmp_path: Path, capsys: Any) -> None:
    """Without the files there is a line that says so, and exit code 1."""
    assert example.compare(spark, str(tmp_path), 12) == 1
    assert "failed: readParquet" in capsys.readouterr().out


def test_answers_are_compared_exactly(example: ModuleType) -> None:
    """Order, number of rows, values and their types all count."""
    difference = sys.modules["reference"].difference
    rows = [(1, decimal.Decimal("0.10")), (2, decimal.Decimal("0.20"))]
    assert difference(rows, list(rows)) is None
    assert "row 0" in difference(rows[::-1], rows)
    assert "row 1 is None" in difference(rows[:1], rows)
    assert "row 1 is (2" in difference(rows, rows[:1])
    assert difference([(0.5,)], [(decimal.Decimal("0.5"),)]) is not None


def test_a_kept_folder_is_checked(example: ModuleType, tables: str, tmp_path: Path, capsys: Any) -> None:
    """Tables are used again at their own scale factor only, and a folder with some of them is refused."""
    files = {path: path.stat().st_mtime_ns for path in listed(Path(tables))}
    example.generate(tables, SCALE)
    assert files == {path: path.stat().st_mtime_ns for path in listed(Path(tables))}
    assert example.main(["--data", tables, "--scale", "1"]) == 2
    assert "tables of scale factor 0.05, not 1" in capsys.readouterr().err
    (tmp_path / "orders.parquet").write_bytes(b"")
    assert example.main(["--data", str(tmp_path)]) == 2
    assert "has no customer" in capsys.readouterr().err
