# SPDX-License-Identifier: Apache-2.0
"""Windows in streaming queries: the same as over all rows at once, through kills, restores and other widths."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from effort import with_all
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.modes import in_mode
from penstock.api.windows import session_window, window
from penstock.errors import PlanError
from penstock.operators.window_aggregates import GrowingStates, PartialWindows
from penstock.operators.windows import WindowKey
from penstock.stream import increments
from penstock.stream.chain import Chain, StepContext
from penstock.stream.steps import step_of
from penstock.stream.watermark import MOST, Watermark
from penstock.stream.watermarks import EventTimeProgress
from penstock_torture.local_query import LocalQuery, location
from query_shapes import rows_given
from timed_queries import OFTEN, graph_of, published, rows, run_through
from timed_rows import DISORDER, KEYS, SECOND, timed, times_of

ROWS = 6000
WINDOWS: dict[str, WindowKey] = {
    "tumbling": window("ts", "700 milliseconds"),
    "sliding": window("ts", "1 second", "250 milliseconds", "10 milliseconds"),
    "uneven": window("ts", "1 second", "300 milliseconds"),
    "session": session_window("ts", "9 milliseconds"),
}


@pytest.fixture(autouse=True)
def small_states_in_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints refer to older ones, however few rows there are."""
    monkeypatch.setattr(increments, "LEAST_SLOTS", 0)


def counts(stream: Stream, by: WindowKey, keys: tuple[str, ...], width: int, delay: str = "1 second") -> Stream:
    """Each window's rows, their greatest number and the sum of all."""
    by_window = stream.withWatermark("ts", delay).keyBy(*keys, by, numPartitions=width if keys else None)
    return by_window.agg(n=("*", "count"), last=("value", "max"), s=("value", "sum"))


def expected(by: WindowKey, keys: tuple[str, ...], count: int) -> dict[tuple[Any, ...], tuple[int, int, int]]:
    """The windows of all rows, row by row: key and bounds to count, greatest and sum."""
    values = np.arange(count)
    times = times_of(values)
    members: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    if by.gap:
        for key in range(KEYS) if keys else (None,):
            own = [v for v in values[np.argsort(times, kind="stable")].tolist() if key is None or v % KEYS == key]
            session: list[int] = []
            for value in own:
                if session and times[value] > times[session[-1]] + by.gap:
                    members[key, int(times[session[0]]), int(times[session[-1]]) + by.gap] = session
                    session = []
                session.append(value)
            members[key, int(times[session[0]]), int(times[session[-1]]) + by.gap] = session
    else:
        for value, moment in zip(values.tolist(), times.tolist(), strict=True):
            start = (moment - by.offset) // by.slide * by.slide + by.offset
            while start + by.size > moment:
                members[value % KEYS if keys else None, start, start + by.size].append(value)
                start -= by.slide
    return {place: (len(own), max(own), sum(own)) for place, own in members.items()}


def found(table: pa.Table, name: str) -> list[tuple[tuple[Any, ...], tuple[int, int, int]]]:
    """The published windows, as `expected` has them."""
    bounds = [table[name].combine_chunks().field(side).cast(pa.int64()).to_pylist() for side in ("start", "end")]
    keys = table["key"].to_pylist() if "key" in table.schema.names else [None] * table.num_rows
    results = [table[column].to_pylist() for column in ("n", "last", "s")]
    return [((k, s, e), r) for k, s, e, *r in zip(keys, *bounds, *results, strict=True) for r in [tuple(r)]]  # type: ignore[misc]


