# SPDX-License-Identifier: Apache-2.0
"""The rows that a task has handled and given, by channel, where another process can read them when it was killed.

    rows.in.<edge>.<producer>.<subpartition>.<field>, for the fields attempt, handled, base, former
    rows.out.<edge>.<subpartition>            rows given to a channel
    rows.all.{handled,given}                  of all channels together
    rows.at.<slot>.{checkpoint,handled,given} the same two as a snapshot was taken: the last `SNAPSHOTS` of them

Rules. A row counts as handled when all that its step gave was dealt out, and as given before any of it can reach its
reader; both by one commit. So at the death of a task each of its rows is on one side, but for the rows of the one
step under way: those count as not handled. `attempt` is that of the producer whose rows come now, `former` are the
rows handled of all attempts before. `base` is how many rows that attempt had sent when this task came to the channel,
-1 as long as that is not known: the first row tells that it came at the beginning, and the first end of an epoch how
many there were. Only for queries whose tasks begin anew alone.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.checkpoint.errors import CorruptCheckpointError
from penstock.shuffle.events import EpochEnd, Event, ProducerIs, Reattached

SNAPSHOTS: Final = 4
UNKNOWN: Final = -1
SOURCE_ROWS: Final = -1
"""The channel of the rows that a source gives."""
_IN = ("attempt", "handled", "base", "former")
_ATTEMPT, _HANDLED, _BASE, _FORMER = range(4)
_AT = ("checkpoint", "handled", "given")


class Numbers(Protocol):
    """Memory that outlives the task: `values` in the order of the names, and the word that makes them visible."""

    @property
    def values(self) -> memoryview[int]:
        """The writer's copy."""

    def commit(self) -> None:
        """Let others see the values as they are."""


@dataclass(frozen=True, slots=True)
class CountedChannels:
    """A task's channels: inputs as edge, producer and subpartition, outputs as edge and number of subpartitions."""

    incoming: Sequence[tuple[int, int, int]]
    outgoing: Sequence[tuple[int, int]]

    def names(self) -> list[str]:
        """The names of all numbers."""
        found = [f"rows.in.{edge}.{producer}.{part}.{name}" for edge, producer, part in self.incoming for name in _IN]
        found += [f"rows.out.{edge}.{part}" for edge, parts in self.outgoing for part in range(parts)]
        found += ["rows.all.handled", "rows.all.given"]
        return found + [f"rows.at.{slot}.{name}" for slot in range(SNAPSHOTS) for name in _AT]


