# SPDX-License-Identifier: Apache-2.0
"""The type of a column in which values of two types meet, as in a union: Spark's rules for numbers.

The wider of two numbers; a double of whole numbers and floats, or of decimals and either; a decimal with room for
both. Spark widens more: days to instants, texts and numbers, fields of structs. There a union is refused, and the
error says to cast.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

_BY_WIDTH = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_MOST_DIGITS = 38


def wider_schema(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The columns of one schema, of types that the other's values fit too where there is such a type."""
    pairs = zip(one, other, strict=False)
    return pa.schema([mine.with_type(wider_type(mine.type, theirs.type) or mine.type) for mine, theirs in pairs])


def wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that values of both have in one column; None where Spark has other rules, or none."""
    if one.equals(other) or pt.is_null(other):
        return one
    if pt.is_null(one):
        return other
    if one in _BY_WIDTH and other in _BY_WIDTH:
        wider = _BY_WIDTH[max(map(_BY_WIDTH.index, (one, other)))]
        return pa.float64() if wider == pa.float32() else wider
    kinds = [pa.decimal128(_DIGITS[kind], 0) if kind in _DIGITS else kind for kind in (one, other)]
    if all(pt.is_decimal128(kind) for kind in kinds):
        scale = max(kind.scale for kind in kinds)
        digits = max(kind.precision - kind.scale for kind in kinds) + scale
        return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else None
    if any(pt.is_decimal128(kind) for kind in kinds) and any(pt.is_floating(kind) for kind in kinds):
        return pa.float64()
    return None
