# SPDX-License-Identifier: Apache-2.0
"""Runs that end give out what their rows have closed, and the next run begins at the watermark of all of them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.windows import window
from penstock.graph import JobGraph
from penstock.stream.arriving_files import FilesReader, FilesSource
from penstock.stream.chain import Chain, StepContext
from penstock.stream.event_time import EventTime
from penstock.stream.file_rows import ParquetFileFormat
from penstock.stream.partitioned_source import PartitionedSource
from penstock.stream.watermark import LEAST, Watermark
from penstock.stream.watermark_step import AssignWatermark
from penstock.stream.watermarks import EventTimeProgress, InputWatermarks
from penstock.testing import DEADLINE
from penstock_torture.local_query import LocalQuery, location
from timed_queries import OFTEN, graph_of, published
from underway import listed

SCHEMA = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
DELAY, WIDTH = 30, 10
"""In seconds, of the watermark and of windows."""


def arrive(folder: Path, name: str, seconds: Sequence[int]) -> None:
    """A file with a row at each of these times."""
    times = pa.array([each * 1_000_000 for each in seconds], pa.int64()).cast(SCHEMA.field("ts").type)
    keys = pa.array([each % 3 for each in seconds], pa.int64())
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(pa.table([keys, times], schema=SCHEMA), folder / "in" / f".{name}")
    (folder / "in" / f".{name}").rename(folder / "in" / name)


def counted(folder: Path, width: int, *, is_bounded: bool = True) -> JobGraph:
    """Windows of the files' rows, and windows of these: how many rows there are in a minute."""
    source = FilesSource(pafs.LocalFileSystem(), str(folder / "in"), ParquetFileFormat(SCHEMA), listing_seconds=0.005)
    made = source.available_now() if is_bounded else source
    stream = Stream((SourceStep(made.name, made.schema, made, partitions=width, streaming=True),))  # type: ignore[arg-type]
    timed = stream.withWatermark("ts", f"{DELAY} seconds")
    each = timed.keyBy("key", window("ts", f"{WIDTH} seconds"), numPartitions=width).agg(n=("*", "count"))
    return graph_of(each.keyBy(window("window", "1 minute"), numPartitions=1).agg(n=("n", "sum")), folder)


