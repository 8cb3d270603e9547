# SPDX-License-Identifier: Apache-2.0
"""Event time: the core of one task's watermarks in any order of events, and watermarks through whole queries."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import some_of, with_all
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.windows import window
from penstock.errors import ProtocolError
from penstock.graph import JobEdge, JobGraph, JobVertex
from penstock.operators.functions import MapInArrow
from penstock.settings import Settings
from penstock.shuffle import PartitionKind
from penstock.shuffle.events import TaskEvent
from penstock.stream.chain import Chain, PlainStep, StepContext
from penstock.stream.event_time import EventTime
from penstock.stream.folder_sink import FolderSink
from penstock.stream.partitioned_source import PartitionedReader, PartitionedSource
from penstock.stream.rate import RateSource
from penstock.stream.sinks import SinkOperator
from penstock.stream.watermark import LEAST, MOST, Watermark, least_stored
from penstock.stream.watermark_step import AssignWatermark
from penstock.stream.watermarks import (
    CAUGHT_UP,
    EventTimeProgress,
    InputWatermarks,
    PartitionTimes,
    RowTimes,
    decode_progress,
    encode_progress,
)
from penstock_torture.local_query import LocalQuery, location
from timed_queries import graph_of, published, rows, run_through
from timed_rows import BY_KEY, DISORDER, JUDGED, SECOND, TIMED, Judge, JudgeStep, timed

CHANNELS = 3
EVENTS = st.lists(
    st.tuples(
        st.integers(0, CHANNELS - 1),
        st.one_of(st.tuples(st.integers(-5, 5), st.booleans()), st.just("ended"), st.just("stopped")),
    ),
    max_size=30,
)
OFTEN = Settings.from_conf({"spark.penstock.streaming.watermarkInterval": "1ms"})


@given(EVENTS, st.integers(-5, 5))
def test_the_least_of_the_channels_that_count_holds(events: list[tuple[int, object]], restored: int) -> None:
    """In any order of watermarks, idle channels and ends: it never goes back, and never passes one that counts."""
    core = InputWatermarks(CHANNELS, restored)
    least = [Watermark()] * CHANNELS
    counts, ended = set(range(CHANNELS)), set()
    for channel, event in events:
        if channel in ended:
            continue
        before = core.progress
        if isinstance(event, tuple):
            watermark, is_idle = event
            least[channel] = max(least[channel], Watermark(watermark))
            (counts.discard if is_idle else counts.add)(channel)
            changed = core.came(channel, EventTimeProgress(watermark, is_idle))
        else:
            changed = core.data_ended(channel, stopped=event == "stopped")
            if event == "ended":
                ended.add(channel)
                counts.discard(channel)
        core.check()
        now = core.progress
        assert changed == (now != before)
        assert now.watermark >= before.watermark >= Watermark(restored)
        still = set(range(CHANNELS)) - ended
        reached = min(
            (least[each] for each in counts), default=max((least[each] for each in still), default=Watermark(MOST))
        )
        assert now.watermark == max(before.watermark, reached)
        assert now.is_idle == (bool(still) and not counts)


def test_no_watermark_follows_the_end_of_a_channel() -> None:
    """It is a mistake of the producer's."""
    core = InputWatermarks(2)
    core.data_ended(0, stopped=False)
    with pytest.raises(ProtocolError, match="channel 0"):
        core.came(0, EventTimeProgress(5))


@given(st.builds(EventTimeProgress, st.integers(LEAST, MOST), *[st.booleans()] * 3))
def test_a_watermark_travels_as_bytes(progress: EventTimeProgress) -> None:
    """It is read as it was written; other events are none; one that is cut is an error."""
    payload = encode_progress(progress)
    assert decode_progress(payload) == progress
    assert decode_progress(b"\x02" + payload[1:]) is None
    with pytest.raises(ProtocolError):
        decode_progress(payload[:-1])


@given(st.lists(st.one_of(st.none(), st.integers(LEAST, MOST)), max_size=4))
def test_a_task_begins_at_the_least_of_the_watermarks_that_were_stored(found: list[int | None]) -> None:
    """One that had none makes it begin without one."""
    states = [None if each is None else Watermark(each).stored for each in found]
    least = min((LEAST if each is None else each for each in found), default=LEAST)
    assert least_stored(states) == Watermark(least)


