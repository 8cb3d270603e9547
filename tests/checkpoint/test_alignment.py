# SPDX-License-Identifier: Apache-2.0
"""Exactly-once alignment: Flink's scenarios by name, and random interleavings against a model."""

from __future__ import annotations

from collections import deque
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barrier_streams import END, ROW, Item, TaskModel, barrier
from effort import examples
from penstock.checkpoint.alignment import AlignedBarriers, Decline, Resume, Snapshot
from penstock.checkpoint.barriers import Alignment, CancelCheckpointMarker
from penstock.errors import ProtocolError


def _core(channels: int) -> AlignedBarriers:
    return AlignedBarriers(range(channels))


def test_one_channel_takes_its_snapshot_at_the_barrier() -> None:
    """A single channel is never stopped for longer than the snapshot."""
    assert _core(1).barrier_came(0, barrier(1), 5.0) == [Snapshot(barrier(1), 5.0), Resume((0,))]


def test_all_channels_must_have_their_barrier() -> None:
    """The first barriers stop their channels, the last one lets all go on."""
    core = _core(3)
    assert core.barrier_came(1, barrier(1), 1.0) == []
    assert core.barrier_came(0, barrier(1), 2.0) == []
    assert core.blocked == {0, 1}
    assert core.barrier_came(2, barrier(1), 3.0) == [Snapshot(barrier(1), 1.0), Resume((0, 1, 2))]
    assert core.aligning is None


def test_a_newer_barrier_gives_the_older_checkpoint_up() -> None:
    """The channels stopped for the older one go on; the one with the newer barrier stays stopped."""
    core = _core(2)
    core.barrier_came(0, barrier(1), 1.0)
    actions = core.barrier_came(1, barrier(2), 2.0)
    assert actions == [Decline(1, "a newer checkpoint came"), Resume((0,))]
    assert core.blocked == {1}


def test_a_late_barrier_is_let_by() -> None:
    """A barrier of a checkpoint that is over only lets its channel go on."""
    core = _core(2)
    core.barrier_came(0, barrier(3), 1.0)
    assert core.barrier_came(1, barrier(2), 2.0) == [Resume((1,))]
    assert core.barrier_came(1, barrier(3), 3.0)[0] == Snapshot(barrier(3), 1.0)
    assert core.marker_came(3) == []


def test_a_marker_before_any_barrier() -> None:
    """The checkpoint is given up at once, and its barriers are let by when they come."""
    core = _core(2)
    assert core.marker_came(4) == [Decline(4, "a task upstream of this one took no snapshot")]
    assert core.barrier_came(0, barrier(4), 1.0) == [Resume((0,))]


def test_a_marker_in_mid_alignment_lets_all_go_on() -> None:
    """Nobody stays stopped for a checkpoint that will not be."""
    core = _core(3)
    core.barrier_came(0, barrier(1), 1.0)
    core.barrier_came(2, barrier(1), 1.0)
    assert core.marker_came(1) == [Decline(1, "a task upstream of this one took no snapshot"), Resume((0, 2))]
    assert core.blocked == frozenset()


def test_a_marker_of_a_newer_checkpoint_gives_both_up() -> None:
    """A checkpoint that was being aligned can't complete any more if a newer one was cancelled already."""
    core = _core(2)
    core.barrier_came(0, barrier(1), 1.0)
    assert [type(action) for action in core.marker_came(2)] == [Decline, Resume, Decline]


def test_a_marker_of_an_older_checkpoint_changes_nothing() -> None:
    """A late marker is dropped."""
    core = _core(2)
    core.barrier_came(0, barrier(2), 1.0)
    assert core.marker_came(1) == []
    assert core.blocked == {0}


def test_an_ended_channel_counts_as_aligned() -> None:
    """The end of the last channel without a barrier completes the alignment."""
    core = _core(2)
    core.barrier_came(0, barrier(1), 1.0)
    assert core.channel_ended(1) == [Snapshot(barrier(1), 1.0), Resume((0,))]


