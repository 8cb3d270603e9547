# SPDX-License-Identifier: Apache-2.0
"""States as a batch-level processor has them: of all keys of a batch in one call, Arrow in, Arrow out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import PlanError, SchemaError
from penstock.operators.conform import Conformer, Misfit
from penstock.record.copies import Copies
from penstock.stream.state.columns import column_of, flags_of, values_of, width_dtype
from penstock.stream.state.keys import Keys
from penstock.stream.state.store import KeyedStore
from penstock.stream.state.variables import ListVariable, MapVariable, ValueVariable, VariableSpec

Groups: TypeAlias = "npt.NDArray[np.int64] | pa.Array"
Rows: TypeAlias = "pa.RecordBatch | Mapping[str, object]"


class OwnedRows(NamedTuple):
    """Rows of several keys, key after key: the number of each one's key, and the rows."""

    groups: npt.NDArray[np.int64]
    rows: pa.RecordBatch


class OwnedEntries(NamedTuple):
    """Entries of several keys' maps: the number of each one's key, their own keys and their values."""

    groups: npt.NDArray[np.int64]
    keys: pa.RecordBatch
    values: pa.RecordBatch


class Moment:
    """The store that states are in, and the time of the call that is under way."""

    def __init__(self) -> None:
        self.now = 0
        self.is_shared = False
        """True while rows are handled that come to all tasks."""
        self._store: KeyedStore | None = None
        self._shared: KeyedStore | None = None

    @property
    def store(self) -> KeyedStore:
        """The store; raises PlanError while `init` runs, when there is none."""
        if self._store is None:
            raise PlanError("states can't be read or written in init(): there is no key yet")
        return self._store

    @property
    def shared(self) -> KeyedStore:
        """The store of what is the same in all tasks; raises PlanError while `init` runs."""
        if self._shared is None:
            raise PlanError("states can't be read or written in init(): there are no rows yet")
        return self._shared

    def bind(self, store: KeyedStore, shared: KeyedStore) -> None:
        """From now on states are in these stores."""
        self._store, self._shared = store, shared


class BatchValueState:
    """One value for each key."""

    def __init__(self, moment: Moment, spec: VariableSpec) -> None:
        self._moment = moment
        self._spec = spec
        self._conformer = conformer_of(spec.schema, spec.name)
        self._copies = copies_for(spec.schema)

    def exists(self, keys: Keys) -> pa.BooleanArray:
        """Tell for each key if it has a value."""
        return flags_of(self._variable.exists(keys.slots, self._moment.now))

    def get(self, keys: Keys) -> pa.RecordBatch:
        """The value of each key, one row each: nulls where there is none."""
        return self._variable.get(keys.slots, self._moment.now)[1]

    def put(self, keys: Keys, rows: Rows) -> None:
        """Replace the value of each key by one row."""
        batch = fitting(rows, self._spec, self._conformer, len(keys), self._copies)
        self._variable.put(keys.slots, batch, self._moment.now)

    def clear(self, keys: Keys) -> None:
        """Remove the values."""
        self._variable.clear(keys.slots)

    @property
    def _variable(self) -> ValueVariable:
        found = self._moment.store.variable(self._spec.name)
        assert isinstance(found, ValueVariable)  # noqa: S101 - declared as one
        return found


class BatchListState:
    """Any number of rows for each key, in order."""

    def __init__(self, moment: Moment, spec: VariableSpec) -> None:
        self._moment = moment
        self._spec = spec
        self._conformer = conformer_of(spec.schema, spec.name)
        self._copies = copies_for(spec.schema, is_list=True)

    def exists(self, keys: Keys) -> pa.BooleanArray:
        """Tell for each key if it has rows."""
        return flags_of(self._variable.exists(keys.slots, self._moment.now))

    def get(self, keys: Keys) -> OwnedRows:
        """The rows of all keys, key after key."""
        return OwnedRows(*self._variable.get(keys.slots, self._moment.now))

    def append(self, keys: Keys, groups: Groups, rows: Rows) -> None:
        """Add rows; `groups` says the number of each one's key."""
        numbers = numbers_of(groups)
        batch = fitting(rows, self._spec, self._conformer, len(numbers), self._copies)
        self._variable.append(keys.slots[numbers], batch, self._moment.now)

    def put(self, keys: Keys, groups: Groups, rows: Rows) -> None:
        """Replace the rows of all keys by these."""
        self.clear(keys)
        self.append(keys, groups, rows)

    def clear(self, keys: Keys) -> None:
        """Remove all rows of the keys."""
        self._variable.clear(keys.slots)

    @property
    def _variable(self) -> ListVariable:
        found = self._moment.store.variable(self._spec.name)
        assert isinstance(found, ListVariable)  # noqa: S101 - declared as one
        return found


