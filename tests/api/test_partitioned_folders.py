# SPDX-License-Identifier: Apache-2.0
"""Parquet in folders such as `year=2026/`: their values are columns. Types against Spark: tests/spark."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.api.parquet import parquet_source
from penstock.api.partition_columns import PartitionTyping, folder_columns, partition_values, with_folders
from penstock.errors import SchemaError
from penstock.testing.local_runner import run_local


def write(folder: Path, parts: dict[str, dict[str, list[Any]]]) -> Path:
    """A file for each part."""
    for name, columns in parts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), folder / name / "part-0.parquet")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two levels of folders, one value missing, one escaped, one column in the files too."""
    parts = {
        "year=2025/city=a%2Fb": {"v": [1, 2], "year": [0, 0]},
        "year=2026/city=__HIVE_DEFAULT_PARTITION__": {"v": [3], "year": [0]},
        "year=2026/city=c": {"v": [4, 5], "year": [0, 0]},
    }
    return write(tmp_path / "table", parts)


ROWS = [(1, 2025, "a/b"), (2, 2025, "a/b"), (3, 2026, None), (4, 2026, "c"), (5, 2026, "c")]


def rows(stream: penstock.Stream) -> list[tuple[Any, ...]]:
    """Sorted by the first column."""
    return sorted(tuple(row.values()) for row in run_local(stream).to_pylist())


def test_folders_are_columns(folder: Path) -> None:
    """They come after the files' columns; one that the files have too has the folder's value, at the file's place."""
    stream = penstock.readParquet(None, folder, numPartitions=2)
    assert stream.schema == pa.schema([("v", pa.int64()), ("year", pa.int32()), ("city", pa.string())])
    assert rows(stream) == ROWS


def test_folders_chosen_and_filtered(folder: Path) -> None:
    """Any of the columns in any order, none of the files' among them too, and filters over all of them."""
    only = run_local(penstock.readParquet(None, folder, columns=["year"], numPartitions=2))
    assert sorted(only.column("year").to_pylist()) == [2025, 2025, 2026, 2026, 2026]
    turned = run_local(penstock.readParquet(None, folder, columns=["city", "v"]))
    assert sorted(zip(turned.column("v").to_pylist(), turned.column("city").to_pylist(), strict=True)) == [
        (v, city) for v, _, city in ROWS
    ]
    assert turned.schema.names == ["city", "v"]
    for where in (pc.field("year") == 2026, [("year", "=", 2026)]):
        assert rows(penstock.readParquet(None, folder, filter=where)) == ROWS[2:]
    both = (pc.field("city") == "c") & (pc.field("v") > 4)
    assert rows(penstock.readParquet(None, folder, columns=["v"], filter=both)) == [(5,)]
    assert rows(penstock.readParquet(None, folder, filter=pc.field("city").is_null())) == [(3, 2026, None)]


def test_one_folder_of_them_is_not_a_column(folder: Path) -> None:
    """As in Spark: what is above the path that was given, or of a pattern's match, is no column."""
    assert penstock.readParquet(None, folder / "year=2026").schema.names == ["v", "year", "city"]
    assert penstock.readParquet(None, folder / "year=2026").schema.field("year").type == pa.int64()
    assert penstock.readParquet(None, folder / "year=2026" / "city=c").schema.names == ["v", "year"]
    assert penstock.readParquet(None, f"{folder}/*/city=c").schema.names == ["v", "year"]


