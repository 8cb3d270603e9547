# SPDX-License-Identifier: Apache-2.0
"""The frames between a task and its host's environment process, on a Unix socket.

Bulk data never travels here: it lies in shared segments, and these frames carry descriptors of slices of
them, many per frame. Header: total length u32 (with the header), type u8, three bytes of padding. Both ends
are of one version of Penstock, started from one installation; the handshake before the first frame and the
length limits are what stands between a stranger and this decoder.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum

from penstock.shuffle.errors import ProtocolError

HEADER = struct.Struct("<IB3x")
SLICE = struct.Struct("<HHIIII")
"""Writer or gate u16, flags u16, subpartition or channel u32, segment u32, offset u32, length u32."""
EVENT = struct.Struct("<HHI")
"""Writer or gate u16, data type u16, subpartition or channel u32; the payload follows."""
TARGET = struct.Struct("<HHI")
"""Gate u16, padding, channel u32."""
REQUEST = struct.Struct("<I")
STORED = struct.Struct("<HHIIQQ")
"""Writer u16, padding, subpartition u32, length u32, offset u64, checksum u64."""

ALL = 0xFFFFFFFF
"""The subpartition number that means every subpartition (broadcast)."""
FINISHED = 1
"""Slice flag: nothing more will be written to this segment."""
FILE = 16
"""Data type of the event that carries the path of a finished file of this host, for the task to read itself."""
EXTENTS = 17
"""Data type of the event that names extents of a hybrid partition's storage, for the task to read itself, in order
with the channel's slices. The channel is blocked until the task resumes it: when it begins to read."""
FRAME_LIMIT = 16 << 20
"""No frame is longer: descriptors, control messages and events are small."""


class FrameType(IntEnum):
    """Frames of both directions."""

    CALL = 1
    SLICES = 2
    WRITER_EVENT = 3
    RECYCLE = 4
    RESUME = 5
    TASK_EVENT = 6
    REPORT = 7
    BYE = 8
    OVERDRAFT = 9
    STORED = 10
    WELCOME = 20
    REPLY = 21
    GRANT = 22
    DELIVER = 23
    CHANNEL_EVENT = 24
    CHANNEL_ERROR = 25
    CANCEL = 26
    STORE = 27


def frame(kind: FrameType, body: bytes = b"") -> bytes:
    """One whole frame."""
    return HEADER.pack(HEADER.size + len(body), kind) + body


def slices_frame(kind: FrameType, records: Iterable[tuple[int, int, int, int, int, int]]) -> bytes:
    """A SLICES or DELIVER frame of these records."""
    return frame(kind, b"".join([SLICE.pack(*record) for record in records]))


def segments_frame(kind: FrameType, port: int, segments: list[int]) -> bytes:
    """A GRANT or RECYCLE frame: the writer or gate, then the segments' numbers."""
    return frame(kind, struct.pack(f"<I{len(segments)}I", port, *segments))


def read_segments(body: memoryview) -> tuple[int, tuple[int, ...]]:
    """Inverse of `segments_frame`; raises ProtocolError."""
    if len(body) < 4 or len(body) % 4:
        raise ProtocolError(f"a list of segments has {len(body)} bytes")
    port, *segments = struct.unpack(f"<{len(body) // 4}I", body)
    return port, tuple(segments)


def read_slices(body: memoryview) -> Iterator[tuple[int, int, int, int, int, int]]:
    """The records of a SLICES or DELIVER frame; raises ProtocolError."""
    if len(body) % SLICE.size:
        raise ProtocolError(f"a list of slices has {len(body)} bytes")
    return SLICE.iter_unpack(body)


def stored_frame(port: int, records: Iterable[tuple[int, int, int, int]]) -> bytes:
    """A STORED frame: what a writer has stored by itself, as (subpartition, length, offset, checksum)."""
    parts = [STORED.pack(port, 0, *record) for record in records]
    return frame(FrameType.STORED, b"".join(parts))


def read_stored(body: memoryview) -> Iterator[tuple[int, int, int, int, int, int]]:
    """The records of a STORED frame, padding and all; raises ProtocolError."""
    if len(body) % STORED.size:
        raise ProtocolError(f"a list of stored extents has {len(body)} bytes")
    return STORED.iter_unpack(body)


class FrameReader:
    """Cuts a byte stream into frames, wherever it was cut before. Sans-I/O.

    `target` is where to receive into next; `received(n)` tells how much came; `frames()` gives what is
    complete, as views that are valid until the next `target`.
    """

    def __init__(self, capacity: int = 256 << 10) -> None:
        self._buffer = bytearray(capacity)
        self._start = 0
        self._end = 0

    def target(self) -> memoryview:
        """Free memory behind what is kept, at least one byte."""
        if self._start:
            kept = self._end - self._start
            self._buffer[:kept] = self._buffer[self._start : self._end]
            self._start, self._end = 0, kept
        if self._end == len(self._buffer):
            self._buffer = self._buffer + bytearray(len(self._buffer))
        return memoryview(self._buffer)[self._end :]

    def received(self, count: int) -> None:
        """Note that `count` bytes were written to the target."""
        self._end += count

    def frames(self) -> Iterator[tuple[FrameType, memoryview]]:
        """Every complete frame; raises ProtocolError for a length or type that is not ours."""
        view = memoryview(self._buffer)
        while self._end - self._start >= HEADER.size:
            length, kind = HEADER.unpack_from(view, self._start)
            if not HEADER.size <= length <= FRAME_LIMIT:
                raise ProtocolError(f"a frame of {length} bytes between task and environment")
            if self._end - self._start < length:
                return
            begin = self._start + HEADER.size
            self._start += length
            try:
                frame_type = FrameType(kind)
            except ValueError as error:
                raise ProtocolError(f"unknown frame type {kind} between task and environment") from error
            yield frame_type, view[begin : begin - HEADER.size + length]
