# SPDX-License-Identifier: Apache-2.0
"""Event time in a streaming task: how far it is, as a sans-I/O core of events in and decisions out.

A watermark (`watermark`) travels in the channels behind the rows in front of it. A task's own watermark is the least
of its channels', and never goes back.

Rules
- A channel that is idle holds nothing back: its producer has said that it waits for rows. It counts again from the
  event with which its producer goes on. If all channels are idle the greatest of their watermarks counts.
- A channel whose data has ended holds nothing back. When all have ended, all times have passed (`MOST`). One whose
  query was told to stop stays where it was, as its data goes on in the next run.
- At the end of a run, and all through one that reads what is available, the channels of each input are the tasks of
  one stage: if all of these are idle the greatest of their watermarks counts, and of several inputs the least, also
  if they are idle. A stage that had no rows in the run counts with the least of what its tasks had before. Until
  all have said how their run ended none is taken for idle.
- A restored task begins at the watermark of its snapshot; of several snapshots, where the number of tasks has
  changed, at the least one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.errors import ProtocolError
from penstock.stream.watermark import LEAST, MOST, Watermark

Waiting = Mapping[str, float | None]
"""Partitions that may give rows, in this run or a later one, each with the seconds for which it had none whenever it
was asked. None: it had some, or was not asked; `CAUGHT_UP`: it is not asked any more in this run."""
CAUGHT_UP: Final = float("inf")

_KIND: Final = 3
"""Events of a channel have one number space: 1 and 2 are the checkpoints' (`checkpoint/barriers.py`)."""
_PROGRESS: Final = struct.Struct("<BBxxxxxx8s")


@dataclass(frozen=True, slots=True, init=False)
class EventTimeProgress:
    """Event time at one place: the watermark, and if the place waits for rows and so holds no other back.

    `is_last`: its run has ended, and then an idle place is not one that waits. `had_rows` is false for a place that
    had no rows in the run that has ended: it says nothing new of its stage.
    """

    watermark: Watermark
    is_idle: bool
    is_last: bool
    had_rows: bool

    def __init__(
        self,
        watermark: Watermark | int = LEAST,
        is_idle: bool = False,
        is_last: bool = False,
        had_rows: bool = True,
    ) -> None:
        object.__setattr__(self, "watermark", Watermark.at(watermark))
        object.__setattr__(self, "is_idle", is_idle)
        object.__setattr__(self, "is_last", is_last)
        object.__setattr__(self, "had_rows", had_rows)

    def held_back(self, microseconds: int) -> EventTimeProgress:
        """Event time behind a step whose rows may be so much older than those in front of it."""
        return EventTimeProgress(self.watermark.less(microseconds), self.is_idle, self.is_last, self.had_rows)


def encode_progress(progress: EventTimeProgress) -> bytes:
    """The payload of the event that carries it."""
    flags = progress.is_idle | progress.is_last << 1 | (not progress.had_rows) << 2
    return _PROGRESS.pack(_KIND, flags, progress.watermark.stored)


def decode_progress(payload: bytes) -> EventTimeProgress | None:
    """Inverse of `encode_progress`; None for an event of another kind."""
    if payload[:1] != bytes((_KIND,)):
        return None
    try:
        _, flags, stored = _PROGRESS.unpack(payload)
    except struct.error as error:
        raise ProtocolError(f"a watermark of {len(payload)} bytes can't be read: {error}") from error
    return EventTimeProgress(Watermark.of_stored(stored), bool(flags & 1), bool(flags & 2), not flags & 4)


def is_watermark(payload: bytes) -> bool:
    """Tell whether an event says how far event time is, and not that its producer waits or that the run ends."""
    return payload[:2] == bytes((_KIND, False))


