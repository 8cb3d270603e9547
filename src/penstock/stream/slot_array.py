# SPDX-License-Identifier: Apache-2.0
"""Numbers of slots, which a snapshot takes as they are: the first update after it writes to a copy.

So the task stands still for the copy of what it changes, and not for the storing.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.stream.key_index import Slots

_LEAST = 1 << 10


class SlotArray:
    """One number for each slot, beginning with `first`.

    There are two arrays once there were snapshots: what is written to, and the one before, which a snapshot may hold.
    Memory is taken anew only where they grow, because fresh pages cost more than the copy.
    """

    def __init__(self, dtype: npt.DTypeLike, first: float = 0) -> None:
        self._first = first
        self._values = _filled(_LEAST, first, np.dtype(dtype))
        self._snapshot: weakref.ref[npt.NDArray[Any]] | None = None
        """The values that a snapshot holds; gone when it is stored."""
        self._spare: npt.NDArray[Any] | None = None
        self._spare_snapshot: weakref.ref[npt.NDArray[Any]] | None = None

    def writable(self, slots: int) -> npt.NDArray[Any]:
        """The values of at least so many slots, to be changed in place until the next `frozen`."""
        if slots > len(self._values):
            grown = _filled(max(slots, 2 * len(self._values)), self._first, self._values.dtype)
            grown[: len(self._values)] = self._values
            self._values, self._spare, self._snapshot = grown, None, None
        elif self._snapshot is not None and self._snapshot() is not None:
            self._leave(slots)
        return self._values

    def at(self, slots: Slots) -> npt.NDArray[Any]:
        """The values of these slots."""
        found: npt.NDArray[Any] = self._values[slots]
        return found

    def frozen(self, slots: int) -> npt.NDArray[Any]:
        """The values of the first slots, which never change as long as this very array is held."""
        if slots > len(self._values):
            self.writable(slots)
        held = self._snapshot() if self._snapshot is not None else None
        if held is None or len(held) != slots:
            if held is not None:
                self._leave(slots)
            held = self._values[:slots]
            self._snapshot = weakref.ref(held)
        return held

    def _leave(self, slots: int) -> None:
        """Go on in the other array, with the values of the first slots."""
        spare = self._spare
        is_held = self._spare_snapshot is not None and self._spare_snapshot() is not None
        if spare is None or is_held or len(spare) != len(self._values):
            spare = _filled(len(self._values), self._first, self._values.dtype)
        spare[:slots] = self._values[:slots]
        self._spare, self._spare_snapshot = self._values, self._snapshot
        self._values, self._snapshot = spare, None


def _filled(count: int, value: float, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """So many times the value; zeros cost nothing before they are used."""
    return np.full(count, value, dtype) if value else np.zeros(count, dtype)
