# SPDX-License-Identifier: Apache-2.0
"""Event time in a streaming task: how far it is, as a sans-I/O core of events in and decisions out.

A watermark (`watermark`) travels in the channels behind the rows in front of it. A task's own watermark is the least
of its channels', and never goes back.

Rules
- A channel that is idle holds nothing back: its producer has said that it waits for rows. It counts again from the
  event with which its producer goes on. If all channels are idle the greatest of their watermarks counts.
- A channel whose data has ended holds nothing back. When all have ended, all times have passed (`MOST`). One whose
  query was told to stop stays where it was, as its data goes on in the next run.
- A restored task begins at the watermark of its snapshot; of several snapshots, where the number of tasks has
  changed, at the least one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import ProtocolError
from penstock.stream.watermark import LEAST, MOST, Watermark

_KIND: Final = 3
"""Events of a channel have one number space: 1 and 2 are the checkpoints' (`checkpoint/barriers.py`)."""
_PROGRESS: Final = struct.Struct("<BBxxxxxx8s")


@dataclass(frozen=True, slots=True, init=False)
class EventTimeProgress:
    """Event time at one place: the watermark, and if the place waits for rows and so holds nobody back."""

    watermark: Watermark
    is_idle: bool

    def __init__(self, watermark: Watermark | int = LEAST, is_idle: bool = False) -> None:
        object.__setattr__(self, "watermark", Watermark.at(watermark))
        object.__setattr__(self, "is_idle", is_idle)

    def held_back(self, microseconds: int) -> EventTimeProgress:
        """Event time behind a step whose rows may be so much older than those in front of it."""
        return EventTimeProgress(self.watermark.less(microseconds), self.is_idle)


def encode_progress(progress: EventTimeProgress) -> bytes:
    """The payload of the event that carries it."""
    return _PROGRESS.pack(_KIND, progress.is_idle, progress.watermark.stored)


def decode_progress(payload: bytes) -> EventTimeProgress | None:
    """Inverse of `encode_progress`; None for an event of another kind."""
    if payload[:1] != bytes((_KIND,)):
        return None
    try:
        _, is_idle, stored = _PROGRESS.unpack(payload)
    except struct.error as error:
        raise ProtocolError(f"a watermark of {len(payload)} bytes can't be read: {error}") from error
    return EventTimeProgress(Watermark.of_stored(stored), bool(is_idle))


def is_watermark(payload: bytes) -> bool:
    """Tell whether an event says how far event time is, and not that its producer waits."""
    return payload[:2] == bytes((_KIND, False))


class InputWatermarks:
    """The watermarks of one task's channels, and what they make of the task's own."""

    def __init__(self, channels: int, restored: Watermark | int = LEAST) -> None:
        self._channels = [EventTimeProgress() for _ in range(channels)]
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
        self._channels[channel] = EventTimeProgress(max(before.watermark, progress.watermark), progress.is_idle)
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
        still = self._open()
        holding = [each.watermark for each in still if not each.is_idle]
        # All idle: what one of them has passed, no other holds back. All ended: nothing comes any more.
        reached = min(holding) if holding else max((each.watermark for each in still), default=Watermark(MOST))
        now = EventTimeProgress(max(self._progress.watermark, reached), bool(still) and not holding)
        changed, self._progress = now != self._progress, now
        return changed


class RowTimes:
    """The watermark that a task makes of its rows' times: the greatest so far less `delay`.

    `idle_after` seconds without a row, in which the task waited for rows, make it idle; 0: it never is.
    """

    def __init__(self, delay: int, idle_after: float) -> None:
        self._delay = delay
        self._idle_after = idle_after
        self._greatest = Watermark()
        self._had_rows = True
        self._waits_since = 0.0

    @property
    def greatest(self) -> Watermark:
        """The watermark at the greatest time of a row, that of no delay."""
        return self._greatest

    def restore(self, greatest: Watermark) -> None:
        """Begin with a time that was reached before."""
        self._greatest = greatest

    def rows_came(self, greatest: int | None) -> None:
        """Rows came; `greatest` is the greatest of their times, None where all are null."""
        self._had_rows = True
        if greatest is not None:
            self._greatest = max(self._greatest, Watermark(greatest))

    def progress(self, waited: float) -> EventTimeProgress:
        """Event time now; `waited` are the seconds in which the task has waited for rows since its begin."""
        if self._had_rows:
            self._had_rows, self._waits_since = False, waited
        is_idle = 0 < self._idle_after <= waited - self._waits_since
        return EventTimeProgress(self._greatest.less(self._delay), is_idle)


class PartitionTimes:
    """The watermark of a task that reads several partitions: the least of theirs, as it is of a task's channels.

    A partition that has given no row yet holds it back as well. One that has had nothing for `idle_after` seconds,
    as its reader says, does not, until it has rows again; 0: it always does. The watermark never goes back.
    """

    def __init__(self, delay: int, idle_after: float) -> None:
        self._delay = delay
        self._idle_after = idle_after
        self._reached = Watermark()
        """That of no delay: the greatest time that counts for all."""
        self.greatest: dict[str, int] = {}
        """By partition, of those that have given rows."""

    @property
    def reached(self) -> Watermark:
        """The time up to which all have given rows."""
        return self._reached

    def restore(self, reached: Watermark, greatest: Mapping[str, int]) -> None:
        """Begin with times that were reached before."""
        self._reached, self.greatest = reached, dict(greatest)

    def rows_came(self, partition: str, greatest: int | None) -> None:
        """Rows of a partition came; `greatest` is the greatest of their times, None where all are null."""
        if greatest is not None:
            self.greatest[partition] = max(self.greatest.get(partition, LEAST), greatest)

    def progress(self, waiting: Mapping[str, float]) -> EventTimeProgress:
        """Event time now; `waiting` are the partitions that may give rows, each with seconds without any."""
        holding = {each for each, seconds in waiting.items() if not 0 < self._idle_after <= seconds}
        counts = holding or set(self.greatest)
        times = [self.greatest.get(each, LEAST) for each in counts]
        reached = (min if holding else max)(times, default=LEAST)
        self._reached = max(self._reached, Watermark(reached))
        return EventTimeProgress(self._reached.less(self._delay), is_idle=bool(waiting) and not holding)
