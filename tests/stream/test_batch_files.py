# SPDX-License-Identifier: Apache-2.0
"""Batches for a function of the driver's: whole checkpoints, each row in one, again only where a call did not end."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from dropping_mount import Mount
from penstock.api.line_formats import TEXT_SCHEMA
from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.storage import CheckpointStorage
from penstock.errors import PlanError
from penstock.graph import JobGraph
from penstock.record import PartitionerSpec
from penstock.stream.batch_files import BatchFiles, FileBatch
from penstock.stream.folder_sink import FolderSink
from penstock.stream.sinks import SinkOperator
from penstock.testing import DEADLINE
from penstock_torture.local_query import LocalQuery, linear_graph, location
from query_of_files import EXPECTED, graph
from underway import listed


def batches_of(folder: Path) -> BatchFiles:
    """Those of a query in `folder`, as a driver that has just begun knows them."""
    return BatchFiles(pafs.LocalFileSystem(), str(folder / "batches"), location(folder))


def query_graph(folder: Path, width: int) -> JobGraph:
    """Lines of files into batches, by so many tasks."""
    source = graph(folder, Mount(), 1).vertices[0].source.available_now()  # type: ignore[union-attr]
    sink = FolderSink(pafs.LocalFileSystem(), str(folder / "batches"), TEXT_SCHEMA, "q")
    writes = (SinkOperator(replace(sink, has_epochs=True)),)
    return linear_graph(
        source, [(1, (), TEXT_SCHEMA, None), (width, writes, TEXT_SCHEMA, PartitionerSpec("rebalance"))]
    )


class Function:
    """A user's function, which notes the rows of each number, at each call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.calls: dict[int, list[Counter[str]]] = {}

    def __call__(self, batch: FileBatch) -> None:
        """A call."""
        paths = [self._folder / "batches" / name for name in batch.files]
        found = Counter(value for path in paths for value in pq.read_table(path)["value"].to_pylist())
        before = self.calls.setdefault(batch.number, [])
        assert batch.is_again is bool(before)
        before.append(found)


@pytest.mark.parametrize("seed", range(3))
def test_each_row_is_in_one_batch_through_kills(tmp_path: Path, seed: int) -> None:
    """Tasks and drivers die anywhere, tasks change their number: a number stands for the same rows at each call."""
    chance, function, expected = random.Random(seed), Function(tmp_path), Counter[str]()
    for run, width in enumerate((2, 3, 1)):
        made = query_graph(tmp_path, width)
        for each in range(4):
            lines = [f"{run}-{each}:{line}" for line in range(300 * each + 1)]
            (tmp_path / "in" / f"f{run}-{each}").write_text("".join(f"{line}\n" for line in lines))
            expected.update(lines)
        batches = batches_of(tmp_path)
        with LocalQuery(made, location(tmp_path), available_now=True) as query:
            query.start()
            until = time.monotonic() + DEADLINE
            while not query.run(time.monotonic() + 0.02) and time.monotonic() < until:
                if chance.random() < 0.2 and query.kills < 3:
                    query.kill(chance.choice(list(query.lines)))
                if (batch := batches.take()) is not None:
                    function(batch)
                    if chance.random() < 0.5:
                        batches = batches_of(tmp_path)  # the driver dies ahead of its note
                    else:
                        batches.done(batch)
            assert not [error for error in query.failures if not isinstance(error, EXPECTED)]
    batches = batches_of(tmp_path)
    while (batch := batches.take()) is not None:
        function(batch)
        batches.done(batch)
    assert list(function.calls) == list(range(len(function.calls)))
    assert all(call == calls[0] for calls in function.calls.values() for call in calls)
    assert sum((calls[0] for calls in function.calls.values()), Counter()) == expected
    assert not listed(tmp_path / "batches", "*part-*")
    assert len(listed(tmp_path / "batches", ".batch-*")) == 2


def test_files_of_a_batch_that_was_done_are_never_given_again(tmp_path: Path) -> None:
    """The driver dies as it removes them: the next one does, and goes on counting."""
    made = query_graph(tmp_path, 1)
    (tmp_path / "in" / "f").write_text("a\nb\n")
    with LocalQuery(made, location(tmp_path), available_now=True) as query:
        query.start()
        query.run_through(DEADLINE)
    batches = batches_of(tmp_path)
    batch = batches.take()
    assert batch is not None
    assert (batch.number, batch.is_again) == (0, False)
    kept = {name: (tmp_path / "batches" / name).read_bytes() for name in batch.files}
    batches.done(batch)
    for name, data in kept.items():
        (tmp_path / "batches" / name).write_bytes(data)
    assert batches_of(tmp_path).take() is None
    assert not listed(tmp_path / "batches", "part-*")


def test_rows_wait_for_their_call_when_all_tasks_have_ended(tmp_path: Path) -> None:
    """The last checkpoint has no word of theirs then: a driver that died ahead of the call left the rows behind."""
    made = query_graph(tmp_path, 1)
    (tmp_path / "in" / "f").write_text("a\nb\n")
    with LocalQuery(made, location(tmp_path), available_now=True) as query:
        query.start()
        query.run_through(DEADLINE)
    storage = CheckpointStorage(location(tmp_path))
    storage.claim()
    storage.commit(CheckpointMetadata(query.completed[-1] + 1, 0.0, {}))
    batches = batches_of(tmp_path)
    batches.refuse_others(TEXT_SCHEMA)
    folder = tmp_path / "batches"
    folder.rename(tmp_path / "away")
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match="which the query put there, is missing"):
        batches.take()
    folder.rmdir()
    (tmp_path / "away").rename(folder)
    function = Function(tmp_path)
    batch = batches.take()
    assert batch is not None
    function(batch)
    assert function.calls == {0: [Counter("ab")]}


def test_a_folder_that_is_away_for_a_moment_changes_no_number(tmp_path: Path) -> None:
    """A batch that was begun is given again with its number, whatever the list showed in between."""
    made = query_graph(tmp_path, 1)
    for number in range(2):
        (tmp_path / "in" / f"f{number}").write_text("a\n")
        with LocalQuery(made, location(tmp_path), available_now=True) as query:
            query.start()
            query.run_through(DEADLINE)
        batches = batches_of(tmp_path)
        begun = batches.take()
        assert begun is not None
        if number == 0:
            batches.done(begun)
    after = batches_of(tmp_path)
    (tmp_path / "batches").rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            after.take()
        (tmp_path / "batches").mkdir(exist_ok=True)
    (tmp_path / "batches").rmdir()
    (tmp_path / "away").rename(tmp_path / "batches")
    assert after.take() == FileBatch(begun.number, begun.files, is_again=True)
    assert begun.number == 1


@pytest.mark.parametrize("taken", [True, False])
def test_rows_that_wait_keep_their_columns(tmp_path: Path, taken: bool) -> None:
    """A plan with other columns is refused while they are not done: read with its schema they would be nulls."""
    made, other = query_graph(tmp_path, 1), pa.schema([("price", pa.string())])
    batches_of(tmp_path).refuse_others(other)
    (tmp_path / "in" / "f").write_text("a\n")
    with LocalQuery(made, location(tmp_path), available_now=True) as query:
        query.start()
        query.run_through(DEADLINE)
    begun = batches_of(tmp_path).take() if taken else None
    after = batches_of(tmp_path)
    with pytest.raises(PlanError, match=r"columns value string, and this query has price string"):
        after.refuse_others(other)
    after.refuse_others(TEXT_SCHEMA)
    batch = after.take()
    assert batch is not None
    assert batch.is_again is (begun is not None)
    after.done(batch)
    batches_of(tmp_path).refuse_others(other)
