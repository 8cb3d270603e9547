# SPDX-License-Identifier: Apache-2.0
"""The rows that a query has lost whose tasks begin anew alone: sent less received, by edge. Pure.

    lost = given by all attempts of the producer that are over
         + sent by the one that runs, before the reader that runs came to it
         - handled by all attempts of the reader that are over
         - handled by the one that runs, of producers before

That is for one channel. The counts of a task say, when it is over, what it has given and handled; those of one that
runs what it has handled, and the first end of an epoch that it gets how many rows were sent before it came. So
nothing is guessed: a channel is *open* while one of these is not known, and its last known loss counts meanwhile.
A reader that takes its rows again out of logs goes on with the counts of its checkpoint, so the counts of the
attempts before it say nothing: to its channels it never was away.

The rows since a checkpoint are those since the one with which the next attempt begins. One whose metadata is being
written at the death may still become complete, so that is known only when the attempt is deployed: the difference to
the checkpoint that was the newest at the death is put right then.

Attempts of a subtask have growing numbers. The names of counts are those of `stream/row_counts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.shuffle import AttemptId
from penstock.shuffle.metrics import ROWS_GROUP

Channel = tuple[int, int, int]
"""Edge, producing subtask, subpartition."""
_NONE = -1
_HANDLED, _GIVEN = "handled", "given"


@dataclass(frozen=True, slots=True)
class LostRows:
    """The loss as far as it is known. `lost` is by edge, `open` the number of channels of which it is not known yet.

    `forgotten` are rows that tasks had handled since the checkpoint with which they began anew: what they gave for
    them is there, their state lacks them. `again` are rows that sources had given since then, and give once more;
    where rows are logged for readers, so do all tasks, and nothing is forgotten.
    `uncounted` attempts have ended without their counts: all that they gave and handled is missing here.
    """

    lost: Mapping[int, int] = field(default_factory=dict)
    open: int = 0
    forgotten: int = 0
    again: int = 0
    uncounted: int = 0


@dataclass(slots=True)
class _Over:
    """The sums of one channel's attempts that are over, the newest of them that gave, and the loss known last."""

    given: int = 0
    handled: int = 0
    newest: int = _NONE
    lost: int = 0


@dataclass(frozen=True, slots=True)
class _Taken:
    """The counts of a reader at one channel: the producer's attempt, rows of it, those sent before, and of others."""

    producer: int
    handled: int
    base: int
    former: int


@dataclass(frozen=True, slots=True)
class _Since:
    """An attempt that is over, by its last counts: the total that counts since a checkpoint, and what it came to."""

    counts: Mapping[str, float]
    total: str
    rows: int


class RowAccount:
    """The account of one query."""

    def __init__(self) -> None:
        self._channels: dict[Channel, _Over] = {}
        self._lost: dict[int, int] = {}
        """Of times before all tasks began anew."""
        self._counted: AttemptId | None = None
        self._forgotten = self._again = self._uncounted = 0
        self._since: dict[tuple[int, int], _Since] = {}
        """Of subtasks whose next attempt is not deployed yet."""

    def begin_anew(self) -> None:
        """All tasks begin with the last checkpoint: rows under way now are read again."""
        for (edge, _, _), over in self._channels.items():
            self._lost[edge] = self._lost.get(edge, 0) + over.lost
        self._channels.clear()

    def ended(
        self,
        attempt: AttemptId,
        counts: Mapping[str, float],
        checkpoint: int | None,
        *,
        reads: bool,
        reads_again: bool = False,
    ) -> None:
        """An attempt is over, and its subtask begins anew with this checkpoint; `reads` is False for a source.

        With `reads_again` the next attempt goes on with the counts of the checkpoint, and takes its rows out of logs.
        """
        self._counted = attempt
        for channel, reading in _incoming(counts):
            over = self._over(channel)
            if not reads_again:
                over.handled += reading.handled + reading.former
        for name, given in counts.items():
            if name.startswith(f"{ROWS_GROUP}out."):
                edge, part = map(int, name.split(".")[2:])
                over = self._over((edge, attempt.subtask, part))
                over.given, over.newest = over.given + int(given), max(over.newest, attempt.attempt)
        total = _HANDLED if reads and not reads_again else _GIVEN
        rows = _since(counts, checkpoint, total)
        self._since[attempt.vertex, attempt.subtask] = _Since(counts, total, rows)
        self._add(total, rows)

    def begins(self, attempt: AttemptId, checkpoint: int | None) -> None:
        """A subtask's next attempt is deployed, with this checkpoint."""
        before = self._since.pop((attempt.vertex, attempt.subtask), None)
        if before is not None:
            self._add(before.total, _since(before.counts, checkpoint, before.total) - before.rows)

    def left(self, attempt: AttemptId) -> None:
        """A subtask begins anew; where this attempt of it has told no counts, its part of the loss is not known."""
        self._uncounted += attempt != self._counted

    def lost(self, live: Mapping[AttemptId, Mapping[str, float]]) -> LostRows:
        """The loss as far as it is known with the last counts of the tasks that run."""
        readings = {channel: reading for counts in live.values() for channel, reading in _incoming(counts)}
        is_open = 0
        for channel in self._channels.keys() | readings.keys():
            over, reading = self._over(channel), readings.get(channel)
            if reading is None or reading.base < 0 or over.newest >= reading.producer:
                is_open += channel in self._channels and bool(over.given or over.handled)
            else:
                over.lost = over.given + reading.base - over.handled - reading.former
        sums = dict(self._lost)
        for (edge, _, _), over in self._channels.items():
            sums[edge] = sums.get(edge, 0) + over.lost
        return LostRows(sums, is_open, self._forgotten, self._again, self._uncounted)

    def _add(self, total: str, rows: int) -> None:
        if total == _HANDLED:
            self._forgotten += rows
        else:
            self._again += rows

    def _over(self, channel: Channel) -> _Over:
        return self._channels.setdefault(channel, _Over())


def _incoming(counts: Mapping[str, float]) -> Iterator[tuple[Channel, _Taken]]:
    """Each channel that a producer is known of."""
    start, end = f"{ROWS_GROUP}in.", ".attempt"
    for name, attempt in counts.items():
        if name.startswith(start) and name.endswith(end) and attempt != _NONE:
            stem = name.removesuffix("attempt")
            edge, producer, part = map(int, name.removeprefix(start).removesuffix(end).split("."))
            handled, base, former = (int(counts.get(stem + each, 0)) for each in ("handled", "base", "former"))
            yield (edge, producer, part), _Taken(int(attempt), handled, base, former)


def _since(counts: Mapping[str, float], checkpoint: int | None, total: str) -> int:
    """The rows of a total that came after this checkpoint's snapshot."""
    return int(counts.get(f"{ROWS_GROUP}all.{total}", 0)) - _at(counts, checkpoint, total)


def _at(counts: Mapping[str, float], checkpoint: int | None, total: str) -> int:
    """The total as it was when this checkpoint's snapshot was taken; 0 where an earlier attempt took it."""
    for name, number in counts.items():
        if name.endswith(".checkpoint") and name.startswith(f"{ROWS_GROUP}at.") and number == checkpoint:
            return int(counts[name.removesuffix("checkpoint") + total])
    return 0
