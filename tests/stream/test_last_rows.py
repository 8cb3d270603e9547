# SPDX-License-Identifier: Apache-2.0
"""Sinks that write of each key the last row of an epoch: their newest rows are the table at each checkpoint."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from effort import some_of
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.whole_results import WholeResult
from penstock.api.streaming.writer import query_graph
from penstock.errors import ProducerFailedError, TaskCancelledError
from penstock.graph import JobGraph
from penstock.graph.streaming import StreamingOptions
from penstock.machine.locations import here
from penstock.record.layout import fixed_values
from penstock.settings import Settings
from penstock.stream.folder_sink import FolderSink
from penstock.stream.last_rows import LastRows
from penstock.stream.rate import RateSource
from penstock.testing import DEADLINE
from penstock_torture.local_query import LocalQuery, location
from underway import listed

ROWS, KEYS = 4000, 7
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])


def test_the_last_row_of_each_key_is_left() -> None:
    """Nulls are a key; also where rows are looked through in between; then there are none."""
    for first_bytes in (1, 1 << 20):
        rows = LastRows(["k"], first_bytes)
        for number, keys in enumerate(([1, None, 1], [2, 1], [None])):
            columns = [pa.array(keys, pa.int64()), pa.array([10 * number + i for i in range(len(keys))], pa.int64())]
            rows.add(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        found = [row for batch in rows.take() for row in batch.to_pylist()]
        assert found == [{"k": 2, "n": 10}, {"k": 1, "n": 11}, {"k": None, "n": 20}]
        assert not rows.take()


def test_rows_of_an_epoch_may_have_more_bytes_than_one_batch_holds() -> None:
    """Texts of more than 2 GiB, which come apart; many small rows come as one batch, whatever their key is."""
    size = (1 << 30) + (1 << 29)
    ends = np.array([0, size], np.int32)
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(np.zeros(size, np.uint8))])
    rows = LastRows(["k"])
    for key in (1, 2, 1, 3):
        rows.add(pa.RecordBatch.from_arrays([pa.array([key]), text], names=["k", "text"]))
    found = rows.take()
    assert [batch["k"].to_pylist() for batch in found] == [[2], [1], [3]]
    assert all(batch["text"].buffers()[2].size == size for batch in found)
    named = LastRows(["k"])
    for number in range(6):
        named.add(pa.record_batch({"k": [f"key {number % 4}"], "n": [number]}))
    (only,) = named.take()
    assert only.to_pydict() == {"k": [f"key {number % 4}" for number in range(2, 6)], "n": [2, 3, 4, 5]}


def counts(folder: Path, width: int, *, through: bool = False) -> JobGraph:
    """Numbers counted by key into a sink of last rows; `through` an exchange more, after which rows have no order."""
    source = RateSource(8000, 1, ROWS)
    step = SourceStep("rate", source.schema, source, partitions=1, streaming=True)  # type: ignore[arg-type]
    keyed = Stream((step,)).mapInArrow(by_key, "k long, v long")
    counted = keyed.keyBy("k", numPartitions=width).agg(n=("v", "count"))
    counted = counted.rebalance(2).mapInArrow(same, "k long, n long") if through else counted
    sink = FolderSink(here(), str(folder / "out"), counted.schema, "q", keys=("k",), epoch_column="epoch")
    options = StreamingOptions("q", "query", location(folder))
    return query_graph(counted.branches, sink, Settings(), 12, options, is_kept=True)


def by_key(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The key of each number."""
    for batch in batches:
        values = fixed_values(batch.column("value"), np.int64)
        yield pa.RecordBatch.from_arrays([pa.array(values % KEYS), pa.array(values)], names=["k", "v"])


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows as they are."""
    yield from batches


def table_at(folder: Path, epoch: int) -> dict[int, int]:
    """The newest value of each key, as of a checkpoint."""
    newest: dict[int, tuple[int, int]] = {}
    for path in listed(folder / "out", "part-*"):
        for row in pq.read_table(path).to_pylist():
            if row["epoch"] <= epoch:
                before = newest.get(row["k"], (0, 0))
                assert row["epoch"] != before[0], "two rows of one key in an epoch"
                newest[row["k"]] = max(before, (row["epoch"], row["n"]))
    return {key: value for key, (_, value) in newest.items()}


@pytest.mark.parametrize("seed", some_of(range(3), 3))
def test_newest_rows_are_the_table_at_each_checkpoint(tmp_path: Path, seed: int) -> None:
    """Kills, and a second run with another number of tasks: at each the counts are those of the first m numbers."""
    chance, complete = random.Random(seed), list[int]()
    for run, width in enumerate((2, 3)):
        with LocalQuery(counts(tmp_path, width), location(tmp_path)) as query:
            query.start()
            until = time.monotonic() + (0.2 if run == 0 else DEADLINE)
            while time.monotonic() < until and not query.run(time.monotonic() + 0.03):
                if chance.random() < 0.2 and query.kills < 3:
                    query.kill(chance.choice(list(query.lines)))
            if run == 0:
                query.stop()
                query.run_through()
            assert not [
                error for error in query.failures if not isinstance(error, TaskCancelledError | ProducerFailedError)
            ]
            complete += query.completed
    totals = []
    for number in complete:
        table = table_at(tmp_path, number)
        total = sum(table.values())
        assert table == {key: (total - key + KEYS - 1) // KEYS for key in range(KEYS) if total > key}, number
        totals.append(total)
    assert totals == sorted(totals)
    assert totals[-1] == ROWS


def test_rows_of_a_key_come_to_one_task(tmp_path: Path) -> None:
    """An exchange is put in front of the sink where the plan has none that does it."""
    assert [vertex.parallelism for vertex in counts(tmp_path, 2).vertices] == [1, 2]
    through = counts(tmp_path, 2, through=True)
    assert len(through.vertices) == 4
    assert through.edges[-1].exchange.keys == ("k",)


def test_a_whole_result_has_the_newest_row_of_each_group(tmp_path: Path) -> None:
    """Of files in the order of their epochs, looked at once; with too many groups it says so and looks no more."""

    def put(epoch: int, *rows: tuple[int, int]) -> None:
        table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
        pq.write_table(table, tmp_path / f"part-q-00000-0-e{epoch:08d}-{secrets.token_hex(8)}.parquet")

    whole = WholeResult(str(tmp_path), SCHEMA, ("k",), 3)
    of_all = WholeResult(str(tmp_path), SCHEMA, (), 3)
    assert whole.look() is None
    put(10, (1, 3), (2, 1))
    put(9, (1, 2), (3, 1))
    assert sorted(tuple(row.values()) for row in found(whole)) == [(1, 3), (2, 1), (3, 1)]
    assert found(of_all) == [{"k": 2, "n": 1}]
    assert whole.look() is None
    put(11, (2, 5))
    assert {"k": 2, "n": 5} in found(whole)
    assert whole.failure is None
    put(12, (4, 1))
    assert len(found(whole)) == 4
    assert "the result has 4 groups, and the driver holds 3" in str(whole.failure)
    put(13, (4, 2))
    assert whole.look() is None


def found(whole: WholeResult) -> list[dict[str, int]]:
    """The rows of a look that finds something new."""
    table = whole.look()
    assert table is not None
    rows: list[dict[str, int]] = table.to_pylist()
    return rows
