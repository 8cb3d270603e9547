# SPDX-License-Identifier: Apache-2.0
"""Framing: however the stream is cut, the same batches come out; damage and loss are told apart."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.errors import IncompleteDataError, ProtocolError, SchemaError
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import MessageAssembler, frame_message, frames
from penstock.record.partitioners import PartitionerSpec
from record_samples import MAKERS, batch_of, cuts


def _stream(
    codec: BatchCodec, batches: list[pa.RecordBatch], verify: bool = True
) -> tuple[bytes, CompletenessCounter]:
    counter = CompletenessCounter()
    data = bytearray()
    for batch in batches:
        message = frame_message(codec.encode(batch), verify)
        counter.add(batch.num_rows, message.length, message.checksum)
        data += b"".join(message.parts)
    return bytes(data), counter


def _assembler(codec: BatchCodec, **options) -> tuple[MessageAssembler, CompletenessCounter]:
    counter = CompletenessCounter()
    return MessageAssembler(codec, counter, **options), counter


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(st.sampled_from(sorted(MAKERS)), max_size=3),
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.sampled_from([1, 9, 100, 1000, 1 << 20]),
    st.integers(0, 9999),
    st.booleans(),
)
def test_any_cut_gives_the_same_batches(names, sizes, largest, seed, verify) -> None:
    """Any types, any number of messages, pieces of any size, in memory that is overwritten at once."""
    batches = [batch_of(names, rows, seed) for rows in sizes]
    codec = BatchCodec(batches[0].schema)
    stream, written = _stream(codec, batches, verify)
    assembler, counted = _assembler(codec, verify=verify)
    segment = bytearray(1 << 20)
    found, fed = [], 0
    for piece in cuts(random.Random(seed), stream, largest):
        segment[: len(piece)] = piece
        found += assembler.feed(memoryview(segment)[: len(piece)])
        segment[: len(piece)] = b"\xa5" * len(piece)
        fed += len(piece)
        assert 0 <= assembler.pending <= fed
    assembler.finish()
    assert [batch.to_pylist() for batch in found] == [batch.to_pylist() for batch in batches]
    counted.verify(written.end_of_partition(), "here")


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(st.sampled_from(sorted(MAKERS)), max_size=3),
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.sampled_from([1, 9, 100, 1000, 1 << 20]),
    st.integers(0, 9999),
)
def test_pieces_that_are_kept_among_those_that_are_not(names, sizes, largest, seed) -> None:
    """Whichever pieces of the stream stay in memory and which are overwritten, aligned or not: the same batches."""
    rng = random.Random(seed)
    batches = [batch_of(names, rows, seed) for rows in sizes]
    codec = BatchCodec(batches[0].schema)
    stream, written = _stream(codec, batches)
    assembler, counted = _assembler(codec)
    found = []
    for piece in cuts(rng, stream, largest):
        at = rng.choice([0, 0, 8, 3])
        memory = bytearray(at) + piece
        is_kept = rng.random() < 0.5
        found += assembler.feed(memoryview(memory)[at:], is_kept=is_kept)
        if not is_kept:
            memory[:] = b"\xa5" * len(memory)
    assembler.finish()
    assert [batch.to_pylist() for batch in found] == [batch.to_pylist() for batch in batches]
    counted.verify(written.end_of_partition(), "here")


def test_what_is_kept_is_not_copied() -> None:
    """A batch lies over the memory it was in when that is kept; one that is only partly there is copied."""
    batches = [pa.record_batch({"n": pa.array(range(1000), pa.int64())}) for _ in range(3)]
    codec = BatchCodec(batches[0].schema)
    stream, _ = _stream(codec, batches)
    memory = pa.py_buffer(stream[: len(stream) - 8])
    assembler, _ = _assembler(codec)
    found = assembler.feed(memoryview(memory), is_kept=True)
    assert len(found) == 2
    for batch in found:
        address = batch.column(0).buffers()[1].address
        assert memory.address <= address < memory.address + memory.size
    (last,) = assembler.feed(memoryview(stream[-8:]), is_kept=True)
    assert last.equals(batches[2])


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from(["hash", "rebalance", "random"]),
    st.lists(st.sampled_from(sorted(MAKERS)), max_size=2),
    st.lists(st.integers(0, 80), min_size=1, max_size=4),
    st.integers(2, 9),
    st.integers(0, 999),
)
def test_split_encode_cut_assemble(kind, names, sizes, n, seed) -> None:
    """The whole way: every row arrives once, on one channel, in its order, unaltered, and the counts agree."""
    rng = random.Random(seed)
    batches = [batch_of(names, rows, seed + i) for i, rows in enumerate(sizes)]
    codec = BatchCodec(batches[0].schema)
    partitioner = PartitionerSpec(kind, ("row",) if kind == "hash" else ()).build(n, seed)
    sent: list[list[pa.RecordBatch]] = [[] for _ in range(n)]
    for batch in batches:
        for channel, rows in partitioner.split(batch):
            sent[channel].append(rows)
    arrived = []
    for parts in sent:
        stream, written = _stream(codec, parts)
        assembler, counted = _assembler(codec)
        found = [b for piece in cuts(rng, stream, rng.choice((50, 5000))) for b in assembler.feed(piece)]
        assembler.finish()
        counted.verify(written.end_of_partition(), "here")
        assert [b.to_pylist() for b in found] == [b.to_pylist() for b in parts]
        arrived += [repr(row) for b in found for row in b.to_pylist()]
    assert sorted(arrived) == sorted(repr(row) for batch in batches for row in batch.to_pylist())


def test_layout_on_the_stream() -> None:
    """Length and checksum in 16 bytes, then the payload, then zeros: each message begins at a multiple of 8."""
    payload = pa.py_buffer(b"x" * 13)
    header, view, padding = frames(payload)
    message = frame_message(payload)
    assert struct.unpack("<QQ", header) == (13, message.checksum)
    assert (bytes(view), padding, message.length) == (b"x" * 13, bytes(3), 13)
    assert sum(len(part) for part in message.parts) == 32
    assert frames(pa.py_buffer(b"x" * 16))[2] == b""
    assert frame_message(payload, verify=False).checksum == 0


@pytest.mark.thorough
def test_a_row_of_300_megabytes() -> None:
    """One row far above any buffer: assembled from pieces into one allocation."""
    size = 300 << 20
    offsets = pa.py_buffer(np.array([0, size], np.int64))
    blob = np.zeros(size, np.uint8)
    blob[::4096] = 7
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(blob)])
    batch = pa.RecordBatch.from_arrays([column], ["c"])
    codec = BatchCodec(batch.schema)
    message = frame_message(codec.encode(batch))
    assembler, counter = _assembler(codec)
    before = pa.total_allocated_bytes()
    found = []
    for part in message.parts:
        view = memoryview(part)
        for start in range(0, len(view), 256 << 10):
            found += assembler.feed(view[start : start + (256 << 10)])
    assembler.finish()
    assert pa.total_allocated_bytes() - before < size + (1 << 20)
    assert (counter.rows, len(found)) == (1, 1)
    assert np.array_equal(np.frombuffer(found[0].column(0).buffers()[2], np.uint8), blob)


def test_small_neighbours_share_one_allocation() -> None:
    """Many small messages in one piece are copied once, together; large ones have memory of their own."""
    batch = batch_of(["int64"], 10)
    codec = BatchCodec(batch.schema)
    assembler, _ = _assembler(codec)
    stream, _ = _stream(codec, [batch] * 50)
    found = assembler.feed(memoryview(stream))
    addresses = [b.column(1).buffers()[1].address for b in found]
    assert max(addresses) - min(addresses) < len(stream)
    assert all(address % 8 == 0 for address in addresses)


def test_the_end_amid_a_message() -> None:
    """Nothing pending is fine; a part of a header or of a payload is lost data, with figures."""
    batch = batch_of(["string"], 10)
    codec = BatchCodec(batch.schema)
    stream, _ = _stream(codec, [batch])
    _assembler(codec)[0].finish()
    for cut, message in (
        (5, "5 bytes into a message of at least 16"),
        (100, f"100 bytes into a message of {len(stream)}"),
    ):
        assembler, _ = _assembler(codec)
        assembler.feed(memoryview(stream)[:cut])
        assert assembler.pending == cut
        with pytest.raises(IncompleteDataError, match=message):
            assembler.finish()


@pytest.mark.parametrize("rows", [3, 20_000])
@pytest.mark.parametrize("cut", [1000, 1 << 30])
def test_damage_is_found_before_decoding(rows: int, cut: int) -> None:
    """One flipped bit in the payload, small or large, whole or in pieces: ProtocolError, nothing counted."""
    batch = batch_of(["int64"], rows)
    codec = BatchCodec(batch.schema)
    stream, _ = _stream(codec, [batch])
    damaged = bytearray(stream)
    damaged[len(damaged) - 20] ^= 4
    assembler, counter = _assembler(codec)
    pieces = [memoryview(damaged)[start : start + cut] for start in range(0, len(damaged), cut)]
    with pytest.raises(ProtocolError, match="checksum"):
        [assembler.feed(piece) for piece in pieces]
    assert counter.rows == 0


@pytest.mark.parametrize("length", [0, 1001, 1 << 63])
def test_impossible_lengths_are_refused(length: int) -> None:
    """Above the limit, or nothing at all: refused before memory is taken."""
    codec = BatchCodec(batch_of([], 1).schema)
    for extra in (b"", bytes(1200)):
        assembler, _ = _assembler(codec, limit=1000)
        with pytest.raises(ProtocolError, match=f"{length} bytes was announced"):
            assembler.feed(memoryview(struct.pack("<QQ", length, 0) + extra))


def test_without_verification() -> None:
    """No checksum is computed or compared; rows and bytes are counted all the same."""
    batch = batch_of(["string"], 10)
    codec = BatchCodec(batch.schema)
    stream, written = _stream(codec, [batch, batch], verify=False)
    assembler, counted = _assembler(codec, verify=False)
    assert len(assembler.feed(memoryview(stream))) == 2
    assert (written.checksum, counted.rows) == (0, 20)
    counted.verify(written.end_of_partition(), "here")


def test_views_of_other_formats_and_wrong_batches() -> None:
    """A view over an Arrow buffer (format b) is taken; a batch of another schema is not written."""
    batch = batch_of([], 4)
    codec = BatchCodec(batch.schema)
    stream, _ = _stream(codec, [batch])
    assert len(_assembler(codec)[0].feed(memoryview(pa.py_buffer(stream)))) == 1
    with pytest.raises(SchemaError):
        codec.encode(batch_of(["bool"], 1))
