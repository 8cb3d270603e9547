# SPDX-License-Identifier: Apache-2.0
"""The frames of the control plane: between a task and its host's environment, and between that and the JobMaster.

Bulk data never travels here: it lies in shared segments, and these frames carry descriptors of slices of them, many
per frame. A port is a writer or a gate of a task, a call a question; each has a number of its own (`numbers`). The
JobMaster's connections have calls, replies and commands only. The handshake before the first frame and the limit of
its length are what stands between an unauthenticated peer and this decoder.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum

from penstock.connection.frames import frame
from penstock.errors import ProtocolError
from penstock.link.control import error_message, pack, unpack
from penstock.link.wire import Plain

SLICE = struct.Struct("<5I")
"""Port, subpartition or channel, segment, offset, length;
u32 each. A writer's length has the marks `FINISHED` and `CONTINUES`."""
EVENT = struct.Struct("<III")
"""Writer or gate u32, data type u32, subpartition or channel u32; the payload follows."""
TARGET = struct.Struct("<II")
"""Gate u32, channel u32."""
REQUEST = struct.Struct("<I")
"""The number of a call, or of a port."""
STORED = struct.Struct("<IIIQQ")
"""Writer u32, subpartition u32, length u32, offset u64, checksum u64."""

ALL = 0xFFFFFFFF
"""The subpartition number that means every subpartition (broadcast)."""
FINISHED = 1 << 31
"""The mark in a slice's length: nothing more will be written to this segment."""
CONTINUES = 1 << 30
"""The mark in a slice's length: it begins in the middle of a message."""
LENGTH = CONTINUES - 1
"""The bits of a slice's length that are its length."""
IN_FILES = 16
"""Data type of the event that names rows in files of this host, for the task to read itself, in order with the
channel's slices. If it names extents, the channel is blocked until the task resumes it: when it begins to read."""
FRAME_ERRORS = (struct.error, KeyError, TypeError, ValueError, IndexError)
"""The errors of a body, beside ProtocolError, that is not as its type says."""

SliceRecord = tuple[int, int, int, int, int]
"""The fields of `SLICE`."""


class LinkFrameType(IntEnum):
    """Frames of both directions."""

    # From the task.
    CALL = 1
    """Call, then a request by its name (`call_frame`). Answered with REPLY. From an environment too."""
    SLICES = 2
    """Records of what a writer ships."""
    WRITER_EVENT = 3
    """EVENT and payload: an event after all that a writer has shipped."""
    RECYCLE = 4
    """Gate, or writer, and segments: the slices of them that were delivered were copied."""
    RESUME = 5
    """TARGET: a channel that an event has blocked goes on."""
    REPORT = 7
    """The task's figures."""
    BYE = 8
    """The end of the connection is meant."""
    OVERDRAFT = 9
    """Writer: it is out of segments in the middle of a message."""
    STORED = 10
    """Records of what a writer has stored by itself."""
    # From the environment.
    WELCOME = 20
    """The memory, with its descriptor; the first frame."""
    REPLY = 21
    """Call and answer. From the JobMaster too."""
    GRANT = 22
    """Writer and segments to write into."""
    DELIVER = 23
    """Records of slices for gates, and for writers those that a barrier has overtaken."""
    CHANNEL_EVENT = 24
    """EVENT and payload, in order with the channel's slices."""
    CHANNEL_ERROR = 25
    """TARGET and error: a channel can't be read; of a writer: it can't go on."""
    CANCEL = 26
    """Why the task is to stop."""
    STORE = 27
    """Writer and folder: store there what memory has no room for."""
    COMMAND = 28
    """A command of the JobMaster, to an environment or through it to a task (`commands.instruction`)."""
    UNWANTED = 29
    """Why the task's rows are not wanted any more: it is to end, and has not failed."""


def name_of(kind: int) -> str:
    """The name of a type, or its number where there is none such; for messages to people."""
    return LinkFrameType(kind).name if kind in LinkFrameType.__members__.values() else str(kind)


def slices_frame(kind: LinkFrameType, records: Iterable[SliceRecord]) -> bytes:
    """A SLICES or DELIVER frame of these records."""
    return frame(kind, b"".join([SLICE.pack(*record) for record in records]))


def segments_frame(kind: LinkFrameType, port: int, segments: list[int]) -> bytes:
    """A GRANT or RECYCLE frame: the writer or gate, then the segments' numbers."""
    return frame(kind, struct.pack(f"<I{len(segments)}I", port, *segments))


