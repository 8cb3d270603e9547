# SPDX-License-Identifier: Apache-2.0
"""Barriers that overtake rows: Flink's scenarios by name, and random interleavings: each row has one owner."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.checkpoint.alignment import Action, Decline, Resume, Snapshot
from penstock.checkpoint.barriers import Alignment, CancelCheckpointMarker, CheckpointBarrier
from penstock.checkpoint.unaligned import ALWAYS, RowsInFlight, UnalignedBarriers

UPSTREAM = "a task upstream of this one took no snapshot"


def unaligned(number: int) -> CheckpointBarrier:
    """A barrier that overtakes."""
    return CheckpointBarrier(number, float(number), Alignment.UNALIGNED)


def timeoutable(number: int, timeout: float = 10.0) -> CheckpointBarrier:
    """One that is aligned for so long."""
    return CheckpointBarrier(number, float(number), Alignment.ALIGNED, timeout)


def turned(number: int, timeout: float = 10.0) -> CheckpointBarrier:
    """The same when its time has passed."""
    return replace(timeoutable(number, timeout), alignment=Alignment.UNALIGNED)


def aligned(number: int) -> CheckpointBarrier:
    """One that stays aligned."""
    return CheckpointBarrier(number, float(number))


def _core(channels: int) -> UnalignedBarriers:
    return UnalignedBarriers(range(channels))


def test_the_snapshot_is_taken_at_the_first_barrier() -> None:
    """Nobody is stopped, and the barriers of the other channels change nothing."""
    core = _core(3)
    assert core.announced(unaligned(1), 5.0) == [Snapshot(unaligned(1), 5.0)]
    assert core.announced(unaligned(1), 6.0) == []
    for channel in range(3):
        assert core.barrier_came(channel, unaligned(1), 7.0) == []
    assert core.announced(unaligned(2), 8.0) == [Snapshot(unaligned(2), 8.0)]


def test_an_obsolete_barrier_after_a_newer_one() -> None:
    """It is let by, and an aligned one lets its channel go on (FLINK-21104)."""
    core = _core(2)
    core.announced(unaligned(3), 1.0)
    assert core.announced(unaligned(2), 2.0) == []
    assert core.barrier_came(0, aligned(2), 3.0) == [Resume((0,))]
    assert core.barrier_came(0, unaligned(2), 4.0) == []


def test_an_aligned_barrier_that_comes_late_lets_its_channel_go_on() -> None:
    """Its checkpoint turned unaligned meanwhile (FLINK-21104)."""
    core = _core(2)
    assert core.barrier_came(0, timeoutable(1), 0.0) == []
    assert core.time_passed(10.0) == [Snapshot(turned(1), 0.0), Resume((0,))]
    assert core.barrier_came(1, timeoutable(1), 11.0) == [Resume((1,))]


def test_a_newer_barrier_gives_an_aligning_checkpoint_up() -> None:
    """The channel that it had stopped goes on."""
    core = _core(2)
    core.barrier_came(0, timeoutable(1), 0.0)
    assert core.announced(unaligned(2), 1.0) == [
        Decline(1, "a newer checkpoint came"),
        Resume((0,)),
        Snapshot(unaligned(2), 1.0),
    ]


def test_abort_before_the_first_barrier() -> None:
    """The barriers of a checkpoint that was cancelled take no snapshot."""
    core = _core(2)
    assert core.marker_came(4) == [Decline(4, UPSTREAM)]
    assert core.announced(unaligned(4), 1.0) == []
    assert core.barrier_came(1, timeoutable(4), 2.0) == [Resume((1,))]


def test_abort_after_the_snapshot() -> None:
    """It was taken and passed on: there is nothing left to give up here."""
    core = _core(2)
    core.announced(unaligned(4), 1.0)
    assert core.marker_came(4) == []


def test_time_out_of_the_first_barrier() -> None:
    """It had been on its way for too long when it was handled: no alignment at all."""
    core = _core(2)
    assert core.barrier_came(0, timeoutable(1, timeout=0.0), 5.0) == [
        Snapshot(turned(1, 0.0), 5.0),
        Resume((0,)),
    ]


def test_time_out_of_an_announcement() -> None:
    """A barrier waits behind rows that nobody takes: it turns unaligned where it waits."""
    core = _core(2)
    assert core.announced(timeoutable(1), 5.0) == []
    assert core.deadline == 15.0
    assert core.time_passed(14.9) == []
    assert core.time_passed(15.0) == [Snapshot(turned(1), 5.0)]
    assert core.deadline is None
    assert core.barrier_came(0, timeoutable(1), 16.0) == [Resume((0,))]


def test_time_out_after_the_last_barrier() -> None:
    """The alignment was done: nothing happens."""
    core = _core(2)
    core.announced(timeoutable(1), 0.0)
    assert core.barrier_came(0, timeoutable(1), 1.0) == []
    assert core.barrier_came(1, timeoutable(1), 2.0) == [Snapshot(timeoutable(1), 0.0), Resume((0, 1))]
    assert core.time_passed(20.0) == []


def test_time_out_after_an_abort() -> None:
    """A cancelled barrier does not turn unaligned."""
    core = _core(2)
    core.barrier_came(0, timeoutable(1), 1.0)
    assert core.marker_came(1) == [Decline(1, UPSTREAM), Resume((0,))]
    assert core.deadline is None
    assert core.time_passed(99.0) == []


def test_the_producer_turns_first() -> None:
    """An unaligned barrier comes while the other channels' are being aligned: all that was stopped goes on."""
    core = _core(3)
    core.barrier_came(0, timeoutable(1), 1.0)
    assert core.announced(turned(1), 2.0) == [Snapshot(turned(1), 1.0), Resume((0,))]


