# SPDX-License-Identifier: Apache-2.0
"""The partition lifecycle's table."""

from __future__ import annotations

import pickle
from itertools import product
from pathlib import Path

import pytest

from penstock.errors import IllegalTransitionError, ProtocolError
from penstock.lifecycle.table import as_markdown
from penstock.partition.lifecycle import (
    ENDS,
    PRODUCER_TABLE,
    TABLE,
    PartitionEvent,
    PartitionLifecycle,
    PartitionState,
    ProducerEvent,
    ProducerState,
)
from penstock.partition.stored_cursor import CURSOR_TABLE

PAGE = Path(__file__).parents[2] / "docs" / "partition-lifecycle.md"


def test_page_shows_the_table() -> None:
    """The documentation's table is the code's."""
    assert as_markdown(TABLE) in PAGE.read_text()


def test_ends_stay() -> None:
    """An event after an end changes nothing, so the first answer is the one readers get."""
    for state, event in product(ENDS, PartitionEvent):
        assert TABLE[state, event] is state


def test_every_life_can_end_in_every_way() -> None:
    """From each living state a partition can be released, expire, get lost and fail."""
    for state in set(PartitionState) - ENDS:
        assert {TABLE.get((state, event)) for event in PartitionEvent} >= ENDS
        assert not state.is_end


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ("write write finish consume release", PartitionState.RELEASED),
        ("finish consume", PartitionState.CONSUMED),
        ("write finish consume consume release", PartitionState.RELEASED),
        ("write consume write finish", PartitionState.CONSUMED),
        ("write fail release", PartitionState.FAILED),
        ("write finish expire fail", PartitionState.EXPIRED),
        ("lose write finish", PartitionState.LOST),
    ],
)
def test_lives(events: str, state: PartitionState) -> None:
    """Typical lives end where they should."""
    life = PartitionLifecycle("p")
    for event in events.split():
        life.move(PartitionEvent(event))
    assert life.state is state


def test_illegal_event_tells_the_story_and_changes_nothing() -> None:
    """The error names the partition, the state, the event and the last events; it survives pickling."""
    life = PartitionLifecycle("job-e0.1#5")
    for event in (PartitionEvent.WRITE, PartitionEvent.WRITE, PartitionEvent.FINISH):
        life.move(event)
    with pytest.raises(IllegalTransitionError) as caught:
        life.move(PartitionEvent.WRITE)
    assert isinstance(caught.value, ProtocolError)
    text = str(pickle.loads(pickle.dumps(caught.value)))  # noqa: S301  (our own bytes)
    for part in ("job-e0.1#5", "'write'", "finished", "write, finish"):
        assert part in text
    assert life.state is PartitionState.FINISHED
    assert life.history == (PartitionEvent.WRITE, PartitionEvent.FINISH)


def test_all_pairs_missing_from_the_table_are_refused() -> None:
    """No pair outside of the table does anything."""
    for state, event in set(product(PartitionState, PartitionEvent)) - set(TABLE):
        life = PartitionLifecycle("p")
        life.state = state
        with pytest.raises(IllegalTransitionError):
            life.move(event)
        assert life.state is state


def test_page_shows_the_making() -> None:
    """So is the table of its making."""
    assert as_markdown(PRODUCER_TABLE) in PAGE.read_text()


def test_page_shows_a_reader() -> None:
    """And the table of one who reads a stored partition."""
    assert as_markdown(CURSOR_TABLE) in PAGE.read_text()


def test_a_producer_may_always_leave() -> None:
    """It may in each state, and twice; only one that has not finished leaves a ruin."""
    for state in ProducerState:
        after = PRODUCER_TABLE[state, ProducerEvent.LEAVE]
        assert PRODUCER_TABLE[after, ProducerEvent.LEAVE] is after
        assert after.is_finished == (after is not ProducerState.ABANDONED)
