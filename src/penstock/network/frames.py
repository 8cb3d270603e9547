# SPDX-License-Identifier: Apache-2.0
"""Frames: how the messages of a data connection look in bytes.

Rules. Every frame has the head of `connection/frames`, which vouches for the body; that of a data buffer for all but
its payload, which has a checksum of its own. A flag bit that a type does not define must be zero. Bodies
have a fixed size, or a fixed head and one variable tail. A message that does not fit is a ProtocolError: the peer is
to blame, never a crash.

Limits are below, with reasons. Payloads of data buffers are never joined with their header: `encode_header` gives the
header alone, so that the payload's memoryview goes to a gather write as it is.

Non-goals: compression, encryption (a transport's), several versions at once: both ends run the same Penstock.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import xxhash

from penstock.buffer.data_types import DataType
from penstock.connection.frames import HEADER, OutgoingFrame, beginning
from penstock.errors import ProtocolError
from penstock.network.messages import (
    AddCredit,
    BacklogAnnouncement,
    BufferHeader,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    ErrorCode,
    ErrorResponse,
    Message,
    PartitionRequest,
    Ping,
    Pong,
    ResumeConsumption,
)
from penstock.shuffle import DatasetId
from penstock.shuffle.ids import PartitionId

MAX_PAYLOAD: Final = 64 << 20
"""Largest data payload: the largest segment that the settings allow."""
MAX_EVENT: Final = 64 << 10
"""Largest event payload: it is held in ordinary memory that no credit bounds, so it must stay small."""
MAX_TEXT: Final = 16 << 10
"""Largest error text in bytes; longer ones (user tracebacks) are cut, keeping head and tail."""
MAX_DATASET: Final = 1 << 10
"""Largest dataset name in bytes."""
MAX_CREDIT: Final = 1 << 24
"""More credit than this on one channel is 4 TiB of segments: a fault, not a wish."""

FLAG_RECEIVER: Final = 1
"""ERROR_RESPONSE: it concerns one receiver only; without it the whole connection failed."""
MASK_FLOW: Final = 3
"""PARTITION_REQUEST: the number of the connection's flow control."""


class FrameType(IntEnum):
    """The type byte."""

    PARTITION_REQUEST = 1
    BUFFER_RESPONSE = 2
    BACKLOG_ANNOUNCEMENT = 3
    ADD_CREDIT = 4
    RESUME_CONSUMPTION = 5
    CANCEL_PARTITION_REQUEST = 7
    CLOSE_REQUEST = 8
    ERROR_RESPONSE = 9
    PING = 10
    PONG = 11


CLIENT_TYPES: Final = frozenset(FrameType) - {
    FrameType.BUFFER_RESPONSE,
    FrameType.BACKLOG_ANNOUNCEMENT,
    FrameType.ERROR_RESPONSE,
    FrameType.PONG,
}
"""The types that a client may send, so those that a server accepts."""
SERVER_TYPES: Final = frozenset(FrameType) - CLIENT_TYPES
"""The types that a server may send, so those that a client accepts."""


def outgoing(message: Message) -> OutgoingFrame:
    """The frame of a control message."""
    encoded = encode(message)
    return OutgoingFrame((encoded,), len(encoded))


BUFFER: Final = struct.Struct("<QIIIBxxxQ")
BUFFER_HEAD: Final = HEADER.size + BUFFER.size
"""Bytes of a BUFFER_RESPONSE before its payload."""
_REQUEST: Final = struct.Struct("<QIqIII")
_RECEIVER: Final = struct.Struct("<Q")
_RECEIVER_COUNT: Final = struct.Struct("<QI")
_ERROR: Final = struct.Struct("<QH")

