# SPDX-License-Identifier: Apache-2.0
"""The frame decoder: tells the shell where to receive into next, and turns what came into messages.

    target = decoder.next_target()          # never empty
    decoder.received(sock.recv_into(target))
    while (message := decoder.next_message()) is not None: ...

Rules. A message is taken out before the next frame is looked at, because handling it may change where the next
payload goes. Data payloads go straight into the memory that `buffer_for` returns; what had already arrived in the
small scratch buffer together with the header is copied there. None from `buffer_for` skips the payload: the channel
is gone. `WAIT` leaves the frame where it is, and no message comes; what `next_message` gives after that is up to
`buffer_for` once more, so the caller stops reading until there is memory.

Limits. Scratch memory is fixed; a control frame allocates at most its own size, which is bounded by its type; nothing
is allocated before type, flags and length were checked. After a ProtocolError the decoder stays
broken.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final

from penstock.buffer.data_types import DataType
from penstock.connection.frames import HEADER, Seal, check, read_beginning
from penstock.errors import ProtocolError
from penstock.network.frames import (
    BODY_LIMITS,
    BUFFER,
    BUFFER_HEAD,
    FLAGS,
    FrameType,
    decode_body,
    decode_buffer_header,
)
from penstock.network.messages import BufferHeader, BufferResponse, Message

SCRATCH: Final = 4096
"""Holds every control frame but events and error texts, and keeps the copied head of a payload small."""
DISCARD: Final = 64 << 10
"""Skipped payloads are received into this, piece by piece."""

WAIT: Final = memoryview(b"")
"""There is no memory for this payload now."""
BufferFor = Callable[[int, BufferHeader], memoryview | None]
_TYPES: Final = {int(kind): kind for kind in FrameType}
_discard = memoryview(bytearray(DISCARD))


def skip_payloads(_receiver: int, _header: BufferHeader) -> memoryview | None:
    """A `buffer_for` that wants no payload: for the side that receives no data."""
    return None


class FrameDecoder:
    """Incremental decoder of one direction of one connection."""

    __slots__ = (
        "_accepts",
        "_broken",
        "_buffer_for",
        "_end",
        "_finish",
        "_received",
        "_remaining",
        "_scratch",
        "_start",
        "_target",
    )

    def __init__(self, accepts: Set[FrameType], buffer_for: BufferFor = skip_payloads) -> None:
        self._accepts = accepts
        self._buffer_for = buffer_for
        self._scratch = memoryview(bytearray(SCRATCH))
        self._start = self._end = 0
        self._target: memoryview | None = None
        self._received = self._remaining = 0
        self._finish: Callable[[memoryview | None], Message] | None = None
        self._broken: ProtocolError | None = None

    @property
    def is_at_boundary(self) -> bool:
        """True if the stream may end here: no frame is half received."""
        return self._finish is None and self._start == self._end and self._broken is None

    def next_target(self) -> memoryview:
        """The place for the next bytes of the stream; never empty."""
        if self._broken is not None:
            raise self._broken
        if self._remaining:
            if self._target is None:
                return _discard[: self._remaining]
            return self._target[self._received :]
        if self._start:
            pending = self._end - self._start
            self._scratch[:pending] = bytes(self._scratch[self._start : self._end])
            self._start, self._end = 0, pending
        return self._scratch[self._end :]

    def received(self, count: int) -> None:
        """The first `count` bytes of the last `next_target()` were filled."""
        if self._remaining:
            self._received += count
            self._remaining -= count
        else:
            self._end += count

    def next_message(self) -> Message | None:
        """The next whole message, or None until more bytes come. Raises ProtocolError."""
        if self._broken is not None:
            raise self._broken
        try:
            if self._finish is not None:
                return None if self._remaining else self._finished()
            return self._parse()
        except ProtocolError as error:
            self._broken = error
            raise

    def abandon_payload(self) -> None:
        """Skip the rest of the payload that is being received: its memory is no longer ours to write."""
        self._target = None

    def _parse(self) -> Message | None:
        arrived = self._end - self._start
        if arrived < HEADER.size:
            return None
        length, code, flags, seal = read_beginning(self._scratch, self._start, limit=1 << 32, flags=0xFFFF)
        kind = self._check(code, flags)
        low, high = BODY_LIMITS[kind]
        if not low <= length - HEADER.size <= high:
            raise ProtocolError(f"{kind.name} frame of {length} bytes: its body must have {low} to {high}")
        if kind is FrameType.BUFFER_RESPONSE:
            return self._parse_buffer(length, arrived, seal)
        body_start = self._start + HEADER.size
        if length <= arrived:
            body = self._scratch[body_start : self._start + length]
            check(seal, body)
            self._start += length
            return decode_body(kind, flags, body)
        if length > SCRATCH:

            def finish(body: memoryview | None) -> Message:
                assert body is not None  # noqa: S101 - it was given below
                check(seal, body)
                return decode_body(kind, flags, body)

            self._start = body_start
            return self._begin(memoryview(bytearray(length - HEADER.size)), length - HEADER.size, finish)
        return None

    def _check(self, code: int, flags: int) -> FrameType:
        kind = _TYPES.get(code)
        if kind is None or kind not in self._accepts:
            raise ProtocolError(f"frame type {code if kind is None else kind.name} is not expected here")
        if flags & ~FLAGS.get(kind, 0):
            raise ProtocolError(f"{kind.name} with unknown flags {flags:#06x}")
        return kind

    def _parse_buffer(self, length: int, arrived: int, seal: Seal) -> Message | None:
        if arrived < BUFFER_HEAD:
            return None
        body_start = self._start + HEADER.size
        fixed = self._scratch[body_start : body_start + BUFFER.size]
        check(seal, fixed)
        header = decode_buffer_header(fixed, length - BUFFER_HEAD)
        if header.data_type == DataType.DATA:
            if header.length == 0:
                self._start += BUFFER_HEAD
                return BufferResponse(header, b"")
            memory = self._buffer_for(header.receiver, header)
            if memory is WAIT:
                return None
            self._start += BUFFER_HEAD
            target = None if memory is None else memory[: header.length]
            return self._begin(target, header.length, lambda payload: BufferResponse(header, payload))
        self._start += BUFFER_HEAD
        event = memoryview(bytearray(header.length))
        return self._begin(event, header.length, lambda payload: BufferResponse(header, bytes(payload or b"")))

    def _begin(
        self, target: memoryview | None, length: int, finish: Callable[[memoryview | None], Message]
    ) -> Message | None:
        if target is not None and len(target) < length:
            raise ValueError(f"a memory of {len(target)} bytes for a payload of {length}")
        ready = min(self._end - self._start, length)
        if target is not None:
            target[:ready] = self._scratch[self._start : self._start + ready]
        self._start += ready
        self._target, self._received, self._remaining, self._finish = target, ready, length - ready, finish
        return None if self._remaining else self._finished()

    def _finished(self) -> Message:
        finish, target = self._finish, self._target
        self._finish = self._target = None
        if finish is None:
            raise AssertionError("no payload is being received")
        return finish(target)
