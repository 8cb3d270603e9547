# SPDX-License-Identifier: Apache-2.0
"""`word_hash`: frozen values, equal values hash alike in any layout, rows spread evenly, refusals."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.errors import SchemaError, SettingError
from penstock.record.word_hash import fast_partition_ids, word_hash
from record_samples import MAKERS, NO_KEYS, sample

_MASK = (1 << 64) - 1
_M1, _M2, _M3 = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F

GOLDEN: list[tuple[pa.Array, list[int]]] = [
    (pa.array([True, False, None]), [14705233189946356467, 4502130556907801065, 15973063774987309094]),
    (
        pa.array([0, -1, 2**63 - 1, None], pa.int64()),
        [4502130556907801065, 4470473680159283053, 3227430061727568587, 15973063774987309094],
    ),
    (
        pa.array([0.0, float("nan"), 1.5], pa.float64()),
        [4502130556907801065, 10095564933327528049, 9650917909228407662],
    ),
    (
        pa.array(["", "a", "abc", "Spark 4.3", "日本語" * 9, None]),
        [
            4502130556907801065,
            5210931656265425862,
            6499053537014745675,
            3335359848961317142,
            16350020888726356625,
            15973063774987309094,
        ],
    ),
    (pa.array([b"x" * 512, b"x" * 513]), [2664999785733664105, 10146700893125141893]),
    (
        pa.array([0, -719162, 20000], pa.int32()).cast(pa.date32()),
        [4502130556907801065, 10371361532749028906, 2844400261832645126],
    ),
    (
        pa.array([0, -1, 10**15], pa.int64()).cast(pa.timestamp("us")),
        [4502130556907801065, 16031705643409250100, 10478439141560763172],
    ),
    (
        pa.array([1, -1, 10**9], pa.int64()).cast(pa.decimal128(22, 2)),
        [14706440040413720589, 7675807723093395061, 13730890491844179791],
    ),
    (
        pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "x"}]),
        [196356018861472127, 15973063774987309094, 16389632239196047577],
    ),
    (
        pa.array([[1, 2, 3], [], None, [None, 1]], pa.list_(pa.int32())),
        [9724004328383503244, 4502130556907801065, 15973063774987309094, 15554022333298948846],
    ),
    (pa.nulls(1), [15973063774987309094]),
]
"""Frozen: a change here would send rows of running pipelines elsewhere."""


def _chain(h: int, digest: int) -> int:
    h = (h ^ digest) * _M1 & _MASK
    return h ^ h >> 32


def _row(digest: int) -> int:
    h = _chain(0x243F6A8885A308D3, digest) * _M2 & _MASK
    h = (h ^ h >> 29) * _M3 & _MASK
    return h ^ h >> 32


def _reference(value: bytes | None) -> int:
    """The module's docstring, a value at a time."""
    if value is None:
        return _row(0xA4093822299F31D0)
    if len(value) > 512:
        return _row(xxhash.xxh3_64_intdigest(value))
    digest = len(value) * _M3 & _MASK
    for start in range(0, len(value), 8):
        start = max(0, min(start, len(value) - 8))  # noqa: PLW2901 - the last word ends with the value
        digest = _chain(digest, int.from_bytes(value[start : start + 8], "little"))
    return _row(digest)


@pytest.mark.parametrize(("column", "expected"), GOLDEN, ids=lambda value: str(getattr(value, "type", "")))
def test_golden_values(column: pa.Array, expected: list[int]) -> None:
    """The hash never changes."""
    assert word_hash([column]).tolist() == expected


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=30), st.binary(min_size=505, max_size=520)), max_size=40))
def test_bytes_equal_the_reference(values: list[bytes | None]) -> None:
    """Any mix of lengths, nulls and long values equals the plain reference, up to the last byte of the buffer."""
    assert word_hash([pa.array(values, pa.binary())]).tolist() == [_reference(v) for v in values]


@pytest.mark.parametrize("name", sorted(set(MAKERS) - NO_KEYS))
def test_slices_and_rebuilding_do_not_matter(name: str) -> None:
    """A row hashes alike in any slice, and in an array rebuilt from its values."""
    column = sample(name, 90)
    whole = word_hash([column])
    for start, length in ((1, 7), (8, 64), (33, 57), (90, 0)):
        assert np.array_equal(word_hash([column.slice(start, length)]), whole[start : start + length])
    if name not in {"run_ends", "struct_of_dictionary", "uuid", "dictionary"}:
        assert np.array_equal(word_hash([pa.array(column.to_pylist(), column.type)]), whole)


def test_layouts_agree() -> None:
    """String, large, view, binary, dictionary and run ends: one hash per value."""
    text = sample("string", 70)
    expected = word_hash([text]).tolist()
    views = text.cast(pa.string_view())
    for other in (text.cast(pa.large_string()), views, text.cast(pa.binary()), text.dictionary_encode()):
        assert word_hash([other]).tolist() == expected
    runs = sample("run_ends", 70)
    assert word_hash([runs]).tolist() == word_hash([pa.array(runs.to_pylist())]).tolist()
    words = sample("dictionary", 70)
    assert word_hash([words]).tolist() == word_hash([words.dictionary_decode()]).tolist()


def test_integer_widths_agree() -> None:
    """5 is 5 in any width, and -1 in any signed one."""
    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    assert len({int(word_hash([pa.array([5], kind)])[0]) for kind in kinds}) == 1
    assert len({int(word_hash([pa.array([-1], kind)])[0]) for kind in kinds[:4]}) == 1


