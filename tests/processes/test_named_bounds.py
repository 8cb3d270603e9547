# SPDX-License-Identifier: Apache-2.0
"""A blind test on batch jobs: something is slow, and all that people see must say where.

Blocking and hybrid exchanges press nobody, so the stage is the one whose work bounds the job's time. The trace, the
web page, the page of the job's log, a terminal's last line and the block below a notebook's cell name it, and the
cause. The page names the phase too, also where that is none of work: the start, the wait for slots, the way back.
"""

from __future__ import annotations

import contextlib
import html
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from effort import some_of
from penstock.api.stream import Stream
from penstock.graph import JobGraph
from penstock.job.core.result import JobEnding, JobResult
from penstock.job.shell.history import plan_of
from penstock.observe.frames import last_html, last_lines
from penstock.observe.samples import busy_seconds
from penstock.spark.job_frames import JobFrames
from penstock.testing import DEADLINE, wait_until
from penstock.testing.sources import fromBatches
from penstock.web.logs import JobLogFiles
from penstock.web.store import JobStore
from penstock.web.titles import short_name
from penstock_torture.process_launcher import Nursery
from process_cluster import PRELOADED, SLOTS, ProcessCluster
from underway import listed

pytestmark = pytest.mark.processes

SCHEMA = pa.schema([("value", pa.int64()), ("key", pa.string())])
ROWS, BATCHES = 16_000, 8
PAUSES = (40e-6, 200e-6, 1e-3)
"""Seconds for each row of what is slow, the first that is much more than what a loaded machine makes slow besides."""
WIDTH = 80
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Stage:
    """The function of a stage; it may sleep for each row, perhaps for odd ones alone."""

    pause: float
    odd_only: bool

    def __call__(self, batches: Batches) -> Batches:
        """As a function for `mapInArrow`."""
        for batch in batches:
            if batch.num_rows and (not self.odd_only or batch["value"][0].as_py() % 2):
                time.sleep(self.pause * batch.num_rows)
            yield batch


SLOWER = "in mapInArrow(Stage), and slower than the others with as many rows"


@dataclass(frozen=True)
class Case:
    """The stage that is slow, and the words for its cause."""

    title: str
    stage: int
    words: str = "most of it in mapInArrow"
    odd_only: bool = False
    hot: bool = False
    shape: str = "chain"
    memory: str = "256m"
    """For groups and sorts; of what is more a task spills."""

    @property
    def seen(self) -> str:
        """The words that all places have."""
        return "most of it in mapInArrow" if self.shape != "chain" else self.words

    def stream(self, pause: float) -> Stream:
        """The slow function in a stage of its number."""
        source, slow = fromBatches(rows(self.hot), 2), Stage(pause, odd_only=False)
        if self.shape == "join":
            few = fromBatches(rows(self.hot).slice(0, 256), 1).select("key")
            joined = source.keyBy("key", mode="blocking").join(few.keyBy("key", mode="blocking"))
            return joined.mapInArrow(slow, joined.schema)
        if self.shape == "sort":
            return source.sortBy("value").mapInArrow(slow, SCHEMA)
        if self.shape == "many":
            for number in range(1, 7):
                stage = Stage(pause if number == self.stage else 0.0, odd_only=False)
                source = source.rebalance(2, mode="blocking").mapInArrow(stage, SCHEMA)
            return source
        return self._chain(pause)

    def _chain(self, pause: float) -> Stream:
        """Stages 0 to 2: the source's own, one by odd and even, one by key."""
        stages = [Stage(pause if number == self.stage else 0.0, self.odd_only) for number in range(3)]
        first = fromBatches(rows(self.hot), 2).mapInArrow(stages[0], SCHEMA)
        second = first.partitionCustom(odd_and_even, 2, mode="blocking").mapInArrow(stages[1], SCHEMA)
        return second.keyBy("key", numPartitions=2, mode="hybrid").mapInArrow(stages[2], SCHEMA)


CASES = [
    Case("stage 1", 1),
    Case("a hot key", 2, "has more rows than the others", hot=True),
    Case("the source's own stage", 0),
    Case("one slow subtask", 1, "slower than the others with as many rows", odd_only=True),
    Case("stage 2", 2),
    Case("a sort that spills", -1, "MB to disk", shape="sort", memory="4k"),
    Case("a sort", -1, shape="sort"),
    Case("a join", 2, shape="join"),
    Case("many stages", 4, shape="many"),
]


def rows(hot: bool) -> pa.Table:
    """All rows; of a hot key all but an eighth have one key."""
    values = pa.Array.from_buffers(pa.int64(), ROWS, [None, pa.py_buffer(np.arange(ROWS))])
    keys = pc.cast(pc.bit_wise_and(values, 7 if hot else 255), pa.string())
    if hot:
        keys = pc.if_else(pc.equal(keys, "1"), keys, "alice")
    batches = pa.table([values, keys], schema=SCHEMA).to_batches(max_chunksize=ROWS // BATCHES)
    return pa.Table.from_batches(batches)


def odd_and_even(batch: pa.RecordBatch) -> Any:
    """Odd rows to one task, even ones to the other; `to_numpy` would import pandas in each task."""
    column = batch["value"]
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)] & 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the jobs' logs."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[ProcessCluster]:
    """One executor for all jobs of this file."""
    conf = {"spark.penstock.observe.eventLog": str(folder), "spark.penstock.observe.profile": "true"}
    with (
        Nursery(PRELOADED) as nursery,
        contextlib.closing(ProcessCluster(nursery, executors=1, conf=conf)) as made,
    ):
        for executor in made.launcher.executors:
            made.environment_pid(executor)
        yield made


