# SPDX-License-Identifier: Apache-2.0
"""The channels of a task that has begun anew alone, and reads out of logs what its predecessor's death has cost it.

A pure core: it says which rows of a log stand in front of what comes, and holds that back meanwhile.

Rules
- A channel goes on at the position of the task's last checkpoint. Rows are numbered by their producer's attempt.
- Rows that are sent before the first end of an epoch have no number, so they are dropped. That end says how many rows
  were in front of it, and the producer ends its log's file there: the log has all rows from the position to the end.
- Rows behind that end wait until those in the log were given. If more than `most` bytes wait, rows at the end of the
  channels are dropped and become a further range of the log, up to the next end of an epoch. So no producer waits.
- Of a producer that dies meanwhile the range without an end is dropped: its successor gives these rows again, because
  no checkpoint is complete before the task has got past the end of each epoch in front of it.
- A reader that was there when its producer came needs no log, and a channel of which nothing waits lets all pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.shuffle.events import EndOfPartition, EpochEnd, Event, ProducerIs, Reattached

Row = TypeVar("Row")
NOBODY = -1
"""The attempt of a producer of which nothing is known."""


@dataclass(slots=True, eq=False)
class LoggedRange:
    """Rows of a channel that are in the log of an attempt of its producer; `last` None: how many is not known yet."""

    channel: int
    attempt: int
    first: int
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Rows(Generic[Row]):
    """Rows that have come, and their number."""

    rows: Row
    count: int
    size: int


Item = LoggedRange | Event | Rows[Row]


class _Channel(Generic[Row]):
    """One channel."""

    def __init__(self, number: int, attempt: int, position: int) -> None:
        self.number = number
        self.attempt = attempt
        self.position = position
        """Of the attempt's rows, how many are in front of what comes next."""
        self.queue: deque[Item[Row]] = deque()
        self.open: LoggedRange | None = None
        """The range whose end is not known yet: what comes is in it."""

    def producer_is(self, event: ProducerIs) -> None:
        if self.open is not None:
            self.queue.remove(self.open)
            self.open = None
        if event.attempt != self.attempt:
            self.attempt, self.position = event.attempt, 0
        self.queue.append(event)

    def begin_range(self) -> None:
        self.open = LoggedRange(self.number, self.attempt, self.position)
        self.queue.append(self.open)

    def end_range(self, rows: int) -> None:
        """So many of the attempt's rows are in front of this."""
        self.position = rows
        if self.open is not None:
            self.open.last = max(rows, self.open.first)
            self.open = None

    def drop(self) -> int:
        """The rows behind all events become a range of the log: the bytes that are dropped."""
        size = 0
        while self.queue and isinstance(last := self.queue[-1], Rows):
            self.queue.pop()
            size += last.size
            self.position -= last.count
        if size:
            self.begin_range()
        return size


class ChannelsAgain(Generic[Row]):
    """Those of one task. `positions` holds the producer's attempt and the position of each channel."""

    def __init__(self, positions: Sequence[tuple[int, int]], most: int) -> None:
        self._channels: list[_Channel[Row]] = [_Channel(number, *each) for number, each in enumerate(positions)]
        self._most = most
        self._turn = 0
        self.waiting = 0
        """Bytes of the rows that wait."""

    @property
    def is_over(self) -> bool:
        """True if nothing waits: what comes may pass."""
        return not any(channel.queue for channel in self._channels)

    @property
    def is_waiting(self) -> bool:
        """True if a range of a log is waited for, or is to be read."""
        return any(isinstance(each, LoggedRange) for channel in self._channels for each in channel.queue)

    def rows_came(self, channel: int, rows: Row, count: int, size: int) -> None:
        """Rows have come on a channel."""
        found = self._channels[channel]
        if found.open is not None:
            return
        found.position += count
        found.queue.append(Rows(rows, count, size))
        self.waiting += size
        if self.waiting > self._most and self.is_waiting:
            self.waiting -= sum(each.drop() for each in self._channels if self._may_drop(each))

    def event_came(self, channel: int, event: Event) -> None:
        """An event has come on a channel, in order with its rows."""
        found = self._channels[channel]
        if isinstance(event, ProducerIs):
            found.producer_is(event)
        elif isinstance(event, Reattached):
            found.begin_range()
        else:
            if isinstance(event, EpochEnd | EndOfPartition):
                found.end_range(event.rows)
            found.queue.append(event)

    def take(self, given: Callable[[LoggedRange], Row | None]) -> tuple[int, Event | Row] | None:
        """The next thing that is to be handled, with its channel; None where none is.

        `given` has the next rows of a range, or None: none are there yet. It is asked until `range_ended` is called.
        """
        for _ in self._channels:
            channel = self._channels[self._turn % len(self._channels)]
            self._turn += 1
            if not channel.queue:
                continue
            item = channel.queue[0]
            if isinstance(item, LoggedRange):
                rows = None if item.last is None else given(item)
                if rows is not None:
                    return channel.number, rows
                continue
            channel.queue.popleft()
            if isinstance(item, Rows):
                self.waiting -= item.size
                return channel.number, item.rows
            return channel.number, item
        return None

    def wanted(self) -> list[LoggedRange]:
        """The ranges that are to be read now: those in front of all else of their channels."""
        fronts = [channel.queue[0] for channel in self._channels if channel.queue]
        return [each for each in fronts if isinstance(each, LoggedRange) and each.last is not None]

    def range_ended(self, wanted: LoggedRange) -> None:
        """All rows of a range that are there were given."""
        queue = self._channels[wanted.channel].queue
        if queue and queue[0] is wanted:
            queue.popleft()

    def check(self) -> None:
        """The invariants of this core; raises AssertionError."""
        held = sum(each.size for channel in self._channels for each in channel.queue if isinstance(each, Rows))
        if held != self.waiting:
            raise AssertionError(f"{held} bytes wait, and {self.waiting} are counted")
        for channel in self._channels:
            opened = [each for each in channel.queue if isinstance(each, LoggedRange) and each.last is None]
            if opened != ([] if channel.open is None else [channel.open]):
                raise AssertionError(f"channel {channel.number} has the open ranges {opened}")
            if channel.open is not None and any(isinstance(each, Rows) for each in _behind(channel)):
                raise AssertionError(f"rows of channel {channel.number} wait after a range without an end")

    @staticmethod
    def _may_drop(channel: _Channel[Row]) -> bool:
        """Rows behind all that waits, of a producer whose number is known."""
        return channel.open is None and channel.attempt != NOBODY


def _behind(channel: _Channel[Row]) -> list[Item[Row]]:
    items = list(channel.queue)
    return items[items.index(channel.open) :] if channel.open is not None else []
