# SPDX-License-Identifier: Apache-2.0
"""State of all kinds against a model: whatever is done, stored, restored, dealt out anew or built anew."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from effort import some_of
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.storage import pieces_of
from penstock.record.key_groups import GroupOwners
from penstock.stream import increments, state_rows
from penstock.stream.chain import Chunk, StepContext
from penstock.stream.state import list_rows
from penstock.stream.state import store as store_module
from penstock.stream.state.store import KeyedStore
from penstock.stream.state.variables import LIST, MAP, VALUE, VariableSpec
from penstock.stream.state_place import StateFiles, state_in
from uncertain_checkpoints import UncertainCheckpoints
from underway import listed

GROUPS = 16
KEYS = pa.schema([("k", pa.string())])
NUMBERS = pa.schema([("n", pa.int64()), ("b", pa.bool_())])
TEXT = pa.schema([("n", pa.string())])
OWN = pa.schema([("u", pa.string())])
LIVES = 50
MOST_TIME = 1 << 62
SPECS = (
    VariableSpec("value", VALUE, NUMBERS),
    VariableSpec("dying", VALUE, TEXT, None, LIVES),
    VariableSpec("rows", LIST, pa.schema([("n", pa.int64())])),
    VariableSpec("dying rows", LIST, TEXT, None, LIVES),
    VariableSpec("map", MAP, pa.schema([("x", pa.float64())]), OWN),
    VariableSpec("dying map", MAP, TEXT, OWN, LIVES),
)
SEEDS = some_of(range(64), 32)


def stored(chunks: list[Chunk]) -> dict[str, bytes]:
    """The chunks as a checkpoint gives them back."""
    return {name: b"".join(pieces_of(make())) for name, make in chunks}


def context(subtask: int, parallelism: int) -> StepContext:
    """The place of a task."""
    return StepContext(subtask, parallelism, GROUPS, "stage 1")


@dataclass
class Key:
    """The state of one key, as it should be; of what dies also when."""

    value: dict[str, Any] | None = None
    dying: tuple[str, int] | None = None
    rows: list[int] = field(default_factory=list)
    dying_rows: list[tuple[str, int]] = field(default_factory=list)
    map: dict[str, float] = field(default_factory=dict)
    dying_map: dict[str, tuple[str, int]] = field(default_factory=dict)
    timers: set[int] = field(default_factory=set)


class World:
    """The stores of one vertex's tasks, and the model."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0
        self.model: dict[str, Key] = {}
        self.stores = [KeyedStore(KEYS, SPECS)]
        self.checkpoints = UncertainCheckpoints(self.chance, self.tell)

    def step(self) -> None:
        """Do one thing to some keys."""
        self.now += self.chance.randint(0, 3)
        keys = sorted({f"k{self.chance.randrange(30)}" for _ in range(self.chance.randint(1, 8))})
        owners = GroupOwners(GROUPS, len(self.stores)).of([pa.array(keys)])
        work = self.chance.choice(
            (self.put, self.clear, self.append, self.append, self.enter, self.enter, self.leave, self.register)
        )
        for subtask, store in enumerate(self.stores):
            own = [key for key, owner in zip(keys, owners, strict=True) if owner == subtask]
            if own:
                work(
                    store, store.slots([pa.array(own)], len(own)), [self.model.setdefault(key, Key()) for key in own]
                )
        if self.chance.random() < 0.15:
            self.fire()
        if self.chance.random() < 0.15:
            self.move()
        if self.chance.random() < 0.3:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Take one that may refer to older ones, and restore it beside the others."""
        width = len(self.stores)
        takes = [partial(store.snapshot, context(n, width)) for n, store in enumerate(self.stores)]
        states, _ = self.checkpoints.take(takes)
        self.check_restored(states)

    def tell(self, checkpoint: int) -> None:
        """A checkpoint is known to be complete."""
        for store in self.stores:
            store.completed(checkpoint)

    def check_restored(self, states: list[dict[str, bytes]]) -> None:
        """Tasks that begin with these states have what there is."""
        was, width = self.stores, self.chance.choice((1, len(self.stores)))
        self.stores = [KeyedStore(KEYS, SPECS) for _ in range(width)]
        for n, store in enumerate(self.stores):
            store.restore(states[n : n + 1] if width == len(was) else states, context(n, width), self.now)
        self.check()
        self.stores = was

    def put(self, store: KeyedStore, slots: Any, keys: list[Key]) -> None:
        """Set values."""
        for key in keys:
            key.value = {"n": self.chance.choice((None, self.now)), "b": self.chance.choice((None, True, False))}
            key.dying = str(self.now), self.now + LIVES
        store.variable("value").put(slots, pa.RecordBatch.from_pylist([key.value for key in keys], NUMBERS), self.now)
        texts = pa.RecordBatch.from_pydict({"n": [str(self.now)] * len(keys)}, TEXT)
        store.variable("dying").put(slots, texts, self.now)

    def clear(self, store: KeyedStore, slots: Any, keys: list[Key]) -> None:
        """Remove the state of one kind."""
        name = self.chance.choice(("value", "dying", "rows", "dying rows", "map", "dying map"))
        store.variable(name).clear(slots)
        for key in keys:
            setattr(key, name.replace(" ", "_"), getattr(Key(), name.replace(" ", "_")))

    def append(self, store: KeyedStore, slots: Any, keys: list[Key]) -> None:
        """Add rows to lists, in any order of their keys."""
        places = [self.chance.randrange(len(keys)) for _ in range(self.chance.randint(0, 5))]
        numbers = [self.now * 10 + n for n in range(len(places))]
        store.variable("rows").append(
            slots[np.array(places, np.int64)], pa.record_batch({"n": pa.array(numbers, pa.int64())}), self.now
        )
        texts = pa.record_batch({"n": pa.array(map(str, numbers), pa.string())})
        store.variable("dying rows").append(slots[np.array(places, np.int64)], texts, self.now)
        for place, number in zip(places, numbers, strict=True):
            keys[place].rows.append(number)
            keys[place].dying_rows.append((str(number), self.now + LIVES))

    def enter(self, store: KeyedStore, slots: Any, keys: list[Key]) -> None:
        """Set entries of maps, some twice."""
        places = [self.chance.randrange(len(keys)) for _ in range(self.chance.randint(1, 6))]
        own = [self.chance.choice("abcd") for _ in places]
        numbers = [float(self.now * 10 + n) for n in range(len(places))]
        at, entries = slots[np.array(places, np.int64)], pa.record_batch({"u": own})
        store.variable("map").put(at, entries, pa.record_batch({"x": numbers}), self.now)
        store.variable("dying map").put(at, entries, pa.record_batch({"n": list(map(str, numbers))}), self.now)
        for place, one, number in zip(places, own, numbers, strict=True):
            keys[place].map[one] = number
            keys[place].dying_map[one] = str(number), self.now + LIVES

    def leave(self, store: KeyedStore, slots: Any, keys: list[Key]) -> None:
        """Remove an entry, where it is."""
        own = self.chance.choice("abcd")
        store.variable("map").remove(slots, pa.record_batch({"u": [own] * len(keys)}))
        for key in keys:
            key.map.pop(own, None)

    def register(self, store: KeyedStore, slots: Any, keys: list[Key]) -> None:
        """Register timers, and delete some."""
        times = np.array([self.now + self.chance.randrange(60) for _ in keys])
        store.timers.register(slots, times)
        gone = times[: len(times) // 2]
        store.timers.delete(slots[: len(gone)], gone)
        if self.chance.random() < 0.5:
            store.timers.register(slots[: len(gone)], gone)
            gone = gone[:0]
        for key, time in zip(keys, times.tolist(), strict=True):
            key.timers.add(time)
        for key, time in zip(keys, gone.tolist(), strict=False):
            key.timers.discard(time)

    def fire(self) -> None:
        """Take timers that are due, a few at a time: each is one that should be, and none is left."""
        for store in self.stores:
            last = -1
            while True:
                slots, times = store.timers.take(self.now, 3)
                if not len(slots) and (store.timers.next is None or store.timers.next > self.now):
                    break
                for key, time in zip(store.keys_of(slots).column(0).to_pylist(), times.tolist(), strict=True):
                    assert last <= time <= self.now
                    last = time
                    self.model[key].timers.remove(time)
        assert not any(time <= self.now for key in self.model.values() for time in key.timers)

    def move(self) -> None:
        """Build all anew, or store it and go on with another number of tasks."""
        if self.chance.random() < 0.5:
            assert all(store.tidy(self.now) for store in self.stores)
            return
        before = len(self.stores)
        states = [stored(store.snapshot(context(n, before))) for n, store in enumerate(self.stores)]
        after = self.chance.choice((1, 2, 3))
        self.stores = [KeyedStore(KEYS, SPECS) for _ in range(after)]
        for subtask, store in enumerate(self.stores):
            store.restore(
                states[subtask : subtask + 1] if after == before else states, context(subtask, after), self.now
            )

    def check(self) -> None:
        """All that is there is what the model says."""
        owners = GroupOwners(GROUPS, len(self.stores)).of([pa.array(sorted(self.model))])
        for subtask, store in enumerate(self.stores):
            keys = [key for key, owner in zip(sorted(self.model), owners, strict=True) if owner == subtask]
            if keys:
                self._check(store, keys)

    def _check(self, store: KeyedStore, keys: list[str]) -> None:
        slots, now = store.slots([pa.array(keys)], len(keys)), self.now
        models = [self.model[key] for key in keys]

        def values(name: str) -> list[Any]:
            known, rows = store.variable(name).get(slots, now)
            return [row if there else None for row, there in zip(rows.to_pylist(), known, strict=True)]

        def lists(name: str) -> list[list[Any]]:
            found: list[list[Any]] = [[] for _ in keys]
            owners, batch = store.variable(name).get(slots, now)
            for owner, value in zip(owners, batch.column(0).to_pylist(), strict=True):
                found[owner].append(value)
            return found

        def maps(name: str) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = [{} for _ in keys]
            owners, own, batch = store.variable(name).entries(slots, now)
            for owner, one, value in zip(owners, own.column(0).to_pylist(), batch.column(0).to_pylist(), strict=True):
                found[owner][one] = value
            return found

        assert values("value") == [key.value for key in models]
        assert values("dying") == [
            {"n": key.dying[0]} if key.dying and key.dying[1] > now else None for key in models
        ]
        assert lists("rows") == [key.rows for key in models]
        assert lists("dying rows") == [[text for text, end in key.dying_rows if end > now] for key in models]
        assert maps("map") == [key.map for key in models]
        living = [{own: text for own, (text, end) in key.dying_map.items() if end > now} for key in models]
        assert maps("dying map") == living
        for name, expected in (
            ("value", [key.value is not None for key in models]),
            ("map", [bool(key.map) for key in models]),
            ("dying map", [bool(each) for each in living]),
        ):
            assert store.variable(name).exists(slots, now).tolist() == expected
        owners, times = store.timers.of(slots)
        assert [sorted(times[owners == at].tolist()) for at in range(len(keys))] == [
            sorted(key.timers) for key in models
        ]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is done now and then to keep memory small is done often."""
    monkeypatch.setattr(store_module, "SPARE", -1_000_000)
    monkeypatch.setattr(list_rows, "MOST_PIECES", 2)
    monkeypatch.setattr(list_rows, "SPARE_ROWS", 4)
    monkeypatch.setattr(state_rows, "SPARE_ROWS", 4)
    monkeypatch.setattr(increments, "LEAST_SLOTS", 0)
    monkeypatch.setattr(increments, "SHARE", 1)
    monkeypatch.setattr(increments, "MOST_CHANGES", 4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.usefixtures("often")
def test_state_is_what_was_put(seed: int, tmp_path: Path) -> None:
    """Values, lists, maps and timers of many keys, over moves between tasks; of some seeds arrays lie in files."""
    in_files = seed // 8 % 4 == 1
    with state_in(StateFiles([str(tmp_path)], least=4096) if in_files else None):
        world = World(seed)
        for _ in range(25 if in_files else 80):
            world.step()
            world.check()
    assert world.checkpoints.referred > 0 or in_files
    assert not listed(tmp_path)


@pytest.mark.usefixtures("often")
def test_a_snapshot_is_what_was_when_it_was_taken() -> None:
    """Changes between its taking and its storing are none of it."""
    world = World(1)
    for _ in range(30):
        world.step()
    taken = [store.snapshot(context(n, len(world.stores))) for n, store in enumerate(world.stores)]
    at_once = [stored(chunks) for chunks in taken]
    stores = world.stores
    for _ in range(30):
        world.step()
        world.stores = stores
    assert [stored(chunks) for chunks in taken] == at_once


def test_all_timers_are_taken_at_the_end() -> None:
    """Also where some were registered several times, deleted, or have fired before."""
    store = KeyedStore(KEYS, ())
    slots = store.slots([pa.array(["a", "b"])], 2)
    for _ in range(5):
        store.timers.register(slots[[0, 0, 1, 0]], np.array([5, 5, 5, 7]))
        store.timers.delete(slots[:1], np.array([7]))
    assert store.timers.take(5, 1)[1].tolist() == [5]
    store.timers.register(slots, np.array([9, 9]))
    assert sorted(store.timers.take(MOST_TIME, 1 << 20)[1].tolist()) == [5, 9, 9]
    assert store.timers.live == 0


def test_memory_of_keys_without_state_is_given_back() -> None:
    """A store through which many keys go that leave nothing stays small."""
    store = KeyedStore(KEYS, SPECS[:1])
    for start in range(0, 400_000, 20_000):
        keys = pa.array([f"k{number}" for number in range(start, start + 20_000)])
        slots = store.slots([keys], len(keys))
        store.variable("value").put(
            slots, pa.RecordBatch.from_pydict({"n": range(20_000), "b": [True] * 20_000}, NUMBERS), 0
        )
        store.variable("value").clear(slots)
        store.tidy(0)
    assert store.keys < 150_000


def restored(stored_as: VariableSpec, now_as: VariableSpec, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The values of one key's variable that was declared in one way, and now is in another."""
    store = KeyedStore(KEYS, [stored_as])
    slots = store.slots([pa.array(["a"])], 1)
    store.variable("v").put(slots, rows, 0)
    after = KeyedStore(KEYS, [now_as])
    after.check([stored(store.snapshot(context(0, 1)))["about"]], "stage 1")
    after.restore([stored(store.snapshot(context(0, 1)))], context(0, 1), 5)
    found: pa.RecordBatch = after.variable("v").get(after.slots([pa.array(["a"])], 1), 5)[1]
    return found


def value(*fields: pa.Field, ttl: int | None = None) -> VariableSpec:
    """A value of these columns."""
    return VariableSpec("v", VALUE, pa.schema(fields), None, ttl)


def test_a_state_of_an_older_schema_is_read_where_spark_would() -> None:
    """Columns may be new, gone, in another order or wider; a time to live begins now."""
    before = value(pa.field("a", pa.int32()), pa.field("b", pa.string()), pa.field("c", pa.float32()))
    rows = pa.RecordBatch.from_pylist([{"a": 1, "b": "x", "c": 0.5}], before.schema)
    after = value(pa.field("c", pa.float64()), pa.field("new", pa.string()), pa.field("a", pa.int64()), ttl=10)
    assert restored(before, after, rows).to_pylist() == [{"c": 0.5, "new": None, "a": 1}]


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (value(pa.field("a", pa.int16())), "'a' int32, and now has 'a' int16"),
        (value(pa.field("a", pa.string())), "'a' int32, and now has 'a' string"),
        (value(pa.field("a", pa.int32()), pa.field("d", pa.int32(), nullable=False)), "new column 'd' that may not"),
        (VariableSpec("v", LIST, pa.schema([("a", pa.int32())])), "was a value, and now is a list"),
        (VariableSpec("w", VALUE, pa.schema([("a", pa.int32())])), r"the state 'v'.*none of that name \(w\)"),
    ],
)
def test_other_changes_are_refused_by_name(after: VariableSpec, words: str) -> None:
    """With the state and the column, and what to do."""
    before = value(pa.field("a", pa.int32()))
    with pytest.raises(CheckpointError, match=words):
        restored(before, after, pa.RecordBatch.from_pylist([{"a": 1}], before.schema))


