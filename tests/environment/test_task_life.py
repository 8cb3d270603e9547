# SPDX-License-Identifier: Apache-2.0
"""An attached task is in one state: what is lost with it, and whether anybody needs what it still wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.environment.tasks.attached import AttachedTask
from penstock.environment.tasks.task_life import TASK_TABLE, TaskState
from penstock.errors import IllegalTransitionError
from penstock.lifecycle.table import as_markdown
from penstock.link.commands import CancelTask
from penstock.shuffle import AttemptId

PAGE = Path(__file__).resolve().parents[2] / "docs" / "execution-states.md"
WORKER = AttemptId("job", -2, 0, 7)
WORK = AttemptId("job", 1, 0, 0)


class Silent:
    """A line and holdings that do nothing."""

    def cancel(self, cause: str, *, is_unwanted: bool) -> None:
        """Nobody hears it."""

    def drop_all(self) -> None:
        """Nothing was held."""


def task() -> AttachedTask:
    """One that has just attached."""
    nothing: Any = Silent()
    return AttachedTask(nothing, nothing, 1)


def test_the_page_has_the_table() -> None:
    """The documentation shows the states as they are."""
    assert as_markdown(TASK_TABLE) in PAGE.read_text()


def test_a_worker_is_lost_with_what_it_works_on_and_between_two_with_its_own_name() -> None:
    """A worker that has said its last word is not lost."""
    worker = task()
    assert task().end("gone") is None
    worker.begin(WORKER)
    worker.deployed(WORK)
    worker.finished()
    assert worker.state is TaskState.BETWEEN
    assert worker.end("gone") == WORKER
    for deployed, lost in ((WORK, WORK), (None, None)):
        worker = task()
        worker.begin(WORKER)
        worker.deployed(deployed)
        assert worker.end("gone") == lost


def test_a_bound_task_that_has_reported_is_not_lost() -> None:
    """It works on the attempt that it is named by, and asks for no other one; a late cancel changes nothing."""
    bound = task()
    bound.begin(WORK)
    bound.deployed(WORK)
    bound.finished()
    bound.cancel(CancelTask(WORK, "the job is over"))
    assert bound.state is TaskState.REPORTED
    assert bound.end("gone") is None


def test_a_cancel_holds_until_the_next_question() -> None:
    """Also if the deployment comes after it: nobody needs what the task still wants to write."""
    worker = task()
    worker.begin(WORKER)
    worker.cancel(CancelTask(WORK, "stop"))
    worker.deployed(WORK)
    assert worker.state.is_stopped
    assert worker.works_on(WORK)
    worker.finished()
    assert worker.state.is_stopped
    worker.begin(WORKER)
    assert not worker.state.is_stopped


def test_what_is_gone_stays_gone_and_who_has_not_asked_gets_nothing() -> None:
    """An answer that comes after the end gives the task no attempt; one that nobody waits for is an error."""
    worker = task()
    worker.begin(WORKER)
    worker.end("gone")
    worker.deployed(WORK)
    assert worker.attempt == WORKER
    assert worker.is_gone
    with pytest.raises(IllegalTransitionError, match="'deploy' in state ATTACHED"):
        task().deployed(WORK)