def test_a_task_without_rows_is_idle_after_a_while() -> None:
    """Only the time counts in which it waited for rows, and a row with a time ends it; 0 seconds: never."""
    times, never = RowTimes(10, 5.0), RowTimes(10, 0.0)
    assert times.progress(0.0) == EventTimeProgress()
    for each in (times, never):
        each.rows_came(100)
    assert times.progress(3.0) == EventTimeProgress(90)
    assert times.progress(7.9) == EventTimeProgress(90)
    assert times.progress(8.0) == EventTimeProgress(90, is_idle=True)
    times.rows_came(None)
    assert times.progress(8.0) == EventTimeProgress(90, is_idle=True)
    times.rows_came(95)
    assert times.progress(8.0) == EventTimeProgress(90)
    assert never.progress(1e9) == EventTimeProgress(90)


WAITS = st.sampled_from([None, 0.0, 4.9, 5.0, 9.0, CAUGHT_UP])
PARTITION_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(-20, 100))),
        st.tuples(st.sampled_from(["waiting", "last"]), st.dictionaries(st.sampled_from("abc"), WAITS)),
    ),
    max_size=20,
)


@given(PARTITION_EVENTS, st.integers(LEAST, 50))
def test_the_least_of_the_partitions_that_count_holds(events: list[tuple[str, object]], reached: int) -> None:
    """Also one that has given nothing yet; one that had nothing for long counts for nothing, and none goes back.

    At the end of a run those count that have had rows in it, or were not read to their end; without any it stays.
    """
    times = PartitionTimes(10, 5.0)
    times.restore(Watermark(reached), {"a": 7})
    greatest, fresh = {"a": 7}, set()
    before = times.held().watermark
    assert before == Watermark(LEAST if reached == LEAST else max(LEAST, reached - 10))
    for kind, detail in events:
        if not isinstance(detail, dict):
            times.rows_came(kind, detail)  # type: ignore[arg-type]
            greatest[kind] = max(greatest.get(kind, LEAST), LEAST if detail is None else int(str(detail)))
            fresh |= set() if detail is None else {kind}
            continue
        waits: dict[str, float] = {name: -1.0 if seconds is None else seconds for name, seconds in detail.items()}
        is_over = {name: CAUGHT_UP in (seconds, kind == "last" and CAUGHT_UP) for name, seconds in waits.items()}
        holding = {n for n, s in waits.items() if s < 0 or (n in fresh if is_over[n] else s < 5.0)}
        now = times.progress(detail, is_last=kind == "last")
        fresh &= holding
        assert now.is_idle == (not holding)
        others = LEAST if waits and all(is_over.values()) else max(greatest.values())
        least = min((greatest.get(each, LEAST) for each in holding), default=others)
        assert now.watermark == max(before, Watermark(LEAST if least == LEAST else least - 10))
        before = now.watermark


class Lagging:
    """Two partitions of rows in order: the second one has the same times, and has them later by far."""

    schema = pa.schema([("ts", pa.timestamp("us"))])
    name = "lagging"

    def partitions(self) -> list[str]:
        """Their names."""
        return ["fast", "slow"]

    def read(self, partition: str, offset: int | None) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        """Times from the offset on, ten in a batch; the slow one has nothing most of the time."""
        at = offset or 0
        while at < 200:
            if partition == "slow":
                for _ in range(4):
                    yield None, at
            numbers = pa.array(range(at * 1000, (at + 10) * 1000, 1000), pa.int64())
            at += 10
            yield pa.record_batch([numbers.cast(pa.timestamp("us"))], schema=self.schema), at