def test_a_state_of_another_version_is_refused() -> None:
    """By both versions: none but the present one was ever released."""
    state = stored(KeyedStore(KEYS, SPECS).snapshot(context(0, 1)))
    state["about"] = msgpack.packb(msgpack.unpackb(state["about"]) | {"version": 2})
    with pytest.raises(CheckpointError, match=r"of version 2 with keys by .* a processor of version 3 with"):
        KeyedStore(KEYS, SPECS).restore([state], context(0, 1), 0)


def test_a_state_that_is_dropped_may_be_gone() -> None:
    """`deleteIfExists` of a name that the checkpoint holds."""
    store = KeyedStore(KEYS, SPECS[:1])
    store.variable("value").put(
        store.slots([pa.array(["a"])], 1), pa.RecordBatch.from_pylist([{"n": 1, "b": True}], NUMBERS), 0
    )
    after = KeyedStore(KEYS, (), ("value",))
    after.restore([stored(store.snapshot(context(0, 1)))], context(0, 1), 0)
    assert after.keys == 0


@pytest.mark.parametrize("kind", [VALUE, LIST, MAP])
def test_what_has_expired_stays_away_where_nothing_dies_any_more(kind: str) -> None:
    """A later run without a time to live has what had not expired, and for ever."""
    own = OWN if kind == MAP else None
    store = KeyedStore(KEYS, [VariableSpec("v", kind, TEXT, own, 10)])
    slots = store.slots([pa.array(["old", "new"])], 2)
    for at, now in enumerate((0, 95)):
        text, entry = pa.record_batch([pa.array(["x"])], schema=TEXT), pa.record_batch([pa.array(["u"])], schema=OWN)
        kept = store.variable("v")
        given = (slots[at : at + 1], *([entry] if kind == MAP else []), text, now)
        (kept.append if kind == LIST else kept.put)(*given)
    after = KeyedStore(KEYS, [VariableSpec("v", kind, TEXT, own)])
    after.restore([stored(store.snapshot(context(0, 1)))], context(0, 1), 100)
    slots = after.slots([pa.array(["old", "new"])], 2)
    assert after.variable("v").exists(slots, 1000).tolist() == [False, True]


