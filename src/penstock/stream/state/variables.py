# SPDX-License-Identifier: Apache-2.0
"""The state variables of a processor: one value, a list or a map for each key, all keys of a task in one place.

A variable may have a time to live. Its expired parts are not there for readers, and leave memory when all is built
anew (`store`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.record.layout import int64_array
from penstock.stream.increments import Chains
from penstock.stream.key_index import Slots
from penstock.stream.slot_array import FrozenSlots, SlotArray
from penstock.stream.state.columns import Mask, values_of
from penstock.stream.state.entries import Entries, FrozenEntries
from penstock.stream.state.list_rows import FrozenListRows, ListRows
from penstock.stream.state.slot_rows import FrozenSlotRows, slot_rows
from penstock.stream.state_place import bytes_of

VALUE = "value"
LIST = "list"
MAP = "map"
EXPIRY = "expiry"
_INT64 = np.dtype(np.int64)
_VALUE_SLOTS = 1 << 20
_LIST_SLOTS = 1 << 16
"""Of so many slots, or entries, a snapshot makes one piece, at most."""
_EXPIRY_BYTES = 8


@dataclass(frozen=True, slots=True)
class VariableSpec:
    """The declaration of a variable; `keys` are the columns of a map's own keys, `ttl` is in milliseconds.

    With `replaces` it takes the place of one of its name that was dropped ahead of it.
    """

    name: str
    kind: str
    schema: pa.Schema
    keys: pa.Schema | None = None
    ttl: int | None = None
    replaces: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns in snapshots, beside the keys."""
        own = [f"own.{n}" for n in range(len(self.keys or ()))]
        return (*own, *(f"#{n}" for n in range(len(self.schema))), *((EXPIRY,) if self.ttl is not None else ()))


class FrozenVariable(Protocol):
    """A variable at one moment, for another thread to read, in `count` steps."""

    @property
    def count(self) -> int:
        """The number of slots, or of entries."""

    @property
    def step(self) -> int:
        """The number of these that make one piece of a snapshot, at most."""

    @property
    def width(self) -> float:
        """The bytes that each of these has, on average."""

    def rows(self, start: int, end: int) -> tuple[Slots, list[pa.Array]]:
        """Those of a range: whose each row is, and the columns."""


class FrozenState(FrozenVariable, Protocol):
    """A variable at one moment, whose rows can also be read slot by slot."""

    def of(self, slots: Slots) -> tuple[Slots, list[pa.Array]]:
        """The rows of these slots, which are in ascending order: whose each is, and the columns."""


class Variable(Protocol):
    """The part of all kinds that snapshots need."""

    @property
    def spec(self) -> VariableSpec:
        """The declaration."""

    @property
    def live_keys(self) -> int:
        """The number of keys that have something here, or more."""

    @property
    def is_sparse(self) -> bool:
        """True if it is to be built anew, because much of its memory is not in use."""

    def frozen(self, count: int) -> FrozenState:
        """As it is now, of the first slots."""

    def restore(self, slots: Slots, columns: list[pa.Array]) -> None:
        """Take rows that `FrozenVariable.rows` gave."""


def variable(spec: VariableSpec) -> ValueVariable | ListVariable | MapVariable:
    """An empty variable."""
    if spec.kind == VALUE:
        return ValueVariable(spec)
    return ListVariable(spec) if spec.kind == LIST else MapVariable(spec)


class ValueVariable:
    """One value for each key, or none."""

    def __init__(self, spec: VariableSpec) -> None:
        self.spec = spec
        self.changes = Chains()
        self._rows = slot_rows(spec.schema)
        self._expiry = None if spec.ttl is None else SlotArray(np.int64)

    @property
    def live_keys(self) -> int:
        """The number of keys that have one, expired ones among them."""
        return self._rows.live

    @property
    def nbytes(self) -> int:
        """The bytes of all."""
        return bytes_of((self._rows, self._expiry))

    @property
    def is_sparse(self) -> bool:
        """Never: it has one place for each slot."""
        return False

    def exists(self, slots: Slots, now: int) -> Mask:
        """Which of these slots have one."""
        self._expire(slots, now)
        return self._rows.known(slots)

    def get(self, slots: Slots, now: int) -> tuple[Mask, pa.RecordBatch]:
        """The values of these slots, of nulls where there is none, and where there is one."""
        self._expire(slots, now)
        return self._rows.get(slots)

    def put(self, slots: Slots, rows: pa.RecordBatch, now: int) -> None:
        """Replace those of these slots, each of which is there once."""
        self.changes.changed(slots)
        self._rows.put(slots, rows)
        if self._expiry is not None:
            self._expiry.writable(slots, int(slots.max(initial=-1)) + 1)[slots] = now + (self.spec.ttl or 0)

    def clear(self, slots: Slots) -> None:
        """Remove those of these slots, each of which is there once."""
        self.changes.changed(slots)
        self._rows.remove(slots)

    def frozen(self, count: int) -> FrozenState:
        """As it is now."""
        expiry = None if self._expiry is None else self._expiry.frozen(count)
        return _FrozenValues(self._rows.frozen(count), expiry, count)

    def restore(self, slots: Slots, columns: list[pa.Array]) -> None:
        """Take rows of a snapshot."""
        self._rows.put(slots, pa.RecordBatch.from_arrays(columns[: len(self.spec.schema)], schema=self.spec.schema))
        if self._expiry is not None:
            self._expiry.writable(slots, int(slots.max(initial=-1)) + 1)[slots] = values_of(columns[-1], _INT64)

    def _expire(self, slots: Slots, now: int) -> None:
        if self._expiry is None:
            return
        expired = slots[self._rows.known(slots) & (self._expiry.at(slots) <= now)]
        if len(expired):
            self._rows.remove(np.unique(expired))


