# SPDX-License-Identifier: Apache-2.0
"""The core of a streaming task: what barriers, ends and the coordinator's words lead to, in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.alignment import CAME_IN_THE_MIDDLE, Decline, Resume, Snapshot
from penstock.checkpoint.barriers import CancelCheckpointMarker, CheckpointBarrier, encode
from penstock.errors import ProtocolError
from penstock.shuffle.actions import Action, CheckpointCompleted, CheckpointGivenUp, StopSource, TriggerCheckpoint
from penstock.shuffle.events import EndOfData, EndOfPartition, EpochEnd, Event, Reattached, TaskEvent
from penstock.stream.conversation import Commit, Conversation, Counted, Decision, EndData, Finish, StopReading

END = EndOfPartition(0, 0, 0)


def barrier(number: int) -> Event:
    """A barrier as a channel gives it."""
    return EpochEnd(encode(CheckpointBarrier(number, 0.0)), 0, 0, 0, 0)


def marker(number: int) -> Event:
    """The event that comes if a task in front took no snapshot."""
    return TaskEvent(encode(CancelCheckpointMarker(number)))


def trigger(number: int) -> TriggerCheckpoint:
    """The coordinator's word."""
    return TriggerCheckpoint(encode(CheckpointBarrier(number, 0.0)))


def kinds(decisions: list[Decision]) -> list[type]:
    """The types of the decisions."""
    return [type(decision) for decision in decisions]


def test_a_source_is_cut_where_it_is_told() -> None:
    """Its snapshot follows the coordinator's word at once."""
    core = Conversation(0)
    assert kinds(core.action_came(trigger(1), 0.0)) == [Snapshot]
    assert core.action_came(CheckpointCompleted(1), 0.0) == [Commit(1)]


def test_the_end_of_data_has_four_words() -> None:
    """A source that has ended goes with a checkpoint that it took part in since, and not with one before."""
    core = Conversation(0)
    core.action_came(trigger(1), 0.0)
    assert core.source_ended() == [EndData(stopped=False)]
    assert core.source_ended() == []
    assert core.action_came(CheckpointCompleted(1), 0.0) == [Commit(1)]
    assert kinds(core.action_came(trigger(2), 0.0)) == [Snapshot]
    assert core.action_came(CheckpointCompleted(2), 0.0) == [Commit(2), Finish()]
    assert core.is_finished


def test_a_task_waits_for_the_ends_of_its_channels() -> None:
    """Its last checkpoint may be complete before its producers have gone."""
    core = Conversation(2)
    assert core.event_came(0, EndOfData(), 0.0) == []
    assert core.event_came(1, EndOfData(stopped=True), 0.0) == [EndData(stopped=True)]
    core.event_came(0, barrier(1), 0.0)
    assert kinds(core.event_came(1, barrier(1), 0.0)) == [Snapshot, Resume]
    assert core.action_came(CheckpointCompleted(1), 0.0) == [Commit(1)]
    assert core.event_came(0, END, 0.0) == []
    assert core.event_came(1, END, 0.0) == [Finish()]


def test_a_task_whose_producers_have_gone_is_told_by_the_coordinator() -> None:
    """It takes its last part then, and goes with that."""
    core = Conversation(1)
    core.event_came(0, EndOfData(), 0.0)
    core.event_came(0, END, 0.0)
    assert kinds(core.action_came(trigger(3), 0.0)) == [Snapshot]
    assert core.action_came(CheckpointCompleted(3), 0.0) == [Commit(3), Finish()]


def test_without_checkpoints_a_task_goes_with_its_channels() -> None:
    """Nothing is waited for."""
    source = Conversation(0, with_checkpoints=False)
    assert source.source_ended() == [EndData(stopped=False), Finish()]
    sink = Conversation(1, with_checkpoints=False)
    assert sink.event_came(0, EndOfData(), 0.0) == [EndData(stopped=False)]
    assert sink.event_came(0, END, 0.0) == [Finish()]


def test_a_source_that_is_told_to_stop_ends() -> None:
    """Once, and only a source."""
    core = Conversation(0)
    assert core.action_came(StopSource(), 0.0) == [StopReading(), EndData(stopped=True)]
    assert core.action_came(StopSource(), 0.0) == []
    assert Conversation(1).action_came(StopSource(), 0.0) == []


