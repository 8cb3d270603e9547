# SPDX-License-Identifier: Apache-2.0
"""Arrow arrays seen as NumPy arrays, and the few operations Arrow lacks for its rarer layouts.

Rules: nothing here copies values unless it says so; offsets and slices of arrays are honoured; no function
imports pandas (which `Array.to_numpy()` and `pa.array(ndarray)` would do).
Limits: `take` of list views inside other types and of run-end encoded columns inside other types is refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.errors import SchemaError

NDArray = npt.NDArray[Any]
_FAR = np.iinfo(np.int64).max


class Spans(NamedTuple):
    """Variable-size values: row `i` is `lengths[i]` items of `values` from `starts[i]` on."""

    values: Any
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


def fixed_values(array: pa.Array, dtype: npt.DTypeLike) -> NDArray:
    """The values buffer of a fixed-width array, without a copy; what stands under nulls is arbitrary."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.empty(0, dtype)
    kind = np.dtype(dtype)
    return np.frombuffer(buffer, kind, len(array), array.offset * kind.itemsize)


def bits(buffer: pa.Buffer, offset: int, length: int) -> npt.NDArray[np.uint8]:
    """One byte (0 or 1) per bit of a bitmap."""
    first = offset >> 3
    packed = np.frombuffer(buffer, np.uint8, ((offset + length + 7) >> 3) - first, first)
    return np.unpackbits(packed, count=(offset & 7) + length, bitorder="little")[offset & 7 :]


def null_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """True where the row is null, or None where no row is."""
    if array.null_count == 0:
        return None
    buffer = array.buffers()[0]
    if buffer is None:
        return np.ones(len(array), np.bool_)
    mask: npt.NDArray[np.bool_] = bits(buffer, array.offset, len(array)) == 0
    return mask


def int64_array(values: NDArray) -> pa.Array:
    """A contiguous int64 ndarray as an Arrow array over the same memory."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def byte_spans(array: pa.Array) -> Spans:
    """Bytes of a string or binary array (plain, large or fixed size); rows under nulls have length 0."""
    if pt.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        starts = np.arange(array.offset, array.offset + len(array), dtype=np.int64) * width
        lengths = np.full(len(array), width, np.int64)
        data = array.buffers()[1]
    else:
        large = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
        starts, lengths = _offsets(array, np.int64 if large else np.int32)
        data = array.buffers()[2]
    missing = null_mask(array)
    if missing is not None:
        lengths[missing] = 0
    values = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Spans(values, starts, lengths)


def list_spans(array: pa.Array) -> Spans:
    """Elements of a list array (plain, large, fixed size or view), cut to what its rows use."""
    kind = array.type
    large = np.int64 if pt.is_large_list(kind) or pt.is_large_list_view(kind) else np.int32
    if pt.is_fixed_size_list(kind):
        starts = np.arange(array.offset, array.offset + len(array), dtype=np.int64) * kind.list_size
        lengths = np.full(len(array), kind.list_size, np.int64)
    elif _is_list_view(kind):
        starts, lengths = (_integers(array, part, large).astype(np.int64) for part in (1, 2))
    else:
        starts, lengths = _offsets(array, large)
    missing = null_mask(array)
    if missing is not None:
        lengths[missing] = 0
    first = int(starts.min(initial=_FAR, where=lengths > 0))
    end = int((starts + lengths).max(initial=0, where=lengths > 0))
    return Spans(array.values.slice(min(first, end), max(end - first, 0)), starts - first, lengths)


def element_positions(spans: Spans) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For the elements of all rows one after another: where each stands in `values`, and where in its row."""
    firsts = np.cumsum(spans.lengths) - spans.lengths
    in_row = np.arange(int(spans.lengths.sum()), dtype=np.int64) - np.repeat(firsts, spans.lengths)
    return np.repeat(spans.starts, spans.lengths) + in_row, in_row


def _integers(array: pa.Array, part: int, dtype: npt.DTypeLike) -> NDArray:
    kind = np.dtype(dtype)
    return np.frombuffer(array.buffers()[part], kind, len(array), array.offset * kind.itemsize)


