# SPDX-License-Identifier: Apache-2.0
"""Arrow columns of fixed width as NumPy arrays and back, and small helpers for rows of states."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.record.layout import bits, fixed_values, null_mask

Mask = npt.NDArray[np.bool_]

_BIT = 1


def width_dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    """The NumPy type in which values of an Arrow type are kept; None for a type without a fixed width."""
    if pt.is_boolean(kind):
        return np.dtype(np.bool_)
    if pt.is_decimal128(kind):
        return np.dtype("V16")
    if pt.is_integer(kind) or pt.is_floating(kind):
        number: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return number
    is_time = pt.is_date(kind) or pt.is_time(kind) or pt.is_timestamp(kind) or pt.is_duration(kind)
    return np.dtype(f"i{kind.bit_width // 8}") if is_time else None


def values_of(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values of a column; what stands under nulls is arbitrary."""
    if dtype != np.bool_:
        return fixed_values(column, dtype)
    if len(column) == 0:
        return np.zeros(0, np.bool_)
    return bits(column.buffers()[_BIT], column.offset, len(column)).astype(np.bool_)


def column_of(kind: pa.DataType, values: npt.NDArray[Any], valid: Mask | None = None) -> pa.Array:
    """A column of these values, null where they are not `valid`."""
    validity = None
    if valid is not None and not valid.all():
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    if values.dtype == np.bool_:
        count, values = len(values), np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(values)])
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(values)])


def flags_of(mask: Mask) -> pa.Array:
    """A mask as a column of booleans."""
    return column_of(pa.bool_(), mask)


def shown(schema: pa.Schema) -> pa.Schema:
    """A schema whose columns may all be null, as they are where a key has no state."""
    return pa.schema([field.with_nullable(True) for field in schema])


def present(column: pa.Array) -> Mask:
    """True where a column is not null."""
    missing = null_mask(column)
    return np.ones(len(column), np.bool_) if missing is None else ~missing
