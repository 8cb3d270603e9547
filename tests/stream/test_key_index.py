# SPDX-License-Identifier: Apache-2.0
"""Keys and their slots: dense, lasting, equal for equal keys whatever the batch, the layout or the growth."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.stream import key_index as module
from penstock.stream.key_index import key_index

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, (1 << 64) - 1)),
    "text": (pa.string(), st.text(max_size=3)),
    "large text": (pa.large_string(), st.text(max_size=3)),
    "float": (pa.float64(), st.sampled_from([0.0, 1.5, float("inf"), -2.0])),
    "bool": (pa.bool_(), st.booleans()),
    "decimal": (pa.decimal128(5, 0), st.integers(-3, 3).map(Decimal)),
}


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=30)
@given(st.data())
def test_slots_are_dense_and_last(name: str, data: st.DataObject) -> None:
    """A key has one slot for ever, and `keys` gives it back; null is a key."""
    kind, values = KINDS[name]
    index = key_index([kind])
    slot_of: dict[Any, int] = {}
    for rows in data.draw(st.lists(st.lists(st.one_of(st.none(), values), min_size=1, max_size=9), max_size=5)):
        slots = index.slots([pa.array(rows, kind)])
        for key, slot in zip(rows, slots.tolist(), strict=True):
            assert slot_of.setdefault(key, slot) == slot
        assert sorted(slot_of.values()) == list(range(len(index)))
        (back,) = index.keys(slots)
        assert back.type == kind
        assert back.to_pylist() == rows
    if slot_of:
        (frozen,) = index.frozen_keys(0, len(index))
        assert [slot_of[key] for key in frozen.to_pylist()] == list(range(len(index)))


def test_keys_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compared, so keys that collide have slots of their own, in any order they come."""
    monkeypatch.setattr(module, "word_hash", lambda columns: np.full(len(columns[0]), 7, np.uint64))
    index = key_index([pa.string()])
    first = index.slots([pa.array(["a", "b", "a"])]).tolist()
    second = index.slots([pa.array(["c", "b", "a", None, "c"])]).tolist()
    assert first[0] == first[2] == second[2]
    assert first[1] == second[1]
    assert len({first[0], first[1], second[0], second[3]}) == 4
    assert second[0] == second[4]


def test_a_table_grows_while_it_is_used() -> None:
    """Words move some at a time, and are found all the time."""
    index = key_index([pa.int64()])
    seen: dict[int, int] = {}
    chance = np.random.default_rng(3)
    for _ in range(60):
        keys = chance.integers(0, 1_000_000, 10_000)
        for key, slot in zip(keys.tolist(), index.slots([pa.array(keys)]).tolist(), strict=True):
            assert seen.setdefault(key, slot) == slot
    assert sorted(seen.values()) == list(range(len(index)))