def _offsets(array: pa.Array, dtype: npt.DTypeLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    if len(array) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    kind = np.dtype(dtype)
    offsets = np.frombuffer(array.buffers()[1], kind, len(array) + 1, array.offset * kind.itemsize).astype(np.int64)
    return offsets[:-1].copy(), np.diff(offsets)


def children(kind: pa.DataType) -> list[pa.Field]:
    """The fields directly under a type (a list's element, a struct's fields, a dictionary's values, ...)."""
    if isinstance(kind, pa.BaseExtensionType):
        return [pa.field("storage", kind.storage_type)]
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return [pa.field("values", kind.value_type)]
    return [kind.field(i) for i in range(kind.num_fields)]


def contains(kind: pa.DataType, test: Any) -> bool:
    """Tell whether a type, or a type anywhere under it, passes the test."""
    return bool(test(kind)) or any(contains(child.type, test) for child in children(kind))


def is_view(kind: pa.DataType) -> bool:
    """Tell whether a type is a string or binary view."""
    return bool(pt.is_string_view(kind) or pt.is_binary_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Tell whether a type is a string or binary of any layout, fixed size included."""
    return bool(
        pt.is_string(kind)
        or pt.is_binary(kind)
        or pt.is_large_string(kind)
        or pt.is_large_binary(kind)
        or pt.is_fixed_size_binary(kind)
        or is_view(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Tell whether a type is a list of any layout (a map is none)."""
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind) or _is_list_view(kind))


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pt.is_list_view(kind) or pt.is_large_list_view(kind))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type with string and binary views inside lists, maps and structs replaced by the large variants."""
    if is_view(kind):
        return pa.large_string() if pt.is_string_view(kind) else pa.large_binary()
    if pt.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    if pt.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field), kind.keys_sorted)
    if pt.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pt.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    if pt.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    return kind


def plain(array: pa.Array) -> pa.Array:
    """The array cast to its plain type.

    Arrow's cast follows views under nulls too, and crashes where they hold garbage, so those are blanked first.
    Views inside other types are trusted.
    """
    if is_view(array.type) and array.null_count:
        validity, _, *data = array.buffers()
        views = np.zeros((array.offset + len(array), 2), np.int64)
        rows = valid_mask(array)
        views[array.offset :][rows] = fixed_values(array, np.dtype((np.int64, (2,))))[rows]
        parts = [validity, pa.py_buffer(views), *data]
        array = pa.Array.from_buffers(array.type, len(array), parts, array.null_count, array.offset)
    return array.cast(plain_type(array.type))


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))


def decoded(array: pa.Array) -> pa.Array:
    """The array without dictionary, run-end encoding, extension or views (a copy where it had one of them)."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return decoded(array.storage)
    if pt.is_dictionary(kind):
        return decoded(take(array.dictionary, array.indices))
    if pt.is_run_end_encoded(kind):
        return decoded(take(array.values, int64_array(_runs_of(array, np.arange(len(array), dtype=np.int64)))))
    return plain(array) if contains(kind, is_view) else array


