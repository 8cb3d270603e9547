# SPDX-License-Identifier: Apache-2.0
"""A connection to a host service without its socket: the handshake, then questions, answers and bytes. Pure.

Rules: questions that are asked before the handshake has ended wait for it. A service that does not know the key
closes without a word, as it does for one that lies; the caller tries again, and takes it for lost in the end.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.connection.frames import HEADER, check, frame, read_beginning
from penstock.connection.handshake import Credentials, Handshake, Role, Service
from penstock.errors import ProtocolError
from penstock.external.keys import ApplicationKey
from penstock.external.requests import CHUNK, CHUNK_BYTES, CHUNK_HEAD, FETCH, FETCH_BODY
from penstock.link.frames import LinkFrameType, call_frame, read_reply
from penstock.link.wire import Plain, to_wire
from penstock.services.fetching.bodies import BodyHead, BodyReader
from penstock.shuffle.requests import Request

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_HEAD = HEADER.size + CHUNK_HEAD.size


class ServiceReply(NamedTuple):
    """The answer to a question, or the error in its place."""

    call: int
    plain: Plain


class ServiceChunk(NamedTuple):
    """Bytes that were asked for."""

    call: int
    data: pa.Buffer


class ServiceHeads:
    """The frames that a host service sends."""

    def head(self, view: memoryview) -> BodyHead | None:
        """Read the head of a frame, if it is whole."""
        if len(view) < HEADER.size:
            return None
        length, kind, _, seal = read_beginning(view)
        size = _CHUNK_HEAD if kind == CHUNK else HEADER.size
        is_too_long = kind == CHUNK and length > size + CHUNK_BYTES
        if kind not in (CHUNK, LinkFrameType.REPLY) or length < size or is_too_long:
            raise ProtocolError(f"a frame of type {kind} and {length} bytes came, which nobody has asked for")
        if len(view) < size:
            return None
        if kind == CHUNK:
            check(seal, view[HEADER.size : size])
        return BodyHead(bytes(view[:size]), length - size, kind == CHUNK)

    def message(self, head: bytes, body: pa.Buffer | bytearray) -> ServiceReply | ServiceChunk:
        """The message of a whole frame."""
        if len(head) == _CHUNK_HEAD:
            (call,) = CHUNK_HEAD.unpack_from(head, HEADER.size)
            return ServiceChunk(call, body)
        check(read_beginning(head)[-1], memoryview(body))
        try:
            return ServiceReply(*read_reply(memoryview(body)))
        except struct.error as error:
            raise ProtocolError(f"an answer of {len(body)} bytes can't be read") from error


class ServiceSession:
    """One connection to the port of a host service."""

    def __init__(self, key: ApplicationKey, peer: str) -> None:
        self._handshake = Handshake(Role.CLIENT, Service.EXTERNAL, Credentials(key.name, key.key), peer)
        self._reader = BodyReader(ServiceHeads())
        self._greeting = memoryview(b"")
        self._numbers = 0
        self._waiting: list[bytes] = []

    def bind(self, stream: bytes) -> None:
        """Prove the key for this stream alone."""
        self._handshake.bind(stream)

    @property
    def is_ready(self) -> bool:
        """True if both sides have proved themselves."""
        return self._handshake.is_done

    def ask(self, request: Request[Any]) -> int:
        """Ask something; the number of the call."""
        self._numbers += 1
        self._waiting.append(call_frame(self._numbers, request.METHOD, to_wire(request)))
        return self._numbers

    def fetch(self, partition: int, offset: int, length: int) -> int:
        """Ask for bytes of a partition's data file; the number of the call."""
        self._numbers += 1
        self._waiting.append(frame(FETCH, FETCH_BODY.pack(self._numbers, partition, offset, length)))
        return self._numbers

    def outgoing(self) -> bytes:
        """The bytes to be sent now; they are given once."""
        greeting = self._handshake.outgoing()
        if greeting or not self.is_ready:
            return greeting
        found, self._waiting = self._waiting, []
        return b"".join(found)

    def closed(self) -> str:
        """The meaning of an end of the connection."""
        if self.is_ready:
            return "the host service closed the connection"
        return (
            "the host service closed the connection before it was proved who is there: it does not know this"
            " application (nothing of it was written there, its lease has ended, or the folder was emptied)"
        )

    def room(self) -> memoryview:
        """The memory that the next bytes go to."""
        if self.is_ready:
            return self._reader.room()
        self._greeting = memoryview(bytearray(self._handshake.missing))
        return self._greeting

    def received(self, count: int) -> list[ServiceReply | ServiceChunk]:
        """So many bytes have come to `room()`; the messages they complete. AuthenticationError, ProtocolError."""
        if not self.is_ready:
            self._handshake.feed(bytes(self._greeting[:count]))
            return []
        return self._reader.received(count)