def test_ends_before_the_barrier_are_remembered() -> None:
    """Later checkpoints need the open channels only."""
    core = _core(3)
    core.channel_ended(0)
    core.channel_ended(2)
    assert core.barrier_came(1, barrier(1), 1.0)[0] == Snapshot(barrier(1), 1.0)


def test_a_task_without_open_channels_is_told() -> None:
    """Sources, and tasks whose input has ended, take their snapshot at the coordinator's word, once."""
    core = AlignedBarriers(())
    assert core.triggered(barrier(1), 2.0) == [Snapshot(barrier(1), 2.0)]
    assert core.triggered(barrier(1), 3.0) == []


def test_the_coordinators_word_waits_for_the_ends_of_channels() -> None:
    """If the word is faster than the last ends, it is not lost."""
    core = _core(2)
    core.channel_ended(0)
    assert core.triggered(barrier(7), 1.0) == []
    assert core.channel_ended(1) == [Snapshot(barrier(7), 1.0)]


@pytest.mark.parametrize("moment", ["again", "ended", "end of blocked", "end twice"])
def test_what_no_sender_may_do(moment: str) -> None:
    """A stopped channel gives nothing, an ended one neither."""
    core = _core(2)
    core.barrier_came(0, barrier(1), 1.0)
    if moment in ("ended", "end twice"):
        core = _core(2)
        core.channel_ended(0)
    ends = moment.startswith("end ")
    fault = partial(core.channel_ended, 0) if ends else partial(core.barrier_came, 0, barrier(2), 2.0)
    with pytest.raises(ProtocolError, match="channel 0"):
        fault()


@st.composite
def _inputs(draw: st.DrawFn) -> tuple[list[list[Item]], int]:
    """Up to six channels, each with the same checkpoints among its rows; some cancelled, some channels end early."""
    count = draw(st.integers(1, 6))
    checkpoints = draw(st.integers(1, 5))
    cancelled = draw(st.sets(st.integers(1, checkpoints)))
    channels: list[list[Item]] = []
    for _ in range(count):
        items: list[Item] = []
        lifetime = draw(st.integers(0, checkpoints))
        for number in range(1, checkpoints + 1):
            items += [ROW] * draw(st.integers(0, 3))
            if number > lifetime:
                break
            skips = number in cancelled and draw(st.booleans())
            items.append(CancelCheckpointMarker(number) if skips else barrier(number, Alignment.ALIGNED))
        items.append(END)
        channels.append(items)
    return channels, checkpoints


@settings(max_examples=examples(400), deadline=None)
@given(_inputs(), st.randoms(use_true_random=False))
def test_random_interleavings_cut_every_channel_at_its_barrier(inputs: tuple[list[list[Item]], int], random) -> None:
    """In any order there is no deadlock, nobody stays stopped, and a snapshot holds the rows before each barrier."""
    channels, checkpoints = inputs
    model = TaskModel(_core(len(channels)), [deque(items) for items in channels])
    while any(model.channels):
        assert model.ready, "all channels with rows are stopped, and nothing resumes them"
        model.step(random.choice(model.ready))
    assert not model.blocked
    numbers = [taken.checkpoint for taken in model.taken]
    assert numbers == sorted(set(numbers)), "a snapshot twice, or out of order"
    assert not set(numbers) & set(model.aborted)
    for taken in model.taken:
        assert taken.rows == tuple(_rows_before(items, taken.checkpoint) for items in channels)
    whole = {n for n in range(1, checkpoints + 1) if any(barrier(n) in items for items in channels)}
    markers = {i.checkpoint for items in channels for i in items if isinstance(i, CancelCheckpointMarker)}
    assert whole - markers <= set(numbers), "a checkpoint that nobody cancelled was not taken"


def _rows_before(items: list[Item], checkpoint: int) -> int:
    """The rows of a channel before its barrier of a checkpoint; all of them where it ended before."""
    cut = items.index(barrier(checkpoint)) if barrier(checkpoint) in items else len(items)
    return sum(1 for item in items[:cut] if item == ROW)