@pytest.mark.parametrize("case", some_of(CASES, 9), ids=lambda case: case.title)
def test_all_that_is_shown_names_what_bounds_a_job(
    cluster: ProcessCluster, folder: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage and the cause, in words; on the page the phase too, and where its worker's function was."""
    settings = {**cluster.conf, "spark.penstock.task.groupMemory": case.memory}
    monkeypatch.setattr(cluster, "launch", replace(cluster.launch, settings=settings))
    page = JobStore()
    cluster.master.tell_jobs(page, page.look)
    graph, result = ran(cluster, case)
    cluster.master.tell_no_more(page)
    stage = graph.vertices[case.stage].name
    for text in shown(result, JobFrames(graph)):
        name, sign, _ = (said := " ".join(text.split())).partition(words(said, case.seen))
        assert sign, (case.seen, text)
        assert f"by {stage[:30]}" in name, text
    for told in on_pages(result, page, folder):
        headline, stages, profiles = told["headline"], told["stages"], dict(told["profiles"])
        titles = [each["name"] for each in stages]
        assert titles[case.stage].startswith(short_name(stage))
        assert f"bounded by {titles[case.stage]} (function): " in headline["text"], headline
        assert words(headline["text"], case.words) in headline["text"], headline
        assert ("MB to disk" in headline["text"]) is (case.memory == "4k")
        assert all(each["peakResident"] > 1 << 20 for each in stages), stages
        _, took, (function, *_) = profiles[case.stage % len(stages)]
        assert function[0].startswith("Stage.__call__ (test_named_bounds.py:")
        assert 2 * function[1] > took, "most of the time of users' functions went on the slow one"
        assert function[2][0][0].startswith("line ")


def words(text: str, wanted: str) -> str:
    """The words for a cause, or those in their place: on a busy machine a subtask may be slower than the others."""
    return SLOWER if SLOWER in text else wanted


@pytest.mark.parametrize("phase", some_of(("start", "slots", "way back", "tiny"), 4))
def test_the_page_names_a_phase_that_is_none_of_work(cluster: ProcessCluster, phase: str) -> None:
    """Tasks that come late, a job before this one that has all slots, rows that are read slowly; and a tiny job."""
    page, launch = JobStore(), cluster.launcher.launch
    cluster.master.tell_jobs(page, page.look)
    plan = Case("quick", 1).stream(0.0).plan(cluster.settings, SLOTS)
    if phase == "slots":
        slow = Case("slow", 1).stream(PAUSES[1]).plan(cluster.settings, 2)
        before = cluster.submit_graph(slow.graph, 2, cluster.settings)
    if phase == "start":
        cluster.launcher.launch = lambda request: threading.Timer(1.0, launch, [request]).start()  # type: ignore[method-assign]
    try:
        slots = 2 if phase == "slots" else SLOTS
        result = cluster.submit_graph(plan.graph, slots, cluster.settings).wait(DEADLINE).result
    finally:
        cluster.launcher.launch = launch  # type: ignore[method-assign]
    if phase == "slots":
        before.wait(DEADLINE)
    if phase == "way back":
        cluster.master.result_read(result.job, 60.0)
    wait_until(lambda: told_phase(page, result.job), "its end is told")
    told = page.document(result.job)
    assert told is not None
    assert phase in ("tiny", told["headline"]["phase"]), told["phases"]
    assert told["stages"][told["headline"]["stage"]]["name"] in told["headline"]["text"]
    cluster.master.tell_no_more(page)


def told_phase(page: JobStore, job: str) -> str:
    """The phase in the headline of a job that is over."""
    told = page.document(job)
    return told["headline"]["phase"] if told is not None and told["isOver"] else ""


def ran(cluster: ProcessCluster, case: Case) -> tuple[JobGraph, JobResult]:
    """The case's job, in which nothing but the slow function took long."""
    for pause in PAUSES:
        graph = case.stream(pause).plan(cluster.settings, SLOTS).graph
        assert {edge["mode"] for edge in plan_of(graph)["edges"]} <= {"blocking_sort_merge", "hybrid_full"}
        result = cluster.submit_graph(graph, SLOTS, cluster.settings).wait(DEADLINE).result
        if 3 * besides(result, case.stage) < pause * ROWS / 2:
            break
    return graph, result


def besides(result: JobResult, slow: int) -> float:
    """The longest time that a task worked on anything but the slow function."""
    works = []
    number = slow % len(result.subtasks)
    for stage, subtasks in result.subtasks.items():
        for figures in subtasks:
            slept = figures.get("operator.mapInArrow(Stage)", 0.0) if stage == number else 0.0
            works.append(busy_seconds(figures) - slept)
    return max(works)


def shown(result: JobResult, frames: JobFrames) -> Iterator[str]:
    """The trace, the last lines and the last block of the job that has just ended."""
    yield f"bounded by {result.trace_of('bottleneck')[0][2]}"
    last = frames.ended(JobEnding(result))
    lines = last_lines(last, WIDTH)
    assert max(map(len, lines)) <= WIDTH
    yield " ".join(lines)
    yield html.unescape(last_html(last))


def on_pages(result: JobResult, page: JobStore, folder: Path) -> Iterator[dict[str, Any]]:
    """The job as the page shows it, and as the page of its log does."""
    for told in (lambda: page, lambda: JobLogFiles.at(listed(folder, f"*-{result.job}.jsonl")[0])):
        wait_until(lambda told=told: (told().document(result.job) or {}).get("isOver"), "its end is told")
        found = told().document(result.job)
        assert found is not None
        yield found
