# SPDX-License-Identifier: Apache-2.0
"""The watermark: a moment of event time, and the one rule by which anything is late or over.

Its number is read only here: windows, sessions, joins, duplicates, timers, producers and consumers ask here, so none
of them can judge by another rule.

Rules
- Rows that come behind a watermark have its moment as their time, or a later one. A row of an earlier time is late.
- A window or session, which takes the times before its end, is over when the watermark has reached the end. Its own
  time is the last moment before that, which is late from then on and never sooner. So what a step gives out for that,
  ahead of the watermark that says so, is late for no step that comes next.
- Rows that may be so much older than those in front of a step have a watermark that is so much less behind it.
- A watermark never goes back, and a step that passes one on that does has a fault.

Moments are microseconds since 1970. Processors have milliseconds, as PySpark's: those that have passed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.operators.group_merges import Mask
from penstock.operators.times import Times

LEAST: Final = -(1 << 63)
"""The moment at which no time has passed yet: no row is late."""
MOST: Final = (1 << 63) - 1
"""The moment at which the data has ended: all times have passed."""

_MILLISECOND: Final = 1000


@dataclass(frozen=True, slots=True)
class Passed:
    """The times that have passed for some rows: by one watermark, or by one for each row."""

    _microseconds: Any = LEAST

    def is_late(self, times: Times) -> Mask:
        """A mask of the rows that have come too late with these times."""
        return np.asarray(times < self._microseconds)

    def is_over(self, ends: Times) -> Mask:
        """A mask of what takes no rows any more: all times before these ends have passed."""
        return np.asarray(ends <= self._microseconds)

    def keeps(self, until: Times) -> Mask:
        """A mask of what is needed until a row of this time may come, and that not being late; `LEAST`: never."""
        return np.asarray(until >= np.maximum(self._microseconds, LEAST + 1))

    def later_of(self, times: Times) -> Times:
        """These times, or where they have passed the moment up to which all have."""
        later: Times = np.maximum(times, self._microseconds)
        return later


@dataclass(frozen=True, slots=True, order=True)
class Watermark(Passed):
    """One watermark, for all rows of a place; a later one is greater."""

    _microseconds: int = LEAST

    @classmethod
    def at(cls, moment: Watermark | int) -> Watermark:
        """The watermark at a moment; one that is there already is itself."""
        return moment if isinstance(moment, Watermark) else cls(moment)

    @property
    def is_none(self) -> bool:
        """True if no time has passed."""
        return self._microseconds == LEAST

    @property
    def is_end(self) -> bool:
        """True if all times have passed: the data has ended."""
        return self._microseconds == MOST

    def has_reached(self, end: int) -> bool:
        """Tell whether what ends there is over."""
        return end <= self._microseconds

    def less(self, microseconds: int) -> Watermark:
        """The watermark of rows that may be so much older."""
        if not microseconds or self.is_none or self.is_end:
            return self
        return Watermark(max(LEAST, self._microseconds - microseconds))

    @property
    def milliseconds(self) -> int:
        """The milliseconds that have passed: timers of these times and earlier ones are due."""
        return self._microseconds // _MILLISECOND

    @property
    def unix_seconds(self) -> float | None:
        """The seconds since 1970, to be shown; None where no time has passed, or all times have."""
        return None if self.is_none or self.is_end else self._microseconds / 1e6

    @property
    def stored(self) -> bytes:
        """The bytes of it in a snapshot, or in an event."""
        return self._microseconds.to_bytes(8, "little", signed=True)

    @classmethod
    def of_stored(cls, stored: bytes | None) -> Watermark:
        """Inverse of `stored`; there is none where nothing was stored."""
        return cls() if stored is None else cls(int.from_bytes(stored, "little", signed=True))


def least_stored(states: Iterable[bytes | None]) -> Watermark:
    """The watermark to begin with, of those that subtasks stored; None: one had none."""
    return min(map(Watermark.of_stored, states), default=Watermark())


def never_back(before: Watermark, now: Watermark, place: str) -> None:
    """Raise AssertionError where the watermark of a place went back: windows would come twice."""
    if now < before:
        raise AssertionError(f"{place}: its watermark goes back, from {before} to {now}")


class Watermarks(Passed):
    """Several: one for each row, or for each key group."""

    __slots__ = ()

    @classmethod
    def none(cls, count: int) -> Watermarks:
        """So many watermarks, none of which has come yet."""
        return cls(np.full(count, LEAST, np.int64))

    @classmethod
    def of_one(cls, watermark: Watermark) -> Watermarks:
        """One watermark alone."""
        return cls(watermark.later_of(np.full(1, LEAST, np.int64)))

    def put(self, places: Sequence[int], moments: Sequence[int]) -> None:
        """Set those at these places: to one moment, or to one for each."""
        self._microseconds[list(places)] = moments

    def of(self, places: npt.NDArray[Any] | Sequence[int]) -> Watermarks:
        """Those at these places."""
        return Watermarks(self._microseconds[places])

    def or_later(self, watermark: Watermark) -> Watermarks:
        """Each, or this one where it is later."""
        return Watermarks(watermark.later_of(self._microseconds))

    @property
    def least(self) -> Watermark:
        """The least of them."""
        return Watermark(int(self._microseconds.min(initial=MOST)))

    @property
    def greatest(self) -> Watermark:
        """The greatest of them."""
        return Watermark(int(self._microseconds.max(initial=LEAST)))

    @property
    def moments(self) -> list[int]:
        """Their moments, to be stored."""
        found: list[int] = self._microseconds.tolist()
        return found
