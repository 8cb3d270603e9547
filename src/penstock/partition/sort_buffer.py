# SPDX-License-Identifier: Apache-2.0
"""The batches that a sort-merge writer holds between two regions, by subpartition, and the number of their bytes.

Pure.

Rules: batches of one subpartition keep their order, subpartitions come out ascending. Batches for all subpartitions
and batches for one are never held together, as only a region between them keeps their order; the writer asks `fits`
first. Small batches of one subpartition are joined into blocks of at most `BLOCK_BYTES`, larger ones are left as they
are: a joined block costs a copy, and saves some hundred bytes of the file and a reader's call for each batch in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

BLOCK_BYTES = 256 << 10
"""Batches are joined up to this many bytes."""

_SLICE_BYTES = 32 << 10
_SMALL_GATHER = 1 << 20
_SMALL_SLICE = 1 << 10

Held = list[tuple[pa.RecordBatch, int]]
"""Batches of one subpartition in order, each with its bytes."""


def gather_bytes(subpartitions: int, limit: int) -> int:
    """The number of bytes to split at once, so that each subpartition gets a block that needs no joining."""
    return min(limit, max(BLOCK_BYTES, subpartitions * _SLICE_BYTES))


def small_gather_bytes(subpartitions: int, limit: int) -> int:
    """The same where small splits are put together without a cost for each of a subpartition's rows in them.

    Gathered rows should fit the cache in which they are ordered, and yet give each subpartition a few.
    """
    return min(limit, max(_SMALL_GATHER, subpartitions * _SMALL_SLICE))


class SortBuffer:
    """The batches of one region to be."""

    __slots__ = ("_held", "is_broadcast", "limit", "nbytes")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self.is_broadcast = False
        self._held: dict[int, Held] = {}

    @property
    def is_empty(self) -> bool:
        """True if nothing is held."""
        return not self._held

    def fits(self, nbytes: int, is_broadcast: bool) -> bool:
        """Tell whether a batch may be added before the held ones have become a region."""
        if not self._held:
            return True
        return self.nbytes + nbytes <= self.limit and self.is_broadcast == is_broadcast

    def add(self, batch: pa.RecordBatch, nbytes: int, subpartition: int, is_broadcast: bool) -> None:
        """Hold a batch that fits."""
        self.nbytes += nbytes
        self.is_broadcast = is_broadcast
        held = self._held.get(subpartition)
        if held is None:
            self._held[subpartition] = [(batch, nbytes)]
        else:
            held.append((batch, nbytes))

    def take(self) -> Iterator[tuple[int, Held]]:
        """The held batches, subpartition by subpartition, each let go of as soon as the next one is asked for."""
        held, self._held, self.nbytes = self._held, {}, 0
        for subpartition in sorted(held):
            yield subpartition, held.pop(subpartition)


def joined(batches: Iterable[tuple[pa.RecordBatch, int]], limit: int) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in fewer batches: neighbours are joined up to `limit` bytes."""
    run: list[pa.RecordBatch] = []
    size = 0
    for batch, nbytes in batches:
        if run and size + nbytes > limit:
            yield from _as_one(run)
            run, size = [], 0
        run.append(batch)
        size += nbytes
    if run:
        yield from _as_one(run)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch where Arrow can join them (not, for example, different dictionaries inside other types)."""
    if len(batches) == 1:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowException:
        return batches