def _runs_of(array: pa.RunEndEncodedArray, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    ends = fixed_values(array.run_ends, array.type.run_end_type.to_pandas_dtype())
    runs: npt.NDArray[np.int64] = np.searchsorted(ends, rows + array.offset, side="right")
    return runs


def take(array: pa.Array, indices: pa.Array) -> pa.Array:
    """`array.take`, also for run-end encoded arrays and views, which Arrow's kernel lacks."""
    kind = array.type
    if pt.is_run_end_encoded(kind) and len(indices):
        runs = _runs_of(array, fixed_values(indices, np.int64))
        firsts = np.flatnonzero(np.concatenate(([True], runs[1:] != runs[:-1])))
        ends = np.append(firsts[1:], len(runs)).astype(kind.run_end_type.to_pandas_dtype())
        run_ends = pa.Array.from_buffers(kind.run_end_type, len(ends), [None, pa.py_buffer(ends)])
        values = take(array.values, int64_array(runs[firsts]))
        return pa.RunEndEncodedArray.from_arrays(run_ends, values, kind)
    if pt.is_run_end_encoded(kind):
        return array.slice(0, 0)
    try:
        if contains(kind, is_view):
            return plain(array).take(indices).cast(kind)
        return array.take(indices)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaError(
            f"rows of type {kind} cannot be sent to chosen subpartitions: Arrow cannot gather them ({error}); "
            f"cast the column before the exchange"
        ) from error


_COUNTED = {np.dtype(np.uint8): pa.uint8(), np.dtype(np.uint16): pa.uint16()}


def stable_order(numbers: npt.NDArray[Any]) -> pa.Array:
    """The positions that sort these numbers, equal ones in their order.

    Arrow sorts 8 and 16 bits by counting, stably: 1.4 ns a row where NumPy's radix sort takes 2.6.
    """
    kind = _COUNTED.get(numbers.dtype)
    if kind is None:
        return int64_array(np.argsort(numbers, kind="stable").astype(np.int64, copy=False))
    return pc.array_sort_indices(pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)]))


def take_batch(batch: pa.RecordBatch, indices: pa.Array) -> pa.RecordBatch:
    """`batch.take` for every type `take` knows; the indices are not checked."""
    try:
        return pc.take(batch, indices, boundscheck=False)
    except pa.ArrowNotImplementedError:
        return pa.RecordBatch.from_arrays([take(column, indices) for column in batch.columns], schema=batch.schema)


def is_loose(kind: pa.DataType) -> bool:
    """Tell whether slices of a type drag the parent's memory along when they are encoded."""
    return bool(is_view(kind) or _is_list_view(kind) or pt.is_dictionary(kind))


def compact(array: pa.Array) -> pa.Array:
    """The same values, holding on to little more memory than they need.

    Arrow's IPC writer cuts most types to the slice's rows; it sends whole buffers for views, whole elements for
    list views and whole dictionaries, which a split into n subpartitions would send n times. An ordered
    dictionary is left alone, as its entries may not be moved.
    """
    kind = array.type
    if pt.is_dictionary(kind):
        return array if kind.ordered or len(array.dictionary) <= len(array) else _compact_dictionary(array)
    if _is_list_view(kind):
        return _compact_list_view(array)
    if contains(kind, is_view) and not contains(kind, pt.is_run_end_encoded):
        try:
            values = plain(array)
            if not is_view(kind):  # a list keeps all elements of its parent
                values = values.take(int64_array(np.arange(len(array), dtype=np.int64)))
            return values.cast(kind)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return array
    return array


def _compact_dictionary(array: pa.DictionaryArray) -> pa.DictionaryArray:
    used = array.indices.dictionary_encode()
    values = take(array.dictionary, used.dictionary)
    return pa.DictionaryArray.from_arrays(used.indices.cast(array.type.index_type), values)


def _compact_list_view(array: pa.Array) -> pa.Array:
    spans = list_spans(array)
    values = take(spans.values, int64_array(element_positions(spans)[0]))
    width = np.int64 if pt.is_large_list_view(array.type) else np.int32
    lengths = spans.lengths.astype(width)
    offsets = (np.cumsum(spans.lengths) - spans.lengths).astype(width)
    validity = pa.py_buffer(np.packbits(valid_mask(array), bitorder="little")) if array.null_count else None
    parts = [validity, pa.py_buffer(offsets), pa.py_buffer(lengths)]
    return pa.Array.from_buffers(array.type, len(array), parts, children=[compact(values)])


def valid_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    """True where the row is not null."""
    missing = null_mask(array)
    return np.ones(len(array), np.bool_) if missing is None else ~missing


def index_dtype(count: int) -> type[np.unsignedinteger[Any]]:
    """The smallest unsigned type that holds `0 .. count - 1`."""
    return np.uint8 if count <= 1 << 8 else np.uint16 if count <= 1 << 16 else np.uint32
