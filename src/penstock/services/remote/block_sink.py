# SPDX-License-Identifier: Apache-2.0
"""Cuts messages into blocks, each of one file's. Pure.

A file's block is closed when the next message makes it longer than a block may be, and at the end of a region; a
message that is longer than a block is cut. Rows for all subpartitions are one file of its own where everything does,
and else a copy in each file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter

import xxhash

from penstock.errors import ProtocolError
from penstock.partition.extents import BROADCAST
from penstock.remote.blocks import BLOCK_BYTES, BlockHead
from penstock.services.remote.push_queue import PushedBlock
from penstock.shuffle import EndOfPartition
from penstock.shuffle.sums import Sums

_MESSAGE = struct.Struct("<QQ")
_ZEROES = [bytes(count) for count in range(8)]


@dataclass(slots=True)
class _OpenBlock:
    """The messages of a file that are no block yet."""

    parts: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0
    sums: Sums = field(default_factory=Sums)
    digest: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)
    """Of the parts: each is added while it is still in the processor's cache."""

    def add(self, parts: tuple[bytes | memoryview, ...], size: int) -> None:
        """Another message, in parts."""
        self.parts += parts
        self.size += size
        for part in parts:
            self.digest.update(part)


class BlockSink:
    """A `MessageSink` that gives out blocks."""

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
        self._begun: dict[int, _OpenBlock] = {}
        self._blocks: list[PushedBlock] = []
        self.nbytes = 0
        """Bytes given out so far."""

    def begin(self, nbytes: int) -> None:
        """There is room: the writer asks first."""

    def append(self, target: int, rows: int, payload: memoryview) -> None:
        """A message for a subpartition, or for all."""
        if target == BROADCAST and not self._is_broadcast:
            for file in range(self._files):
                self._append(file, rows, payload)
        elif target > 0 and self._is_broadcast:
            raise ProtocolError("rows for one subpartition came in a partition whose rows go to all")
        else:
            self._append(max(0, target), rows, payload)

    def give(self) -> None:
        """Give out the blocks that are full, those of a file one after the other."""
        blocks, self._blocks = self._blocks, []
        if blocks:
            blocks.sort(key=attrgetter("file"))  # so what is stored as it comes has them in one stretch
            self.nbytes += sum(block.length for block in blocks)
            self._give(blocks)

    def end(self) -> None:
        """Give out all blocks: a region ends."""
        for file in list(self._begun):
            self._close(file)
        self.give()

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Tell what each subpartition holds."""
        self.is_open = False
        ends = tuple(sums.end_of_partition() for sums in self._sums)
        return ends * self._subpartitions if self._is_broadcast else ends

    def abort(self) -> None:
        """Give out no more; idempotent."""
        self.is_open = False
        self._blocks, self._begun = [], {}

    def _append(self, file: int, rows: int, payload: memoryview) -> None:
        length = len(payload)
        padding = -length % 8
        size = _MESSAGE.size + length + padding
        begun = self._begun.get(file)
        if begun is not None and begun.size + size > BLOCK_BYTES:
            self._close(file)
            begun = None
        checksum = xxhash.xxh3_64_intdigest(payload)
        self._sums[file].add(rows, length, checksum)
        parts: tuple[bytes | memoryview, ...] = (_MESSAGE.pack(length, checksum), payload)
        if padding:
            parts = (*parts, _ZEROES[padding])
        if size > BLOCK_BYTES:
            self._cut(file, memoryview(b"".join(parts)), (rows, length, checksum))
            return
        if begun is None:
            begun = self._begun[file] = _OpenBlock()
        begun.sums.add(rows, length, checksum)
        begun.add(parts, size)

    def _close(self, file: int) -> None:
        """Make a block of what a file has."""
        begun = self._begun.pop(file)
        sums = begun.sums.rows, begun.sums.nbytes, begun.sums.checksum
        self._block(file, tuple(begun.parts), begun.size, sums, begun.digest.intdigest())

    def _cut(self, file: int, whole: memoryview, sums: tuple[int, int, int]) -> None:
        """Make blocks of a message that is longer than one."""
        for begin, end in pairwise([*range(0, len(whole), BLOCK_BYTES), len(whole)]):
            part = whole[begin:end]
            checksum = xxhash.xxh3_64_intdigest(part)
            self._block(file, (part,), len(part), sums if not begin else (0, 0, 0), checksum)

    def _block(
        self,
        file: int,
        parts: tuple[bytes | memoryview, ...],
        size: int,
        sums: tuple[int, int, int],
        checksum: int,
    ) -> None:
        number = self._next[file]
        self._next[file] = number + 1
        head = BlockHead(size, self._writer, file, number, checksum).packed()
        self._blocks.append(PushedBlock(file, number, size, head, parts, sums))
