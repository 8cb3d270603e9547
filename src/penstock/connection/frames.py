# SPDX-License-Identifier: Apache-2.0
"""The frame: the head that everything has that is sent over a connection, once its handshake is done.

Head: total length u32 (with the head), type u8, a zero byte, flags u16; little-endian. The types and their bodies are
the business of who speaks (`link/frames`, `network/frames`). The handshake has checked protocol and version, so the
head does not repeat them.

Limit: a frame that `FrameReader` cuts has at most FRAME_LIMIT bytes. Bulk data does not come this way: between a task
and its environment it lies in shared memory, and between environments `network/decoder` puts it into its segment.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.errors import ProtocolError

HEADER: Final = struct.Struct("<IBxH")
FRAME_LIMIT: Final = 64 << 20
"""Plans of jobs, and the parts from which a query is restored, are the largest; all else is small."""
CAPACITY: Final = 256 << 10
"""Bytes that a reader takes in at once: hundreds of frames between a task and its environment."""


@dataclass(frozen=True, slots=True)
class OutgoingFrame:
    """A frame on its way out: parts for a gather write, and what to call when the transport has taken all of it."""

    parts: tuple[bytes | memoryview, ...]
    size: int
    recycle: Callable[[], None] | None = None


def frame(kind: int, body: bytes = b"") -> bytes:
    """One whole frame; raises ProtocolError for one that nobody would read."""
    length = HEADER.size + len(body)
    if length > FRAME_LIMIT:
        raise ProtocolError(f"a message of {len(body):,} bytes is to be sent: {FRAME_LIMIT:,} is the limit")
    return HEADER.pack(length, kind, 0) + body


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
        """The next whole frame, or None until more bytes come; raises ProtocolError for a length that is not ours."""
        arrived = self._end - self._start
        if arrived < HEADER.size:
            return None
        length, kind, flags = HEADER.unpack_from(self._view, self._start)
        if not HEADER.size <= length <= FRAME_LIMIT or flags:
            raise ProtocolError(f"a frame of {length} bytes with the flags {flags:#06x} has come")
        if arrived < length:
            return None
        begin = self._start + HEADER.size
        self._start += length
        return kind, self._view[begin : self._start]
