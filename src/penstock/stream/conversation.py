# SPDX-License-Identifier: Apache-2.0
"""The part of a stream task that answers barriers, ends and the coordinator's words, as a sans-I/O core.

Each call is one thing that came; it returns what the task does about it, in order. Rows are none of it.

Rules
- Channels are numbered over all gates. A source's task has none, and its source's end takes their place.
- The end of the data has four words. When EndOfData has come on all channels (or the source has ended) the operators
  end, EndOfData goes on, and the coordinator is told that this task's data is processed. The task then takes part in
  checkpoints as before, and ends (EndOfPartition) when one that it took part in since is complete, and all its
  channels have ended. Without checkpoints it ends as soon as its channels have.
- A task whose snapshot holds rows in flight does not end before it is known what became of that checkpoint: one that
  ends counts as finished, and its rows would be lost.
- In a query that takes what is available and stops, a source that has given that is not at the end of its data: its
  task says once that it has caught up, in the same words as one whose data has ended, and goes on as before until it
  is told to stop.
- A task that had finished in the restored checkpoint has no data from the beginning, and goes without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.checkpoint.alignment import CAME_IN_THE_MIDDLE, Decline, Resume, Snapshot
from penstock.checkpoint.alignment import Action as Barriers
from penstock.checkpoint.barriers import CancelCheckpointMarker, CheckpointBarrier, decode
from penstock.checkpoint.tracking import CountedBarriers
from penstock.checkpoint.unaligned import UnalignedBarriers
from penstock.errors import ProtocolError
from penstock.shuffle.actions import Action, CheckpointCompleted, CheckpointGivenUp, StopSource, TriggerCheckpoint
from penstock.shuffle.events import EndOfData, EndOfPartition, EpochAhead, EpochEnd, Event, ProducerIs, Reattached


@dataclass(frozen=True, slots=True)
class StopReading:
    """Take no more from the source."""


@dataclass(frozen=True, slots=True)
class SayCaughtUp:
    """Say that the source has given all that is to be read in this run."""


@dataclass(frozen=True, slots=True)
class EndData:
    """No more rows come: end the operators, pass EndOfData on, say that all is processed."""

    stopped: bool
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint is complete: publish what was prepared for it."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class Finish:
    """End all outputs; the task is done."""


Decision = Resume | Snapshot | Decline | StopReading | SayCaughtUp | EndData | Commit | Finish


@dataclass(frozen=True, slots=True)
class Counted:
    """At least once: a task counts the barriers of checkpoints after this one, and holds no channel back for them.

    `reads_again`: rows of before the task came are read out of logs, up to the next barrier of each channel.
    """

    after: int
    reads_again: bool = False


class Conversation:
    """One task's part of the conversation with the coordinator."""

    def __init__(
        self,
        channels: int,
        *,
        counted: Counted | None = None,
        with_checkpoints: bool = True,
        settles_all: bool = False,
        available_now: bool = False,
    ) -> None:
        """`settles_all`: any snapshot may hold rows in flight, not just one whose barrier overtakes them.

        `counted`: at least once; None: exactly once.
        `available_now`: the source's end is the end of what is read in this run, and not that of the data.
        """
        self._reads_again = counted is not None and counted.reads_again
        self._settles_all = settles_all
        self._waits_for_stop = available_now
        self._has_caught_up = False
        numbers = range(channels)
        self._barriers: UnalignedBarriers | CountedBarriers = (
            UnalignedBarriers(numbers) if counted is None else CountedBarriers(numbers, counted.after)
        )
        self._with_data = set(numbers)
        self._open = set(numbers)
        self._has_source = not channels
        self._stopped = self._goes_on = False
        self._has_data = True
        self._last_part: int | None = None
        """The first checkpoint that this task took part in since its data has ended."""
        self._is_free = not with_checkpoints
        """True if such a checkpoint is complete, or none is needed."""
        self._is_finished = False
        self._unsettled: int | None = None
        """The newest snapshot with rows in flight, until its checkpoint is complete or given up."""

    @property
    def deadline(self) -> float | None:
        """When `time_passed` is to be called, if at all."""
        return self._barriers.deadline if isinstance(self._barriers, UnalignedBarriers) else None

    def time_passed(self, now: float) -> list[Decision]:
        """The deadline has come, or any other moment."""
        return self._noted(self._barriers.time_passed(now)) if isinstance(self._barriers, UnalignedBarriers) else []

    @property
    def has_data(self) -> bool:
        """True if rows may still come."""
        return self._has_data

    @property
    def is_finished(self) -> bool:
        """True if the task was told to finish."""
        return self._is_finished

    @property
    def has_all(self) -> bool:
        """True if the run ends and all has come that it was to read, as far as is known here."""
        return not self._goes_on and (self._has_caught_up or not (self._waits_for_stop and self._has_source))

    def event_came(self, channel: int, event: Event, now: float) -> list[Decision]:
        """An event of a channel; raises ProtocolError for one that can't be."""
        if isinstance(event, EpochEnd):
            barrier = _barrier(event.payload, f"an epoch of channel {channel} was ended")
            return self._noted(self._barriers.barrier_came(channel, barrier, now))
        if isinstance(event, EpochAhead):
            return self._announced(event, now)
        if isinstance(event, EndOfData):
            return self._data_ended(channel, event)
        if isinstance(event, EndOfPartition):
            return self._channel_ended(channel)
        if isinstance(event, ProducerIs | Reattached):
            return self._channel_anew(channel, event, now)
        marker = decode(event.payload)
        if not isinstance(marker, CancelCheckpointMarker):
            raise ProtocolError(f"a barrier of channel {channel} did not end its epoch")
        return self._noted(self._barriers.marker_came(marker.checkpoint))

    def action_came(self, action: Action, now: float) -> list[Decision]:
        """A word of the coordinator."""
        if isinstance(action, TriggerCheckpoint):
            barrier = _barrier(action.barrier, "a checkpoint was triggered")
            return self._noted(self._barriers.triggered(barrier, now))
        if isinstance(action, CheckpointGivenUp):
            decisions = self._noted(self._barriers.marker_came(action.checkpoint))
            return decisions + self._settled(action.checkpoint)
        if isinstance(action, CheckpointCompleted):
            return self._completed(action.checkpoint)
        assert isinstance(action, StopSource)  # noqa: S101 - there are no others
        if not self._has_source or not self._has_data:
            return []
        self._goes_on = action.goes_on
        return [StopReading(), *self._end_data(stopped=True)]

    def source_ended(self) -> list[Decision]:
        """The source gives no more rows. It may be said again, and then means nothing."""
        if not self._has_data or self._has_caught_up:
            return []
        if self._waits_for_stop:
            self._has_caught_up = True
            return [SayCaughtUp()]
        return self._end_data(stopped=False)

    def check(self) -> None:
        """The invariants of this core; raises AssertionError."""
        self._barriers.check()
        if not self._with_data <= self._open:
            raise AssertionError(f"channels {self._with_data - self._open} have ended and still have data")
        if self._is_finished and (self._has_data or self._open or not self._is_free):
            raise AssertionError("the task has finished too early")

    def _channel_anew(self, channel: int, event: ProducerIs | Reattached, now: float) -> list[Decision]:
        """Only at-least-once queries have tasks that begin anew alone. The last barrier in front of it counts."""
        if not isinstance(self._barriers, CountedBarriers):
            raise ProtocolError(f"another producer of channel {channel} came: this query restarts as a whole")
        decisions = self._noted(self._barriers.channel_anew(channel))
        if isinstance(event, Reattached) and event.payload:
            barrier = _barrier(event.payload, f"channel {channel} began in the middle")
            if self._reads_again:
                # Its place among the rows is not known, so it waits for a later one, which would wait for it.
                over = self._barriers.marker_came(barrier.checkpoint)
                return decisions + self._noted(
                    replace(each, cause=CAME_IN_THE_MIDDLE) if isinstance(each, Decline) else each for each in over
                )
            decisions += self._noted(self._barriers.barrier_came(channel, barrier, now))
        return decisions

    def _data_ended(self, channel: int, event: EndOfData) -> list[Decision]:
        if channel not in self._with_data:
            raise ProtocolError(f"the data of channel {channel} has ended twice")
        self._with_data.discard(channel)
        self._stopped |= event.stopped
        self._goes_on |= event.goes_on
        return [] if self._with_data else self._end_data(stopped=self._stopped)

    def _channel_ended(self, channel: int) -> list[Decision]:
        if channel in self._with_data:
            raise ProtocolError(f"channel {channel} has ended before its data")
        decisions = self._noted(self._barriers.channel_ended(channel))
        self._open.discard(channel)
        return decisions + self._finish()

    def _end_data(self, *, stopped: bool) -> list[Decision]:
        self._has_data = False
        return [EndData(stopped, self._goes_on), *self._finish()]

    def _completed(self, checkpoint: int) -> list[Decision]:
        if self._last_part is not None and checkpoint >= self._last_part:
            self._is_free = True
        return [Commit(checkpoint), *self._settled(checkpoint), *self._finish()]

    def _announced(self, event: EpochAhead, now: float) -> list[Decision]:
        barrier = _barrier(event.payload, "rows were overtaken")
        if isinstance(self._barriers, CountedBarriers):
            return []
        return self._noted(self._barriers.announced(barrier, now))

    def _settled(self, checkpoint: int) -> list[Decision]:
        """It is known what became of a checkpoint."""
        if self._unsettled is None or checkpoint < self._unsettled:
            return []
        self._unsettled = None
        return self._finish()

    def _finish(self) -> list[Decision]:
        may_finish = self._is_free and self._unsettled is None and not self._is_finished
        if self._has_data or self._open or not may_finish:
            return []
        self._is_finished = True
        return [Finish()]

    def _noted(self, actions: Iterable[Barriers]) -> list[Decision]:
        """The barriers' decisions, with a note of the last part."""
        decisions: list[Decision] = list(actions)
        for decision in decisions:
            if not isinstance(decision, Snapshot):
                continue
            if decision.barrier.overtakes_outputs or self._settles_all:
                self._unsettled = decision.barrier.checkpoint
            if not self._has_data and self._last_part is None:
                self._last_part = decision.barrier.checkpoint
        return decisions


def _barrier(payload: bytes, what: str) -> CheckpointBarrier:
    """The barrier by which something happened; raises ProtocolError where it was a marker."""
    barrier = decode(payload)
    if isinstance(barrier, CancelCheckpointMarker):
        raise ProtocolError(f"{what} by a marker")
    return barrier