@pytest.mark.parametrize("other", ["", "city=x", "city=x/year=2024"])
def test_folders_that_disagree_are_refused(folder: Path, other: str) -> None:
    """Files without the columns, or with others, are named with what they have."""
    write(folder, {other: {"v": [1], "year": [1]}})
    with pytest.raises(SchemaError, match=r"do not have the same columns: .*(year|none).*\. Read the folders"):
        penstock.readParquet(None, folder)


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Two folders of one name, or two columns of a file."""
    with pytest.raises(SchemaError, match="twice: a, a"):
        penstock.readParquet(None, write(tmp_path / "one", {"a=1/a=2": {"v": [1]}}))
    (tmp_path / "two").mkdir()
    pq.write_table(pa.table([[1], [2]], names=["x", "x"]), tmp_path / "two" / "f.parquet")
    with pytest.raises(SchemaError, match="'x' is there 2 times"):
        penstock.readParquet(None, tmp_path / "two")


UTC_MICROS = pa.timestamp("us", "UTC")
TYPES: dict[str, tuple[list[str], pa.DataType, list[Any]]] = {
    "int": (["1", "-5", "+7", "007"], pa.int32(), [1, -5, 7, 7]),
    "long": (["1", "2147483648"], pa.int64(), [1, 1 << 31]),
    "decimal": (["9223372036854775808", "1"], pa.decimal128(19, 0), [Decimal(1 << 63), Decimal(1)]),
    "double": (["1.5", "2"], pa.float64(), [1.5, 2.0]),
    "long and double": (["1.5", "2147483648"], pa.string(), ["1.5", "2147483648"]),
    "date": (["2026-01-02"], pa.date32(), [date(2026, 1, 2)]),
    "no date": (["2026-02-30"], pa.string(), ["2026-02-30"]),
    "timestamp": (["2026-01-02 03:04:05.5"], UTC_MICROS, [datetime(2026, 1, 2, 8, 4, 5, 500000, UTC)]),
    "date and timestamp": (["1999-12-31", "2026-01-02 03:04:05"], UTC_MICROS, None),
    "text": (["a", "1"], pa.string(), ["a", "1"]),
    "null": (["__HIVE_DEFAULT_PARTITION__", "3"], pa.int32(), [None, 3]),
    "nothing but null": (["__HIVE_DEFAULT_PARTITION__"], pa.null(), [None]),
    "two digits of a second": (["2026-01-02 03:04:05.25"], pa.string(), ["2026-01-02 03:04:05.25"]),
    "no digits of Java's": (["1_000"], pa.string(), ["1_000"]),
}


@pytest.mark.parametrize("name", TYPES)
def test_types_of_folders(name: str) -> None:
    """The narrowest of Spark's types that fits all values of a column; strings if inference is off."""
    texts, kind, values = TYPES[name]
    files = [(f"f{number}", (("k", text),)) for number, text in enumerate(texts)]
    found = partition_values(files, PartitionTyping(timezone="America/New_York"))
    assert found is not None
    assert found.column(0).type == kind
    assert values is None or found.column(0).to_pylist() == values
    plain = partition_values(files, PartitionTyping(infer=False))
    assert plain is not None
    assert plain.column(0).type == (pa.null() if pa.types.is_null(kind) else pa.string())


def test_folders_between_others() -> None:
    """Folders without a name and value are passed over below the columns, and end them above."""
    assert folder_columns("a=1/b=x/part.parquet") == (("a", "1"), ("b", "x"))
    assert folder_columns("a=1/deep/part.parquet") == (("a", "1"),)
    assert folder_columns("a=1/deep/b=2/part.parquet") == (("b", "2"),)
    assert folder_columns("part.parquet") == ()


def test_no_pandas_where_folders_are_read(folder: Path, tmp_path: Path) -> None:
    """A task that reads a folder's column does not import pandas."""
    (tmp_path / "source").write_bytes(pickle.dumps(parquet_source(folder, None, None)))
    program = f"""
import pickle, sys
with open({str(tmp_path / "source")!r}, "rb") as file:
    source = pickle.load(file)
print(sum(batch.num_rows for batch in source.read(0, 1)), "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "5 False\n"


def test_a_column_of_a_folder_in_another_case_is_the_files(tmp_path: Path) -> None:
    """It has the folder's name and value at the file's place, unless the session tells cases apart."""
    write(tmp_path, {"Year=1": {"year": [7], "a": [2]}})
    assert run_local(penstock.readParquet(None, tmp_path)).to_pylist() == [{"Year": 1, "a": 2}]
    for condition, rows in ((1, [(1, 2)]), (7, [])):
        assert rows == [
            tuple(row.values())
            for row in run_local(penstock.readParquet(None, tmp_path, filter=[("Year", "=", condition)])).to_pylist()
        ]
    apart = with_folders(pa.schema([("year", pa.int64())]), pa.record_batch({"Year": [1]}), is_case_sensitive=True)
    assert apart.names == ["year", "Year"]
