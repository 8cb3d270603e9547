# SPDX-License-Identifier: Apache-2.0
"""A worker is in one state, and has what that state has."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import IllegalTransitionError
from penstock.job.core.events import TaskRegistered
from penstock.job.core.ids import SparkJobId, SparkJobKind, WorkerId, WorkerNumber
from penstock.job.core.slots.workers import WORKER_TABLE, Worker, Workers, WorkerState
from penstock.lifecycle.table import as_markdown
from penstock.shuffle import AttemptId

PAGE = Path(__file__).resolve().parents[2] / "docs" / "execution-states.md"
SPARK_JOB = SparkJobId(SparkJobKind.WORKERS)
WORK = AttemptId("j1", 0, 0, 0)


def question(call: int) -> TaskRegistered:
    """It asks for work."""
    return TaskRegistered(call, WorkerId("j1", WorkerNumber(0), 1), SPARK_JOB, "env", "tcp://h:1")


def test_the_page_has_the_table() -> None:
    """The documentation shows the states as they are."""
    assert as_markdown(WORKER_TABLE) in PAGE.read_text()


@given(st.lists(st.sampled_from(["ask", "assign", "drain", "let_off", "recall"]), max_size=30))
def test_a_worker_never_asks_and_works_at_once(events: list[str]) -> None:
    """At any event it has a question while it is idle, an attempt while it works, else neither."""
    worker = Worker(WorkerNumber(0), SPARK_JOB)
    steps = {
        "ask": lambda: worker.ask(question(7)),
        "assign": lambda: worker.assign(WORK),
        "drain": worker.drain,
        "let_off": lambda: worker.let_off(None),
        "recall": lambda: worker.let_off(8),
    }
    for event in events:
        before = (worker.state, worker.call, worker.attempt)
        try:
            steps[event]()
        except IllegalTransitionError:
            assert (worker.state, worker.call, worker.attempt) == before
        assert (worker.call is not None) == (worker.state is WorkerState.IDLE)
        assert (worker.attempt is not None) == (worker.state in (WorkerState.WORKING, WorkerState.DRAINING))
        assert (worker.identity is None) == (worker.state is WorkerState.MISSING)


def test_an_attempt_that_was_not_told_of_is_taken_back_with_the_question() -> None:
    """The worker still waits for the answer to it, and is idle again; it is drained only while it works."""
    workers = Workers()
    workers.launch(SPARK_JOB, [WorkerNumber(0)], 0)
    workers.register(WorkerNumber(0), question(7))
    (worker,) = workers.idle
    assert workers.assign(worker, WORK) == 7
    workers.let_off(WORK, 7)
    assert workers.idle == [worker]
    assert worker.calls == [7]
    with pytest.raises(IllegalTransitionError):
        worker.drain()
