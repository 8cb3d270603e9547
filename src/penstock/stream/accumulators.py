# SPDX-License-Identifier: Apache-2.0
"""Aggregates whose state is a few numbers for each key: arrays with an entry for each slot, updated row by row in C.

Results are those of the batch aggregates (`operators/aggregates.py`): nulls are skipped, no value gives null, NaN is
the largest number, and integer sums that leave 64 bits are an error with ANSI rules, else they wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.operators.aggregate_states import Aggregation, SumRules
from penstock.operators.aggregates import ALL_COLUMNS
from penstock.record.layout import fixed_values, null_mask
from penstock.stream.key_index import Slots
from penstock.stream.slot_array import SlotArray

_INT64_LIMIT = (1 << 63) - 1
_HALF = 32
_LOW = np.int64(0xFFFFFFFF)


class Accumulator(Protocol):
    """The state of one aggregate."""

    @property
    def arrays(self) -> Sequence[SlotArray]:
        """The arrays of its state."""

    def add(self, column: pa.Array, slots: Slots, count: int) -> None:
        """Take the rows of a batch: `slots` says whose each is, and `count` slots there are in all."""

    def result(self, slots: Slots) -> pa.Array:
        """The aggregate of these slots."""


class CountRows:
    """count(*)."""

    def __init__(self) -> None:
        self._counts = SlotArray(np.int64)
        self.arrays = (self._counts,)

    def add(self, column: pa.Array, slots: Slots, count: int) -> None:
        """One for each row."""
        np.add.at(self._counts.writable(slots, count), slots, 1)

    def result(self, slots: Slots) -> pa.Array:
        """Never null."""
        return _array(pa.int64(), self._counts.at(slots))


class CountValues:
    """count(column)."""

    def __init__(self) -> None:
        self._counts = SlotArray(np.int64)
        self.arrays = (self._counts,)

    def add(self, column: pa.Array, slots: Slots, count: int) -> None:
        """One for each row that is not null."""
        missing = null_mask(column)
        present = slots if missing is None else slots[~missing]
        np.add.at(self._counts.writable(present, count), present, 1)

    def result(self, slots: Slots) -> pa.Array:
        """Never null."""
        return _array(pa.int64(), self._counts.at(slots))


class Sum:
    """Sum of integers (int64) or floats (float64)."""

    def __init__(self, kind: pa.DataType, rules: SumRules) -> None:
        self._dtype = np.dtype(kind.to_pandas_dtype())
        self._type = pa.float64() if pt.is_floating(kind) else pa.int64()
        self._rules = rules if rules.ansi and pt.is_integer(kind) else None
        self._sums = SlotArray(np.float64 if pt.is_floating(kind) else np.int64)
        self._seen = SlotArray(np.bool_)
        self._bound = _INT64_LIMIT
        """No sum is larger than this; it is looked up when it would let a sum leave its type."""
        self.arrays = (self._sums, self._seen)

    def add(self, column: pa.Array, slots: Slots, count: int) -> None:
        """Add the rows that are not null; raises ArithmeticOverflowError."""
        values, slots = _present(column, self._dtype, slots)
        sums = self._sums.writable(slots, count)
        if self._rules is not None and len(values):
            largest = max(int(values.max()), -int(values.min()))
            self._bound += largest * len(values)
            if self._bound > _INT64_LIMIT:
                self._check(sums, values, slots)
        with np.errstate(invalid="ignore"):
            np.add.at(sums, slots, values.astype(sums.dtype, copy=False))
        self._seen.writable(slots, count)[slots] = True

    def result(self, slots: Slots) -> pa.Array:
        """Null where there was no value."""
        return _array(self._type, self._sums.at(slots), self._seen.at(slots))

    def _check(self, sums: npt.NDArray[Any], values: npt.NDArray[Any], slots: Slots) -> None:
        """Raise where a sum would leave its type; else find out how large they are."""
        touched, codes = np.unique(slots, return_inverse=True)
        high, low = sums[touched] >> _HALF, sums[touched] & _LOW
        wide = values.astype(np.int64)
        np.add.at(high, codes, wide >> _HALF)
        np.add.at(low, codes, wide & _LOW)
        high += low >> _HALF
        if (high != high.astype(np.int32)).any():
            assert self._rules is not None  # noqa: S101 - asked by the caller
            raise self._rules.error(self._type)
        now = int(np.abs(high).max(initial=0)) + 1
        others = max(int(sums.max(initial=0)), -int(sums.min(initial=0)))
        self._bound = max(now << _HALF, others)


class Mean:
    """Mean of integers or floats, as a float64."""

    def __init__(self, kind: pa.DataType) -> None:
        self._dtype = np.dtype(kind.to_pandas_dtype())
        self._sums, self._counts = SlotArray(np.float64), SlotArray(np.int64)
        self.arrays = (self._sums, self._counts)

    def add(self, column: pa.Array, slots: Slots, count: int) -> None:
        """Add the rows that are not null."""
        values, slots = _present(column, self._dtype, slots)
        with np.errstate(invalid="ignore"):
            np.add.at(self._sums.writable(slots, count), slots, values.astype(np.float64, copy=False))
        np.add.at(self._counts.writable(slots, count), slots, 1)

    def result(self, slots: Slots) -> pa.Array:
        """Null where there was no value."""
        counts = self._counts.at(slots)
        means = np.divide(self._sums.at(slots), counts, out=np.zeros(len(slots)), where=counts > 0)
        return _array(pa.float64(), means, counts > 0)


class Extreme:
    """Least or greatest of numbers, dates or times."""

    def __init__(self, kind: pa.DataType, name: str) -> None:
        self._type = kind
        self._dtype = np.dtype(kind.to_pandas_dtype()) if _is_number(kind) else np.dtype(f"i{kind.bit_width // 8}")
        self._choose: Callable[..., Any]
        if pt.is_floating(kind):
            # NaN is the largest: it wins every max, and a min only where there is nothing else.
            self._choose, first = (np.maximum, -np.inf) if name == "max" else (np.fmin, np.nan)
        else:
            limits = np.iinfo(self._dtype)
            self._choose, first = (np.maximum, limits.min) if name == "max" else (np.minimum, limits.max)
        self._best = SlotArray(self._dtype, first)
        self._seen = SlotArray(np.bool_)
        self.arrays = (self._best, self._seen)

    def add(self, column: pa.Array, slots: Slots, count: int) -> None:
        """Compare the rows that are not null."""
        values, slots = _present(column, self._dtype, slots)
        with np.errstate(invalid="ignore"):
            self._choose.at(self._best.writable(slots, count), slots, values)  # type: ignore[attr-defined]
        self._seen.writable(slots, count)[slots] = True

    def result(self, slots: Slots) -> pa.Array:
        """Null where there was no value."""
        return _array(self._type, self._best.at(slots), self._seen.at(slots))


def accumulator(aggregation: Aggregation, schema: pa.Schema, *, ansi: bool) -> Accumulator | None:
    """The accumulator of an aggregation that is known to be possible; None where it needs more than numbers."""
    function = aggregation.function.lower()
    if aggregation.column == ALL_COLUMNS:
        return CountRows() if function in ("count", "count_all") else None
    if function == "count_all":
        return CountRows()
    if function == "count":
        return CountValues()
    kind = schema.field(aggregation.column).type
    is_sum = function == "sum" and _is_number(kind) and kind != pa.uint64()
    if is_sum:
        return Sum(kind, SumRules(aggregation.title, ansi))
    if function in ("avg", "mean") and _is_number(kind) and kind != pa.uint64():
        return Mean(kind)
    return Extreme(kind, function) if function in ("min", "max") and (_is_number(kind) or _is_time(kind)) else None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pt.is_date(kind) or pt.is_timestamp(kind) or pt.is_time(kind))


def _present(column: pa.Array, dtype: np.dtype[Any], slots: Slots) -> tuple[npt.NDArray[Any], Slots]:
    """The values that are not null, and their slots."""
    values = fixed_values(column, dtype)
    missing = null_mask(column)
    return (values, slots) if missing is None else (values[~missing], slots[~missing])


def _array(kind: pa.DataType, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    values = np.ascontiguousarray(values)
    validity = None
    if valid is not None and not valid.all():
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(values)])
