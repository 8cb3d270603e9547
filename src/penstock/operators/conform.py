# SPDX-License-Identifier: Apache-2.0
"""User functions' output made to fit the declared schema, or refused with the column's name.

These rows fit:
- Columns: the declared names in the declared order; the same names in another order are put in order.
- Equal types pass untouched. Types that differ only in their physical layout are cast: large and view strings,
  binaries and lists, fixed-size lists and binaries, dictionary and run-end encoding, the unit of timestamps,
  durations and times, the zone's name of zoned timestamps, date64 of whole days, decimals of another width with
  the same scale and no fewer digits declared, a column of type null.
- Everything else is refused as PySpark refuses it, also a narrower integer: a silent widening would hide that the
  declared schema is not what the function returns. A cast that would lose something (nanoseconds) is refused too.
- Nulls in a column declared NOT NULL are refused, and so are those in such fields, elements and values inside others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.errors import SchemaError
from penstock.graph import same_but_nulls
from penstock.operators.promises import broken, promises
from penstock.record.relabelled import relabelled


@dataclass(frozen=True, slots=True)
class Misfit:
    """The words for a type that does not fit: who gave it, and what to do."""

    giver: str = "the function returned"
    remedy: str = "cast it there, or declare that type"


class Conformer:
    """Makes batches of one operator fit one schema; remembers the last schema it saw."""

    def __init__(self, schema: pa.Schema, operator: str, misfit: Misfit = Misfit()) -> None:
        self._schema = schema
        self._operator = operator
        self._misfit = misfit
        self._strict = [index for index, field in enumerate(schema) if promises(field)]
        self._seen: pa.Schema | None = None
        self._order: list[int] | None = None

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with exactly the declared schema; raises SchemaError."""
        if batch.schema is not self._seen:
            self._order = self._plan(batch.schema)
            self._seen = batch.schema
        if self._order is not None:
            batch = self._rebuilt(batch, self._order)
        for index in self._strict:
            refuse_broken(batch.column(index), self._schema.field(index), self._operator)
        return batch

    def _plan(self, found: pa.Schema) -> list[int] | None:
        declared = self._schema
        if found.equals(declared):
            return None
        if found.names == declared.names:
            return list(range(len(declared)))
        missing = [name for name in declared.names if name not in found.names]
        extra = [name for name in found.names if name not in declared.names]
        if missing or extra or len(found) != len(declared):
            raise SchemaError(
                f"{self._operator}: the function returned columns ({', '.join(found.names)}), declared are "
                f"({', '.join(declared.names)}); missing: {', '.join(missing) or 'none'}, "
                f"unexpected: {', '.join(extra) or 'none'}: declare what it returns, or return what is declared"
            )
        order = [found.get_field_index(name) for name in declared.names]
        if -1 in order:
            raise SchemaError(f"{self._operator}: column names that occur twice must come in the declared order")
        return order

    def _rebuilt(self, batch: pa.RecordBatch, order: list[int]) -> pa.RecordBatch:
        columns = []
        for index, field in zip(order, self._schema, strict=True):
            column = batch.column(index)
            try:
                columns.append(fitted(column, field.type))
            except (pa.ArrowException, _MisfitError) as error:
                reason = "" if isinstance(error, _MisfitError) else f" ({error})"
                raise SchemaError(
                    f"{self._operator}: column {field.name!r} is declared {field.type} "
                    f"and {self._misfit.giver} {column.type}{reason}: {self._misfit.remedy}"
                ) from error
        if not columns:
            return batch
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def refuse_broken(column: pa.Array, field: pa.Field, operator: str) -> None:
    """Raise SchemaError where a column has nulls that its declared field allows none of."""
    found = broken(column, field)
    if found is not None:
        raise SchemaError(
            f"{operator}: column {found.path!r} is declared NOT NULL and has {found.nulls} nulls: fill them there, "
            "or leave NOT NULL out"
        )


def conform(batch: pa.RecordBatch, schema: pa.Schema, operator: str = "the function") -> pa.RecordBatch:
    """One batch made to fit; for many batches keep a Conformer."""
    return Conformer(schema, operator).conform(batch)


class _MisfitError(Exception):
    """A column's type is not a physical variant of the declared one."""


def fitted(column: pa.Array, declared: pa.DataType) -> pa.Array:
    """The column in the declared type; raises ArrowInvalid where the cast would lose something."""
    found = column.type
    if found.equals(declared):
        return column
    if pt.is_null(found):
        return pa.nulls(len(column), declared)
    if pt.is_dictionary(found):
        return fitted(column.dictionary_decode(), declared)
    if pt.is_run_end_encoded(found):
        return fitted(pc.run_end_decode(column), declared)
    if isinstance(found, pa.BaseExtensionType) and not isinstance(declared, pa.BaseExtensionType):
        return fitted(column.storage, declared)
    if pt.is_struct(declared):
        return _struct(column, declared)
    if pt.is_map(declared):
        return _map(column, declared)
    if pt.is_list(declared) or pt.is_large_list(declared):
        return _list(column, declared)
    if same_but_nulls(found, declared):  # lists of a fixed size, and views
        return relabelled(column, declared)
    if not _castable(found, declared):
        raise _MisfitError
    return column.cast(declared)


def _castable(found: pa.DataType, declared: pa.DataType) -> bool:
    if any(all(_is_one_of(kind, family) for kind in (found, declared)) for family in (_STRINGS, _BINARIES)):
        return True
    if pt.is_timestamp(found) and pt.is_timestamp(declared):
        return (found.tz is None) == (declared.tz is None)
    if pt.is_decimal(found) and pt.is_decimal(declared):
        return bool(found.scale == declared.scale and found.precision <= declared.precision)
    families = (pt.is_duration, pt.is_time, pt.is_date, pt.is_dictionary)
    return any(family(found) and family(declared) for family in families)


_STRINGS = (pt.is_string, pt.is_large_string, pt.is_string_view)
_BINARIES = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)


_LISTS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)


def _is_one_of(kind: pa.DataType, family: tuple[object, ...]) -> bool:
    return any(check(kind) for check in family)  # type: ignore[operator]


def _validity(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None


def _struct(column: pa.Array, declared: pa.DataType) -> pa.Array:
    found = column.type
    if not pt.is_struct(found):
        raise _MisfitError
    names = [field.name for field in declared]
    if [field.name for field in found] != names:
        raise _MisfitError
    # `field()` ignores the struct's own nulls and offset-adjusts; the mask puts the nulls back.
    children = [fitted(column.field(index), declared.field(index).type) for index in range(len(names))]
    return pa.StructArray.from_arrays(children, fields=list(declared), mask=_validity(column))


def _list(column: pa.Array, declared: pa.DataType) -> pa.Array:
    found = column.type
    if not any(check(found) for check in _LISTS):
        raise _MisfitError
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
    values = fitted(column.flatten(), declared.value_type)
    return kind.from_arrays(offsets, values, type=declared, mask=_validity(column))


def _is_valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    valid = column.is_valid()
    raw = np.frombuffer(valid.buffers()[1], np.uint8)
    bits = np.unpackbits(raw, count=valid.offset + len(valid), bitorder="little")
    return bits[valid.offset :].astype(np.bool_)


def _map(column: pa.Array, declared: pa.DataType) -> pa.Array:
    if not pt.is_map(column.type):
        raise _MisfitError
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    keys = fitted(column.keys.slice(first, last - first), declared.key_type)
    items = fitted(column.items.slice(first, last - first), declared.item_type)
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
