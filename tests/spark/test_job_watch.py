# SPDX-License-Identifier: Apache-2.0
"""Which jobs run, how far they are, who stops them: what needs no Spark of it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

import pyarrow as pa
import pytest

from penstock.errors import JobCancelledError, SlotsError
from penstock.graph import JobEdge, JobGraph, JobVertex, KeptBy
from penstock.job.core.bottleneck import Bottleneck, Cause
from penstock.job.core.result import JobEnding, JobProgress, JobResult, VertexProgress
from penstock.job.core.states import JobState
from penstock.observe.progress import ProgressSnapshot
from penstock.operators.exchanges import exchange
from penstock.shuffle import PartitionKind
from penstock.spark import interrupts
from penstock.spark.job_frames import JobFrames, snapshot_of
from penstock.spark.job_watch import JobWatch, is_wanted
from penstock.spark.running_jobs import RunningJobs
from penstock.spark.shared_workers import sql_variables
from penstock.spark.slots import refuse_what_cannot_fit
from penstock.spark.user_thread import user_place
from penstock.testing import VirtualClock, wait_until

SCHEMA = pa.schema([("id", pa.int64())])


def two_stages(kind: PartitionKind = PartitionKind.BLOCKING_SORT_MERGE) -> JobGraph:
    """Two tasks that feed two others."""
    vertices = (JobVertex(0, "read", 2, SCHEMA), JobVertex(1, "count", 2, SCHEMA))
    edges = (JobEdge(0, 0, 1, exchange("rebalance"), SCHEMA, kind, "local"),)
    return JobGraph("job", vertices, edges, (1,), kept_by=KeptBy("local", kind))


def progress(read: tuple[int, float], count: tuple[int, float], seconds: float = 3.0) -> JobProgress:
    """A job of two stages: how many of each stage's tasks have ended, and rows out and in."""
    vertices = (
        VertexProgress(0, "read", 2, 2 - read[0], read[0], {"rows_out": read[1]}),
        VertexProgress(1, "count", 2, 2 - count[0], count[0], {"rows_in": count[1]}),
    )
    return JobProgress("j1", "job", JobState.RUNNING, seconds, vertices)


