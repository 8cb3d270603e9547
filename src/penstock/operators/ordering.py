# SPDX-License-Identifier: Apache-2.0
"""The order of rows as Spark's `orderBy` has it, and where a row stands among a few others.

Numbers by value with -0.0 equal to 0.0 and NaN above all numbers, strings and binaries by their bytes, false before
true; each key has its own direction and its own place for nulls. Sorting is Arrow's, and stable. Columns are brought
into a form in which plain comparison gives that order: everything of fixed width becomes an integer.

Limits: nested keys have no order here. No Python statement per row, nothing that imports pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.keys import normalised
from penstock.record.layout import bits, fixed_values, null_mask

Numbers = npt.NDArray[np.int64]

_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_ARROW = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}


@dataclass(frozen=True, slots=True)
class SortKey:
    """One column of an order."""

    column: str
    ascending: bool = True
    nulls_first: bool = True

    @property
    def text(self) -> str:
        """As it is shown."""
        return f"{self.column} {'asc' if self.ascending else 'desc'} nulls {'first' if self.nulls_first else 'last'}"


def comparable(column: pa.Array) -> pa.Array:
    """The column as integers, decimals, strings or binaries that compare as the rows shall; nulls stay."""
    column = normalised(column)
    kind = column.type
    if pt.is_null(kind):
        return pa.nulls(len(column), pa.int8())
    if pt.is_boolean(kind):
        return column.cast(pa.int8())
    if pt.is_floating(kind):
        return _ordered_floats(column)
    if pt.is_temporal(kind):
        return column.view(_ARROW[kind.bit_width // 8])
    if pt.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    return column


def _ordered_floats(column: pa.Array) -> pa.Array:
    width = column.type.bit_width // 8
    values = fixed_values(column, _SIGNED[width])
    # The bits of a negative number grow with its size: turned over, all bits but the sign's.
    ordered = values ^ ((values >> (8 * width - 1)) & values.dtype.type((1 << (8 * width - 1)) - 1))
    validity = column.buffers()[0]
    if column.null_count and column.offset:
        mask = null_mask(column)
        validity = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
    kept = [validity if column.null_count else None, pa.py_buffer(ordered)]
    return pa.Array.from_buffers(_ARROW[width], len(column), kept)


def sorted_positions(keys: Sequence[SortKey], columns: Sequence[pa.Array]) -> pa.Array:
    """The positions that sort rows with these comparable columns; equal rows keep their order."""
    if len(columns) == 1:
        key = keys[0]
        return pc.array_sort_indices(
            columns[0], order=_direction(key.ascending), null_placement="at_start" if key.nulls_first else "at_end"
        )
    arrays: list[pa.Array] = []
    order: list[tuple[str, str]] = []
    for key, column in zip(keys, columns, strict=True):
        # Arrow has one place for the nulls of all keys, so a key with nulls gets one more, ahead of it.
        for array, ascending in (
            *([(column.is_null(), not key.nulls_first)] if column.null_count else []),
            (column, key.ascending),
        ):
            order.append((str(len(arrays)), _direction(ascending)))
            arrays.append(array)
    rows = pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in order])
    return pc.sort_indices(rows, sort_keys=order)


def _direction(ascending: bool) -> str:
    return "ascending" if ascending else "descending"


class RowPlaces:
    """The places of rows among sorted cuts: the cuts before a row, and those that are not after it."""

    def __init__(self, keys: Sequence[SortKey], cuts: Sequence[pa.Array]) -> None:
        self._keys = tuple(keys)
        self._cuts = [comparable(column) for column in cuts]
        self.count = len(cuts[0])

    def of(self, columns: Sequence[pa.Array]) -> tuple[Numbers, Numbers]:
        """For each row the cuts before it, and the cuts before or equal to it."""
        found = [comparable(column) for column in columns]
        if self.count == 0 or len(found[0]) == 0:
            nothing = np.zeros(len(found[0]), np.int64)
            return nothing, nothing
        if len(found) == 1 and pt.is_integer(found[0].type):
            return self._of_numbers(found[0])
        return self._of_any(found)

    def _of_numbers(self, column: pa.Array) -> tuple[Numbers, Numbers]:
        """Places by binary search; null cuts are the first or the last ones."""
        key, cuts = self._keys[0], self._cuts[0]
        first = cuts.null_count if key.nulls_first else 0
        known = _directed(cuts.slice(first, self.count - cuts.null_count), key)
        values = _directed(column, key)
        before = np.searchsorted(known, values, "left") + first
        until = before.copy()
        # A second search only for the rows that may equal a cut.
        inside = np.minimum(before - first, len(known) - 1)
        equal = (known[inside] == values) if len(known) else np.zeros(len(values), np.bool_)
        until[equal] = np.searchsorted(known, values[equal], "right") + first
        missing = null_mask(column)
        if missing is not None:
            before[missing] = 0 if key.nulls_first else len(known)
            until[missing] = cuts.null_count if key.nulls_first else self.count
        return before, until

    def _of_any(self, columns: list[pa.Array]) -> tuple[Numbers, Numbers]:
        """By sorting the cuts and the rows together, once with either ahead of its equals."""
        rows = len(columns[0])
        together = [pa.concat_arrays(pair) for pair in zip(self._cuts, columns, strict=True)]
        sorted_rows = sorted_positions(self._keys, together)
        order = fixed_values(sorted_rows, np.int64)
        is_cut = order < self.count
        cuts = np.cumsum(is_cut)
        # Equals follow each other, cuts first: where a run begins with a cut, its rows equal that.
        begins = self._begins(together, sorted_rows)
        before_run = np.where(is_cut[begins], cuts[begins] - 1, cuts[begins])[np.cumsum(begins) - 1]
        before, until = np.empty(rows, np.int64), np.empty(rows, np.int64)
        own = order[~is_cut] - self.count
        until[own] = cuts[~is_cut]
        before[own] = before_run[~is_cut]
        return before, until

    @staticmethod
    def _begins(together: Sequence[pa.Array], order: pa.Array) -> npt.NDArray[np.bool_]:
        """Which sorted rows differ from the one before."""
        same = np.ones(len(order) - 1, np.bool_)
        for column in together:
            found = column.take(order)
            same &= _same(found.slice(0, len(same)), found.slice(1))
        return np.concatenate(([True], ~same))


def _directed(column: pa.Array, key: SortKey) -> npt.NDArray[Any]:
    """Integers that ascend in the key's order: bits turned over reverse it and cannot overflow."""
    values = fixed_values(column, column.type.to_pandas_dtype())
    return values if key.ascending else ~values


def _same(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """For each row whether the two values are equal, or both null."""
    equal = pc.equal(one, other)
    same = bits(equal.buffers()[1], equal.offset, len(equal)).astype(np.bool_)
    missing = [mask for mask in (null_mask(one), null_mask(other)) if mask is not None]
    if not missing:
        return same
    either = np.logical_or.reduce(missing)
    both = missing[0] & missing[1] if len(missing) == 2 else np.zeros(len(same), np.bool_)
    agree: npt.NDArray[np.bool_] = (same & ~either) | both
    return agree
