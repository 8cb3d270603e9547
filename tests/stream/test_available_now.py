# SPDX-License-Identifier: Apache-2.0
"""Queries that read what is there, take a last checkpoint and stop; the next run goes on from it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dropping_mount import Mount
from penstock.errors import PlanError
from penstock.graph import JobGraph
from penstock.record import PartitionerSpec
from penstock.shuffle.actions import StopSource
from penstock.stream.conversation import Conversation, EndData, SayCaughtUp, StopReading
from penstock.stream.folder_sink import FolderSink
from penstock.stream.partitioned_source import PartitionedSource
from penstock.stream.rate import RateSource
from penstock.stream.sinks import SinkOperator
from penstock.testing import DEADLINE
from penstock_torture.local_query import LocalQuery, linear_graph, location
from query_of_files import EXPECTED, graph, rows_in
from underway import listed


def available(made: JobGraph) -> JobGraph:
    """The graph with sources that end for now."""
    first = made.vertices[0]
    return made.with_vertex(
        type(first)(first.id, first.name, first.parallelism, first.schema, first.source.available_now())  # type: ignore[union-attr]
    )


def arrive(folder: Path, number: int, count: int, expected: Counter[str]) -> None:
    """So many files more."""
    for each in range(count):
        name = f"run{number}-{each}"
        rows = [f"{name}:{row}" for row in range(each * 700 + 1)]
        (folder / f".{name}").write_text("".join(f"{row}\n" for row in rows))
        (folder / f".{name}").rename(folder / name)
        expected.update(rows)


@pytest.mark.parametrize("seed", range(3))
def test_each_file_is_read_once_by_three_runs(tmp_path: Path, seed: int) -> None:
    """A folder that grows; tasks are killed in the second run, wherever they are; another number of tasks."""
    chance, expected = random.Random(seed), Counter[str]()
    for number, width in enumerate((2, 2, 3)):
        made = available(graph(tmp_path, Mount(), width))
        arrive(tmp_path / "in", number, 4, expected)
        with LocalQuery(made, location(tmp_path), available_now=True) as query:
            query.start()
            for _ in range(3 if number == 1 else 0):
                query.run(time.monotonic() + chance.uniform(0.0, 0.06))
                query.kill(chance.choice(list(query.lines)))
            query.run_through(DEADLINE)
            assert not [error for error in query.failures if not isinstance(error, EXPECTED)]
        assert Counter(rows_in(tmp_path)) == expected, number


def test_run_over_an_unchanged_folder_ends_without_rows(tmp_path: Path) -> None:
    """Also the very first one, and its checkpoint is gone on from."""
    expected: Counter[str] = Counter()
    for number, files in enumerate((0, 3, 0)):
        with LocalQuery(available(graph(tmp_path, Mount(), 1)), location(tmp_path), available_now=True) as query:
            arrive(tmp_path / "in", number, files, expected)
            query.start()
            query.run_through(DEADLINE)
        assert Counter(rows_in(tmp_path)) == expected


class Lines:
    """A user's source of two partitions, which has nothing more for now."""

    schema = pa.schema([("value", pa.int64())])

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def partitions(self) -> list[str]:
        """Two."""
        return ["a", "b"]

    def read(self, partition: str, offset: Any) -> Iterator[tuple[pa.RecordBatch | None, Any]]:
        """The numbers from an offset on, ten at a time; then nothing, again and again."""
        for begin in range(offset or 0, self.rows, 10):
            values = list(range(begin, begin + 10))
            yield pa.record_batch([pa.array(values, pa.int64())], schema=self.schema), begin + 10
        while True:
            yield None, self.rows


def test_partitions_are_read_up_to_where_they_have_nothing(tmp_path: Path) -> None:
    """A source of one's own; the second run gives what has come since."""
    for rows in (50, 90):
        sink = SinkOperator(FolderSink(pa.fs.LocalFileSystem(), str(tmp_path / "out"), Lines.schema, "q"))
        source = PartitionedSource(Lines(rows)).available_now()
        stages = [(2, (), Lines.schema, None), (1, (sink,), Lines.schema, PartitionerSpec("rebalance"))]
        with LocalQuery(linear_graph(source, stages), location(tmp_path), available_now=True) as query:
            query.start()
            query.run_through(DEADLINE)
        found = Counter(
            value for path in listed(tmp_path / "out", "part-*") for value in pq.read_table(path)["value"].to_pylist()
        )
        assert found == Counter(dict.fromkeys(range(rows), 2))


def test_source_that_has_caught_up_says_so_once_and_waits() -> None:
    """Its data has not ended before the word to stop, and then as stopped data does."""
    core = Conversation(0, available_now=True)
    assert core.source_ended() == [SayCaughtUp()]
    assert core.source_ended() == []
    assert core.has_data
    assert core.action_came(StopSource(), 0.0) == [StopReading(), EndData(stopped=True)]
    core.check()


def test_rows_that_are_made_up_for_ever_are_never_all_there() -> None:
    """`rate` needs an end."""
    with pytest.raises(PlanError, match="availableNow needs numRows"):
        RateSource().available_now()
    assert RateSource(num_rows=5).available_now() == RateSource(num_rows=5)
