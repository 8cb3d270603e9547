# SPDX-License-Identifier: Apache-2.0
"""At-least-once counting: nobody is stopped, and every checkpoint that can complete does."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barrier_streams import END, ROW, Item, TaskModel, barrier
from effort import examples
from penstock.checkpoint.alignment import Decline, Snapshot
from penstock.checkpoint.barriers import Alignment
from penstock.checkpoint.tracking import PENDING_LIMIT, CountedBarriers
from penstock.errors import ProtocolError


def _barrier(number: int):
    return barrier(number, Alignment.AT_LEAST_ONCE)


def test_the_last_barrier_takes_the_snapshot() -> None:
    """Two checkpoints may be under way; each is taken at its last barrier."""
    core = CountedBarriers(range(2))
    assert core.barrier_came(0, _barrier(1), 1.0) == []
    assert core.barrier_came(0, _barrier(2), 2.0) == []
    assert core.barrier_came(1, _barrier(1), 3.0) == [Snapshot(_barrier(1), 1.0)]
    assert core.barrier_came(1, _barrier(2), 4.0) == [Snapshot(_barrier(2), 2.0)]


def test_a_checkpoint_that_completes_drops_the_older_ones() -> None:
    """A skipped barrier leaves its checkpoint open only until a newer one is whole."""
    core = CountedBarriers(range(2))
    core.barrier_came(0, _barrier(1), 1.0)
    core.barrier_came(0, _barrier(2), 1.0)
    assert core.barrier_came(1, _barrier(2), 2.0) == [Snapshot(_barrier(2), 1.0)]
    assert core.barrier_came(1, _barrier(1), 3.0) == []


def test_a_marker_gives_up_its_checkpoint_and_those_before() -> None:
    """Each is declined once; barriers that come later find nothing."""
    core = CountedBarriers(range(2))
    core.barrier_came(0, _barrier(1), 1.0)
    core.barrier_came(0, _barrier(2), 1.0)
    assert [action.checkpoint for action in core.marker_came(3) if isinstance(action, Decline)] == [1, 2, 3]
    assert core.marker_came(3) == []
    assert core.barrier_came(1, _barrier(2), 2.0) == []


def test_an_ended_channel_completes_the_newest_that_it_can() -> None:
    """The end of a channel is a barrier of every checkpoint."""
    core = CountedBarriers(range(2))
    core.barrier_came(0, _barrier(1), 1.0)
    core.barrier_came(0, _barrier(2), 2.0)
    assert core.channel_ended(1) == [Snapshot(_barrier(2), 2.0)]


def test_the_coordinators_word_waits_for_the_ends_of_channels() -> None:
    """A task that is told before its channels have ended takes the snapshot when they have."""
    core = CountedBarriers(range(1))
    assert core.triggered(_barrier(1), 1.0) == []
    assert core.channel_ended(0) == [Snapshot(_barrier(1), 1.0)]
    with pytest.raises(ProtocolError, match="channel 0"):
        core.channel_ended(0)


def test_what_is_counted_is_bounded() -> None:
    """A channel that gets no barriers does not let the count grow without end."""
    core = CountedBarriers(range(2))
    for number in range(1, PENDING_LIMIT * 3):
        core.barrier_came(0, _barrier(number), 1.0)
        core.check()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=6), st.randoms())
def test_random_interleavings_take_every_checkpoint_and_lose_no_row(rows: list[list[int]], random) -> None:
    """Each checkpoint is taken, and holds at least the rows in front of its barriers."""
    channels: list[list[Item]] = []
    for counts in rows:
        items: list[Item] = []
        for number, count in enumerate(counts, start=1):
            items += [*[ROW] * count, _barrier(number)]
        channels.append([*items, END])
    model = TaskModel(CountedBarriers(range(len(channels))), [deque(items) for items in channels])
    while any(model.channels):
        assert len(model.ready) == sum(1 for items in model.channels if items), "a channel was stopped"
        model.step(random.choice(model.ready))
    assert model.taken
    assert [taken.checkpoint for taken in model.taken][-1] == 4
    for taken in model.taken:
        before = [sum(counts[: taken.checkpoint]) for counts in rows]
        assert all(held >= wanted for held, wanted in zip(taken.rows, before, strict=True))
