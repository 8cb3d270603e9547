# SPDX-License-Identifier: Apache-2.0
"""The reports of a query about the time between two looks at its job."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from penstock.api.streaming.listeners import PROGRESS
from penstock.api.streaming.progress import ProgressReports, checkpoint_reports
from penstock.api.streaming.query import QueryHooks, StartedQuery, StreamingQuery
from penstock.graph import JobGraph
from penstock.job.core.loads import LATE_SECONDS, Loads
from penstock.job.core.result import CheckpointCounts, CheckpointReport, FinishedJob, JobResult, VertexProgress
from penstock.job.core.states import JobState
from penstock.shuffle.metrics import WATERMARK
from penstock.testing import DEADLINE
from query_reports import NAMES, look, planned

ID = "11111111-1111-1111-1111-111111111111"
STORED = {"bytes": 8.0, "in_flight_bytes": 3.0, "referred_bytes": 1.0, "store_seconds": 0.25}


def test_report_counts_what_came_since_the_last_one() -> None:
    """Rows that sources read and sinks take, and after a restart what the new attempts have counted from nothing."""
    graph = planned()
    reports = ProgressReports(graph, NAMES)
    rows = [{"rows_in": 10.0, "rows_out": 7.0}, {"rows_in": 8.0}, {"rows_in": 5.0}]
    first = reports.report(look(graph, *rows))
    assert (first["numInputRows"], first["sink"]["numOutputRows"], first["batchId"]) == (10, 5, -1)
    more = [{"rows_in": 25.0, "rows_out": 9.0}, {"rows_in": 20.0}, {"rows_in": 9.0}]
    counts = CheckpointCounts(completed=3, last=4, seconds=0.25)
    second = reports.report(look(graph, *more, counts=counts))
    assert (second["numInputRows"], second["sink"]["numOutputRows"], second["batchId"]) == (15, 4, 4)
    again = reports.report(look(graph, {"rows_in": 2.0}, {"rows_in": 1.0}, {"rows_in": 1.0}))
    assert again["numInputRows"] == 2
    assert {**NAMES, **again} == again


def test_a_query_is_idle_when_nothing_comes_to_any_stage() -> None:
    """It is idle if tasks say that they live and have had no row; a task that says nothing may be in a long call."""
    graph = planned()
    reports = ProgressReports(graph, NAMES)
    assert not reports.is_idle
    found = []
    for seconds, rows in ((1.0, 5.0), (2.0, 5.0), (2.0, 5.0), (3.0, 6.0), (4.0, 6.0)):
        reports.report(look(graph, *[{"rows_in": rows, "seconds": seconds}] * 3))
        found.append(reports.is_idle)
    assert found == [False, True, False, False, True]


def test_checkpoints_are_shown_with_the_figures_of_their_tasks() -> None:
    """Sums over the tasks, and each by itself; what failed says why."""
    figures = {
        "start_seconds": 0.5,
        "align_seconds": 0.25,
        "store_seconds": 0.125,
        "bytes": 8.0,
        "in_flight_bytes": 3.0,
    }
    reports = (
        CheckpointReport(1, 2.0, "", {"b.0": figures, "a.0": {"bytes": 1.0}}),
        CheckpointReport(2, 1.0, "late", {}),
    )
    good, bad = checkpoint_reports(CheckpointCounts(reports=reports))
    assert (good["id"], good["bytes"], good["inFlightBytes"], good["failure"]) == (1, 9, 3, None)
    assert [task["task"] for task in good["tasks"]] == ["a.0", "b.0"]
    assert good["tasks"][1] == {
        "task": "b.0",
        "startDelaySeconds": 0.5,
        "alignmentSeconds": 0.25,
        "syncSeconds": 0.0,
        "asyncSeconds": 0.125,
        "bytes": 8.0,
        "inFlightBytes": 3.0,
        "referredBytes": 0.0,
        "loggedBytes": 0.0,
    }
    assert bad["failure"] == "late"


def test_report_names_the_stage_that_holds_the_query_back() -> None:
    """Those in front of it are back-pressured, those after it idle; nobody is named if nobody waits for room."""
    graph = planned()
    idle = {"seconds": 1.0, "idle_seconds": 0.9}
    pressed = {"seconds": 1.0, "back_pressured_seconds": 0.8}
    busy = {"seconds": 1.0}
    report = ProgressReports(graph, NAMES).report(look(graph, pressed, busy, idle))
    assert report["heldBackBy"] == graph.vertices[1].name
    assert [stage["busy"] for stage in report["stages"]] == [0.2, 1.0, 0.1]
    calm = ProgressReports(graph, NAMES).report(look(graph, idle, idle, idle))
    assert calm["heldBackBy"] is None


def test_report_says_why_a_query_is_held_back() -> None:
    """The source's own stage is named if it works most of the time, with the operator and the busiest task."""
    graph = planned()
    source = {"seconds": 1.0, "operator.(reading)": 0.1, "operator.slow": 0.85, "rows_in": 5.0, "rows_out": 4.0}
    calm = {"seconds": 1.0, "idle_seconds": 0.95}
    progress = look(graph, {**source, "files_outstanding": 3.0, "bytes_outstanding": 900.0}, calm, calm)
    report = ProgressReports(graph, NAMES).report(progress)
    name = graph.vertices[0].name
    assert report["heldBackBy"] == name
    found = report["bottleneck"]
    assert (found["stage"], found["name"], found["cause"], found["operator"]) == (0, name, "operator", "slow")
    assert found["text"].startswith(name)
    assert report["stages"][0]["operators"] == {"slow": 0.85, "(reading)": 0.1}
    assert report["stages"][0]["busiest"] == {"subtask": 0, "busy": 1.0}
    (told,) = report["sources"]
    assert (told["numInputRows"], told["numOutputRows"]) == (5, 4)
    assert (told["filesOutstanding"], told["bytesOutstanding"]) == (3, 900)


