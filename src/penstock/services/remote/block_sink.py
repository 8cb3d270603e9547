# SPDX-License-Identifier: Apache-2.0
"""Cuts the messages of regions into blocks. Pure.

A block is closed when the next message is another file's or makes it longer than a block may be; a message that is
longer than a block is cut. Rows for all subpartitions are one file of its own where everything does, and else a
copy in each file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise

import xxhash

from penstock.errors import ProtocolError
from penstock.partition.extents import BROADCAST
from penstock.remote.blocks import BLOCK_BYTES, BlockHead
from penstock.services.remote.push_queue import PushedBlock
from penstock.shuffle import EndOfPartition
from penstock.shuffle.sums import Sums

_MESSAGE = struct.Struct("<QQ")
_ZEROES = [bytes(count) for count in range(8)]


class BlockSink:
    """A `RegionSink` that gives out blocks."""

    def __init__(
        self, writer: int, subpartitions: int, give: Callable[[list[PushedBlock]], None], *, is_broadcast: bool
    ) -> None:
        self.is_open = True
        self._writer = writer
        self._give = give
        self._is_broadcast = is_broadcast
        self._subpartitions = subpartitions
        self._files = 1 if is_broadcast else subpartitions
        self._sums = [Sums() for _ in range(self._files)]
        self._next = [0] * self._files
        self._file = 0
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self._begun = Sums()
        self._for_all: list[tuple[int, memoryview]] = []
        self._blocks: list[PushedBlock] = []
        self.nbytes = 0
        """Bytes given out so far."""

    def begin(self, nbytes: int) -> None:
        """There is room: the writer asks first."""

    def append(self, target: int, rows: int, payload: memoryview) -> None:
        """A message for a subpartition, or for all."""
        if target == BROADCAST and not self._is_broadcast:
            self._for_all.append((rows, payload))
        elif target > 0 and self._is_broadcast:
            raise ProtocolError("rows for one subpartition came in a partition whose rows go to all")
        else:
            self._append(max(0, target), rows, payload)

    def end(self) -> None:
        """Give out the blocks of the region."""
        for file in range(self._files if self._for_all else 0):
            for rows, payload in self._for_all:
                self._append(file, rows, payload)
        self._for_all.clear()
        self._close()
        blocks, self._blocks = self._blocks, []
        if blocks:
            self.nbytes += sum(block.length for block in blocks)
            self._give(blocks)

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Tell what each subpartition holds."""
        self.is_open = False
        ends = tuple(sums.end_of_partition() for sums in self._sums)
        return ends * self._subpartitions if self._is_broadcast else ends

    def abort(self) -> None:
        """Give out no more; idempotent."""
        self.is_open = False
        self._blocks, self._parts = [], []

    def _append(self, file: int, rows: int, payload: memoryview) -> None:
        length = len(payload)
        padding = -length % 8
        size = _MESSAGE.size + length + padding
        if file != self._file or (self._size and self._size + size > BLOCK_BYTES):
            self._close()
            self._file = file
        checksum = xxhash.xxh3_64_intdigest(payload)
        self._sums[file].add(rows, length, checksum)
        self._begun.add(rows, length, checksum)
        self._parts += [_MESSAGE.pack(length, checksum), payload]
        if padding:
            self._parts.append(_ZEROES[padding])
        self._size += size
        if self._size > BLOCK_BYTES:
            self._close()

    def _close(self) -> None:
        """Make blocks of what there is: one, but for a message that is longer."""
        if not self._size:
            return
        parts, size, begun = self._parts, self._size, self._begun
        self._parts, self._size, self._begun = [], 0, Sums()
        sums = (begun.rows, begun.nbytes, begun.checksum)
        if size <= BLOCK_BYTES:
            self._block(tuple(parts), size, sums)
            return
        whole = memoryview(b"".join(parts))
        for begin, end in pairwise([*range(0, size, BLOCK_BYTES), size]):
            self._block((whole[begin:end],), end - begin, sums if not begin else (0, 0, 0))

    def _block(self, parts: tuple[bytes | memoryview, ...], size: int, sums: tuple[int, int, int]) -> None:
        digest = xxhash.xxh3_64()
        for part in parts:
            digest.update(part)
        number = self._next[self._file]
        self._next[self._file] = number + 1
        head = BlockHead(size, self._writer, self._file, number, digest.intdigest()).packed()
        self._blocks.append(PushedBlock(self._file, number, size, head, parts, sums))