class InputWatermarks:
    """The watermarks of one task's channels, and what they make of the task's own."""

    def __init__(
        self,
        channels: int,
        restored: Watermark | int = LEAST,
        inputs: Sequence[range] = (),
        *,
        is_bounded: bool = True,
    ) -> None:
        """`inputs` are the channels of each input, which are judged one by one where a run ends, else as one."""
        self._channels = [EventTimeProgress() for _ in range(channels)]
        self._parts = tuple(inputs) or (range(channels),)
        self._is_ending = is_bounded
        self._ended: set[int] = set()
        """Channels whose data has ended and goes on in no later run."""
        self._progress = EventTimeProgress(restored)

    @property
    def progress(self) -> EventTimeProgress:
        """Event time in front of the task's first operator."""
        return self._progress

    def came(self, channel: int, progress: EventTimeProgress) -> bool:
        """A watermark came on a channel; tell whether the task's own progress is another one now."""
        if channel in self._ended:
            raise ProtocolError(f"a watermark on channel {channel}, whose data has ended")
        before = self._channels[channel]
        self._channels[channel] = replace(progress, watermark=max(before.watermark, progress.watermark))
        self._is_ending |= progress.is_last
        return self._update()

    def data_ended(self, channel: int, *, stopped: bool) -> bool:
        """No rows come any more on a channel; tell whether the task's own progress is another one now."""
        if not stopped:
            self._ended.add(channel)
        return self._update()

    def check(self) -> None:
        """The invariants of this core; raises AssertionError."""
        holding = [each for each in self._open() if not each.is_idle]
        if self._progress.is_idle and holding:
            raise AssertionError("the task is idle, and one of its channels is not")
        if holding and len(self._ended) < len(self._channels) and self._progress.watermark.is_end:
            raise AssertionError("all times have passed, and rows may still come")

    def _open(self) -> list[EventTimeProgress]:
        return [each for channel, each in enumerate(self._channels) if channel not in self._ended]

    def _update(self) -> bool:
        parts = self._parts if self._is_ending else (range(len(self._channels)),)
        found = [progress for part in parts if (progress := self._of(part)) is not None]
        reached = min(
            (each.watermark for each in found), default=Watermark(MOST)
        )  # all ended: nothing comes any more
        is_idle = bool(found) and all(each.is_idle for each in found)
        is_last = bool(found) and all(each.is_last for each in found)
        is_idle &= is_last or not any(each.is_last for each in found)
        had_rows = all(each.had_rows for each in found)
        now = EventTimeProgress(max(self._progress.watermark, reached), is_idle, is_last, had_rows)
        changed, self._progress = now != self._progress, now
        return changed

    def _of(self, part: range) -> EventTimeProgress | None:
        """The progress of some channels; None where all have ended."""
        still = [self._channels[channel] for channel in part if channel not in self._ended]
        if not still:
            return None
        is_last = all(each.is_last for each in still)
        if not is_last and any(each.is_last for each in still):
            # It is not known yet which of the others had rows, so none of those that had none lets them go.
            return EventTimeProgress(min(each.watermark for each in still))
        holding = [each.watermark for each in still if not each.is_idle]
        if holding:
            return EventTimeProgress(min(holding), is_last=is_last)
        # All idle: what one of them has passed, no other holds back.
        moved = [each.watermark for each in still if each.had_rows]
        reached = max(moved) if moved else min(each.watermark for each in still)
        return EventTimeProgress(reached, is_idle=True, is_last=is_last, had_rows=bool(moved))


class RowTimes:
    """The watermark that a task makes of its rows' times: the greatest so far less `delay`.

    `idle_after` seconds without a row, in which the task waited for rows, make it idle; 0: it never is. While it is
    `held` it stays where it was.
    """

    def __init__(self, delay: int, idle_after: float) -> None:
        self._delay = delay
        self._idle_after = idle_after
        self._reached = Watermark()
        """The watermark of no delay: the greatest time that counts."""
        self.greatest = LEAST
        """The greatest time of a row; `LEAST` where there was none."""
        self.counting = Watermark()
        """That of the rows which count while the run goes on: of those of former tasks the least that one had."""
        self._had_rows = True
        self._waits_since = 0.0

    @property
    def reached(self) -> Watermark:
        """The time up to which rows count."""
        return self._reached

    def restore(self, reached: Watermark, greatest: int = LEAST, counting: Watermark | None = None) -> None:
        """Begin with a time that was reached before, and one that rows had which may not count yet."""
        self._reached, self.greatest = reached, greatest
        self.counting = Watermark(greatest) if counting is None else counting

    def rows_came(self, greatest: int | None) -> None:
        """Rows came; `greatest` is the greatest of their times, None where all are null: they are as no rows."""
        if greatest is not None:
            self._had_rows = True
            self.greatest = max(self.greatest, greatest)
            self.counting = max(self.counting, Watermark(greatest))

    def held(self, waited: float) -> EventTimeProgress:
        """Event time while rows that came are one batch with others that have not come; it waits for these."""
        self._had_rows, self._waits_since = False, waited
        return EventTimeProgress(self._reached.less(self._delay))

    def progress(self, waited: float) -> EventTimeProgress:
        """Event time now; `waited` are the seconds in which the task has waited for rows since its begin."""
        if self._had_rows:
            self._had_rows, self._waits_since = False, waited
        self._reached = max(self._reached, self.counting)
        is_idle = 0 < self._idle_after <= waited - self._waits_since
        return EventTimeProgress(self._reached.less(self._delay), is_idle)

    def last(self) -> EventTimeProgress:
        """Event time where all has been read: the tasks share what there was, so none holds another one back."""
        self._reached = max(self._reached, Watermark(self.greatest))
        return EventTimeProgress(self._reached.less(self._delay), is_idle=True, is_last=True)


