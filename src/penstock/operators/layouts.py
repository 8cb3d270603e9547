# SPDX-License-Identifier: Apache-2.0
"""Columns brought from one layout, and one writer's types, to another: the one place that does so.

A layout always may differ: large and view strings, binaries and lists, fixed-size lists and binaries, dictionary and
run-end encoding, the unit of timestamps, durations and times, the zone's name of zoned timestamps, date64 of whole
days, decimals of another width with the same scale and no fewer digits declared, half floats that are floats, a
column of type null. Files may differ in more, as far as Spark's Parquet reader takes them: narrower numbers widen,
fields of structs are found by name. A cast that would lose a value is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.errors import SchemaError
from penstock.graph import is_one_value, same_but_nulls
from penstock.record.relabelled import relabelled


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences that are allowed beside layouts.

    With `widens` numbers may be narrower, and fields of structs are found by name: what is missing is null, what is
    more is left out. Names are the same in another case, unless `is_case_sensitive`.
    """

    widens: bool = False
    is_case_sensitive: bool = True


LAYOUTS = Differences()


class MisfitError(Exception):
    """A column's type is not a variant of the declared one."""


def fitted(column: pa.Array, declared: pa.DataType, may: Differences = LAYOUTS) -> pa.Array:
    """The column in the declared type; raises ArrowInvalid where the cast would lose something, or MisfitError."""
    found = column.type
    if found.equals(declared):
        return column
    if pt.is_null(found):
        return pa.nulls(len(column), declared)
    if pt.is_dictionary(found):
        return fitted(column.dictionary_decode(), declared, may)
    if pt.is_run_end_encoded(found):
        return fitted(pc.run_end_decode(column), declared, may)
    if isinstance(found, pa.BaseExtensionType) and not isinstance(declared, pa.BaseExtensionType):
        return fitted(column.storage, declared, may)
    if pt.is_struct(declared):
        return _struct(column, declared, may)
    if pt.is_map(declared) or pt.is_list(declared) or pt.is_large_list(declared):
        return refilled(column, declared, lambda part, kind: fitted(part, kind, may))
    if same_but_nulls(found, declared):  # lists of a fixed size, and views
        return relabelled(column, declared)
    if not (_castable(found, declared) or (may.widens and _widens(found, declared))):
        raise MisfitError
    return column.cast(declared)


def places(found: list[str], wanted: list[str], *, is_case_sensitive: bool) -> list[int]:
    """The place of each wanted name among those found, -1 where there is none.

    Raises SchemaError where several names are meant, which differ in case only.
    """
    if found == wanted:
        return list(range(len(wanted)))
    known: dict[str, list[int]] = {}
    for place, name in enumerate(found):
        known.setdefault(name if is_case_sensitive else name.lower(), []).append(place)
    result = []
    for name in wanted:
        meant = known.get(name if is_case_sensitive else name.lower(), [])
        if len(meant) > 1:
            shown = ", ".join(repr(found[place]) for place in meant)
            raise SchemaError(f"column {name!r} is {shown}: set spark.sql.caseSensitive=true, or rename them")
        result.append(meant[0] if meant else -1)
    return result


def _castable(found: pa.DataType, declared: pa.DataType) -> bool:
    if any(all(_is_one_of(kind, family) for kind in (found, declared)) for family in (_STRINGS, _BINARIES)):
        return True
    if pt.is_timestamp(found) and pt.is_timestamp(declared):
        return (found.tz is None) == (declared.tz is None)
    if pt.is_decimal(found) and pt.is_decimal(declared):
        return bool(found.scale == declared.scale and found.precision <= declared.precision)
    if pt.is_float16(found):
        return bool(pt.is_float32(declared))
    families = (pt.is_duration, pt.is_time, pt.is_date, pt.is_dictionary)
    return any(family(found) and family(declared) for family in families)


_INT_BITS = 32


def _widens(found: pa.DataType, declared: pa.DataType) -> bool:
    """Tell whether Spark's Parquet reader takes one type for the other.

    Whole numbers of up to 32 bits are one type to it; here each value must fit.
    """
    if pt.is_integer(found):
        is_int = found.bit_width <= _INT_BITS
        if pt.is_integer(declared):
            return bool(is_int or declared.bit_width == found.bit_width)
        if pt.is_decimal(declared):
            return bool(declared.precision - declared.scale >= (_INT_DIGITS if is_int else _LONG_DIGITS))
        if pt.is_duration(declared):  # Parquet has no such type, and Spark's files have microseconds
            return bool(pt.is_int64(found) and declared.unit == "us")
        return bool(is_int and pt.is_float64(declared))
    if pt.is_floating(found):
        return bool(pt.is_floating(declared) and found.bit_width < declared.bit_width)
    if pt.is_decimal(found) and pt.is_decimal(declared):
        whole = declared.precision - declared.scale
        return bool(declared.scale >= found.scale and whole >= found.precision - found.scale)
    if pt.is_date32(found):
        return bool(pt.is_timestamp(declared) and declared.tz is None)
    if pt.is_timestamp(found):  # a local time is one of UTC, and the other way round
        return bool(pt.is_timestamp(declared))
    return all(_is_one_of(kind, (*_STRINGS, *_BINARIES)) for kind in (found, declared))


