# SPDX-License-Identifier: Apache-2.0
"""A Parquet source does not read what it need not: shown by files in which just that is damaged."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock import readParquet
from penstock.api.parquet import ParquetSource
from penstock.api.stream import Stream
from penstock.errors import JobError
from penstock.graph import explain_graph
from penstock.operators.expressions import Call, ColumnRef, Constant
from penstock.operators.verbs import Where
from penstock.settings import Settings
from penstock.testing.local_runner import run_local

ROWS = 3000
GROUP = 1000


def compared(function: str, column: str, value: float) -> Call:
    """A comparison as Spark's analyser gives it."""
    kind = pa.float64() if column == "x" else pa.int64()
    constant = Constant(pa.array([value], kind))
    return Call(function, pa.bool_(), (ColumnRef(column, kind), constant))


def where(stream: Stream, condition: Call) -> Stream:
    """The stream after a filter."""
    return stream.applied(Where(condition, "..."), stream.schema)


def source_of(stream: Stream) -> ParquetSource:
    """The source as it is planned."""
    source = stream.plan(Settings(), 4).graph.vertices[0].source
    assert isinstance(source, ParquetSource)
    return source


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three row groups of ascending numbers, in plain pages, so that damage shows."""
    table = pa.table(
        {"n": list(range(ROWS)), "x": [float(n) for n in range(ROWS)], "y": [n * 7 for n in range(ROWS)]}
    )
    file = tmp_path / "numbers.parquet"
    pq.write_table(table, file, row_group_size=GROUP, compression="none", use_dictionary=False)
    return file


def damage(file: Path, row_group: int, column: int) -> None:
    """Overwrite a column chunk's first page header."""
    chunk = pq.ParquetFile(file).metadata.row_group(row_group).column(column)
    with file.open("r+b") as data:
        data.seek(chunk.data_page_offset)
        data.write(b"\xff" * 32)


def test_row_groups_that_cannot_match_are_not_read(path: Path) -> None:
    """Two of three row groups are damaged: a filter that needs the third works, one that needs more fails."""
    damage(path, 0, 0)
    damage(path, 1, 0)
    late = where(readParquet(None, path), compared("GreaterThanOrEqual", "n", 2990)).select("n")
    assert run_local(late).column("n").to_pylist() == list(range(2990, ROWS))
    early = where(readParquet(None, path), compared("GreaterThanOrEqual", "n", 1990)).select("n")
    with pytest.raises(JobError):
        run_local(early)


def test_columns_that_nothing_needs_are_not_read(path: Path) -> None:
    """A projection, an aggregation and a count read their own columns only; the rest may be damaged."""
    for group in range(3):
        damage(path, group, 1)
    stream = readParquet(None, path)
    assert run_local(stream.select("y")).num_rows == ROWS
    assert run_local(stream.withColumn("z", pc.field("n") + 1).drop("x")).num_rows == ROWS
    assert run_local(stream.groupBy().agg(total=("y", "sum"))).column("total").to_pylist() == [
        7 * ROWS * (ROWS - 1) // 2
    ]
    assert run_local(stream.groupBy().count()).column("count").to_pylist() == [ROWS]
    with pytest.raises(JobError):
        run_local(stream)


def test_a_filter_reads_its_own_columns_too(path: Path) -> None:
    """A condition that stays in the task is computed of columns that the projection after it does not give."""
    stream = readParquet(None, path).filter(pc.field("y") - 7 == 0)
    assert source_of(stream.select("n")).columns == ("n", "y")
    assert run_local(stream.select("n")).column("n").to_pylist() == [1]


def test_filters_pass_columns_that_are_made(path: Path) -> None:
    """A filter after withColumn reaches the reader if it is of a column that stays as it is."""
    made = readParquet(None, path).withColumn("x", pc.field("x") * 2)
    assert str(source_of(where(made, compared("LessThan", "n", 8))).filter) == "(n < 8)"
    assert source_of(where(made, compared("LessThan", "x", 8.0))).filter is None
    assert run_local(where(made, compared("LessThan", "x", 8.0))).column("n").to_pylist() == [0, 1, 2, 3]


def test_what_means_another_thing_to_the_reader_stays_in_the_task(path: Path) -> None:
    """NaN is above all numbers to Spark: x > 5 is not given to the reader, x < 5 is; the rest of an AND is."""
    stream = readParquet(None, path)
    assert source_of(where(stream, compared("GreaterThan", "x", 5.0))).filter is None
    assert source_of(where(stream, compared("LessThan", "x", 5.0))).filter is not None
    both = Call("And", pa.bool_(), (compared("GreaterThan", "x", 5.0), compared("LessThan", "n", 8)))
    assert str(source_of(where(stream, both)).filter) == "(n < 8)"
    assert run_local(where(stream, both)).column("n").to_pylist() == [6, 7]
    text = explain_graph(where(stream, both).plan(Settings(), 4).graph)
    assert "filter" in text


def test_nan_is_found_above_a_number(tmp_path: Path) -> None:
    """A row group whose greatest number is small may hold NaN, which is greater."""
    file = tmp_path / "nan.parquet"
    pq.write_table(pa.table({"x": [1.0, float("nan"), 2.0]}), file)
    found = run_local(where(readParquet(None, file), compared("GreaterThan", "x", 5.0))).column("x").to_pylist()
    assert len(found) == 1
    assert found[0] != found[0]


def test_a_filter_behind_a_limit_stays_there(path: Path) -> None:
    """The first rows are taken before the filter sees them."""
    stream = readParquet(None, path, numPartitions=1).limit(10)
    assert run_local(where(stream, compared("GreaterThan", "n", 5))).num_rows == 4


def test_a_source_of_two_readers_is_read_whole_once(path: Path) -> None:
    """Two filters over one stream share its stage, which gives each what it needs."""
    stream = readParquet(None, path)
    low, high = where(stream, compared("LessThan", "n", 10)), where(stream, compared("GreaterThan", "n", 2989))
    both = low.rebalance(1).union(high.rebalance(1))
    graph = both.plan(Settings(), 4).graph
    assert [vertex.source for vertex in graph.vertices if vertex.source is not None] == [source_of(stream)]
    assert run_local(both, slots=12).num_rows == 20
