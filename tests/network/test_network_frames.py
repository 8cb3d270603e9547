# SPDX-License-Identifier: Apache-2.0
"""The frame codec: round trips, cuts anywhere, limits, and bytes that nobody sane would send."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from fuzz_frames import fuzz, some_message
from penstock import errors
from penstock.buffer.data_types import DataType
from penstock.connection.frames import HEADER, beginning
from penstock.errors import ProtocolError
from penstock.network import frames
from penstock.network.decoder import SCRATCH, FrameDecoder
from penstock.network.frames import BUFFER_HEAD, CLIENT_TYPES, SERVER_TYPES, encode, encode_header
from penstock.network.messages import (
    AddCredit,
    BufferHeader,
    BufferResponse,
    CancelPartitionRequest,
    ErrorCode,
    ErrorResponse,
    Message,
    PartitionRequest,
    Ping,
    code_to_error,
    error_to_code,
)
from penstock.shuffle import DatasetId
from penstock.shuffle.ids import PartitionId

ALL_TYPES = CLIENT_TYPES | SERVER_TYPES


def decode(
    stream: bytes, cuts: Sequence[int] = (), decoder: FrameDecoder | None = None, segment: memoryview | None = None
) -> list[Message]:
    """All messages of a stream that arrives in pieces of these sizes (then of any size)."""
    target = memoryview(bytearray(1 << 20)) if segment is None else segment
    decoder = decoder or FrameDecoder(ALL_TYPES, lambda _, __: target)
    sizes, messages, rest = iter(cuts), [], stream
    while rest:
        place = decoder.next_target()
        count = min(len(place), len(rest), next(sizes, 1 << 30))
        place[:count] = rest[:count]
        rest = rest[count:]
        decoder.received(count)
        while (message := decoder.next_message()) is not None:
            payload = getattr(message, "payload", None)
            messages.append(
                BufferResponse(message.header, bytes(payload))  # type: ignore[union-attr]
                if isinstance(payload, memoryview)
                else message
            )
    return messages


def data(payload: bytes, sequence: int = 0, kind: int = DataType.DATA, receiver: int = 5) -> BufferResponse:
    """A BUFFER_RESPONSE."""
    return BufferResponse(
        BufferHeader(receiver, 1, sequence, 2, kind, frames.payload_checksum(payload), len(payload)), payload
    )


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 1 << 32), cuts=st.lists(st.integers(1, 60), max_size=80))
def test_every_message_survives_any_cut(seed: int, cuts: list[int]) -> None:
    """A stream of random messages decodes to itself, wherever the bytes were cut."""
    rng = random.Random(seed)
    messages = [some_message(rng) for _ in range(6)]
    assert decode(b"".join(map(encode, messages)), cuts) == messages


def test_byte_by_byte_large_frames() -> None:
    """Frames larger than the scratch buffer, of data, event and text, arrive byte by byte."""
    messages: list[Message] = [
        data(bytes(range(256)) * 40),
        data(b"e" * 9000, 1, DataType.EVENT),
        ErrorResponse(9, ErrorCode.LOST, "x" * 9000),
        Ping(1),
    ]
    assert len(encode(messages[0])) > SCRATCH
    stream = b"".join(map(encode, messages))
    assert decode(stream, [1] * len(stream)) == messages


def test_payload_goes_straight_into_its_segment() -> None:
    """After the header the decoder asks for the segment's own memory, no intermediate buffer."""
    segment = memoryview(bytearray(100_000))
    decoder = FrameDecoder(SERVER_TYPES, lambda _, __: segment)
    stream = encode(data(b"z" * 100_000))
    decoder.next_target()[:BUFFER_HEAD] = stream[:BUFFER_HEAD]
    decoder.received(BUFFER_HEAD)
    assert decoder.next_message() is None
    target = decoder.next_target()
    assert target.obj is segment.obj
    assert len(target) == 100_000
    target[:] = stream[BUFFER_HEAD:]
    decoder.received(100_000)
    message = decoder.next_message()
    assert isinstance(message, BufferResponse)
    assert message.payload == b"z" * 100_000
    assert decoder.is_at_boundary


