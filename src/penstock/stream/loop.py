# SPDX-License-Identifier: Apache-2.0
"""The loop of a stream task: one wait, and one turn after the other.

A turn looks, in this order, at: the coordinator's words, pending output, what is due to be passed on, input or the
source, event time (so the watermark of rows goes with them), the flush deadline. It takes one step of input at most,
which `Pace` keeps short. While output is pending no input is taken, and nothing that must stay behind it (a barrier,
an end) is passed on; a barrier that overtakes rows passes it, and makes it part of the snapshot, which is stored when
all its rows in flight are known. The task waits in `mailbox.wait` and nowhere else; there the time is counted:
back-pressured while output is pending, storing while the log of rows is full, idle otherwise, and busy is all the
rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from penstock.checkpoint.alignment import Decline, Resume, Snapshot
from penstock.checkpoint.barriers import Alignment, CancelCheckpointMarker, CheckpointBarrier, encode
from penstock.graph.streaming import SOURCE_POSITION
from penstock.record.joining import joined
from penstock.shuffle import EventKind
from penstock.shuffle.actions import CheckpointGivenUp
from penstock.shuffle.events import EndOfData, Event, TaskEvent
from penstock.shuffle.metrics import OPERATOR_GROUP, READING, WRITING
from penstock.shuffle.streaming import Mailbox
from penstock.stream.chain import ROW_COUNTS, Chain, Chunk
from penstock.stream.conversation import (
    Commit,
    Conversation,
    Decision,
    EndData,
    Finish,
    SayCaughtUp,
    StopReading,
)
from penstock.stream.event_time import EventTime
from penstock.stream.inputs import StreamInputs
from penstock.stream.key_sample import FrequentKeys
from penstock.stream.outputs import StreamOutputs
from penstock.stream.pace import Pace
from penstock.stream.persisting import AtCheckpoint, Persisting
from penstock.stream.row_counts import SOURCE_ROWS, RowCounts, Uncounted
from penstock.stream.snapshots import Snapshots
from penstock.stream.sources import Positions, SourceReader, outstanding_of
from penstock.stream.storing import SnapshotStore, TakenSnapshot

REPORT_SECONDS = 0.5
PUBLISH_SECONDS = 1.0
ASK_SECONDS = 0.001
"""A source that had nothing, and does not say when it will, is asked again after so long; so is a full log, and one
that is read."""
SOURCE_STATE = SOURCE_POSITION
ROWS_STATE = f"{ROW_COUNTS}/channels"
"""The chunk of the counts of a task's channels, where it may begin anew alone with producers' logs."""
_COUNTS = ("rows_in", "rows_out", "bytes_in", "bytes_out", "batches_in", "batches_out", "checkpoints")

_Due = Decision | CheckpointBarrier | EndOfData
"""A snapshot that was taken leaves its barrier, operators that have ended leave the end of the data."""


@dataclass(frozen=True, slots=True)
class TaskParts:
    """The parts of a task; `source` is None if it has gates, `store` if there are no checkpoints.

    `step_clock` counts what steps take of their thread's time; None: all time. `persisting` is the way in which rows
    in flight get into snapshots, the same as the outputs have. `event_time` None: begins anew.
    """

    mailbox: Mailbox
    inputs: StreamInputs
    outputs: StreamOutputs
    chain: Chain
    source: SourceReader | None = None
    store: SnapshotStore | None = None
    pace: Pace = field(default_factory=Pace)
    step_clock: Callable[[], float] | None = None
    persisting: Persisting = field(default_factory=AtCheckpoint)
    event_time: EventTime | None = None
    keys: FrequentKeys = field(default_factory=FrequentKeys)
    counts: RowCounts = field(default_factory=Uncounted)


class _Moment(NamedTuple):
    """When a step began, by the task's clock and by the one of steps."""

    clock: float
    worked: float


