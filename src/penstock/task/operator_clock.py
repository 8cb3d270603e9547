# SPDX-License-Identifier: Apache-2.0
"""The time of a task's work by operator: operators pull batches out of each other, so each gets its own time alone.

One part of the chain works at a time. A part that is asked for a batch works from then on, until it asks the one in
front of it, or gives the batch. Two looks at the clock for each batch and operator, nothing for a row. Who works is
told to the process's sign as well, by which others know it when this process was killed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from penstock.machine.work_sign import WORK


class Batches(Protocol):
    """Batches that can be given up."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def __next__(self) -> pa.RecordBatch: ...

    def close(self) -> None:
        """No more are wanted."""


class OperatorClock:
    """The seconds of each part of a chain; `owner` works when no other part does."""

    def __init__(self, owner: str) -> None:
        self._seconds = {owner: 0.0}
        self._names = Counter((owner,))
        self._owner = owner
        self._since = time.monotonic()

    def timed(self, name: str, batches: Batches) -> TimedBatches:
        """The batches, whose making counts as the time of this part; of two with one name the second is numbered."""
        return TimedBatches(self, self.part(name), batches)

    def part(self, name: str) -> str:
        """One more part, by the name under which it is switched to."""
        self._names[name] += 1
        title = f"{name} #{self._names[name]}" if self._names[name] > 1 else name
        self._seconds[title] = 0.0
        return title

    def switch(self, owner: str) -> str:
        """From now on this part works; returns the one that did."""
        now, former = time.monotonic(), self._owner
        self._seconds[former] += now - self._since
        self._owner, self._since = owner, now
        WORK.tell(owner)
        return former

    def seconds(self) -> dict[str, float]:
        """So far, the time of the one that works now included."""
        self.switch(self._owner)
        return dict(self._seconds)


class TimedBatches:
    """One part's batches. It keeps none."""

    __slots__ = ("_batches", "_clock", "_name")

    def __init__(self, clock: OperatorClock, name: str, batches: Batches) -> None:
        self._clock = clock
        self._name = name
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        former = self._clock.switch(self._name)
        try:
            return next(self._batches)
        finally:
            self._clock.switch(former)

    def close(self) -> None:
        """No more are wanted."""
        self._batches.close()