class RowCounts:
    """The counts of one task."""

    def __init__(self, channels: CountedChannels, numbers: Numbers, *, is_kept: bool = False) -> None:
        """`is_kept`: snapshots hold the counts of the channels."""
        self._is_kept = is_kept
        self._numbers = numbers
        self._values = numbers.values
        self._incoming = len(channels.incoming)
        self._firsts: dict[int, tuple[int, int]] = {}
        at = self._incoming * len(_IN)
        for edge, parts in channels.outgoing:
            self._firsts[edge] = at, parts
            at += parts
        self._all, self._at = at, at + 2
        self._snapshots = 0
        self._came = [0] * self._incoming
        """Rows of each channel that have come since this task came to it."""
        self._is_midway = [False] * self._incoming
        """True of a channel to which this task has come in the middle."""
        self._step: deque[tuple[int, int]] = deque()
        """Of the rows that are being handled: the channel, or a negative number for a source's, and how many."""
        for channel in range(self._incoming):
            self._values[channel * len(_IN) + _ATTEMPT] = UNKNOWN
        numbers.commit()

    def came(self, channel: int, rows: int) -> None:
        """Rows have come on a channel; they wait to be taken."""
        self._came[channel] += rows
        at = channel * len(_IN) + _BASE
        if self._values[at] == UNKNOWN and not self._is_midway[channel]:
            self._values[at] = 0

    def event_came(self, channel: int, event: Event) -> None:
        """An event stands here among the rows that have come."""
        at = channel * len(_IN)
        if isinstance(event, Reattached):
            self._came[channel] = 0
            self._is_midway[channel] = True
            self._values[at + _BASE] = UNKNOWN
        elif isinstance(event, EpochEnd) and self._values[at + _BASE] == UNKNOWN:
            self._values[at + _BASE] = event.rows - self._came[channel]
        elif isinstance(event, ProducerIs):
            self._came[channel] = 0
            return
        else:
            return
        self._numbers.commit()

    def producer_is(self, channel: int, attempt: int) -> None:
        """All rows of the attempt before were taken: the next are this one's."""
        at = channel * len(_IN)
        values = self._values
        if values[at + _ATTEMPT] == attempt:
            return  # this task goes on where the one before it was
        values[at + _FORMER] += values[at + _HANDLED]
        values[at + _ATTEMPT], values[at + _HANDLED], values[at + _BASE] = attempt, 0, UNKNOWN
        self._is_midway[channel] = False
        self._numbers.commit()

    def missed(self, channel: int, rows: int) -> None:
        """Rows of a channel were to be read out of a log, and are in none."""
        at = channel * len(_IN) + _BASE
        self._values[at] = max(self._values[at], 0) + rows
        self._numbers.commit()

    def snapshot(self) -> bytes | None:
        """The counts of the channels, for the task that goes on from here alone; None where none can."""
        if not self._is_kept:
            return None
        return struct.pack(f"<{self._incoming * len(_IN)}q", *self._values[: self._incoming * len(_IN)])

    def restore(self, snapshot: bytes) -> None:
        """Go on with the counts of a task that this one follows; raises CorruptCheckpointError."""
        try:
            numbers = struct.unpack(f"<{self._incoming * len(_IN)}q", snapshot)
        except struct.error as error:
            raise CorruptCheckpointError(f"counts of rows for {self._incoming} channels: {error}") from error
        for at, number in enumerate(numbers):
            self._values[at] = number
        self._numbers.commit()

    def positions(self) -> list[tuple[int, int]]:
        """Of each channel the producer's attempt, and how many of its rows are handled, or known to be lost."""
        values = self._values
        firsts = range(0, self._incoming * len(_IN), len(_IN))
        return [(values[at + _ATTEMPT], values[at + _HANDLED] + max(values[at + _BASE], 0)) for at in firsts]

    def taken(self, channel: int, rows: int) -> None:
        """Rows of a channel, or of the source (-1), are handled now; they are in the step."""
        self._step.append((channel, rows))

    def given(self, edge: int, subpartition: int, rows: int) -> None:
        """Rows were dealt out; a negative subpartition stands for all of the edge."""
        first, parts = self._firsts[edge]
        for part in range(parts) if subpartition < 0 else (subpartition,):
            self._values[first + part] += rows
            self._values[self._all + 1] += rows

    def handled(self, rows: int) -> None:
        """So many rows of the step, from its front, have given all that they give."""
        left = rows
        while left and self._step:
            channel, count = self._step.popleft()
            done = min(count, left)
            left -= done
            if done < count:
                self._step.appendleft((channel, count - done))
            if channel >= 0:
                self._values[channel * len(_IN) + _HANDLED] += done
            self._values[self._all] += done

    def commit(self) -> None:
        """Let all that was counted be seen at once."""
        self._numbers.commit()

    def snapshot_taken(self, checkpoint: int) -> None:
        """The task's snapshot holds what was counted until now."""
        at = self._at + (self._snapshots % SNAPSHOTS) * len(_AT)
        self._snapshots += 1
        self._values[at] = checkpoint
        self._values[at + 1], self._values[at + 2] = self._values[self._all], self._values[self._all + 1]
        self._numbers.commit()


class Uncounted(RowCounts):
    """Counts nothing: the query restarts as a whole, so nothing is lost."""

    def __init__(self) -> None:
        """Without memory."""

    def came(self, channel: int, rows: int) -> None:
        """Nothing."""

    def event_came(self, channel: int, event: Event) -> None:
        """Nothing."""

    def producer_is(self, channel: int, attempt: int) -> None:
        """Nothing."""

    def missed(self, channel: int, rows: int) -> None:
        """Nothing."""

    def snapshot(self) -> None:
        """Nothing."""

    def taken(self, channel: int, rows: int) -> None:
        """Nothing."""

    def given(self, edge: int, subpartition: int, rows: int) -> None:
        """Nothing."""

    def handled(self, rows: int) -> None:
        """Nothing."""

    def commit(self) -> None:
        """Nothing."""

    def snapshot_taken(self, checkpoint: int) -> None:
        """Nothing."""