def read_segments(body: memoryview) -> tuple[int, tuple[int, ...]]:
    """Inverse of `segments_frame`; raises ProtocolError."""
    if len(body) < 4 or len(body) % 4:
        raise ProtocolError(f"a list of segments has {len(body)} bytes")
    port, *segments = struct.unpack(f"<{len(body) // 4}I", body)
    return port, tuple(segments)


def read_slices(body: memoryview) -> Iterator[SliceRecord]:
    """The records of a SLICES or DELIVER frame; raises ProtocolError."""
    if len(body) % SLICE.size:
        raise ProtocolError(f"a list of slices has {len(body)} bytes")
    return SLICE.iter_unpack(body)


def stored_frame(port: int, records: Iterable[tuple[int, int, int, int]]) -> bytes:
    """A STORED frame: what a writer has stored by itself, as (subpartition, length, offset, checksum)."""
    parts = [STORED.pack(port, *record) for record in records]
    return frame(LinkFrameType.STORED, b"".join(parts))


def read_stored(body: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """The records of a STORED frame, the writer's number first; raises ProtocolError."""
    if len(body) % STORED.size:
        raise ProtocolError(f"a list of stored extents has {len(body)} bytes")
    return STORED.iter_unpack(body)


def call_frame(number: int, method: str, message: Plain, question: int = 0) -> bytes:
    """A CALL frame; `question` is the number under which it comes again where it is not answered (`questions`)."""
    asked = {"question": question} if question else {}
    return frame(LinkFrameType.CALL, REQUEST.pack(number) + pack({"method": method, "message": message, **asked}))


def call_number(body: memoryview) -> int:
    """The number of a CALL frame; struct.error where there is none."""
    (number,) = REQUEST.unpack_from(body)
    return int(number)


def read_call(body: memoryview, most: int | None = None) -> tuple[int, str, Plain, int]:
    """Number, method, message and question of a CALL frame; raises ProtocolError, or one of FRAME_ERRORS.

    With `most` QuotaError for a message of more values (`unpack`).
    """
    number = call_number(body)
    call = unpack(body[REQUEST.size :], most)
    return number, str(call["method"]), dict(call["message"]), int(call.get("question", 0))


def reply_frame(number: int, answer: Plain) -> bytes:
    """A REPLY frame; an answer that is too large becomes the error that says so."""
    try:
        return frame(LinkFrameType.REPLY, REQUEST.pack(number) + pack(answer))
    except ProtocolError as error:
        return frame(LinkFrameType.REPLY, REQUEST.pack(number) + pack(error_message(error)))


def read_reply(body: memoryview) -> tuple[int, Plain]:
    """Number and answer of a REPLY frame; raises ProtocolError or struct.error."""
    (number,) = REQUEST.unpack_from(body)
    return number, unpack(body[REQUEST.size :])


def event_frame(kind: LinkFrameType, port: int, data_type: int, channel: int, payload: bytes) -> bytes:
    """A WRITER_EVENT or CHANNEL_EVENT frame; the channel is a subpartition where a writer speaks."""
    return frame(kind, EVENT.pack(port, data_type, channel) + payload)


def read_event(body: memoryview) -> tuple[int, int, int, bytes]:
    """Port, data type, channel and payload of either; raises struct.error."""
    return (*EVENT.unpack_from(body), bytes(body[EVENT.size :]))


def channel_frame(kind: LinkFrameType, port: int, channel: int, payload: bytes = b"") -> bytes:
    """A RESUME or CHANNEL_ERROR frame."""
    return frame(kind, TARGET.pack(port, channel) + payload)


def read_channel(body: memoryview) -> tuple[int, int, bytes]:
    """Port, channel and payload of one of these; raises struct.error."""
    return (*TARGET.unpack_from(body), bytes(body[TARGET.size :]))


def port_frame(kind: LinkFrameType, port: int, text: str = "") -> bytes:
    """An OVERDRAFT or STORE frame."""
    return frame(kind, REQUEST.pack(port) + text.encode())


def read_port(body: memoryview) -> tuple[int, str]:
    """Port and text of one of these; raises struct.error or UnicodeDecodeError."""
    (port,) = REQUEST.unpack_from(body)
    return port, bytes(body[REQUEST.size :]).decode()