def test_rows_of_a_slow_partition_are_not_late() -> None:
    """One task reads a partition that is far ahead of another one: no row of either is behind the watermark.

    So it is for a task that goes on with what this one has stored.
    """
    source = PartitionedSource(Lagging(), 0.0)
    step, reader = AssignWatermark("ts", 0).step(), source.open(0, 1, [])
    watermark, late, rows = Watermark(), 0, 0
    states: list[dict[str, bytes]] = []
    while not reader.is_ended:
        if rows in (0, 100, 250):  # a task begins
            step, reader = AssignWatermark("ts", 0).step(), source.open(0, 1, [reader.snapshot()])
            step.open(StepContext(0, 1, 16, "source"), states)
            Chain([("w", step)]).reads(reader)
            rows += 1
        batch = reader.poll(10)
        if batch is None:
            continue
        late += sum(Watermark(value) < watermark for value in batch.column(0).cast(pa.int64()).to_pylist())
        rows += batch.num_rows - (rows % 10)
        for _ in step.process(batch):
            pass
        watermark = max(watermark, step.progress(EventTimeProgress(), 0.0).watermark)
        states = [{name: bytes(make()) for name, make in step.snapshot(1)}]  # type: ignore[arg-type]
    assert rows == 400
    assert late == 0
    assert watermark == Watermark(199_000)


def test_windows_of_a_slow_partition_are_whole(tmp_path: Path) -> None:
    """In a query, through a kill: no row is late, though one partition of the one task has its times long after."""
    source = PartitionedSource(Lagging(), 0.001)
    stream = Stream((SourceStep(source.name, source.schema, source, partitions=1, streaming=True),))  # type: ignore[arg-type]
    counts = stream.withWatermark("ts", "0 seconds").keyBy(window("ts", "10 milliseconds")).agg(n=("*", "count"))
    query = run_through(graph_of(counts, tmp_path), tmp_path, random.Random(3), unaligned=False, kills=1)
    assert sum(line.metrics.get("rows_late", 0.0) for line in query.lines.values()) == 0
    assert published(tmp_path)["n"].to_pylist() == [20] * 20


def test_a_partition_without_rows_holds_nothing_back_after_a_while() -> None:
    """The time counts between two moments at which it was asked and had nothing; one row, and it counts again."""
    clock = [0.0]
    source = PartitionedSource(Lagging(), 0.0)
    reader = PartitionedReader(source, ["fast", "slow"], {"fast": (None, 0), "slow": (None, 0)}, lambda: clock[0])
    for _ in range(3):
        clock[0] += 4.0
        assert reader.poll(10) is not None
        assert reader.partition == "fast"
    assert reader.partitions_waiting() == {"fast": None, "slow": 4.0}
    while reader.partition == "fast":
        reader.poll(10)
    assert reader.partitions_waiting() == {"fast": None, "slow": None}


def test_a_partition_whose_rows_have_no_times_holds_nothing_back_after_a_while() -> None:
    """Nor one of which a filter in front leaves none, which the step hears of as its batches are read."""
    chain = Chain([("few", FilterRows()), ("w", AssignWatermark("ts", 0).step())])
    chain.open(StepContext(0, 1, 16, "t", idle_after=5.0), [])
    reader = Named()
    chain.reads(reader)  # type: ignore[arg-type]

    def given(partition: str, *times: int | None, waited: float) -> EventTimeProgress:
        reader.partition = partition
        chain.push(timed_batch(*times))
        return chain.advance(EventTimeProgress(), waited)[1]

    assert given("other", 5, waited=0.0).watermark.is_none
    assert given("own", None, waited=1.0).watermark.is_none
    assert given("own", -1, waited=5.9).watermark.is_none
    assert chain.advance(EventTimeProgress(), 50.0)[1].watermark.is_none  # its rows may be on their way
    assert given("own", -1, waited=6.0) == EventTimeProgress(5)
    assert given("own", 2, waited=6.1) == EventTimeProgress(5)
    assert given("other", 90, waited=20.0) == EventTimeProgress(5)
    assert given("own", None, waited=21.0) == EventTimeProgress(5)


