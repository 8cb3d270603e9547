# SPDX-License-Identifier: Apache-2.0
"""Queries that go on with other numbers of tasks: keys, partitions and what sinks prepared are dealt out anew."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest

from effort import some_of
from keyed_rows import BY_KEY, COUNTS, KEYED, KEYS, keyed
from penstock.checkpoint.channel_state import ChannelKey
from penstock.checkpoint.coordinator import CheckpointOptions
from penstock.checkpoint.storage import CheckpointStorage
from penstock.errors import PlanError
from penstock.graph import JobEdge, JobGraph, JobVertex
from penstock.operators.functions import MapInArrow
from penstock.record import PartitionerSpec
from penstock.shuffle import PartitionKind
from penstock.stream import restored_rows
from penstock.stream.folder_sink import FolderSink
from penstock.stream.in_flight import edge_uids
from penstock.stream.rate import RateSource
from penstock.stream.rescaling import Taken
from penstock.stream.sinks import SinkOperator
from penstock_torture.local_query import LocalQuery, linear_graph, location
from underway import listed

PARTITIONS = 5
ROWS = 4000
MANY_ROWS = 40_000
"""More than a query without an end gives at its rate until it is stopped, on whatever machine."""
WIDTHS = (1, 2, 3, 5)


def counted(folder: Path, rows: int | None, widths: tuple[int, int, int]) -> JobGraph:
    """Sources, an exchange by key, counters, an exchange in turns, sinks: so many of each."""
    schema = COUNTS.result_schema
    sink = SinkOperator(FolderSink(pafs.LocalFileSystem(), str(folder / "out"), schema, "query"))
    sources, counters, sinks = widths
    return linear_graph(
        RateSource(8000 if rows is None else 0, PARTITIONS, rows),
        [
            (sources, (MapInArrow(keyed, KEYED),), KEYED, None),
            (counters, (COUNTS,), schema, BY_KEY),
            (sinks, (sink,), schema, PartitionerSpec("rebalance")),
        ],
    )


def newest(folder: Path) -> dict[int, int]:
    """The greatest count of each key that was published."""
    table = ds.dataset(folder / "out", format="parquet").to_table()
    found = table.group_by("key").aggregate([("n", "max")]).to_pydict()
    return dict(zip(found["key"], found["n_max"], strict=True))


def any_widths(chance: random.Random) -> tuple[int, int, int]:
    """A number of tasks for each stage."""
    return chance.choice(WIDTHS), chance.choice(WIDTHS), chance.choice(WIDTHS)


@pytest.mark.parametrize("seed", some_of(range(6), 4))
def test_no_row_is_lost_and_none_is_doubled_at_whatever_widths(tmp_path: Path, seed: int) -> None:
    """Three runs one after the other, each with other numbers of tasks, killed in the middle; the last has an end."""
    chance = random.Random(seed)
    for _ in range(2):
        with LocalQuery(counted(tmp_path, None, any_widths(chance)), location(tmp_path)) as query:
            query.start()
            while not query.completed and not query.run(time.monotonic() + 0.05):
                pass
            if chance.random() < 0.5:
                query.kill(chance.choice(list(query.lines)))
            query.run(time.monotonic() + chance.uniform(0.0, 0.2))
    with LocalQuery(counted(tmp_path, MANY_ROWS, any_widths(chance)), location(tmp_path)) as query:
        query.start()
        query.run_through()
    assert newest(tmp_path) == Counter(value % KEYS for value in range(MANY_ROWS))


def test_a_query_that_had_ended_is_refused_at_any_width(tmp_path: Path) -> None:
    """It would read nothing, and it publishes nothing again."""
    with LocalQuery(counted(tmp_path, 500, (2, 3, 1)), location(tmp_path)) as query:
        query.start()
        query.run_through()
    before = newest(tmp_path)
    files = sorted(path.name for path in listed(tmp_path / "out"))
    with pytest.raises(PlanError, match="had read all of its rows and has ended"):
        LocalQuery(counted(tmp_path, 500, (3, 2, 2)), location(tmp_path))
    assert newest(tmp_path) == before == Counter(value % KEYS for value in range(500))
    assert sorted(path.name for path in listed(tmp_path / "out")) == files


def test_a_stage_that_is_gone_is_refused_by_name(tmp_path: Path) -> None:
    """The checkpoint holds what it had counted."""
    graph = counted(tmp_path, None, (2, 2, 1))
    with LocalQuery(graph, location(tmp_path)) as query:
        query.start()
        while not query.completed and not query.run(time.monotonic() + 0.05):
            pass
    other = replace(graph, vertices=tuple(replace(v, id=v.id + (v.id == 2)) for v in graph.vertices))
    other = replace(other, edges=(graph.edges[0], replace(graph.edges[1], consumer=3)))
    with pytest.raises(PlanError, match=r"\(v2\).*not in it: v3"):
        LocalQuery(other, location(tmp_path))


def test_a_damaged_part_is_named_and_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    """One byte of one task's part of the newest checkpoint has changed; the counts are right nevertheless."""
    options = CheckpointOptions(interval=0.02, tolerable_failures=99, retained=3)
    with LocalQuery(counted(tmp_path, None, (2, 2, 1)), location(tmp_path), options) as query:
        query.start()
        while len(query.completed) < 3 and not query.run(time.monotonic() + 0.05):
            pass
    folders = listed(tmp_path / "checkpoints", "chk-*/_metadata")
    part = folders[-1].parent / "v1.0"
    data = part.read_bytes()
    part.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    found = CheckpointStorage(location(tmp_path)).claim()
    (unusable,) = found.unusable
    assert f"{part}: chunk KeyedAggregate" in unusable.cause
    with LocalQuery(counted(tmp_path, MANY_ROWS, (1, 3, 1)), location(tmp_path), options) as query:
        query.start()
        query.run_through()
    assert newest(tmp_path) == Counter(value % KEYS for value in range(MANY_ROWS))