def test_units_and_widths_agree() -> None:
    """One instant in any unit, one float in any width, one decimal in any width."""
    seconds = pa.array([0, -7, 1_600_000_000], pa.int64()).cast(pa.timestamp("s"))
    expected = word_hash([seconds]).tolist()
    for unit in ("ms", "us", "ns"):
        assert word_hash([seconds.cast(pa.timestamp(unit))]).tolist() == expected
    halves = pa.array([1.5, -0.25, None], pa.float16())
    for kind in (pa.float32(), pa.float64()):
        assert word_hash([halves.cast(kind)]).tolist() == word_hash([halves]).tolist()
    money = sample("decimal128", 40)
    assert word_hash([money.cast(pa.decimal256(50, 2))]).tolist() == word_hash([money]).tolist()


def test_zeros_and_nans_are_one() -> None:
    """-0.0 equals 0.0, every NaN equals every other, and neither equals null."""
    bits = [0x7FF8 << 48, 0xFFF8 << 48, (0x7FF0 << 48) + 1, (0xFFF4 << 48) + 9]
    nans = [struct.unpack("<d", struct.pack("<Q", b))[0] for b in bits]
    hashes = word_hash([pa.array([0.0, -0.0, *nans, None])]).tolist()
    assert hashes[0] == hashes[1]
    assert len(set(hashes[2:6])) == 1
    assert len(set(hashes)) == 3


def test_order_of_columns_fields_and_elements_counts() -> None:
    """Swapped columns, fields, elements, and nesting give other hashes."""
    a, b = pa.array([1]), pa.array([2])
    swaps = [
        ([a, b], [b, a]),
        ([pa.array([[1, 2]])], [pa.array([[2, 1]])]),
        ([pa.array([[1], []])], [pa.array([[], [1]])]),
        ([pa.array([{"x": 1, "y": 2}])], [pa.array([{"x": 2, "y": 1}])]),
        ([pa.array(["ab"]), pa.array(["c"])], [pa.array(["a"]), pa.array(["bc"])]),
        ([pa.array(["a\0"])], [pa.array(["a"])]),
        ([pa.array([[None]])], [pa.array([[]], pa.list_(pa.null()))]),
    ]
    for one, other in swaps:
        assert word_hash(one).tolist() != word_hash(other).tolist()


@pytest.mark.parametrize("n", [2, 3, 7, 64, 1000])
@pytest.mark.parametrize("what", ["sequence", "stride", "strings", "floats"])
def test_rows_spread_evenly(what: str, n: int) -> None:
    """Keys as they come in practice fill all subpartitions: chi-squared within six deviations of its mean."""
    rows = 60_000
    numbers = np.arange(rows, dtype=np.int64)
    raw = {"sequence": numbers, "stride": numbers << 32, "floats": numbers.astype(np.float64).view(np.int64)}
    if what == "strings":
        column = pa.array([f"user-{i:05d}" for i in range(rows)])
    else:
        kind = pa.float64() if what == "floats" else pa.int64()
        column = pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(raw[what])])
    counts = np.bincount(fast_partition_ids([column], n), minlength=n)
    chi = float(((counts - rows / n) ** 2 / (rows / n)).sum())
    assert chi < (n - 1) + 6 * (2 * (n - 1)) ** 0.5


@pytest.mark.thorough
def test_no_collisions_among_many_keys() -> None:
    """A million keys, a million hashes."""
    rng = np.random.default_rng(5)
    numbers = np.unique(rng.integers(-(1 << 40), 1 << 40, 1_000_000))
    column = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
    assert len(np.unique(word_hash([column]))) == len(numbers)


def test_partition_ids() -> None:
    """Smallest type, always below n, the hash's high half scaled, and `out` is filled."""
    column = sample("string", 300)
    high = [h >> 32 for h in word_hash([column]).tolist()]
    for n, dtype in ((1, np.uint8), (256, np.uint8), (257, np.uint16), (65_536, np.uint16), (65_537, np.uint32)):
        ids = fast_partition_ids([column], n)
        assert ids.dtype == dtype
        assert ids.tolist() == [h * n >> 32 for h in high]
    out = np.empty(300, np.uint16)
    assert fast_partition_ids([column], 7, out) is out
    assert out.tolist() == [h * 7 >> 32 for h in high]


def test_blocks_do_not_matter() -> None:
    """More rows than a block: the same as in parts."""
    rng = random.Random(2)
    column = pa.array([None if rng.random() < 0.1 else rng.randbytes(rng.randrange(20)) for _ in range(20_000)])
    whole = word_hash([column]).tolist()
    assert whole == [h for i in range(0, 20_000, 999) for h in word_hash([column.slice(i, 999)]).tolist()]


@pytest.mark.parametrize("name", sorted(NO_KEYS))
def test_refused_types_are_named(name: str) -> None:
    """Maps, unions and calendar intervals can't be keys, nor what contains them."""
    column = sample(name, 3)
    for refused in (column, pa.StructArray.from_arrays([column], ["c"])):
        with pytest.raises(SchemaError, match=r"column 0 of type .*cannot be hashed"):
            word_hash([refused])


def test_misuse() -> None:
    """Impossible numbers of subpartitions and missing columns are refused."""
    with pytest.raises(SettingError, match="0 subpartitions"):
        fast_partition_ids([sample("int8", 2)], 0)
    with pytest.raises(SettingError, match="at least one column"):
        word_hash([])
