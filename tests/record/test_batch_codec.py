# SPDX-License-Identifier: Apache-2.0
"""The codec: every type comes back, slices send their own rows only, damaged bytes are refused by type."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from fuzz_codec import fuzz
from penstock.errors import ProtocolError, SchemaError
from penstock.record.codec import BatchCodec
from record_samples import MAKERS, batch_of, sample


def _roundtrip(batch: pa.RecordBatch) -> pa.RecordBatch:
    codec = BatchCodec(batch.schema, "full")
    return codec.decode(pa.py_buffer(codec.encode(batch).to_pybytes()))


@pytest.mark.parametrize("name", sorted(MAKERS))
@pytest.mark.parametrize(("start", "rows"), [(0, 60), (13, 30), (59, 1), (5, 0)])
def test_every_type_comes_back(name: str, start: int, rows: int) -> None:
    """Whole batches, slices that begin amid a byte of the bitmaps, single rows and none."""
    batch = batch_of([name], 60).slice(start, rows)
    back = _roundtrip(batch)
    assert back.schema.equals(batch.schema)
    assert back.num_rows == rows
    assert back.to_pylist() == batch.to_pylist()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(sorted(MAKERS)), max_size=6), st.integers(0, 50), st.integers(0, 999))
def test_any_mix_of_types_comes_back(names: list[str], rows: int, seed: int) -> None:
    """Several columns of any types in one batch."""
    batch = batch_of(names, rows, seed)
    assert _roundtrip(batch).to_pylist() == batch.to_pylist()


def test_zero_columns_keep_their_rows() -> None:
    """A batch without columns is still a number of rows."""
    back = _roundtrip(batch_of([], 123).select([]))
    assert (back.num_rows, back.num_columns) == (123, 0)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_slices_do_not_send_the_parent(name: str) -> None:
    """Ten rows out of twenty thousand are a small message, whatever the type."""
    small = sample(name, 50)
    large = pa.concat_arrays([small] * 400)
    batch = pa.RecordBatch.from_arrays([large.slice(10_011, 10)], ["c"])
    assert BatchCodec(batch.schema).encode(batch).size < 4_000


def test_slices_do_not_send_the_whole_dictionary() -> None:
    """Only the entries the slice uses, nulls kept, index type kept."""
    words = pa.array([f"word {i:06d}" for i in range(30_000)] + [None]).dictionary_encode()
    indices = pa.array([29_999, None, 5, 5, 29_998], pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, words.dictionary)
    batch = pa.RecordBatch.from_arrays([column], ["c"])
    codec = BatchCodec(batch.schema)
    message = codec.encode(batch)
    assert message.size < 2_000
    assert codec.decode(message).to_pylist() == batch.to_pylist()


def test_ordered_dictionaries_are_left_alone() -> None:
    """Their entries' positions mean something."""
    column = pa.DictionaryArray.from_arrays(
        pa.array([2, 0], pa.int8()), pa.array(["low", "mid", "high"]), ordered=True
    )
    back = _roundtrip(pa.RecordBatch.from_arrays([column], ["c"]))
    assert back.column(0).dictionary.to_pylist() == ["low", "mid", "high"]


def test_decoding_copies_nothing() -> None:
    """The batch's buffers lie inside the message's buffer."""
    batch = batch_of(["int64", "string"], 1000)
    codec = BatchCodec(batch.schema)
    message = codec.encode(batch)
    back = codec.decode(message)
    for column in back.columns:
        for buffer in filter(None, column.buffers()):
            assert message.address <= buffer.address <= message.address + message.size


def test_another_schema_is_refused_by_column() -> None:
    """The error names the column, both types and what to do."""
    codec = BatchCodec(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    wrong = pa.RecordBatch.from_arrays([sample("int64", 2), sample("binary", 2)], ["a", "b"])
    with pytest.raises(SchemaError, match="'b' is binary, declared is 'b' string; cast it"):
        codec.encode(wrong)
    with pytest.raises(SchemaError, match=r"columns \['a'\], declared are \['a', 'b'\]"):
        codec.encode(wrong.select(["a"]))


@pytest.mark.parametrize("names", [["int64", "string"], ["dictionary"]])
def test_what_is_no_message_is_refused(names: list[str]) -> None:
    """Empty, random and cut bytes, and messages of another schema: always ProtocolError."""
    batch = batch_of(names, 30)
    codec = BatchCodec(batch.schema)
    whole = codec.encode(batch).to_pybytes()
    other = batch_of(["list", "bool", "struct_of_dictionary"], 30)
    foreign = BatchCodec(other.schema).encode(other).to_pybytes()
    bare = BatchCodec(batch_of(["bool"], 3).schema).encode(batch_of(["bool"], 3)).to_pybytes()
    for wrong in (b"", b"x", bytes(1000), whole[:100], whole[: len(whole) // 2], foreign, bare, whole[8:]):
        with pytest.raises(ProtocolError):
            codec.decode(pa.py_buffer(wrong))


def test_full_validation_finds_what_the_cheap_one_does_not() -> None:
    """An offset damaged amid a string column passes the cheap check: why checksums come first."""
    batch = pa.RecordBatch.from_arrays([pa.array(["abcdefgh"] * 64)], ["c"])
    codec = BatchCodec(batch.schema)
    raw = bytearray(codec.encode(batch).to_pybytes())
    where = bytes(raw).index(np.arange(24, 56, 8, dtype=np.int32).tobytes())
    raw[where : where + 4] = np.int32(0x7000_0000).tobytes()
    assert codec.decode(pa.py_buffer(bytes(raw))).num_rows == 64
    with pytest.raises(ProtocolError):
        BatchCodec(batch.schema, "full").decode(pa.py_buffer(bytes(raw)))


def test_fuzzing_gives_typed_errors_only() -> None:
    """Mutated messages and streams: a batch that is safe to read, or one of our errors. See fuzz_codec.py."""
    counts = fuzz(random.Random(20_260_714), 20_000)
    assert counts["cases"] == 20_000
    assert counts["refused"] > 3_000
    assert counts["accepted"] > 3_000