def test_a_query_that_goes_on_is_not_at_the_end_of_its_run() -> None:
    """Neither for the sources that are told so, nor for the tasks behind them."""
    caught_up = Conversation(0, available_now=True)
    caught_up.source_ended()
    for core in (Conversation(0), caught_up):
        assert core.has_all
        assert core.action_came(StopSource(goes_on=True), 0.0)[-1] == EndData(stopped=True, goes_on=True)
        assert not core.has_all
    behind = Conversation(2)
    behind.event_came(0, EndOfData(), 0.0)
    assert behind.event_came(1, EndOfData(stopped=True, goes_on=True), 0.0) == [EndData(stopped=True, goes_on=True)]
    assert not behind.has_all


def test_a_checkpoint_is_given_up_by_a_marker_or_by_the_coordinator() -> None:
    """Either way channels that were stopped go on."""
    core = Conversation(2)
    core.event_came(0, barrier(1), 0.0)
    assert kinds(core.event_came(1, marker(1), 0.0)) == [Decline, Resume]
    core.event_came(0, barrier(2), 0.0)
    assert kinds(core.action_came(CheckpointGivenUp(2), 0.0)) == [Decline, Resume]


def test_a_reader_of_logs_declines_the_checkpoint_in_whose_middle_it_came() -> None:
    """Its place among the rows is not known; of later ones all barriers count, and one from before it is over."""
    core = Conversation(2, counted=Counted(4, reads_again=True))
    middle = encode(CheckpointBarrier(5, 0.0))
    assert core.event_came(0, Reattached(encode(CheckpointBarrier(4, 0.0))), 0.0) == []
    assert core.event_came(1, Reattached(middle), 0.0) == [Decline(5, CAME_IN_THE_MIDDLE)]
    assert core.event_came(0, barrier(5), 0.0) == []
    assert core.event_came(0, barrier(6), 0.0) == []
    assert kinds(core.event_came(1, barrier(6), 0.0)) == [Snapshot]


def test_what_can_not_be_is_refused() -> None:
    """Ends that come twice or too early, and barriers and markers in each other's place."""
    core = Conversation(1)
    with pytest.raises(ProtocolError, match="before its data"):
        core.event_came(0, END, 0.0)
    core.event_came(0, EndOfData(), 0.0)
    with pytest.raises(ProtocolError, match="ended twice"):
        core.event_came(0, EndOfData(), 0.0)
    payload = encode(CancelCheckpointMarker(1))
    with pytest.raises(ProtocolError, match="by a marker"):
        core.event_came(0, EpochEnd(payload, 0, 0, 0, 0), 0.0)
    with pytest.raises(ProtocolError, match="by a marker"):
        core.action_came(TriggerCheckpoint(payload), 0.0)
    with pytest.raises(ProtocolError, match="did not end its epoch"):
        core.event_came(0, TaskEvent(encode(CheckpointBarrier(1, 0.0))), 0.0)


@given(st.integers(1, 4), st.booleans(), st.data())
def test_every_task_ends_once_and_all_channels_go_on(channels: int, exactly_once: bool, data: st.DataObject) -> None:
    """Barriers, markers, ends and the coordinator's words may come in any order."""
    core = Conversation(channels, counted=None if exactly_once else Counted(0))
    scripts = []
    for _ in range(channels):
        script = [data.draw(st.sampled_from([barrier(number), marker(number)])) for number in range(1, 4)]
        script.insert(data.draw(st.integers(0, 3)), EndOfData())
        scripts.append([*script, END])
    blocked: set[int] = set()
    found: list[Decision] = []

    def note(decisions: list[Decision]) -> None:
        found.extend(decisions)
        for decision in decisions:
            if isinstance(decision, Resume):
                blocked.difference_update(decision.channels)
        core.check()

    while ready := [number for number in range(channels) if scripts[number] and number not in blocked]:
        channel = data.draw(st.sampled_from(ready))
        event = scripts[channel].pop(0)
        if isinstance(event, EpochEnd) and exactly_once:
            blocked.add(channel)
        note(core.event_came(channel, event, 0.0))
        if data.draw(st.booleans()):
            number = data.draw(st.integers(1, 3))
            words: list[Action] = [CheckpointGivenUp(number), CheckpointCompleted(number)]
            word = data.draw(st.sampled_from(words))
            note(core.action_came(word, 0.0))
    assert not any(scripts)
    assert not blocked
    note(core.action_came(trigger(4), 0.0))
    note(core.action_came(CheckpointCompleted(4), 0.0))
    assert kinds(found).count(EndData) == kinds(found).count(Finish) == 1
    taken = [decision.barrier.checkpoint for decision in found if isinstance(decision, Snapshot)]
    assert len(set(taken)) == len(taken)
    assert taken == sorted(taken)
