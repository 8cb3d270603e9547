# SPDX-License-Identifier: Apache-2.0
"""The operators of a global sort: sample, cut, send each row to its range, sort each range.

A vertex sends a sample of its keys (`SampleKeys`) beside its rows. One task makes of all samples the cuts
(`CutRanges`), at equal distances of the estimated number of rows. After them each row gets its place among the cuts
(`TagRanges`), a number that grows with the order; equal keys have equal places, so they never part. The exchange
sends equal shares of the places to each partition, in order, and `SortRows` sorts them there.

A partition larger than the task's memory is put aside by place and sorted place by place; a place that is still too
large is cut again by a sample of its own. Rows that all equal one cut need no sorting, so many equal keys need no
memory. Partitions are as even as the sample: a share of them with equal keys stays in one. Re-runs see the same
sample as long as their input comes in the same order.

When not to use it: for the few first rows, which need no order of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from penstock.graph import INTERNAL, RowSummary
from penstock.operators.aggregates import plain_type
from penstock.operators.groups import ChunkBuffer, gathered
from penstock.operators.keys import int64_array, plain
from penstock.operators.memory import TaskMemory, task_memory
from penstock.operators.ordering import RowPlaces, SortKey, comparable, sorted_positions
from penstock.operators.spill import SpillFile, emptied
from penstock.record.layout import fixed_values
from penstock.record.partitioners import RANGE_PLACES
from penstock.record.row_sizes import RowSizes

_RANGES = RANGE_PLACES // 2
_SAMPLE_ROWS = 1 << 13
"""Of each task: with some tasks this gives the cuts a few samples each, which is as even as partitions need to be."""
_SAMPLE_BYTES = 8 << 20
_LEAST_ROWS = 16
"""A sample of keys that are long has fewer of them, as few as this."""
_CUT_BYTES = 32 << 20
"""Of all cuts together: of long keys there are fewer, each of which then counts for several."""
_BUCKETS = 256
_INNER_RANGES = 64
_OUTPUT_ROWS = 1 << 16
_MOST_AT_ONCE = 1 << 30
"""Arrow joins strings of less than two gigabytes."""
_WEIGHT = "weight"
_SEED = 0x70656E73746F636B
"""Fixed, so that a re-run draws the same rows; and not one that users choose, for rows that come from the same random
numbers would be drawn by their size."""


@dataclass(frozen=True, slots=True)
class Order:
    """The keys of a sort and the schema of its rows."""

    schema: pa.Schema
    keys: tuple[SortKey, ...]

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns alone; their names say that they are no columns of the rows."""
        types = [plain_type(self.schema.field(key.column).type) for key in self.keys]
        return pa.schema([(f"{INTERNAL}{key.column}", kind) for key, kind in zip(self.keys, types, strict=True)])

    @property
    def text(self) -> str:
        """As it is shown."""
        return ", ".join(key.text for key in self.keys)

    def key_columns(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """The key columns of these rows, in plain layouts."""
        return [plain(rows.column(key.column)) for key in self.keys]


@dataclass(frozen=True, slots=True)
class SampleKeys:
    """The rows that a sort sends ahead: a sample of the keys, each with the number of rows it stands for."""

    order: Order

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"sample of {self.order.text}"

    @property
    def schema(self) -> pa.Schema:
        """The keys by position, and the weight."""
        return self.order.key_schema.append(pa.field(_WEIGHT, pa.float64()))

    def start(self) -> RowSummary:
        """The sample of one task."""
        return KeySample(self.order, _SAMPLE_ROWS)


class KeySample:
    """A uniform sample of at most `rows` rows: those to which the smallest random numbers fell."""

    def __init__(self, order: Order, rows: int) -> None:
        self._order = order
        self._rows = rows
        self._random = np.random.default_rng(_SEED)
        self._seen = 0
        self._limit = 1.0
        self._drawn: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
        self._keys: list[pa.RecordBatch] = []
        self._held = self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch into account."""
        drawn = self._random.random(batch.num_rows)
        self._seen += batch.num_rows
        kept = np.flatnonzero(drawn < self._limit)
        if len(kept) == 0:
            return
        keys = pa.RecordBatch.from_arrays(self._order.key_columns(batch), schema=self._order.key_schema)
        self._keys.append(gathered(keys, int64_array(kept)))
        self._drawn.append(drawn[kept])
        self._held += len(kept)
        self._bytes += self._keys[-1].nbytes
        if self._held > 2 * self._rows or self._bytes > 2 * _SAMPLE_BYTES:
            self._prune()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The sample with its weights; nothing where there were no rows."""
        if not self._held:
            return
        self._prune()
        keys = self._keys[0]
        weights = pa.py_buffer(np.full(keys.num_rows, self._seen / keys.num_rows))
        arrays = [*keys.columns, pa.Array.from_buffers(pa.float64(), keys.num_rows, [None, weights])]
        schema = keys.schema.append(pa.field(_WEIGHT, pa.float64()))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _prune(self) -> None:
        drawn, keys = np.concatenate(self._drawn), pa.concat_batches(self._keys)
        if self._bytes > _SAMPLE_BYTES:  # of long keys fewer are a sample
            self._rows = max(_LEAST_ROWS, min(self._rows, len(drawn) * _SAMPLE_BYTES // self._bytes))
        if len(drawn) > self._rows:
            kept = np.sort(np.argpartition(drawn, self._rows)[: self._rows])
            drawn, keys = drawn[kept], gathered(keys, int64_array(kept))
            self._limit = float(drawn.max())
        self._drawn, self._keys, self._held, self._bytes = [drawn], [keys], len(drawn), keys.nbytes


@dataclass(frozen=True, slots=True)
class CutRanges:
    """Samples to cuts: the keys at equal distances of the weight, sorted; a frequent key is a cut several times.

    There is one cut less than ranges; of long keys there are a half, a quarter, ... of the ranges.
    """

    order: Order
    ranges: int = _RANGES

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"cut into at most {self.ranges} ranges"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One batch of cuts; nothing where there are no rows."""
        samples = list(batches)
        if not samples:
            return
        sample = pa.concat_batches(samples)
        *keys, weight = sample.columns
        positions = fixed_values(sorted_positions(self.order.keys, list(map(comparable, keys))), np.int64)
        reached = np.cumsum(fixed_values(weight, np.float64)[positions])
        wanted = np.arange(1, self.ranges) * (reached[-1] / self.ranges)
        at = np.minimum(np.searchsorted(reached, wanted), len(positions) - 1)
        sizes = RowSizes(keys).of(positions[at])
        while len(at) > 1 and sizes.sum() > _CUT_BYTES:
            at, sizes = at[1::2], sizes[1::2]
        yield gathered(pa.RecordBatch.from_arrays(keys, schema=self.order.key_schema), int64_array(positions[at]))


@dataclass(frozen=True, slots=True)
class TagRanges:
    """Cuts and rows to rows with their place, in a column of its own after the others."""

    order: Order
    schema: pa.Schema

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"find ranges of {self.order.text}"

    def apply(self, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """The rows with their places."""
        cuts = list(inputs[0])
        places = RowPlaces(self.order.keys, cuts[0].columns) if cuts else None
        buffer = ChunkBuffer()
        for batch in inputs[1]:
            chunk = buffer.add(batch)
            if chunk is not None:
                yield self._tagged(chunk, places)
        chunk = buffer.take()
        if chunk is not None:
            yield self._tagged(chunk, places)

    def _tagged(self, chunk: pa.RecordBatch, places: RowPlaces | None) -> pa.RecordBatch:
        found = np.zeros(chunk.num_rows, np.uint16)
        if places is not None:
            before, until = places.of(self.order.key_columns(chunk))
            # Both together: odd or even, a row that equals cuts stands between those that are beside them.
            found = ((before + until) * (_RANGES // (places.count + 1))).astype(np.uint16)
        place = pa.Array.from_buffers(pa.uint16(), len(found), [None, pa.py_buffer(found)])
        return pa.RecordBatch.from_arrays([*chunk.columns, place], schema=self.schema)


@dataclass(frozen=True, slots=True)
class SortRows:
    """Sorts the rows of a task, and takes their place away again where they have one."""

    order: Order
    placed: bool

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"sort by {self.order.text}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows in order."""
        memory = task_memory()
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if memory.exceeded_by(size) or size > _MOST_AT_ONCE:
                yield from _LargeSort(self.order, memory).placed(chain(emptied(held), batches), self.placed)
                return
        plain_rows = [self._without_place(batch) for batch in held]
        held.clear()
        yield from sorted_rows(self.order, plain_rows)

    def _without_place(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.placed:
            return batch
        return pa.RecordBatch.from_arrays(batch.columns[:-1], schema=self.order.schema)


def sorted_rows(order: Order, held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """These rows in order; empties the list."""
    if not held:
        return
    rows = held[0] if len(held) == 1 else pa.concat_batches(held)
    held.clear()
    positions = sorted_positions(order.keys, [comparable(column) for column in order.key_columns(rows)])
    for start in range(0, len(positions), _OUTPUT_ROWS):
        part = fixed_values(positions.slice(start, _OUTPUT_ROWS), np.int64)
        yield gathered(rows, int64_array(part))


class _LargeSort:
    """A sort of more rows than fit: put aside by range, range after range."""

    def __init__(self, order: Order, memory: TaskMemory) -> None:
        self._order = order
        self._memory = memory
        self._limit = min(memory.limit, _MOST_AT_ONCE)
        self._chunk_bytes = max(1, self._limit // 8)

    def placed(self, batches: Iterable[pa.RecordBatch], with_place: bool) -> Iterator[pa.RecordBatch]:
        """All rows in order, by the places they have, if they have some."""
        spill = SpillFile(self._order.schema, self._memory, _BUCKETS)
        try:
            for chunk in self._chunks(batches):
                if not with_place:
                    spill.write(chunk, np.zeros(chunk.num_rows, np.uint8))
                    continue
                places = fixed_values(chunk.columns[-1], np.uint16) // (RANGE_PLACES // _BUCKETS)
                rows = pa.RecordBatch.from_arrays(chunk.columns[:-1], schema=self._order.schema)
                spill.write(rows, places.astype(np.uint8))
            yield from self._ranges(spill, range(_BUCKETS))
        finally:
            spill.close()

    def _ranges(self, spill: SpillFile, buckets: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Neighbouring buckets together as long as they fit."""
        held: list[pa.RecordBatch] = []
        size = 0
        for bucket in buckets:
            if size + spill.size(bucket) > self._limit:
                yield from sorted_rows(self._order, held)
                size = 0
            if spill.size(bucket) > self._limit:
                yield from self._cut_again(spill, bucket)
                continue
            size += spill.size(bucket)
            held += spill.read(bucket)
            self._memory.exceeded_by(size)
        yield from sorted_rows(self._order, held)

    def _cut_again(self, spill: SpillFile, bucket: int) -> Iterator[pa.RecordBatch]:
        sample = KeySample(self._order, _INNER_RANGES * 8)
        for batch in spill.read(bucket):
            sample.add(batch)
        (cuts,) = CutRanges(self._order, _INNER_RANGES).apply(sample.rows())
        places = RowPlaces(self._order.keys, cuts.columns)
        finer = SpillFile(self._order.schema, self._memory, 2 * _INNER_RANGES)
        equal: set[int] = set()
        try:
            for chunk in self._chunks(spill.read(bucket)):
                before, until = places.of(self._order.key_columns(chunk))
                equal.update(np.unique((before + until)[before != until]).tolist())
                finer.write(chunk, (before + until).astype(np.uint8))
            yield from self._finer(finer, equal)
        finally:
            finer.close()

    def _finer(self, finer: SpillFile, equal: set[int]) -> Iterator[pa.RecordBatch]:
        """In order; what equals a cut is in order as it is."""
        waiting: list[int] = []
        for place in range(2 * _INNER_RANGES):
            if place in equal and finer.size(place) > self._limit:
                yield from self._ranges(finer, waiting)
                waiting.clear()
                yield from finer.read(place)
            else:
                waiting.append(place)
        yield from self._ranges(finer, waiting)

    def _chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        buffer = ChunkBuffer(nbytes=self._chunk_bytes)
        for batch in batches:
            chunk = buffer.add(batch)
            if chunk is not None:
                yield chunk
        chunk = buffer.take()
        if chunk is not None:
            yield chunk