class Shown:
    """A display that remembers."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.ended: list[ProgressSnapshot] = []
        self.cleared = threading.Event()

    def show(self, jobs: Sequence[ProgressSnapshot]) -> None:
        """Remember."""
        self.shown += [job.job for job in jobs]

    def end(self, job: ProgressSnapshot) -> None:
        """Remember."""
        self.ended.append(job)

    def clear(self) -> None:
        """Remember."""
        self.cleared.set()


def ending(state: JobState = JobState.FINISHED) -> JobEnding:
    """The end of that job: all rows, and the stage that took the time."""
    held = Bottleneck(1, "count", Cause.OPERATOR, "mapInArrow(f)", 0, 2, 3.8, 4.0)
    metrics = {0: {"rows_in": 900.0, "bytes_in": 9000.0}, 1: {"rows_in": 1000.0}}
    return JobEnding(JobResult("j1", "job", state, 4.0, metrics, bottleneck=held))


def test_share_is_of_rows_where_all_are_known() -> None:
    """Tasks while producers run; rows once they have ended; nothing before anything is known."""
    graph = two_stages()

    def shares(now: JobProgress) -> list[float | None]:
        return [stage.share for stage in snapshot_of(graph, now).vertices]

    assert shares(progress((0, 0), (0, 0))) == [None, None]
    assert shares(progress((1, 500), (0, 400))) == [0.5, None]
    assert shares(progress((2, 1000), (0, 400))) == [1.0, 0.4]
    assert shares(progress((2, 1000), (1, 400))) == [1.0, 0.5]
    assert shares(progress((2, 1000), (2, 1000))) == [1.0, 1.0]


def test_jobs_are_forgotten_when_they_are_over() -> None:
    """One that the JobMaster does not know yet is kept for a moment, one that it does not know any more is not."""
    clock = VirtualClock()
    jobs = RunningJobs(clock)
    jobs.add("j1", two_stages())
    with jobs.planned("j1"):
        pass
    assert jobs.progress(lambda _: None) == []
    assert [job.job for job in jobs.all()] == ["j1"]
    clock.advance(6)
    assert len(jobs.progress(lambda _: progress((0, 0), (0, 0)))) == 1
    assert jobs.progress(lambda _: None) == []
    assert jobs.all() == ()


def test_a_job_stopped_while_it_is_planned_is_not_submitted() -> None:
    """Ctrl-C reaches what the JobMaster has not heard of, however long the planning takes."""
    clock = VirtualClock()
    jobs = RunningJobs(clock)
    jobs.add("j1", two_stages())
    planned = jobs.planned("j1")
    planned.__enter__()
    clock.advance(60)
    assert jobs.progress(lambda _: None) == []
    assert jobs.stop("interrupted") == ("j1",)
    with pytest.raises(JobCancelledError, match="job j1 was cancelled: interrupted"):
        planned.__exit__(None, None, None)
    assert jobs.all() == ()
    jobs.add("j2", two_stages())
    with jobs.planned("j2"):
        pass


def test_a_job_that_could_not_be_planned_is_forgotten() -> None:
    """Nobody submits it."""
    jobs = RunningJobs()
    jobs.add("j1", two_stages())
    with pytest.raises(ValueError, match="no plan"), jobs.planned("j1"):
        raise ValueError("no plan")
    assert jobs.all() == ()


def test_running_jobs_are_shown_until_they_end() -> None:
    """The thread is there while jobs are, skips short ones, and clears the display at the end."""
    clock = VirtualClock()
    jobs = RunningJobs(clock)
    states: dict[str, JobProgress | None] = {"j1": progress((0, 0), (0, 0)), "j2": progress((0, 0), (0, 0), 0.1)}
    display = Shown()
    watch = JobWatch(jobs, states.get, lambda job: ending() if job == "j1" else None, lambda: display)
    for job in ("j1", "j2"):
        jobs.add(job, two_stages())
        with jobs.planned(job):
            pass
    watch.look()
    watch.look()
    wait_until(lambda: len(display.shown) >= 2, "a job is shown twice")
    assert display.ended == []
    states.clear()
    watch.settle()
    assert [(last.state, last.seconds, last.rows) for last in display.ended] == [("finished", 4.0, 900)]
    clock.advance(6)
    wait_until(display.cleared.is_set, "the display is cleared")
    wait_until(lambda: "penstock-progress" not in [t.name for t in threading.enumerate()], "the thread has ended")
    assert set(display.shown) == {"job"}
    assert jobs.all() == ()
    watch.close()


def test_the_last_frame_is_that_of_the_end() -> None:
    """Of a job that went well all figures, all done, and what bounded its time; else the last that were seen."""
    frames = JobFrames(two_stages())
    frames.running(progress((1, 500), (0, 400)))
    last = frames.ended(ending())
    assert [(stage.rows, stage.bytes, stage.share, stage.running) for stage in last.vertices] == [
        (900, 9000, 1.0, 0),
        (1000, 0, 1.0, 0),
    ]
    (note,) = last.notes
    assert (note.lead, note.stage) == ("held back by", "count")
    assert note.reason == "subtask 0 of 2 is busy 95% of its time, most of it in mapInArrow(f)"
    failed = frames.ended(ending(JobState.FAILED))
    assert (failed.state, failed.seconds, failed.vertices[1].rows) == ("failed", 4.0, 400)
    assert frames.ended(None).state == "over"


def test_a_running_job_names_the_stage_that_holds_it_back() -> None:
    """The one that has bounded its time so far; nobody where all have worked for a moment only."""
    busy, idle = {"seconds": 3.0, "operator.f": 2.9}, {"seconds": 3.0, "idle_seconds": 2.95}
    for figures, held in (((busy, idle), ["read"]), ((idle, busy), ["count"]), ((idle, idle), [])):
        vertices = tuple(
            VertexProgress(number, name, 1, 1, 0, told, (told,), (True,))
            for number, (name, told) in enumerate(zip(("read", "count"), figures, strict=True))
        )
        shown = JobFrames(two_stages()).running(JobProgress("j1", "job", JobState.RUNNING, 3.0, vertices))
        assert [note.stage for note in shown.notes] == held
        assert all("most of it in f" in note.reason for note in shown.notes)


def test_a_stage_that_has_ended_holds_nobody_back() -> None:
    """It may have taken most of the time so far; of those that run, the one that works most is named."""
    worked, works = {"seconds": 60.0, "operator.f": 59.0}, {"seconds": 2.0, "operator.g": 1.8, "idle_seconds": 0.1}
    vertices = (
        VertexProgress(0, "read", 1, 0, 1, worked, (worked,), (False,)),
        VertexProgress(1, "count", 1, 1, 0, works, (works,), (True,)),
    )
    shown = JobFrames(two_stages()).running(JobProgress("j1", "job", JobState.RUNNING, 62.0, vertices))
    assert [note.stage for note in shown.notes] == ["count"]


def test_a_query_is_shown_while_somebody_waits() -> None:
    """Its frames, and its last one when the wait is over, drawn before the wait returns."""
    display, states = Shown(), [""]
    watch = JobWatch(RunningJobs(), lambda _: None, find_display=lambda: display)
    with watch.showing(lambda: ProgressSnapshot("query q", (), 1.0, "q", state=states[0])):
        wait_until(lambda: len(display.shown) >= 2, "the query is shown")
        states[0] = "ended"
    assert [(last.job, last.state) for last in display.ended] == [("query q", "ended")]
    wait_until(lambda: "penstock-progress" not in [t.name for t in threading.enumerate()], "the thread has ended")


def test_a_display_that_fails_costs_no_job() -> None:
    """Its thread ends, and nobody waits for it."""

    class Broken(Shown):
        def show(self, jobs: Sequence[ProgressSnapshot]) -> None:
            raise OSError("standard error is gone")

    watch = JobWatch(RunningJobs(), lambda _: None, find_display=Broken)
    with watch.showing(lambda: ProgressSnapshot("query q", (), 1.0, "q")):
        wait_until(lambda: "penstock-progress" not in [t.name for t in threading.enumerate()], "the thread has ended")


def test_nowhere_to_show_costs_nothing() -> None:
    """Without a display there is no thread."""
    jobs = RunningJobs()
    jobs.add("j1", two_stages())
    watch = JobWatch(jobs, lambda _: None, find_display=lambda: None)
    watch.look()
    watch.settle()
    with watch.showing(lambda: ProgressSnapshot("a query", (), 1.0)):
        pass
    assert "penstock-progress" not in [thread.name for thread in threading.enumerate()]


def test_progress_can_be_switched_off() -> None:
    """By our setting, and by Spark's where it is set and ours is not."""
    assert is_wanted(
        {"spark.ui.showConsoleProgress": "false", "spark.penstock.observe.progress": "true"}, setting=True
    )
    assert is_wanted({}, setting=True)
    assert is_wanted({"spark.ui.showConsoleProgress": "true"}, setting=True)
    assert not is_wanted({"spark.ui.showConsoleProgress": "False"}, setting=True)
    assert not is_wanted({}, setting=False)


