# SPDX-License-Identifier: Apache-2.0
"""Rows to group numbers, without a Python statement per row.

Keys compare as Spark compares them when it groups: -0.0 equals 0.0, NaN equals NaN whatever its bits, null is a
key like any other. Groups are numbered in the order in which they are first seen. Nested keys are refused.

Never `pa.array(...)` or `to_numpy()` here: the first of them in a process imports pandas.
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

from penstock.errors import SchemaError
from penstock.operators.columns import only_column, refuse_collated

Codes = npt.NDArray[np.integer[Any]]

_UINT16 = 1 << 16


def refuse_ungroupable(schema: pa.Schema, keys: Sequence[str]) -> None:
    """Raise SchemaError for key columns that rows cannot be grouped by."""
    for key in keys:
        field = only_column(schema, key, "keys")
        refuse_collated(field, "keys")
        kind = field.type
        if pt.is_nested(kind) or pt.is_union(kind) or pt.is_run_end_encoded(kind) or _has_no_kernels(kind):
            raise SchemaError(
                f"column {key!r} of type {kind} cannot be grouped by: "
                "make plain columns of what you group by with mapInArrow first"
            )


def _has_no_kernels(kind: pa.DataType) -> bool:
    """Tell whether Arrow can carry such values and neither number nor sort them."""
    is_short = pt.is_decimal(kind) and not (pt.is_decimal128(kind) or pt.is_decimal256(kind))
    return is_short or pt.is_float16(kind) or isinstance(kind, pa.BaseExtensionType)


def plain(column: pa.Array) -> pa.Array:
    """The column without dictionary or view layout."""
    kind = column.type
    if pt.is_dictionary(kind):
        return plain(column.dictionary_decode())
    if pt.is_string_view(kind):
        return column.cast(pa.large_string())
    if pt.is_binary_view(kind):
        return column.cast(pa.large_binary())
    return column


def normalised(column: pa.Array) -> pa.Array:
    """The column with one bit pattern for what compares equal: zeros and NaN of floats."""
    column = plain(column)
    kind = column.type
    if not (pt.is_float32(kind) or pt.is_float64(kind)):
        return column
    dtype = np.dtype(np.float32 if pt.is_float32(kind) else np.float64)
    validity, data = column.buffers()
    if data is None or len(column) == 0:
        return column
    # Adding +0.0 turns -0.0 into 0.0 and makes the copy that the NaNs are written into.
    values = np.frombuffer(data, dtype, column.offset + len(column)) + dtype.type(0)
    values[np.isnan(values)] = np.nan
    return pa.Array.from_buffers(kind, len(column), [validity, pa.py_buffer(values)], offset=column.offset)


@dataclass(frozen=True, slots=True)
class Groups:
    """The group of each row, and per group its key: one array per key column, in order of the groups."""

    codes: Codes
    count: int
    keys: tuple[pa.Array, ...]


def group_rows(columns: Sequence[pa.Array], rows: int) -> Groups:
    """Number the groups of these key columns; without columns all rows are one group."""
    if not columns:
        return Groups(np.zeros(rows, np.uint8), 1 if rows else 0, ())
    encoded = [_encode(column) for column in columns]
    if len(encoded) == 1:
        codes, dictionary = encoded[0]
        return Groups(codes, len(dictionary), (dictionary,))
    combined, _ = encoded[0]
    picks: list[Codes] = [np.arange(len(encoded[0][1]))]
    for codes, dictionary in encoded[1:]:
        width = max(1, len(dictionary))
        combined, pairs = numbered(combined.astype(np.int64) * width + codes)
        picks = [pick[pairs // width] for pick in picks]
        picks.append(pairs % width)
    keys = tuple(dictionary.take(int64_array(pick)) for (_, dictionary), pick in zip(encoded, picks, strict=True))
    return Groups(combined, len(picks[0]), keys)


def _encode(column: pa.Array) -> tuple[Codes, pa.Array]:
    column = normalised(column)
    if pt.is_null(column.type):
        return np.zeros(len(column), np.int32), column.slice(0, min(1, len(column)))
    found = column.dictionary_encode(null_encoding="encode")
    return int32_values(found.indices), found.dictionary


def numbered(values: npt.NDArray[np.int64]) -> tuple[Codes, npt.NDArray[np.int64]]:
    """Numbers in first-seen order for these values, and the values in that order."""
    found = int64_array(values).dictionary_encode()
    dictionary = (
        np.frombuffer(found.dictionary.buffers()[1], np.int64, len(found.dictionary)) if len(values) else values
    )
    return int32_values(found.indices), dictionary


def stable_order(codes: Codes, count: int) -> npt.NDArray[np.int64]:
    """The rows sorted by group, in their order within a group.

    Arrow sorts 8 and 16 bits by counting, stably, at 1.5 ns a row (NumPy's radix sort takes 4 to 6, any sort by
    comparison 30 and more); wider codes are sorted in two such passes, low half first.
    """
    if count <= _UINT16:
        return _order(codes.astype(np.uint16))
    wide = codes.astype(np.uint32)
    low = _order((wide & 0xFFFF).astype(np.uint16))
    high = _order((wide >> 16).astype(np.uint16)[low])
    return low[high]


def _order(codes: npt.NDArray[np.uint16]) -> npt.NDArray[np.int64]:
    array = pa.Array.from_buffers(pa.uint16(), len(codes), [None, pa.py_buffer(codes)])
    indices = pc.array_sort_indices(array)
    if len(indices) == 0:
        return np.zeros(0, np.int64)
    return np.frombuffer(indices.buffers()[1], np.int64, len(indices), indices.offset * 8)


def int64_array(values: npt.NDArray[Any]) -> pa.Array:
    """An Arrow array over the memory of an int64 ndarray."""
    values = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def int32_values(array: pa.Array) -> npt.NDArray[np.int32]:
    """The values of an int32 array without nulls, not copied."""
    if len(array) == 0:
        return np.zeros(0, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, len(array), array.offset * 4)


class GroupIndex:
    """Gives keys of successive chunks numbers that stay the same, in first-seen order."""

    def __init__(self) -> None:
        self._known: list[pa.Array] = []
        self._numbers: dict[tuple[int, ...], int] = {}

    def numbers(self, groups: Groups) -> list[int]:
        """The lasting number of each group of a chunk."""
        if not groups.keys:
            return [0] * groups.count
        if not self._known:
            self._known = [key.slice(0, 0) for key in groups.keys]
        parts = [self._positions(index, key) for index, key in enumerate(groups.keys)]
        if len(parts) == 1:
            return parts[0]
        numbers = self._numbers
        return [numbers.setdefault(key, len(numbers)) for key in zip(*parts, strict=True)]

    def _positions(self, index: int, values: pa.Array) -> list[int]:
        known = self._known[index]
        if pt.is_null(values.type):
            return [0] * len(values)
        missing = pc.index_in(values, value_set=known).is_null()
        fresh = values.filter(missing).unique()
        if len(fresh):
            known = self._known[index] = pa.concat_arrays([known, fresh])
        positions: list[int] = int32_values(pc.index_in(values, value_set=known)).tolist()
        return positions
