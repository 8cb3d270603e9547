# SPDX-License-Identifier: Apache-2.0
"""A blind test on figures: something is slow somewhere in a query of five stages, and its reports must say where.

Real environments and task processes. A slow function sleeps for each row, so it takes no core from the others. Four
reports are taken, a second apart, when rows have come to the sink; most of them must name the stage and the cause.
The reports see what a user sees, `lastProgress`, and nothing of the case. The lines of a terminal and the
HTML of a notebook must say the same in words.
"""

from __future__ import annotations

import contextlib
import html
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.frames import QueryFrames
from penstock.api.streaming.progress import ProgressReports
from penstock.api.streaming.writer import query_graph
from penstock.graph import JobGraph
from penstock.graph.streaming import StreamingOptions
from penstock.job.query_storage import QueryStorage
from penstock.job.shell.master import JobHandle
from penstock.observe.frames import frame_html, frame_lines
from penstock.stream.noop import NoopWriter
from penstock.stream.rate import RateSource
from penstock.testing import DEADLINE, wait_until
from penstock.web.store import JobStore
from penstock.web.titles import short_name
from penstock_torture.process_launcher import Nursery
from process_cluster import STREAMING_PRELOADED, ProcessCluster

pytestmark = pytest.mark.processes

SCHEMA = pa.schema([("value", pa.int64()), ("key", pa.string())])
SLOTS = 8
REPORTS = 4
SYNC = 2.5
"""Seconds for a checkpoint of a slow disk."""
PAUSE = 50e-6
"""Seconds for each row of what is slow."""
RATE = 10_000
"""Rows of a second where no stage is slow."""
WORDS = {
    "operator": "most of it in",
    "slow subtask": "slower than the others with as many rows",
    "hot key": "for it has a hot key: alice",
}
"""The words for each cause, of which the lines have at least the beginning in one piece."""
WIDTH = 80
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Stage:
    """The function of one stage; `sleeps` for each row, perhaps for odd ones alone."""

    number: int
    sleeps: bool = False
    odd_only: bool = False

    def __call__(self, batches: Batches) -> Batches:
        """As a function for `mapInArrow`."""
        for batch in batches:
            if self.sleeps and batch.num_rows and (not self.odd_only or batch["value"][0].as_py() % 2):
                time.sleep(PAUSE * batch.num_rows)
            yield batch


@dataclass(frozen=True)
class Keys:
    """Gives rows their keys: many, or one that most rows have."""

    hot: bool = False

    def __call__(self, batches: Batches) -> Batches:
        """As a function for `mapInArrow`."""
        for batch in batches:
            values = batch["value"]
            number = pc.bit_wise_and(values, 7 if self.hot else 255)
            keys = pc.cast(number, pa.string())
            if self.hot:
                keys = pc.if_else(pc.equal(number, 1), keys, "alice")
            yield pa.RecordBatch.from_arrays([values, keys], schema=SCHEMA)


@dataclass(frozen=True)
class Sink:
    """Keeps nothing; is slow for each row, or at making what it has safe."""

    pause: float = 0.0
    sync_seconds: float = 0.0

    @property
    def name(self) -> str:
        """For messages."""
        return "a sink"

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> Writer:
        """One subtask's."""
        return Writer(self)


class Writer(NoopWriter):
    """One subtask's."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        """Take so long for each row."""
        time.sleep(self._sink.pause * batch.num_rows)

    def sync(self, prepared: bytes) -> None:
        """Take so long for each checkpoint."""
        time.sleep(self._sink.sync_seconds)


def odd_and_even(batch: pa.RecordBatch) -> Any:
    """Odd rows to one task, even ones to the other."""
    return pc.bit_wise_and(batch["value"], 1).to_numpy()


@dataclass(frozen=True)
class Case:
    """The thing that is slow, and the stage and cause that are to be named."""

    title: str
    stage: int
    cause: str
    slow: int = -1
    odd_only: bool = False
    hot: bool = False
    sink: Sink = Sink()
    operator: str = "mapInArrow"
    rate: int = 0

    def stream(self) -> Stream:
        """Stages 0 to 4: the source's own, one in turns, one by odd and even, one by key, and the sink's."""
        source = RateSource(self.rate, 1, None)
        step = SourceStep(source.name, source.schema, source, partitions=1, streaming=True)  # type: ignore[arg-type]
        keyed = Stream((step,)).mapInArrow(Keys(self.hot), SCHEMA)
        stages = [Stage(number, number == self.slow, self.odd_only) for number in range(5)]
        first = keyed.mapInArrow(stages[0], SCHEMA).rebalance(1).mapInArrow(stages[1], SCHEMA)
        second = first.partitionCustom(odd_and_even, 2).mapInArrow(stages[2], SCHEMA)
        third = second.keyBy("key", numPartitions=2).mapInArrow(stages[3], SCHEMA)
        return third.rebalance(1).mapInArrow(stages[4], SCHEMA)


CASES = [
    Case("a hot key", 3, "hot key", slow=3, hot=True),
    Case("the source's own stage", 0, "operator", slow=0),
    Case("stage 1", 1, "operator", slow=1),
    Case("one slow subtask", 2, "slow subtask", slow=2, odd_only=True),
    Case("stage 2", 2, "operator", slow=2),
    Case("stage 3", 3, "operator", slow=3),
    Case("the sink", 4, "operator", sink=Sink(pause=PAUSE), operator="a sink"),
    Case("stage 4", 4, "operator", slow=4),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    """One executor for all queries of this file."""
    with Nursery(STREAMING_PRELOADED) as nursery, contextlib.closing(ProcessCluster(nursery, executors=1)) as made:
        for executor in made.launcher.executors:
            made.environment_pid(executor)  # it stays from test to test
        yield made


@contextlib.contextmanager
def running(cluster: ProcessCluster, case: Case, location: Path) -> Iterator[tuple[JobGraph, JobHandle]]:
    """The case's query, when rows have come to its sink."""
    stream = case.stream()
    interval = 0.3 if case.sink.sync_seconds else 0.0
    options = StreamingOptions("q", "numbers", str(location), interval=interval)
    graph = query_graph(stream.branches, case.sink, cluster.settings, SLOTS, options)
    assert [vertex.parallelism for vertex in graph.vertices] == [1, 1, 2, 2, 1]
    storage = QueryStorage(options)
    storage.claim({vertex.uid: vertex.parallelism for vertex in graph.vertices})
    handle = cluster.submit_graph(graph, SLOTS, cluster.settings, storage)
    try:
        wait_until(lambda: _rows_at_sink(handle) > 0, "rows have come to the sink")
        yield graph, handle
    finally:
        handle.cancel("seen enough")
        with contextlib.suppress(Exception):
            handle.wait(DEADLINE)