class _FrozenValues:
    step = _VALUE_SLOTS

    def __init__(self, rows: FrozenSlotRows, expiry: FrozenSlots | None, count: int) -> None:
        self._rows = rows
        self._expiry = expiry
        self.count = count
        self.width = rows.width + _EXPIRY_BYTES

    def rows(self, start: int, end: int) -> tuple[Slots, list[pa.Array]]:
        slots, columns = self._rows.present(start, end)
        if self._expiry is not None:
            columns.append(int64_array(self._expiry.values(start, end)[slots - start]))
        return slots, columns

    def of(self, slots: Slots) -> tuple[Slots, list[pa.Array]]:
        there, columns = self._rows.of(slots)
        if self._expiry is not None:
            columns.append(int64_array(self._expiry.at(there)))
        return there, columns


class ListVariable:
    """Any number of rows for each key, in order."""

    def __init__(self, spec: VariableSpec) -> None:
        self.spec = spec
        self.changes = Chains()
        expiry = [] if spec.ttl is None else [pa.field(EXPIRY, pa.int64())]
        self._schema = pa.schema([*(field.with_name(f"#{n}") for n, field in enumerate(spec.schema)), *expiry])
        self._rows = ListRows(self._schema)

    @property
    def live_keys(self) -> int:
        """The number of rows: no key has less than one."""
        return self._rows.live

    @property
    def nbytes(self) -> int:
        """The bytes of all."""
        return self._rows.nbytes

    @property
    def is_sparse(self) -> bool:
        """Never: it gathers its rows itself."""
        return False

    def exists(self, slots: Slots, now: int) -> Mask:
        """Which of these slots have rows."""
        if self.spec.ttl is None:
            return self._rows.known(slots)
        known = np.zeros(len(slots), np.bool_)
        known[self.get(slots, now)[0]] = True
        return known

    def get(self, slots: Slots, now: int) -> tuple[Slots, pa.RecordBatch]:
        """The rows of these slots, slot after slot: at which place of `slots` each one's is, and the rows."""
        owners, rows = self._rows.get(slots)
        columns = rows.columns[: len(self.spec.schema)]
        if self.spec.ttl is not None:
            live = np.flatnonzero(values_of(rows.column(EXPIRY), _INT64) > now)
            if len(live) < len(owners):
                owners, columns = owners[live], [column.take(int64_array(live)) for column in columns]
        return owners, pa.RecordBatch.from_arrays(columns, schema=self.spec.schema)

    def append(self, slots: Slots, rows: pa.RecordBatch, now: int) -> None:
        """Add a row to each of these slots, which may be there several times."""
        self.changes.changed(slots)
        columns = rows.columns
        if self.spec.ttl is not None:
            columns = [*columns, int64_array(np.full(len(slots), now + self.spec.ttl))]
        self.restore(slots, columns)

    def clear(self, slots: Slots) -> None:
        """Remove all rows of these slots, each of which is there once."""
        self.changes.changed(slots)
        self._rows.remove(slots)

    def frozen(self, count: int) -> FrozenState:
        """As it is now."""
        return _FrozenLists(self._rows.frozen(count), count)

    def restore(self, slots: Slots, columns: list[pa.Array]) -> None:
        """Take rows of a snapshot."""
        self._rows.append(slots, pa.RecordBatch.from_arrays(columns, schema=self._schema))


class _FrozenLists:
    step = _LIST_SLOTS

    def __init__(self, rows: FrozenListRows, count: int) -> None:
        self._rows = rows
        self.count = count
        self.width = rows.width

    def rows(self, start: int, end: int) -> tuple[Slots, list[pa.Array]]:
        return self._rows.present(start, end)

    def of(self, slots: Slots) -> tuple[Slots, list[pa.Array]]:
        return self._rows.of(slots)


