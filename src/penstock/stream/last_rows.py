# SPDX-License-Identifier: Apache-2.0
"""The rows of an epoch by key, of each key the last one; and the column that says of rows which epoch they are of.

Rows are held until the epoch ends: as many as keys have changed in it, and for a while at most as many again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.keys import group_rows
from penstock.record.layout import int64_array, take_batch

_FIRST_BYTES = 32 << 20
"""Rows are first looked through when there are as many bytes of them."""


class LastRows:
    """The rows that were given last, by key."""

    def __init__(self, keys: Sequence[str], first_bytes: int = _FIRST_BYTES) -> None:
        self._keys = tuple(keys)
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self._first_bytes = self._most_bytes = first_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows, which replace earlier ones of their keys."""
        self._held.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= self._most_bytes:
            self._thin()
            self._most_bytes = max(self._first_bytes, 2 * self._bytes)

    def take(self) -> list[pa.RecordBatch]:
        """The last row of each key, in the order in which they were given; then there are none."""
        self._thin()
        held, self._held, self._bytes = self._held, [], 0
        self._most_bytes = self._first_bytes
        return held

    def _thin(self) -> None:
        """Leave the last row of each key, in batches up to some size: all may be too much for one."""
        rows = sum(batch.num_rows for batch in self._held)
        if not rows:
            self._held, self._bytes = [], 0
            return
        groups = group_rows([_whole([batch.column(key) for batch in self._held]) for key in self._keys], rows)
        last = np.zeros(groups.count, np.int64)
        last[groups.codes] = np.arange(rows)  # of several the last one counts
        left = self._held if len(last) == rows else _picked(self._held, np.sort(last))
        self._held = list(_joined(left, self._first_bytes))
        self._bytes = sum(batch.nbytes for batch in self._held)


def _whole(columns: Sequence[pa.Array]) -> pa.Array:
    """One column of several, with long offsets where it may have more bytes than short ones can count."""
    if len(columns) == 1:
        return columns[0]
    kind = columns[0].type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        long = pa.large_string() if pa.types.is_string(kind) else pa.large_binary()
        columns = [column.cast(long) for column in columns]
    return pa.concat_arrays(columns)


def _picked(batches: Sequence[pa.RecordBatch], rows: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """These rows of the batches, by their numbers over all of them, which rise."""
    begin = 0
    for batch in batches:
        first, behind = np.searchsorted(rows, (begin, begin + batch.num_rows))
        if behind - first == batch.num_rows:
            yield batch
        elif behind > first:
            yield take_batch(batch, int64_array(rows[first:behind] - begin))
        begin += batch.num_rows


def _joined(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches, none of several with more bytes than that."""
    runs: list[list[pa.RecordBatch]] = []
    size = 0
    for batch in batches:
        if size + batch.nbytes > most_bytes or not runs:
            runs.append([])
            size = 0
        runs[-1].append(batch)
        size += batch.nbytes
    for run in runs:
        yield run[0] if len(run) == 1 else pa.concat_batches(run)


def with_epoch(batch: pa.RecordBatch, schema: pa.Schema, epoch: int) -> pa.RecordBatch:
    """The rows with the number of their epoch, the last column of this schema."""
    column = int64_array(np.full(batch.num_rows, epoch, np.int64))
    return pa.RecordBatch.from_arrays([*batch.columns, column], schema=schema)
