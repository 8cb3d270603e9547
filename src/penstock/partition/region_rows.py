# SPDX-License-Identifier: Apache-2.0
"""The rows of one region to be, column by column. Pure.

Rules:

- For columns of a fixed width only (`FixedPayloads`), uncompressed. Rows that `add` takes of a split are gathered
  straight into memory that is allocated once, `limit` bytes of it. A small split is ordered while it is in the
  cache.
- In that memory each column is a lane: the rows of a split lie subpartition by subpartition, split after split.
- A bit (a bool, or whether a row is null) is a byte in its lane. A column gets a lane for nulls when it first brings
  one; what is held then must become blocks before.
- Rows of one subpartition keep their order. Blocks come ascending by subpartition, each of at most `BLOCK_BYTES`; how
  they are put together says `block_assembly`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.buffer.fixed_payload import FixedPayloads, Ints
from penstock.partition.block_assembly import Assembly, Blocks, Bytes, Lane, Payload, allocated
from penstock.partition.sort_buffer import BLOCK_BYTES
from penstock.shuffle.splits import Split

_CACHE_LINE = 64
_MOST_RUNS = 1 << 18
"""A region holds no more runs, however few rows each has."""


class RegionRows:
    """Memory for the rows of one region after the other."""

    __slots__ = ("_capacity", "_counts", "_flagged", "_lanes", "_limit", "_memory", "_numbers", "_payloads", "_rows")

    def __init__(self, payloads: FixedPayloads, limit: int) -> None:
        self._payloads = payloads
        self._limit = limit
        self._flagged = [False] * len(payloads.widths)
        self._memory: Bytes = np.empty(0, np.uint8)
        self._numbers: list[Ints] = []
        self._counts: list[Ints] = []
        self._rows = 0
        self._lay_out()

    @property
    def is_empty(self) -> bool:
        """True if no row is held."""
        return not self._rows

    @property
    def nbytes(self) -> int:
        """About the bytes of what is held."""
        return self._rows * sum(lane.width for lane in self._lanes)

    def add(self, split: Split, start: int) -> int:
        """Hold rows of a split, from this one of its ordered rows on; returns how many.

        0 means that what is held must become blocks first.
        """
        columns = split.source.columns
        runs = sum(map(len, self._numbers)) + len(split)
        if not self._has_lanes_for(columns) or (self._rows and runs > _MOST_RUNS):
            return 0
        rows = min(int(split.source.num_rows) - start, self._capacity - self._rows)
        if not rows:
            return 0
        if not len(self._memory):
            self._memory = allocated(self._lanes, self._capacity, self._payloads)
        order = None if split.order is None else np.frombuffer(split.order.buffers()[1], np.int64)
        chosen = slice(start, start + rows) if order is None else order[start : start + rows]
        for lane in self._lanes:
            begin = lane.base + self._rows * lane.width
            into = self._memory[begin : begin + rows * lane.width].reshape(rows, lane.width)
            _copy(_values(columns[lane.column], lane), chosen, into)
        bounds = np.zeros(len(split) + 1, np.int64)
        np.cumsum(split.counts, out=bounds[1:])
        self._counts.append(np.diff(np.minimum(np.maximum(bounds, start), start + rows)))
        self._numbers.append(split.numbers.astype(np.int64, copy=False))
        self._rows += rows
        return rows

    def blocks(self) -> Iterator[Payload]:
        """Yield the held rows as payloads, which afterwards it holds no more.

        A payload may be kept; it holds on to a MiB.
        """
        assembly = Assembly(self._memory, self._lanes, self._capacity, self._payloads, self._flagged)
        for blocks in self._cut().groups():
            yield from assembly.payloads(blocks)
        self._numbers, self._counts, self._rows = [], [], 0

    def _has_lanes_for(self, columns: list[pa.Array]) -> bool:
        """Tell whether each column with nulls has a lane for them; makes those if nothing is held."""
        flagged = [had or column.null_count > 0 for had, column in zip(self._flagged, columns, strict=True)]
        if flagged != self._flagged:
            if self._rows:
                return False
            self._flagged = flagged
            self._lay_out()
        return True

    def _lay_out(self) -> None:
        """Give every column its lanes, in the order of a payload's buffers."""
        kinds: list[tuple[int, bool, bool, int]] = []
        for column, (width, is_flagged) in enumerate(zip(self._payloads.widths, self._flagged, strict=True)):
            if is_flagged:
                kinds.append((column, True, True, 1))
            kinds.append((column, False, not width, width or 1))
        self._capacity = max(1, self._limit // sum(width for *_, width in kinds))
        self._lanes: list[Lane] = []
        base = 0
        for column, is_validity, is_bits, width in kinds:
            self._lanes.append(Lane(column, is_validity, is_bits, width, base))
            base += width * self._capacity
        self._memory = np.empty(0, np.uint8)

    def _cut(self) -> Blocks:
        """The blocks of what is held."""
        numbers, counts = np.concatenate(self._numbers), np.concatenate(self._counts)
        starts = np.cumsum(counts) - counts
        order = np.argsort(numbers, kind="stable")
        order = order[counts[order] > 0]
        numbers, counts, starts = numbers[order], counts[order], starts[order]
        ends = np.cumsum(counts)
        # a subpartition's rows are cut into blocks of nearly equal size
        last = np.flatnonzero(np.append(numbers[1:] != numbers[:-1], True))
        totals = np.diff(ends[last], prepend=0)
        most = max(1, BLOCK_BYTES // sum(lane.width for lane in self._lanes))
        blocks_each = -(-totals // most)
        turn = _turns(blocks_each)
        firsts = (
            np.repeat(ends[last] - totals, blocks_each) + np.repeat(-(-totals // blocks_each), blocks_each) * turn
        )
        # where a run ends in the middle of a block, or a block in the middle of a run, a piece ends
        pieces = np.sort(np.concatenate((firsts, ends - counts)))
        pieces = pieces[np.append(True, pieces[1:] != pieces[:-1])]
        run = np.searchsorted(ends, pieces, side="right")
        of_block = np.searchsorted(firsts, pieces, side="right") - 1
        return Blocks(
            np.repeat(numbers[last], blocks_each),
            np.diff(np.append(firsts, self._rows)),
            np.bincount(of_block),
            starts[run] + pieces - (ends - counts)[run],
            np.diff(np.append(pieces, self._rows)),
        )


def _copy(values: Bytes, chosen: slice | Ints, into: Bytes) -> None:
    """Copy these rows of a lane's values."""
    if isinstance(chosen, slice):
        into[:] = values[chosen]
        return
    # Brings the values of a small split into the cache, in order: half the time of fetching row by row at random.
    values.reshape(-1)[::_CACHE_LINE].max()
    np.take(values, chosen, axis=0, out=into, mode="clip")  # any other mode copies once more


def _values(column: pa.Array, lane: Lane) -> Bytes:
    """The bytes that a lane takes of a column, a line of them for each row."""
    rows, buffer = len(column), column.buffers()[0 if lane.is_validity else 1]
    if buffer is None:  # no nulls, or nothing but nulls
        return np.full((rows, lane.width), lane.is_validity, np.uint8)
    if lane.is_bits:
        packed = np.frombuffer(buffer, np.uint8, offset=column.offset >> 3)
        skipped = column.offset & 7
        return np.unpackbits(packed, count=skipped + rows, bitorder="little")[skipped:].reshape(rows, 1)
    return np.frombuffer(buffer, np.uint8, rows * lane.width, column.offset * lane.width).reshape(rows, lane.width)


def _turns(counts: Ints) -> Ints:
    """0 to one less than the count, count by count."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
