# SPDX-License-Identifier: Apache-2.0
"""The tools that kernels share: constants, NumPy views and masks. Nothing here imports pandas, as `pa.scalar` may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.graph import same_but_nulls
from penstock.operators.expressions.tree import Call, ValuesError
from penstock.record.layout import fixed_values, null_mask
from penstock.record.relabelled import relabelled

Datum = Any
"""A `pyarrow.Array`, or a `pyarrow.Scalar` that stands for every row."""
Kernel = Callable[[Call, list[Datum]], Datum]
"""Computes a call from its evaluated arguments."""

_DTYPES = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
    pa.date32(): np.int32,
}


def _bit(value: bool) -> pa.Scalar:
    return pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(bytes([value]))])[0]


TRUE = _bit(True)
FALSE = _bit(False)
EMPTY = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]


def text_scalar(text: str) -> pa.Scalar:
    """A constant string."""
    data = text.encode()
    offsets = np.array([0, len(data)], np.int32)
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])[0]


def number_scalar(value: float, kind: pa.DataType) -> pa.Scalar:
    """A constant of a fixed-width type that NumPy knows; timestamps and durations by their number."""
    values = np.array([value], _DTYPES.get(kind, np.int64))
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(values)])[0]


def zero_of(kind: pa.DataType) -> pa.Scalar:
    """The zero of a type of numbers."""
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(kind.bit_width // 8))])[0]


def array_of(values: npt.NDArray[Any], kind: pa.DataType, missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """An array of these values, null where `missing` is true."""
    validity = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(np.ascontiguousarray(values))])


def numbers(column: pa.Array) -> npt.NDArray[Any]:
    """The values of a column that NumPy has a type for; what stands under nulls is arbitrary."""
    return fixed_values(column, _DTYPES.get(column.type, np.int64))


def missing_in(*columns: pa.Array) -> npt.NDArray[np.bool_] | None:
    """A mask that is true where any of these is null; None if none is."""
    found: npt.NDArray[np.bool_] | None = None
    for column in columns:
        mask = null_mask(column)
        if mask is not None:
            found = mask if found is None else found | mask
    return found


def column_of(value: Datum, rows: int) -> pa.Array:
    """A value for every row as an array."""
    if isinstance(value, pa.ChunkedArray):
        return value.combine_chunks()
    if isinstance(value, pa.Array):
        return value
    if pt.is_null(value.type) or not value.is_valid:
        return pa.nulls(rows, value.type)
    one = pc.coalesce(pa.nulls(1, value.type), value)
    return one.take(array_of(np.zeros(rows, np.int64), pa.int64()))


def of_type(value: Datum, kind: pa.DataType) -> Datum:
    """The value in a type that Spark takes for the same, or casts it to."""
    if value.type.equals(kind):
        return value
    if not same_but_nulls(value.type, kind):
        return value.cast(kind)
    if isinstance(value, pa.Scalar):
        return relabelled(column_of(value, 1), kind)[0]
    return relabelled(value, kind)


def columns_of_rows(values: list[Datum]) -> list[Datum]:
    """The same values, with arrays for all if one is an array; NumPy needs that."""
    rows = next((len(value) for value in values if isinstance(value, pa.Array)), None)
    return [column_of(value, 1 if rows is None else rows) for value in values]


def is_true(mask: Datum) -> Datum:
    """The mask with false for null."""
    return pc.coalesce(mask, FALSE)


def any_true(mask: Datum) -> bool:
    """Tell whether a mask holds anywhere; null does not count."""
    if isinstance(mask, pa.Scalar):
        return bool(mask.is_valid and mask.as_py())
    return bool(pc.any(mask).as_py())


def refuse_where(mask: Datum, values: Datum, problem: str) -> None:
    """Raise ValuesError with the first value for which the mask holds."""
    if any_true(mask):
        shown = values if isinstance(values, pa.Scalar) else values.filter(is_true(mask))[0]
        raise ValuesError(f"{shown.as_py()!r} {problem}")