class PartitionTimes:
    """The watermark of a task that reads several partitions: the least of theirs, as it is of a task's channels.

    A partition that has given no row yet holds it back as well. One that has had nothing for `idle_after` seconds,
    as its reader says, or in so many seconds of waiting has given only rows that have no time or pass no filter, does
    not, until it has rows with times again; 0: it always does. At the end of a run those that had
    nothing when they were asked last count if they had rows in it, and all others hold. It never goes back.

    Rows of one unit of a partition are one batch: their times count when it is behind that.
    """

    def __init__(self, delay: int, idle_after: float) -> None:
        self._delay = delay
        self._idle_after = idle_after
        self._reached = Watermark()
        """The watermark of no delay: the greatest time that counts for all."""
        self.greatest: dict[str, int] = {}
        """The greatest time of each partition that has given rows."""
        self.fresh: set[str] = set()
        """Those that have given rows in this run, and since they were idle last."""
        self.coming: dict[str, int] = {}
        """By partition the greatest time of rows that are one batch with others which have not come."""
        self._units: dict[str, object] = {}
        """What the rows that a partition gives now are one batch of; None: it is between two."""
        self._read: set[str] = set()
        self._timed: set[str] = set()
        """Those that have given rows, and rows with times, since the last look."""
        self._timeless: dict[str, tuple[float, float]] = {}
        """The seconds that the task had waited when a partition began to give no times, and when it last did so."""

    @property
    def reached(self) -> Watermark:
        """The time up to which all have given rows."""
        return self._reached

    def restore(
        self,
        reached: Watermark,
        greatest: Mapping[str, int],
        fresh: Iterable[str] = (),
        coming: Mapping[str, int] | None = None,
    ) -> None:
        """Begin with times that were reached before; `fresh`: in a run that is not over.

        The rows of `coming` are one batch with those that the partition gives first.
        """
        self._reached, self.greatest, self.fresh = reached, dict(greatest), set(fresh)
        self.coming = dict(coming or {})

    def now_in(self, partition: str, unit: object) -> None:
        """A partition gives rows that are one batch, `unit`; the times of another one that it was in count now."""
        if unit is None or self._units.get(partition, unit) != unit:
            time = self.coming.pop(partition, LEAST)
            if time != LEAST:
                self.greatest[partition] = max(self.greatest.get(partition, LEAST), time)
        self._units[partition] = unit

    def was_read(self, partition: str) -> None:
        """Rows of a partition were read, of which filters may leave none."""
        self._read.add(partition)

    def rows_came(self, partition: str, greatest: int | None, unit: object = None) -> None:
        """Rows of a partition came; `greatest` is the greatest of their times, None where all are null."""
        self.now_in(partition, unit)
        if greatest is not None:
            times = self.greatest if unit is None else self.coming
            times[partition] = max(times.get(partition, LEAST), greatest)
            self.fresh.add(partition)
            self._timed.add(partition)

    def held(self) -> EventTimeProgress:
        """Event time while rows that came are one batch with others that have not come."""
        return EventTimeProgress(self._reached.less(self._delay))

    def progress(self, waiting: Waiting, waited: float = 0.0, *, is_last: bool = False) -> EventTimeProgress:
        """Event time now, or at the end of a run; `waiting` are the partitions that may give rows.

        `waited` are the seconds in which the task has waited for rows since its begin.
        """
        # One in the middle of a batch is at work, however long it takes.
        waiting = {each: None if self._is_amid(each) and s != CAUGHT_UP else s for each, s in waiting.items()}
        without_times = self._without_times(waiting, waited)
        waiting = waiting if is_last else {**waiting, **without_times}
        holding = {each for each, seconds in waiting.items() if self._holds(each, seconds, is_last=is_last)}
        self.fresh &= holding
        if holding:
            reached = min(self.greatest.get(each, LEAST) for each in holding)
        elif waiting and (is_last or all(seconds == CAUGHT_UP for seconds in waiting.values())):
            reached = LEAST  # a run without rows moves nothing
        else:
            reached = max(self.greatest.values(), default=LEAST)
        self._reached = max(self._reached, Watermark(reached))
        return EventTimeProgress(self._reached.less(self._delay), not holding, is_last, bool(holding) or not is_last)

    def _is_amid(self, partition: str) -> bool:
        return self._units.get(partition) is not None

    def _without_times(self, waiting: Waiting, waited: float) -> dict[str, float]:
        """Those that have given rows for long enough, and none with a time; and for how long."""
        for each in self._timed:
            self._timeless.pop(each, None)
        for each in self._read - self._timed:
            first, _ = self._timeless.get(each, (waited, waited))
            self._timeless[each] = first, waited
        self._read.clear()
        self._timed.clear()
        found = {}
        for each in self._timeless.keys() & waiting.keys():
            first, last = self._timeless[each]
            seconds = waiting[each]
            # One that had some when it was asked last, and was not read since, may have rows that have not come.
            since = (last if seconds is None else waited) - first
            if 0 < self._idle_after <= since:
                found[each] = max(seconds or 0.0, since)
        return found

    def _holds(self, partition: str, seconds: float | None, *, is_last: bool) -> bool:
        if seconds is None:
            return True
        if is_last or seconds == CAUGHT_UP:
            return partition in self.fresh
        return not 0 < self._idle_after <= seconds
