# SPDX-License-Identifier: Apache-2.0
"""Spark's transport frames: messages to bytes, and bytes, however they are cut, to messages. Pure.

    frame = length i64 (these 8 bytes counted), type u8, fields, body; all big endian

Rules: `room` says where the next bytes go, `received` what they make. The body of a chunk is received in place, into
memory of its own, so it is copied only as far as it came together with what stands before it. A frame larger than
this side has asked for is a ProtocolError before memory is taken for it. Limit: the types that a client of a shuffle
service meets; streams by name, uploads and pushed blocks are not among them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import ProtocolError

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_REQUEST, CHUNK, CHUNK_FAILURE, REQUEST, ANSWER, FAILURE = range(6)
"""The types of frames."""

_HEAD = struct.Struct(">qb")
_CHUNK = struct.Struct(">qi")
_CHUNK_REQUEST = struct.Struct(">qbqi")
_CALL = struct.Struct(">qi")
_CALL_HEAD = struct.Struct(">qbqi")
_CHUNK_HEAD = _HEAD.size + _CHUNK.size
_STAGE_BYTES = 64 << 10
_MOST_TEXT = 8 << 20
"""A frame that is no chunk holds a few names, or the stack of an error."""


class Answer(NamedTuple):
    """The answer to a request."""

    request: int
    body: bytes


class Failure(NamedTuple):
    """The error that a request has met."""

    request: int
    text: str


class FetchedChunk(NamedTuple):
    """A chunk of a stream."""

    stream: int
    number: int
    data: pa.Buffer


class ChunkFailure(NamedTuple):
    """The error in place of a chunk."""

    stream: int
    number: int
    text: str


Message = Answer | Failure | FetchedChunk | ChunkFailure


def request_frame(request: int, body: bytes) -> bytes:
    """A request with this number."""
    return _CALL_HEAD.pack(_CALL_HEAD.size + len(body), REQUEST, request, len(body)) + body


def chunk_request_frame(stream: int, number: int) -> bytes:
    """The request for a chunk of a stream."""
    return _CHUNK_REQUEST.pack(_CHUNK_REQUEST.size, CHUNK_REQUEST, stream, number)


class MessageReader:
    """Makes messages of what arrives. `most` is the largest chunk that this side asks for, in bytes."""

    __slots__ = ("_body", "_chunk", "_filled", "_kind", "_stage", "_staged", "_target", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._stage = bytearray(_STAGE_BYTES)
        self._staged = 0
        """The bytes of the stage that hold something."""
        self._kind = 0
        self._chunk = (0, 0)
        self._body: pa.Buffer | bytearray | None = None
        self._target = memoryview(b"")
        self._filled = 0

    def room(self) -> memoryview:
        """The memory that the next bytes go to; never empty."""
        if self._body is not None and len(self._target) - self._filled >= _STAGE_BYTES:
            return self._target[self._filled :]
        return memoryview(self._stage)[self._staged :]

    def received(self, count: int) -> list[Message]:
        """So many bytes have come to where `room` said; the messages that are whole now."""
        if self._body is not None and len(self._target) - self._filled >= _STAGE_BYTES:
            self._filled += count
            return [self._whole()] if self._filled == len(self._target) else []
        self._staged += count
        found: list[Message] = []
        view, begin = memoryview(self._stage), 0
        while True:
            if self._body is None:
                taken = self._begin(view[begin : self._staged])
                if not taken:
                    break
                begin += taken
            begin += self._fill(view[begin : self._staged])
            if self._filled < len(self._target):
                break
            found.append(self._whole())
        left = self._staged - begin
        view[:left] = bytes(view[begin : self._staged])
        self._staged = left
        return found

    def _begin(self, view: memoryview) -> int:
        """Read the head of a frame; the bytes that it takes, 0 where it is not whole yet."""
        if len(view) < _HEAD.size:
            return 0
        length, kind = _HEAD.unpack_from(view)
        head = _CHUNK_HEAD if kind == CHUNK else _HEAD.size
        most = self.most if kind == CHUNK else _MOST_TEXT
        if kind not in (CHUNK, CHUNK_FAILURE, ANSWER, FAILURE) or not head <= length <= head + most:
            raise ProtocolError(f"a frame of type {kind} and {length} bytes came, which nobody has asked for")
        if len(view) < head:
            return 0
        self._kind = kind
        size = length - head
        if kind == CHUNK:
            import pyarrow as pa  # not above: who only calls has no chunks

            self._chunk = _CHUNK.unpack_from(view, _HEAD.size)
            self._body = pa.allocate_buffer(size)
        else:
            self._body = bytearray(size)
        self._target, self._filled = memoryview(self._body).cast("B"), 0
        return head

    def _fill(self, view: memoryview) -> int:
        """Move what has come into the body."""
        count = min(len(view), len(self._target) - self._filled)
        self._target[self._filled : self._filled + count] = view[:count]
        self._filled += count
        return count

    def _whole(self) -> Message:
        body, self._body = self._body, None
        self._target, self._filled = memoryview(b""), 0
        if self._kind == CHUNK:
            return FetchedChunk(*self._chunk, body)
        data = bytes(body or b"")
        try:
            if self._kind == CHUNK_FAILURE:
                stream, number = _CHUNK.unpack_from(data)
                return ChunkFailure(stream, number, _text(data[_CHUNK.size :]))
            request, _ = _CALL.unpack_from(data)
        except struct.error as error:
            raise ProtocolError(f"a frame of type {self._kind} has {len(data)} bytes, too few") from error
        if self._kind == FAILURE:
            return Failure(request, _text(data[_CALL.size - 4 :]))
        return Answer(request, data[_CALL.size :])


def _text(data: bytes) -> str:
    """The first line of a text with its length before it: the others are a Java stack."""
    (length,) = struct.unpack_from(">i", data)
    return data[4 : 4 + max(0, length)].decode(errors="replace").strip().split("\n", 1)[0][:1000]
