# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's figures of tasks: the newest of each subtask, in bounded memory."""

from __future__ import annotations

import gc
import tracemalloc

from effort import THOROUGH
from penstock.job.shell.figures import NAMES, TaskFigures
from penstock.shuffle import AttemptId

TASKS = 500
MINUTE = 4
"""Heartbeats of a minute: each is so late that a mark is made."""
MINUTES = 60 if THOROUGH else 10


def report(figures: TaskFigures, attempt: AttemptId, seconds: float) -> None:
    """A report of twenty figures of a task that has run so long, and worked for a quarter of that."""
    times = {"seconds": seconds, "idle_seconds": seconds / 2, "back_pressured_seconds": seconds / 4}
    figures.report(attempt, {**times, **{f"service.figure_{number}": seconds + number for number in range(17)}})


def heard(figures: TaskFigures) -> list[AttemptId]:
    """The attempts that it has."""
    return [attempt for attempt, _, _ in figures]


def test_memory_does_not_grow_with_time() -> None:
    """Heartbeats of 500 tasks, each restarted every five minutes, hold what the first five minutes have held."""
    figures, sizes = TaskFigures(), []
    figures.open_job("j1")
    tracemalloc.start()
    try:
        for minute in range(MINUTES):
            for beat in range(MINUTE):
                seconds = 60.0 * (minute % 5 + beat / MINUTE)
                for subtask in range(TASKS):
                    report(figures, AttemptId("j1", subtask % 5, subtask, minute // 5), seconds)
            if minute in (4, MINUTES - 1):
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(heard(figures)) == TASKS
    assert sizes[1] < 1.1 * sizes[0]
    assert sizes[1] < 8 << 20


def test_a_job_that_is_over_is_forgotten_for_good() -> None:
    """A heartbeat that was under way changes nothing, nor does one of a job that was never heard of."""
    figures, attempt = TaskFigures(), AttemptId("j1", 0, 0, 0)
    report(figures, attempt, 1)
    assert heard(figures) == []
    figures.open_job("j1")
    report(figures, attempt, 1)
    assert heard(figures) == [attempt]
    figures.forget_job("j1")
    report(figures, attempt, 2)
    assert heard(figures) == []


def test_the_newest_attempt_counts() -> None:
    """An older one's report, which comes late, changes nothing, and its own figures are gone."""
    figures, old, new = TaskFigures(), AttemptId("j1", 0, 0, 0), AttemptId("j1", 0, 0, 1)
    figures.open_job("j1")
    report(figures, old, 50)
    report(figures, new, 1)
    report(figures, old, 51)
    assert heard(figures) == [new]
    assert figures.of(new)["seconds"] == 1
    assert figures.of(old) == {}


def test_a_worker_that_waits_for_work_is_no_task() -> None:
    """It goes by its own name, and may still have the figures of its last attempt; one that says nothing is none."""
    figures = TaskFigures()
    figures.open_job("j1")
    report(figures, AttemptId("j1", -1, 0, 0), 5)
    figures.report(AttemptId("j1", 0, 0, 0), {})
    assert heard(figures) == []


def test_shares_are_of_the_last_seconds() -> None:
    """A task that was idle for a long time and works now is busy."""
    figures, attempt = TaskFigures(), AttemptId("j1", 0, 0, 0)
    figures.open_job("j1")
    for second in range(1, 100):
        figures.report(attempt, {"seconds": second, "idle_seconds": second, "back_pressured_seconds": 0})
    for second in range(100, 112):
        figures.report(attempt, {"seconds": second, "idle_seconds": 99, "back_pressured_seconds": 0})
    ((_, _, shares),) = figures
    assert shares["busy"] == 1
    assert shares["idle"] == 0


def test_a_task_that_tells_too_much_is_cut() -> None:
    """So many figures of one task are kept, the first ones."""
    figures, attempt = TaskFigures(), AttemptId("j1", 0, 0, 0)
    figures.open_job("j1")
    figures.report(attempt, {f"service.{number}": 1.0 for number in range(NAMES + 50)})
    assert list(figures.of(attempt)) == [f"service.{number}" for number in range(NAMES)]


def test_the_last_figures_of_a_task_keep_what_its_host_counted() -> None:
    """A task does not know what came for it from where; its host told that before."""
    figures, attempt = TaskFigures(), AttemptId("j1", 0, 0, 0)
    figures.open_job("j1")
    figures.report(attempt, {"rows_in": 1.0, "bytes_in_remote": 5.0})
    figures.finish(attempt, {"rows_in": 9.0})
    assert figures.of(attempt) == {"rows_in": 9.0, "bytes_in_remote": 5.0}
