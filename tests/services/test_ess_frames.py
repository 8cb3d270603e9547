# SPDX-License-Identifier: Apache-2.0
"""Frames of Spark's transport come out as they went in, however the bytes are cut and merged on their way."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.services.spark_ess import frames, messages
from penstock.services.spark_ess.frames import Answer, ChunkFailure, Failure, FetchedChunk, Message, message_reader
from penstock.services.spark_ess.messages import Block

NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
SMALL = st.integers(0, (1 << 31) - 1)
SIZES = st.one_of(st.integers(0, 40), st.sampled_from([65_514, 65_515, 65_536, 200_000]))
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=20)


def payload(size: int) -> bytes:
    """Bytes of which no two neighbouring runs are equal."""
    return bytes(n * 7 % 251 for n in range(size))


def frame(message: tuple[str, int, int, object]) -> bytes:
    """A frame as the service sends it."""
    kind, first, second, what = message
    if kind == "chunk":
        data = payload(int(str(what)))
        return struct.pack(">qbqi", 21 + len(data), frames.CHUNK, first, second) + data
    if kind == "answer":
        data = payload(int(str(what)))
        return struct.pack(">qbqi", 21 + len(data), frames.ANSWER, first, len(data)) + data
    text = f"{what}\n\tat java.lang.Thread.run".encode()
    if kind == "failure":
        return struct.pack(">qbqi", 21 + len(text), frames.FAILURE, first, len(text)) + text
    return struct.pack(">qbqii", 25 + len(text), frames.CHUNK_FAILURE, first, second, len(text)) + text


def plain(message: Message) -> tuple[str, int, int, object]:
    """The parts of a message, to compare."""
    match message:
        case FetchedChunk(stream, number, data):
            assert data.to_pybytes() == payload(data.size)
            return "chunk", stream, number, data.size
        case Answer(request, body):
            assert body == payload(len(body))
            return "answer", request, 0, len(body)
        case Failure(request, text):
            return "failure", request, 0, text
        case ChunkFailure(stream, number, text):
            return "chunk_failure", stream, number, text


MESSAGES = st.one_of(
    st.tuples(st.just("chunk"), NUMBERS, SMALL, SIZES),
    st.tuples(st.just("answer"), NUMBERS, st.just(0), SIZES),
    st.tuples(st.just("failure"), NUMBERS, st.just(0), TEXTS),
    st.tuples(st.just("chunk_failure"), NUMBERS, SMALL, TEXTS),
)


def read(data: bytes, cuts: Iterable[int]) -> list[Message]:
    """Read in pieces of these sizes, as far as there is room for them; what is left in as large ones as fit."""
    reader, position, found, pieces = message_reader(1 << 20), 0, [], iter(cuts)
    while position < len(data):
        room = reader.room()
        assert len(room)
        count = min(len(room), len(data) - position, next(pieces, len(data)))
        room[:count] = data[position : position + count]
        found += reader.received(count)
        position += count
    return found


@given(st.lists(MESSAGES, max_size=8), st.lists(st.one_of(st.integers(1, 30), st.integers(1, 100_000)), max_size=60))
def test_frames_survive_every_cut(sent: list[tuple[str, int, int, object]], cuts: list[int]) -> None:
    """All messages come, in order, of frames cut anywhere or merged into one piece."""
    assert [plain(message) for message in read(b"".join(map(frame, sent)), cuts)] == sent


@pytest.mark.parametrize(
    "head",
    [
        struct.pack(">qbqi", 21 + (1 << 20) + 1, frames.CHUNK, 1, 0),
        struct.pack(">qbqi", 1 << 40, frames.ANSWER, 1, 0),
        struct.pack(">qbqi", 8, frames.ANSWER, 1, 0),
        struct.pack(">qbqi", -1, frames.CHUNK, 1, 0),
        struct.pack(">qbqi", 30, 9, 1, 0),
        b"GET / HTTP/1.1\r\n\r\n0000000",
    ],
)
def test_what_nobody_asked_for_is_refused(head: bytes) -> None:
    """A frame that is too large, too small or of no known type takes no memory."""
    with pytest.raises(ProtocolError):
        read(head, [])


@pytest.mark.parametrize("kind", [frames.ANSWER, frames.FAILURE, frames.CHUNK_FAILURE])
def test_a_frame_that_is_cut_is_refused(kind: int) -> None:
    """Its fields are not all there."""
    with pytest.raises(ProtocolError, match="too few"):
        read(struct.pack(">qbi", 13, kind, 1), [])


def test_requests_are_as_spark_writes_them() -> None:
    """Byte by byte, of the smallest ones."""
    assert frames.request_frame(7, b"ab").hex() == "0000000000000017030000000000000007000000026162"
    assert frames.chunk_request_frame(5, 3).hex() == "000000000000001500000000000000000500000003"
    fetch = messages.fetch_blocks("a", "e", 9, [Block(1, 2, 4), Block(1, 6, 7)])
    assert fetch.hex() == (
        "09"
        "0000000161"
        "0000000165"
        "00000009"
        "00000002"
        "0000000000000001"
        "0000000000000001"
        "00000002"
        "00000002"
        "00000002"
        "00000004"
        "00000002"
        "00000006"
        "00000007"
        "01"
    )


@pytest.mark.parametrize("body", [b"", b"\x03", b"\x04" + bytes(12), b"\x03" + bytes(20)])
def test_answers_of_another_kind_are_refused(body: bytes) -> None:
    """An answer is of the asked kind and whole, or a ProtocolError."""
    for reader in (messages.read_stream, messages.read_folders):
        with pytest.raises(ProtocolError):
            reader(body)


@given(st.binary(max_size=80))
def test_no_answer_about_folders_makes_another_error(body: bytes) -> None:
    """Damaged counts and lengths are found."""
    try:
        found = messages.read_folders(b"\x0b" + body)
    except ProtocolError:
        return
    assert all(isinstance(each, tuple) for each in found.values())