def _rows_at_sink(handle: JobHandle) -> float:
    progress = handle.progress()
    return 0 if progress is None else progress.vertices[-1].metrics.get("rows_in", 0)


def reports_of(graph: JobGraph, handle: JobHandle) -> list[dict[str, Any]]:
    """Some reports, a second apart, without the first one, which is of the start; `shown` is what people see."""
    reports, found = ProgressReports(graph, {"id": "i", "runId": "r", "name": "n"}), []
    frames, page = QueryFrames(graph, "query n", "k"), JobStore()
    handle._master.tell_jobs(page, page.look)
    for _ in range(REPORTS + 1):
        with contextlib.suppress(TimeoutError):
            handle.wait(1.0)
        progress = handle.progress()
        assert progress is not None
        report = reports.report(progress)
        frames.look(progress, report)
        told = page.document(handle.job) or {"headline": {}}
        found.append({**report, "shown": shown(frames, len(graph.vertices)), "page": told["headline"]})
    handle._master.tell_no_more(page)
    return found[1:]


def shown(frames: QueryFrames, stages: int) -> list[str]:
    """A terminal's lines, the block below a notebook's cell, and the query as a cell's value; each in one line."""
    frame, unknown = frames.now(), (None,) * stages
    lines = frame_lines(frame, unknown, WIDTH)
    assert max(map(len, lines)) <= WIDTH
    pages = [html.unescape(page) for page in (frame_html(frame, unknown), frames.page())]
    return [" ".join(" ".join(lines).split()), *pages]


def assert_said(report: dict[str, Any], stage: str, words: str) -> None:
    """All that people see names the stage, in a terminal its beginning, and has the words."""
    for text in report["shown"]:
        name, sign, _ = text.partition(words)
        assert sign, (words, text)
        assert stage[:30] in name.rpartition("held back by")[2] or stage[:30] in name.rpartition("most for")[2], text


def assert_on_page(reports: list[dict[str, Any]], line: str, stage: str, words: str) -> None:
    """The web page says it in most of its looks: it takes its own, between the reports."""
    lines = [report["page"][line] for report in reports]
    assert sum(stage in text and words in text for text in lines) >= REPORTS / 2, (stage, words, lines)


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_reports_name_what_is_slow(cluster: ProcessCluster, tmp_path: Path, case: Case) -> None:
    """The stage, the cause, and the operator; with a hot key that too."""
    with running(cluster, case, tmp_path) as (graph, handle):
        reports = reports_of(graph, handle)
    named = Counter(
        (each["heldBackBy"], each["bottleneck"] and (each["bottleneck"]["cause"], each["bottleneck"]["operator"]))
        for each in reports
    )
    ((stage, told), times) = named.most_common(1)[0]
    assert times > REPORTS / 2, named
    assert stage == graph.vertices[case.stage].name, named
    assert told[0] == case.cause, (named, reports[-1])
    assert told[1].startswith(case.operator), named
    for report in reports:
        if report["heldBackBy"] == stage and report["bottleneck"]["cause"] == case.cause:
            assert_said(report, stage, WORDS[case.cause])
    assert_on_page(reports, "text", short_name(stage), WORDS[case.cause])
    if case.hot:
        assert "alice" in reports[-1]["page"]["text"]
        keys = [each["bottleneck"]["keys"][0]["key"] for each in reports if each["bottleneck"]["keys"]]
        assert Counter(keys).most_common(1)[0][0] == "alice"


def test_reports_name_a_slow_disk_under_checkpoints(cluster: ProcessCluster, tmp_path: Path) -> None:
    """The rows flow, so no stage holds the query back; the checkpoints say whose part took long, and where."""
    case = Case("a slow disk", 4, "", sink=Sink(sync_seconds=SYNC), rate=RATE)
    with running(cluster, case, tmp_path) as (graph, handle):
        wait_until(lambda: (p := handle.progress()) is not None and p.checkpoints.completed > 1, "two checkpoints")
        reports = reports_of(graph, handle)
    slowest = [each["checkpoints"]["slowest"] for each in reports]
    named = Counter((each["stage"], each["phase"]) for each in slowest)
    assert named.most_common(1)[0][0] == (graph.vertices[4].name, "async"), named
    assert max(each["seconds"] for each in slowest) >= SYNC
    for report in reports:
        if report["checkpoints"]["slowest"]["seconds"] >= SYNC:
            assert_said(report, graph.vertices[4].name, "to store its snapshot")
    assert_on_page(reports, "also", short_name(graph.vertices[4].name), "to store its snapshot")