def test_an_announcement_and_then_the_end_of_the_channel() -> None:
    """An announced barrier is handled before the end comes (FLINK-24068)."""
    core = _core(2)
    core.announced(timeoutable(1), 1.0)
    assert core.barrier_came(0, timeoutable(1), 2.0) == []
    assert core.channel_ended(1) == [Snapshot(timeoutable(1), 1.0), Resume((0,))]


def test_a_savepoint_among_unaligned_checkpoints() -> None:
    """Aligned, between two that overtake."""
    core = _core(2)
    assert len(core.announced(unaligned(1), 1.0)) == 1
    assert core.barrier_came(0, aligned(2), 2.0) == []
    assert core.barrier_came(1, aligned(2), 3.0) == [Snapshot(aligned(2), 2.0), Resume((0, 1))]
    assert len(core.announced(unaligned(3), 4.0)) == 1


def test_a_task_that_is_told_does_not_wait_for_the_ends_of_its_channels() -> None:
    """Its producers have ended; what they left is in flight."""
    core = _core(2)
    assert core.triggered(unaligned(1), 1.0) == [Snapshot(unaligned(1), 1.0)]
    assert core.triggered(unaligned(1), 2.0) == []


# --- rows in flight


def test_rows_in_front_of_a_mark_are_the_tasks() -> None:
    """The rows that wait, and those that come, are; those that were taken, and those behind the mark, are not."""
    rows: RowsInFlight[str, str] = RowsInFlight(2)
    for name in ("a", "b", "c"):
        rows.rows_came(0, name)
    assert rows.take().rows == "a"
    rows.begin(1)
    rows.event_came(0, "barrier", 1)
    rows.rows_came(0, "d")
    rows.rows_came(1, "x")
    assert rows.saved() is None
    assert rows.missing == {1}
    rows.event_came(1, "barrier", 1)
    assert rows.saved() == [(0, "b"), (0, "c"), (1, "x")]
    assert rows.saved() is None


def test_of_rows_that_are_taken_in_part_the_rest_is_saved() -> None:
    """A batch was cut where a step was full."""
    rows: RowsInFlight[str, str] = RowsInFlight(1)
    rows.rows_came(0, "abc")
    rows.keep("bc")
    rows.event_came(0, "barrier", 1)
    rows.begin(1)
    assert rows.saved() == [(0, "bc")]


def test_the_end_of_a_channel_is_every_mark() -> None:
    """All rows of a producer that has ended are the task's."""
    rows: RowsInFlight[str, str] = RowsInFlight(1)
    rows.rows_came(0, "a")
    rows.event_came(0, "end", ALWAYS)
    rows.begin(7)
    assert rows.saved() == [(0, "a")]
    rows.begin(8)
    assert rows.saved() == [(0, "a")]