def test_ctrl_c_is_told_before_what_was_done_before() -> None:
    """The listeners hear it, then the handler that was there; once forgotten, that one alone."""
    heard: list[str] = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("before"))
    try:
        interrupts.on_interrupt(1, heard.append)
        interrupts.on_interrupt(1, heard.append)
        os.kill(os.getpid(), signal.SIGINT)
        assert heard == [interrupts.CAUSE, "before"]
        interrupts.forget(1)
        interrupts.forget(1)
        os.kill(os.getpid(), signal.SIGINT)
        assert heard[2:] == ["before"]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_of_others_is_kept_where_ctrl_c_is_ignored() -> None:
    """A process that ignores Ctrl-C goes on ignoring it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupts.on_interrupt(2, lambda _: None)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        interrupts.forget(2)
        signal.signal(signal.SIGINT, before)


def test_slots_that_can_never_suffice_are_refused() -> None:
    """Stages that must run together count; those that run one after the other do not."""
    refuse_what_cannot_fit(two_stages(PartitionKind.PIPELINED), 4)
    refuse_what_cannot_fit(two_stages(), 1)
    with pytest.raises(SlotsError, match="needs 4 task slots at the same time, but the application has 3"):
        refuse_what_cannot_fit(two_stages(PartitionKind.PIPELINED), 3)


def test_workers_are_shared_as_sql_has_them() -> None:
    """The variables follow the settings that SQL's follow."""
    assert sql_variables({}) == {"SPARK_SIMPLIFIED_TRACEBACK": "1"}
    key = "spark.sql.execution.pyspark.udf.{}Traceback.enabled"
    assert sql_variables({key.format("simplified"): "false", key.format("hide"): "true"}) == {
        "SPARK_HIDE_TRACEBACK": "1"
    }


def test_the_place_is_the_users() -> None:
    """The innermost frame outside the libraries: this file, this line."""
    name, _, line = user_place().partition(":")
    assert name == "test_job_watch.py"
    assert line.isdigit()
