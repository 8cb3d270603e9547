# SPDX-License-Identifier: Apache-2.0
"""Parquet read by tasks: paths, shares, projection, filters, and what is refused at the call."""

from __future__ import annotations

import pickle
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.api.parquet import ParquetSource, RowGroup, parquet_source, shares
from penstock.errors import SchemaError, SettingError
from penstock.testing.local_runner import run_local

ROWS = pa.table({"a": range(1000), "b": [f"w{n % 7}" for n in range(1000)], "c": [n / 2 for n in range(1000)]})


def write(path: Path, rows: pa.Table = ROWS, group: int = 100) -> Path:
    """A Parquet file with row groups of this size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, row_group_size=group)
    return path


def read(source: ParquetSource, parallelism: int = 3) -> pa.Table:
    """All subtasks' rows, after a trip through pickle."""
    source = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    batches = [batch for subtask in range(parallelism) for batch in source.read(subtask, parallelism)]
    return pa.Table.from_batches(batches, source.schema)


def test_every_row_is_read_once(tmp_path: Path) -> None:
    """At any parallelism, also above the number of row groups, the subtasks together read all rows."""
    source = parquet_source(write(tmp_path / "x.parquet"), None, None)
    for parallelism in (1, 3, 10, 15):
        assert read(source, parallelism).sort_by("a") == ROWS
    assert read(source, 1).column("a").to_pylist() == list(range(1000))


def test_paths_in_all_forms(tmp_path: Path) -> None:
    """A folder (recursive, without hidden names), a glob, a list, a string and a URI find the same files."""
    one = write(tmp_path / "d" / "1.parquet", ROWS.slice(0, 500))
    two = write(tmp_path / "d" / "sub" / "2.parquet", ROWS.slice(500))
    write(tmp_path / "d" / "_temporary" / "3.parquet")
    write(tmp_path / "d" / ".hidden.parquet")
    (tmp_path / "d" / "_SUCCESS").touch()
    folder = tmp_path / "d"
    forms: list[Any] = [folder, str(folder), [one, two], str(folder / "**" / "[12].parquet"), folder.as_uri()]
    for form in forms:
        assert read(parquet_source(form, None, None)).sort_by("a") == ROWS, form


def test_columns_in_the_order_asked_for(tmp_path: Path) -> None:
    """Only the columns named are read, in that order, with and without a filter."""
    path = write(tmp_path / "x.parquet")
    for where in (None, pc.field("b") == "w3"):
        source = parquet_source(path, ["c", "a"], where)
        assert source.schema.names == read(source).schema.names == ["c", "a"]


@pytest.mark.parametrize(
    "where", [(pc.field("a") >= 950), [("a", ">=", 950)], [[("a", ">=", 990)], [("a", ">=", 950)]]]
)
def test_filters_skip_row_groups(tmp_path: Path, where: Any) -> None:
    """An expression or a list of tuples selects rows; a damaged row group that statistics rule out is not read."""
    path = write(tmp_path / "x.parquet")
    start = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 40] = b"\xff" * 40
    path.write_bytes(data)
    assert read(parquet_source(path, ["a"], where)).column("a").to_pylist() == list(range(950, 1000))


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 9))
def test_shares_are_balanced(sizes: list[int], parallelism: int) -> None:
    """Each row group has one subtask, and none has more than the least loaded one plus one row group."""
    groups = [RowGroup(0, number, 1, size) for number, size in enumerate(sizes)]
    dealt = shares(groups, parallelism)
    assert sorted((group for share in dealt for group in share), key=lambda group: group.number) == groups
    loads = [sum(group.bytes for group in share) for share in dealt]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_what_cannot_be_read_is_refused_at_the_call(tmp_path: Path) -> None:
    """Missing paths, folders without files, other files, differing schemas, unknown columns and unfit filters."""
    path = write(tmp_path / "x.parquet")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.parquet").write_text("no")
    strange = write(tmp_path / "y.parquet", pa.table({"a": ["text"]}))
    cases: list[tuple[Any, Any, Any, type[Exception], str]] = [
        (tmp_path / "nope", None, None, SettingError, "does not exist"),
        (str(tmp_path / "nope*"), None, None, SettingError, "nothing matches"),
        ([], None, None, SettingError, "list of paths is empty"),
        (tmp_path / "empty", None, None, SettingError, "no Parquet file in"),
        (tmp_path / "text.parquet", None, None, SettingError, "text.parquet is not a Parquet file"),
        (
            [path, strange],
            None,
            None,
            SchemaError,
            "y.parquet: column 'a' is string there, and the",
        ),
        (path, ["nope"], None, SchemaError, "no column 'nope'.*there are a, b, c"),
        (path, None, pc.field("nope") == 1, SchemaError, "filter does not fit"),
        (path, None, [("nope", "=", 1)], SchemaError, "filter does not fit"),
    ]
    for where, columns, condition, error, message in cases:
        with pytest.raises(error, match=message):
            parquet_source(where, columns, condition)


