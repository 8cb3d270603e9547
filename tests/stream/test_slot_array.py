# SPDX-License-Identifier: Apache-2.0
"""Snapshots of numbers of slots: what was when they were taken, whatever comes and whoever reads meanwhile."""

from __future__ import annotations

import threading

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.stream.slot_array import FrozenSlots, SlotArray

WRITES = st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=20), max_size=12)


@settings(max_examples=examples(100))
@given(WRITES, st.data())
def test_every_snapshot_is_what_was_when_it_was_taken(writes: list[list[int]], data: st.DataObject) -> None:
    """With several held at once, some dropped, and arrays that grow in between."""
    array = SlotArray(np.int64, -1)
    model: dict[int, int] = {}
    held: list[tuple[FrozenSlots, list[int]]] = []
    for number, slots in enumerate(writes):
        found = np.array(slots, np.int64)
        array.writable(found, int(found.max()) + 1)[found] = number
        model.update(dict.fromkeys(slots, number))
        count = max(model) + 1 + data.draw(st.sampled_from((0, 0, 5000)), label="never written")
        if data.draw(st.booleans(), label="snapshot"):
            held.append((array.frozen(count), [model.get(slot, -1) for slot in range(count)]))
        if held and data.draw(st.booleans(), label="drop"):
            held.pop(0)
    for snapshot, expected in held:
        assert snapshot.values(0, len(expected)).tolist() == expected
        assert snapshot.values(1, len(expected)).tolist() == expected[1:]
        some = np.arange(0, len(expected), 3)
        assert snapshot.at(some).tolist() == expected[::3]
        assert not len(snapshot.at(some[:0]))
    everything = np.arange(4000)
    assert array.at(everything).tolist() == [model.get(slot, -1) for slot in range(4000)]


def test_a_snapshot_is_read_while_its_slots_change() -> None:
    """A reader in another thread never sees a value of later than the snapshot."""
    array = SlotArray(np.int64)
    count = 1 << 16
    everything = np.arange(count)
    array.writable(everything, count)[:count] = 7
    snapshot = array.frozen(count)
    is_over = threading.Event()
    wrong: list[int] = []

    def read() -> None:
        while not is_over.is_set():
            wrong.extend(np.flatnonzero(snapshot.values(0, count) != 7).tolist())

    reader = threading.Thread(target=read)
    reader.start()
    chance = np.random.default_rng(1)
    for number in range(300):
        slots = chance.integers(0, count, 2000)
        array.writable(slots, count)[slots] = number + 100
    is_over.set()
    reader.join()
    assert not wrong


def test_rounds_begin_anew() -> None:
    """More snapshots than a byte counts: each is still what was."""
    array = SlotArray(np.int64)
    slots = np.arange(5)
    for number in range(600):
        array.writable(slots, 5)[slots] = number
        before, snapshot = array.frozen(5), array.frozen(5)
        array.writable(slots[:3], 5)[slots[:3]] = -1
        assert snapshot.values(0, 5).tolist() == before.values(0, 5).tolist() == [number] * 5


def test_notes_end_with_the_snapshot() -> None:
    """One that nobody holds costs nothing more."""
    array = SlotArray(np.int64)
    slots = np.arange(10)
    array.writable(slots, 10)[slots] = 1
    snapshot: FrozenSlots | None = array.frozen(10)
    array.writable(slots, 10)[slots] = 2
    assert snapshot is not None
    assert snapshot.values(0, 10).tolist() == [1] * 10
    snapshot = None
    array.writable(slots, 10)[slots] = 3
    assert array._notes is None
