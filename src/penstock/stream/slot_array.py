# SPDX-License-Identifier: Apache-2.0
"""Numbers of slots, which a snapshot takes as they are: what changes after it is noted first, as it was.

So a snapshot costs the task nothing when it is taken, and afterwards as much as the rows that come, however large the
state is. A copy of the whole state stood still for 100 ms where it was large. The notes end with the snapshot.

Slots that were never written need no place: to freeze many of them costs no more than few.

Only the task's thread writes. Another one may read a snapshot meanwhile: it copies a range, and then puts back what
was noted of it. A change is noted ahead of its writing, so a copy that saw half of it is put right.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.stream.key_index import Slots
from penstock.stream.state_place import zeros

_LEAST = 1 << 10
_ROUNDS = 255


class _Notes:
    """The values of slots that changed after one snapshot, as they were; `later` are those after the next one."""

    def __init__(self) -> None:
        self.taken: list[tuple[Slots, npt.NDArray[Any]]] = []
        self.later: _Notes | None = None


class FrozenSlots:
    """The values of the first slots as they were at one moment."""

    def __init__(self, values: npt.NDArray[Any], count: int, notes: _Notes, first: float) -> None:
        self._values = values
        self._count = count
        self._notes = notes
        self._first = first
        """The value of slots that were never written, which the array need not have."""

    def __len__(self) -> int:
        return self._count

    @property
    def width(self) -> int:
        """The bytes of one value."""
        return self._values.itemsize

    def values(self, start: int, end: int) -> npt.NDArray[Any]:
        """A copy of a range of them. Any thread."""
        found = self._values[start:end].copy()
        if len(found) < end - start:
            never = _filled(end - start - len(found), self._first, self._values.dtype)
            found = np.concatenate([found, never])
        for notes in self._newest_first():
            for slots, values in notes.taken[:]:
                here = (slots >= start) & (slots < end)
                found[slots[here] - start] = values[here]
        return found

    def at(self, slots: Slots) -> npt.NDArray[Any]:
        """A copy of those of these slots, which are in ascending order and each there once. Any thread."""
        count = int(np.searchsorted(slots, len(self._values)))
        found = _filled(len(slots), self._first, self._values.dtype)
        found[:count] = self._values[slots[:count]]
        for notes in self._newest_first() if len(slots) else ():
            for changed, values in notes.taken[:]:
                places = np.searchsorted(slots, changed)
                places[places == len(slots)] = 0
                here = slots[places] == changed
                found[places[here]] = values[here]
        return found

    def _newest_first(self) -> list[_Notes]:
        chain = [self._notes]
        while (later := chain[-1].later) is not None:
            chain.append(later)
        return chain[::-1]


class SlotArray:
    """One number for each slot, beginning with `first`."""

    def __init__(self, dtype: npt.DTypeLike, first: float = 0) -> None:
        self._first = first
        self._values = _filled(_LEAST, first, np.dtype(dtype))
        self._noted: npt.NDArray[np.uint8] = zeros(_LEAST, np.uint8)
        """The round in which each slot was noted last; kept, because new pages cost more than notes."""
        self._round = 0
        self._notes: weakref.ref[_Notes] | None = None
        """Those of the newest snapshot, as long as it or one before it is held."""

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self._values.nbytes + self._noted.nbytes

    def writable(self, slots: Slots, count: int) -> npt.NDArray[Any]:
        """The values of at least `count` slots, of which these may be changed in place."""
        self._grow(count)
        notes = None if self._notes is None else self._notes()
        if notes is None:
            self._notes = None
            return self._values
        fresh = slots[self._noted[slots] != self._round]
        if len(fresh):
            notes.taken.append((fresh, self._values[fresh]))
            self._noted[fresh] = self._round
        return self._values

    def at(self, slots: Slots) -> npt.NDArray[Any]:
        """The values of these slots, of which some may never have been written."""
        self._grow(int(slots.max(initial=-1)) + 1)
        found: npt.NDArray[Any] = self._values[slots]
        return found

    def frozen(self, count: int) -> FrozenSlots:
        """The values of the first slots as they are now."""
        self._round += 1
        if self._round > _ROUNDS:
            self._noted.fill(0)
            self._round = 1
        notes = _Notes()
        former = None if self._notes is None else self._notes()
        if former is not None:
            former.later = notes
        self._notes = weakref.ref(notes)
        return FrozenSlots(self._values, count, notes, self._first)

    def _grow(self, count: int) -> None:
        if count <= len(self._values):
            return
        size = max(count, 2 * len(self._values))
        grown, noted = _filled(size, self._first, self._values.dtype), zeros(size, np.uint8)
        grown[: len(self._values)] = self._values
        noted[: len(self._noted)] = self._noted
        noted[len(self._noted) :] = 0  # its pages are made now, not by the first rows after a snapshot
        # Snapshots keep the former array, which is not written to any more.
        self._values, self._noted, self._notes = grown, noted, None


def _filled(count: int, value: float, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """So many times the value; zeros cost nothing before they are used."""
    made = zeros(count, dtype)
    if value:
        made.fill(value)
    return made
