# SPDX-License-Identifier: Apache-2.0
"""Messages on a subpartition's byte stream. The stream is cut into buffers anywhere; a message spans any number.

    message = header (16 bytes: payload length u64, checksum u64, little-endian), payload, zeros to a multiple of 8

Rules: every message starts at a multiple of 8 in its stream. The checksum is xxh3_64 of the payload (0 where
verification is off) and is compared before anything is decoded, on the reader's own copy. The reader copies each
byte once, into memory of its own, and keeps no reference to what it was fed. A length above the limit is the
peer's fault (ProtocolError); an incomplete message at the end is lost data (IncompleteDataError).
Exception: what lies complete in memory that is kept and was checked (`feed` with `is_kept`) is given out over it.
Non-goal: finding the next message after a damaged one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, cast

import pyarrow as pa
import xxhash

from penstock.errors import IncompleteDataError, ProtocolError
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter

HEADER = struct.Struct("<QQ")
ALIGNMENT = 8
DEFAULT_LIMIT = 2 << 30
_SHARED = 64 << 10


class Message(NamedTuple):
    """One message before it is written: `parts` in order."""

    length: int
    checksum: int
    parts: tuple[bytes | memoryview, ...]


def frame_message(payload: pa.Buffer, verify: bool = True) -> Message:
    """The message around these bytes, which are not copied. Count its length and checksum as sent."""
    view = memoryview(payload).cast("B")
    length = len(view)
    checksum = xxhash.xxh3_64_intdigest(view) if verify else 0
    header = HEADER.pack(length, checksum)
    padding = -length % ALIGNMENT
    return Message(length, checksum, (header, view, bytes(padding)) if padding else (header, view))


def frames(payload: pa.Buffer, verify: bool = True) -> tuple[bytes, memoryview, bytes]:
    """The same as `(header, payload, padding)`."""
    header, view, *padding = frame_message(payload, verify).parts
    return cast("tuple[bytes, memoryview, bytes]", (header, view, padding[0] if padding else b""))


class MessageAssembler:
    """Puts the messages of one subpartition together again."""

    def __init__(
        self, codec: BatchCodec, completeness: CompletenessCounter, limit: int = DEFAULT_LIMIT, verify: bool = True
    ) -> None:
        self._codec = codec
        self._completeness = completeness
        self._limit = limit
        self._verify = verify
        self._header = bytearray()
        self._message: _Partial | None = None

    @property
    def pending(self) -> int:
        """Bytes received of a message that is not complete yet."""
        message = self._message
        return len(self._header) if message is None else HEADER.size + message.filled

    def feed(self, view: memoryview, *, is_kept: bool = False) -> list[pa.RecordBatch]:
        """The batches these bytes complete; the memory behind `view` may be reused at once.

        If `is_kept`, it may not: batches lie over it. Its bytes were checked already.
        """
        view = view if view.format == "B" else view.cast("B")
        kept = pa.py_buffer(view) if is_kept else None
        batches: list[pa.RecordBatch] = []
        position, end = 0, len(view)
        while position < end:
            if self._message is not None:
                position += self._continue(self._message, view[position:], batches)
            elif kept is not None and not self._header and (used := self._take_over(kept, view, position, batches)):
                position += used
            elif not self._header and (run := self._whole_messages(view, position)):
                position = self._take_run(view, position, run, batches)
            else:
                position += self._begin(view[position:])
        return batches

    def finish(self) -> None:
        """The stream is over: raises IncompleteDataError if that was in the middle of a message."""
        if self.pending:
            message = self._message
            wanted = HEADER.size if message is None else HEADER.size + message.total
            raise IncompleteDataError(
                f"the stream ended {self.pending} bytes into a message of {'at least ' * (message is None)}"
                f"{wanted} bytes; its writer died or part of the data was lost"
            )

    def _begin(self, view: memoryview) -> int:
        """Collect a header; with its last byte the message's memory is taken."""
        part = view[: HEADER.size - len(self._header)]
        self._header += part
        if len(self._header) == HEADER.size:
            length, checksum = HEADER.unpack(self._header)
            self._check_length(length)
            self._message = _Partial(length, checksum)
            self._header.clear()
        return len(part)

    def _continue(self, message: _Partial, view: memoryview, batches: list[pa.RecordBatch]) -> int:
        used = message.fill(view)
        if message.filled == message.total:
            self._message = None
            batches.append(self._complete(message.buffer, message.length, message.checksum))
        return used

    def _take_over(self, kept: pa.Buffer, view: memoryview, position: int, batches: list[pa.RecordBatch]) -> int:
        """Give out the complete messages from `position` on, not copied; their bytes, 0 if they are not aligned."""
        begin, end = position, len(view)
        if (kept.address + position) % ALIGNMENT:
            return 0
        rows = nbytes = sums = 0
        decode = self._codec.decode
        while end - position >= HEADER.size:
            length, checksum = HEADER.unpack_from(view, position)
            self._check_length(length)
            following = position + HEADER.size + length + -length % ALIGNMENT
            if following > end:
                break
            batch = decode(kept.slice(position + HEADER.size, length), is_checked=True)
            batches.append(batch)
            rows += batch.num_rows
            nbytes += length
            sums += checksum
            position = following
        self._completeness.add(rows, nbytes, sums)
        return position - begin

    def _whole_messages(self, view: memoryview, position: int) -> list[tuple[int, int, int]]:
        """(payload's start, length, checksum) of the small messages that lie here complete, one after another."""
        run = []
        end = len(view)
        while end - position >= HEADER.size:
            length, checksum = HEADER.unpack_from(view, position)
            following = position + HEADER.size + length + -length % ALIGNMENT
            if length > _SHARED or following > end:
                break
            run.append((position + HEADER.size, length, checksum))
            position = following
        return run

    def _take_run(
        self, view: memoryview, position: int, run: list[tuple[int, int, int]], batches: list[pa.RecordBatch]
    ) -> int:
        """Copy small neighbours together, headers and all: one allocation and one copy for all of them."""
        start, length, _ = run[-1]
        following = start + length + -length % ALIGNMENT
        buffer = pa.allocate_buffer(following - position)
        memoryview(buffer).cast("B")[:] = view[position:following]
        for first, size, checksum in run:
            self._check_length(size)
            batches.append(self._complete(buffer.slice(first - position, size), size, checksum))
        return following

    def _check_length(self, length: int) -> None:
        if not 0 < length <= self._limit:
            raise ProtocolError(
                f"a message of {length} bytes was announced, it must be 1 to {self._limit}; the stream is damaged, "
                f"or rows are too large to be exchanged"
            )

    def _complete(self, payload: pa.Buffer, length: int, checksum: int) -> pa.RecordBatch:
        if self._verify:
            found = xxhash.xxh3_64_intdigest(payload)
            if found != checksum:
                raise ProtocolError(
                    f"a message of {length} bytes has checksum {found:016x}, its header says {checksum:016x}; "
                    f"the data was damaged on its way"
                )
        batch = self._codec.decode(payload)
        self._completeness.add(batch.num_rows, length, checksum)
        return batch


class _Partial:
    """A message whose header is known: its memory and how much of payload and padding came."""

    __slots__ = ("buffer", "checksum", "filled", "length", "total", "view")

    def __init__(self, length: int, checksum: int) -> None:
        self.length = length
        self.total = length + -length % ALIGNMENT
        self.checksum = checksum
        self.buffer = pa.allocate_buffer(length)
        self.view = memoryview(self.buffer).cast("B")
        self.filled = 0

    def fill(self, view: memoryview) -> int:
        """Take what belongs to this message; returns how much that was."""
        used = min(self.total - self.filled, len(view))
        copied = min(self.length - self.filled, used)
        if copied > 0:
            self.view[self.filled : self.filled + copied] = view[:copied]
        self.filled += used
        return used
