# SPDX-License-Identifier: Apache-2.0
"""Collects a task's whole input by key, for functions that want one group at a time.

The input is gathered into chunks of about half a million rows; each chunk is sorted by group with one gather, and
each group keeps zero-copy slices of the sorted chunks. So the cost is per chunk and group, never per row, and all
rows of the task are in memory once. Groups come out in first-seen order, rows of a group in the order they came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.task.keys import KeyIndex, group_rows, int64_array, plain, stable_order

CHUNK_ROWS = 1 << 19
CHUNK_BYTES = 16 << 20
"""Measured on 20 M rows of 32 bytes: chunks of twice the size take a fifth longer, for their joined copy falls out of
the cache and lands in fresh pages every time; halves cost as much as they give, in slices."""


class ChunkBuffer:
    """Gathers small batches into one large one."""

    def __init__(self, rows: int = CHUNK_ROWS, nbytes: int = CHUNK_BYTES) -> None:
        self._limits = (rows, nbytes)
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take a batch; gives the chunk when it is large enough."""
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= self._limits[0] or self._bytes >= self._limits[1]:
            return self.take()
        return None

    def take(self) -> pa.RecordBatch | None:
        """What is there as one batch, or None."""
        if self._rows == 0:
            return None
        batches, self._batches, self._rows, self._bytes = self._batches, [], 0, 0
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class GroupCollector:
    """All rows of a task by key."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str], chunk_rows: int = CHUNK_ROWS) -> None:
        self._keys = [schema.get_field_index(key) for key in keys]
        self._buffer = ChunkBuffer(chunk_rows)
        self._index = KeyIndex()
        self._groups: list[list[pa.RecordBatch]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch."""
        chunk = self._buffer.add(batch)
        if chunk is not None:
            self._collect(chunk)

    def groups(self) -> Iterator[tuple[tuple[pa.Scalar, ...], list[pa.RecordBatch]]]:
        """Each group's key and slices; forgets a group when it has given it."""
        chunk = self._buffer.take()
        if chunk is not None:
            self._collect(chunk)
        groups, self._groups = self._groups, []
        groups.reverse()
        while groups:
            slices = groups.pop()
            key = tuple(slices[0].column(index)[0] for index in self._keys)
            yield key, slices

    def _collect(self, chunk: pa.RecordBatch) -> None:
        found = group_rows([chunk.column(index) for index in self._keys], chunk.num_rows)
        numbers = self._index.numbers(found)
        self._groups.extend([] for _ in range(1 + max(numbers) - len(self._groups)))
        if found.count == 1:
            self._groups[numbers[0]].append(chunk)
            return
        rows = gathered(chunk, int64_array(stable_order(found.codes, found.count)))
        start = 0
        for number, length in zip(numbers, np.bincount(found.codes, minlength=found.count).tolist(), strict=True):
            self._groups[number].append(rows.slice(start, length))
            start += length


def gathered(batch: pa.RecordBatch, rows: pa.Array) -> pa.RecordBatch:
    """`batch.take` of rows that are there (not checked), also for the layouts that Arrow cannot gather."""
    try:
        return pc.take(batch, rows, boundscheck=False)
    except pa.ArrowNotImplementedError:
        columns = []
        for column in batch.columns:
            taken = plain(column).take(rows)
            columns.append(taken if taken.type == column.type else taken.cast(column.type))
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
