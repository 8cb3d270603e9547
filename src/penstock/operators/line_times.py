# SPDX-License-Identifier: Apache-2.0
"""Dates and times in lines of text, as Spark reads them: a time without a zone is the session's.

Arrow's reader of JSON knows no dates and takes a time without a zone for one of UTC; its reader of CSV refuses such a
time where an instant is declared. So they read text there, which becomes dates and instants afterwards. Limits: the
forms of ISO 8601 that Arrow's casts know; one that they do not know is an error with the column's name.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.expressions.calendar import instant

_ZONED = r"[ T][0-9:.]+(Z|[+-][0-9]{2}:?([0-9]{2})?)$"
_LOCAL = pa.timestamp("us")


def is_instant(kind: pa.DataType) -> bool:
    """Tell whether this is a time stamp with a zone."""
    return bool(pt.is_timestamp(kind) and kind.tz)


def as_text(kind: pa.DataType) -> pa.DataType:
    """The type with text for dates and instants, at any depth below structs and lists."""
    if pt.is_date(kind) or is_instant(kind):
        return pa.string()
    if pt.is_struct(kind):
        return pa.struct([field.with_type(as_text(field.type)) for field in kind])
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(as_text(kind.value_type)))
    return kind


def timed(column: pa.Array, field: pa.Field, zone: str) -> pa.Array:
    """A column of `as_text`'s type in the field's; raises pa.ArrowInvalid that names it."""
    try:
        return _timed(column, field.type, zone)
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(f"column {field.name!r}: {error}") from None


def _timed(column: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    if column.type.equals(kind):
        return column
    if is_instant(kind):
        return _instants(column, zone).cast(kind)
    if pt.is_struct(kind):
        parts = [_timed(column.field(place), field.type, zone) for place, field in enumerate(kind)]
        return pa.StructArray.from_arrays(
            parts, fields=list(kind), mask=column.is_null() if column.null_count else None
        )
    if pt.is_list(kind):
        values = _timed(column.values, kind.value_type, zone)
        return pa.Array.from_buffers(
            kind, len(column), column.buffers()[:2], column.null_count, column.offset, [values]
        )
    return column.cast(kind)


def _instants(column: pa.Array, zone: str) -> pa.Array:
    try:
        return instant(column.cast(_LOCAL), zone)
    except pa.ArrowInvalid:
        has_zone = pc.match_substring_regex(column, _ZONED)
        nothing = pa.nulls(len(column), column.type)
        zoned = pc.if_else(has_zone, column, nothing).cast(pa.timestamp("us", "UTC"))
        return pc.coalesce(zoned, instant(pc.if_else(has_zone, nothing, column).cast(_LOCAL), zone))
