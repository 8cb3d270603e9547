# SPDX-License-Identifier: Apache-2.0
"""The headline of batch jobs that were told, phase and stage; and the phases, which add up."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from penstock.job.core.result import JobProgress, SubtaskStatus, VertexProgress
from penstock.job.core.states import JobState
from penstock.job.shell.history import JobMoment
from penstock.web.document import document
from penstock.web.phases import JobTimes, quartiles
from penstock.web.record import JobRecord
from told_jobs import plan

ORDERS, SLOW, JOIN = "parquet /shop/orders/part-0.parquet and 9 more files", "mapInArrow(slow)", "inner join on id"
Figures = dict[str, float]


def task(seconds: float, rows: float = 1000.0, spilled: float = 0.0, **operators: float) -> Figures:
    """One task's figures: what its operators did not take it was idle."""
    works = {f"operator.{_OWN.get(name, name)}": took for name, took in operators.items()}
    counts = {"rows_in": rows, "rows_out": rows, "bytes_in": 8 * rows, "bytes_out": 8 * rows}
    waits = {"idle_seconds": seconds - sum(works.values()), "spilled_bytes": spilled}
    return {**counts, "seconds": seconds, **waits, **works}


_OWN = {"reading": "(reading)", "writing": "(writing)", "slow": SLOW, "join": JOIN, "sort": "sort by amount"}


@dataclass(frozen=True)
class Stage:
    """A stage: from when to when its tasks were at work, and their figures."""

    name: str
    begin: float
    end: float
    tasks: tuple[Figures, ...]


@dataclass(frozen=True)
class Case:
    """A job that is over, and what its headline is to name."""

    title: str
    stages: tuple[Stage, ...]
    phase: str
    stage: int
    words: str
    planned: float = 0.1
    admitted: float = 0.0
    back: float = 0.0
    end: float = field(default=0.1)


def two(begin: float, *second: Figures, name: str = "hash(id) + mapInArrow(slow)") -> tuple[Stage, ...]:
    """Orders that are read in a second, and a stage after that."""
    ends = begin + max(each["seconds"] for each in second)
    return Stage(ORDERS, begin, begin + 1.0, (task(1.0, reading=0.4, writing=0.1),)), Stage(name, begin, ends, second)


CASES = [
    Case("a slow start", two(9.0, task(1.5, slow=1.0)), "start", 0, "went on the start of tasks, before orders was"),
    Case("a slow function", two(0.5, task(9.0, slow=8.0), task(8.0, slow=7.5)), "function", 1, "most of it in mapIn"),
    Case(
        "skew", two(0.5, task(9.0, 9e3, slow=8.5), task(1.0, 1e2, slow=0.4)), "function", 1, "has more rows than the"
    ),
    Case(
        "a spill",
        two(0.5, task(9.0, spilled=2e8, sort=8.0), name="range(p) + sort by amount"),
        "function",
        1,
        "200.0 MB",
    ),
    Case("a slow way back", two(0.5, task(2.0, slow=1.0)), "way back", 1, "the rows of keyBy(id) + slow", back=7.0),
    Case(
        "waiting for slots", two(30.0, task(2.0, slow=1.0)), "slots", 0, "waiting for slots, before o", admitted=29.8
    ),
    Case("a join", two(0.5, task(6.0, join=5.0), name=JOIN), "function", 1, "most of it in inner join on id"),
    Case("a sort", two(0.5, task(6.0, sort=5.0), name="range(p) + sort by amount"), "function", 1, "sort(amount) (f"),
    Case("a tiny job", (Stage(ORDERS, 0.3, 0.35, (task(0.05, 40),)),), "start", 0, "of tasks, before orders"),
    Case(
        "many stages",
        tuple(Stage(f"hash(k{n})", 0.5 + n, 1.5 + n, (task(1.0, writing=0.9 if n == 6 else 0.3),)) for n in range(9)),
        "shuffle",
        6,
        "keyBy(k6) (shuffle): subtask 0 of 1",
    ),
    Case(
        "slow planning", two(0.5, task(1.0, slow=0.8)), "planning", 0, "went on planning, before orders", planned=6.0
    ),
    Case("a slow source", (Stage(ORDERS, 0.5, 9.0, (task(8.5, reading=8.0),)),), "reading", 0, "most of it reading"),
    Case("a slow end", two(0.5, task(1.0, slow=0.8)), "end", 1, "the end, after keyBy(id) + slow", end=9.0),
]


