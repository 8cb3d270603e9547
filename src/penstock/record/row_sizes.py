# SPDX-License-Identifier: Apache-2.0
"""The bytes of each row, so that the rows gathered or computed at once stay bounded, whatever rows there are.

A figure counts what a gathered copy of the row takes, about: values and offsets, no bitmaps. Dictionaries are not
copied, so only their indices count. If Arrow's layout does not say how many a row has, the average counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.record.layout import NDArray, fixed_values, is_bytes, is_list, is_view, list_spans

MOST_BYTES = 32 << 20
MOST_ROWS = 1 << 20
"""Of what is made at once where a row may become many, or a large one: what a writer cuts at, too."""
LARGEST_BATCH = 2 * MOST_BYTES
"""No batch that comes into a task has more bytes, unless it is one row."""

Bytes = npt.NDArray[np.int64]


class BatchBytes:
    """The bytes of batches of one schema, without null flags where every column has a fixed width: for counts.

    Arrow's own `nbytes` takes 6 us, as long as much else that is done with a small batch.
    """

    __slots__ = ("_row_bits",)

    def __init__(self) -> None:
        self._row_bits: int | None = None

    def __call__(self, batch: pa.RecordBatch) -> int:
        """The bytes of a batch, whose schema is the first one's."""
        if self._row_bits is None:
            kinds = batch.schema.types
            self._row_bits = sum(kind.bit_width for kind in kinds) if all(map(pt.is_primitive, kinds)) else 0
        return int(batch.num_rows * self._row_bits // 8 if self._row_bits else batch.nbytes)


class RowSizes:
    """The bytes of some rows: those that all have, and those that each has beside."""

    __slots__ = ("_each", "fixed", "most")

    def __init__(self, columns: Iterable[pa.Array]) -> None:
        found = [_column_bytes(column) for column in columns]
        self.fixed = sum(fixed for fixed, _ in found)
        self._each: NDArray | None = None
        for _, varying in found:
            if varying is not None:
                self._each = varying if self._each is None else np.add(self._each, varying, dtype=np.int64)
        self.most = self.fixed + (0 if self._each is None else int(self._each.max(initial=0)))
        """The bytes of the largest row."""

    @property
    def varying(self) -> NDArray | None:
        """The bytes that each row has in addition; None if no row has any."""
        return self._each

    def of(self, rows: npt.NDArray[np.integer]) -> Bytes:
        """The bytes of the rows with these numbers."""
        return (
            np.full(len(rows), self.fixed) if self._each is None else self._each[rows].astype(np.int64) + self.fixed
        )


def bounded(sizes: Bytes, most: int) -> Iterator[tuple[int, int]]:
    """Neighbouring rows together as long as they have at most so many bytes: begin and end; at least one row each."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(ends):
        reached = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, reached + most, "right")))
        yield start, stop
        start = stop


def cut_at_bytes(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch that is larger than `LARGEST_BATCH` in parts of `MOST_BYTES`, which share its memory."""
    for begin, end in bounded(RowSizes(batch.columns).of(np.arange(batch.num_rows)), MOST_BYTES):
        yield batch.slice(begin, end - begin)


def first_rows(batch: pa.RecordBatch, most: int) -> pa.RecordBatch:
    """So many rows from the begin of a batch at most, and no more than a batch has that comes into a task."""
    rows = batch.slice(0, most)
    return rows if rows.nbytes <= LARGEST_BATCH else next(cut_at_bytes(rows))


def _column_bytes(column: pa.Array) -> tuple[int, NDArray | None]:
    """Return the bytes that every row has, and those that each row has in addition."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _column_bytes(column.storage)
    if pt.is_dictionary(kind):
        return _column_bytes(column.indices)
    if is_view(kind):  # a view begins with the length of its bytes
        return 16, fixed_values(column, np.dtype((np.int32, (4,))))[:, 0]
    if is_bytes(kind) and not pt.is_fixed_size_binary(kind):
        return 4, np.diff(_offsets(column))
    if is_list(kind) or pt.is_map(kind):
        return 4, _list_bytes(column)
    if pt.is_struct(kind):
        inner = RowSizes(column.field(index) for index in range(kind.num_fields))
        return inner.fixed, inner.varying
    try:
        return -(-int(kind.bit_width) // 8), None
    except ValueError:  # unions, run-end encoded ones
        return -(-int(column.nbytes) // max(1, len(column))), None


def _offsets(column: pa.Array) -> NDArray:
    kind = np.dtype(np.int64 if pt.is_large_string(column.type) or pt.is_large_binary(column.type) else np.int32)
    count = len(column) + 1 if len(column) else 0
    return np.frombuffer(column.buffers()[1] or b"", kind, count, column.offset * kind.itemsize if count else 0)


def _list_bytes(column: pa.Array) -> NDArray:
    spans = list_spans(column)
    inner = RowSizes([spans.values])
    sizes = spans.lengths * inner.fixed
    if inner.varying is None:
        return sizes
    ends = np.concatenate(([0], np.cumsum(inner.varying, dtype=np.int64)))
    starts = np.where(spans.lengths > 0, spans.starts, 0)
    found: NDArray = sizes + ends[starts + spans.lengths] - ends[starts]
    return found
