# SPDX-License-Identifier: Apache-2.0
"""`spark_hash` without Spark: frozen values taken from Spark 4.3, a plain reference, layouts and refusals."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.errors import SchemaError, SettingError
from penstock.record.spark_hash import spark_hash, spark_partition_ids
from record_samples import NO_KEYS, SPARK_TYPES, sample


def _mix(h: int, word: int) -> int:
    k = word * 0xCC9E2D51 & 0xFFFFFFFF
    k = (k << 15 | k >> 17) * 0x1B873593 & 0xFFFFFFFF
    h ^= k
    return ((h << 13 & 0xFFFFFFFF | h >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF


def _reference(value: bytes, seed: int = 42) -> int:
    """Spark's hashUnsafeBytes, a byte at a time."""
    h, aligned = seed, len(value) // 4 * 4
    for i in range(0, aligned, 4):
        h = _mix(h, int.from_bytes(value[i : i + 4], "little"))
    for byte in value[aligned:]:
        h = _mix(h, (byte - 256 if byte > 127 else byte) & 0xFFFFFFFF)
    h ^= len(value)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


GOLDEN: list[tuple[pa.Array, list[int]]] = [
    (pa.array([True, False, None]), [-559580957, 933211791, 42]),
    (pa.array([0, -1, 127], pa.int8()), [933211791, -1604776387, 1135925485]),
    (pa.array([0, -1, 32767], pa.int16()), [933211791, -1604776387, 1249274084]),
    (pa.array([0, -1, 2**31 - 1], pa.int32()), [933211791, -1604776387, 133916647]),
    (pa.array([0, -1, 2**63 - 1, None], pa.int64()), [-1670924195, -939490007, -1604625029, 42]),
    (pa.array([0.0, -0.0, float("nan"), 1.5], pa.float32()), [933211791, 933211791, -349261430, -221251528]),
    (pa.array([0.0, -0.0, float("nan"), 1.5], pa.float64()), [-1670924195, -1670924195, -1281358385, 1290763749]),
    (
        pa.array(["", "a", "abc", "Spark", "日本語", None]),
        [142593372, 1485273170, 1322437556, 228093765, -1143049834, 42],
    ),
    (pa.array([b"", b"\xff", bytes(range(256))]), [142593372, 1398487324, -1466620173]),
    (pa.array([0, -719162, 20000], pa.int32()).cast(pa.date32()), [933211791, -1147107224, -257527722]),
    (pa.array([0, -1, 10**15], pa.int64()).cast(pa.timestamp("us")), [-1670924195, -939490007, 1911365612]),
    (pa.array([0, -1, 10**15], pa.int64()).cast(pa.duration("us")), [-1670924195, -939490007, 1911365612]),
    (pa.array([45296123456000], pa.int64()).cast(pa.time64("ns")), [966672806]),
    (
        pa.array([1, -1, 10**9], pa.int64()).cast(pa.decimal128(22, 2)).cast(pa.decimal128(18, 2)),
        [1114849490, 904948192, -1940846388],
    ),
    (
        pa.array([0, -1, 10**9, 2**62], pa.int64()).cast(pa.decimal128(30, 2)),
        [-783713497, -893129661, 1510336203, 435801928],
    ),
    (pa.array([pa.MonthDayNano([14, 25, 18367500000000])]), [-504672070]),
    (pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "x"}]), [-1438117640, 42, -80340190]),
    (pa.array([[1, 2, 3], [], None, [None, 1]], pa.list_(pa.int32())), [-912918097, 42, 42, -559580957]),
    (pa.nulls(1), [42]),
]
"""Column and what Spark 4.3 gives for it (each checked by `hash(...)` in a session)."""


@pytest.mark.parametrize(("column", "expected"), GOLDEN, ids=lambda value: str(getattr(value, "type", "")))
def test_golden_values(column: pa.Array, expected: list[int]) -> None:
    """The hashes that Spark gave once stay."""
    assert spark_hash([column]).tolist() == expected


def test_columns_are_chained() -> None:
    """Several columns at once equal one after another with the hash as the next seed."""
    a, b = sample("int64", 50), sample("string", 50)
    first = spark_hash([a])
    chained = [int(spark_hash([b.slice(i, 1)], seed=int(h))[0]) for i, h in enumerate(first)]
    assert spark_hash([a, b]).tolist() == chained


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=80), st.integers(0, 5))
def test_bytes_equal_the_reference(values: list[bytes | None], skip: int) -> None:
    """Any mix of lengths and nulls, also in a slice, equals the plain reference."""
    column = pa.array(values, pa.binary()).slice(skip)
    assert spark_hash([column]).tolist() == [42 if v is None else _reference(v) for v in values[skip:]]


