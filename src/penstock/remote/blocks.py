# SPDX-License-Identifier: Apache-2.0
"""Blocks: the form in which rows are pushed, lie in a worker's files, and are given to readers. Pure.

    block = magic | length u32 | writer u64 | file u32 | number u32 | checksum u64 | checksum of this head u64 | bytes

Rules:

- The bytes are a run of one writer's record stream (`record.framing`) for one file: of a subpartition, or of all
  where every row goes to all. They are a multiple of 8, at most `BLOCK_BYTES`, and may end in the middle of a
  message.
- Numbers count a writer's blocks of a file from 0. So a repeat, a gap and a change of order show, to the worker that
  stores them and to the reader that has them from several workers.
- Head and bytes are stored and sent as they were made: the reader checks what the writer computed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import xxhash

from penstock.errors import IncompleteDataError

BLOCK_BYTES: Final = 2 << 20
"""A block has at most so many bytes after its head; workers and readers take some turns for each, of any size."""
HEAD: Final = struct.Struct("<4sIQIIQQ")
LEAST_CREDIT: Final = BLOCK_BYTES + HEAD.size
"""A reader's credit is never less: a block must fit."""
_MAGIC: Final = b"PBL1"
_CHECKED: Final = HEAD.size - 8
_LEAST_CHARGE: Final = 4 << 10


class BlockHead(NamedTuple):
    """The head of a block."""

    length: int
    writer: int
    file: int
    number: int
    checksum: int

    def packed(self) -> bytes:
        """The bytes of the head."""
        length, writer, file, number, checksum = self
        head = HEAD.pack(_MAGIC, length, writer, file, number, checksum, 0)[:_CHECKED]
        return head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little")


def read_head(data: memoryview, begin: int = 0) -> BlockHead:
    """The head at this place; IncompleteDataError for what is none."""
    if len(data) - begin < HEAD.size:
        raise IncompleteDataError(f"a block's head has {len(data) - begin} bytes, it must have {HEAD.size}")
    magic, length, writer, file, number, checksum, digest = HEAD.unpack_from(data, begin)
    if magic != _MAGIC or digest != xxhash.xxh3_64_intdigest(data[begin : begin + _CHECKED]):
        raise IncompleteDataError("a block's head was damaged: its checksum does not match")
    if not 0 < length <= BLOCK_BYTES:
        raise IncompleteDataError(f"a block has {length} bytes: 1 to {BLOCK_BYTES} are possible")
    return BlockHead(length, writer, file, number, checksum)


def is_whole(head: BlockHead, data: memoryview) -> bool:
    """Tell whether these are the bytes that the head was made for."""
    return len(data) == head.length and xxhash.xxh3_64_intdigest(data) == head.checksum


def read_blocks(data: memoryview) -> Iterator[tuple[BlockHead, memoryview]]:
    """The blocks that lie here, one after the other; IncompleteDataError for what was damaged or cut."""
    begin = 0
    while begin < len(data):
        head = read_head(data, begin)
        begin += HEAD.size
        found = data[begin : begin + head.length]
        if not is_whole(head, found):
            raise IncompleteDataError(f"block {head.number} of file {head.file} was damaged or cut")
        begin += head.length
        yield head, found


def charge(length: int) -> int:
    """The memory that a block of so many bytes takes at a worker while it is stored: that of its buffer."""
    return max(_LEAST_CHARGE, 1 << (length + HEAD.size - 1).bit_length())
