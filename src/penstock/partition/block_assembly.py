# SPDX-License-Identifier: Apache-2.0
"""Puts the payloads of a region's blocks together from the lanes in which its rows are held. Pure.

Rules:

- A block is a few pieces of each lane: one per split that had rows for its subpartition. Arrow's `take` copies them:
  seen as a value of a binary array, each piece, head and filling is one stretch of the same memory. So nothing
  is done for each row or piece in Python, and what is done for each block is a slice.
- About a MiB is put together at a time, so it is in the cache when its checksums are computed and it is written.
- The memory holds, after the lanes: zeroes (0 of them, 1, 2 and so on), the heads of a group of blocks, the packed
  bits of the group. Bits are taken as bytes first, block by block filled up to whole words, and then packed at
  once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.buffer.fixed_payload import FixedPayloads, Ints, filled_up

Bytes = npt.NDArray[np.uint8]

_CHUNK_BYTES = 1 << 20
"""The bytes that are put together at once."""
_GROUP_BLOCKS = 1024
"""The blocks that are planned at once."""
_ZEROES = np.arange(64)
"""The zeroes that fill something up, at most 63."""
_ZERO_BYTES = int(_ZEROES.sum())


class Lane(NamedTuple):
    """A column's values, or its validity, in the memory: from `base` on `width` bytes for each row."""

    column: int
    is_validity: bool
    is_bits: bool
    """It is a byte for what is a bit in a payload."""
    width: int
    base: int


class Payload(NamedTuple):
    """A block before it is framed: its subpartition, rows and bytes."""

    subpartition: int
    rows: int
    data: memoryview


class Blocks(NamedTuple):
    """Blocks, and what they consist of: `pieces[b]` in block b, piece p is `counts[p]` rows from `starts[p]` on."""

    numbers: Ints
    rows: Ints
    pieces: Ints
    starts: Ints
    counts: Ints

    def groups(self) -> Iterator[Blocks]:
        """The same blocks, as many at a time as are planned at once."""
        ends = np.cumsum(self.pieces)
        for first in range(0, len(self.rows), _GROUP_BLOCKS):
            blocks = slice(first, first + _GROUP_BLOCKS)
            here = self.pieces[blocks]
            end = int(ends[blocks][-1])
            pieces = slice(end - int(here.sum()), end)
            yield Blocks(self.numbers[blocks], self.rows[blocks], here, self.starts[pieces], self.counts[pieces])


def allocated(lanes: Sequence[Lane], rows: int, payloads: FixedPayloads) -> Bytes:
    """Memory for the lanes of so many rows and for the parts after them."""
    bits = sum(lane.is_bits for lane in lanes) * (rows // 8 + 8 * _GROUP_BLOCKS)
    behind = _behind(lanes, rows)
    memory = np.empty(behind + _ZERO_BYTES + payloads.head_size * _GROUP_BLOCKS + bits, np.uint8)
    memory[behind : behind + _ZERO_BYTES] = 0
    return memory


def _behind(lanes: Sequence[Lane], rows: int) -> int:
    return lanes[-1].base + lanes[-1].width * rows


class Assembly:
    """Makes payloads of what the lanes of so many rows hold."""

    __slots__ = ("_behind", "_flagged", "_lanes", "_memory", "_payloads")

    def __init__(
        self, memory: Bytes, lanes: Sequence[Lane], capacity: int, payloads: FixedPayloads, flagged: Sequence[bool]
    ) -> None:
        self._memory = memory
        self._lanes = lanes
        self._behind = _behind(lanes, capacity)
        self._payloads = payloads
        self._flagged = flagged

    def payloads(self, blocks: Blocks) -> Iterator[Payload]:
        """The payloads of a group of blocks."""
        head_size = self._payloads.head_size
        stretches = _Stretches(self._memory, self._lanes, self._behind, blocks, head_size)
        nulls = np.zeros((len(blocks.rows), len(self._flagged)), np.int64)
        for lane, zeroes in stretches.packed():
            if lane.is_validity:
                nulls[:, lane.column] = zeroes
        sizes = self._payloads.body_sizes(blocks.rows, self._flagged)
        stretches.set_heads(self._payloads.heads(blocks.rows, nulls, sizes))
        lengths = head_size + filled_up(sizes).sum(axis=1)
        chunk = (np.cumsum(lengths) - lengths) // _CHUNK_BYTES
        cuts = [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), len(lengths)]
        figures = list(zip(blocks.numbers.tolist(), blocks.rows.tolist(), lengths.tolist(), strict=True))
        for first, end in pairwise(cuts):
            data, begin = stretches.taken(first, end), 0
            for number, rows, length in figures[first:end]:
                yield Payload(number, rows, data[begin : begin + length])
                begin += length