class MapVariable:
    """Values by keys of their own, any number for each key."""

    def __init__(self, spec: VariableSpec) -> None:
        assert spec.keys is not None  # noqa: S101 - checked where it is declared
        self.spec = spec
        self.changes = Chains()
        self._keys = spec.keys
        self._entries = Entries(spec.keys.types)
        self._values = slot_rows(spec.schema)
        self._expiry = None if spec.ttl is None else SlotArray(np.int64)

    @property
    def live_keys(self) -> int:
        """The number of entries: no key has less than one."""
        return self._entries.live

    @property
    def nbytes(self) -> int:
        """The bytes of all."""
        return bytes_of((self._entries, self._values, self._expiry))

    @property
    def is_sparse(self) -> bool:
        """True if more entries were removed than are there."""
        return len(self._entries) > 2 * self._entries.live + _LIST_SLOTS

    def exists(self, slots: Slots, now: int) -> Mask:
        """Which of these slots have an entry."""
        known = np.zeros(len(slots), np.bool_)
        known[self._of(slots, now)[0]] = True
        return known

    def get(self, slots: Slots, keys: pa.RecordBatch, now: int) -> tuple[Mask, pa.RecordBatch]:
        """The value of each row's entry, of nulls where there is none, and where there is one."""
        entries = self._entries.find(slots, keys.columns)
        there = entries >= 0
        if self._expiry is not None:
            there[there] = self._expiry.at(entries[there]) > now
        # A number that no entry has stands for none.
        entries[~there] = len(self._entries)
        _, values = self._values.get(entries)
        return there, values

    def put(self, slots: Slots, keys: pa.RecordBatch, values: pa.RecordBatch, now: int) -> None:
        """Replace the value of each row's entry; of one that is there several times the last counts."""
        self.changes.changed(slots)
        entries, _ = self._entries.add(slots, keys.columns)
        last = len(entries) - 1 - np.unique(entries[::-1], return_index=True)[1]
        if len(last) < len(entries):
            entries, values = entries[last], values.take(int64_array(last))
        self._values.put(entries, values)
        if self._expiry is not None:
            self._expiry.writable(entries, len(self._entries))[entries] = now + (self.spec.ttl or 0)

    def remove(self, slots: Slots, keys: pa.RecordBatch) -> None:
        """Remove each row's entry, where there is one."""
        self.changes.changed(slots)
        entries = self._entries.find(slots, keys.columns)
        self._drop(entries[entries >= 0])

    def entries(self, slots: Slots, now: int) -> tuple[Slots, pa.RecordBatch, pa.RecordBatch]:
        """The entries of these slots, slot after slot: at which place of `slots` each one's is, keys and values."""
        owners, entries = self._of(slots, now)
        keys = pa.RecordBatch.from_arrays(self._entries.keys(entries), schema=self._keys)
        return owners, keys, self._values.get(entries)[1]

    def clear(self, slots: Slots) -> None:
        """Remove all entries of these slots, each of which is there once."""
        self.changes.changed(slots)
        self._drop(self._entries.of(slots)[1])

    def frozen(self, count: int) -> FrozenState:
        """As it is now."""
        entries = self._entries.frozen(count)
        expiry = None if self._expiry is None else self._expiry.frozen(entries.count)
        return _FrozenMap(entries, self._values.frozen(entries.count), expiry)

    def restore(self, slots: Slots, columns: list[pa.Array]) -> None:
        """Take rows of a snapshot."""
        width = len(self._keys)
        entries, _ = self._entries.add(slots, columns[:width])
        values = columns[width : width + len(self.spec.schema)]
        self._values.put(entries, pa.RecordBatch.from_arrays(values, schema=self.spec.schema))
        if self._expiry is not None:
            self._expiry.writable(entries, len(self._entries))[entries] = values_of(columns[-1], _INT64)

    def _of(self, slots: Slots, now: int) -> tuple[Slots, Slots]:
        owners, entries = self._entries.of(slots)
        if self._expiry is None:
            return owners, entries
        is_live = self._expiry.at(entries) > now
        return owners[is_live], entries[is_live]

    def _drop(self, entries: Slots) -> None:
        entries = np.unique(entries)
        self._entries.remove(entries)
        self._values.remove(entries)


class _FrozenMap:
    step = _LIST_SLOTS

    def __init__(self, entries: FrozenEntries, values: FrozenSlotRows, expiry: FrozenSlots | None) -> None:
        self._entries = entries
        self._values = values
        self._expiry = expiry
        self.count = entries.count
        self.width = entries.width + values.width + _EXPIRY_BYTES

    def rows(self, start: int, end: int) -> tuple[Slots, list[pa.Array]]:
        entries, owners, keys = self._entries.present(start, end)
        _, columns = self._values.present(start, end)
        if self._expiry is not None:
            columns.append(int64_array(self._expiry.values(start, end)[entries - start]))
        return owners, [*keys, *columns]

    def of(self, slots: Slots) -> tuple[Slots, list[pa.Array]]:
        entries, owners, keys = self._entries.of(slots)
        _, columns = self._values.of(entries)
        if self._expiry is not None:
            columns.append(int64_array(self._expiry.at(entries)))
        return owners, [*keys, *columns]