BODY_LIMITS: Final[dict[FrameType, tuple[int, int]]] = {
    FrameType.PARTITION_REQUEST: (_REQUEST.size + 1, _REQUEST.size + MAX_DATASET),
    FrameType.BUFFER_RESPONSE: (BUFFER.size, BUFFER.size + MAX_PAYLOAD),
    FrameType.BACKLOG_ANNOUNCEMENT: (_RECEIVER_COUNT.size, _RECEIVER_COUNT.size),
    FrameType.ADD_CREDIT: (_RECEIVER_COUNT.size, _RECEIVER_COUNT.size),
    FrameType.RESUME_CONSUMPTION: (_RECEIVER.size, _RECEIVER.size),
    FrameType.CANCEL_PARTITION_REQUEST: (_RECEIVER.size, _RECEIVER.size),
    FrameType.CLOSE_REQUEST: (0, 0),
    FrameType.ERROR_RESPONSE: (_ERROR.size, _ERROR.size + MAX_TEXT),
    FrameType.PING: (_RECEIVER.size, _RECEIVER.size),
    FrameType.PONG: (_RECEIVER.size, _RECEIVER.size),
}
"""Smallest and largest body of each type."""
FLAGS: Final[dict[FrameType, int]] = {
    FrameType.PARTITION_REQUEST: MASK_FLOW,
    FrameType.ERROR_RESPONSE: FLAG_RECEIVER,
}
"""The flag bits a type defines; none where it is not listed."""


def payload_checksum(payload: memoryview | bytes) -> int:
    """The checksum of a payload: xxh3, 64 bits."""
    return xxhash.xxh3_64_intdigest(payload)


def encode_header(header: BufferHeader) -> bytes:
    """The bytes that come before the payload of a BUFFER_RESPONSE."""
    limit = MAX_PAYLOAD if header.data_type == DataType.DATA else MAX_EVENT
    if header.length > limit:
        raise ValueError(
            f"a payload of {header.length} bytes of data type {header.data_type}: at most {limit} are allowed"
        )
    fixed = BUFFER.pack(
        header.receiver,
        header.subpartition,
        header.sequence,
        header.backlog,
        header.data_type,
        header.checksum,
    )
    return beginning(FrameType.BUFFER_RESPONSE, fixed, header.length)


def encode(message: Message) -> bytes:
    """A whole frame. Raises ValueError or struct.error where a field does not fit: a local fault."""
    if isinstance(message, BufferResponse):
        return encode_header(message.header) + bytes(message.payload or b"")
    kind, flags, body = _encode_body(message)
    low, high = BODY_LIMITS[kind]
    if not low <= len(body) <= high:
        raise ValueError(f"{kind.name} with a body of {len(body)} bytes: {low} to {high} are allowed")
    return beginning(kind, body, flags=flags)


def _encode_body(message: Message) -> tuple[FrameType, int, bytes]:
    match message:
        case PartitionRequest(receiver, partition, first, last, credit, flow):
            head = _REQUEST.pack(receiver, partition.index, partition.attempt, first, last, credit)
            return FrameType.PARTITION_REQUEST, flow & MASK_FLOW, head + str(partition.dataset).encode()
        case BacklogAnnouncement(receiver, backlog):
            return FrameType.BACKLOG_ANNOUNCEMENT, 0, _RECEIVER_COUNT.pack(receiver, backlog)
        case AddCredit(receiver, credit):
            return FrameType.ADD_CREDIT, 0, _RECEIVER_COUNT.pack(receiver, credit)
        case ResumeConsumption(receiver):
            return FrameType.RESUME_CONSUMPTION, 0, _RECEIVER.pack(receiver)
        case CancelPartitionRequest(receiver):
            return FrameType.CANCEL_PARTITION_REQUEST, 0, _RECEIVER.pack(receiver)
        case CloseRequest():
            return FrameType.CLOSE_REQUEST, 0, b""
        case ErrorResponse(receiver, code, text):
            flags = 0 if receiver is None else FLAG_RECEIVER
            return FrameType.ERROR_RESPONSE, flags, _ERROR.pack(receiver or 0, code) + _cut(text)
        case Ping(token):
            return FrameType.PING, 0, _RECEIVER.pack(token)
        case Pong(token):
            return FrameType.PONG, 0, _RECEIVER.pack(token)
    raise TypeError(f"not a message: {message!r}")


