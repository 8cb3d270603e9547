# SPDX-License-Identifier: Apache-2.0
"""Joins, first rows of each key, and duplicates in queries: what all rows at once give, whatever is killed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from effort import with_all
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.windows import window
from penstock.errors import PlanError
from penstock.operators.groups import Side
from penstock.operators.join_sides import LEFT, AsSide, JoinedSides
from penstock.stream import increments
from penstock.stream.chain import Chain, PlainStep, StepContext
from penstock.stream.duplicates import DropDuplicates
from penstock.stream.stream_join import Between, StreamJoin
from penstock.stream.table_join import TableJoin
from penstock.stream.top_rows import TopRows
from penstock.stream.watermark import MOST, Watermark
from penstock.stream.watermarks import EventTimeProgress
from penstock_torture.local_query import LocalQuery, location
from query_shapes import rows_given
from timed_queries import OFTEN, graph_of, published, rows, run_through
from timed_rows import KEYS, times_of

ROWS = 1500
TIME = pa.timestamp("us")
LEFT_ROWS = pa.schema([("k", pa.int64()), ("t", TIME), ("a", pa.int64())])
RIGHT_ROWS = pa.schema([("k", pa.int64()), ("u", TIME), ("b", pa.int64())])
EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.booleans(),
            st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 2)), st.integers(0, 40)), min_size=1, max_size=5),
        ),
        st.integers(0, 40),
    ),
    max_size=15,
)


@pytest.fixture(autouse=True)
def small_states_in_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints refer to older ones, however few rows there are."""
    monkeypatch.setattr(increments, "LEAST_SLOTS", 0)


def reopened(operator: Any, step: PlainStep) -> Any:
    """The step after its snapshot and restore."""
    state = {}
    for name, make in step.snapshot(1):
        made = make()
        state[name] = bytes(made) if isinstance(made, bytes | bytearray | memoryview) else b"".join(map(bytes, made))
    fresh = operator.step()
    fresh.open(StepContext(0, 1, 128, "test"), [state])
    return fresh