_INT_DIGITS = 10
_LONG_DIGITS = 20
_STRINGS = (pt.is_string, pt.is_large_string, pt.is_string_view)
_BINARIES = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
_LISTS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)


def _is_one_of(kind: pa.DataType, family: tuple[object, ...]) -> bool:
    return any(check(kind) for check in family)  # type: ignore[operator]


def _validity(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None


def _struct(column: pa.Array, declared: pa.DataType, may: Differences) -> pa.Array:
    found = column.type
    if not pt.is_struct(found):
        raise MisfitError
    names, wanted = ([field.name for field in kind] for kind in (found, declared))
    if names != wanted and not may.widens:
        raise MisfitError
    if is_one_value(declared) and set(names) != set(wanted):
        raise MisfitError  # such as a variant in parts
    # `field()` ignores the struct's own nulls and offset-adjusts; the mask puts the nulls back.
    children = [
        pa.nulls(len(column), field.type) if place < 0 else fitted(column.field(place), field.type, may)
        for place, field in zip(
            places(names, wanted, is_case_sensitive=may.is_case_sensitive or not may.widens), declared, strict=True
        )
    ]
    return pa.StructArray.from_arrays(children, fields=list(declared), mask=_validity(column))


Convert = Callable[[pa.Array, pa.DataType], pa.Array]


def refilled(column: pa.Array, declared: pa.DataType, convert: Convert) -> pa.Array:
    """A list or map of the declared type over values that `convert` brings to its; raises MisfitError."""
    return (_map if pt.is_map(declared) else _list)(column, declared, convert)


def _list(column: pa.Array, declared: pa.DataType, convert: Convert) -> pa.Array:
    found = column.type
    if not any(check(found) for check in _LISTS):
        raise MisfitError
    large = pt.is_large_list(declared)
    # Flattened and measured row by row: that honours slices in every list layout, where casts do not.
    lengths = pc.list_value_length(column)
    dtype = np.dtype(np.int64 if lengths.type == pa.int64() else np.int32)
    counts = np.frombuffer(lengths.buffers()[1], dtype, len(lengths), lengths.offset * dtype.itemsize)
    if column.null_count:
        counts = np.where(_is_valid(column), counts, 0)
    ends = np.zeros(len(column) + 1, np.int64 if large else np.int32)
    np.cumsum(counts, out=ends[1:])
    offsets = pa.Array.from_buffers(pa.int64() if large else pa.int32(), len(ends), [None, pa.py_buffer(ends)])
    kind = pa.LargeListArray if large else pa.ListArray
    values = convert(column.flatten(), declared.value_type)
    return kind.from_arrays(offsets, values, type=declared, mask=_validity(column))


def _is_valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    valid = column.is_valid()
    raw = np.frombuffer(valid.buffers()[1], np.uint8)
    bits = np.unpackbits(raw, count=valid.offset + len(valid), bitorder="little")
    return bits[valid.offset :].astype(np.bool_)


def _map(column: pa.Array, declared: pa.DataType, convert: Convert) -> pa.Array:
    if not pt.is_map(column.type):
        raise MisfitError
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    keys = convert(column.keys.slice(first, last - first), declared.key_type)
    items = convert(column.items.slice(first, last - first), declared.item_type)
    entries = pa.struct([declared.key_field, declared.item_field])
    pairs = pa.StructArray.from_arrays([keys, items], fields=list(entries))
    lists = pa.ListArray.from_arrays(_rebased(column.offsets, first), pairs, mask=_validity(column))
    return pa.Array.from_buffers(
        declared, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [lists.values]
    )


def _rebased(offsets: pa.Array, first: int) -> pa.Array:
    # A copy in any case: `from_arrays` with a mask refuses sliced offsets. Not by Arrow's subtract: making the
    # scalar for it would import pandas.
    dtype = np.dtype(np.int32 if pt.is_int32(offsets.type) else np.int64)
    values = np.frombuffer(offsets.buffers()[1], dtype, len(offsets), offsets.offset * dtype.itemsize) - dtype.type(
        first
    )
    return pa.Array.from_buffers(offsets.type, len(offsets), [None, pa.py_buffer(values)])
