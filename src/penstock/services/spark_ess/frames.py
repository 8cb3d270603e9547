# SPDX-License-Identifier: Apache-2.0
"""Spark's transport frames: messages to bytes, and bytes, however they are cut, to messages. Pure.

    frame = length i64 (these 8 bytes counted), type u8, fields, body; all big endian

Rules: the body of a chunk is received in place, into memory of its own (`fetching/bodies.py`). A frame larger than
this side has asked for is a ProtocolError before memory is taken for it. Limit: the types that a client of a shuffle
service meets; streams by name, uploads and pushed blocks are not among them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import ProtocolError
from penstock.services.fetching.bodies import BodyHead, BodyReader

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


class SparkHeads:
    """The frames that a service sends. `most` is the largest chunk that this side asks for, in bytes."""

    def __init__(self, most: int) -> None:
        self.most = most

    def head(self, view: memoryview) -> BodyHead | None:
        """Read the head of a frame, if it is whole."""
        if len(view) < _HEAD.size:
            return None
        length, kind = _HEAD.unpack_from(view)
        head = _CHUNK_HEAD if kind == CHUNK else _HEAD.size
        most = self.most if kind == CHUNK else _MOST_TEXT
        if kind not in (CHUNK, CHUNK_FAILURE, ANSWER, FAILURE) or not head <= length <= head + most:
            raise ProtocolError(f"a frame of type {kind} and {length} bytes came, which nobody has asked for")
        if len(view) < head:
            return None
        return BodyHead(bytes(view[:head]), length - head, kind == CHUNK)

    def message(self, head: bytes, body: pa.Buffer | bytearray) -> Message:
        """The message of a whole frame."""
        _, kind = _HEAD.unpack_from(head)
        if kind == CHUNK:
            stream, number = _CHUNK.unpack_from(head, _HEAD.size)
            return FetchedChunk(stream, number, body)
        data = bytes(body)
        try:
            if kind == CHUNK_FAILURE:
                stream, number = _CHUNK.unpack_from(data)
                return ChunkFailure(stream, number, _text(data[_CHUNK.size :]))
            request, _ = _CALL.unpack_from(data)
        except struct.error as error:
            raise ProtocolError(f"a frame of type {kind} has {len(data)} bytes, too few") from error
        if kind == FAILURE:
            return Failure(request, _text(data[_CALL.size - 4 :]))
        return Answer(request, data[_CALL.size :])


def message_reader(most: int) -> BodyReader[Message]:
    """The reader of what a service sends; see `SparkHeads`."""
    return BodyReader(SparkHeads(most))


def _text(data: bytes) -> str:
    """The first line of a text with its length before it: the others are a Java stack."""
    (length,) = struct.unpack_from(">i", data)
    return data[4 : 4 + max(0, length)].decode(errors="replace").strip().split("\n", 1)[0][:1000]