class _Stretches:
    """The memory as values of a binary array, and which of them are a group's blocks.

    The values: for each lane the pieces, in the order of the memory (and what lies between them, which is not
    taken); the zeroes; the heads; for each lane of bits each block's packed bits.
    """

    def __init__(self, memory: Bytes, lanes: Sequence[Lane], behind: int, blocks: Blocks, head_size: int) -> None:
        self._memory = memory
        self._lanes = lanes
        self._blocks = blocks
        self._heads_at = behind + _ZERO_BYTES
        self._head_size = head_size
        count = len(blocks.rows)
        order = np.argsort(blocks.starts)
        spans = np.empty((len(order), 2), np.int64)
        spans[:, 0] = blocks.starts[order]
        spans[:, 1] = spans[:, 0] + blocks.counts[order]
        self._place = np.empty(len(order), np.int64)
        self._place[order] = np.arange(0, 2 * len(order), 2)
        self._of_block = np.repeat(np.arange(count), blocks.pieces)
        self._in_block = np.arange(len(order)) - np.repeat(np.cumsum(blocks.pieces) - blocks.pieces, blocks.pieces)
        self._words = filled_up((blocks.rows + 7) >> 3)
        tail = [_ZEROES, np.full(count, head_size)] + [self._words for lane in lanes if lane.is_bits]
        ends = behind + np.cumsum(np.concatenate(tail))
        offsets = [lane.base + lane.width * spans.ravel() for lane in lanes]
        whole = np.concatenate([*offsets, np.array([behind]), ends])
        self._zeroes = 2 * len(order) * len(lanes)
        parts = [None, pa.py_buffer(whole), pa.py_buffer(memory)]
        self._values = pa.Array.from_buffers(pa.large_binary(), len(whole) - 1, parts)
        self._chosen, self._begins = self._choose()

    def packed(self) -> Iterator[tuple[Lane, Ints]]:
        """Pack the bits of each lane that has such; for each block the number of zeroes."""
        blocks = self._blocks
        begin = self._heads_at + self._head_size * len(blocks.rows)
        begins = np.cumsum(blocks.pieces + 1) - blocks.pieces - 1
        for at, lane in enumerate(self._lanes):
            if lane.is_bits:
                chosen = np.empty(len(blocks.starts) + len(blocks.rows), np.int64)
                self._choose_pieces(chosen, begins, at, -blocks.rows % 64)
                flags = np.frombuffer(self._take(chosen), np.uint8)
                bits = np.packbits(flags, bitorder="little")
                self._memory[begin : begin + len(bits)] = bits
                begin += len(bits)
                firsts = (np.cumsum(self._words) - self._words) << 3
                yield lane, blocks.rows - np.add.reduceat(flags, firsts, dtype=np.int64)

    def set_heads(self, heads: Bytes) -> None:
        """Keep the blocks' heads."""
        self._memory[self._heads_at : self._heads_at + heads.size] = heads.ravel()

    def taken(self, first: int, end: int) -> memoryview:
        """The payloads of these blocks, one after the other."""
        return self._take(self._chosen[self._begins[first] : self._begins[end]])

    def _take(self, chosen: Ints) -> memoryview:
        indices = pa.Array.from_buffers(pa.int64(), len(chosen), [None, pa.py_buffer(chosen)])
        import pyarrow.compute as pc  # not above: the environment imports this module and never comes here

        return memoryview(pc.take(self._values, indices, boundscheck=False).buffers()[2])

    def _choose(self) -> tuple[Ints, Ints]:
        """The values of all payloads, and where each block's begin."""
        blocks, count = self._blocks, len(self._blocks.rows)
        bit_lanes = sum(lane.is_bits for lane in self._lanes)
        each = 1 + bit_lanes + (len(self._lanes) - bit_lanes) * (blocks.pieces + 1)
        begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])
        chosen = np.empty(int(begins[-1]), np.int64)
        head = self._zeroes + len(_ZEROES)
        following = head + np.arange(count)
        at_block = begins[:-1].copy()
        chosen[at_block] = following
        at_block += 1
        for at, lane in enumerate(self._lanes):
            if lane.is_bits:
                following = following + count
                chosen[at_block] = following
                at_block += 1
            else:
                self._choose_pieces(chosen, at_block, at, -(blocks.rows * lane.width) % 8)
                at_block += blocks.pieces + 1
        return chosen, begins

    def _choose_pieces(self, chosen: Ints, begins: Ints, lane: int, zeroes: Ints) -> None:
        """A lane's pieces, each block's from its begin on, and after them so many zeroes."""
        chosen[begins[self._of_block] + self._in_block] = self._place + lane * 2 * len(self._place)
        chosen[begins + self._blocks.pieces] = self._zeroes + zeroes