def test_a_second_snapshot_takes_what_the_first_had_again() -> None:
    """A newer checkpoint begins while rows of the older one's are still coming: they are in both."""
    rows: RowsInFlight[str, str] = RowsInFlight(1)
    rows.begin(1)
    rows.rows_came(0, "a")
    rows.begin(2)
    rows.event_came(0, "barrier", 1)
    assert rows.saved() is None
    rows.rows_came(0, "b")
    rows.event_came(0, "barrier", 2)
    assert rows.saved() == [(0, "a"), (0, "b")]


def test_what_is_given_up_keeps_no_rows() -> None:
    """A snapshot that is dropped has no rows, and rows that come later are nobody's but the task's."""
    rows: RowsInFlight[str, str] = RowsInFlight(1)
    rows.rows_came(0, "a")
    rows.begin(1)
    rows.drop()
    rows.rows_came(0, "b")
    assert rows.saved() is None
    assert not rows.missing


# --- a model: producers with queues, a wire, and one task

Sent = str | CheckpointBarrier | CancelCheckpointMarker


@dataclass
class Channel:
    """One producer's channel: what it gave out, what is queued, what is on the wire, and what each snapshot has."""

    number: int
    queue: deque[Sent] = field(default_factory=deque)
    wire: deque[Sent] = field(default_factory=deque)
    written: list[str] = field(default_factory=list)
    at_barrier: dict[int, int] = field(default_factory=dict)
    """The number of rows that were written in front of a checkpoint's barrier."""
    overtaken: dict[int, list[str]] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    is_blocked: bool = False
    has_ended: bool = False

    def takes_part(self, checkpoint: int) -> bool:
        """Tell whether its producer took a snapshot, or had ended before."""
        has_gone = (
            self.has_ended and max(self.at_barrier, default=0) < checkpoint and checkpoint not in self.cancelled
        )
        return checkpoint in self.at_barrier or has_gone

    def write(self) -> None:
        """One more row."""
        self.written.append(f"{self.number}.{len(self.written)}")
        self.queue.append(self.written[-1])

    def send(self, barrier: CheckpointBarrier) -> None:
        """A barrier, ahead of the queue where it overtakes."""
        self.at_barrier[barrier.checkpoint] = len(self.written)
        if barrier.alignment is Alignment.UNALIGNED:
            self.overtaken[barrier.checkpoint] = [item for item in self.queue if isinstance(item, str)]
            self.queue.appendleft(barrier)
        else:
            self.overtaken[barrier.checkpoint] = []
            self.queue.append(barrier)

    def move(self) -> None:
        """One thing from the queue to the wire; an aligned barrier stops the channel behind it."""
        if self.queue and not self.is_blocked:
            item = self.queue.popleft()
            self.wire.append(item)
            self.is_blocked = isinstance(item, CheckpointBarrier) and item.blocks_sender


@dataclass
class Task:
    """Takes what comes on the wires, and keeps what its core says."""

    channels: list[Channel]
    core: UnalignedBarriers
    rows: RowsInFlight[str, Sent]
    processed: list[list[str]] = field(default_factory=list)
    at_snapshot: dict[int, list[int]] = field(default_factory=dict)
    saved: dict[int, list[list[str]]] = field(default_factory=dict)
    current: int = 0
    clock: float = 0.0

    def receive(self, channel: Channel) -> None:
        """One thing from a wire; an announcement is handled at once."""
        item = channel.wire.popleft()
        if isinstance(item, CheckpointBarrier):
            if item.alignment is Alignment.UNALIGNED or item.may_time_out:
                self.act(self.core.announced(item, self.clock))
            self.rows.event_came(channel.number, item, item.checkpoint)
        elif item == "end":
            self.rows.event_came(channel.number, item, ALWAYS)
        elif isinstance(item, CancelCheckpointMarker):
            self.rows.event_came(channel.number, item)
        else:
            self.rows.rows_came(channel.number, item)
        self.gather()

    def process(self) -> None:
        """Handle one thing."""
        if self.rows.next is None:
            return
        found = self.rows.take()
        if found.rows is not None:
            self.processed[found.channel].append(found.rows)
        elif isinstance(found.event, CheckpointBarrier):
            self.act(self.core.barrier_came(found.channel, found.event, self.clock))
        elif isinstance(found.event, CancelCheckpointMarker):
            self.act(self.core.marker_came(found.event.checkpoint))
        else:
            self.act(self.core.channel_ended(found.channel))
        self.core.check()

    def act(self, actions: list[Action]) -> None:
        """Carry out what the core says."""
        for action in actions:
            if isinstance(action, Snapshot):
                number = action.barrier.checkpoint
                self.at_snapshot[number] = [len(rows) for rows in self.processed]
                if action.barrier.alignment is Alignment.UNALIGNED:
                    self.rows.begin(number)
                    self.current = number
                    self.gather()
                else:
                    self.saved[number] = [[] for _ in self.channels]
            elif isinstance(action, Resume):
                for channel in action.channels:
                    assert self.channels[channel].is_blocked
                    self.channels[channel].is_blocked = False

    def gather(self) -> None:
        """Take the rows of the snapshot under way when all are there."""
        saved = self.rows.saved()
        if saved is not None:
            found: list[list[str]] = [[] for _ in self.channels]
            for channel, row in saved:
                found[channel].append(row)
            self.saved[self.current] = found


