# SPDX-License-Identifier: Apache-2.0
"""Spark SQL's `hash(...)`, bit for bit, over Arrow columns: Murmur3_x86_32 as HashExpression uses it.

Rules, all checked against Spark itself in the tests:
- Columns are chained: the hash so far is the next column's seed. A null leaves it unchanged.
- bool, int8, int16, int32 and date are one 4-byte word; int64, timestamp (microseconds), time (nanoseconds),
  day-time interval (microseconds) and decimal up to 18 digits are two. Calendar interval: microseconds, days, months.
- float: -0.0 counts as 0.0 and every NaN as one NaN. Decimal above 18 digits: the shortest big-endian
  two's complement of the unscaled value, hashed as bytes.
- Bytes: 4-byte words, then each left-over byte on its own as a *signed* word (this is not standard Murmur3).
- Struct: its fields in order; list: its elements in order. Map and variant are refused, as Spark does.

It is fast because it takes blocks of rows that fit in the cache, and does every step in place (see `murmur3`).
Limits: a list of many thousand elements costs a step per element. PyArrow cannot hold a year-month interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import SchemaError, SettingError
from penstock.record import layout
from penstock.record.layout import Spans, contains, is_bytes, is_list, is_view
from penstock.record.murmur3 import Words, hash_bytes, hash_int, hash_long

SEED = 42
_BLOCK = 1 << 14
_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": -1_000}
_NANOS = {"us": 1_000, "ns": 1}


def spark_hash(columns: Sequence[pa.Array], seed: int = SEED) -> npt.NDArray[np.int32]:
    """`hash(columns...)` of each row; raises SchemaError for a type Spark cannot hash."""
    check_columns(columns, unhashable)
    length = len(columns[0])
    result = np.full(length, seed & 0xFFFFFFFF, np.uint32)
    for start in range(0, length, _BLOCK):
        block = result[start : start + _BLOCK]
        for column in columns:
            _update(block, column.slice(start, len(block)))
    return result.view(np.int32)


def spark_partition_ids(
    columns: Sequence[pa.Array], n: int, out: npt.NDArray[np.unsignedinteger] | None = None
) -> npt.NDArray[np.unsignedinteger]:
    """`pmod(hash(columns...), n)`: where Spark's `repartition(n, columns)` puts each row."""
    hashes = spark_hash(columns)
    ids = np.empty(len(hashes), layout.index_dtype(n)) if out is None else out
    if n & (n - 1) == 0:
        hashes &= np.int32(n - 1)
    else:
        # floor_divide by a scalar is vectorised, remainder is not
        quotient = np.floor_divide(hashes, np.int32(n))
        quotient *= np.int32(n)
        hashes -= quotient
    np.copyto(ids, hashes, casting="unsafe")
    return ids


def check_columns(columns: Sequence[pa.Array], refusal: Callable[[pa.DataType], str | None]) -> None:
    """Raise SettingError without columns, SchemaError for columns of unequal length or a refused type."""
    if not columns:
        raise SettingError("a hash needs at least one column")
    for number, column in enumerate(columns):
        reason = refusal(column.type)
        if reason is not None:
            raise SchemaError(f"column {number} of type {column.type} cannot be hashed: {reason}")
        if len(column) != len(columns[0]):
            raise SchemaError(f"column {number} has {len(column)} rows, column 0 has {len(columns[0])}")


def unhashable(kind: pa.DataType) -> str | None:
    """Why Spark's `hash` does not take this type, or None where it does."""
    if isinstance(kind, pa.BaseExtensionType):
        return unhashable(kind.storage_type)
    if pt.is_map(kind):
        return "Spark's hash does not take maps"
    if pt.is_decimal(kind):
        return None if kind.precision <= 38 else "Spark's decimals have at most 38 digits"
    if pt.is_struct(kind) and any((field.metadata or {}).get(b"variant") for field in kind):
        return "Spark's hash does not take variants"
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind) or is_list(kind) or pt.is_struct(kind):
        return next(filter(None, (unhashable(child.type) for child in layout.children(kind))), None)
    return None if is_bytes(kind) or pt.is_null(kind) or _kernel(kind) else "Spark has no such type"


def _update(h: Words, array: pa.Array) -> None:
    """Chain one column into the running hashes; rows that are null keep theirs."""
    array = layout.decoded(array)
    if array.null_count == len(array):
        return
    missing = layout.null_mask(array)
    before = h.copy() if missing is not None else h
    kind = array.type
    if pt.is_struct(kind):
        for i in range(kind.num_fields):
            _update(h, array.field(i))
    elif is_list(kind):
        _update_lists(h, layout.list_spans(array))
    elif is_bytes(kind):
        hash_bytes(h, layout.byte_spans(array))
    elif pt.is_decimal(kind) and kind.precision > 18:
        hash_bytes(h, _decimal_bytes(array))
    else:
        kernel = _kernel(kind)
        assert kernel is not None  # noqa: S101 - `unhashable` was asked first
        kernel(h, array)
    if missing is not None:
        np.copyto(h, before, where=missing)


