# SPDX-License-Identifier: Apache-2.0
"""Record batches as bytes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.buffer.arrow import COMPRESSIONS, PayloadFormat, batch_payload, has_dictionaries, read_payload

WORDS = pa.dictionary(pa.int8(), pa.string())


class Tagged(pa.ExtensionType):
    """An extension type over dictionaries in lists."""

    def __init__(self) -> None:
        super().__init__(pa.list_(WORDS), "penstock.tests.tagged")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Tagged:
        return cls()


@pytest.mark.parametrize(
    "kind",
    [
        WORDS,
        pa.list_(WORDS),
        pa.large_list(WORDS),
        pa.list_view(WORDS),
        pa.list_(WORDS, 3),
        pa.map_(pa.string(), WORDS),
        pa.map_(WORDS, pa.int8()),
        pa.struct([("a", pa.int8()), ("b", pa.struct([("c", WORDS)]))]),
        pa.dense_union([pa.field("a", WORDS)]),
        pa.run_end_encoded(pa.int32(), WORDS),
        Tagged(),
    ],
    ids=str,
)
def test_dictionaries_are_found_wherever_they_hide(kind: pa.DataType) -> None:
    """A dictionary inside any nested type makes the payload self-contained."""
    assert has_dictionaries(pa.schema([("x", pa.int8()), ("y", kind)]))


@pytest.mark.parametrize(
    "kind",
    [pa.int8(), pa.string_view(), pa.null(), pa.list_(pa.int8()), pa.map_(pa.int8(), pa.binary()), pa.struct([])],
)
def test_other_types_need_no_stream(kind: pa.DataType) -> None:
    """Types without dictionaries go as bare messages."""
    assert not has_dictionaries(pa.schema([("y", kind)]))


def batches() -> list[pa.RecordBatch]:
    """Batches of all shapes that matter here."""
    mixed = pa.RecordBatch.from_pydict(
        {
            "i": pa.array([1, None, 3, 4], pa.int64()),
            "s": pa.array(["a", None, "", "ü" * 30], pa.string_view()),
            "b": pa.array([True, False, None, True]),
            "l": pa.array([[1, 2], None, [], [3]], pa.list_(pa.int16())),
            "d": pa.array([Decimal("1.5"), None, Decimal(-2), Decimal(0)], pa.decimal128(10, 2)),
            "t": pa.array([dt.datetime(2020, 1, 1)] * 4, pa.timestamp("us")),  # noqa: DTZ001 (as Spark's NTZ)
            "n": pa.nulls(4),
        }
    )
    words = pa.RecordBatch.from_pydict({"w": pa.array(["x", "y", "x", None]).dictionary_encode()})
    return [
        mixed,
        mixed.slice(1, 2),
        mixed.slice(0, 0),
        mixed.select([]),
        words,
        words.slice(2, 1),
        words.slice(0, 0),
    ]


@pytest.mark.parametrize("number", range(7))
def test_round_trip(number: int) -> None:
    """Every shape comes back equal: slices, no rows, no columns (whose rows count), dictionaries."""
    batch = batches()[number]
    back = read_payload(batch.schema, batch_payload(batch))
    back.validate(full=True)
    assert back.num_rows == batch.num_rows
    assert back.equals(batch)


def test_slices_do_not_carry_their_parent() -> None:
    """A small slice of a large batch is a small payload."""
    large = pa.RecordBatch.from_pydict({"i": pa.array(range(100_000)), "s": pa.array(["word"] * 100_000)})
    assert batch_payload(large.slice(50_000, 10)).size < 2_000


def test_reading_makes_no_copy() -> None:
    """The batch read lies inside the payload's memory."""
    batch = pa.RecordBatch.from_pydict({"i": pa.array(range(1000), pa.int64())})
    payload = batch_payload(batch)
    values = read_payload(batch.schema, payload).column(0).buffers()[1]
    assert payload.address <= values.address < payload.address + payload.size


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("words", [False, True])
def test_a_payload_format_agrees_with_the_plain_functions(compression: str, words: bool) -> None:
    """With any compression, both ways of reading give the batch; a slice is not charged for its parent."""
    texts = pa.array([f"word {n % 7}" for n in range(5000)])
    batch = pa.RecordBatch.from_arrays([texts.dictionary_encode() if words else texts, texts], names=["a", "b"])
    batch = batch.replace_schema_metadata({"who": "me"})
    payloads = PayloadFormat(batch.schema, compression)
    assert payloads.self_contained == words
    for part in (batch, batch.slice(17, 3), batch.slice(0, 0)):
        payload = payloads.encode(part)
        assert payloads.decode(payload).equals(part, check_metadata=True)
        assert read_payload(batch.schema, payload) == part
        assert compression != "none" or words or payloads.size(part) == payload.size
    assert (payloads.encode(batch).size < batch_payload(batch).size / 2) == (compression != "none")
    assert payloads.size(batch.slice(5, 1)) < 2000


def test_unknown_compression_is_refused() -> None:
    """The message names what there is."""
    with pytest.raises(ValueError, match="none, lz4, zstd"):
        PayloadFormat(pa.schema([]), "gzip")
