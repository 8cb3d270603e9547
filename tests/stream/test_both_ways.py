# SPDX-License-Identifier: Apache-2.0
"""One pipeline over one data, bounded in a batch job and unbounded in a streaming query, gives the same rows.

For every verb of which the page on streaming says that it works both ways: a verb of its table without a case here
fails the test.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest

import penstock
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.writer import query_graph, query_options
from penstock.settings import Settings, StreamingSettings
from penstock.stream.folder_sink import FolderSink
from penstock.stream.rate import RateSource
from penstock.testing.local_runner import run_local
from penstock_torture.local_query import LocalQuery, location

PAGE = Path(__file__).parents[2] / "docs" / "streaming.md"
ROWS = 3_000
SLOTS = 12
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("items", pa.list_(pa.int64()))])
Verb = Callable[[Stream], Any]
Row = tuple[Any, ...]


def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows with keys, of which one is null, and lists, of which some are empty."""
    for batch in batches:
        values = batch.column("value").to_pylist()
        keys = pa.array([f"w{value % 7}" if value % 7 else None for value in values], pa.string())
        items = pa.array([list(range(value % 3)) for value in values], SCHEMA.field("items").type)
        yield pa.RecordBatch.from_arrays([keys, batch.column("value"), items], schema=SCHEMA)


def source(*, streaming: bool) -> Stream:
    """The rows, from a source with an end that a batch job reads, or a query."""
    rate = RateSource(0, 2, ROWS)
    step = SourceStep(rate.name, rate.schema, rate, partitions=2, streaming=streaming)  # type: ignore[arg-type]
    return Stream((step,)).mapInArrow(made, SCHEMA)


def plus_one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Another value in each row."""
    for batch in batches:
        yield batch.set_column(1, SCHEMA.field(1), pc.add(batch.column("v"), 1))


def frames(parts: Iterator[Any]) -> Iterator[Any]:
    """A key with each value."""
    for part in parts:
        yield part[["k", "v"]]


def timed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A key with a time, one second for each value."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([batch["k"], pc.cast(batch["v"], TIMES.field("ts").type)], schema=TIMES)


def promised(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows as they are, under a schema that allows no nulls."""
    return batches


def by_value(batch: pa.RecordBatch) -> Any:
    """A custom partitioner."""
    return batch.column("v").to_numpy() % 3