def test_few_long_rows_equal_the_reference() -> None:
    """Rows beyond the last common step are finished on their own, also past 65,535 steps."""
    rng = random.Random(1)
    values = [rng.randbytes(n) for n in (3, 300_003, 9_000, 262_145, *(rng.randrange(50) for _ in range(60)))]
    for rows in (values, values[:1], values[1:2], [b"", b""]):
        assert spark_hash([pa.array(rows)]).tolist() == [_reference(v) for v in rows]


@pytest.mark.parametrize("name", sorted(SPARK_TYPES))
def test_slices_do_not_matter(name: str) -> None:
    """Every row hashes alike whatever slice of whatever parent it stands in."""
    column = sample(name, 90)
    whole = spark_hash([column])
    for start, length in ((1, 7), (8, 64), (33, 57), (90, 0)):
        assert np.array_equal(spark_hash([column.slice(start, length)]), whole[start : start + length])


def test_layouts_agree() -> None:
    """Large, view, dictionary and run-end layouts of a value hash alike; so do narrow and wide decimals."""
    text = sample("string", 70)
    expected = spark_hash([text]).tolist()
    for other in (text.cast(pa.large_string()), text.cast(pa.string_view()), text.cast(pa.large_binary()),
                  text.dictionary_encode(), text.cast(pa.binary()).cast(pa.binary_view())):  # fmt: skip
        assert spark_hash([other]).tolist() == expected
    number = sample("decimal128_wide", 70)
    assert spark_hash([number]).tolist() == spark_hash([number.cast(pa.decimal256(38, 2))]).tolist()
    runs = sample("run_ends", 70)
    assert spark_hash([runs]).tolist() == spark_hash([pa.array(runs.to_pylist())]).tolist()


def test_garbage_under_nulls_is_not_followed() -> None:
    """A view that is null may hold anything; Arrow's cast would read where it points."""
    views = np.zeros((3, 4), np.int32)
    views[:, 0] = 1, 1_000_000, 2
    views[:, 1] = 97, 0x7FFFFFFF, 0x6261
    views[1, 2:] = 0x7FFFFFFF
    parts = [pa.py_buffer(b"\x05"), pa.py_buffer(views)]
    column = pa.Array.from_buffers(pa.string_view(), 3, parts)
    plain = pa.array(["a", None, "ab"])
    assert spark_hash([column]).tolist() == spark_hash([plain]).tolist()
    assert spark_hash([column.slice(1)]).tolist() == spark_hash([plain.slice(1)]).tolist()


def test_blocks_do_not_matter() -> None:
    """More rows than one block: the same as in parts."""
    column = sample("string", 100).take(pa.array([i * 7 % 100 for i in range(40_000)]))
    whole = spark_hash([column])
    assert whole.tolist() == [h for i in range(0, 40_000, 1000) for h in spark_hash([column.slice(i, 1000)]).tolist()]


@pytest.mark.parametrize(
    "name", ["map", "uint8", "uint64", "date64", "time32", "float16", "dense_union", "decimal256"]
)
def test_refused_types_are_named(name: str) -> None:
    """A type that Spark has no hash for is refused by name, also inside other types."""
    column = sample(name, 3)
    with pytest.raises(SchemaError, match=r"column 0 of type .*cannot be hashed"):
        spark_hash([column])
    with pytest.raises(SchemaError, match="cannot be hashed"):
        spark_hash([pa.StructArray.from_arrays([column], ["c"])])
    assert name in NO_KEYS or name not in SPARK_TYPES


def test_variants_are_refused() -> None:
    """Spark's hash refuses variants, which reach us as a marked struct."""
    kind = pa.struct(
        [pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})]
    )
    with pytest.raises(SchemaError, match="variant"):
        spark_hash([pa.nulls(1, kind)])


def test_partition_ids() -> None:
    """pmod: never negative, smallest type, powers of two and others alike; `out` is filled."""
    column = sample("int64", 500)
    hashes = spark_hash([column]).tolist()
    for n, dtype in (
        (1, np.uint8),
        (2, np.uint8),
        (7, np.uint8),
        (256, np.uint8),
        (257, np.uint16),
        (70_000, np.uint32),
    ):
        ids = spark_partition_ids([column], n)
        assert ids.dtype == dtype
        assert ids.tolist() == [h % n for h in hashes]
    out = np.empty(500, np.uint16)
    assert spark_partition_ids([column], 7, out) is out
    assert out.tolist() == [h % 7 for h in hashes]


def test_misuse() -> None:
    """No columns and columns of unequal length are refused."""
    with pytest.raises(SettingError, match="at least one"):
        spark_hash([])
    with pytest.raises(SchemaError, match="3 rows"):
        spark_hash([sample("int8", 2), sample("int8", 3)])