@pytest.mark.parametrize("unaligned", [with_all(False), True], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("keys", [("key",), with_all(())], ids=["by key", "of all"])
@pytest.mark.parametrize("kind", WINDOWS)
def test_each_window_is_given_once_and_whole(
    tmp_path: Path, kind: str, keys: tuple[str, ...], unaligned: bool
) -> None:
    """Two runs at different widths with kills: windows are those of all rows, and none is given twice."""
    by = WINDOWS[kind]
    chance = random.Random(f"{kind} {keys} {unaligned}")
    widths = chance.sample((1, 2, 3), 2)
    graph = graph_of(counts(rows(None), by, keys, widths[0]), tmp_path)
    with LocalQuery(graph, location(tmp_path), settings=OFTEN, unaligned=unaligned) as query:
        query.start()
        while len(query.completed) < 3 and not query.run(time.monotonic() + 0.05):
            pass
        query.kill(chance.choice(list(query.lines)))
        query.run(time.monotonic() + chance.uniform(0.1, 0.3))
    count = max(ROWS, rows_given(location(tmp_path)))
    graph = graph_of(counts(rows(count), by, keys, widths[1]), tmp_path)
    query = run_through(graph, tmp_path, chance, unaligned=unaligned, kills=2)
    given_ = found(published(tmp_path), by.name)
    assert Counter(place for place, _ in given_).most_common(1)[0][1] == 1
    assert dict(given_) == expected(by, keys, count)
    assert sum(line.metrics.get("rows_late", 0.0) for line in query.lines.values()) == 0


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_rows_given_and_rows_late_are_all_rows(tmp_path: Path, kind: str) -> None:
    """With a delay that is too short, through kills: each row is in a window that was given, or counted as late."""
    stream = counts(rows(ROWS, 15_000), WINDOWS[kind], ("key",), 2, "20 milliseconds")
    query = run_through(graph_of(stream, tmp_path), tmp_path, random.Random(5), unaligned=False, kills=2)
    late = sum(line.metrics.get("rows_late", 0.0) for line in query.lines.values())
    given_ = found(published(tmp_path), WINDOWS[kind].name)
    assert late > 0
    assert sum(count for _, (count, _, _) in given_) + late == ROWS


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "uneven"])
def test_updates_end_with_the_whole_window(tmp_path: Path, kind: str) -> None:
    """In mode update the last row of each window is the whole one, through kills and at another width."""
    by = WINDOWS[kind]
    chance = random.Random(kind)
    graph = graph_of(counts(rows(None), by, ("key",), 2), tmp_path, "update")
    with LocalQuery(graph, location(tmp_path), settings=OFTEN) as query:
        query.start()
        while len(query.completed) < 3 and not query.run(time.monotonic() + 0.05):
            pass
    count = max(ROWS, rows_given(location(tmp_path)))
    graph = graph_of(counts(rows(count), by, ("key",), 3), tmp_path, "update")
    run_through(graph, tmp_path, chance, unaligned=False, kills=2)
    newest: dict[tuple[Any, ...], tuple[int, int, int]] = {}
    for place, result in found(published(tmp_path), by.name):
        newest[place] = max(newest.get(place, (0, 0, 0)), result)
    assert newest == expected(by, ("key",), count)


