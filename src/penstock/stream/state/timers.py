# SPDX-License-Identifier: Apache-2.0
"""Timers of keys: a time in milliseconds, at most once for each key. They are rows of state as all others.

A timer waits until it is taken to fire, however many are due at once. So the calls of those ahead of it see it, may
delete it, and register it again without effect.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.record.layout import int64_array
from penstock.stream.increments import Chains
from penstock.stream.key_index import Slots
from penstock.stream.slot_array import SlotArray
from penstock.stream.state.columns import Mask, values_of
from penstock.stream.state.due_times import DueTimes, Times
from penstock.stream.state.entries import Entries, FrozenEntries
from penstock.stream.state_place import bytes_of

TIME = "time"
_INT64 = np.dtype(np.int64)
_FEWEST = 1 << 8
"""So many due times are looked at, at least, for those of different slots."""


class Timers:
    """The timers of one task's slots."""

    def __init__(self) -> None:
        self.changes = Chains()
        """It is told whose timers change."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all timers."""
        self._entries = Entries([pa.int64()])
        self._due = DueTimes()
        self._is_due = SlotArray(np.bool_)
        """The entries that are among the due times, removed ones too: none is there twice."""
        self._taken: Slots = np.zeros(0, np.int64)
        self._looks = 0
        self._first: Slots = np.zeros(0, np.int64)
        self._is_ending = False

    @property
    def live(self) -> int:
        """The number of timers that wait."""
        return self._entries.live

    @property
    def size(self) -> int:
        """The number of timers that memory is held for."""
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """The bytes of all."""
        return bytes_of((self._entries, self._due, self._is_due))

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
        if self._is_ending:
            return
        entries, times = entries[fresh], times[fresh]
        is_due = self._is_due.at(entries)
        if is_due.any():
            entries, times = entries[~is_due], times[~is_due]
        self._await(times, entries)

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
        return self._removed(*self._live_due(now, most))

    def take_firsts(self, now: int, most: int) -> tuple[Slots, Times]:
        """Take the first timers of slots that fire at a time or before, in order of time: each slot is there once."""
        # Few slots may have many timers: it looks at no more of them than twice those that fired last.
        times, entries, owners = self._live_due(now, max(_FEWEST, min(most, self._looks or most)))
        is_first = self._firsts(owners)
        count = int(np.count_nonzero(is_first))
        self._looks = 2 * count
        if count < len(owners):
            self._await(times[~is_first], entries[~is_first])
            times, entries, owners = times[is_first], entries[is_first], owners[is_first]
        return self._removed(times, entries, owners)

    def _firsts(self, owners: Slots) -> Mask:
        """Mark the first of each owner."""
        top = int(owners.max(initial=-1)) + 1
        if top > len(self._first):
            self._first = np.zeros(2 * top, np.int64)
        rows = np.arange(len(owners))
        self._first[owners[::-1]] = rows[::-1]
        is_first: Mask = self._first[owners] == rows
        return is_first

    def forget_again(self) -> None:
        """Remove those that were taken last and are there again."""
        again = self._taken[self._entries.is_live(self._taken)]
        if len(again):
            self._entries.remove(again)

    def end(self) -> None:
        """Let those fire alone that wait now, and none that is registered from here on."""
        self._is_ending = True

    def _await(self, times: Times, entries: Slots) -> None:
        self._is_due.writable(entries, len(self._entries))[entries] = True
        self._due.add(times, entries)

    def _live_due(self, now: int, most: int) -> tuple[Times, Slots, Slots]:
        """Due times that count, which are among the others no more: each with its entry and its slot."""
        times, entries = self._due.take(now, most)
        self._is_due.writable(entries, len(self._entries))[entries] = False
        fires = self._entries.is_live(entries)
        times, entries = times[fires], entries[fires]
        return times, entries, self._entries.owners(entries)

    def _removed(self, times: Times, entries: Slots, owners: Slots) -> tuple[Slots, Times]:
        self._entries.remove_live(entries)
        self._taken = entries
        self.changes.changed(owners)
        return owners, times

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
