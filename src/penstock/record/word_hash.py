# SPDX-License-Identifier: Apache-2.0
"""Penstock's own hash of keys, for keyed edges that need not agree with Spark. It never changes.

The hash (all arithmetic modulo 2**64; `fold(h) = h ^ (h >> 32)`):

    row      h = SEED; for each column: h = fold((h ^ digest) * M1); last: h *= M2; h ^= h >> 29; h = fold(h * M3)
    integer  the value, sign-extended; bool 0 or 1; date in days
    time     timestamp, duration, time of day in nanoseconds
    float    the bits of the value as float64, with -0.0 as 0.0 and one NaN
    decimal  d = fold(low word * M1) ^ high word of the 128-bit unscaled value; 256 bits: words 2 and 3, each
             exclusive-or the sign word, are added times M2 and M3
    bytes    d = length * M3; for each 8-byte word: d = fold((d ^ word) * M1). The last word ends with the value
             and may overlap the one before; below 8 bytes it is filled up with zeros.
             Above 512 bytes: xxh3_64 of the value.
    struct   like a row, from STRUCT, without the last step
    list     length * M2 + the sum of fold((element ^ (position + 1) * M3) * M1), so order counts
    null     NULL

So equal values have equal hashes whatever the batch's slicing or the layout (string, large string, view,
dictionary, run ends), the integer width (int32 5, int64 5) and the time unit. Decimals of different scale do not
agree. Maps, unions and month-day-nano intervals are refused.

Not for untrusted keys: an attacker who knows the constants can make keys collide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
import xxhash

from penstock.errors import SettingError
from penstock.record import layout
from penstock.record.layout import Spans, is_bytes, is_list
from penstock.record.murmur3 import by_steps
from penstock.record.spark_hash import canonical_floats, check_columns

Hashes = npt.NDArray[np.uint64]

_SEED, _STRUCT, _NULL = np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344), np.uint64(0xA4093822299F31D0)
_M1, _M2, _M3 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93), np.uint64(0xC2B2AE3D27D4EB4F)
_32, _29 = np.uint64(32), np.uint64(29)
_BLOCK = 1 << 13
_LONG = 512
_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
_INTEGERS: dict[pa.DataType, type[np.generic]] = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.uint8(): np.uint8,
    pa.uint16(): np.uint16,
    pa.uint32(): np.uint32,
    pa.uint64(): np.uint64,
    pa.date32(): np.int32,
}
_FLOATS: dict[pa.DataType, type[np.generic]] = {
    pa.float16(): np.float16,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}


def word_hash(columns: Sequence[pa.Array]) -> Hashes:
    """The hash of each row; raises SchemaError for a type that cannot be a key."""
    check_columns(columns, unhashable)
    result = np.empty(len(columns[0]), np.uint64)
    for start in range(0, len(result), _BLOCK):
        _hash_block(columns, start, result[start : start + _BLOCK])
    return result


def fast_partition_ids(
    columns: Sequence[pa.Array], n: int, out: npt.NDArray[np.unsignedinteger] | None = None
) -> npt.NDArray[np.unsignedinteger]:
    """A subpartition below `n` for each row: the hash's high half, scaled to the range by a multiplication."""
    if not 1 <= n < 1 << 32:
        raise SettingError(f"{n} subpartitions: a hash partitioner takes 1 to {(1 << 32) - 1}")
    check_columns(columns, unhashable)
    length = len(columns[0])
    ids = np.empty(length, layout.index_dtype(n)) if out is None else out
    block = np.empty(min(length, _BLOCK), np.uint64)
    for start in range(0, length, _BLOCK):
        h = block[: min(_BLOCK, length - start)]
        _hash_block(columns, start, h)
        h >>= _32
        h *= np.uint64(n)
        h >>= _32
        np.copyto(ids[start : start + _BLOCK], h, casting="unsafe")
    return ids


def unhashable(kind: pa.DataType) -> str | None:
    """Why this type cannot be a key, or None where it can."""
    if pt.is_map(kind):
        return "equal maps may list their entries in any order"
    if pt.is_null(kind) or is_bytes(kind) or pt.is_decimal(kind) or _is_fixed(kind):
        return None
    nested = isinstance(kind, pa.BaseExtensionType) or pt.is_dictionary(kind) or pt.is_run_end_encoded(kind)
    if nested or is_list(kind) or pt.is_struct(kind):
        return next(filter(None, (unhashable(child.type) for child in layout.children(kind))), None)
    return "this type cannot be a key"


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(kind in _INTEGERS or kind in _FLOATS or pt.is_boolean(kind) or pt.is_temporal(kind)) and not (
        pt.is_interval(kind)
    )


def _hash_block(columns: Sequence[pa.Array], start: int, h: Hashes) -> None:
    scratch = np.empty_like(h)
    h[:] = _SEED
    for column in columns:
        _chain(h, _digest(column.slice(start, len(h))), scratch)
    h *= _M2
    np.right_shift(h, _29, out=scratch)
    h ^= scratch
    h *= _M3
    np.right_shift(h, _32, out=scratch)
    h ^= scratch


def _chain(h: Hashes, digest: Hashes, scratch: Hashes) -> None:
    """`h = fold((h ^ digest) * M1)`, in place."""
    h ^= digest
    h *= _M1
    np.right_shift(h, _32, out=scratch)
    h ^= scratch