def test_encode_header_is_the_frame_without_its_payload() -> None:
    """Header and payload sent as two parts are the same bytes as the whole frame."""
    message = data(b"some payload")
    assert encode_header(message.header) + b"some payload" == encode(message)


def test_a_released_channel_s_payload_is_skipped_and_later_frames_are_intact() -> None:
    """`buffer_for` answers None for one receiver: only its payload is lost."""
    segment = memoryview(bytearray(1 << 17))
    decoder = FrameDecoder(SERVER_TYPES, lambda receiver, _: None if receiver == 6 else segment)
    stream = encode(data(b"g" * 100_000, receiver=6)) + encode(data(b"kept"))
    gone, kept = decode(stream, [1000] * 50, decoder)
    assert isinstance(gone, BufferResponse)
    assert gone.payload is None
    assert kept == data(b"kept")


def test_abandon_in_mid_payload_leaves_the_segment_alone() -> None:
    """After `abandon_payload` no further byte is written to the segment, and the next frame decodes."""
    segment = memoryview(bytearray(20_000))
    decoder = FrameDecoder(SERVER_TYPES, lambda _, __: segment)
    stream = encode(data(b"a" * 20_000))
    assert decode(stream[: BUFFER_HEAD + 8000], [BUFFER_HEAD], decoder) == []
    decoder.abandon_payload()
    [message] = decode(stream[BUFFER_HEAD + 8000 :], (), decoder)
    assert isinstance(message, BufferResponse)
    assert message.payload is None
    assert bytes(segment) == b"a" * 8000 + bytes(12_000)


def test_is_at_boundary_tells_a_clean_end_from_a_torn_one() -> None:
    """Only between frames may a stream end."""
    stream = encode(AddCredit(1, 2)) + encode(data(b"12345678"))
    clean = {0, len(encode(AddCredit(1, 2))), len(stream)}
    for end in range(len(stream) + 1):
        decoder = FrameDecoder(ALL_TYPES, lambda _, __: memoryview(bytearray(8)))
        decode(stream[:end], (), decoder)
        assert decoder.is_at_boundary is (end in clean), end


def raw(kind: int, body: bytes, *, flags: int = 0, extra: int = 0) -> bytes:
    """A frame with any header, whose checksum is right."""
    return beginning(kind, body, extra, flags)


def short(length: int) -> bytes:
    """A frame that says it has so many bytes, fewer than a head."""
    return beginning(8, following=length - HEADER.size)


_RECEIVER_COUNT = struct.Struct("<QI")
MALFORMED = {
    "type 0": raw(0, bytes(8)),
    "type 99": raw(99, bytes(8)),
    "unknown flag": raw(7, bytes(8), flags=1),
    "unknown buffer flag": raw(2, bytes(32), flags=2),
    "length below the header": short(3),
    "length 0": short(0),
    "length too large": beginning(2, bytes(40), 0xFFFFFFFF - HEADER.size - 40),
    "control too large": raw(4, bytes(12), extra=1),
    "control too small": raw(4, bytes(11)),
    "credit of zero": raw(4, _RECEIVER_COUNT.pack(1, 0)),
    "credit of millions": raw(4, _RECEIVER_COUNT.pack(1, 0xFFFFFFFF)),
    "backlog of zero": raw(3, _RECEIVER_COUNT.pack(1, 0)),
    "buffer size of zero": raw(10, _RECEIVER_COUNT.pack(1, 0)),
    "first after last": raw(1, struct.pack("<QIqIII", 1, 0, 1, 5, 4, 2) + b"d"),
    "no dataset": raw(1, struct.pack("<QIqIII", 1, 0, 1, 4, 4, 2)),
    "dataset not text": raw(1, struct.pack("<QIqIII", 1, 0, 1, 4, 4, 2) + b"\xff\xfe"),
    "dataset of no edge": raw(1, struct.pack("<QIqIII", 1, 0, 1, 4, 4, 2) + b"job-0"),
    "dataset too long": raw(1, struct.pack("<QIqIII", 1, 0, 1, 4, 4, 2) + b"d" * 1025),
    "initial credit of millions": raw(1, struct.pack("<QIqIII", 1, 0, 1, 4, 4, 1 << 31) + b"d"),
    "error code": raw(9, struct.pack("<QH", 1, 77), flags=1),
    "error text not text": raw(9, struct.pack("<QH", 1, 1) + b"\x80", flags=1),
    "event too large": raw(2, struct.pack("<QIIIBxxxQ", 1, 0, 0, 0, 1, 0), extra=(64 << 10) + 1),
    "payload too large": raw(2, struct.pack("<QIIIBxxxQ", 1, 0, 0, 0, 0, 0), extra=(64 << 20) + 1),
}


