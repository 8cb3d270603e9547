# SPDX-License-Identifier: Apache-2.0
"""Streaming tasks with each other: whole queries in this process, with and without kills."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest

from effort import some_of
from keyed_rows import BY_KEY, COUNTS, KEYED, KEYS, keyed
from penstock.graph import JobEdge, JobGraph, JobVertex
from penstock.graph.streaming import AT_LEAST_ONCE
from penstock.operators.functions import MapInArrow
from penstock.record import PartitionerSpec
from penstock.shuffle import PartitionKind
from penstock.stream import loop
from penstock.stream.folder_sink import FolderSink
from penstock.stream.noop import NoopSink
from penstock.stream.rate import SCHEMA as RATE
from penstock.stream.rate import RateSource
from penstock.stream.sinks import SinkOperator
from penstock_torture.local_query import LocalQuery, linear_graph, location
from underway import listed

ROWS = 4000
PER_SECOND = 8000
"""So a run takes half a second, and kills find it at work."""


def files(folder: Path, schema: pa.Schema) -> SinkOperator:
    """A sink of files below a folder."""
    return SinkOperator(FolderSink(pafs.LocalFileSystem(), str(folder / "out"), schema, "query"))


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """The rows that a plain reader sees."""
    found: list[dict[str, Any]] = ds.dataset(folder / "out", format="parquet").to_table().to_pylist()
    return found


def published(folder: Path) -> list[Path]:
    """The files that a plain reader sees."""
    return listed(folder / "out", "part-*")


def through(folder: Path, rows: int | None, per_second: float = 0) -> JobGraph:
    """Two sources, an exchange by key, and two sinks of what comes."""
    return linear_graph(
        RateSource(per_second, 2, rows),
        [
            (2, (MapInArrow(keyed, KEYED),), KEYED, None),
            (2, (files(folder, KEYED),), KEYED, BY_KEY),
        ],
    )


def counted(
    folder: Path, rows: int | None, per_second: float = 0, *, sources: int = 2, counters: int = 2
) -> JobGraph:
    """Two sources, an exchange by key, two counters, an exchange, one sink."""
    return linear_graph(
        RateSource(per_second, 2, rows),
        [
            (sources, (MapInArrow(keyed, KEYED),), KEYED, None),
            (counters, (COUNTS,), COUNTS.result_schema, BY_KEY),
            (1, (files(folder, COUNTS.result_schema),), COUNTS.result_schema, PartitionerSpec("to_one")),
        ],
    )


def newest_counts(folder: Path) -> dict[int, int]:
    """The greatest count of each key that was published."""
    newest: dict[int, int] = {}
    for row in rows_in(folder):
        newest[row["key"]] = max(newest.get(row["key"], 0), row["n"])
    return newest


def killed_at_random(query: LocalQuery, seed: int, kills: int) -> None:
    """Start a query, kill tasks of it at random moments, and run it to its end; some of the kills must have hit."""
    chance = random.Random(seed)
    query.start()
    tasks = list(query.lines)
    for _ in range(kills):
        if query.run(time.monotonic() + chance.uniform(0.0, 0.15)):
            break
        query.kill(chance.choice(tasks))
    query.run_through()
    assert query.failures


def test_a_bounded_query_ends_and_all_its_rows_are_published(tmp_path: Path) -> None:
    """The sources end, the operators, the last checkpoint, the sinks; nothing else is in the folder."""
    with LocalQuery(through(tmp_path, 2000), location(tmp_path)) as query:
        query.start()
        query.run_through()
    assert sorted(row["value"] for row in rows_in(tmp_path)) == list(range(2000))
    assert not query.failures
    assert not [path for path in listed(tmp_path / "out") if path.name.startswith(".part")]


def test_a_query_without_checkpoints_ends_too(tmp_path: Path) -> None:
    """Then its sinks publish what they have at its end."""
    with LocalQuery(through(tmp_path, 500), "") as query:
        query.start()
        query.run_through()
    assert sorted(row["value"] for row in rows_in(tmp_path)) == list(range(500))


@pytest.mark.parametrize("seed", some_of(range(6), 2))
def test_no_row_is_lost_and_none_is_doubled_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    """Tasks killed at random moments, checkpoints as fast as they go: each row is published once."""
    with LocalQuery(through(tmp_path, ROWS, PER_SECOND), location(tmp_path)) as query:
        killed_at_random(query, seed, 4)
    found = Counter(row["value"] for row in rows_in(tmp_path))
    assert found == Counter(range(ROWS))


@pytest.mark.parametrize("seed", some_of(range(4), 2))
def test_counts_by_key_are_exact_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    """The newest count of each key is the number of its rows, though state, sources and sink started anew."""
    with LocalQuery(counted(tmp_path, ROWS, PER_SECOND), location(tmp_path)) as query:
        killed_at_random(query, seed, 4)
    assert newest_counts(tmp_path) == Counter(value % KEYS for value in range(ROWS))


@pytest.mark.parametrize("counters", [1, 3])
def test_a_query_goes_on_with_another_parallelism(tmp_path: Path, counters: int) -> None:
    """Keys, their states and the source's partitions are dealt out anew, and the counts are exact."""
    with LocalQuery(counted(tmp_path, None, PER_SECOND), location(tmp_path)) as query:
        query.start()
        query.run_until(partial(published, tmp_path), "counts are published")
        query.stop()
        query.run_through()
    with LocalQuery(counted(tmp_path, ROWS, sources=1, counters=counters), location(tmp_path)) as query:
        query.start()
        query.run_through()
    assert newest_counts(tmp_path) == Counter(value % KEYS for value in range(ROWS))


