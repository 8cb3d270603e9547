# SPDX-License-Identifier: Apache-2.0
"""The states of an attempt: the table, its page, and illegal steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import IllegalTransitionError
from penstock.graph.execution_state import (
    TERMINAL_STATES,
    TRANSITIONS,
    ExecutionEvent,
    ExecutionLifecycle,
    ExecutionState,
)
from penstock.lifecycle.table import as_markdown

PAGE = Path(__file__).parents[2] / "docs" / "execution-states.md"


def test_the_page_shows_the_table() -> None:
    """docs/execution-states.md holds the table as the code has it."""
    assert as_markdown(TRANSITIONS) in PAGE.read_text(encoding="utf-8")


def test_the_usual_life() -> None:
    """Created to finished, in Flink's order."""
    life = ExecutionLifecycle("v0.0")
    event = ExecutionEvent
    states = [life.move(e).value for e in (event.SCHEDULE, event.DEPLOY, event.INITIALIZE, event.RUN, event.FINISH)]
    assert states == ["SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING", "FINISHED"]


def test_an_illegal_step_tells_the_story() -> None:
    """An event that the state does not allow raises with the name and the events so far, and changes nothing."""
    life = ExecutionLifecycle("job/v3.1#7")
    life.move(ExecutionEvent.SCHEDULE)
    with pytest.raises(IllegalTransitionError, match=r"job/v3.1#7: 'finish' in state SCHEDULED .*so far: schedule$"):
        life.move(ExecutionEvent.FINISH)
    assert life.state is ExecutionState.SCHEDULED


def test_nothing_follows_an_end() -> None:
    """Terminal states have no step, every other state can fail or be cancelled and reaches an end."""
    for state in ExecutionState:
        steps = {following for (start, _), following in TRANSITIONS.items() if start is state}
        assert bool(steps) is (state not in TERMINAL_STATES)
        if state not in TERMINAL_STATES:
            assert (state, ExecutionEvent.CANCEL) in TRANSITIONS
            assert TRANSITIONS[state, ExecutionEvent.FAIL] in TERMINAL_STATES


@given(st.lists(st.sampled_from(list(ExecutionEvent)), max_size=30))
def test_any_events_keep_to_the_table(events: list[ExecutionEvent]) -> None:
    """In any order of events a step is in the table or raises; an end is never left."""
    life = ExecutionLifecycle("x")
    for event in events:
        before = life.state
        try:
            after = life.move(event)
        except IllegalTransitionError:
            assert (before, event) not in TRANSITIONS
            assert life.state is before
        else:
            assert TRANSITIONS[before, event] is after
            assert before not in TERMINAL_STATES