@pytest.mark.parametrize("stream", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_frames_are_protocol_errors_and_stay_so(stream: bytes) -> None:
    """A frame that does not fit raises ProtocolError, again at each later call: the decoder is broken."""
    decoder = FrameDecoder(ALL_TYPES)
    with pytest.raises(ProtocolError) as raised:
        decode(stream, (), decoder)
    with pytest.raises(ProtocolError) as again:
        decoder.next_target()
    assert again.value is raised.value
    assert not decoder.is_at_boundary


def test_each_side_refuses_what_only_it_may_send() -> None:
    """A server does not take BUFFER_RESPONSE, a client does not take PARTITION_REQUEST."""
    with pytest.raises(ProtocolError, match="BUFFER_RESPONSE is not expected"):
        decode(encode(data(b"x")), (), FrameDecoder(CLIENT_TYPES))
    request = PartitionRequest(1, PartitionId(DatasetId("d", 0), 0, 0), 0, 0, 2)
    with pytest.raises(ProtocolError, match="PARTITION_REQUEST is not expected"):
        decode(encode(request), (), FrameDecoder(SERVER_TYPES))


def test_nothing_is_allocated_for_a_frame_that_is_refused() -> None:
    """A header that announces 64 MiB of data for a channel that is gone costs no memory of that size."""
    decoder = FrameDecoder(SERVER_TYPES)
    header = BufferHeader(1, 0, 0, 0, DataType.DATA, 0, 64 << 20)
    decode(encode_header(header), (), decoder)
    assert len(decoder.next_target()) <= 64 << 10


def test_local_misuse_is_not_blamed_on_the_peer() -> None:
    """Encoding what does not fit raises ValueError or struct.error, not ProtocolError."""
    with pytest.raises(ValueError, match="at most"):
        encode_header(BufferHeader(1, 0, 0, 0, DataType.EVENT, 0, 1 << 20))
    with pytest.raises(struct.error):
        encode(CancelPartitionRequest(-1))


def test_error_codes_map_each_typed_error_to_itself() -> None:
    """The reader gets the type of error that the server raised; unknown ones become PartitionError."""
    for kind in (
        errors.PartitionNotProducedError,
        errors.PartitionReleasedError,
        errors.PartitionExpiredError,
        errors.PartitionLostError,
        errors.ProducerFailedError,
        errors.StaleError,
        errors.ProtocolError,
    ):
        [answer] = decode(encode(ErrorResponse(3, error_to_code(kind("why")), "why")))
        assert isinstance(answer, ErrorResponse)
        error = code_to_error(answer.code, answer.text)
        assert type(error) is kind
        assert str(error) == "why"
    assert error_to_code(FileNotFoundError()) is ErrorCode.LOST
    assert type(code_to_error(error_to_code(TypeError()), "")) is errors.PartitionError


def test_long_error_texts_are_cut_in_the_middle() -> None:
    """A huge traceback keeps its head and its tail and stays within the limit."""
    text = "Traceback: ä" + "é" * 20_000 + "ValueError: the end"
    [answer] = decode(encode(ErrorResponse(None, ErrorCode.PRODUCER_FAILED, text)))
    assert isinstance(answer, ErrorResponse)
    assert answer.text.startswith("Traceback: ä")
    assert answer.text.endswith("ValueError: the end")
    assert len(answer.text.encode()) <= frames.MAX_TEXT


def test_random_and_mutated_bytes_raise_nothing_but_protocol_errors() -> None:
    """Twenty thousand damaged streams; the script runs the same by the million."""
    outcomes = fuzz(seed=20_000, count=20_000)
    assert outcomes["refused"] > 2_000
    assert outcomes["clean"] > 1_000
    assert outcomes["cut"] > 100
