# SPDX-License-Identifier: Apache-2.0
"""One row of state for each slot, or none: read, replaced and removed for many slots at once.

Rows of numbers, dates, times and booleans lie in arrays (`FixedRows`), all others in batches (`state_rows`).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.record.layout import null_mask
from penstock.stream.key_index import Slots
from penstock.stream.slot_array import FrozenSlots, SlotArray
from penstock.stream.state.columns import Mask, column_of, shown, values_of, width_dtype
from penstock.stream.state_place import bytes_of
from penstock.stream.state_rows import StateRows


class FrozenSlotRows(Protocol):
    """The rows of all slots at one moment, for another thread to read."""

    @property
    def width(self) -> float:
        """The bytes of a row, on average."""

    def present(self, start: int, end: int) -> tuple[Slots, list[pa.Array]]:
        """Of a range of slots those that have a row, and the columns of these rows."""

    def of(self, slots: Slots) -> tuple[Slots, list[pa.Array]]:
        """The same of these slots, which are in ascending order."""


class SlotRows(Protocol):
    """The rows of one task's slots."""

    @property
    def live(self) -> int:
        """The number of slots that have a row."""

    @property
    def nbytes(self) -> int:
        """The bytes of all."""

    def known(self, slots: Slots) -> Mask:
        """Which of these slots have a row."""

    def get(self, slots: Slots) -> tuple[Mask, pa.RecordBatch]:
        """The rows of these slots, of nulls where there is none, and where there is one."""

    def put(self, slots: Slots, rows: pa.RecordBatch) -> None:
        """Replace the rows of these slots, each of which is there once."""

    def remove(self, slots: Slots) -> None:
        """Remove the rows of these slots, each of which is there once."""

    def frozen(self, count: int) -> FrozenSlotRows:
        """The rows of the first slots as they are now."""


def slot_rows(schema: pa.Schema) -> SlotRows:
    """An empty keeping of rows of a schema."""
    is_fixed = all(width_dtype(field.type) is not None for field in schema)
    return FixedRows(schema) if is_fixed else StateRows(schema)


class FixedRows:
    """Rows of columns of a fixed width."""

    def __init__(self, schema: pa.Schema) -> None:
        self._shown = shown(schema)
        self._present = SlotArray(np.bool_)
        self._columns = [_Column(field.type) for field in schema]
        self._count = 0
        self._live = 0

    @property
    def live(self) -> int:
        """The number of slots that have a row."""
        return self._live

    @property
    def nbytes(self) -> int:
        """The bytes of all."""
        return bytes_of((self._present, *self._columns))

    def known(self, slots: Slots) -> Mask:
        """Which of these slots have a row."""
        return self._present.at(slots)

    def get(self, slots: Slots) -> tuple[Mask, pa.RecordBatch]:
        """The rows of these slots, of nulls where there is none, and where there is one."""
        known = self._present.at(slots)
        columns = [column.at(slots, known) for column in self._columns]
        return known, pa.RecordBatch.from_arrays(columns, schema=self._shown)

    def put(self, slots: Slots, rows: pa.RecordBatch) -> None:
        """Replace the rows of these slots, each of which is there once."""
        flags = self._writable(slots)
        self._live += len(slots) - int(np.count_nonzero(flags[slots]))
        flags[slots] = True
        for column, values in zip(self._columns, rows.columns, strict=True):
            column.put(slots, values, self._count)

    def remove(self, slots: Slots) -> None:
        """Remove the rows of these slots, each of which is there once."""
        flags = self._writable(slots)
        self._live -= int(np.count_nonzero(flags[slots]))
        flags[slots] = False

    def frozen(self, count: int) -> FrozenFixedRows:
        """The rows of the first slots as they are now."""
        return FrozenFixedRows(self._present.frozen(count), [column.frozen(count) for column in self._columns])

    def _writable(self, slots: Slots) -> Mask:
        self._count = max(self._count, int(slots.max(initial=-1)) + 1)
        return self._present.writable(slots, self._count)


class FrozenFixedRows:
    """The rows of all slots at one moment."""

    def __init__(self, flags: FrozenSlots, columns: list[_FrozenColumn]) -> None:
        self._flags = flags
        self._columns = columns

    @property
    def width(self) -> float:
        """The bytes of a row."""
        return sum(column.width for column in self._columns)

    def present(self, start: int, end: int) -> tuple[Slots, list[pa.Array]]:
        """Of a range of slots those that have a row, and the columns of these rows."""
        places = np.flatnonzero(self._flags.values(start, end))
        return places + start, [column.values(start, end, places) for column in self._columns]

    def of(self, slots: Slots) -> tuple[Slots, list[pa.Array]]:
        """The same of these slots, which are in ascending order."""
        there = slots[self._flags.at(slots)]
        return there, [column.of(there) for column in self._columns]


class _Column:
    """The values of all slots, and once there were nulls where they are not."""

    def __init__(self, kind: pa.DataType) -> None:
        dtype = width_dtype(kind)
        assert dtype is not None  # noqa: S101 - chosen by it
        self._kind = kind
        self._dtype = dtype
        self._values = SlotArray(dtype)
        self._valid: SlotArray | None = None

    @property
    def nbytes(self) -> int:
        return bytes_of((self._values, self._valid))

    def at(self, slots: Slots, known: Mask) -> pa.Array:
        valid = known if self._valid is None else known & self._valid.at(slots)
        return column_of(self._kind, self._values.at(slots), valid)

    def put(self, slots: Slots, column: pa.Array, count: int) -> None:
        self._values.writable(slots, count)[slots] = values_of(column, self._dtype)
        missing = null_mask(column)
        if missing is not None and self._valid is None:
            self._valid = SlotArray(np.bool_, first=True)
        if self._valid is not None:
            self._valid.writable(slots, count)[slots] = True if missing is None else ~missing

    def frozen(self, count: int) -> _FrozenColumn:
        valid = None if self._valid is None else self._valid.frozen(count)
        return _FrozenColumn(self._kind, self._values.frozen(count), valid)


class _FrozenColumn:
    def __init__(self, kind: pa.DataType, values: FrozenSlots, valid: FrozenSlots | None) -> None:
        self._kind = kind
        self._values = values
        self._valid = valid

    @property
    def width(self) -> int:
        """The bytes of a value."""
        return self._values.width

    def values(self, start: int, end: int, places: Slots) -> pa.Array:
        """The values at some places of a range."""
        values = self._values.values(start, end)[places]
        valid = np.ones(len(places), np.bool_) if self._valid is None else self._valid.values(start, end)[places]
        return column_of(self._kind, values, valid)

    def of(self, slots: Slots) -> pa.Array:
        """The values of these slots."""
        return column_of(self._kind, self._values.at(slots), None if self._valid is None else self._valid.at(slots))