@dataclass(slots=True)
class Times:
    """Seconds of a task: since its begin, of these waiting for input, for room at its outputs, or in its log of rows.

    `reading` is the part of its work that its source took, `writing` that of its outputs.
    """

    clock: Callable[[], float]
    began: float = field(init=False)
    idle: float = 0.0
    back_pressured: float = 0.0
    storing: float = 0.0
    reading: float = 0.0
    writing: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.clock()

    def figures(self) -> dict[str, float]:
        """The figures as they are reported."""
        return {
            "seconds": self.clock() - self.began,
            "idle_seconds": self.idle,
            "back_pressured_seconds": self.back_pressured,
            "storing_seconds": self.storing,
            OPERATOR_GROUP + READING: self.reading,
            OPERATOR_GROUP + WRITING: self.writing,
        }


class StreamLoop:
    """One task's run."""

    def __init__(self, parts: TaskParts, conversation: Conversation, clock: Callable[[], float]) -> None:
        self._mailbox = parts.mailbox
        self._inputs = parts.inputs
        self._outputs = parts.outputs
        self._chain = parts.chain
        self._source = parts.source
        self._positions = Positions()
        if parts.source is not None:
            parts.chain.reads(parts.source)
        self._persisting = parts.persisting
        self._event_time = parts.event_time or EventTime(parts.chain, parts.inputs.channels)
        self._snapshots = Snapshots(parts.mailbox, parts.inputs, parts.outputs, parts.store, parts.persisting)
        self._publishes = parts.store is None
        """Without checkpoints sinks publish what they have, once a second and at the end."""
        self._conversation = conversation
        self._clock = clock
        self._step_clock = parts.step_clock or clock
        self._times = Times(clock)
        self._pace = parts.pace
        self._pending: tuple[int, float] | None = None
        """Of the last step its rows and when it began, while some of what it gave has no room."""
        self._due: deque[_Due] = deque()
        """Decisions to be passed on after all rows, in order."""
        self._counts = dict.fromkeys(_COUNTS, 0.0)
        self._reported = self._published = self._times.began
        self._publications = 0
        self._watermarks: list[tuple[int, TaskEvent]] | None = [] if parts.chain.allows_later_watermarks else None
        """Those that the rows of this turn have passed; None: none may be passed."""
        self._keys = parts.keys
        self._row_counts = parts.counts
        self._is_done = False

    def run(self) -> None:
        """Go on until the task is finished; raises what the mailbox, a gate or a step raises."""
        self._mailbox.report(self.metrics())  # from here on it is known that a task which says nothing is at work
        moved = True
        while not self._is_done:
            self._wait(0.0 if moved else self._patience())
            moved = self._turn()
        self._mailbox.report(self.metrics())

    def metrics(self) -> dict[str, float]:
        """The figures so far."""
        outstanding = {} if self._source is None else outstanding_of(self._source)
        found = {**self._counts, **self._times.figures(), **outstanding, **self._chain.metrics()}
        return {**found, **self._keys.figures(), **self._event_time.figures()}

    def _wait(self, seconds: float) -> None:
        """The one place where a task waits."""
        if seconds <= 0:
            self._mailbox.wait(0.0)
            return
        began = self._clock()
        self._mailbox.wait(seconds)
        waited = self._clock() - began
        if not self._outputs.is_empty:
            self._times.back_pressured += waited
        elif self._persisting.has_room:
            self._times.idle += waited
        else:
            self._times.storing += waited

    def _patience(self) -> float:
        """Seconds until there may be something to do that nothing announces."""
        now = self._clock()
        moments = [self._reported + REPORT_SECONDS]
        if self._outputs.flush_at is not None:
            moments.append(self._outputs.flush_at)
        if self._conversation.deadline is not None:
            moments.append(self._conversation.deadline)
        if self._event_time.due_at is not None and self._is_ready:
            moments.append(self._event_time.due_at)
        if self._is_ready and self._conversation.has_data and (wait := self._chain.wake_in) is not None:
            moments.append(now + wait)
        if self._source is not None and self._is_reading(self._source):
            wake = self._source.wake_at
            moments.append(wake if wake is not None and wake > now else now + ASK_SECONDS)
        if not self._persisting.has_room or self._inputs.reads_again:
            moments.append(now + ASK_SECONDS)
        return max(0.0, min(moments) - now)

    def _is_reading(self, source: SourceReader) -> bool:
        """True if it may be asked; one that is at its end has no more to say."""
        return self._is_ready and self._conversation.has_data and not source.is_ended

    @property
    def _is_ready(self) -> bool:
        """True if input may be taken."""
        return not self._due and self._outputs.is_empty and self._persisting.has_room

    def _turn(self) -> bool:
        """Look at everything once; whether anything was done."""
        began, moved = self._clock(), False
        for action in self._mailbox.take_actions():
            moved = True
            if isinstance(action, CheckpointGivenUp):
                self._give_up(action.checkpoint)
            self._decided(self._conversation.action_came(action, self._clock()))
        self._inputs.keep_up()
        moved |= self._look_ahead()
        moved |= self._drain()
        moved |= self._pass_on()
        moved |= self._snapshots.gather()
        if self._is_ready and self._event_time.is_overdue(began):  # rows whose outputs are never empty held it up
            moved |= self._keep_time(began)
        if self._is_ready and not self._is_done:
            moved |= self._fire()
        if self._is_ready and not self._is_done:
            moved |= self._take()
        if self._is_ready and not self._is_done:
            moved |= self._keep_time(began)
        now = self._clock()
        self._outputs.flush_in_time(now)
        self._tell(now)
        return moved

    def _drain(self) -> bool:
        """Write what is pending, as far as there is room; whether any was."""
        moved = self._outputs.drain(self._clock())
        self._look_at_room()
        return moved

    def _look_at_room(self) -> None:
        """Tell the pace when all that the last step gave has found room."""
        if self._pending is not None and self._outputs.is_empty:
            rows, began = self._pending
            self._pending = None
            self._pace.waited(rows, self._clock() - began)

    def _look_ahead(self) -> bool:
        """The barriers that go ahead of all rows; whether there were any."""
        moved = False
        while (found := self._inputs.take_ahead()) is not None:
            moved = True
            self._decided(self._conversation.event_came(*found, self._clock()))
        if self._conversation.deadline is not None:
            self._decided(self._conversation.time_passed(self._clock()))
        return moved

    def _take(self) -> bool:
        """Take one step of input, and the events after it; tell whether there was any."""
        began = _Moment(self._clock(), self._step_clock())
        if self._source is not None:
            return self._read(self._source, began)
        if self._passed_watermarks():
            return True
        batches = self._inputs.take(self._pace.rows, self._watermarks)
        if batches:
            self._step(batches, began)
        if self._outputs.is_empty and self._passed_watermarks():
            return True
        if self._outputs.is_empty and (found := self._inputs.take_event()) is not None:
            self._event_came(*found)
            self._pass_on()
            return True
        return bool(batches)

    def _passed_watermarks(self) -> bool:
        """Move event time to where the watermarks are that rows have passed; whether there were any."""
        if not self._watermarks:
            return False
        moves = [self._event_time.came(*found) for found in self._watermarks]
        self._watermarks.clear()
        if any(moves) and self._conversation.has_data:
            self._put(self._event_time.move(self._clock(), self._times.idle))
        self._pass_on()
        return True

    def _event_came(self, channel: int, event: Event) -> None:
        """Take an event in its place among the rows: a watermark, or one of the conversation's."""
        moves = None
        if isinstance(event, TaskEvent):
            moves = self._event_time.came(channel, event)
        elif isinstance(event, EndOfData):
            moves = self._event_time.data_ended(channel, stopped=event.stopped)
        if moves is None or isinstance(event, EndOfData):
            self._decided(self._conversation.event_came(channel, event, self._clock()))
        if moves and self._conversation.has_data:  # else the end of the data moves it
            self._put(self._event_time.move(self._clock(), self._times.idle))

    def _keep_time(self, now: float) -> bool:
        """Move event time where it is time; whether that gave rows."""
        due = self._event_time.due_at
        if due is None or now < due or not self._conversation.has_data:
            return False
        batches = self._event_time.move(now, self._times.idle)
        self._put(batches)
        self._pass_on()
        return bool(batches)

    def _fire(self) -> bool:
        """Let steps do what is due by the clock; whether anything was."""
        wait = self._chain.wake_in if self._conversation.has_data else None
        if wait is None or wait > 0:
            return False
        batches = self._chain.time_passed()
        if batches and (event := self._event_time.rows_come()) is not None:
            self._outputs.emit(event)
        self._put(batches)
        return True

    def _read(self, source: SourceReader, began: _Moment) -> bool:
        if not self._conversation.has_data:
            return False
        batch = source.poll(self._pace.rows)
        self._times.reading += self._clock() - began.clock
        if batch is not None and batch.num_rows:
            self._row_counts.taken(SOURCE_ROWS, batch.num_rows)
            self._step([batch], began)
            return True
        decisions = self._conversation.source_ended() if source.is_ended else []
        self._decided(decisions)
        return bool(decisions)

    def _step(self, batches: list[pa.RecordBatch], began: _Moment) -> None:
        """Push these through the chain into the outputs."""
        if (event := self._event_time.rows_come()) is not None:
            self._outputs.emit(event)
        rows = size = 0
        before = self._counts["bytes_out"]
        for batch in joined(batches):
            self._keys.look(batch, began.clock)
            rows += batch.num_rows
            size += batch.nbytes
            self._counts["rows_in"] += batch.num_rows
            self._counts["batches_in"] += 1
            given = self._chain.push(batch)
            self._row_counts.handled(batch.num_rows)
            self._put(given)
        self._counts["bytes_in"] += size
        seconds = self._step_clock() - began.worked
        self._pace.took(rows, seconds, max(size, int(self._counts["bytes_out"] - before)))
        self._pending = rows, began.clock
        self._look_at_room()

    def _put(self, batches: list[pa.RecordBatch], *, waits: bool = False) -> None:
        for batch in batches:
            self._counts["rows_out"] += batch.num_rows
            self._counts["bytes_out"] += batch.nbytes
            self._counts["batches_out"] += 1
        began = self._clock()
        self._outputs.put(batches, began, waits=waits)
        self._times.writing += self._clock() - began

    def _decided(self, decisions: list[Decision]) -> None:
        """Do at once what waits for no row; the rest is due."""
        for decision in decisions:
            if isinstance(decision, Commit):
                self._chain.completed(decision.checkpoint)
                self._persisting.completed(decision.checkpoint)
                if self._source is not None:
                    self._positions.completed(decision.checkpoint, self._source)
            elif isinstance(decision, SayCaughtUp):
                self._mailbox.data_ended()
            elif not isinstance(decision, StopReading):
                self._due.append(decision)

    def _pass_on(self) -> bool:
        """Carry out what is due, as far as no row is in front of it; whether there was any."""
        moved = False
        if self._outputs.is_empty and (event := self._event_time.take_event()) is not None:
            self._outputs.emit(event)
        while self._due and self._may_pass(self._due[0]) and not self._is_done:
            self._carry_out(self._due.popleft())
            moved = True
        return moved

    def _may_pass(self, due: _Due) -> bool:
        """Tell whether no row is in front of it that it may not overtake."""
        if self._outputs.is_empty:
            return True
        if isinstance(due, Resume):
            return True
        # The marker of a declined one says nothing of the rows around it, as little as a barrier that overtakes them.
        overtakes = isinstance(due, Decline) or (isinstance(due, Snapshot) and due.barrier.overtakes_outputs)
        return overtakes and not self._outputs.has_spanning

    def _carry_out(self, due: _Due) -> None:
        if isinstance(due, EndOfData):
            if (event := self._event_time.take_event()) is not None:
                self._outputs.emit(event)
            self._outputs.emit(due)
            self._mailbox.data_ended()
        elif isinstance(due, CheckpointBarrier):
            kind = EventKind.BLOCKING if due.blocks_sender else EventKind.IN_ORDER
            self._outputs.end_epoch(encode(due), kind, behind_only=due.alignment is Alignment.FORCED_ALIGNED)
        elif isinstance(due, Snapshot):
            self._take_snapshot(due)
        elif isinstance(due, Resume):
            for channel in due.channels:
                self._inputs.resume(channel)
        elif isinstance(due, Decline):
            self._mailbox.decline(due.checkpoint, due.cause)
            self._outputs.emit(TaskEvent(encode(CancelCheckpointMarker(due.checkpoint))))
        elif isinstance(due, EndData):
            self._end_data(due)
        elif isinstance(due, Finish):
            self._finish()

    def _take_snapshot(self, decided: Snapshot) -> None:
        began = self._clock()
        barrier = decided.barrier
        if (older := self._snapshots.held) is not None:
            self._mailbox.decline(older, "a newer checkpoint came before its rows in flight were known")
            self._give_up(older)
        self._put(self._chain.end_epoch(), waits=barrier.overtakes_outputs)
        chunks: list[Chunk] = []
        if self._source is not None:
            position = self._source.snapshot()
            self._positions.take(barrier.checkpoint, position)
            chunks.append((SOURCE_STATE, lambda: position))
        chunks += self._event_time.snapshot()
        if (counts := self._row_counts.snapshot()) is not None:
            chunks.append((ROWS_STATE, lambda: counts))
        chunks += self._chain.snapshot(barrier.checkpoint)
        self._row_counts.snapshot_taken(barrier.checkpoint)
        self._pass_barrier(barrier)
        self._counts["checkpoints"] += 1
        figures = {"align_seconds": began - decided.aligned_since, "freeze_seconds": self._clock() - began}
        self._snapshots.take(TakenSnapshot(barrier.checkpoint, chunks, figures), barrier)

    def _pass_barrier(self, barrier: CheckpointBarrier) -> None:
        """Send a snapshot's barrier ahead of the rows where it may overtake them; elsewhere it is due."""
        if not barrier.overtakes_outputs:
            self._due.appendleft(barrier)
            return
        self._outputs.overtake(encode(replace(barrier, alignment=Alignment.UNALIGNED)))
        if not self._outputs.overtakes_everywhere:
            self._due.appendleft(replace(barrier, alignment=Alignment.FORCED_ALIGNED))

    def _give_up(self, checkpoint: int) -> None:
        """A checkpoint will not be completed: nothing is stored of it, and what is due for it is not any more."""
        self._snapshots.give_up(checkpoint)
        # An aligned one waits for the rows in front of it, and the next checkpoint would wait behind it.
        self._due = deque(due for due in self._due if _checkpoint_of(due) != checkpoint)

    def _end_data(self, decided: EndData) -> None:
        if decided.stopped:
            self._put(self._event_time.end_run(self._times.idle, has_all=self._conversation.has_all))
        else:
            self._put(self._event_time.end(self._times.idle))
        self._put(self._chain.end_input(stopped=decided.stopped))
        self._due.appendleft(EndOfData(decided.stopped, decided.goes_on))

    def _finish(self) -> None:
        if self._publishes:
            self._publish()
        self._outputs.finish()
        self._is_done = True

    def _tell(self, now: float) -> None:
        """Say how far the task is; without checkpoints also publish what sinks have, once a second."""
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self._mailbox.report(self.metrics())
        if self._publishes and now - self._published >= PUBLISH_SECONDS:
            self._published = now
            self._publish()

    def _publish(self) -> None:
        self._publications += 1
        self._chain.publish(self._publications)


def _checkpoint_of(due: _Due) -> int | None:
    """The checkpoint whose snapshot or barrier is due."""
    if isinstance(due, Snapshot):
        return due.barrier.checkpoint
    return due.checkpoint if isinstance(due, CheckpointBarrier) else None
