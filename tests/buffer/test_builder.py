# SPDX-License-Identifier: Apache-2.0
"""The buffer builder, on plain memory."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.buffer import BufferBuilder, BufferSlice, SegmentReferences


def builder(size: int = 32) -> tuple[BufferBuilder, bytearray]:
    """A builder over fresh memory, and that memory."""
    memory = bytearray(size)
    return BufferBuilder(7, memoryview(memory)), memory


def test_append_takes_what_fits() -> None:
    """Within the size everything is taken, beyond it only what fits, then nothing."""
    target, memory = builder(8)
    assert target.append(memoryview(b"abcde")) == 5
    assert not target.is_full
    assert target.append(memoryview(b"fghij")) == 3
    assert target.is_full
    assert target.append(memoryview(b"x")) == 0
    assert target.append(memoryview(b"")) == 0
    assert bytes(memory) == b"abcdefgh"


def test_arrow_buffers_are_taken_as_bytes() -> None:
    """A pyarrow buffer's memoryview has another format; it is written like any other."""
    target, memory = builder(8)
    assert target.append(memoryview(pa.py_buffer(b"\xff\x00\x80"))) == 3
    assert bytes(memory[:3]) == b"\xff\x00\x80"


def test_commit_ships_a_prefix_and_writing_goes_on() -> None:
    """Each commit ships what came since the last one; there is nothing to ship twice."""
    target, _ = builder()
    assert target.commit() is None
    target.append(memoryview(b"12345678"))
    assert target.commit() == BufferSlice(7, 0, 8)
    assert target.commit() is None
    target.append(memoryview(b"abc"))
    assert target.commit() == BufferSlice(7, 8, 3)
    target.append(memoryview(b"d"))
    assert target.commit() == BufferSlice(7, 16, 1), "the next piece starts at a multiple of 8"


def test_alignment_never_leaves_the_segment() -> None:
    """A segment whose size is no multiple of 8 is simply full when alignment would go beyond it."""
    target, _ = builder(13)
    target.append(memoryview(b"123456789"))
    assert target.commit() == BufferSlice(7, 0, 9)
    assert target.is_full
    assert target.finish() == BufferSlice(7, 13, 0, finished=True)


def test_finish_ships_the_rest_once() -> None:
    """The last piece is marked, may be empty, and comes once; afterwards nothing can be written."""
    target, _ = builder()
    target.append(memoryview(b"abc"))
    assert target.finish() == BufferSlice(7, 0, 3, finished=True)
    assert target.is_finished
    assert target.finish() is None
    assert target.commit() is None
    assert target.remaining == 0
    with pytest.raises(ValueError, match="finished"):
        target.append(memoryview(b"d"))
    empty, _ = builder()
    assert empty.finish() == BufferSlice(7, 0, 0, finished=True)


@given(
    size=st.integers(1, 100),
    steps=st.lists(st.one_of(st.binary(max_size=40), st.just("commit")), max_size=20),
)
def test_pieces_hold_what_was_taken_in_order(size: int, steps: list[bytes | str]) -> None:
    """After any appends and commits the pieces joined are the bytes taken, and the books accept them."""
    target, memory = builder(size)
    references = SegmentReferences(8, size)
    task = references.attach("t")
    task.grant(7, type("Home", (), {"recycle": lambda self, segment: None})())
    taken, pieces = b"", []
    for step in steps:
        if isinstance(step, bytes):
            count = target.append(memoryview(step))
            taken += step[:count]
            assert count == len(step) or target.is_full
        elif (piece := target.commit()) is not None:
            pieces.append(piece)
    last = target.finish()
    assert last is not None
    pieces.append(last)
    assert b"".join(memory[piece.offset : piece.offset + piece.length] for piece in pieces) == taken
    assert all(piece.offset % 8 == 0 for piece in pieces if piece.length)
    for piece in pieces:
        task.commit(piece, 1)
