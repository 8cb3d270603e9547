# SPDX-License-Identifier: Apache-2.0
"""Barriers that overtake rows: one task's decisions, and which of the rows in flight are its own to save.

Rules
- An unaligned barrier is announced ahead of the rows that it has overtaken. The snapshot is taken at the first one,
  at once; later ones of its checkpoint change nothing here.
- Each channel tells where a barrier stands among its rows by a *mark*, in order. Rows in front of it that the task
  had not processed when it took its snapshot are the task's ("in"); rows behind it are not of this checkpoint: the
  producer has saved it, or it was sent later. The end of a channel is the mark of every checkpoint.
- An aligned barrier is treated as ever, and is a mark too. One that may time out is announced when it arrives, and
  what is being aligned turns unaligned when that was long ago: then its channels go on, and late ones too.
- A newer barrier, a marker, a word from the coordinator: as for aligned ones.

Memory: the rows of channels whose mark has not come are kept until they are stored. Those are at most the rows that
had left the senders' queues when the barrier entered these (a channel's credit and its window), and those that a
producer that has ended left over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from penstock.checkpoint.alignment import NO_CHECKPOINT, Action, AlignedBarriers, Snapshot
from penstock.checkpoint.barriers import Alignment, CheckpointBarrier

NO_MARK = NO_CHECKPOINT
"""The mark of an item that is no barrier."""
ALWAYS = 1 << 63
"""The mark of a channel's end: above every checkpoint."""


class UnalignedBarriers(AlignedBarriers):
    """The barriers of one task, of every alignment that gives exactly-once."""

    def __init__(self, channels: Iterable[int]) -> None:
        super().__init__(channels)
        self._deadline: float | None = None

    @property
    def deadline(self) -> float | None:
        """When `time_passed` is to be called, if at all."""
        return self._deadline if self._barrier is not None else None

    def announced(self, barrier: CheckpointBarrier, now: float) -> list[Action]:
        """A barrier has arrived on some channel: what has overtaken its rows, or may time out, counts at once."""
        if not barrier.may_time_out and barrier.alignment is not Alignment.UNALIGNED:
            return []
        if self._is_over(barrier.checkpoint):
            return []
        actions: list[Action] = []
        if barrier.checkpoint > self._current:
            actions = self._begin(barrier, now)
        if barrier.alignment is Alignment.UNALIGNED:
            return actions + self._overtake()
        return actions + self.time_passed(now)

    def barrier_came(self, channel: int, barrier: CheckpointBarrier, now: float) -> list[Action]:
        """A barrier came in order with the rows; of an unaligned one nothing is left to be done."""
        if barrier.alignment is Alignment.UNALIGNED:
            return self.announced(barrier, now)
        return super().barrier_came(channel, barrier, now) + self.time_passed(now)

    def triggered(self, barrier: CheckpointBarrier, now: float) -> list[Action]:
        """The coordinator triggers a task in front of which no task runs (any more)."""
        if barrier.alignment is Alignment.UNALIGNED:
            return self.announced(barrier, now)
        return super().triggered(barrier, now) + self.time_passed(now)

    def time_passed(self, now: float) -> list[Action]:
        """Turn the barriers that are being aligned to unaligned if that takes too long."""
        deadline = self.deadline
        return self._overtake() if deadline is not None and now >= deadline else []

    def _begin(self, barrier: CheckpointBarrier, now: float, keep: int | None = None) -> list[Action]:
        self._deadline = now + barrier.timeout if barrier.may_time_out and barrier.timeout is not None else None
        return super()._begin(barrier, now, keep)

    def _overtake(self) -> list[Action]:
        """Take the snapshot now; what was stopped goes on."""
        barrier = self._barrier
        if barrier is None:
            return []
        self._barrier = None
        self._aligned.clear()
        taken = Snapshot(replace(barrier, alignment=Alignment.UNALIGNED), self._since)
        return [taken, *self._resume(tuple(sorted(self._blocked)))]


Row = TypeVar("Row")
"""Rows of one channel: a batch, or in a test anything."""
Word = TypeVar("Word")
"""An event of a channel."""


