# SPDX-License-Identifier: Apache-2.0
"""Things of which a slot has several, each by a key of its own: the entries of a map, the times of timers.

An entry has a number by which its other values are kept. One that was removed keeps its number, and has it again when
it is back, until all is built anew (`store`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.record.layout import int64_array
from penstock.stream.arrow_pieces import width_of
from penstock.stream.key_index import ComposedKeys, Slots
from penstock.stream.run_rows import taken_of
from penstock.stream.slot_array import FrozenSlots, SlotArray
from penstock.stream.state.columns import Mask, values_of
from penstock.stream.state.list_rows import FrozenListRows, ListRows
from penstock.stream.state_place import bytes_of

_NUMBERS = pa.schema([("entry", pa.int64())])
_INT64 = np.dtype(np.int64)


class Entries:
    """Entries of one task's slots; `types` are those of an entry's own key."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._index = ComposedKeys([pa.int64(), *types])
        self._is_live = SlotArray(np.bool_)
        self._of_slot = ListRows(_NUMBERS)
        self._live = 0

    def __len__(self) -> int:
        return len(self._index)

    @property
    def live(self) -> int:
        """The number of entries that are there."""
        return self._live

    @property
    def nbytes(self) -> int:
        """The bytes of all."""
        return bytes_of((self._index, self._is_live, self._of_slot))

    def find(self, slots: Slots, keys: Sequence[pa.Array]) -> Slots:
        """The entry of each row; -1 where there is none."""
        found = self._index.find([int64_array(np.ascontiguousarray(slots)), *keys])
        there = found >= 0
        there[there] = self._is_live.at(found[there])
        found[~there] = -1
        return found

    def add(self, slots: Slots, keys: Sequence[pa.Array]) -> tuple[Slots, Slots]:
        """The entry of each row, and one row of each entry that was not there before."""
        known = len(self._index)
        entries = self._index.slots([int64_array(np.ascontiguousarray(slots)), *keys])
        added = len(self._index) - known
        if added:
            new = np.arange(known, len(self._index), dtype=np.int64)
            self._of_slot.append(self.owners(new), pa.RecordBatch.from_arrays([int64_array(new)], schema=_NUMBERS))
        flags = self._is_live.writable(entries, len(self._index))
        rows = np.flatnonzero(~flags[entries])
        if len(rows) > added:  # some were there before, or come several times
            rows = rows[np.unique(entries[rows], return_index=True)[1]]
        self._live += len(rows)
        flags[entries] = True
        return entries, rows

    def remove(self, entries: Slots) -> None:
        """Remove these, each of which may be there several times."""
        flags = self._is_live.writable(entries, len(self._index))
        self._live -= len(np.unique(entries[flags[entries]]))
        flags[entries] = False

    def remove_live(self, entries: Slots) -> None:
        """Remove these, which are all there, each once."""
        self._is_live.writable(entries, len(self._index))[entries] = False
        self._live -= len(entries)

    def of(self, slots: Slots) -> tuple[Slots, Slots]:
        """The entries of these slots, slot after slot: at which place of `slots` each one's is, and the entries."""
        owners, rows = self._of_slot.get(slots)
        entries = values_of(rows.column(0), _INT64)
        there = self._is_live.at(entries)
        return owners[there], entries[there]

    def is_live(self, entries: Slots) -> Mask:
        """Which of these are there."""
        return self._is_live.at(entries)

    def owners(self, entries: Slots) -> Slots:
        """The slots of these entries."""
        return values_of(self._index.keys(entries)[0], _INT64)

    def keys(self, entries: Slots) -> list[pa.Array]:
        """The own keys of these entries."""
        return self._index.keys(entries)[1:]

    def frozen(self, slots: int) -> FrozenEntries:
        """The entries of the first slots as they are now."""
        count = len(self._index)
        keys, of_slot = self._index.frozen_keys(0, count), self._of_slot.frozen(slots)
        return FrozenEntries(keys, self._is_live.frozen(count), of_slot, count)


class FrozenEntries:
    """The entries of all slots at one moment."""

    def __init__(
        self,
        keys: Sequence[pa.Array | pa.ChunkedArray],
        is_live: FrozenSlots,
        of_slot: FrozenListRows,
        count: int,
    ) -> None:
        self._keys = keys
        self._is_live = is_live
        self._of_slot = of_slot
        self.count = count

    @property
    def width(self) -> float:
        """The bytes of an entry's slot and own key."""
        return width_of(self._keys, self.count)

    def present(self, start: int, end: int) -> tuple[Slots, Slots, list[pa.Array]]:
        """Of a range of entries those that are there: their numbers, their slots, and their own keys."""
        return self._with_keys(np.flatnonzero(self._is_live.values(start, end)) + start)

    def of(self, slots: Slots) -> tuple[Slots, Slots, list[pa.Array]]:
        """The same of these slots, which are in ascending order."""
        _, (numbers,) = self._of_slot.of(slots)
        entries = np.sort(values_of(numbers, _INT64))
        return self._with_keys(entries[self._is_live.at(entries)])

    def _with_keys(self, entries: Slots) -> tuple[Slots, Slots, list[pa.Array]]:
        owners, *keys = [taken_of(column, entries) for column in self._keys]
        return entries, values_of(owners, _INT64), keys