class MapForm:
    """The columns of a map's keys and values, into which users' rows are brought."""

    def __init__(self, spec: VariableSpec) -> None:
        assert spec.keys is not None  # noqa: S101 - a map has them
        self._spec = spec
        self._own = VariableSpec(spec.name, spec.kind, spec.keys)
        self._own_conformer = conformer_of(spec.keys, spec.name)
        self._conformer = conformer_of(spec.schema, spec.name)
        self._copies = copies_for(spec.schema)

    def keys(self, own: Rows, count: int | None) -> pa.RecordBatch:
        """Keys of entries; raises SchemaError unless there are `count`, where that is said."""
        return fitting(own, self._own, self._own_conformer, count)

    def values(self, rows: Rows, count: int) -> pa.RecordBatch:
        """Values of so many entries, in memory of their own; raises SchemaError for another number."""
        return fitting(rows, self._spec, self._conformer, count, self._copies)


class BatchMapState:
    """Values by keys of their own, any number for each key."""

    def __init__(self, moment: Moment, spec: VariableSpec) -> None:
        self._moment = moment
        self._spec = spec
        self._form = MapForm(spec)

    def exists(self, keys: Keys) -> pa.BooleanArray:
        """Tell for each key if it has entries."""
        return flags_of(self._variable.exists(keys.slots, self._moment.now))

    def get(self, keys: Keys, groups: Groups, own: Rows) -> pa.RecordBatch:
        """The value of each row of `own`, nulls where there is none; `groups` says the number of each one's key."""
        numbers = numbers_of(groups)
        entries = self._form.keys(own, len(numbers))
        return self._variable.get(keys.slots[numbers], entries, self._moment.now)[1]

    def put(self, keys: Keys, groups: Groups, own: Rows, values: Rows) -> None:
        """Set the value of each row of `own`; of one that is there several times the last counts."""
        numbers = numbers_of(groups)
        entries = self._form.keys(own, len(numbers))
        batch = self._form.values(values, len(numbers))
        if len(numbers):
            self._variable.put(keys.slots[numbers], entries, batch, self._moment.now)

    def remove(self, keys: Keys, groups: Groups, own: Rows) -> None:
        """Remove the entry of each row of `own`, where there is one."""
        numbers = numbers_of(groups)
        entries = self._form.keys(own, len(numbers))
        self._variable.remove(keys.slots[numbers], entries)

    def entries(self, keys: Keys) -> OwnedEntries:
        """All entries of the keys, key after key."""
        return OwnedEntries(*self._variable.entries(keys.slots, self._moment.now))

    def clear(self, keys: Keys) -> None:
        """Remove all entries of the keys."""
        self._variable.clear(keys.slots)

    @property
    def _variable(self) -> MapVariable:
        found = self._moment.store.variable(self._spec.name)
        assert isinstance(found, MapVariable)  # noqa: S101 - declared as one
        return found


def copies_for(schema: pa.Schema, *, is_list: bool = False) -> Copies | None:
    """Makes rows of their own of what a processor gives, which it may write into later.

    None: the state copies them itself, as it does with columns of a fixed width (`slot_rows`) but of lists.
    """
    copies_itself = not is_list and all(width_dtype(field.type) is not None for field in schema)
    return None if copies_itself else Copies()


def numbers_of(values: object) -> npt.NDArray[np.int64]:
    """Whole numbers out of an Arrow or NumPy array or a sequence."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        if values.null_count:
            raise SchemaError("groups and times are whole numbers without nulls: fill or filter these first")
        return values_of(values.cast(pa.int64()), np.dtype(np.int64))
    return np.asarray(values, np.int64)


def conformer_of(schema: pa.Schema, name: str) -> Conformer:
    """Makes the rows of a state fit."""
    return Conformer(schema, f"state {name!r}", Misfit("the processor gave", "cast it there, or declare that type"))


def fitting(
    rows: Rows, spec: VariableSpec, conformer: Conformer, count: int | None, copies: Copies | None = None
) -> pa.RecordBatch:
    """Rows of the state's schema, as many as wanted, or any number; raises SchemaError."""
    if isinstance(rows, Mapping):
        rows = _batch(rows, spec)
    if count is not None and rows.num_rows != count:
        raise SchemaError(f"state {spec.name!r}: {rows.num_rows} rows were given for {count} keys or groups")
    batch = conformer.conform(rows)
    return batch if copies is None else copies.of(batch)


def _batch(columns: Mapping[str, object], spec: VariableSpec) -> pa.RecordBatch:
    arrays = []
    for name, values in columns.items():
        at = spec.schema.get_field_index(name)
        if at < 0:
            raise SchemaError(f"state {spec.name!r} has no column {name!r}, but {', '.join(spec.schema.names)}")
        arrays.append(_column(values, spec.schema.field(at).type))
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _column(values: object, kind: pa.DataType) -> pa.Array:
    """A column of what users have: an Arrow array, a NumPy array, a list."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    dtype = width_dtype(kind)
    if isinstance(values, np.ndarray) and dtype is not None and np.can_cast(values.dtype, dtype):
        return column_of(kind, values.astype(dtype, copy=False), np.ones(len(values), np.bool_))
    return pa.array(values, kind)