def test_a_file_without_rows(tmp_path: Path) -> None:
    """An empty file has a schema, no row group, and one subtask that reads nothing."""
    path = write(tmp_path / "x.parquet", ROWS.slice(0, 0))
    stream = penstock.readParquet(None, path)
    assert run_local(stream.rebalance(2)) == ROWS.slice(0, 0)


def test_old_time_stamps_are_instants(tmp_path: Path) -> None:
    """Spark writes INT96, of any year and at any depth; they are microseconds in UTC, filtered or not."""
    times = [datetime(1500, 1, 2, 3, 4, 5, 6), None, datetime(9999, 12, 31)]  # noqa: DTZ001 - as Arrow writes them
    plain, instant = pa.timestamp("us"), pa.timestamp("us", "UTC")

    def columns(kind: pa.DataType) -> list[pa.Array]:
        return [
            pa.array([1, 2, 3]),
            pa.array(times).cast(kind) if kind.tz is None else pa.array(times, plain).cast(kind),
            pa.array([times, None, []], pa.list_(plain)).cast(pa.list_(kind)),
            pa.array(
                [{"x": t, "n": 1} if t else None for t in times], pa.struct([("x", plain), ("n", pa.int8())])
            ).cast(pa.struct([("x", kind), ("n", pa.int8())])),
            pa.array([[("a", times[0])], None, []], pa.map_(pa.string(), plain)).cast(pa.map_(pa.string(), kind)),
        ]

    names = ["n", "t", "l", "s", "m"]
    pq.write_table(pa.table(columns(plain), names=names), tmp_path / "old", use_deprecated_int96_timestamps=True)
    expected = pa.table(columns(instant), names=names)
    source = parquet_source(tmp_path / "old", None, None)
    assert source.schema.types == expected.schema.types
    assert read(source).to_pylist() == expected.to_pylist()
    late = parquet_source(tmp_path / "old", ["t", "n"], pc.field("t") > pa.scalar(datetime(2024, 1, 1), instant))  # noqa: DTZ001
    assert read(late).to_pylist() == expected.select(["t", "n"]).slice(2).to_pylist()


@pytest.mark.parametrize("where", [None, pc.field("a") >= 0], ids=["plain", "filtered"])
def test_all_columns_may_be_null(tmp_path: Path, where: Any) -> None:
    """Files that promise no nulls and files that hold some are one table, whose batches say what its schema says."""
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    lists = pa.list_(pa.field("element", pa.int64(), nullable=False))
    strict = pa.schema([pa.field("a", pa.int64(), False), pa.field("s", inner, False), pa.field("l", lists, False)])
    rows = pa.table({"a": [1, 2], "s": [{"x": 1}, {"x": 2}], "l": [[1], [2, 3]]}, strict)
    loose = pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.int64())])), ("l", pa.list_(pa.int64()))])
    more = pa.table({"a": [3], "s": [{"x": None}], "l": [[None]]}, loose)
    write(tmp_path / "d" / "1.parquet", rows)
    write(tmp_path / "d" / "2.parquet", more)
    for columns in (None, ["a"], ["l", "a"]):
        source = parquet_source(tmp_path / "d", columns, where)
        assert all(field.nullable for field in source.schema)
        found = read(source)
        expected = [*rows.to_pylist(), *more.to_pylist()]
        assert found.sort_by("a").to_pylist() == [{name: row[name] for name in source.columns} for row in expected]


