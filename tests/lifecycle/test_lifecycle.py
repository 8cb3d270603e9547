# SPDX-License-Identifier: Apache-2.0
"""The one lifecycle of all objects: what a step does, what it refuses, how a table is printed."""

from __future__ import annotations

import pickle
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import IllegalTransitionError, ProtocolError
from penstock.lifecycle.endpoints import GATE_TABLE, WRITER_TABLE, GateState, WriterState
from penstock.lifecycle.table import HISTORY, Lifecycle, Table, as_markdown, ends_of


class Door(Enum):
    """A state for each thing a door can be."""

    OPEN = "open"
    SHUT = "shut"
    GONE = "gone"


class Hand(Enum):
    """The things that are done to a door."""

    PUSH = "push"
    PULL = "pull"
    BREAK = "break"


DOORS: Table[Door, Hand] = {
    (Door.OPEN, Hand.PUSH): Door.SHUT,
    (Door.OPEN, Hand.PULL): Door.OPEN,
    (Door.SHUT, Hand.PULL): Door.OPEN,
    (Door.SHUT, Hand.BREAK): Door.GONE,
    (Door.GONE, Hand.BREAK): Door.GONE,
}


def test_an_illegal_event_tells_the_story_and_changes_nothing() -> None:
    """The error names object, event, state and the events before, also in another process; the state stays."""
    life = Lifecycle("door 7", DOORS, Door.OPEN)
    for event in (Hand.PULL, Hand.PULL, Hand.PUSH):
        life.move(event)
    with pytest.raises(IllegalTransitionError, match=r"door 7: 'push' in state shut .*so far: pull, push$") as caught:
        life.move(Hand.PUSH)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), ProtocolError)  # noqa: S301  (our own bytes)
    assert life.state is Door.SHUT
    assert str(life) == "door 7 shut (pull, push)"


@given(st.lists(st.sampled_from(list(Hand)), max_size=60))
def test_any_events_keep_to_the_table(events: list[Hand]) -> None:
    """At any event a step is in the table or raises; the story is short and repeats nothing."""
    life = Lifecycle("door", DOORS, Door.OPEN)
    for event in events:
        before = life.state
        assert life.allows(event) is ((before, event) in DOORS)
        if life.allows(event):
            assert life.move(event) is DOORS[before, event] is life.state
            assert life.history[-1] is event
        else:
            with pytest.raises(IllegalTransitionError):
                life.move(event)
            assert life.state is before
        assert len(life.history) <= HISTORY
        assert all(one is not other for one, other in zip(life.history, life.history[1:], strict=False))


def test_a_table_is_printed_with_its_ends() -> None:
    """A row for each state, a column for each event, a dash where there is no step; an end may hear events."""
    assert ends_of(DOORS) == {Door.GONE}
    assert as_markdown(DOORS) == (
        "| state | `push` | `pull` | `break` |\n"
        "|---|---|---|---|\n"
        "| open | shut | open | - |\n"
        "| shut | - | open | gone |\n"
        "| gone (end) | - | - | gone |\n"
    )


def test_the_ends_of_an_exchange_can_always_be_closed() -> None:
    """From each state a writer and a gate can be closed, as often as anybody likes; nothing leads out of closed."""
    assert ends_of(WRITER_TABLE) == {WriterState.CLOSED}
    assert ends_of(GATE_TABLE) == {GateState.CLOSED}
    for state in WriterState:
        assert WriterState.CLOSED in {after for (before, _), after in WRITER_TABLE.items() if before is state}
    for gate_state in GateState:
        assert GateState.CLOSED in {after for (before, _), after in GATE_TABLE.items() if before is gate_state}
