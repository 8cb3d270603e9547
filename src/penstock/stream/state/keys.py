# SPDX-License-Identifier: Apache-2.0
"""The keys of a batch of rows, each once, and which of them each row has."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.record.layout import fixed_values, int64_array, null_mask
from penstock.stream.key_index import Slots
from penstock.stream.state.columns import Mask, column_of, width_dtype
from penstock.stream.state.store import KeyedStore


class Keys:
    """Some keys, numbered from 0, and rows of them.

    States take and give one row for each key, in this order. `groups` says for each row of the batch the number of
    its key. Valid for one call.
    """

    __slots__ = ("_store", "groups", "slots")

    def __init__(self, store: KeyedStore, slots: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]) -> None:
        self._store = store
        self.slots = slots
        self.groups = groups

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def table(self) -> pa.RecordBatch:
        """The key columns, one row for each key."""
        return self._store.keys_of(self.slots)

    def where(self, mask: Mask | pa.BooleanArray) -> Keys:
        """Some of the keys, without rows; null is false."""
        if isinstance(mask, pa.Array):
            mask = pc.fill_null(mask, fill_value=False).to_numpy(zero_copy_only=False)
        return Keys(self._store, self.slots[mask], np.zeros(0, np.int64))

    def counts(self) -> pa.Array:
        """The number of rows of each key."""
        return int64_array(np.bincount(self.groups, minlength=len(self)).astype(np.int64, copy=False))

    def sum(self, column: pa.Array) -> pa.Array:
        """The sum of a column's values for each key, as int64 or float64; nulls count as 0."""
        return self._merged(column, np.add, 0)

    def min(self, column: pa.Array) -> pa.Array:
        """The least value for each key; null where a key has none."""
        return self._extreme(column, np.fmin)

    def max(self, column: pa.Array) -> pa.Array:
        """The greatest value for each key; null where a key has none."""
        return self._extreme(column, np.fmax)

    def last(self) -> pa.Array:
        """The number of the last row of each key, for `rows.take`."""
        last = np.zeros(len(self), np.int64)
        last[self.groups] = np.arange(len(self.groups))
        return int64_array(last)

    def _merged(self, column: pa.Array, ufunc: np.ufunc, first: float) -> pa.Array:
        values, groups = self._values(column)
        kind = np.float64 if values.dtype.kind == "f" else np.int64
        merged = np.full(len(self), first, kind)
        with np.errstate(all="ignore"):
            ufunc.at(merged, groups, values.astype(kind, copy=False))
        return column_of(pa.float64() if kind is np.float64 else pa.int64(), merged)

    def _extreme(self, column: pa.Array, ufunc: np.ufunc) -> pa.Array:
        values, groups = self._values(column)
        firsts = np.zeros(len(self), np.int64)
        seen = np.zeros(len(self), np.bool_)
        firsts[groups] = np.arange(len(groups))
        seen[groups] = True
        merged = values[firsts] if len(values) else np.zeros(len(self), values.dtype)
        ufunc.at(merged, groups, values)
        return column_of(column.type, merged, seen)

    def _values(self, column: pa.Array) -> tuple[npt.NDArray[Any], Slots]:
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        dtype = width_dtype(column.type)
        if dtype is None or dtype.kind not in "iuf":
            raise SchemaError(f"sums and extremes of keys are of numbers and times, not of {column.type}")
        values, missing = fixed_values(column, dtype), null_mask(column)
        return (values, self.groups) if missing is None else (values[~missing], self.groups[~missing])


class KeyNumbers:
    """Numbers the keys of batches; its memory is used again by each batch."""

    def __init__(self) -> None:
        self._last: npt.NDArray[np.int32] = np.zeros(0, np.int32)

    def keys(self, store: KeyedStore, slots: Slots) -> Keys:
        """The keys of these slots, in the order in which each is there for the last time."""
        if len(self._last) < store.keys:
            self._last = np.zeros(2 * store.keys, np.int32)
        rows = np.arange(len(slots), dtype=np.int32)
        self._last[slots] = rows
        distinct = slots[self._last[slots] == rows]
        if len(distinct) == len(slots):
            return Keys(store, distinct, rows.astype(np.int64))
        self._last[distinct] = np.arange(len(distinct), dtype=np.int32)
        return Keys(store, distinct, self._last[slots].astype(np.int64))