def test_rows_of_one_unit_of_a_partition_are_one_batch() -> None:
    """Their times count as the next unit begins, or none; also of what a snapshot in the middle of one holds.

    Meanwhile the partition is not idle, whatever it says. A snapshot of before has no such rows.
    """
    times = PartitionTimes(0, 5.0)
    found: list[Watermark] = []
    for unit, greatest in (("a", 50), ("a", 20), ("b", 90), (None, 40), (None, 100), ("c", 200)):
        times.rows_came("p", greatest, unit)
        after = times.progress({"p": 9.0})
        found.append(after.watermark)
        assert after.is_idle == (unit is None)
    assert found == [Watermark(each) for each in (LEAST, LEAST, 50, 90, 100, 100)]
    again = PartitionTimes(0, 5.0)
    again.restore(times.reached, times.greatest, times.fresh, times.coming)
    again.now_in("p", "c")
    assert again.progress({"p": None}).watermark == Watermark(100)
    again.rows_came("p", 150, "c")
    assert again.progress({"p": None}).watermark == Watermark(100)
    again.now_in("p", None)
    assert again.progress({"p": None}).watermark == Watermark(200)


class Versions(Lagging):
    """One partition of versions with four times each, of which the first is the greatest."""

    def partitions(self) -> list[str]:
        """Its name."""
        return ["log"]

    def read(self, partition: str, offset: list[int] | None) -> Iterator[tuple[pa.RecordBatch | None, list[int]]]:  # type: ignore[override]
        """A row after the other; then the place in front of the next version."""
        version, row = offset or [0, 0]
        for number in range(version, 3):
            for each in range(row, 4):
                ts = pa.array([10 * number + 3 - each], pa.int64()).cast(pa.timestamp("us"))
                yield pa.record_batch([ts], schema=self.schema), [number, each + 1]
            row = 0
            yield pa.record_batch([pa.array([], self.schema.field(0).type)], schema=self.schema), [number + 1, 0]
        while True:
            yield None, [3, 0]

    def unit_of(self, offset: list[int] | None, given: int) -> int | None:
        """The version whose rows are read."""
        return offset[0] if offset and (offset[1] or given) else None


@pytest.mark.parametrize("begins", [(), (2,), (3, 6, 9)])
def test_no_row_of_a_version_is_late_for_another_one(begins: tuple[int, ...]) -> None:
    """Whatever time goes by between two rows, and where a task begins anew: a snapshot holds what is coming."""
    source = PartitionedSource(Versions(), 0.0)  # type: ignore[arg-type]
    states, positions, watermark = [], [], Watermark()
    for number in range(12):
        if not number or number in begins:
            reader = source.open(0, 1, positions)
            step = AssignWatermark("ts", 0).step()
            step.open(StepContext(0, 1, 16, "source"), states)
            step.reads(reader)
        while (batch := reader.poll(1)) is None:
            pass
        list(step.process(batch))
        assert Watermark(batch.column(0).cast(pa.int64())[0].as_py()) >= watermark
        watermark = step.progress(EventTimeProgress(), 0.0).watermark
        states = [{name: bytes(make()) for name, make in step.snapshot(1)}]  # type: ignore[arg-type]
        positions = [reader.snapshot()]
    reader.poll(1)
    assert step.progress(EventTimeProgress(), 0.0).watermark == Watermark(23)


class Named:
    """A reader of two partitions that says which one it has read."""

    partition = ""

    def partitions_waiting(self) -> dict[str, float | None]:
        """Both have rows at any time."""
        return {"own": None, "other": None}

    def read_by_partition(self) -> None:
        """It does."""