def test_a_source_that_can_not_tell_says_none() -> None:
    """Nobody knows what a generator has left."""
    report = ProgressReports(planned(), NAMES).report(look(planned(), {}, {}, {}))
    assert (report["sources"][0]["filesOutstanding"], report["sources"][0]["bytesOutstanding"]) == (None, None)
    assert report["bottleneck"] is None


def test_a_task_in_a_long_call_is_busy_and_one_whose_report_is_late_is_not() -> None:
    """A task that says nothing is taken as before for some seconds, then as busy; one that has ended as neither."""
    told = {"seconds": 4.0, "idle_seconds": 3.5, "operator.map": 0.4}
    vertex = VertexProgress(0, "a", 1, 1, 0, told, (told,), (True,))
    loads = Loads(0, "a")
    assert loads.since_last(vertex, 10.0).work == 0.125
    assert loads.since_last(vertex, 11.0).work == 0.125
    silent = loads.since_last(vertex, 10.0 + LATE_SECONDS)
    assert silent.work == 1
    assert silent.subtasks[0].operators == {"map": 0.4}
    assert loads.since_last(replace(vertex, runs=(False,)), 20.0).work == 0


def test_report_names_the_slowest_part_of_the_last_checkpoint() -> None:
    """The stage by its name, the task, and the phase that took longest."""
    graph = planned()
    uids = [vertex.uid for vertex in graph.vertices]
    tasks = {f"{uids[0]}.0": {"store_seconds": 0.1}, f"{uids[1]}.2": {"store_seconds": 3.0, "align_seconds": 1.0}}
    reports = (CheckpointReport(1, 4.0, "", tasks), CheckpointReport(2, 1.0, "late", {}))
    report = ProgressReports(graph, NAMES).report(look(graph, {}, {}, {}, counts=CheckpointCounts(reports=reports)))
    stage = graph.vertices[1].name
    text = f"{stage}: subtask 2 took 3.0 s to store its snapshot at the checkpoint location (async)"
    expected = {"stage": stage, "subtask": 2, "phase": "async", "seconds": 3.0, "text": text}
    assert report["checkpoints"]["slowest"] == expected


def test_a_stage_that_does_not_run_yet_is_not_busy() -> None:
    """It has reported nothing: all of its time is idle."""
    report = ProgressReports(planned(), NAMES).report(look(planned(), {}, {}, {}))
    assert [(stage["busy"], stage["idle"]) for stage in report["stages"]] == [(0.0, 1.0)] * 3