LAYOUTS = [
    pa.array(["x", "y", None]),
    pa.array(["x", "y", None], pa.large_string()),
    pa.array(["x", "y", None], pa.string_view()),
    pa.array(["x", "y", None]).dictionary_encode(),
]


def test_files_of_other_writers_are_one_table(tmp_path: Path) -> None:
    """Layouts, units, order, case, width differ, columns are missing: rows as Spark reads them, filtered or not."""
    moments = pa.array([0, 10**6, None], pa.timestamp("us", "UTC"))
    first = pa.table({"v": LAYOUTS[0], "n": pa.array([1, 2, 3]), "t": moments})
    write(tmp_path / "d" / "0.parquet", first)
    for number, column in enumerate(LAYOUTS):
        other = {"T": moments.cast(pa.timestamp("ms", "Europe/Paris")), "N": pa.array([1, 2, 3], pa.int16())}
        write(tmp_path / "d" / f"{number + 1}.parquet", pa.table({**other, "V": column, "more": ["m"] * 3}))
    write(tmp_path / "d" / "9.parquet", pa.table({"n": [4]}))
    source = parquet_source(tmp_path / "d", None, None)
    assert source.schema.equals(first.schema)
    assert read(source).to_pylist() == first.to_pylist() * 5 + [{"v": None, "n": 4, "t": None}]
    for where, kept in (
        (pc.field("v") == "y", 5),
        (pc.field("t") > pa.scalar(0, first.schema.field("t").type), 5),
        (pc.field("n") >= 3, 6),
        (pc.field("v").is_null(), 6),
    ):
        assert read(parquet_source(tmp_path / "d", ["n"], where)).num_rows == kept


@pytest.mark.parametrize("column", LAYOUTS, ids=[str(column.type) for column in LAYOUTS])
def test_a_layout_is_no_type_of_a_stream(tmp_path: Path, column: pa.Array) -> None:
    """Strings of any layout are strings, and a filter finds them."""
    path = write(tmp_path / "x.parquet", pa.table({"v": column}))
    source = parquet_source(path, None, pc.field("v") > "x")
    assert source.schema.types == [pa.string()]
    assert read(source).to_pylist() == [{"v": "y"}]


def test_a_stream_of_files(tmp_path: Path) -> None:
    """ReadParquet runs no more source subtasks than there are row groups, and feeds an aggregation."""
    write(tmp_path / "x.parquet", group=500)
    stream = penstock.readParquet(None, tmp_path, columns=["b", "a"], filter=[("a", "<", 70)])
    found = run_local(stream.groupBy("b").agg(n=("a", "count"), s=("a", "sum")))
    expected = ROWS.slice(0, 70).group_by("b").aggregate([("a", "count"), ("a", "sum")])
    assert sorted(map(tuple, (row.values() for row in found.to_pylist()))) == sorted(
        (row["b"], row["a_count"], row["a_sum"]) for row in expected.to_pylist()
    )


def test_many_files_with_filters_are_one_source(tmp_path: Path) -> None:
    """If the filters say the same; a union of more than 32 of them failed."""
    path = write(tmp_path / "x.parquet", ROWS.slice(0, 10))
    streams = [penstock.readParquet(None, path, ["a"], pc.field("a") > 7) for _ in range(40)]
    assert sorted(run_local(streams[0].union(*streams[1:]))["a"].to_pylist()) == [8] * 40 + [9] * 40
    one, same, other, all_ = (
        parquet_source(path, ["a"], where) for where in (*(pc.field("a") > n for n in (7, 7, 8)), None)
    )
    assert one.joined([same]) is not None
    assert one.joined([same, other]) is one.joined([all_]) is all_.joined([one]) is None


def test_row_groups_without_rows_make_no_small_batches(tmp_path: Path) -> None:
    """The size of a batch follows from the stored bytes of a row: of no rows it was one row."""
    path = tmp_path / "x.parquet"
    with pq.ParquetWriter(path, ROWS.schema) as file:
        for rows in (ROWS.slice(0, 0), ROWS, ROWS.slice(0, 0)):
            file.write_table(rows)
    found = list(parquet_source(path, None, None).read(0, 1))
    assert [batch.num_rows for batch in found] == [ROWS.num_rows]
