# SPDX-License-Identifier: Apache-2.0
"""The frame: the head that everything has that is sent over a connection, once its handshake is done.

Head: total length u32 (with the head), type u8, a zero byte, flags u16, two checksums u32; little-endian. The types
and their bodies are the business of who speaks (`link/frames`, `network/frames`). The handshake has checked protocol
and version, so the head does not repeat them.

The first checksum is of the eight bytes before it: a frame whose length has come damaged is not waited for.
The second is of what the head vouches for, with these eight bytes as its seed. That is the body, or, where rows
follow, what says whose they are: rows have checksums of their own. Both are the lower half of xxh3_64. TCP's have 16
bits, and a bit that turns in a question would bring another range's rows, with sums that match them.

Limit: a frame that `FrameReader` cuts has at most FRAME_LIMIT bytes. Bulk data does not come this way: between a task
and its environment it lies in shared memory, and between environments `network/decoder` puts it into its segment.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import xxhash

from penstock.errors import DamagedFrameError, ProtocolError

HEADER: Final = struct.Struct("<IBxHII")
_START: Final = struct.Struct("<IBxH")
_SEALS: Final = struct.Struct("<II")
_LOWER: Final = 0xFFFFFFFF
FRAME_LIMIT: Final = 64 << 20
"""Plans of jobs, and the parts from which a query is restored, are the largest; all else is small."""
CAPACITY: Final = 256 << 10
"""Bytes that a reader takes in at once: hundreds of frames between a task and its environment."""
Seal = tuple[int, int]
"""The seed and the checksum of what a head vouches for."""


@dataclass(frozen=True, slots=True)
class OutgoingFrame:
    """A frame on its way out: parts for a gather write, and what to call when the transport has taken all of it."""

    parts: tuple[bytes | memoryview, ...]
    size: int
    recycle: Callable[[], None] | None = None


def frame(kind: int, body: bytes = b"") -> bytes:
    """One whole frame; raises ProtocolError for one longer than FRAME_LIMIT."""
    if HEADER.size + len(body) > FRAME_LIMIT:
        raise ProtocolError(f"a message of {len(body):,} bytes is to be sent: {FRAME_LIMIT:,} is the limit")
    return beginning(kind, body)


def beginning(kind: int, body: bytes = b"", following: int = 0, flags: int = 0) -> bytes:
    """The head of a frame, and of its body what the head vouches for; so many bytes are to follow."""
    start = _START.pack(HEADER.size + len(body) + following, kind, flags)
    vouched = xxhash.xxh3_64_intdigest(body, int.from_bytes(start, "little"))
    return b"".join((start, _SEALS.pack(xxhash.xxh3_64_intdigest(start) & _LOWER, vouched & _LOWER), body))


def read_beginning(
    data: bytes | memoryview, at: int = 0, *, limit: int = FRAME_LIMIT, flags: int = 0
) -> tuple[int, int, int, Seal]:
    """Length, type and flags of the frame whose head is there, and the seal of what it vouches for.

    Raises DamagedFrameError unless they are as they were sent, ProtocolError for a longer frame and other flags.
    """
    length, kind, found, checksum, vouched = HEADER.unpack_from(data, at)
    if xxhash.xxh3_64_intdigest(data[at : at + _START.size]) & _LOWER != checksum:
        raise DamagedFrameError("a frame has come damaged: the checksum of its head does not match")
    if not HEADER.size <= length <= limit or found & ~flags:
        raise ProtocolError(f"a frame of {length} bytes with the flags {found:#06x} has come")
    return length, kind, found, (length | kind << 32 | found << 48, vouched)


def check(seal: Seal, body: bytes | bytearray | memoryview) -> None:
    """Raise DamagedFrameError unless what a head vouches for is as it was sent."""
    seed, checksum = seal
    if xxhash.xxh3_64_intdigest(body, seed) & _LOWER != checksum:
        raise DamagedFrameError(f"a frame of type {seed >> 32 & 0xFF} has come damaged: its checksum does not match")


class FrameReader:
    """Cuts a byte stream into frames, wherever it was cut before. Sans-I/O.

    `next_target` is where to receive into; `received(n)` tells how much came; `next_message` gives the type and body
    of the next frame that is complete, as a view that is valid until the next target. Memory for a large frame is
    given back after it.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._view = memoryview(bytearray(capacity))
        self._start = self._end = 0

    @property
    def is_at_boundary(self) -> bool:
        """True if the stream may end here: no frame is half received."""
        return self._start == self._end

    @property
    def kept(self) -> memoryview:
        """The bytes of a frame that is half received."""
        return self._view[self._start : self._end]

    def next_target(self) -> memoryview:
        """Free memory behind what is kept, at least one byte."""
        kept = self._end - self._start
        if kept == 0 and len(self._view) > self._capacity:
            self._view = memoryview(bytearray(self._capacity))
        elif self._start:
            self._view[:kept] = self._view[self._start : self._end]
        self._start, self._end = 0, kept
        if kept == len(self._view):
            larger = memoryview(bytearray(2 * kept))
            larger[:kept] = self._view
            self._view = larger
        return self._view[kept:]

    def received(self, count: int) -> None:
        """Note that `count` bytes were written to the target."""
        self._end += count

    def next_message(self) -> tuple[int, memoryview] | None:
        """The next whole frame, or None until more bytes come; raises ProtocolError for one that is not ours."""
        arrived = self._end - self._start
        if arrived < HEADER.size:
            return None
        length, kind, _, seal = read_beginning(self._view, self._start)
        if arrived < length:
            return None
        body = self._view[self._start + HEADER.size : self._start + length]
        check(seal, body)
        self._start += length
        return kind, body
