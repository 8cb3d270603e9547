# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables: what filters read, numbers in files that are written, deletes; `test_histories` has the rest."""

from __future__ import annotations

import pickle
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.api.conditions import Condition
from penstock.api.iceberg import iceberg_source, numbered
from penstock.errors import SettingError
from penstock.testing.local_runner import run_local


def test_filters_and_columns_are_read_by_the_tables_names(catalog: Any) -> None:
    """After two columns have changed their names; what a stream needs alone is read."""
    table = catalog.create_table("db.t", pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    table.append(pa.table({"a": [1, 2], "b": [30, 40]}))
    for old, new in (("a", "t"), ("b", "a"), ("t", "b")):
        with table.update_schema() as change:
            change.rename_column(old, new)
    stream = penstock.readIceberg(None, table, filter=pc.field("a") > 30)
    assert run_local(stream).to_pylist() == [{"b": 2, "a": 40}]
    assert run_local(penstock.readIceberg(None, table, ["a"], [("b", "=", 1)])).to_pylist() == [{"a": 30}]


def narrowed(source: Any, column: str, test: str, values: pa.Array) -> list[Any]:
    """The values of a column that are left by a condition which a plan gives to the source."""
    kept = source.narrowed((column,), [Condition(test, column, values)])
    kept = pickle.loads(pickle.dumps(kept))  # noqa: S301 - our own bytes
    return [value for batch in kept.read(0, 1) for value in batch.column(column).to_pylist()]


def test_files_and_row_groups_that_cannot_match_are_not_read(catalog: Any) -> None:
    """The first of two files is gone, and of the second a row group of two is damaged."""
    limit = {"write.parquet.row-group-limit": "100", "write.parquet.compression-codec": "uncompressed"}
    table = catalog.create_table("db.t", pa.schema([("n", pa.int64()), ("s", pa.string())]), properties=limit)
    for first in (0, 200):
        table.append(pa.table({"n": range(first, first + 200), "s": [f"{n:03}" for n in range(first, first + 200)]}))
    source = iceberg_source(table, None, None, None)
    tasks = sorted(source.scan.tasks, key=lambda task: task.file.lower_bounds[1])
    gone, damaged = (Path(task.file.file_path.removeprefix("file://")) for task in tasks)
    gone.unlink()
    whole = damaged.read_bytes()
    for column in range(2):
        chunk = pq.ParquetFile(damaged).metadata.row_group(0).column(column)
        first = chunk.dictionary_page_offset or chunk.data_page_offset
        whole = whole[:first] + b"\xff" * 32 + whole[first + 32 :]
    damaged.write_bytes(whole)
    assert narrowed(source, "n", "GreaterThanOrEqual", pa.array([398])) == [398, 399]
    assert narrowed(source, "n", "In", pa.array([350, 399])) == [350, 399]
    with pytest.raises((OSError, pa.ArrowInvalid)):
        narrowed(source, "n", "GreaterThanOrEqual", pa.array([298]))


def test_a_file_of_views_is_filtered_wherever_its_rows_pass(catalog: Any, tmp_path: Path) -> None:
    """Arrow has no kernel that filters views: all rows of the first batches pass, and some of a later one."""
    table = catalog.create_table("db.t", pa.schema([("n", pa.int64()), ("s", pa.string())]))
    texts = pa.array([f"a text of some length, {n}" for n in range(200_000)], pa.string_view())
    path = tmp_path / "views.parquet"
    pq.write_table(pa.table({"n": range(200_000), "s": texts}), path)
    assert pq.read_schema(path).field("s").type == pa.string_view()
    table.add_files([str(path)])
    source = iceberg_source(table, None, None, None).narrowed(
        ("s",), [Condition("LessThan", "n", pa.array([150_000]))]
    )
    assert [text for batch in source.read(0, 1) for text in batch["s"].to_pylist()] == texts.to_pylist()[:150_000]


def pyiceberg_type(kind: pa.DataType) -> Any:
    """The library's name of a type."""
    from pyiceberg import types

    return {pa.int64(): types.LongType(), pa.float64(): types.DoubleType()}.get(kind, types.DecimalType(9, 1))


ONE = Decimal("1.5")
CONDITIONS = [
    (pa.int32(), [1, 2, None], pa.int64(), "GreaterThan", 1, [2]),
    (pa.int32(), [1, 2, None], pa.int64(), "LessThan", 2**40, [1, 2]),
    (pa.float32(), [0.1, 0.5], pa.float64(), "EqualTo", 0.1, []),
    (pa.float32(), [0.1, 0.5], pa.float64(), "LessThanOrEqual", 0.1, []),
    (pa.float32(), [0.25, 0.5], pa.float64(), "LessThan", 0.5, [0.25]),
    (pa.decimal128(3, 1), [ONE, None], pa.decimal128(9, 1), "LessThan", Decimal("12345.5"), [ONE]),
    (pa.date32(), [-719162, 20000], None, "LessThan", 0, [-719162]),
    (pa.timestamp("us"), [-(10**16), None], None, "EqualTo", -(10**16), [-(10**16)]),
    (pa.bool_(), [True, False, None], None, "EqualTo", True, [True]),
    (pa.string(), ["a" * 20, "b" * 20], None, "EqualTo", "b" * 20, ["b" * 20]),
    (pa.string(), [None, "b"], None, "IsNotNull", None, ["b"]),
    (pa.binary(), [b"a", b"b"], None, "EqualTo", b"b", [b"b"]),
]
"""A column's type, its values, the type that it becomes, a test and its constant, the values that are left."""


@pytest.mark.parametrize("number", range(len(CONDITIONS)))
def test_conditions_mean_to_the_library_what_they_mean_here(catalog: Any, number: int) -> None:
    """Also in files of before a type was widened, and of columns whose names the library takes for a path."""
    kind, values, wide, test, constant, left = CONDITIONS[number]
    name = "c" if wide else "a.c"
    table = catalog.create_table("db.t", pa.schema([(name, kind)]))
    table.append(pa.table({name: pa.array(values, kind)}))
    if wide is not None:
        with table.update_schema() as change:
            change.update_column(name, pyiceberg_type(wide))
        kind = wide
    given = pa.nulls(0, kind) if constant is None else pa.array([constant], kind)
    assert narrowed(iceberg_source(table, None, None, None), name, test, given) == pa.array(left, kind).to_pylist()


def test_conditions_on_an_older_snapshot_are_about_its_columns(catalog: Any) -> None:
    """Two columns have had each other's name since."""
    table = catalog.create_table("db.t", pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    table.append(pa.table({"a": [1, 2], "b": [30, 40]}))
    first = table.current_snapshot().snapshot_id
    for old, new in (("a", "t"), ("b", "a"), ("t", "b")):
        with table.update_schema() as change:
            change.rename_column(old, new)
    table.append(pa.table({"b": [5], "a": [50]}))
    source = iceberg_source(table, first, None, None)
    assert narrowed(source, "a", "LessThan", pa.array([2])) == [1]
    assert narrowed(iceberg_source(table, None, None, None), "a", "LessThan", pa.array([40])) == [30]


def test_files_that_tasks_write_have_the_tables_numbers(catalog: Any, tmp_path: Path) -> None:
    """At any depth, so that the library reads them right after a rename."""
    kind = pa.list_(pa.struct([("x", pa.string())]))
    schema = pa.schema([("a", pa.int64()), ("l", kind), ("m", pa.map_(pa.string(), pa.int32()))])
    table = catalog.create_table("db.t", schema)
    held = pa.Table.from_pylist([{"a": 1, "l": [{"x": "w"}], "m": [("k", 1)]}], schema)
    with pq.ParquetWriter(tmp_path / "x", numbered(schema, table)) as file:
        file.write_table(held)
    table.add_files([f"file://{tmp_path}/x"])
    with table.update_schema(allow_incompatible_changes=True) as change:
        change.rename_column("l.element.x", "y")
        change.rename_column("a", "b")
    with table.update_schema() as change:
        change.add_column("a", table.schema().find_field("b").field_type)
    assert table.scan().to_arrow().to_pylist() == [{"b": 1, "l": [{"y": "w"}], "m": [("k", 1)], "a": None}]


def test_deletes_by_positions_are_applied(catalog: Any, tmp_path: Path) -> None:
    """The rows that a delete file names are left out; the library writes none, so the scan's task gets one here."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.table import FileScanTask

    table = catalog.create_table("db.t", pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": range(10)}))
    source = iceberg_source(table, None, None, None)
    (task,) = source.scan.tasks
    gone = pa.table({"file_path": [task.file.file_path] * 2, "pos": [0, 7]})
    pq.write_table(gone, tmp_path / "gone.parquet")
    delete = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=f"file://{tmp_path}/gone.parquet",
        file_format=FileFormat.PARQUET, record_count=2, file_size_in_bytes=1,
    )  # fmt: skip
    scan = replace(source.scan, tasks=(FileScanTask(task.file, {delete}),))
    found = pa.Table.from_batches(replace(source, scan=scan).read(0, 1))
    assert found["a"].to_pylist() == [1, 2, 3, 4, 5, 6, 8, 9]


def test_deletes_by_values_are_refused(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the library's own words, with the table's name."""
    from pyiceberg.table import DataScan

    table = catalog.create_table("db.t", pa.schema([("a", pa.int64())]))

    def plan_files(scan: Any) -> Any:
        raise ValueError("PyIceberg does not yet support equality deletes")

    monkeypatch.setattr(DataScan, "plan_files", plan_files)
    with pytest.raises(SettingError, match=r"db\.t is not read: PyIceberg does not yet support equality deletes"):
        penstock.readIceberg(None, table)