TIMES = pa.schema([SCHEMA.field("k"), pa.field("ts", pa.timestamp("s", "UTC"))])
KEYED = pa.schema([SCHEMA.field("k"), SCHEMA.field("v")])
VERBS: dict[str, Verb] = {
    "filter": lambda s: s.filter(pc.field("v") > 17),
    "select": lambda s: s.select("v", "k"),
    "withColumn": lambda s: s.withColumn("w", pc.field("v")),
    "withColumns": lambda s: s.withColumns({"w": pc.field("v"), "x": pc.field("k")}),
    "withColumnRenamed": lambda s: s.withColumnRenamed("v", "w"),
    "withColumnsRenamed": lambda s: s.withColumnsRenamed({"v": "w", "k": "l"}),
    "drop": lambda s: s.drop("k"),
    "explode": lambda s: s.explode("items"),
    "mapInArrow": lambda s: s.mapInArrow(plus_one, SCHEMA),
    "mapInPandas": lambda s: s.mapInPandas(frames, KEYED),
    "keyBy": lambda s: s.keyBy("k", numPartitions=2).mapInArrow(plus_one, SCHEMA),
    "rebalance": lambda s: s.rebalance(3),
    "rescale": lambda s: s.rescale(4),
    "random": lambda s: s.random(2),
    "broadcast": lambda s: s.broadcast(2),
    "toOne": lambda s: s.toOne(),
    "partitionCustom": lambda s: s.partitionCustom(by_value, 3),
    "union": lambda s: s.union(s.filter(pc.field("v") > 1000)),
    "union of columns that differ in nulls": lambda s: (
        s.select("v").mapInArrow(promised, "v long NOT NULL").union(s.select("v"))
    ),
    "distinct": lambda s: s.select("k").distinct(),
    "dropDuplicates": lambda s: s.select("k").dropDuplicates(["k"]),
    "groupBy": lambda s: (
        s.mapInArrow(timed, "k string, ts timestamp")
        .withWatermark("ts", "1 second")
        .groupBy("k", penstock.window("ts", "1 minute"))
        .count()
    ),
    "unionByName": lambda s: s.select("k", "v").unionByName(s.select("v", "k")),
}
ELSEWHERE = {"top"}
"""Each row that takes a rank comes: `tests/stream/test_joins_and_tops.py`."""
AGGREGATES: dict[str, Verb] = {
    "agg": lambda s: s.keyBy("k", numPartitions=2).agg(
        n=("v", "count"), sum=("v", "sum"), avg=("v", "avg"), min=("v", "min"), max=("v", "max")
    ),
    "count": lambda s: s.keyBy("k", numPartitions=3).count(),
    "sum": lambda s: s.keyBy("k", numPartitions=2).sum("v"),
    "avg": lambda s: s.withColumn("v", pc.divide(pc.field("v"), ROWS)).keyBy("k", numPartitions=2).avg("v"),
    "min": lambda s: s.keyBy("k", numPartitions=2).min("v"),
    "max": lambda s: s.keyBy("k", numPartitions=2).max("v"),
}
"""A query gives a row for each key that has changed, so the newest row of a key counts: it has the greatest number,
for `min` the least; all values of `avg` are 0."""


def rows_of(table: pa.Table) -> Counter[Row]:
    """Rows without their order."""
    return Counter(tuple(_hashable(value) for value in row.values()) for row in table.to_pylist())


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(value.values())
    return tuple(value) if isinstance(value, list) else value


def in_a_query(verb: Verb, folder: Path) -> pa.Table:
    """The rows that a query has written when its sources have ended."""
    stream: Stream = verb(source(streaming=True))
    sink = FolderSink(pafs.LocalFileSystem(), str(folder / "out"), stream.schema, "q")
    options = query_options("q", "q", location(folder), StreamingSettings())
    graph = query_graph(stream.branches, sink, Settings(), SLOTS, options)
    with LocalQuery(graph, location(folder)) as query:
        query.start()
        query.run_through()
    return ds.dataset(folder / "out", format="parquet").to_table()


def test_every_verb_of_the_table_has_a_case() -> None:
    """The table on the page and the cases here are of the same verbs."""
    rows = [line.split("|")[1:4] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    both = [cells[0] for cells in rows if [cell.strip() for cell in cells[1:]] == ["yes", "yes"]]
    named = set(re.findall(r"`(\w+)`", " ".join(both)))
    assert named
    assert named <= VERBS.keys() | AGGREGATES.keys() | ELSEWHERE


@pytest.mark.parametrize("name", VERBS)
def test_rows_are_the_same_both_ways(tmp_path: Path, name: str) -> None:
    """Each row as often as in the batch job."""
    assert rows_of(in_a_query(VERBS[name], tmp_path)) == rows_of(run_local(VERBS[name](source(streaming=False))))


@pytest.mark.parametrize("name", AGGREGATES)
def test_the_newest_row_of_a_key_is_the_one_of_the_batch_job(tmp_path: Path, name: str) -> None:
    """And there are no other keys."""
    wanted = rows_of(run_local(AGGREGATES[name](source(streaming=False))))
    newest: dict[Any, Row] = {}
    sign = -1 if name == "min" else 1
    for row in rows_of(in_a_query(AGGREGATES[name], tmp_path)):
        newest[row[0]] = max(newest.get(row[0], row), row, key=lambda found: sign * found[1])
    assert Counter(newest.values()) == wanted
