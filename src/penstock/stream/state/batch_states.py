# SPDX-License-Identifier: Apache-2.0
"""States as a batch-level processor has them: of all keys of a batch in one call, Arrow in, Arrow out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.conform import Conformer, Misfit
from penstock.record.layout import int64_array
from penstock.shuffle.errors import PlanError, SchemaError
from penstock.stream.state.columns import column_of, flags_of, values_of, width_dtype
from penstock.stream.state.declarations import Declarations
from penstock.stream.state.keys import Keys
from penstock.stream.state.store import KeyedStore
from penstock.stream.state.times import NONE
from penstock.stream.state.variables import ListVariable, MapVariable, ValueVariable, VariableSpec

Groups: TypeAlias = "npt.NDArray[np.int64] | pa.Array"
Rows: TypeAlias = "pa.RecordBatch | Mapping[str, object]"


class Owned(NamedTuple):
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
        self._store: KeyedStore | None = None

    @property
    def store(self) -> KeyedStore:
        """The store; raises PlanError while `init` runs, when there is none."""
        if self._store is None:
            raise PlanError("states can't be read or written in init(): there is no key yet")
        return self._store

    def bind(self, store: KeyedStore) -> None:
        """From now on states are in this store."""
        self._store = store


class BatchValueState:
    """One value for each key."""

    def __init__(self, moment: Moment, spec: VariableSpec) -> None:
        self._moment = moment
        self._spec = spec
        self._conformer = _conformer(spec.schema, spec.name)

    def exists(self, keys: Keys) -> pa.BooleanArray:
        """Tell for each key if it has a value."""
        return flags_of(self._variable.exists(keys.slots, self._moment.now))

    def get(self, keys: Keys) -> pa.RecordBatch:
        """The value of each key, one row each: nulls where there is none."""
        return self._variable.get(keys.slots, self._moment.now)[1]

    def put(self, keys: Keys, rows: Rows) -> None:
        """Replace the value of each key by one row."""
        batch = _fitting(rows, self._spec, self._conformer, len(keys))
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
        self._conformer = _conformer(spec.schema, spec.name)

    def exists(self, keys: Keys) -> pa.BooleanArray:
        """Tell for each key if it has rows."""
        return flags_of(self._variable.exists(keys.slots, self._moment.now))

    def get(self, keys: Keys) -> Owned:
        """The rows of all keys, key after key."""
        return Owned(*self._variable.get(keys.slots, self._moment.now))

    def append(self, keys: Keys, groups: Groups, rows: Rows) -> None:
        """Add rows; `groups` says the number of each one's key."""
        numbers = _numbers(groups)
        batch = _fitting(rows, self._spec, self._conformer, len(numbers))
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


class BatchMapState:
    """Values by keys of their own, any number for each key."""

    def __init__(self, moment: Moment, spec: VariableSpec) -> None:
        assert spec.keys is not None  # noqa: S101 - a map has them
        self._moment = moment
        self._spec = spec
        self._own = VariableSpec(spec.name, spec.kind, spec.keys)
        self._own_conformer = _conformer(spec.keys, spec.name)
        self._conformer = _conformer(spec.schema, spec.name)

    def exists(self, keys: Keys) -> pa.BooleanArray:
        """Tell for each key if it has entries."""
        return flags_of(self._variable.exists(keys.slots, self._moment.now))

    def get(self, keys: Keys, groups: Groups, own: Rows) -> pa.RecordBatch:
        """The value of each row of `own`, nulls where there is none; `groups` says the number of each one's key."""
        numbers = _numbers(groups)
        entries = _fitting(own, self._own, self._own_conformer, len(numbers))
        return self._variable.get(keys.slots[numbers], entries, self._moment.now)[1]

    def put(self, keys: Keys, groups: Groups, own: Rows, values: Rows) -> None:
        """Set the value of each row of `own`; of one that is there several times the last counts."""
        numbers = _numbers(groups)
        entries = _fitting(own, self._own, self._own_conformer, len(numbers))
        batch = _fitting(values, self._spec, self._conformer, len(numbers))
        if len(numbers):
            self._variable.put(keys.slots[numbers], entries, batch, self._moment.now)

    def remove(self, keys: Keys, groups: Groups, own: Rows) -> None:
        """Remove the entry of each row of `own`, where there is one."""
        numbers = _numbers(groups)
        entries = _fitting(own, self._own, self._own_conformer, len(numbers))
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