@pytest.mark.parametrize("seed", some_of(range(3), 2))
def test_sources_that_end_at_different_times_are_one_stream(tmp_path: Path, seed: int) -> None:
    """A union of a source that ends soon and one that goes on: what had finished gives nothing anew."""
    few, many = 300, ROWS
    union = JobVertex(2, "union", 2, KEYED, operators=(files(tmp_path, KEYED),))
    short = JobVertex(0, "short", 1, KEYED, RateSource(0, 1, few), operators=(MapInArrow(keyed, KEYED),))
    long = JobVertex(1, "long", 2, KEYED, RateSource(PER_SECOND, 2, many), operators=(MapInArrow(keyed, KEYED),))
    kind = PartitionKind.PIPELINED_BOUNDED
    edges = tuple(JobEdge(producer, producer, 2, BY_KEY, KEYED, kind, "memory") for producer in (0, 1))
    with LocalQuery(JobGraph("union", (short, long, union), edges), location(tmp_path)) as query:
        query.start()
        while (0, 0) not in query.finished and not query.run(time.monotonic() + 0.01):
            pass
        query.kill((1, seed % 2) if seed else (2, 0))
        query.run_through()
        assert query.failures
    found = Counter(row["value"] for row in rows_in(tmp_path))
    assert found == Counter(range(many)) + Counter(range(few))


def test_without_checkpoints_a_kill_doubles_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same query and the same look at its rows: the next attempt begins anew, and publishes all again."""
    monkeypatch.setattr(loop, "PUBLISH_SECONDS", 0.0)
    with LocalQuery(through(tmp_path, ROWS, PER_SECOND), "") as query:
        query.start()
        query.run_until(partial(published, tmp_path), "rows are published")
        query.kill((1, 0))
        query.run_through()
    found = Counter(row["value"] for row in rows_in(tmp_path))
    assert max(found.values()) > 1


def test_at_least_once_loses_nothing(tmp_path: Path) -> None:
    """Channels are never blocked; rows may come twice."""
    with LocalQuery(through(tmp_path, ROWS, PER_SECOND), location(tmp_path), consistency=AT_LEAST_ONCE) as query:
        killed_at_random(query, 7, 3)
    assert {row["value"] for row in rows_in(tmp_path)} == set(range(ROWS))


def test_logs_for_readers_are_in_no_checkpoint_and_go_with_it(tmp_path: Path) -> None:
    """All tasks begin anew from snapshots without rows; a file goes as soon as a later checkpoint is complete."""
    query = LocalQuery(
        through(tmp_path, ROWS, PER_SECOND), location(tmp_path), consistency=AT_LEAST_ONCE, for_readers=True
    )
    logs = partial(listed, Path(location(tmp_path)), "logs-*/*")
    most = 0
    with query:
        query.start()
        for number in range(3):
            query.run_until(logs, "there are logs")
            most = max(most, len(logs()))
            query.kill((1, number % 2))
        query.run_through()
        assert not [name for name in query.chunks() if name.startswith("channel/")]
    assert query.failures
    assert {row["value"] for row in rows_in(tmp_path)} == set(range(ROWS))
    assert most < 20
    assert not logs()


def test_a_query_that_is_told_to_stop_ends_well(tmp_path: Path) -> None:
    """Sources without an end stop, and what they gave is published: each row once, and none after a gap."""
    with LocalQuery(through(tmp_path, None, per_second=5000), location(tmp_path)) as query:
        query.start()
        query.run_until(partial(published, tmp_path), "rows are published")
        query.stop()
        query.run_through()
    found = Counter(row["value"] for row in rows_in(tmp_path))
    assert set(found.values()) == {1}
    for partition in range(2):
        own = sorted(value for value in found if value % 2 == partition)
        assert own == list(range(partition, 2 * len(own), 2))


def test_a_slow_sink_pushes_back_to_the_source(tmp_path: Path) -> None:
    """The source is back-pressured again and again, and the sink is busy; the times are those of the one wait."""

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            until = time.monotonic() + 0.02
            while time.monotonic() < until:
                pass
            yield batch

    graph = linear_graph(
        RateSource(0, 1, None),
        [
            (1, (), RATE, None),
            (1, (MapInArrow(slow, RATE), SinkOperator(NoopSink())), RATE, PartitionerSpec("to_one")),
        ],
    )
    with LocalQuery(graph, location(tmp_path)) as query:
        query.start()
        pushed_back = lambda: query.lines[0, 0].metrics.get("back_pressured_seconds", 0.0) > 1.0  # noqa: E731
        query.run_until(pushed_back, "a second in which the source was back-pressured")
        sink = query.lines[1, 0].metrics
        query.stop()
        query.run_through()
    assert sink["idle_seconds"] < sink["seconds"] / 2