def batch_of(found: list[tuple[int | None, int]], first: int, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with keys, times and numbers."""
    keys, times = zip(*found, strict=True)
    columns = [
        pa.array(keys, pa.int64()),
        pa.array(times, pa.int64()).cast(TIME),
        pa.array(range(first, first + len(found))),
    ]
    return pa.record_batch(columns, schema=schema)


@given(EVENTS, st.booleans())
@effort(deadline=None)
def test_each_pair_of_rows_within_the_bound_meets_once(events: list[Any], bounded: bool) -> None:
    """In any order of rows, watermarks and restores; rows on time miss no partner, and none is met out of bounds."""
    sides = JoinedSides(Side(LEFT_ROWS, ("k",)), Side(RIGHT_ROWS, ("k",)))
    operator = StreamJoin(sides, Between(("t", "u"), -3, 5, by_watermark=True) if bounded else None)
    step = operator.step()
    step.open(StepContext(0, 1, 128, "test"), [])
    seen: tuple[list[Any], list[Any]] = ([], [])
    met: Counter[tuple[int, int]] = Counter()
    watermark = -1
    for event in events:
        if isinstance(event, int):
            if event > watermark:
                watermark = event
                assert not list(step.on_watermark(Watermark(watermark)))
                step = reopened(operator, step)
            continue
        is_right, found = event
        on_time = [(key, max(moment, watermark)) for key, moment in found]
        schema = RIGHT_ROWS if is_right else LEFT_ROWS
        batch = batch_of(on_time, len(seen[is_right]), schema)
        seen[is_right].extend(on_time)
        for rows_ in AsSide(sides, int(is_right)).apply(iter((batch,))):
            for result in step.process(rows_):
                met.update(zip(result["a"].to_pylist(), result["b"].to_pylist(), strict=True))
    expected = {
        (a, b)
        for a, (key, moment) in enumerate(seen[0])
        for b, (other, later) in enumerate(seen[1])
        if key is not None and key == other and (not bounded or -3 <= later - moment <= 5)
    }
    assert met == Counter(expected)


@pytest.mark.parametrize("bounds", [(-3, 5), (2, 5), (-7, -2)])
@pytest.mark.parametrize("how", ["inner", "left", "full"])
@given(EVENTS)
@effort(deadline=None)
def test_rows_of_a_join_are_not_late_behind_it(how: str, bounds: tuple[int, int], events: list[Any]) -> None:
    """Of rows on time all that comes out, with nulls too, has times at the watermark behind the join, or later."""
    sides = JoinedSides(Side(LEFT_ROWS, ("k",)), Side(RIGHT_ROWS, ("k",)), how)
    step = StreamJoin(sides, Between(("t", "u"), *bounds, by_watermark=True)).step()
    step.open(StepContext(0, 1, 128, "test"), [])
    chain = Chain([("join", step)])
    watermark, behind = -1, EventTimeProgress()
    for event in [*events, 30, 60]:
        if isinstance(event, int):
            watermark = max(watermark, event)
            results, after = chain.advance(EventTimeProgress(watermark), 0.0)
        else:
            is_right, found = event
            batch = batch_of(
                [(key, max(at, watermark)) for key, at in found], 0, RIGHT_ROWS if is_right else LEFT_ROWS
            )
            results, after = [], behind
            for rows_ in AsSide(sides, int(is_right)).apply(iter((batch,))):
                results += chain.push(rows_)
        for result in results:
            times = [*result["t"].cast(pa.int64()).to_pylist(), *result["u"].cast(pa.int64()).to_pylist()]
            assert Watermark(min(time for time in times if time is not None)) >= behind.watermark
        behind = after
    assert behind.watermark == Watermark(60 - max(bounds[1], -bounds[0]))


@pytest.mark.parametrize("how", ["left", "right", "full"])
@given(EVENTS, st.booleans())
@effort(deadline=None)
def test_each_row_of_an_outer_join_meets_something_or_comes_out_alone(
    how: str, events: list[Any], late: bool
) -> None:
    """In any order of rows, late ones too, watermarks and restores; those on time are what a batch job gives."""
    sides = JoinedSides(Side(LEFT_ROWS, ("k",)), Side(RIGHT_ROWS, ("k",)), how)
    operator = StreamJoin(sides, Between(("t", "u"), -3, 5, by_watermark=True))
    step = operator.step()
    step.open(StepContext(0, 1, 128, "test"), [])
    seen: tuple[list[Any], list[Any]] = ([], [])
    found: Counter[tuple[int | None, int | None]] = Counter()
    watermark = -1
    for event in [*events, MOST]:
        given_out: list[pa.RecordBatch] = []
        if isinstance(event, int):
            if event > watermark:
                watermark = event
                given_out = list(step.on_watermark(Watermark(watermark)))
                step = reopened(operator, step)
        else:
            is_right, rows_in = event
            moved = [(key, moment if late else max(moment, watermark)) for key, moment in rows_in]
            batch = batch_of(moved, len(seen[is_right]), RIGHT_ROWS if is_right else LEFT_ROWS)
            seen[is_right].extend(moved)
            given_out = [
                out for part in AsSide(sides, int(is_right)).apply(iter((batch,))) for out in step.process(part)
            ]
        for result in given_out:
            assert result.schema.equals(sides.result_schema)
            found.update(zip(result["a"].to_pylist(), result["b"].to_pylist(), strict=True))
    pairs = {
        (a, b)
        for a, (key, moment) in enumerate(seen[0])
        for b, (other, later) in enumerate(seen[1])
        if key is not None and key == other and -3 <= later - moment <= 5
    }
    met = {pair for pair in found if None not in pair}
    assert max(found.values(), default=1) == 1
    assert met <= pairs if late else met == pairs
    of_left, of_right = {a for a, _ in met}, {b for _, b in met}
    alone = {(a, None) for a in range(len(seen[0])) if sides.kept[0] and a not in of_left}
    alone |= {(None, b) for b in range(len(seen[1])) if sides.kept[1] and b not in of_right}
    assert set(found) - met == alone
    assert step.metrics()["state_rows"] == 0


def test_rows_that_nothing_can_meet_are_dropped() -> None:
    """A join with a bound holds the rows of its bound only, and its keys with them."""
    sides = JoinedSides(Side(LEFT_ROWS, ("k",)), Side(RIGHT_ROWS, ("k",)))
    step = StreamJoin(sides, Between(("t", "u"), 0, 10, by_watermark=True)).step()
    step.open(StepContext(0, 1, 128, "test"), [])
    for first in range(0, 100_000, 10_000):
        numbers = np.arange(first, first + 10_000)
        columns = [pa.array(numbers), pa.array(numbers).cast(TIME), pa.array(numbers)]
        for rows_ in AsSide(sides, LEFT).apply(iter((pa.record_batch(columns, schema=LEFT_ROWS),))):
            assert not list(step.process(rows_))
        step.on_watermark(Watermark(first + 10_000))
    assert step.metrics()["state_rows"] < 25_000
    assert len(step._index) < 50_000


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=8), max_size=6),
    st.sampled_from([1, 3, 40]),
)
@effort(deadline=None)
def test_the_newest_row_of_each_rank_is_the_result(batches: list[list[tuple[int, int]]], count: int) -> None:
    """With restores between batches; a batch job gives each rank once, and the same."""
    operator = TopRows(LEFT_ROWS, ("k",), count, (("t", False),))
    step = operator.step()
    step.open(StepContext(0, 1, 128, "test"), [])
    newest: dict[tuple[int, int], int] = {}
    made, number = [], 0
    for found in batches:
        batch = batch_of(list(found), number, LEFT_ROWS)
        number += len(found)
        made.append(batch)
        for result in step.process(batch):
            for key, rank, value in zip(*(result[name].to_pylist() for name in ("k", "rank", "a")), strict=True):
                assert newest.get((key, rank)) != value, "nothing is given that has not changed"
                newest[key, rank] = value
        step = reopened(operator, step)
    every = [(key, moment, at) for at, (key, moment) in enumerate(row for found in batches for row in found)]
    expected = {}
    for key in {key for key, _, _ in every}:
        first = sorted((row for row in every if row[0] == key), key=lambda row: (-row[1], row[2]))[:count]
        expected.update({(key, rank): row[2] for rank, row in enumerate(first, 1)})
    assert newest == expected
    at_once = [
        row
        for result in operator.apply(iter(made))
        for row in zip(*(result[n].to_pylist() for n in ("k", "rank", "a")), strict=True)
    ]
    assert {(key, rank): value for key, rank, value in at_once} == expected
    assert len(at_once) == len(expected)


@pytest.mark.parametrize(
    ("ascending", "expected"),
    [(False, [float("nan"), 5.0, 0.0, -0.0, -1.0, None]), (True, [-1.0, 0.0, -0.0, 5.0, float("nan"), None])],
)
def test_no_number_is_above_all_numbers(ascending: bool, expected: list[float | None]) -> None:
    """As in the order of Spark; zeros are one, so the first that came stays ahead, and nulls are last."""
    schema = pa.schema([("k", pa.int64()), ("x", pa.float64())])
    step = TopRows(schema, ("k",), 6, (("x", ascending),)).step()
    for value in (5.0, None, 0.0, -0.0, -1.0, float("nan")):
        list(step.process(pa.record_batch([[1], [value]], schema=schema)))
    assert str([value for rows in step.all_rows() for value in rows["x"].to_pylist()]) == str(expected)


def test_first_rows_take_the_memory_of_those_that_are_there() -> None:
    """A key with few rows has few places, however many it may have; rows that move are still theirs."""
    step = TopRows(LEFT_ROWS, ("k",), 1000, (("t", False),)).step()
    list(step.process(batch_of([(key, 1) for key in range(2000)], 0, LEFT_ROWS)))
    assert len(step._places) == 2000
    for number in range(20):
        list(step.process(batch_of([(7, 100 + number), (8, 200 - number)], 2000 + 2 * number, LEFT_ROWS)))
    assert len(step._places) < 2200
    found = [row for rows in step.all_rows() for row in zip(*(rows[n].to_pylist() for n in "ka"), strict=True)]
    assert [a for k, a in found if k == 7] == [*range(2038, 1999, -2), 7]
    assert [a for k, a in found if k == 8] == [*range(2001, 2041, 2), 8]
    assert len(found) == 2040


@pytest.mark.parametrize("time", ["", "t"])
def test_one_row_passes_of_those_that_are_the_same_by_nothing(time: str) -> None:
    """As in Spark; also after a restore."""
    operator = DropDuplicates(LEFT_ROWS, (), time)
    step = operator.step()
    step.open(StepContext(0, 1, 128, "test"), [])
    assert [rows["a"].to_pylist() for rows in step.process(batch_of([(1, 5), (2, 5)], 0, LEFT_ROWS))] == [[0]]
    step = reopened(operator, step)
    assert not list(step.process(batch_of([(3, 5)], 2, LEFT_ROWS)))


@given(EVENTS, st.integers(0, 6))
@effort(deadline=None)
def test_the_first_row_of_each_key_passes(events: list[Any], keeps: int) -> None:
    """With a time: rows given, duplicates and late rows are all rows, and no key comes twice while it is kept."""
    operator = DropDuplicates(LEFT_ROWS, ("k",), "t", keeps)
    step = operator.step()
    step.open(StepContext(0, 1, 128, "test"), [])
    kept: dict[int | None, int] = {}
    watermark, late, number = -1, 0, 0
    for event in events:
        if isinstance(event, int):
            if event > watermark:
                watermark = event
                step.on_watermark(Watermark(watermark))
                step = reopened(operator, step)
            continue
        expected = []
        for at, (key, moment) in enumerate(event[1]):
            if moment < watermark:
                late += 1
            elif kept.get(key, -1) < max(watermark, 0):
                kept[key] = moment + keeps
                expected.append(number + at)
        batch = batch_of(event[1], number, LEFT_ROWS)
        number += len(event[1])
        assert [value for result in step.process(batch) for value in result["a"].to_pylist()] == expected
    assert step.metrics()["rows_late"] == late


def test_a_table_meets_each_batch() -> None:
    """Keys that the table has several times, not at all, and null."""
    sides = JoinedSides(
        Side(LEFT_ROWS, ("k",)), Side(pa.schema([("id", pa.int64()), ("name", pa.string())]), ("id",))
    )
    table = pa.table({"id": pa.array([1, 2, 1, None], pa.int64()), "name": ["a", "b", "c", "d"]})
    batch = batch_of([(1, 0), (3, 0), (None, 0), (2, 0)], 0, LEFT_ROWS)
    (result,) = TableJoin(sides, table).apply(iter((batch,)))
    found = Counter(zip(result["k"].to_pylist(), result["a"].to_pylist(), result["name"].to_pylist(), strict=True))
    assert found == Counter([(1, 0, "a"), (1, 0, "c"), (2, 3, "b")])
    assert result.schema.names == ["k", "t", "a", "name"]


def numbered(stream: Stream, name: str) -> Stream:
    """The rows under names of their own."""
    return stream.select("key", "value", "ts").withColumnsRenamed({"value": name, "ts": f"{name}_ts"})


def self_joined(count: int | None, width: int) -> Stream:
    """Rows with those of the same key of a second source up to 50 ms later."""
    sides = [
        numbered(rows(count, 4000).withWatermark("ts", "1 second"), name).keyBy("key", numPartitions=width)
        for name in ("l", "r")
    ]
    return sides[0].join(sides[1], between=("l_ts", "r_ts", "0 seconds", "50 milliseconds"))


def outer_joined(count: int | None, width: int) -> Stream:
    """The rows with those of a third as many keys, up to 50 ms later, and what meets nothing on either side."""
    left, right = (
        numbered(rows(count, 4000).withWatermark("ts", "1 second"), name).keyBy("key", numPartitions=width)
        for name in ("l", "r")
    )
    few = right.upstream.filter(pc.equal(pc.field("key"), 1)).keyBy("key", numPartitions=width)
    return left.join(few, how="full", between=("l_ts", "r_ts", "1 milliseconds", "50 milliseconds"))


def first_ones(count: int | None, width: int) -> Stream:
    """The three newest rows of each key."""
    return rows(count, 4000).keyBy("key", numPartitions=width).top(3, "value")


def distinct_ones(count: int | None, width: int) -> Stream:
    """One row for each number of tens, of two equal sources."""
    both = rows(count, 4000).withWatermark("ts", "1 second").union(rows(count, 4000).withWatermark("ts", "1 second"))
    tens = both.mapInArrow(_tens, pa.schema([("ten", pa.int64()), ("ts", both.schema.field("ts").type)]))
    del width
    return tens.dropDuplicates(["ten"])


def _tens(batches: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        yield pa.record_batch([pc.divide(batch.column("value"), 10), batch.column("ts")], names=["ten", "ts"])


def check_joined(table: pa.Table, counts: tuple[int, ...]) -> None:
    """Each pair once, and none is missing; a source may have given more rows than the other."""
    count = counts[0]
    times = times_of(np.arange(count))
    expected = set()
    for key in range(KEYS):
        own = np.arange(key, count, KEYS)
        apart = times[own][None, :] - times[own][:, None]
        left, right = np.nonzero((apart >= 0) & (apart <= 50_000))
        expected |= set(zip(own[left].tolist(), own[right].tolist(), strict=True))
    found = Counter(zip(table["l"].to_pylist(), table["r"].to_pylist(), strict=True))
    assert max(found.values()) == 1
    assert set(found) == expected


def check_outer(table: pa.Table, counts: tuple[int, ...]) -> None:
    """Each pair once, each row of either side that meets nothing once."""
    count = counts[0]
    values = np.arange(count)
    times, keys = times_of(values), values % KEYS
    one = values[keys == 1]
    apart = times[one][None, :] - times[one][:, None]
    left, right = np.nonzero((apart >= 1_000) & (apart <= 50_000))
    expected: set[tuple[int | None, int | None]] = set(zip(one[left].tolist(), one[right].tolist(), strict=True))
    expected |= {(value, None) for value in set(values.tolist()) - set(one[left].tolist())}
    expected |= {(None, value) for value in set(one.tolist()) - set(one[right].tolist())}
    found = Counter(zip(table["l"].to_pylist(), table["r"].to_pylist(), strict=True))
    assert max(found.values()) == 1
    assert set(found) == expected


def check_tops(table: pa.Table, counts: tuple[int, ...]) -> None:
    """The greatest values of each key and rank."""
    best = table.group_by(["key", "rank"]).aggregate([("value", "max")]).to_pylist()
    count = counts[0]
    expected = {(value % KEYS, (count - 1 - value) // KEYS + 1): value for value in range(count - 3 * KEYS, count)}
    assert {(row["key"], row["rank"]): row["value_max"] for row in best} == expected


def check_distinct(table: pa.Table, counts: tuple[int, ...]) -> None:
    """Each number of tens once."""
    assert Counter(table["ten"].to_pylist()) == Counter(range(-(-counts[0] // 10)))


QUERIES: dict[str, tuple[Callable[[int | None, int], Stream], Callable[[pa.Table, tuple[int, ...]], None]]] = {
    "join": (self_joined, check_joined),
    "outer": (outer_joined, check_outer),
    "top": (first_ones, check_tops),
    "distinct": (distinct_ones, check_distinct),
}


@pytest.mark.parametrize("unaligned", [with_all(False), True], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("name", QUERIES)
def test_the_result_is_exact_whatever_is_killed(tmp_path: Path, name: str, unaligned: bool) -> None:
    """Two runs at different widths, with kills."""
    make, check = QUERIES[name]
    chance = random.Random(f"{name} {unaligned}")
    widths = chance.sample((1, 2, 3), 2)
    with LocalQuery(
        graph_of(make(None, widths[0]), tmp_path), location(tmp_path), settings=OFTEN, unaligned=unaligned
    ) as query:
        query.start()
        while len(query.completed) < 2 and not query.run(time.monotonic() + 0.02):
            pass
        query.kill(chance.choice(list(query.lines)))
        query.run(time.monotonic() + chance.uniform(0.0, 0.1))
    count = max(ROWS, rows_given(location(tmp_path)))
    run_through(graph_of(make(count, widths[1]), tmp_path), tmp_path, chance, unaligned=unaligned, kills=2)
    check(published(tmp_path), (count,))


def test_windows_are_joined_and_aggregated_by_themselves(tmp_path: Path) -> None:
    """The greatest count of each window, and the keys that have it, by a join of windows with their own maximum."""
    counted = rows(ROWS).withWatermark("ts", "1 second").keyBy("key", window("ts", "300 milliseconds")).count()
    most = counted.keyBy("window").agg(most=("count", "max")).withColumnRenamed("window", "w")
    hot = (
        counted.withColumnRenamed("count", "most")
        .keyBy("most")
        .join(most.keyBy("most"), between=("window", "w", "0 seconds", "0 seconds"))
    )
    with LocalQuery(graph_of(hot, tmp_path), location(tmp_path), settings=OFTEN) as query:
        query.start()
        query.run_through()
    windows: dict[int, Counter[int]] = {}
    for value, moment in enumerate(times_of(np.arange(ROWS)).tolist()):
        windows.setdefault(moment // 300_000 * 300_000, Counter())[value % KEYS] += 1
    expected = {
        (start, key, n) for start, keys in windows.items() for key, n in keys.items() if n == max(keys.values())
    }
    table = published(tmp_path)
    starts = pc.struct_field(table["window"], "start").cast(pa.int64()).to_pylist()
    found = list(zip(starts, table["key"].to_pylist(), table["most"].to_pylist(), strict=True))
    assert set(found) == expected
    assert len(found) == len(expected)


def test_joins_that_can_not_be_are_refused() -> None:
    """With what to write instead."""
    left, right = (numbered(rows(1), name).keyBy("key") for name in ("l", "r"))
    for how, between in (("left", None), ("left_anti", ("l_ts", "r_ts", "0 seconds", "1 second"))):
        with pytest.raises(PlanError, match="Use how='inner', or left, right or full"):
            left.join(right, how=how, between=between)
    with pytest.raises(PlanError, match="needs a watermark on both streams"):
        left.join(right, how="full", between=("l_ts", "r_ts", "0 seconds", "1 second"))
    with pytest.raises(PlanError, match="is more than"):
        left.join(right, between=("l_ts", "r_ts", "1 second", "0 seconds"))
    local = right.upstream.withColumn("r_ts", pc.field("r_ts").cast(pa.timestamp("us")))
    with pytest.raises(PlanError, match=r"'r_ts' one is a timestamp and one a timestamp_ntz.*cast one"):
        left.join(local.keyBy("key"), between=("l_ts", "r_ts", "0 seconds", "1 second"))
    table = Stream((SourceStep("rows", pa.schema([("key", pa.int64()), ("name", pa.string())])),)).keyBy("key")
    with pytest.raises(PlanError, match="between= is for two streams without an end"):
        table.join(
            table.withColumnRenamed("name", "other").keyBy("key"), between=("l_ts", "r_ts", "0 seconds", "1 second")
        )
    with pytest.raises(PlanError, match="the table on the right"):
        table.join(right)
    with pytest.raises(PlanError, match="needs a watermark"):
        rows(1).dropDuplicatesWithinWatermark(["key"])