class FilterRows(PlainStep):
    """Leaves out what is before 1970."""

    name = "few"

    def process(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """The others, and those without a time."""
        return [batch.filter(pc.fill_null(pc.greater_equal(batch["ts"].cast(pa.int64()), 0), fill_value=True))]


def timed_batch(*times: int | None) -> pa.RecordBatch:
    """Rows of these times."""
    count = len(times)
    return pa.record_batch([pa.array([0] * count), pa.array(range(count)), pa.array(times, pa.int64())], schema=TIMED)


def told_by(
    states: list[dict[str, bytes]], *times: int, reader: PartitionedReader | None = None
) -> tuple[Watermark, dict[str, bytes]]:
    """The watermark of a task that begins with these states and then has these rows, and its own state."""
    chain = Chain([("w", AssignWatermark("ts", 0).step())])
    chain.open(StepContext(0, 1, 16, "t", idle_after=5.0), states)
    if reader is not None:
        chain.reads(reader)
        reader.poll(10)
    if times:
        chain.push(timed_batch(*times))
    watermark = chain.advance(EventTimeProgress(), 0.0)[1].watermark
    return watermark, {name: bytes(make()) for name, make in chain.snapshot(1)}  # type: ignore[arg-type]


def test_another_number_of_tasks_begins_with_the_least_that_one_of_them_had() -> None:
    """Also where one had none; and so does a task that goes on with the state of such a one, until rows come."""
    (_, ahead), (_, behind), (_, empty) = told_by([], 1000), told_by([], 50), told_by([])
    begun, state = told_by([ahead, behind])
    assert [begun, told_by([state])[0]] == [Watermark(50)] * 2
    assert told_by([state], 60)[0] == Watermark(60)
    assert told_by([ahead, empty])[0].is_none

    source = PartitionedSource(Lagging(), 0.0)
    fast, slow = (source.open(n, 2, []) for n in range(2))
    states = [told_by([], *times, reader=each)[1] for each, times in ((fast, (1000,)), (slow, ()))]
    both = source.open(0, 1, [fast.snapshot(), slow.snapshot()])
    assert told_by(states, reader=both)[0].is_none  # the slow one has had no row yet


def test_rows_find_the_watermark_of_the_rows_in_front_of_them() -> None:
    """A step hears of a time behind the rows; nulls count for nothing; the end of the data passes all."""
    judge = JudgeStep()
    assign = AssignWatermark("ts", 10).step()
    chain = Chain([("assign", assign), ("judge", judge)])
    chain.open(StepContext(0, 1, 128, "test"), [])
    event_time = EventTime(chain, 0)
    (first,) = chain.push(timed_batch(100, None, 50))
    assert first["late"].to_pylist() == [0, 0, 0]
    event_time.move(0.0, 0.0)
    (second,) = chain.push(timed_batch(80, 95))
    assert second["late"].to_pylist() == [10, 0]
    event = event_time.take_event()
    assert isinstance(event, TaskEvent)
    assert decode_progress(event.payload) == EventTimeProgress(90)
    event_time.move(1.0, 0.0)
    assert event_time.take_event() is None
    event_time.end(0.0)
    assert judge.told == [Watermark(90), Watermark(MOST)]
    assert event_time.take_event() is None


def test_consumers_hear_of_rows_ahead_of_them_where_they_were_told_of_none() -> None:
    """An idle task counts again before its first row."""
    assign = AssignWatermark("ts", 0).step()
    chain = Chain([("assign", assign)])
    chain.open(StepContext(0, 1, 128, "test", idle_after=5.0), [])
    event_time = EventTime(chain, 0)
    event_time.move(0.0, 0.0)
    assert event_time.rows_come() is None
    event_time.move(9.0, 9.0)
    event = event_time.take_event()
    assert event is not None
    assert decode_progress(event.payload) == EventTimeProgress(LEAST, is_idle=True)
    event = event_time.rows_come()
    assert event is not None
    assert decode_progress(event.payload) == EventTimeProgress()
    assert event_time.rows_come() is None


def test_time_that_waits_for_output_is_overdue_after_an_interval() -> None:
    """It goes behind the rows of a turn; where those never leave the outputs empty it goes in front of the next."""
    chain = Chain([("assign", AssignWatermark("ts", 0).step())])
    chain.open(StepContext(0, 1, 128, "test"), [])
    event_time = EventTime(chain, 0, interval=0.5)
    event_time.move(10.0, 0.0)
    assert event_time.due_at == 10.5
    assert [event_time.is_overdue(now) for now in (10.4, 10.5, 10.9, 11.0)] == [False, False, False, True]


def judged(folder: Path, rows: int | None, widths: tuple[int, int], delay: int = DISORDER) -> JobGraph:
    """Two united sources of two tasks each, an exchange in turns, one by key, and judges of what is late."""
    between, judges = widths
    operators = (MapInArrow(timed, TIMED), AssignWatermark("ts", delay))
    sink = SinkOperator(FolderSink(pafs.LocalFileSystem(), str(folder / "out"), JUDGED, "query"))
    rate = RateSource(8000, 2, rows)
    vertices = (
        JobVertex(0, "left", 2, TIMED, rate, operators=operators),
        JobVertex(1, "right", 2, TIMED, rate, operators=operators),
        JobVertex(2, "between", between, TIMED),
        JobVertex(3, "judges", judges, JUDGED, operators=(Judge(), sink)),
    )
    kind, turns = PartitionKind.PIPELINED_BOUNDED, type(BY_KEY)("rebalance")
    edges = (
        JobEdge(0, 0, 2, turns, TIMED, kind, "memory"),
        JobEdge(1, 1, 2, turns, TIMED, kind, "memory"),
        JobEdge(2, 2, 3, BY_KEY, TIMED, kind, "memory"),
    )
    return JobGraph("judged", vertices, edges)


@pytest.mark.parametrize("unaligned", [with_all(False), True], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("seed", some_of(range(3), 2))
def test_no_row_is_late_whose_disorder_is_within_the_delay(tmp_path: Path, seed: int, unaligned: bool) -> None:
    """Through unions, exchanges, kills, restores and other numbers of tasks."""
    chance = random.Random(seed)
    widths = [(chance.choice((1, 2, 3)), chance.choice((1, 2, 3))) for _ in range(2)]
    for count, chosen in zip((None, 6000), widths, strict=True):
        with LocalQuery(
            judged(tmp_path, count, chosen), location(tmp_path), settings=OFTEN, unaligned=unaligned
        ) as query:
            query.start()
            while not query.completed and not query.run(time.monotonic() + 0.05):
                pass
            query.kill(chance.choice(list(query.lines)))
            if count is None:
                query.run(time.monotonic() + chance.uniform(0.1, 0.3))
            else:
                query.run_through()
    table = published(tmp_path)
    assert pc.max(table["late"]).as_py() == 0
    assert set(table.group_by("value").aggregate([([], "count_all")])["count_all"].to_pylist()) == {2}


def test_a_row_is_late_where_the_delay_is_too_short(tmp_path: Path) -> None:
    """The same look at a query whose rows are further out of order than its delay says."""
    with LocalQuery(judged(tmp_path, 3000, (1, 2), 0), location(tmp_path), settings=OFTEN) as query:
        query.start()
        query.run_through()
    assert 0 < pc.max(published(tmp_path)["late"]).as_py() < DISORDER + SECOND


@pytest.mark.parametrize("seed", range(2))
def test_late_rows_and_rows_on_time_are_all_rows(tmp_path: Path, seed: int) -> None:
    """Two streams of one with a delay that is too short, through kills: each row is in one of them, once."""
    chance = random.Random(seed)
    stream = rows(3000, 6000).withWatermark("ts", "20 milliseconds")
    late, others = stream.lateRows("ts"), stream.onTime("ts")
    both = others.withColumn("late", pc.scalar(0)).union(late.withColumn("late", pc.scalar(1)))
    run_through(graph_of(both, tmp_path), tmp_path, chance, unaligned=bool(seed), kills=3)
    table = published(tmp_path)
    assert sorted(table["value"].to_pylist()) == list(range(3000))
    assert 0 < pc.sum(table["late"]).as_py() < 3000


def test_a_source_that_has_nothing_holds_nothing_back(tmp_path: Path) -> None:
    """A source without rows is idle after the timeout, and times pass that the other one has reached."""
    often = Settings.from_conf(
        {"spark.penstock.streaming.watermarkInterval": "1ms", "spark.penstock.streaming.idleTimeout": "50ms"}
    )
    graph = judged(tmp_path, None, (1, 1), 0)
    silent = JobVertex(1, "right", 2, TIMED, RateSource(1e-9, 2, None), operators=graph.vertices[1].operators)
    graph = JobGraph("judged", (graph.vertices[0], silent, *graph.vertices[2:]), graph.edges)
    with LocalQuery(graph, location(tmp_path), settings=often) as query:
        query.start()
        query.run_until(lambda: _late(tmp_path), "a row is late")


def _late(folder: Path) -> bool:
    try:
        return bool(pc.max(published(folder)["late"]).as_py())
    except (OSError, pa.ArrowInvalid, KeyError):  # nothing is published yet
        return False