def _kernel(kind: pa.DataType) -> Callable[[Words, pa.Array], None] | None:
    if pt.is_decimal(kind):
        return _update_decimal
    if pt.is_timestamp(kind) or pt.is_duration(kind):
        return _update_micros
    if pt.is_time64(kind):
        return _update_nanos
    return _KERNELS.get(kind)


def _update_bool(h: Words, array: pa.Array) -> None:
    hash_int(h, layout.bits(array.buffers()[1], array.offset, len(array)).astype(np.uint32))


def _update_int8(h: Words, array: pa.Array) -> None:
    hash_int(h, layout.fixed_values(array, np.int8).astype(np.int32).view(np.uint32))


def _update_int16(h: Words, array: pa.Array) -> None:
    hash_int(h, layout.fixed_values(array, np.int16).astype(np.int32).view(np.uint32))


def _update_int32(h: Words, array: pa.Array) -> None:
    hash_int(h, layout.fixed_values(array, np.uint32))


def _update_int64(h: Words, array: pa.Array) -> None:
    hash_long(h, layout.fixed_values(array, np.int64))


def _update_float32(h: Words, array: pa.Array) -> None:
    hash_int(h, canonical_floats(layout.fixed_values(array, np.float32)).view(np.uint32))


def _update_float64(h: Words, array: pa.Array) -> None:
    hash_long(h, canonical_floats(layout.fixed_values(array, np.float64)).view(np.int64))


def canonical_floats(values: layout.NDArray) -> layout.NDArray:
    """A copy in which -0.0 is 0.0 and every NaN has the same bits."""
    with np.errstate(invalid="ignore"):
        result: layout.NDArray = values + values.dtype.type(0)
    strange = result != result  # only NaN differs from itself
    if strange.any():
        result[strange] = np.nan
    return result


def _update_micros(h: Words, array: pa.Array) -> None:
    values = layout.fixed_values(array, np.int64)
    factor = _MICROS[array.type.unit]
    # PySpark floors nanoseconds to microseconds
    hash_long(h, values // -factor if factor < 0 else values if factor == 1 else values * factor)


def _update_nanos(h: Words, array: pa.Array) -> None:
    hash_long(h, layout.fixed_values(array, np.int64) * _NANOS[array.type.unit])


def _update_interval(h: Words, array: pa.Array) -> None:
    words = layout.fixed_values(array, np.dtype([("months", "<u4"), ("days", "<u4"), ("nanos", "<i8")]))
    hash_long(h, words["nanos"] // 1000)
    hash_int(h, words["days"])
    hash_int(h, words["months"])


def _update_decimal(h: Words, array: pa.Array) -> None:
    width = array.type.byte_width
    if width == 4:
        hash_long(h, layout.fixed_values(array, np.int32).astype(np.int64))
    else:
        words = layout.fixed_values(array, np.dtype((np.int64, (width // 8,))))
        hash_long(h, np.ascontiguousarray(words[:, 0]))


def _decimal_bytes(array: pa.Array) -> Spans:
    """Unscaled values as BigInteger.toByteArray gives them: big-endian, no more sign bytes than needed."""
    rows = layout.fixed_values(array, np.dtype((np.uint8, (array.type.byte_width,))))
    digits = np.ascontiguousarray(rows[:, 15::-1])
    magnitude = digits ^ (0 - (digits[:, :1] >> 7))
    first = (magnitude != 0).argmax(axis=1)
    every = np.arange(len(digits), dtype=np.int64)
    top = magnitude[every, first]
    lengths = np.where(top == 0, 1, 16 - first + (top >> 7))
    missing = layout.null_mask(array)
    if missing is not None:
        lengths[missing] = 0
    return Spans(digits.reshape(-1), every * 16 + 16 - lengths, lengths)


def _update_lists(h: Words, spans: Spans) -> None:
    """Chain the elements of each row, one element of every row that still has one at a time."""
    elements, positions, lengths = spans
    if contains(elements.type, is_view):
        elements = layout.decoded(elements)
    longest = int(lengths.max(initial=0))
    order = np.argsort(-lengths, kind="stable")
    positions, lengths, hashes = positions[order], lengths[order], h[order]
    for step in range(longest):
        count = int(np.searchsorted(-lengths, -step, side="left"))
        _update(hashes[:count], layout.take(elements, layout.int64_array(positions[:count] + step)))
    h[order] = hashes


_KERNELS: dict[pa.DataType, Callable[[Words, pa.Array], None]] = {
    pa.bool_(): _update_bool,
    pa.int8(): _update_int8,
    pa.int16(): _update_int16,
    pa.int32(): _update_int32,
    pa.int64(): _update_int64,
    pa.float32(): _update_float32,
    pa.float64(): _update_float64,
    pa.date32(): _update_int32,
    pa.month_day_nano_interval(): _update_interval,
}