def _digest(array: pa.Array) -> Hashes:
    """Return the share of a column in the chain; may be a view of the array's own memory, so it is not written to."""
    if isinstance(array.type, pa.BaseExtensionType):
        return _digest(array.storage)
    if pt.is_dictionary(array.type) and len(array.dictionary) <= len(array):
        return _digest_of_dictionary(array)
    array = layout.decoded(array)
    if array.null_count == len(array):
        return np.full(len(array), _NULL)
    digest = _digest_of_values(array)
    missing = layout.null_mask(array)
    return digest if missing is None else np.where(missing, _NULL, digest)


def _digest_of_dictionary(array: pa.DictionaryArray) -> Hashes:
    values = _digest(array.dictionary)
    indices = layout.fixed_values(array.indices, array.type.index_type.to_pandas_dtype())
    missing = layout.null_mask(array.indices)
    if missing is None:
        return values[indices]
    return np.where(missing, _NULL, np.append(values, _NULL)[np.where(missing, len(values), indices)])


def _digest_of_values(array: pa.Array) -> Hashes:
    kind = array.type
    if is_bytes(kind):
        return _digest_of_bytes(layout.byte_spans(array))
    if pt.is_struct(kind):
        h = np.full(len(array), _STRUCT)
        scratch = np.empty_like(h)
        for i in range(kind.num_fields):
            _chain(h, _digest(array.field(i)), scratch)
        return h
    if is_list(kind):
        return _digest_of_lists(layout.list_spans(array))
    if pt.is_decimal(kind):
        return _digest_of_decimals(array)
    return _fixed_digest(array)


def _fixed_digest(array: pa.Array) -> Hashes:
    kind = array.type
    if pt.is_boolean(kind):
        return layout.bits(array.buffers()[1], array.offset, len(array)).astype(np.uint64)
    if kind in _FLOATS:
        values = layout.fixed_values(array, _FLOATS[kind]).astype(np.float64, copy=False)
        return canonical_floats(values).view(np.uint64)
    if kind in _INTEGERS:
        return _widened(layout.fixed_values(array, _INTEGERS[kind]))
    if pt.is_date64(kind):
        return (layout.fixed_values(array, np.int64) // 86_400_000).view(np.uint64)
    width = np.int32 if pt.is_time32(kind) else np.int64
    digest = _widened(layout.fixed_values(array, width))
    factor = _NANOS[kind.unit]
    return digest if factor == 1 else digest * np.uint64(factor)


def _widened(values: layout.NDArray) -> Hashes:
    if values.dtype.itemsize == 8:
        return values.view(np.uint64)
    return values.astype(np.int64).view(np.uint64)


def _digest_of_decimals(array: pa.Array) -> Hashes:
    width = array.type.byte_width
    if width <= 8:
        values = layout.fixed_values(array, np.int32 if width == 4 else np.int64).astype(np.int64)
        low, high = values.view(np.uint64), (values >> 63).view(np.uint64)
    else:
        words = layout.fixed_values(array, np.dtype((np.uint64, (width // 8,))))
        low, high = words[:, 0], words[:, 1]
    digest = low * _M1
    digest ^= digest >> _32
    digest ^= high
    if width == 32:
        sign = (high.astype(np.int64) >> 63).view(np.uint64)
        digest += (words[:, 2] ^ sign) * _M2
        digest += (words[:, 3] ^ sign) * _M3
    return digest


def _digest_of_lists(spans: Spans) -> Hashes:
    elements, _, lengths = spans
    digest = lengths.astype(np.uint64) * _M2
    if len(elements) == 0:
        return digest
    where, position = layout.element_positions(spans)
    parts = _digest(elements)[where]
    h = (position.view(np.uint64) + np.uint64(1)) * _M3
    _chain(h, parts, np.empty_like(h))
    first = np.cumsum(lengths) - lengths
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(h)))
    digest += sums[first + lengths] - sums[first]
    return digest


def _digest_of_bytes(spans: Spans) -> Hashes:
    """Steps over 8-byte words; rows with the most words come first, so the active ones are a prefix.

    Encoding the column as a dictionary first and hashing its entries was measured and is not done: it takes 104 ns
    a row instead of 30 where keys are distinct, 20 instead of 12 with 10 keys, and 23 instead of 28 with 1,000.
    """
    data, starts, lengths = spans
    if len(data) < 8:
        data = np.concatenate((data, np.zeros(8 - len(data), np.uint8)))
    words = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
    long_rows = np.flatnonzero(lengths > _LONG)
    short = np.where(lengths > _LONG, 0, lengths) if len(long_rows) else lengths
    order, active = by_steps((short + 7) >> 3)
    if order is not None:
        starts, short = starts[order], short[order]
    digest = short.astype(np.uint64) * _M3
    scratch = np.empty_like(digest)
    for step, count in enumerate(active):
        word = _first_words(words, starts[:count], short[:count]) if step == 0 else None
        if word is None:
            # the last word ends where the value does, and overlaps the one before
            word = words[starts[:count] + np.minimum(8 * step, short[:count] - 8)]
        _chain(digest[:count], word, scratch[:count])
    if order is not None:
        digest[order] = digest.copy()
    for row in long_rows.tolist():
        start = int(spans.starts[row])
        digest[row] = xxhash.xxh3_64_intdigest(data[start : start + int(lengths[row])])
    return digest


def _first_words(words: npt.NDArray[np.uint64], starts: layout.NDArray, lengths: layout.NDArray) -> Hashes:
    """The first 8 bytes of each value, filled up with zeros; never reads beyond the buffer's end."""
    if int(lengths.min()) >= 8:
        return words[starts]
    inside = np.minimum(starts, len(words) - 1)
    word = words[inside]
    word >>= ((starts - inside) << 3).view(np.uint64)
    word &= _MASKS[np.minimum(lengths, 8)]
    return word
