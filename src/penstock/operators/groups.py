# SPDX-License-Identifier: Apache-2.0
"""Collects a task's whole input by key, for functions that want one group at a time.

The input is gathered into chunks of about half a million rows; each chunk is sorted by group with one gather, and
each group keeps zero-copy slices of the sorted chunks. So the cost is per chunk and group, never per row. Groups come
out in first-seen order (of several sides, side by side), rows of a group in the order they came.

Rows that exceed the task's memory are put aside by the hash of the keys and worked off bucket by bucket, so that one
group must fit and not all. Groups then come bucket by bucket, in first-seen order within each: the same order for the
same input. A bucket that is too large is cut again; below the last level, and for a single group, there is no limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.keys import GroupIndex, group_rows, int64_array, plain, stable_order
from penstock.operators.memory import TaskMemory
from penstock.operators.spill import BUCKETS, LEVELS, SpillFile, key_buckets

CHUNK_ROWS = 1 << 19
CHUNK_BYTES = 16 << 20
"""Measured on 20 M rows of 32 bytes: chunks of twice the size take a fifth longer, for their joined copy falls out of
the cache and lands in fresh pages every time; halves cost as much as they give, in slices."""
_CHUNKS_IN_MEMORY = 8
"""Rows that are gathered and not yet counted stay well below the task's limit, also if that is small."""


class ChunkBuffer:
    """Gathers small batches into one large one."""

    def __init__(self, rows: int = CHUNK_ROWS, nbytes: int = CHUNK_BYTES) -> None:
        self._limits = (rows, nbytes)
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take a batch; gives a chunk when one is large enough. A batch as large as that is joined with no other."""
        nbytes = batch.nbytes
        is_large = nbytes >= self._limits[1]
        full = self.take() if self._is_full or is_large else None
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += nbytes
        return self.take() if full is None and self._is_full else full

    @property
    def _is_full(self) -> bool:
        return self._rows >= self._limits[0] or self._bytes >= self._limits[1]

    def take(self) -> pa.RecordBatch | None:
        """Take the rows that are there as one batch; None if there are none."""
        if self._rows == 0:
            return None
        batches, self._batches, self._rows, self._bytes = self._batches, [], 0, 0
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


@dataclass(frozen=True, slots=True)
class Side:
    """One input of a collection: its schema and its key columns. Keys of several sides have the same types."""

    schema: pa.Schema
    keys: tuple[str, ...]

    def key_columns(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """The key columns of these rows."""
        return [rows.column(index) for index in map(self.schema.get_field_index, self.keys)]


class GroupCollector:
    """All rows of a task by key, of one input or of several."""

    def __init__(
        self, sides: Sequence[Side], memory: TaskMemory, level: int = 0, chunk_rows: int = CHUNK_ROWS
    ) -> None:
        self._sides = tuple(sides)
        self._keys = [[side.schema.get_field_index(key) for key in side.keys] for side in sides]
        self._memory = memory
        self._level = level
        self._chunk_rows = chunk_rows
        limit = max(1, min(CHUNK_BYTES, memory.limit // _CHUNKS_IN_MEMORY))
        self._buffer = ChunkBuffer(chunk_rows, limit)
        self._side = 0
        self._spills: list[SpillFile] = []
        self._index = GroupIndex()
        self._groups: list[list[list[pa.RecordBatch]]] = [[] for _ in sides]
        self._chunks: list[tuple[int, pa.RecordBatch]] = []
        self._held = 0
        self._last = 0

    def add(self, batch: pa.RecordBatch, side: int = 0) -> None:
        """Take a batch. Sides may take turns, but each change ends a chunk."""
        if side != self._side:
            self._flush()
            self._side = side
        chunk = self._buffer.add(batch)
        if chunk is not None:
            self._collect(chunk, side)

    def groups(self) -> Iterator[tuple[tuple[pa.Scalar, ...], list[list[pa.RecordBatch]]]]:
        """Each group's key and, for each side, its slices; forgets a group when it has given it."""
        self._flush()
        return self._spilled_groups() if self._spills else self._held_groups()

    def _flush(self) -> None:
        chunk = self._buffer.take()
        if chunk is not None:
            self._collect(chunk, self._side)

    def _held_groups(self) -> Iterator[tuple[tuple[pa.Scalar, ...], list[list[pa.RecordBatch]]]]:
        sides = self._groups
        count = max(len(groups) for groups in sides)
        self._forget()
        for groups in sides:
            groups.extend([] for _ in range(count - len(groups)))
            groups.reverse()
        indices = self._keys[0]
        for _ in range(count):
            slices = [groups.pop() for groups in sides]
            found = slices[0]
            if not found:
                side = next(side for side, part in enumerate(slices) if part)
                found, indices = slices[side], self._keys[side]
            first = found[0]
            yield tuple([first.column(index)[0] for index in indices]), slices
            indices = self._keys[0]

    def _spilled_groups(self) -> Iterator[tuple[tuple[pa.Scalar, ...], list[list[pa.RecordBatch]]]]:
        spills, self._spills = self._spills, []
        with ExitStack() as files:
            for spill in spills:
                files.callback(spill.close)
            for bucket in range(BUCKETS):
                collector = GroupCollector(self._sides, self._memory, self._level + 1, self._chunk_rows)
                for side, spill in enumerate(spills):
                    for batch in spill.read(bucket):
                        collector.add(batch, side)
                yield from collector.groups()

    def _collect(self, chunk: pa.RecordBatch, side: int) -> None:
        columns = self._sides[side].key_columns(chunk)
        if self._spills:
            self._spills[side].write(chunk, key_buckets(columns, self._level))
            return
        groups = self._groups[side]
        found = group_rows(columns, chunk.num_rows)
        numbers = self._index.numbers(found)
        last = max(numbers)
        groups.extend([] for _ in range(1 + last - len(groups)))
        if found.count == 1:
            rows = chunk
            groups[last].append(chunk)
        else:
            rows = gathered(chunk, int64_array(stable_order(found.codes, found.count)))
            start = 0
            lengths = np.bincount(found.codes, minlength=found.count).tolist()
            for number, length in zip(numbers, lengths, strict=True):
                groups[number].append(rows.slice(start, length))
                start += length
        self._hold(rows, side, last)

    def _hold(self, rows: pa.RecordBatch, side: int, last: int) -> None:
        """Count rows that stay in memory; where they are too many, and more than one group, put all aside."""
        self._chunks.append((side, rows))
        self._held += rows.nbytes
        self._last = max(self._last, last)
        too_many = self._memory.exceeded_by(self._held)
        if too_many and self._last > 0 and self._level < LEVELS:
            chunks = self._chunks
            self._forget()
            self._spills = [SpillFile(each.schema, self._memory) for each in self._sides]
            # Chunk by chunk, not group by group: few large writes, and the rows of a group keep their order.
            for number, chunk in chunks:
                self._spills[number].write(chunk, key_buckets(self._sides[number].key_columns(chunk), self._level))

    def _forget(self) -> None:
        self._index = GroupIndex()
        self._groups = [[] for _ in self._sides]
        self._chunks = []
        self._held = 0
        self._last = 0


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