class Expected:
    """The results of Spark: rows are late behind the watermark of the runs before, that of all of their rows."""

    def __init__(self) -> None:
        self._watermark = 0
        self._rows: Counter[int] = Counter()
        self._greatest = 0

    def run(self, seconds: Sequence[int]) -> list[int]:
        """The numbers of rows in the minutes that are over after a run over these."""
        for each in seconds:
            if (each // WIDTH + 1) * WIDTH > self._watermark:
                self._rows[each // 60] += 1
        self._greatest = max(self._greatest, *seconds) if seconds else self._greatest
        self._watermark = max(self._watermark, self._greatest - DELAY)
        return sorted(n for minute, n in self._rows.items() if (minute + 1) * 60 <= self._watermark)


def given(folder: Path) -> list[int]:
    """The numbers of rows in minutes that a reader sees."""
    return sorted(published(folder)["n"].to_pylist()) if listed(folder / "out", "part-*") else []


@pytest.mark.parametrize("seed", range(2))
def test_each_run_gives_out_what_its_rows_have_closed(tmp_path: Path, seed: int) -> None:
    """Windows of windows, as Spark's last batch gives them: whatever files a run has and tasks read or kill them."""
    chance, expected = random.Random(seed), Expected()
    for run, (files, width) in enumerate([(1, 3), (5, 2), (0, 2), (4, 3)]):
        lists = [[chance.randrange(run * 300, run * 300 + 400) for _ in range(40)] for _ in range(files)]
        for number, seconds in enumerate(lists):
            arrive(tmp_path, f"r{run}-{number}.parquet", seconds)
        with LocalQuery(counted(tmp_path, width), location(tmp_path), settings=OFTEN, available_now=True) as query:
            query.start()
            for _ in range(2 if run == 1 else 0):
                query.run(time.monotonic() + chance.uniform(0.0, 0.06))
                query.kill(chance.choice(list(query.lines)))
            query.run_through()
        assert given(tmp_path) == expected.run([each for seconds in lists for each in seconds]), run
    assert len(given(tmp_path)) > 5


def test_an_orderly_stop_gives_out_what_the_rows_have_closed(tmp_path: Path) -> None:
    """A query without an end has read all that it knew, by several tasks; one of them had no row."""
    seconds = list(range(400))
    arrive(tmp_path, "a.parquet", seconds)
    with LocalQuery(counted(tmp_path, 3, is_bounded=False), location(tmp_path), settings=OFTEN) as query:
        query.start()
        deadline = time.monotonic() + DEADLINE
        while sum(line.metrics.get("rows_in", 0) for (stage, _), line in query.lines.items() if stage == 0) < 400:
            assert time.monotonic() < deadline
            query.run(time.monotonic() + 0.02)
        query.stop()
        query.run_through()
    assert given(tmp_path) == Expected().run(seconds)


class Two:
    """Partitions by name, with their times."""

    schema = SCHEMA

    def __init__(self, **times: Sequence[int]) -> None:
        self.times = times
        self.name = "two"

    def partitions(self) -> list[str]:
        """Their names."""
        return list(self.times)

    def read(self, partition: str, offset: int | None) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        """One row after the other, then nothing for now."""
        for number, each in list(enumerate(self.times[partition], 1))[offset or 0 :]:
            yield (
                pa.record_batch([pa.array([0]), pa.array([each]).cast(SCHEMA.field("ts").type)], schema=SCHEMA),
                number,
            )
        while True:
            yield None, len(self.times[partition])


class Run:
    """A source's task that reads what partitions have, or goes on until it is stopped."""

    def __init__(self, rows: Two, before: Run | None = None, *, is_bounded: bool = True) -> None:
        source = PartitionedSource(rows, 0.0)
        self.reader = (source.available_now() if is_bounded else source).open(0, 1, before.position if before else [])
        self.chain = Chain([("w", AssignWatermark("ts", 5).step())])
        self.chain.open(StepContext(0, 1, 16, "t", is_bounded=is_bounded), [before.state] if before else [])
        self.chain.reads(self.reader)
        self.time = EventTime(self.chain, 0)
        self.position: list[bytes] = []
        self.state: dict[str, bytes] = {}

    def read(self, polls: int = 20) -> Run:
        """Ask so often, and keep what a checkpoint would have."""
        for _ in range(polls):
            if (batch := self.reader.poll(1)) is not None:
                self.chain.push(batch)
            self.time.move(0.0, 0.0)
        return self._kept()

    def end(self) -> EventTimeProgress:
        """Event time after the run."""
        self.time.end_run(0.0, has_all=True)
        self._kept()
        return self.time._reached

    def _kept(self) -> Run:
        self.position = [self.reader.snapshot()]
        self.state = {name: bytes(make()) for name, make in self.chain.snapshot(1)}  # type: ignore[arg-type]
        return self


def test_the_watermark_after_a_run_is_one_however_it_ends() -> None:
    """The least of the partitions that had rows: after a run that ends, is stopped, goes on, or begins anew in it."""
    rows = Two(slow=[1, 10], fast=[500, 1000], empty=[])
    bounded, endless = Run(rows).read(), Run(rows, is_bounded=False).read()
    assert bounded.time._reached.watermark.is_none  # one batch: it moves at its end
    again = Run(rows, Run(rows).read(3)).read()
    assert [each.end().watermark for each in (bounded, endless, again)] == [Watermark(5)] * 3
    empty = Run(rows, bounded).read()
    assert empty.end() == EventTimeProgress(5, True, is_last=True, had_rows=False)  # no rows move nothing
    more = Run(Two(slow=[1, 10], fast=[500, 1000, 1001], empty=[]), empty).read()
    assert more.end() == EventTimeProgress(996, is_last=True)


@pytest.mark.parametrize(("width", "watermarks"), [(1, 1), (2, 1), (1, 2)])
def test_a_backlog_is_one_batch(tmp_path: Path, width: int, watermarks: int) -> None:
    """Files that are there as a query begins hold event time until all are read; others move it as they come.

    So it is where a second watermark replaces the first.
    """
    for number, name in enumerate("abcd"):
        arrive(tmp_path, f"{name}.parquet", range(number, 400, 10))
    source = FilesSource(pafs.LocalFileSystem(), str(tmp_path / "in"), ParquetFileFormat(SCHEMA), listing_seconds=0.0)
    reader: FilesReader = source.open(0, width, [])
    chain = Chain([(each, AssignWatermark("ts", 0).step()) for each in ("replaced", "w")[-watermarks:]])
    chain.open(StepContext(0, width, 16, "t"), [])
    chain.reads(reader)
    found, deadline = {Watermark()}, time.monotonic() + DEADLINE
    while reader.reads_backlog:
        assert time.monotonic() < deadline
        assert found == {Watermark()}
        if (batch := reader.poll(7)) is not None:
            chain.push(batch)
        found.add(chain.advance(EventTimeProgress(), 0.0)[1].watermark)
    assert max(found) >= Watermark(390_000_000)
    for number in range(8):  # some are this task's
        arrive(tmp_path, f"later-{number}.parquet", [500])
    while max(found) < Watermark(500_000_000):
        assert time.monotonic() < deadline
        if (batch := reader.poll(7)) is not None:
            chain.push(batch)
        found.add(chain.advance(EventTimeProgress(), 0.0)[1].watermark)
    reader.close()


def test_of_several_sources_the_least_holds_at_the_end_of_a_run() -> None:
    """Tasks of one stage that have given all they had share its greatest time; another stage is another source."""
    core = InputWatermarks(4, inputs=[range(2), range(2, 4)])
    for channel, watermark in enumerate((10, 300, 20, 7)):
        assert core.progress.watermark.is_none
        core.came(channel, EventTimeProgress(watermark, is_idle=True))
    assert core.progress == EventTimeProgress(20, is_idle=True)
    core.came(0, EventTimeProgress(30))
    assert core.progress == EventTimeProgress(20)
    core.data_ended(2, stopped=False)
    core.data_ended(3, stopped=False)
    assert core.progress == EventTimeProgress(30)
    core.check()


def test_tasks_without_rows_in_a_run_say_nothing_of_their_source() -> None:
    """None of them holds more than the least that they had; a source that had none holds the others back.

    So it is at an orderly stop, as soon as one task speaks of it, and in the tasks behind.
    """
    nothing = [EventTimeProgress(each, True, is_last=True, had_rows=False) for each in (1000, 50)]
    core = InputWatermarks(2, 50)
    core.came(0, EventTimeProgress(1000))  # as it is told while the run goes on
    for channel in (1, 0):
        core.came(channel, nothing[channel])
    assert core.progress == EventTimeProgress(50, True, is_last=True, had_rows=False)
    core.came(0, EventTimeProgress(1100, is_last=True))
    assert core.progress == EventTimeProgress(1100, is_last=True)

    going_on = InputWatermarks(4, inputs=[range(2), range(2, 4)], is_bounded=False)
    behind = InputWatermarks(2, inputs=[range(1), range(1, 2)], is_bounded=False)
    behind.came(0, EventTimeProgress(2000))
    for channel in (3, 2):  # the source that had no rows says so first, and the other one is idle then
        going_on.came(channel, EventTimeProgress(LEAST, True, is_last=True, had_rows=False))
        behind.came(1, going_on.progress)
    for channel, watermark in enumerate((1000, 300)):
        going_on.came(channel, EventTimeProgress(watermark, is_idle=True))
        behind.came(1, going_on.progress)
    assert going_on.progress.watermark.is_none
    assert behind.progress.watermark.is_none
    going_on.check()


def counted_of(folder: Path, width: int, *sources: Two, is_bounded: bool) -> JobGraph:
    """How many rows of all these sources there are in ten microseconds."""
    streams = []
    for number, rows in enumerate(sources):
        rows.name = f"rows {number}"
        source = PartitionedSource(rows, 0.002)
        made = source.available_now() if is_bounded else source
        step = SourceStep(made.name, made.schema, made, partitions=min(width, len(rows.times)), streaming=True)
        streams.append(Stream((step,)).withWatermark("ts", "0 seconds"))  # type: ignore[arg-type]
    both = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    return graph_of(both.keyBy(window("ts", "10 microseconds")).agg(n=("*", "count")), folder)


def run_of(folder: Path, width: int, *sources: Two, rows: int, is_bounded: bool, goes_on: bool = False) -> float:
    """A run over so many new rows, to its end or until it is stopped; how many were late."""
    graph = counted_of(folder, width, *sources, is_bounded=is_bounded)
    with LocalQuery(graph, location(folder), settings=OFTEN, available_now=is_bounded) as query:
        query.start()
        if not is_bounded:
            read = range(len(sources))
            query.run_until(lambda: sum(_metrics(query, "rows_in", read)) >= rows, "its rows are read")
            query.run_until(lambda: query.completed, "a checkpoint is complete")
            query.stop(goes_on=goes_on)
        query.run_through()
        return sum(_metrics(query, "rows_late"))


def _metrics(query: LocalQuery, name: str, stages: Sequence[int] | None = None) -> list[float]:
    lines = query.lines.items()
    return [line.metrics.get(name, 0.0) for (stage, _), line in lines if stages is None or stage in stages]


def test_a_run_without_rows_makes_no_row_of_the_next_one_late(tmp_path: Path) -> None:
    """Of two partitions with a task each the one behind holds, also after a run in which neither has rows."""
    slow = [50]
    for more in ([], [], [60, 61, 62], [2000]):
        slow += more
        fast = [1000, 2000] if more == [2000] else [1000]
        assert run_of(tmp_path, 2, Two(fast=fast, slow=slow), rows=0, is_bounded=True) == 0
    assert sorted(published(tmp_path)["n"].to_pylist()) == [1, 1, 3]


@pytest.mark.parametrize("is_bounded", [True, False], ids=["available now", "stopped"])
def test_a_source_without_rows_in_a_run_holds_the_other_one_back(tmp_path: Path, is_bounded: bool) -> None:
    """Two sources, of which one had nothing at all in the first run: its rows of the next one are on time."""
    one = [1000]
    for other, rows in (([], 1), ([50, 51, 52], 3), ([50, 51, 52, 3000], 2)):
        one += [3000] if 3000 in other else []
        assert run_of(tmp_path, 1, Two(only=one), Two(slow=other), rows=rows, is_bounded=is_bounded) == 0
    assert sorted(published(tmp_path)["n"].to_pylist()) == [1, 3]


def test_event_time_of_a_query_with_other_numbers_of_tasks_goes_on_where_it_was(tmp_path: Path) -> None:
    """It does not end its run: the partition that has had no row yet goes on to hold the other one back."""
    slow: list[int] = []
    for more, width in (([], 2), ([50, 51, 52], 1), ([60], 2)):
        slow += more
        rows = Two(fast=[1000], slow=slow)
        assert run_of(tmp_path, width, rows, rows=len(more) or 1, is_bounded=False, goes_on=True) == 0
    assert run_of(tmp_path, 1, Two(fast=[1000, 2000], slow=[*slow, 2000]), rows=2, is_bounded=False) == 0
    assert sorted(published(tmp_path)["n"].to_pylist()) == [1, 1, 3]
