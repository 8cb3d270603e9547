# SPDX-License-Identifier: Apache-2.0
"""Blocks: what the files of blocking partitions hold between header and footer.

    block = rows u64, number u64, payload's length u64, its checksum u64, payload, zeroes to a multiple of 8

Rules:

- A block is one batch. The last 16 bytes of its header and what follows are a message of the record stream, so a
  reader on another host is sent a block as it lies in the file.
- `number` says which block it is (counted in the file, or region and subpartition), so a block that stands where
  another belongs is found at once; the payload's checksum covers the payload, and its length with it; the rows are
  compared with the batch's, and sums over all blocks with what the writer counted.
- `BlockOutput` hands blocks to the file in runs of a MiB or a thousand parts, whichever comes first.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from penstock.partition.file_input import FileInput
from penstock.partition.file_output import FileOutput

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.buffer.arrow import PayloadFormat

BLOCK = struct.Struct("<QQQQ")
"""Rows, number, bytes of payload, xxh3_64 of it."""
BEFORE_MESSAGE = 16
"""The bytes of a block's header that are no part of its message."""

_RUN_BYTES = 1 << 20
_RUN_PARTS = 1000


class Block(NamedTuple):
    """One block of a file: its figures, its payload, and where its message lies."""

    rows: int
    checksum: int
    payload: pa.Buffer
    position: int
    end: int


class BlockOutput:
    """Appends blocks to a file. `position` is where the next one will stand."""

    __slots__ = ("_file", "_format", "_parts", "_size", "position")

    def __init__(self, file: FileOutput, payloads: PayloadFormat) -> None:
        self._file = file
        self._format = payloads
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self.position = file.size

    def append(self, batch: pa.RecordBatch, number: int) -> tuple[int, int]:
        """Append a batch; returns bytes and checksum of its payload. PenstockError where the file takes no more."""
        return self.append_payload(batch.num_rows, memoryview(self._format.encode(batch)), number)

    def append_payload(self, rows: int, payload: memoryview, number: int) -> tuple[int, int]:
        """The same with a batch's payload, which must stay as it is until it is handed over."""
        length = len(payload)
        checksum: int = xxhash.xxh3_64_intdigest(payload)
        parts = self._parts
        parts.append(BLOCK.pack(rows, number, length, checksum))
        parts.append(payload)
        padding = -length % 8
        if padding:
            parts.append(bytes(padding))
        size = BLOCK.size + length + padding
        self.position += size
        self._size += size
        if self._size >= _RUN_BYTES or len(parts) >= _RUN_PARTS:
            self.flush()
        return length, checksum

    def flush(self) -> None:
        """Hand over what waits."""
        parts, self._parts, self._size = self._parts, [], 0
        self._file.append(parts)


def read_block(file: FileInput, position: int, limit: int, number: int) -> Block:
    """The block at a position, which ends at the limit at the latest; IncompleteDataError unless it is sound."""
    start = position + BLOCK.size
    if start > limit:
        raise file.incomplete(f"the block at {position} is missing")
    rows, found, length, checksum = BLOCK.unpack_from(file.view, position)
    if found != number:
        raise file.incomplete(f"at {position} stands block {found:#x} instead of {number:#x}")
    padding = -length % 8
    end = start + length + padding
    if end > limit:
        raise file.incomplete(f"the block at {position} reaches over the end of its part")
    payload = file.buffer.slice(start, length)
    if xxhash.xxh3_64_intdigest(payload) != checksum:
        raise file.incomplete(f"the checksum of the block at {position} does not match")
    if padding and any(file.view[end - padding : end]):
        raise file.incomplete(f"there is something behind the block at {position}")
    return Block(rows, checksum, payload, position, end)


def read_batch(file: FileInput, block: Block, payloads: PayloadFormat) -> pa.RecordBatch:
    """The batch of a sound block."""
    import pyarrow as pa  # not above: environments import this module, and never come here

    try:
        batch = payloads.decode(block.payload)
    except (pa.ArrowInvalid, OSError, StopIteration) as error:
        raise file.incomplete(f"the block at {block.position} is no Arrow data: {error}") from error
    if batch.num_rows != block.rows:
        rows = f"{batch.num_rows} rows instead of {block.rows}"
        raise file.incomplete(f"the block at {block.position} has {rows}")
    return batch


def message_of(file: FileInput, block: Block) -> memoryview:
    """The block as a message of the record stream (length, checksum, payload, padding), over the file's map."""
    return file.view[block.position + BEFORE_MESSAGE : block.end]
