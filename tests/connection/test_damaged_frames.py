# SPDX-License-Identifier: Apache-2.0
"""One bit of a frame turns on its way, any bit of any frame that is no row: nobody takes it for what was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.connection.frames import HEADER, FrameReader, beginning, frame
from penstock.connection.handshake import Handshake, Role, Service
from penstock.errors import ProtocolError
from penstock.external.keys import ApplicationKey
from penstock.external.requests import CHUNK, CHUNK_HEAD, FETCH, FETCH_BODY, FindRange
from penstock.link.frames import call_frame, reply_frame
from penstock.link.wire import to_wire
from penstock.network.decoder import FrameDecoder
from penstock.network.frames import BUFFER_HEAD, CLIENT_TYPES, SERVER_TYPES, encode, payload_checksum
from penstock.network.messages import (
    AddCredit,
    BacklogAnnouncement,
    BufferHeader,
    BufferResponse,
    ErrorCode,
    ErrorResponse,
    PartitionRequest,
    ResumeConsumption,
)
from penstock.remote.wire import ACK, PAIR, BulkFrame, BulkReader, plain_memory
from penstock.services.external.session import ServiceSession
from penstock.shuffle import DatasetId
from penstock.shuffle.ids import PartitionId

PARTITION = PartitionId(DatasetId("job", 3), 2, 1)
QUESTION = call_frame(7, FindRange.METHOD, to_wire(FindRange(PARTITION, 3, 2)))
ANSWER = reply_frame(7, {"state": "there", "number": 12})
ROWS = b"the bytes of rows, which have checksums of their own"
BUFFER = BufferHeader(4, 3, 9, 2, 0, payload_checksum(ROWS), len(ROWS))
LARGE = b"\x07" * (70 << 10)

Read = Callable[[bytes], list[Any]]


def link(stream: bytes) -> list[Any]:
    """The frames of the control plane, and those that a host service is sent."""
    return _taken(FrameReader(), stream, lambda message: (message[0], bytes(message[1])))


def remote(stream: bytes) -> list[Any]:
    """The frames between the remote service and its peers."""
    return _taken(BulkReader(plain_memory), stream, lambda message: (message[0], bytes(message[1])))


def network(stream: bytes) -> list[Any]:
    """The frames between environments."""
    memory = memoryview(bytearray(1 << 10))
    decoder = FrameDecoder(CLIENT_TYPES | SERVER_TYPES, lambda _, header: memory[: header.length])
    return _taken(decoder, stream, lambda message: repr(message.header if _has_rows(message) else message))


def service(stream: bytes) -> list[Any]:
    """The frames that a host service sends."""
    key = ApplicationKey.of("app", b"a secret of some length")
    session = ServiceSession(key, "there")
    other = Handshake(Role.SERVER, Service.EXTERNAL, Secrets(key), "here")
    while not session.is_ready:
        other.feed(session.outgoing())
        _fill(session, other.outgoing(), [])
    found: list[Any] = []
    _fill(session, stream, found)
    return [repr(each._replace(data=None) if hasattr(each, "data") else each) for each in found]


class Secrets:
    """Those of a host service that knows one application."""

    identity = "external"

    def __init__(self, key: ApplicationKey) -> None:
        self._key = key

    def secret_of(self, peer: str) -> bytes | None:
        """The key."""
        return self._key.key if peer == self._key.name else None


FRAMES: dict[str, tuple[Read, bytes, int]] = {
    "a question": (link, QUESTION, len(QUESTION)),
    "an answer": (link, ANSWER, len(ANSWER)),
    "an empty frame": (link, frame(8), HEADER.size),
    "a fetch": (link, frame(FETCH, FETCH_BODY.pack(1, 12, 4096, 70)), HEADER.size + FETCH_BODY.size),
    "blocks that wait": (remote, frame(BulkFrame.WANT, b"\0\1\0\0" * 3), HEADER.size + 12),
    "what became of a block": (remote, frame(BulkFrame.ACK, ACK.pack(8, 2, 5, 0)), HEADER.size + ACK.size),
    "credit for blocks": (remote, frame(BulkFrame.CREDIT, PAIR.pack(3, 4096)), HEADER.size + PAIR.size),
    "a large question": (remote, frame(1, LARGE), HEADER.size),
    "blocks of a stream": (
        remote,
        beginning(BulkFrame.DATA, PAIR.pack(3, 0), len(ROWS)) + ROWS,
        HEADER.size + PAIR.size,
    ),
    "a block": (remote, beginning(BulkFrame.PUSH, b"", len(ROWS)) + ROWS, HEADER.size),
    "a request": (network, encode(PartitionRequest(4, PARTITION, 3, 5, 2)), 1 << 20),
    "credit": (network, encode(AddCredit(4, 1)), 1 << 20),
    "a backlog": (network, encode(BacklogAnnouncement(4, 6)), 1 << 20),
    "a resumption": (network, encode(ResumeConsumption(4)), 1 << 20),
    "an error": (network, encode(ErrorResponse(4, ErrorCode(1), "x" * 5000)), HEADER.size + 64),
    "a buffer": (network, encode(BufferResponse(BUFFER, ROWS)), BUFFER_HEAD),
    "a reply of a host service": (service, ANSWER, len(ANSWER)),
    "bytes of a host service": (service, beginning(CHUNK, CHUNK_HEAD.pack(5), len(ROWS)) + ROWS, HEADER.size + 4),
}
"""By name: the reader, a frame, and the bytes that its head vouches for, or some of them where they are many."""


@pytest.mark.parametrize("name", FRAMES)
def test_a_turned_bit_is_no_other_message(name: str) -> None:
    """Each bit that the head vouches for, alone: a ProtocolError, or nothing, as of a frame that is not whole."""
    read, whole, vouched = FRAMES[name]
    assert len(read(whole)) == 1
    for bit in range(8 * min(vouched, len(whole))):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = read(bytes(damaged))
        except ProtocolError:
            continue
        assert not found, f"bit {bit} of {name}: {found}"


@pytest.mark.parametrize("name", FRAMES)
def test_the_end_of_a_frame_counts(name: str) -> None:
    """The last bit that the head vouches for is one of them: with it turned there is an error, and not a message."""
    read, whole, vouched = FRAMES[name]
    if name in ("a large question", "an error"):
        vouched = len(whole)
    damaged = bytearray(whole)
    damaged[min(vouched, len(whole)) - 1] ^= 1
    with pytest.raises(ProtocolError, match="has come damaged"):
        read(bytes(damaged))


def test_a_body_of_another_frame_is_noticed() -> None:
    """Two frames of one length whose bodies were changed for each other, as by a relay that lost its place."""
    first, second = frame(1, b"one"), frame(2, b"two")
    with pytest.raises(ProtocolError, match="has come damaged"):
        link(first[: HEADER.size] + second[HEADER.size :])


def _taken(decoder: Any, stream: bytes, plain: Callable[[Any], Any]) -> list[Any]:
    found: list[Any] = []
    for part in _parts(stream, decoder.next_target):
        decoder.received(part)
        while (message := decoder.next_message()) is not None:
            found.append(plain(message))
    return found


def _fill(session: ServiceSession, stream: bytes, found: list[Any]) -> None:
    for part in _parts(stream, session.room):
        found += session.received(part)


def _parts(stream: bytes, target: Callable[[], memoryview]) -> Iterator[int]:
    """Put the stream where it should go, part by part; the bytes of each."""
    while stream:
        room = target()
        count = min(len(room), len(stream))
        room[:count] = stream[:count]
        stream = stream[count:]
        yield count


def _has_rows(message: Any) -> bool:
    return isinstance(message, BufferResponse)
