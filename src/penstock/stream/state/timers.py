# SPDX-License-Identifier: Apache-2.0
"""Timers of keys: a time in milliseconds, at most once for each key. They are rows of state as all others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.record.layout import int64_array
from penstock.stream.increments import Chains
from penstock.stream.key_index import Slots
from penstock.stream.state.columns import values_of
from penstock.stream.state.due_times import DueTimes, Times
from penstock.stream.state.entries import Entries, FrozenEntries

TIME = "time"
_INT64 = np.dtype(np.int64)
_FOR_EVER = (1 << 63) - 1


class Timers:
    """The timers of one task's slots."""

    def __init__(self) -> None:
        self._entries = Entries([pa.int64()])
        self._due = DueTimes()
        self.changes = Chains()
        """It is told whose timers change."""

    @property
    def live(self) -> int:
        """The number of timers that wait."""
        return self._entries.live

    @property
    def size(self) -> int:
        """The number of timers that memory is held for."""
        return len(self._entries)

    @property
    def next(self) -> int | None:
        """The time at which to look at them again; there may be nothing to fire then."""
        return self._due.next

    def register(self, slots: Slots, times: Times) -> None:
        """Have timers of these slots fire at these times; one that is there already fires once."""
        self.changes.changed(slots)
        self._add(slots, times)

    def _add(self, slots: Slots, times: Times) -> None:
        if not len(slots):
            return
        entries, fresh = self._entries.add(slots, [int64_array(np.ascontiguousarray(times))])
        entries, firsts = np.unique(entries[fresh], return_index=True)
        self._due.add(times[fresh][firsts], entries)

    def delete(self, slots: Slots, times: Times) -> None:
        """Have timers not fire; those that are not there are none."""
        if not len(slots):
            return
        self.changes.changed(slots)
        entries = self._entries.find(slots, [int64_array(np.ascontiguousarray(times))])
        self._entries.remove(entries[entries >= 0])

    def of(self, slots: Slots) -> tuple[Slots, Times]:
        """The timers of these slots, slot after slot and in order of time: whose each is, and its time."""
        owners, entries = self._entries.of(slots)
        times = values_of(self._entries.keys(entries)[0], _INT64)
        order = np.lexsort((times, owners))
        return owners[order], times[order]

    def take(self, now: int, most: int) -> tuple[Slots, Times]:
        """Take the timers that fire at a time or before, in order of time, and not more than `most`."""
        times, entries = self._due.take(now, most)
        # One that was deleted and registered again is due twice.
        first: npt.NDArray[np.bool_] = np.zeros(len(entries), np.bool_)
        first[np.unique(entries, return_index=True)[1]] = True
        fires = first & self._entries.is_live(entries)
        entries, times = entries[fires], times[fires]
        self._entries.remove(entries)
        owners = self._entries.owners(entries)
        self.changes.changed(owners)
        return owners, times

    def take_all(self) -> tuple[Slots, Times]:
        """Take all timers, in order of time."""
        return self.take(_FOR_EVER, len(self._due))

    def restore(self, slots: Slots, columns: list[pa.Array]) -> None:
        """Take rows of a snapshot."""
        self._add(slots, values_of(columns[0], _INT64))

    def clear(self, slots: Slots) -> None:
        """Remove all timers of these slots."""
        _, entries = self._entries.of(slots)
        self._entries.remove(entries)

    def frozen(self, count: int) -> FrozenTimers:
        """The timers as they are now."""
        return FrozenTimers(self._entries.frozen(count))


class FrozenTimers:
    """The timers of all slots at one moment."""

    step = 1 << 20

    def __init__(self, entries: FrozenEntries) -> None:
        self._entries = entries
        self.count = entries.count
        self.width = entries.width

    def rows(self, start: int, end: int) -> tuple[Slots, list[pa.Array]]:
        """Those of a range of numbers: whose each is, and its time."""
        _, owners, keys = self._entries.present(start, end)
        return owners, keys

    def of(self, slots: Slots) -> tuple[Slots, list[pa.Array]]:
        """Those of these slots, which are in ascending order."""
        _, owners, keys = self._entries.of(slots)
        return owners, keys
