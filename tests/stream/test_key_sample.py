# SPDX-License-Identifier: Apache-2.0
"""The most frequent keys, from a few rows."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from penstock.stream.key_sample import KEYS, LOOK_SECONDS, FrequentKeys


def batch_of(keys: list[object], kind: pa.DataType) -> pa.RecordBatch:
    """A batch with these keys."""
    return pa.RecordBatch.from_arrays([pa.array(keys, kind)], names=["k"])


def sampled(sample: FrequentKeys, keys: list[object], kind: pa.DataType, looks: int = 10) -> dict[str, float]:
    """The figures after so many looks at batches of these keys."""
    for look in range(looks):
        sample.look(batch_of(keys, kind), look * LOOK_SECONDS)
    return sample.figures()


def test_a_hot_key_is_told_with_its_share() -> None:
    """Among a thousand others it is the only one."""
    order = random.Random(7)
    keys: list[object] = ["hot"] * 6000 + [f"k{number}" for number in range(4000)]
    order.shuffle(keys)
    found = sampled(FrequentKeys(("k",)), keys, pa.string())
    assert list(found) == ["key.hot"]
    assert found["key.hot"] == pytest.approx(0.6, abs=0.15)


def test_keys_without_a_hot_one_are_not_told() -> None:
    """Nor is anything after few rows, or without columns."""
    many: list[object] = list(range(10_000))
    assert sampled(FrequentKeys(("k",)), many, pa.int64()) == {}
    assert sampled(FrequentKeys(("k",)), [1], pa.int64(), looks=5) == {}
    assert sampled(FrequentKeys(), [1] * 100, pa.int64()) == {}


def test_a_key_that_was_hot_fades() -> None:
    """Rows of long ago do not count any more."""
    sample = FrequentKeys(("k",))
    sampled(sample, ["old"] * 100, pa.string())
    for look in range(10, 60):
        sample.look(batch_of(["new"] * 100, pa.string()), look * LOOK_SECONDS)
    assert list(sample.figures()) == ["key.new"]


def test_keys_of_odd_types_do_no_harm() -> None:
    """Nulls, fine times, times beyond Python's; no more than a few are told, and long ones are cut."""
    assert sampled(FrequentKeys(("k",)), [None] * 50, pa.int64()) == {"key.None": 1.0}
    assert "key.5" in sampled(FrequentKeys(("k",)), [5] * 50, pa.timestamp("ns"))
    assert sampled(FrequentKeys(("k",)), [1 << 60] * 50, pa.timestamp("s")) == {}
    few = sampled(FrequentKeys(("k",)), [number % 5 for number in range(1000)], pa.int64())
    assert 0 < len(few) <= KEYS
    (long,) = sampled(FrequentKeys(("k",)), ["x" * 1000] * 50, pa.string())
    assert len(long) < 100


def test_rows_between_two_looks_are_not_looked_at() -> None:
    """Half a second lies between them."""
    sample = FrequentKeys(("k",))
    for _ in range(100):
        sample.look(batch_of(["x"] * 100, pa.string()), 1.0)
    assert sample.figures() == {}