def test_a_state_that_is_dropped_and_declared_again_begins_empty_once() -> None:
    """Its restarts find what it put; one of another type takes its place again."""
    number, text = value(pa.field("n", pa.int64())), value(pa.field("n", pa.string()))
    again = [replace(each, replaces=True) for each in (number, text)]
    rows = [pa.record_batch([pa.array([n])], names=["n"]) for n in (1, "x")]
    assert restored(number, again[0], rows[0]).to_pylist() == [{"n": None}]
    assert restored(number, again[1], rows[0]).to_pylist() == [{"n": None}]
    assert restored(again[1], again[1], rows[1]).to_pylist() == [{"n": "x"}]
    assert restored(again[1], text, rows[1]).to_pylist() == [{"n": "x"}]
    assert restored(again[1], again[0], rows[1]).to_pylist() == [{"n": None}]


def test_timers_that_come_and_go_do_not_build_the_state_anew() -> None:
    """They are built anew by themselves: the slots of keys stay, and no timer is lost."""
    store = KeyedStore(KEYS, SPECS[:1])
    keys = pa.array([f"k{number}" for number in range(1000)])
    slots = store.slots([keys], len(keys))
    store.variable("value").put(slots, pa.RecordBatch.from_pydict({"n": range(1000), "b": [True] * 1000}, NUMBERS), 0)
    for time in range(0, 200_000, 1000):
        store.timers.register(slots, np.arange(time, time + 1000))
        store.timers.delete(slots[1:], np.arange(time + 1, time + 1000))
        assert not store.tidy(0)
    assert store.timers.size < 100_000
    assert store.timers.take(MOST_TIME, 1 << 20)[1].tolist() == list(range(0, 200_000, 1000))


def test_expired_rows_of_one_key_leave_memory() -> None:
    """Also where no key is new."""
    store = KeyedStore(KEYS, SPECS[3:4])
    slots = store.slots([pa.array(["a"])], 1)
    rows = pa.RecordBatch.from_pydict({"n": ["x"] * 10_000}, TEXT)
    for now in range(0, 4000, 100):
        store.variable("dying rows").append(np.repeat(slots, 10_000), rows, now)
        if store.tidy(now):
            slots = store.slots([pa.array(["a"])], 1)
    assert store.variable("dying rows").live_keys < 200_000