def told(case: Case) -> JobRecord:
    """The record of a job that is over."""
    record = JobRecord("j1")
    stages = [
        {"id": number, "name": stage.name, "parallelism": len(stage.tasks), "uid": ""}
        for number, stage in enumerate(case.stages)
    ]
    edges = [
        {"id": each, "producer": each, "consumer": each + 1, "mode": "blocking"} for each in range(len(stages) - 1)
    ]
    record.take("job_submitted", {**plan(), "stages": stages, "edges": edges, "slots": 4, "planned": case.planned})
    moments = [(case.admitted, "job_admitted", "j1")]
    for number, stage in enumerate(case.stages):
        for subtask in range(len(stage.tasks)):
            key = f"j1/v{number}.{subtask}#0"
            moments += [(stage.begin, "task_deployed", key), (stage.end, "task_finished", f"{key} FINISHED")]
    for seconds, name, ids in sorted(moments):
        record.take("trace", {"seconds": seconds, "name": name, "ids": ids})
    for number, stage in enumerate(case.stages):
        for subtask, figures in enumerate(stage.tasks):
            place = {"stage": number, "subtask": subtask, "state": "finished", "attempt": 0, "environment": "e"}
            record.take("subtask", {**place, "figures": figures})
    seconds = max(stage.end for stage in case.stages) + case.end
    record.take("job_ended", {"state": "FINISHED", "seconds": seconds, "slots": 4, "error": ""})
    if case.back:
        record.take("result_read", {"seconds": case.back})
    return record


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_headline_names_phase_and_stage(case: Case) -> None:
    """And the phases add up to all that the job took, from its planning to its way back."""
    record = told(case)
    shown = document(record)
    found = shown["headline"]
    assert (found["phase"], found["stage"]) == (case.phase, case.stage), (found, shown["phases"])
    assert case.words in found["text"]
    total = case.planned + record.seconds + case.back
    assert sum(seconds for _, seconds, _ in shown["phases"]) == pytest.approx(total, abs=0.01)


def test_a_stage_is_coloured_by_its_share_of_the_jobs_time() -> None:
    """One that was busy all of its short life took little of it; its duration and its tasks' are told."""
    stages = (Stage(ORDERS, 0.5, 0.6, (task(0.1, 40, slow=0.1),)), Stage("hash(a)", 0.5, 9.9, (task(9.4, slow=9.0),)))
    few, slow = document(told(Case("", stages, "", 0, "")))["stages"]
    assert (few["share"], few["busy"], slow["share"]) == (0.01, 1.0, 0.9)
    assert (few["duration"], slow["duration"], slow["quartiles"]) == (0.1, 9.4, [9.4] * 5)
    assert (few["name"], few["whole"]) == ("orders", ORDERS)


def test_quartiles_are_of_the_tasks_that_ran() -> None:
    """The shortest, the quarters and the longest."""
    assert quartiles([{"seconds": float(each)} for each in (1, 2, 3, 4, 9)]) == [1, 2, 3, 4, 9]
    assert quartiles([{}, {"seconds": 0.0}]) is None


def test_time_without_a_task_at_work_is_start_again() -> None:
    """Between two attempts of a job; a stage ends with its last task."""
    times = JobTimes()
    for seconds, name, key in (
        (1.0, "task_deployed", "j1/v0.0#0"),
        (2.0, "task_lost", "j1/v0.0#0"),
        (5.0, "task_deployed", "j1/v0.0#1"),
        (6.0, "task_deployed", "j1/v1.0#1"),
        (7.0, "task_finished", "j1/v0.0#1 FINISHED"),
        (8.0, "unknown", "j1"),
    ):
        times.add(seconds, name, key)
    assert (times.quiet, times.first, times.stages) == (3.0, (1.0, 0), {0: (1.0, 7.0), 1: (6.0, None)})
    assert (times.duration(1, 9.0), times.duration(2, 9.0)) == (3.0, None)


def running(*figures: Figures, deployed: int, waits: str = "", admitted: bool = True) -> str:
    """The headline of a job that runs: orders, and a join after them."""
    record = JobRecord("j1")
    stages = [{"id": n, "name": name, "parallelism": 1, "uid": ""} for n, name in enumerate((ORDERS, JOIN))]
    edge = {"id": 0, "producer": 0, "consumer": 1, "mode": "blocking"}
    record.take("job_submitted", {**plan(), "stages": stages, "edges": [edge]})
    if admitted:
        record.take("trace", {"seconds": 0.0, "name": "job_admitted", "ids": "j1"})
    for number in range(deployed):
        record.take("trace", {"seconds": 2.0, "name": "task_deployed", "ids": f"j1/v{number}.0#0"})
    vertices = tuple(
        VertexProgress(
            n, stages[n]["name"], 1, n < deployed, 0, each, (each,), (n < deployed,), (SubtaskStatus("r"),)
        )
        for n, each in enumerate(figures)
    )
    progress = JobProgress("j1", "job", JobState.RUNNING, 9.0, vertices, waits=waits)
    record.look(JobMoment(progress, (), None, None))
    return str(document(record)["headline"]["text"])


@pytest.mark.parametrize(
    ("deployed", "figures", "words"),
    [
        (0, ({}, {}), "Its tasks start: orders has none at work yet, after 9.0 s."),
        (1, ({}, {}), "Its tasks start: those of orders have told of no row yet."),
        (
            2,
            (task(5.0, reading=0.5), task(5.0, join=0.9)),
            "At work: inner join on id (function), 1,000 rows so far.",
        ),
        (1, (task(5.0, reading=0.2), {}), "At work: orders (reading), 1,000 rows so far."),
    ],
)
def test_a_batch_job_that_runs_is_always_at_something(
    deployed: int, figures: tuple[Figures, ...], words: str
) -> None:
    """Nothing is ever said to hold it back while its tasks start, or while a join works."""
    assert running(*figures, deployed=deployed) == words


def test_a_batch_job_without_slots_says_so() -> None:
    """With the reason, where there is one."""
    assert "waits for slots: 4 are held by q1" in running(
        {}, {}, deployed=0, waits="4 are held by q1", admitted=False
    )
    assert running({}, {}, deployed=0, admitted=False) == "It has just begun, and waits for slots."