def test_report_says_what_became_of_checkpoints() -> None:
    """It has their number, the last one, the cause of a failed one, and how often the query began anew."""
    graph = planned()
    counts = replace(CheckpointCounts(), completed=2, failed=1, last=7, failure="no space", restarts=3)
    counts = replace(counts, cause="a worker was lost\nand more lines")
    report = ProgressReports(graph, NAMES).report(look(graph, {}, {}, {}, counts=counts))
    assert report["checkpoints"]["lastFailure"] == "no space"
    assert (report["checkpoints"]["completed"], report["checkpoints"]["failed"], report["restarts"]) == (2, 1, 3)
    assert report["lastRestart"] == "a worker was lost"


def test_pyspark_reads_every_key_of_a_report() -> None:
    """`StreamingQueryProgress.fromJson`, which listeners get, asks for nothing that a report lacks."""
    stateful = {"state_rows": 40.0, "state_bytes": 512.0, "rows_in": 9.0, "operator.count": 0.5}
    stateful |= {"rows_late": 7.0, "rows_late_before": 5.0}
    counts = CheckpointCounts(reports=(CheckpointReport(1, 2.0, "", {f"{planned().vertices[1].uid}.0": STORED}),))
    figures = ({"rows_in": 9.0}, stateful, {WATERMARK: 1e9})
    report = ProgressReports(planned(), {**NAMES, "id": ID, "runId": ID}).report(
        look(planned(), *figures, counts=counts)
    )
    read = StreamingQueryProgress.fromJson(report)
    (operator,), (source,) = read.stateOperators, read.sources
    lacking = [name for part in (read, operator, source, read.sink) for name, value in part.items() if value is None]
    assert not lacking
    assert set(operator) <= set(report["stateOperators"][0])
    assert read.eventTime == {"watermark": "2001-09-09T01:46:40.000Z"}
    assert (operator.numRowsTotal, operator.numRowsUpdated, operator.allUpdatesTimeMs) == (40, 9, 500)
    assert (operator.memoryUsedBytes, operator.commitTimeMs) == (512, 250)
    assert operator.numRowsDroppedByWatermark == 2  # the others were another run's


class Ended:
    """The handle of a job that was over before anybody looked; its source read ten rows."""

    job = "j1"

    def __init__(self, graph: JobGraph, late: float) -> None:
        told = [{"rows_in": 10.0}, {"rows_in": 10.0, "state_rows": 3.0, "rows_late": late}, {"rows_in": 3.0}]
        metrics = {vertex.id: figures for vertex, figures in zip(graph.vertices, told, strict=True)}
        stages, each = (
            {vertex.id: vertex.name for vertex in graph.vertices},
            {key: (one,) for key, one in metrics.items()},
        )
        self.result = JobResult("j1", "n", JobState.FINISHED, 0.1, metrics, stages=stages, subtasks=each)

    def wait(self, _: float) -> FinishedJob:
        """Its end."""
        return FinishedJob(self.result, ())


@pytest.mark.parametrize("late", [0, 4])
def test_a_short_run_has_a_report_with_its_rows(late: int, caplog: pytest.LogCaptureFixture) -> None:
    """Listeners hear of it too; rows that were dropped as late are said once, with their number."""
    graph, told, ended = planned(), [], threading.Event()
    graph = replace(graph, streaming=replace(graph.streaming, available_now=True))  # type: ignore[type-var]
    handle: Any = Ended(graph, float(late))
    hooks = QueryHooks(ended=ended.set)
    started = StartedQuery("i", "r", "n", graph, 4, handle, None, hooks, tell=lambda *event: told.append(event))  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        query = StreamingQuery(started)
        assert query.awaitTermination(DEADLINE)
    assert query.lastProgress is not None
    assert query.lastProgress["numInputRows"] == 10
    assert query.lastProgress["sink"]["numOutputRows"] == 3
    assert [event["numInputRows"] for word, event in told if word == PROGRESS] == [10]
    assert [record.getMessage().count("4 rows came after") for record in caplog.records] == [1] * bool(late)