@dataclass(frozen=True, slots=True)
class WaitingRows(Generic[Row, Word]):
    """One thing that a task has received and not taken: rows or an event, which may be a mark."""

    channel: int
    rows: Row | None
    event: Word | None
    mark: int = NO_MARK


class RowsInFlight(Generic[Row, Word]):
    """The rows of a task's channels that have come and were not taken, in order, and those that a snapshot holds."""

    def __init__(self, channels: int, former: int = 0) -> None:
        """`former` channels are numbered behind the others, and have nothing but restored rows."""
        self._queue: deque[WaitingRows[Row, Word]] = deque()
        self._arrived = [NO_MARK] * channels + [ALWAYS] * former
        """Per channel the newest mark that has come,"""
        self._passed = [NO_MARK] * (channels + former)
        """and the newest that was taken."""
        self._checkpoint: int | None = None
        self._missing: set[int] = set()
        self._saved: list[tuple[int, Row]] = []
        self._with_barrier: set[int] = set()

    @property
    def with_barrier(self) -> frozenset[int]:
        """The channels whose rows in the last snapshot end with its barrier, and not with the end of the channel."""
        return frozenset(self._with_barrier)

    @property
    def next(self) -> WaitingRows[Row, Word] | None:
        """The item to be taken next."""
        return self._queue[0] if self._queue else None

    @property
    def missing(self) -> frozenset[int]:
        """The channels whose mark the snapshot under way waits for."""
        return frozenset(self._missing)

    def rows_came(self, channel: int, rows: Row) -> None:
        """Rows of a channel, after all that has come of it."""
        self._queue.append(WaitingRows(channel, rows, None))
        if channel in self._missing:
            self._saved.append((channel, rows))

    def event_came(self, channel: int, event: Word, mark: int = NO_MARK) -> None:
        """An event of a channel; `mark` is its checkpoint where it is a barrier, ALWAYS where the channel ends."""
        self._queue.append(WaitingRows(channel, None, event, mark))
        if mark > self._arrived[channel]:
            self._arrived[channel] = mark
        if self._checkpoint is not None and mark >= self._checkpoint:
            self._closed(channel, mark)

    def take(self) -> WaitingRows[Row, Word]:
        """Take the next item: it is processed now."""
        found = self._queue.popleft()
        if found.mark > self._passed[found.channel]:
            self._passed[found.channel] = found.mark
        return found

    def keep(self, rows: Row) -> None:
        """Of the rows that are next only a part is taken; these are left."""
        first = self._queue.popleft()
        self._queue.appendleft(WaitingRows(first.channel, rows, None))

    def begin(self, checkpoint: int) -> None:
        """The task's snapshot is taken now: rows that wait in front of a channel's mark, and come in front of it."""
        self._checkpoint = checkpoint
        self._missing = {channel for channel, mark in enumerate(self._arrived) if mark < checkpoint}
        closed = {channel for channel, mark in enumerate(self._passed) if mark >= checkpoint}
        self._saved = []
        self._with_barrier = set()
        for waiting in self._queue:
            if waiting.mark >= checkpoint:
                self._with_barrier |= {waiting.channel} - closed if waiting.mark != ALWAYS else set()
                closed.add(waiting.channel)
            elif waiting.rows is not None and waiting.channel not in closed:
                self._saved.append((waiting.channel, waiting.rows))

    def saved(self) -> list[tuple[int, Row]] | None:
        """The rows of the snapshot, each channel's in order, once all marks have come: to be asked for once."""
        if self._checkpoint is None or self._missing:
            return None
        saved = self._saved
        self.drop()
        return saved

    def _closed(self, channel: int, mark: int) -> None:
        """A mark of the snapshot under way has come on a channel."""
        if channel in self._missing and mark != ALWAYS:
            self._with_barrier.add(channel)
        self._missing.discard(channel)

    def drop(self) -> None:
        """The snapshot under way is given up, or has been handed out."""
        self._checkpoint = None
        self._missing = set()
        self._saved = []
