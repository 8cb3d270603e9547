# SPDX-License-Identifier: Apache-2.0
"""Several batches as one, and one in memory of its own."""

from __future__ import annotations

import pyarrow as pa

_MOST_HELD = 32 << 20
"""Larger ones are cut, and written or sent before the next one is asked for."""
_WORTH_A_LOOK = 64 << 10
"""To look at each column of less takes longer than to copy them all."""


def joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch where Arrow can join them (not, for example, different dictionaries inside other types)."""
    if len(batches) <= 1:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return batches


def apart(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in memory that nobody else writes into, where somebody behind may hold on to them.

    A function may use the memory of what it gave again: a NumPy array becomes a column without a copy, and what is
    written into it later would be in rows that only wait to be sent. A copy costs some microseconds, at 10 GB/s.
    Columns as they came in, which can't be written into, stay as they are.
    """
    if not batch.num_columns:
        return batch
    try:
        if batch.get_total_buffer_size() < _WORTH_A_LOOK:  # `nbytes` would take longer than the copy
            return pa.concat_batches([batch, batch.slice(0, 0)])
        if batch.nbytes > _MOST_HELD:
            return batch
        return pa.RecordBatch.from_arrays([_unwritable(column) for column in batch.columns], schema=batch.schema)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # rare types, which are never made of NumPy arrays
        return batch


def _unwritable(column: pa.Array) -> pa.Array:
    if any(buffer is not None and buffer.is_mutable for buffer in column.buffers()):
        return pa.concat_arrays([column, column.slice(0, 0)])
    return column
