# SPDX-License-Identifier: Apache-2.0
"""The stage that holds a job back, and why, from figures alone."""

from __future__ import annotations

import pytest

from penstock.job.core.bottleneck import Bottleneck, Cause, Load, StageLoad, bounding, holding_back, load_of
from penstock.job.core.loads import JobLoads
from penstock.job.core.result import JobProgress, VertexProgress
from penstock.job.core.states import JobState

IDLE = Load(span=1.0, busy=0.05, rows=100)
PRESSED = Load(span=1.0, busy=0.1, back_pressured=0.8, rows=100)


def busy(operator: str = "map", rows: float = 100, keys: dict[str, float] | None = None) -> Load:
    """A subtask that works all the time, most of it in one operator."""
    return Load(1.0, 0.95, rows=rows, operators={operator: 0.8, "filter": 0.1}, keys=keys or {})


def stages(*loads: tuple[Load, ...]) -> list[StageLoad]:
    """Stages s0, s1 and so on."""
    return [StageLoad(number, f"s{number}", each) for number, each in enumerate(loads)]


def found(*loads: tuple[Load, ...]) -> Bottleneck:
    """The one that is named."""
    named = holding_back(stages(*loads))
    assert named is not None
    return named


@pytest.mark.parametrize("slow", range(5))
def test_the_stage_behind_those_that_wait_is_named(slow: int) -> None:
    """Those in front of it wait for room, those behind it for rows; the first stage has nobody in front of it."""
    loads = [(PRESSED,)] * slow + [(busy(),)] + [(IDLE,)] * (4 - slow)
    named = found(*loads)
    assert (named.stage, named.cause, named.operator) == (slow, Cause.OPERATOR, "map")


def test_nobody_is_named_where_nobody_waits_or_works() -> None:
    """A query that has little to do, and one that has not begun."""
    assert holding_back(stages((IDLE,), (IDLE,))) is None
    assert holding_back(stages((Load(),), (Load(),))) is None
    assert holding_back([]) is None


def test_a_stage_counts_by_its_busiest_subtask() -> None:
    """One slow subtask of four is a mean of a quarter."""
    named = found((PRESSED,), (IDLE, busy(), IDLE, IDLE), (Load(1.0, 0.5),))
    assert (named.stage, named.subtask, named.cause) == (1, 1, Cause.SUBTASK)
    assert "subtask 1 of 4" in named.text


def test_a_subtask_with_more_rows_has_a_hot_key_or_only_more_rows() -> None:
    """A key that has a large share of the rows is named with it."""
    hot = found((PRESSED,), (IDLE, busy(rows=900, keys={"alice": 0.7, "bob": 0.1})))
    assert (hot.cause, hot.keys[0]) == (Cause.KEY, ("alice", 0.7))
    assert "alice (70% of its rows)" in hot.text
    assert found((PRESSED,), (IDLE, busy(rows=900, keys={"alice": 0.1}))).cause is Cause.SKEW


def test_the_parts_that_no_operator_does_are_causes_too() -> None:
    """Reading at the source, writing to the exchange, waiting for the log of rows."""
    assert found((busy("(reading)"),), (IDLE,)).cause is Cause.SOURCE
    assert found((busy("(writing)"),), (IDLE,)).cause is Cause.OUTPUT
    assert found((Load(1.0, 0.1, storing=0.8),), (IDLE,)).cause is Cause.STORAGE


def test_a_load_is_what_came_since_the_last_report() -> None:
    """A task that counts less than before has begun anew; what it waited for is no work."""
    before = {"seconds": 10.0, "idle_seconds": 2.0, "rows_in": 50.0, "operator.map": 5.0}
    now = {"seconds": 12.0, "idle_seconds": 2.5, "storing_seconds": 0.5, "rows_in": 70.0, "operator.map": 5.75}
    load = load_of({**now, "key.alice": 0.4}, before)
    assert (load.span, load.busy, load.storing, load.rows) == (2, 1, 0.5, 20)
    assert load.operators == {"map": 0.75}
    assert load.keys == {"alice": 0.4}
    assert load_of({"seconds": 1.0, "rows_in": 3.0}, before).rows == 3


def test_a_batch_jobs_time_is_bound_by_its_longest_work() -> None:
    """By one long subtask, or by many short ones on few slots."""
    long, short = Load(9.0, 8.0, operators={"sort": 7.0}), Load(2.0, 1.5, operators={"map": 1.0})
    one = bounding(stages((short,) * 4, (long, short)), slots=2)
    assert one is not None
    assert (one.stage, one.subtask, one.operator) == (1, 0, "sort")
    many = bounding(stages((short,) * 20, (long, short)), slots=2)
    assert many is not None
    assert many.stage == 0
    assert bounding(stages((Load(),)), slots=2) is None


def test_a_batch_job_that_runs_is_held_back_by_a_stage_that_runs() -> None:
    """One that has ended may have taken most of the time so far; where nobody works or waits now, nobody is named."""
    worked, works = {"seconds": 60.0, "operator.f": 59.0}, {"seconds": 2.0, "operator.g": 1.8, "idle_seconds": 0.1}
    idle = {"seconds": 2.0, "idle_seconds": 1.99}
    for figures, runs, named in ((works, 1, "count"), (idle, 1, None), (works, 0, None)):
        vertices = (
            VertexProgress(0, "read", 1, 0, 1, worked, (worked,), (False,)),
            VertexProgress(1, "count", 1, runs, 0, figures, (figures,), (bool(runs),)),
        )
        progress = JobProgress("j1", "job", JobState.RUNNING, 62.0, vertices)
        _, told = JobLoads(2).look(progress, 0.0)
        assert (told and told.name) == named


def test_a_task_that_has_just_begun_is_not_in_a_long_call() -> None:
    """It is silent since it runs, and not since the job does; after some seconds it is in a call."""

    def looked(loads: JobLoads, runs: int, now: float) -> str | None:
        vertex = VertexProgress(0, "count", 1, runs, 0, {}, ({},), (bool(runs),))
        _, told = loads.look(JobProgress("j1", "job", JobState.RUNNING, now, (vertex,)), now)
        return told and told.reason

    loads = JobLoads(2)
    assert [looked(loads, runs, now) for runs, now in ((0, 0.0), (0, 9.0), (1, 10.0), (1, 11.0))] == [None] * 4
    assert "a call that has not come back yet" in (looked(loads, 1, 12.0) or "")