MOVES = (*["write", "move", "receive", "process"] * 4, *["barrier"] * 3, "checkpoint", "end", "cancel", "time")


@settings(max_examples=examples(500), deadline=None)
@given(st.integers(1, 6), st.integers(0, 1 << 32))
def test_each_row_has_exactly_one_owner(count: int, seed: int) -> None:
    """Of each snapshot: processed, saved by the task, saved by the producer, or sent after the barrier; in order."""
    chance = random.Random(seed)
    channels = [Channel(number) for number in range(count)]
    task = Task(channels, _core(count), RowsInFlight(count), [[] for _ in channels])
    checkpoint = 0
    sent: set[int] = set()
    kinds: dict[int, CheckpointBarrier] = {}
    for _ in range(chance.randrange(5, 60 * count)):
        channel = chance.choice(channels)
        move = chance.choice(MOVES)
        if move == "write" and not channel.has_ended:
            channel.write()
        elif move == "move":
            channel.move()
        elif move == "receive" and channel.wire:
            task.receive(channel)
        elif move == "process":
            task.process()
        elif move == "checkpoint":
            checkpoint += 1
            kinds[checkpoint] = chance.choice([unaligned, timeoutable, aligned])(checkpoint)
            sent = set()
        elif move == "barrier" and checkpoint and channel.number not in sent and not channel.has_ended:
            sent.add(channel.number)
            channel.send(kinds[checkpoint])
        elif move == "cancel" and checkpoint and channel.number not in sent and not channel.has_ended:
            sent.add(channel.number)
            channel.cancelled.add(checkpoint)
            channel.queue.append(CancelCheckpointMarker(checkpoint))
        elif move == "end" and not channel.has_ended and chance.random() < 0.3:
            channel.has_ended = True
            channel.queue.append("end")
        elif move == "time":
            task.clock += 1.0
            task.act(task.core.time_passed(task.clock))
    while any(channel.wire or (channel.queue and not channel.is_blocked) for channel in channels) or task.rows.next:
        for channel in channels:
            channel.move()
            if channel.wire:
                task.receive(channel)
        task.process()
    for channel in channels:
        assert task.processed[channel.number] == channel.written[: len(task.processed[channel.number])]
    for number, saved in task.saved.items():
        if not all(channel.takes_part(number) for channel in channels):
            continue  # nobody restores it
        for channel in channels:
            rows = task.processed[channel.number][: task.at_snapshot[number][channel.number]]
            rows += saved[channel.number] + channel.overtaken.get(number, [])
            end = channel.at_barrier.get(number, len(channel.written))
            assert rows == channel.written[:end], f"checkpoint {number}, channel {channel.number}"


@pytest.mark.parametrize("number", [0, 3])
def test_a_timeout_survives_the_wire(number: int) -> None:
    """A barrier that turned unaligned behaves the same wherever it goes on."""
    barrier = turned(number + 1)
    assert not barrier.may_time_out
    assert not barrier.blocks_sender
    assert barrier.overtakes_outputs