class BatchHandle:
    """The way of a batch-level processor to its states and timers."""

    def __init__(self, declarations: Declarations, moment: Moment, time_mode: str) -> None:
        self._declarations = declarations
        self._moment = moment
        self._time_mode = time_mode

    def getValueState(self, stateName: str, schema: object, ttlDurationMs: int | None = None) -> BatchValueState:
        """Declare one value for each key."""
        return BatchValueState(self._moment, self._declarations.value(stateName, schema, ttlDurationMs))

    def getListState(self, stateName: str, schema: object, ttlDurationMs: int | None = None) -> BatchListState:
        """Declare a list for each key."""
        return BatchListState(self._moment, self._declarations.rows(stateName, schema, ttlDurationMs))

    def getMapState(
        self, stateName: str, userKeySchema: object, valueSchema: object, ttlDurationMs: int | None = None
    ) -> BatchMapState:
        """Declare a map for each key."""
        spec = self._declarations.entries(stateName, userKeySchema, valueSchema, ttlDurationMs)
        return BatchMapState(self._moment, spec)

    def deleteIfExists(self, stateName: str) -> None:
        """Forget a state that the checkpoint may hold."""
        self._declarations.drop(stateName)

    def registerTimers(self, keys: Keys, groups: Groups, expiryTimestampsMs: object) -> None:
        """Have timers fire at these times; `groups` says the number of each one's key."""
        self._refuse_none("registerTimers")
        self._moment.store.timers.register(keys.slots[_numbers(groups)], _numbers(expiryTimestampsMs))

    def deleteTimers(self, keys: Keys, groups: Groups, expiryTimestampsMs: object) -> None:
        """Have timers not fire."""
        self._moment.store.timers.delete(keys.slots[_numbers(groups)], _numbers(expiryTimestampsMs))

    def listTimers(self, keys: Keys) -> Owned:
        """The timers of the keys, key after key and in order of time."""
        owners, times = self._moment.store.timers.of(keys.slots)
        return Owned(owners, pa.RecordBatch.from_arrays([int64_array(times)], names=["expiryTimeInMs"]))

    def _refuse_none(self, verb: str) -> None:
        if self._time_mode == NONE:
            raise PlanError(f"{verb}: timers need a time: say timeMode='ProcessingTime' or 'EventTime'")


class BatchProcessor:
    """A processor of whole batches: derive one, and give it to `transformWithStateInArrow`.

    It is called with all rows that a task has at hand, and with their keys. It may be called with any number of rows,
    and a key's rows may come in several calls.
    """

    def init(self, handle: BatchHandle) -> None:
        """Declare states; called once by each task, before any row."""

    def handleBatch(self, keys: Keys, rows: pa.RecordBatch, timerValues: object) -> object:
        """The rows that a batch gives: a RecordBatch, a Table, an iterable of them, or None."""
        raise NotImplementedError

    def handleExpiredTimers(self, keys: Keys, expiryTimesInMs: pa.Array, timerValues: object) -> object:
        """The rows that expired timers give; `keys.groups` says whose each one is. They are in order of time."""
        return None

    def handleInitialState(self, keys: Keys, rows: pa.RecordBatch, timerValues: object) -> None:
        """Take rows of the initial state; called before any other row, where no checkpoint is gone on from."""

    def close(self) -> None:
        """Clean up; called once, also after a failure."""


def _numbers(values: object) -> npt.NDArray[np.int64]:
    """Whole numbers out of an Arrow or NumPy array or a sequence."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        if values.null_count:
            raise SchemaError("groups and times are whole numbers without nulls: fill or filter these first")
        return values_of(values.cast(pa.int64()), np.dtype(np.int64))
    return np.asarray(values, np.int64)


def _conformer(schema: pa.Schema, name: str) -> Conformer:
    return Conformer(schema, f"state {name!r}", Misfit("the processor gave", "cast it there, or declare that type"))


def _fitting(rows: Rows, spec: VariableSpec, conformer: Conformer, count: int) -> pa.RecordBatch:
    """Rows of the state's schema, as many as wanted; raises SchemaError."""
    if isinstance(rows, Mapping):
        rows = _batch(rows, spec)
    if rows.num_rows != count:
        raise SchemaError(f"state {spec.name!r}: {rows.num_rows} rows were given for {count} keys or groups")
    return conformer.conform(rows)


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