def _cut(text: str) -> bytes:
    encoded = text.encode(errors="replace")
    if len(encoded) <= MAX_TEXT:
        return encoded
    half = MAX_TEXT // 2 - 16
    head, tail = encoded[:half].decode(errors="ignore"), encoded[-half:].decode(errors="ignore")
    return f"{head}\n[...]\n{tail}".encode()


def decode_buffer_header(body: memoryview, length: int) -> BufferHeader:
    """The head of a BUFFER_RESPONSE out of its fixed part; `length` is that of the payload after it."""
    receiver, subpartition, sequence, backlog, data_type, checksum = BUFFER.unpack_from(body)
    if data_type != DataType.DATA and length > MAX_EVENT:
        raise ProtocolError(f"an event of {length} bytes: at most {MAX_EVENT} are allowed")
    return BufferHeader(receiver, subpartition, sequence, backlog, data_type, checksum, length)


def decode_body(kind: FrameType, flags: int, body: memoryview) -> Message:
    """A control message out of its body, whose size was checked against BODY_LIMITS."""
    return _DECODERS[kind](flags, body)


def _partition_request(flags: int, body: memoryview) -> PartitionRequest:
    receiver, index, attempt, first, last, credit = _REQUEST.unpack_from(body)
    if first > last:
        raise ProtocolError(f"PARTITION_REQUEST for subpartitions {first} to {last}")
    if credit > MAX_CREDIT:
        raise ProtocolError(f"PARTITION_REQUEST with a credit of {credit}: at most {MAX_CREDIT} is allowed")
    try:
        dataset = DatasetId.of(_text(body[_REQUEST.size :], "dataset"))
    except ValueError as error:
        raise ProtocolError(f"PARTITION_REQUEST: {error}") from None
    partition = PartitionId(dataset, index, attempt)
    return PartitionRequest(receiver, partition, first, last, credit, flags & MASK_FLOW)


def _error_response(flags: int, body: memoryview) -> ErrorResponse:
    receiver, code = _ERROR.unpack_from(body)
    if code > max(ErrorCode):
        raise ProtocolError(f"ERROR_RESPONSE with unknown code {code}")
    known = receiver if flags & FLAG_RECEIVER else None
    return ErrorResponse(known, ErrorCode(code), _text(body[_ERROR.size :], "error text"))


def _text(data: memoryview, what: str) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{what} is not UTF-8") from error


def _count(body: memoryview, what: str, high: int) -> tuple[int, int]:
    receiver, count = _RECEIVER_COUNT.unpack(body)
    if not 1 <= count <= high:
        raise ProtocolError(f"{what} of {count}: 1 to {high} is allowed")
    return receiver, count


def _receiver(body: memoryview) -> int:
    return int(_RECEIVER.unpack_from(body)[0])


_U32: Final = (1 << 32) - 1
_DECODERS: Final[dict[FrameType, Callable[[int, memoryview], Message]]] = {
    FrameType.PARTITION_REQUEST: _partition_request,
    FrameType.BACKLOG_ANNOUNCEMENT: lambda _, body: BacklogAnnouncement(*_count(body, "backlog", _U32)),
    FrameType.ADD_CREDIT: lambda _, body: AddCredit(*_count(body, "credit", MAX_CREDIT)),
    FrameType.RESUME_CONSUMPTION: lambda _, body: ResumeConsumption(_receiver(body)),
    FrameType.CANCEL_PARTITION_REQUEST: lambda _, body: CancelPartitionRequest(_receiver(body)),
    FrameType.CLOSE_REQUEST: lambda _, _body: CloseRequest(),
    FrameType.ERROR_RESPONSE: _error_response,
    FrameType.PING: lambda _, body: Ping(_receiver(body)),
    FrameType.PONG: lambda _, body: Pong(_receiver(body)),
}