@pytest.mark.parametrize("kind", ["sliding", "session"])
@pytest.mark.parametrize("size", [1, 300], ids=["small batches", "large ones"])
def test_states_are_merged_as_they_come(kind: str, size: int) -> None:
    """Many small batches are few runs ahead of a watermark; small and large ones give what a batch job does."""
    count = 900
    stream = counts(rows(count), WINDOWS[kind], ("key",), 1)
    spec = next(op.spec for v in graph_of(stream, Path()).vertices for op in v.operators if hasattr(op, "spec"))
    values = np.arange(count)
    batch = next(timed(iter([pa.record_batch({"value": values})])))
    pieces = [batch.slice(first, size) for first in range(0, count, size)]
    states = GrowingStates(spec.plan)
    for piece in pieces:
        for state in PartialWindows(spec).apply(iter([piece])):
            states.add(state)
        assert len(states.runs) <= 1 + max(32, count // size * (size > 1))
    merged = states.merged()
    assert merged is not None
    given_ = list(spec.plan.results(spec.plan.expanded(merged, lambda ends: ends <= MOST)))
    assert dict(found(pa.Table.from_batches(given_), WINDOWS[kind].name)) == expected(WINDOWS[kind], ("key",), count)


TIMES = st.lists(
    st.one_of(
        st.lists(st.tuples(st.integers(0, 2), st.integers(-40, 40)), min_size=1, max_size=6), st.integers(-40, 60)
    ),
    max_size=12,
)


@given(TIMES, st.sampled_from([(4, 4, 0, 0), (6, 2, 1, 0), (5, 3, 0, 0), (0, 0, 0, 3)]), st.booleans())
@effort(deadline=None)
def test_a_step_gives_each_row_to_its_windows_or_counts_it(
    events: list[list[tuple[int, int]] | int], bounds: tuple[int, int, int, int], restores: bool
) -> None:
    """Rows and watermarks in any order, with a restore at each watermark: on time counts in full, late not at all."""
    size, slide, offset, gap = bounds
    by = WindowKey("ts", size, slide, offset, gap, "w")
    schema = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us"))])
    stream = Stream((SourceStep("rows", schema, streaming=True),)).keyBy("k", by).agg(n=("*", "count"))
    operators = _operators(stream)
    step = operators[1].step()
    context = StepContext(0, 1, 128, "test")
    step.open(context, [])
    watermark, given_, rows_in = -(1 << 62), [], 0
    for event in [*events, MOST]:
        if isinstance(event, list):
            rows_in += len(event)
            ks, ts = zip(*event, strict=True)
            batch = pa.record_batch([pa.array(ks, pa.int64()), pa.array(ts, pa.int64())], schema=schema)
            for states in operators[0].apply(iter((batch,))):
                assert not list(step.process(states))
        elif event > watermark:
            watermark = event
            for result in step.on_watermark(Watermark(watermark)):
                given_ += [(w["start"], w["end"], k, n) for w, k, n in _listed(result)]
                assert all(w["end"] <= watermark for w, _, _ in _listed(result))
            if restores:
                state = {name: bytes(b"".join(_pieces(make()))) for name, make in step.snapshot(1)}
                step = operators[1].step()
                step.open(context, [state])
    late = step.metrics()["rows_late"]
    per_row = -(-size // slide) if size else 1
    if size == slide or gap:
        assert sum(n for *_, n in given_) + late == rows_in
    else:
        assert sum(n for *_, n in given_) <= (rows_in - late) * per_row
    if not gap:
        assert len({(start, k) for start, _, k, _ in given_}) == len(given_)


NEXT_STAGES: dict[str, Callable[[Stream], Stream]] = {
    "by their windows": lambda stream: stream.keyBy("k", "w").agg(n=("n", "sum")),
    "windows": lambda stream: stream.keyBy("k", WindowKey("w", 6, 6, name="v")).agg(n=("n", "sum")),
    "sessions": lambda stream: stream.keyBy("k", WindowKey("w", gap=2, name="v")).agg(n=("n", "sum")),
}


@pytest.mark.parametrize("second", NEXT_STAGES)
@given(TIMES, st.sampled_from([(4, 4, 0), (6, 2, 0), (0, 0, 3), (0, 0, 5)]))
@effort(deadline=None)
def test_a_stage_loses_nothing_of_the_one_before(
    second: str, events: list[list[tuple[int, int]] | int], bounds: tuple[int, int, int]
) -> None:
    """Windows and sessions are late for no next stage, whatever watermarks stand at their ends."""
    size, slide, gap = bounds
    schema = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us"))])
    first = Stream((SourceStep("rows", schema, streaming=True),)).withWatermark("ts", "0 seconds")
    stream = first.keyBy("k", WindowKey("ts", size, slide, 0, gap, "w")).agg(n=("*", "count"))
    _, partial, one, *others = _operators(NEXT_STAGES[second](stream))
    chain, then = Chain([("one", one.step())]), Chain([(str(at), step_of(each)) for at, each in enumerate(others)])
    for each in (chain, then):
        each.open(StepContext(0, 1, 128, "test"), [])
    reached, given_, found_ = Watermark(), 0, 0
    for event in [*events, MOST]:
        if isinstance(event, list):
            ks, ts = zip(*event, strict=True)
            for states in partial.apply(
                iter([pa.record_batch([pa.array(ks, pa.int64()), pa.array(ts, pa.int64())], schema)])
            ):
                chain.push(states)
            continue
        reached = max(reached, Watermark(event))
        results = chain.advance(EventTimeProgress(reached), 0.0)[0]
        given_ += sum(sum(batch["n"].to_pylist()) for batch in results)
        results = [made for batch in results for made in then.push(batch)]
        results += then.advance(EventTimeProgress(reached), 0.0)[0]
        found_ += sum(sum(batch["n"].to_pylist()) for batch in results)
    assert found_ == given_
    assert then.metrics()["rows_late"] == 0


def test_a_checkpoint_with_a_session_at_its_watermark_gives_it_once() -> None:
    """Sessions waited for a later watermark before: those of such a checkpoint come when the query goes on."""
    schema = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us"))])
    by = WindowKey("ts", gap=3, name="w")
    partial, one = _operators(
        Stream((SourceStep("rows", schema, streaming=True),)).keyBy("k", by).agg(n=("*", "count"))
    )
    context = StepContext(0, 1, 128, "test")
    step = one.step()
    step.open(context, [])
    rows_in = pa.record_batch([pa.array([1, 1, 2]), pa.array([5, 7, 20])], schema)
    for states in partial.apply(iter([rows_in])):
        assert not list(step.process(states))
    state = {name: bytes(b"".join(_pieces(make()))) for name, make in step.snapshot(1)}
    step = one.step()
    step.open(context, [{**state, "time": msgpack.packb((1, [10], 0, 0, 1))}])
    came = [_listed(result) for at in (10, 10, 11, MOST) for result in step.on_watermark(Watermark(at))]
    assert came == [[({"start": 5, "end": 10}, 1, 2)], [({"start": 20, "end": 23}, 2, 1)]]


def _listed(result: pa.RecordBatch) -> list[tuple[dict[str, int], int, int]]:
    window_ = result.column(result.schema.get_field_index("w"))
    bounds = [window_.field(side).cast(pa.int64()).to_pylist() for side in ("start", "end")]
    windows = [{"start": start, "end": end} for start, end in zip(*bounds, strict=True)]
    return list(zip(windows, result["k"].to_pylist(), result["n"].to_pylist(), strict=True))


def _pieces(made: Any) -> list[bytes]:
    return [bytes(made)] if isinstance(made, bytes | bytearray | memoryview) else [bytes(piece) for piece in made]


def _operators(stream: Stream) -> list[Any]:
    found_, step = [], stream.branches[0]
    while not isinstance(step, SourceStep):
        if hasattr(step, "operator"):
            found_.append(step.operator)
        step = step.parent if hasattr(step, "parent") else step.parents[0]
    return found_[::-1]


MISTAKES: dict[str, tuple[Callable[[], Stream], str | None, str]] = {
    "append without a watermark": (
        lambda: rows(1).keyBy("key", window("ts", "1 second")).count(),
        "append",
        r"needs a watermark.*withWatermark\(column, delay\)",
    ),
    "a union one side of which has none": (
        lambda: rows(1).withWatermark("ts", "1 second").union(rows(1)).keyBy(window("ts", "1 second")).count(),
        "append",
        "each stream ahead of a union",
    ),
    "windows of windows without one": (
        lambda: rows(1).keyBy("key", window("ts", "1 second")).count().keyBy(window("window", "1 second")).count(),
        None,
        "an aggregation of its rows needs a watermark",
    ),
    "updates of sessions": (
        lambda: rows(1).withWatermark("ts", "1 second").keyBy("key", session_window("ts", "1 second")).count(),
        "update",
        "gives each window once",
    ),
    "sessions without a watermark": (
        lambda: rows(1).keyBy("key", session_window("ts", "1 second")).count(),
        None,
        "gives each window once",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mode_that_can_not_be_is_refused(mistake: str) -> None:
    """With the words to write instead."""
    make, mode, words = MISTAKES[mistake]
    with pytest.raises(PlanError, match=words):
        in_mode(make().branches, mode)


def test_a_window_over_another_time_than_the_watermarks_is_refused() -> None:
    """It would be closed at any time; under another name it is the same column."""
    schema = pa.schema([("a", pa.timestamp("us")), ("b", pa.timestamp("us"))])
    stream = Stream((SourceStep("rows", schema, streaming=True),)).withWatermark("a", "1 second")
    in_mode(stream.withColumnRenamed("a", "c").keyBy(window("c", "1 second")).count().branches, "append")
    for other in (stream, stream.rebalance(), stream.withColumnRenamed("b", "c").withColumnRenamed("c", "b")):
        with pytest.raises(PlanError, match="a window over 'b' would go by withWatermark"):
            in_mode(other.keyBy(window("b", "1 second")).count().branches, "append")


assert DISORDER == SECOND, "the delay of `counts` is the disorder of the rows"