def pressed(folder: Path, rows: int | None, widths: tuple[int, int, int], exchanges: tuple[str, str]) -> JobGraph:
    """Sources, a stage that passes rows on, and slow sinks, so that rows wait in front of them."""
    chosen = [BY_KEY if kind == "hash" else PartitionerSpec(kind) for kind in exchanges]
    sink = SinkOperator(FolderSink(pafs.LocalFileSystem(), str(folder / "out"), KEYED, "query"))
    sources, between, sinks = widths
    return linear_graph(
        RateSource(20_000, PARTITIONS, rows),
        [
            (sources, (MapInArrow(keyed, KEYED),), KEYED, None),
            (between, (), KEYED, chosen[0]),
            (sinks, (MapInArrow(slower if rows is None else slow, KEYED), sink), KEYED, chosen[1]),
        ],
    )


def slow(batches: Iterator[pa.RecordBatch], seconds: float = 100e-6) -> Iterator[pa.RecordBatch]:
    """Is busy with each row, without the interpreter for itself."""
    for batch in batches:
        until = time.monotonic() + seconds * batch.num_rows
        while time.monotonic() < until:
            time.sleep(100e-6)
        yield batch


def slower(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Takes fewer rows than come also where a busy machine has fewer come."""
    return slow(batches, 1e-3)


def in_flight(query: LocalQuery, consumer: int | None = None) -> int:
    """Bytes of the rows in flight of the newest complete checkpoint, or those in front of one stage."""
    uids = edge_uids(query.graph)
    edges = {uids[edge.id] for edge in query.graph.edges if consumer in (None, edge.consumer)}
    chunks = query.chunks()
    return sum(chunks[name] for name in chunks if (key := ChannelKey.of(name)) is not None and key.edge in edges)


def published(folder: Path) -> list[int]:
    """All values in a folder, in the order in which the sinks took them: of one key that is the order of its rows."""
    files = sorted(listed(folder, "part-*"), key=lambda path: path.stat().st_mtime_ns)
    return [value for path in files for value in ds.dataset(path).to_table()["value"].to_pylist()]


def is_whole(values: Iterable[int]) -> bool:
    """Tell whether each partition's values are there once, up to where it was read: at least to the last run's end.

    On a busy machine a query without an end may read one partition further than the last run reads the others.
    """
    found = Counter(values)
    ends = [max((value for value in found if value % PARTITIONS == first), default=0) for first in range(PARTITIONS)]
    expected = Counter(value for first, end in enumerate(ends) for value in range(first, end + 1, PARTITIONS))
    return found == expected and found.keys() >= set(range(ROWS))


EXCHANGES = [("hash", "hash"), ("rebalance", "hash"), ("hash", "rebalance"), ("random", "random")]


@pytest.mark.parametrize("exchanges", EXCHANGES, ids="-".join)
@pytest.mark.parametrize("seed", some_of(range(3), 2))
def test_rows_in_flight_find_their_tasks_at_whatever_widths(
    tmp_path: Path, seed: int, exchanges: tuple[str, str]
) -> None:
    """Barriers overtake rows; each run goes on with other numbers of tasks of all stages: each row is published once.

    Some attempts end while restored rows still wait, so those go through more than one checkpoint.
    """
    chance = random.Random(seed)
    found = 0
    for _ in range(3):
        graph = pressed(tmp_path, None, any_widths(chance), exchanges)
        with LocalQuery(graph, location(tmp_path), unaligned=True) as query:
            query.start()
            query.run_until(partial(in_flight, query), "rows are in flight")
            if chance.random() < 0.5:
                query.kill(chance.choice(list(query.lines)))
                query.run(time.monotonic() + chance.uniform(0.0, 0.05))
            found += in_flight(query)
    assert found
    with LocalQuery(pressed(tmp_path, ROWS, any_widths(chance), exchanges), location(tmp_path)) as query:
        query.start()
        query.run_through()
    values = published(tmp_path / "out")
    assert is_whole(values)
    if set(exchanges) == {"hash"}:
        # A key's values are those of one partition of the source, so they rise where order by key is kept.
        last: dict[int, int] = {}
        for value in values:
            assert last.get(value % KEYS, -1) < value, f"{value} came behind {last[value % KEYS]}"
            last[value % KEYS] = value


@pytest.mark.parametrize("broken", [None, "left out", "twice"])
def test_a_restore_that_is_wrong_by_one_channel_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str | None
) -> None:
    """The same look at the rows, where a consumer reads one channel less than it must, or one twice."""
    right = restored_rows.taken_by

    def taken(*arguments: Any) -> list[Taken]:
        found = right(*arguments)
        return found[1:] if broken == "left out" else found[:1] + found if broken else found

    graph = pressed(tmp_path, None, (2, 2, 2), ("hash", "hash"))
    with LocalQuery(graph, location(tmp_path), unaligned=True) as query:
        query.start()
        query.run_until(lambda: in_flight(query) >= 4096, "many rows are in flight")
    monkeypatch.setattr(restored_rows, "taken_by", taken)
    with LocalQuery(pressed(tmp_path, ROWS, (3, 3, 3), ("hash", "hash")), location(tmp_path)) as query:
        query.start()
        query.run_through()
    values = published(tmp_path / "out")
    assert is_whole(values) is (broken is None)


def by_function(folder: Path, rows: int | None, sinks: int) -> JobGraph:
    """One source, and slow sinks after an exchange whose function knows how many there are."""
    graph = pressed(folder, rows, (1, 1, sinks), ("rebalance", "rebalance"))
    chosen = PartitionerSpec("custom", function=lambda batch: pc.bit_wise_and(batch["key"], sinks - 1))
    return replace(graph, edges=(graph.edges[0], replace(graph.edges[1], exchange=chosen)))


def is_refused(query: LocalQuery) -> bool:
    """Tell whether some task has said which option the query needs."""
    return any("option rescaleByFunction" in str(failure) for failure in query.failures)


def test_a_function_deals_out_rows_in_flight_only_where_it_may(tmp_path: Path) -> None:
    """Two sinks become four: refused with the option's name, and with the option each row is published once."""
    with LocalQuery(by_function(tmp_path, None, 2), location(tmp_path), unaligned=True) as query:
        query.start()
        query.run_until(partial(in_flight, query, consumer=2), "rows are in flight")
    with LocalQuery(by_function(tmp_path, ROWS, 4), location(tmp_path)) as query:
        query.start()
        # The first to fail may be a task in front of the one that is refused.
        query.run_until(lambda: is_refused(query), "the refusal")
    with LocalQuery(by_function(tmp_path, ROWS, 4), location(tmp_path), rescale_by_function=True) as query:
        query.start()
        query.run_through()
    values = published(tmp_path / "out")
    assert is_whole(values)


def mixed(folder: Path, rows: int | None, widths: list[int]) -> JobGraph:
    """Two sources and two sinks: the first source gives to both, to one of them twice; each sink has both kinds."""
    sources = [
        JobVertex(number, "source", widths[number], KEYED, RateSource(20_000, PARTITIONS, rows), operators=(KEY,))
        for number in (0, 1)
    ]
    sinks = [
        JobVertex(
            number,
            "sink",
            widths[number],
            KEYED,
            operators=(
                MapInArrow(slow, KEYED),
                SinkOperator(FolderSink(pafs.LocalFileSystem(), str(folder / f"out{number}"), KEYED, "query")),
            ),
        )
        for number in (2, 3)
    ]
    in_turns, kind = PartitionerSpec("rebalance"), PartitionKind.PIPELINED_BOUNDED
    joined = [(0, 2, BY_KEY), (1, 2, in_turns), (0, 3, in_turns), (0, 3, BY_KEY)]
    edges = [JobEdge(n, p, c, spec, KEYED, kind, "memory") for n, (p, c, spec) in enumerate(joined)]
    return JobGraph("mixed", (*sources, *sinks), tuple(edges))


KEY = MapInArrow(keyed, KEYED)


@pytest.mark.parametrize("seed", some_of(range(3), 2))
def test_it_is_decided_for_each_exchange_where_tasks_have_several(tmp_path: Path, seed: int) -> None:
    """Stages with inputs and outputs of both kinds, two exchanges between the same stages, timeouts of a barrier."""
    chance = random.Random(seed)
    timeout = chance.choice([0.0, 0.001, 0.05])
    found = 0
    for _ in range(2):
        graph = mixed(tmp_path, None, [chance.choice(WIDTHS) for _ in range(4)])
        with LocalQuery(graph, location(tmp_path), unaligned=True, aligned_timeout=timeout) as query:
            query.start()
            query.run_until(partial(in_flight, query), "rows are in flight")
            found += in_flight(query)
    assert found
    graph = mixed(tmp_path, ROWS, [chance.choice(WIDTHS) for _ in range(4)])
    with LocalQuery(graph, location(tmp_path), unaligned=True) as query:
        query.start()
        query.run_through()
    both, twice = Counter(published(tmp_path / "out2")), Counter(published(tmp_path / "out3"))
    assert set(twice.values()) == {2}, "each row came over both exchanges"
    assert is_whole(twice.keys())
    assert not Counter(twice.keys()) - both, "what came twice over there came once here"
    assert is_whole((both - Counter(twice.keys())).elements())
