# SPDX-License-Identifier: Apache-2.0
"""Records of jobs: what events make of them, in bounded memory, and what documents say."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path

import pytest

from job_graphs import two_stages
from penstock.errors import SettingError
from penstock.graph.streaming import part_name
from penstock.job.core.result import JobProgress, SubtaskStatus, VertexProgress
from penstock.job.core.states import JobState
from penstock.job.launcher import Submission
from penstock.job.shell.history import JobHistory
from penstock.observe import EventLog
from penstock.observe.job_logs import JobLogs
from penstock.settings import Settings
from penstock.web.document import document
from penstock.web.logs import JobLogFiles
from penstock.web.record import CHECKPOINTS, ERRORS, PARTS, JobRecord
from penstock.web.series import POINTS, Series, SeriesPoint, drawn
from penstock.web.store import JobStore
from penstock.web.timeline import SPANS, SlotSpan, Timeline, lined_up
from told_jobs import figures, plan, tell


def test_a_finished_job_names_the_stage_that_bounded_its_time() -> None:
    """Headline, stages, subtasks, partitions and slots are those of its events."""
    store = JobStore()
    tell(store)
    told = store.document("j1")
    assert told is not None
    assert told["headline"]["stage"] == 1
    assert told["headline"]["text"].startswith(
        "Its time was bounded by stage 1 (function): subtask 1 of 2 is busy 95% of its time"
    )
    assert [stage["busy"] for stage in told["stages"]] == [0.1, 0.95]
    assert told["subtasks"]["rows"][0][:5] == [0, 0, "finished", 0, "host-1-abc"]
    assert [row[-2:] for row in told["subtasks"]["rows"][:2]] == [[1e8, 2e8], [1e8, 3e8]]
    applied = ["line 8", 4.75, [["DataFrame.apply (pandas/core/frame.py:9)", 4.75, []]]]
    inside = ["slow (job.py:3)", 19.0, [["line 7", 14.25, []], applied]]
    assert told["profiles"][1] == [1, ["all functions", 19.0, [inside]]]
    assert [stage["peakResident"] for stage in told["stages"]] == [3e8, 3e8]  # of processes there is no sum
    assert [row[0] for row in told["partitions"]["rows"]] == ["j1-e0.0#0", "j1-e0.1#0"]
    assert told["timeline"]["lines"] == 4
    json.dumps(told, allow_nan=False)


def test_only_the_last_jobs_are_kept() -> None:
    """Of those that are over; one that runs stays, however old."""
    store = JobStore(kept=3)
    store.say("old", "job_submitted", plan())
    for number in range(20):
        tell(store, f"j{number}")
    assert [each["job"] for each in store.jobs()] == ["j19", "j18", "j17", "old"]
    assert store.document("j1") is None
    kept = store.statistics()
    assert (kept["jobs"], kept["changed"], kept["told"], kept["subtasks"]) == (4, 4, 0, 3 * 4)


def test_a_record_of_a_long_life_stays_small() -> None:
    """Hours of progress, restarts, checkpoints and attempts: points, spans and errors are bounded, ends are kept."""
    record, empty = JobRecord("j1"), {"stages": {}, "loads": {}, "held_back": None, "slow_part": None}
    record.take("job_submitted", plan(is_query=True))
    for second in range(1, 20_001):
        record.take("progress", {"seconds": float(second), **empty})
        attempt = f"j1/v0.0#{second}"
        record.take("trace", {"seconds": second, "name": "task_registered", "ids": attempt})
        record.take("trace", {"seconds": second, "name": "task_finished", "ids": f"{attempt} FAILED"})
        said = {"seconds": second, "number": second, "took": 0.5, "cause": "", "completed": second, "failed": 0}
        record.take("checkpoint", {**said, "tasks": {part_name("u0", 0): {"bytes": 10.0}}})
    points = record.series.points()
    assert POINTS / 2 <= len(points) <= POINTS
    assert (points[0].seconds, points[-1].seconds) == (0.0, 20_000.0)
    assert len(record.timeline.spans()) == SPANS
    assert record.timeline.dropped == 20_000 - SPANS
    assert len(record.errors) == ERRORS
    assert record.sums.completed == record.sums.seen == 20_000
    most = {"points": POINTS, "spans": SPANS, "checkpoints": CHECKPOINTS, "parts": PARTS, "errors": ERRORS}
    kept = record.statistics()
    assert {name for name in most if kept[name] > most[name]} == set()
    assert kept["subtasks"] == 0


def test_rates_are_of_the_time_between_points() -> None:
    """Also where points went, and where a task began anew."""
    series = Series()
    for second in range(1, 4 * POINTS):
        series.add(SeriesPoint(float(second), {0: 100.0 * second}))
    rates = drawn(series.points(), [0])["rows"]["0"]
    assert set(rates) == {100.0}
    again = (SeriesPoint(0, {0: 0.0}), SeriesPoint(1, {0: 50.0}), SeriesPoint(2, {0: 10.0}))
    assert drawn(again, [0])["rows"]["0"] == [50.0, 10.0]


def test_attempts_take_the_first_line_that_is_free() -> None:
    """Three slots, two maps and two reduces: the second reduce begins where the first task ended."""
    timeline = Timeline()
    for seconds, name, ids in (
        *((0.0, "task_registered", f"j1/v0.{index}#0") for index in (0, 1)),
        (0.1, "task_registered", "j1/v1.0#0"),
        (2.0, "task_finished", "j1/v0.1#0 FINISHED"),
        (2.1, "task_registered", "j1/v1.1#0"),
        (3.0, "task_lost", "j1/v1.0#0"),
        (9.0, "nothing_of_tasks", "j1/v1.0#0"),
    ):
        timeline.add(seconds, name, ids)
    timeline.end(5.0)
    spans = timeline.spans()
    assert [(span.stage, span.subtask) for span in spans] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert lined_up(spans) == [0, 1, 2, 1]
    assert [span.how for span in spans] == ["ended with its job", "finished", "lost", "ended with its job"]
    assert lined_up((SlotSpan(0, 0, 0, 0.0), SlotSpan(0, 1, 0, 1.0))) == [0, 1]


def test_a_file_has_no_hot_key() -> None:
    """While a query runs its page names the key; a document for a file says that there is one."""
    record = JobRecord("j1")
    record.take("job_submitted", plan(is_query=True))
    record.state, record.words = "RUNNING", "stage 1: has a hot key: alice (90% of its rows)"
    record.present = {"stage": 1, "name": "stage 1", "cause": "hot key", "text": "stage 1: has a hot key"}
    assert "alice" in document(record)["headline"]["text"]
    assert "alice" not in json.dumps(document(record, is_file=True))


def test_who_tells_never_waits_for_who_reads() -> None:
    """While a document is made the JobMaster goes on; all it has told is known to the next reader, in order."""
    store = JobStore()
    with store._lock:
        tell(store)
        tell(store, "j2", error="ValueError: no good")
    assert [(each["job"], each["state"]) for each in store.jobs()] == [("j2", "FAILED"), ("j1", "FINISHED")]


def test_a_log_that_grows_is_read_on(tmp_path: Path) -> None:
    """A line that is not whole waits; a job without an end is shown as far as it is."""
    path = tmp_path / "a-j1.jsonl"
    with EventLog(path, "j1") as log:
        log.append("job_submitted", plan())
        logs = JobLogFiles.at(path)
        assert logs.jobs()[0]["state"] == "CREATED"
        log.append("trace", {"seconds": 0.5, "name": "job_admitted", "ids": "j1"})
        with path.open("ab") as more:
            more.write(b'{"half')
        assert logs.jobs()[0]["state"] == "RUNNING"
        assert logs.jobs()[0]["isOver"] is False


def test_a_log_has_the_profile_of_a_job_that_has_not_ended(tmp_path: Path) -> None:
    """Now and then, for it is large: after ten seconds, and when the job is half as old again; at its end whole."""
    logs = JobLogs(str(tmp_path), "app")
    history, path = JobHistory(logs), logs.path("j1")
    history.opened(Submission("j1", two_stages(), Settings(), 4))
    for seconds in (1.0, 9.0, 10.0, 14.0, 15.0, 30.0):
        figures = {"rows_in": seconds, "profile.f (job.py:1);line 2": seconds}
        stage = VertexProgress(1, "stage 1", 2, 2, 0, figures, (figures,), (True,), (SubtaskStatus("running"),))
        history.looked(JobProgress("j1", "told", JobState.RUNNING, seconds, (stage,)), ())
    history.close()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["seconds"] for each in events if each["event"] == "profile"] == [10.0, 15.0, 30.0]
    assert "profile." not in json.dumps([each for each in events if each["event"] == "progress"])
    told = JobLogFiles.at(path).document("j1")
    assert told is not None
    assert told["profiles"] == [[1, ["all functions", 30.0, [["f (job.py:1)", 30.0, [["line 2", 30.0, []]]]]]]]


def test_a_folder_of_logs_is_shown_whole(tmp_path: Path) -> None:
    """Jobs of two applications have the same ids: the files tell them apart."""
    for application in ("a", "b"):
        with EventLog(tmp_path / f"{application}-j1.jsonl", "j1") as log:
            log.append("job_submitted", plan(name=application))
    assert {each["job"] for each in JobLogFiles.at(tmp_path).jobs()} == {"a-j1", "b-j1"}


@pytest.mark.parametrize("text", ["", "no json\n", '{"event": "trace"}\n', "[1]\n", '{"event": "job_submitted"}\n'])
def test_other_files_are_refused_in_words(tmp_path: Path, text: str) -> None:
    """The path is in the message."""
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(SettingError, match=r"x\.jsonl"):
        JobLogFiles.at(path)


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    """It says what their files are called."""
    with pytest.raises(SettingError, match=r"end in \.jsonl"):
        JobLogFiles.at(tmp_path)


def test_busy_shares_are_of_the_busiest_subtask() -> None:
    """The mean stands beside it."""
    store = JobStore()
    store.say("j1", "job_submitted", plan(1, 2))
    for subtask, busy in enumerate((0.2, 0.8)):
        said = {"stage": 0, "subtask": subtask, "figures": figures(busy), "state": "finished", "attempt": 0}
        store.say("j1", "subtask", {**said, "environment": "e"})
    store.say("j1", "job_ended", {"state": "FINISHED", "seconds": 10.0, "slots": 2, "error": ""})
    told = store.document("j1")
    assert told is not None
    assert (told["stages"][0]["busy"], told["stages"][0]["busyMean"], told["stages"][0]["busiest"]) == (0.8, 0.5, 1)


def test_memory_is_flat_for_hours_of_a_wide_query_that_is_looked_at() -> None:
    """Two hours of progress, checkpoints and documents of 100 tasks: the second one adds less than a megabyte."""
    store = JobStore()
    store.say("j1", "job_submitted", plan(2, 50, is_query=True))

    def hour(first: int) -> None:
        for second in range(first, first + 3600):
            sums = {str(stage): figures(0.5, 1000.0 * second, float(second)) for stage in range(2)}
            loads = {"0": [0.5, 0.1], "1": [0.9, 0.0]}
            said = {"seconds": float(second), "stages": sums, "loads": loads, "held_back": None, "slow_part": None}
            store.say("j1", "progress", said)
            if second % 10 == 0:
                tasks = {
                    part_name(f"u{stage}", number): {"bytes": 1.0, "store_seconds": 0.1}
                    for stage in range(2)
                    for number in range(50)
                }
                counts = {"completed": second, "failed": 0, "cause": "", "took": 0.5, "number": second}
                store.say("j1", "checkpoint", {"seconds": second, **counts, "tasks": tasks})
            if second % 300 == 0:
                assert store.document("j1") is not None

    hour(1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        hour(3601)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    told = store.document("j1")
    assert told is not None
    assert len(told["checkpoints"]["tasks"]) == PARTS / 100
    assert grown < 1 << 20, grown
