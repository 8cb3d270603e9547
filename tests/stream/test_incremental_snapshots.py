# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a large state through real storage: what they write, refer to and keep when older checkpoints go."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.checkpoint.metadata import CheckpointMetadata, PartHandle, unpack_part
from penstock.checkpoint.savepoints import SavepointFolder
from penstock.checkpoint.storage import CheckpointStorage, PartStorage
from penstock.operators.aggregate_states import Aggregation
from penstock.stream.aggregate import KeyedAggregate
from penstock.stream.chain import StepContext
from penstock.stream.restored_state import StoredState
from penstock.stream.state.store import KeyedStore
from penstock.stream.state.variables import LIST, VALUE, VariableSpec
from penstock.stream.storing import SnapshotStore, TakenSnapshot
from penstock.testing import wait_until
from penstock.testing.memory_host import MemoryHost
from penstock.testing.memory_mailbox import MemoryMailbox
from underway import listed

KEYS = pa.schema([("k", pa.int64())])
NUMBER = pa.schema([("n", pa.int64())])
SPECS = (VariableSpec("value", VALUE, NUMBER), VariableSpec("rows", LIST, NUMBER))
CONTEXT = StepContext(0, 1, 16, "counts")
COUNT = 20_000


class Task:
    """One task's state, and the location of its checkpoints."""

    def __init__(self, location: Path) -> None:
        self.storage = CheckpointStorage(str(location))
        self.storage.claim()
        self.mailbox = MemoryMailbox(MemoryHost("e1"))
        self.thread = SnapshotStore(str(location), self.storage.owner, "a.0", self.mailbox)
        self.state = KeyedStore(KEYS, SPECS)

    def put(self, keys: list[int], number: int) -> None:
        """Set the value of some keys, and add it to their lists."""
        slots = self.state.slots([pa.array(keys, pa.int64())], len(keys))
        rows = pa.record_batch([pa.array([number] * len(keys), pa.int64())], schema=NUMBER)
        self.state.variable("value").put(slots, rows, 0)
        self.state.variable("rows").append(slots, rows, 0)

    def clear(self, keys: list[int]) -> None:
        """Remove the state of some keys."""
        slots = self.state.slots([pa.array(keys, pa.int64())], len(keys))
        for name in ("value", "rows"):
            self.state.variable(name).clear(slots)

    def checkpoint(self, number: int) -> PartHandle:
        """Take one, complete it, and remove the one before."""
        self.thread.store(TakenSnapshot(number, self.state.snapshot(CONTEXT, number)))
        said = self.mailbox
        wait_until(lambda: len(said.acknowledged) + len(said.declined) >= number, "it is stored")
        assert not said.declined
        part = unpack_part(said.acknowledged[-1].handle)
        self.storage.commit(CheckpointMetadata(number, 0.0, {"a.0": part}))
        self.state.completed(number)
        if number > 1:
            self.storage.discard(self.storage.stamp(number - 1))
        return part


def contents(state: KeyedStore) -> dict[int, tuple[int | None, list[int]]]:
    """The value and the list of each key."""
    slots = state.slots([pa.array(range(COUNT), pa.int64())], COUNT)
    _, values = state.variable("value").get(slots, 0)
    owners, rows = state.variable("rows").get(slots, 0)
    lists: list[list[int]] = [[] for _ in range(COUNT)]
    for owner, number in zip(owners.tolist(), rows.column(0).to_pylist(), strict=True):
        lists[owner].append(number)
    return dict(enumerate(zip(values.column(0).to_pylist(), lists, strict=True)))


def restored(location: Path | str, part: PartHandle) -> KeyedStore:
    """The state of a task that begins with a part."""
    state = KeyedStore(KEYS, SPECS)
    state.restore([StoredState(PartStorage(str(location)), part, contextlib.nullcontext)], CONTEXT, 0)
    return state


def test_a_checkpoint_writes_the_keys_that_changed(tmp_path: Path) -> None:
    """One of a hundred keys changes: a fiftieth of the bytes is written, and older files stay while they are needed.

    Each is restored as the state was, though the checkpoint before it is gone. A savepoint needs no other file.
    """
    task = Task(tmp_path)
    task.put(list(range(COUNT)), 0)
    whole = task.checkpoint(1)
    chance = np.random.default_rng(1)
    for number in range(2, 6):
        keys = np.unique(chance.integers(0, COUNT, COUNT // 100)).tolist()
        task.put(keys, number)
        task.clear(keys[:20])
        part = task.checkpoint(number)
        assert part.bytes * 50 < whole.bytes
        assert contents(restored(tmp_path, part)) == contents(task.state)
    assert len({path.partition("/")[0] for path in part.referred}) == 4, "of each checkpoint one file"
    folder = SavepointFolder(str(tmp_path / "saved"))
    folder.prepare()
    folder.save(task.storage, CheckpointMetadata(5, 0.0, {"a.0": part}))
    (saved,) = folder.find().metadata.parts.values()
    task.put(list(range(COUNT)), 9)
    anew = task.checkpoint(6)
    assert not anew.referred
    assert anew.bytes > whole.bytes
    assert [path.name[:16] for path in listed(tmp_path, "chk-*")] == ["chk-000000000006"]
    assert contents(restored(tmp_path, anew)) == contents(task.state)
    assert {value for value, _ in contents(restored(tmp_path / "saved", saved)).values()} == {None, 0, 2, 3, 4, 5}
    task.thread.close()


def test_a_checkpoint_of_an_aggregation_writes_the_keys_that_changed(tmp_path: Path) -> None:
    """Counts, sums and distinct values of 20,000 keys: a hundredth of them changes, and a twentieth is written.

    A task that begins with the newest checkpoint gives the results of one that has had all rows, though the
    checkpoints before it are gone.
    """
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    items = (Aggregation("n", "*", "count"), Aggregation("s", "v", "sum"), Aggregation("d", "v", "count_distinct"))
    operator = KeyedAggregate(schema, ("k",), items)
    storage = CheckpointStorage(str(tmp_path))
    storage.claim()
    mailbox = MemoryMailbox(MemoryHost("e1"))
    thread = SnapshotStore(str(tmp_path), storage.owner, "a.0", mailbox)
    step = operator.step()
    step.open(CONTEXT, [])
    chance = np.random.default_rng(1)
    written = []
    for number in range(1, 7):
        count = COUNT if number == 1 else COUNT // 100
        keys = np.arange(COUNT) if number == 1 else chance.integers(0, COUNT, count)
        step.process(pa.record_batch([pa.array(keys), pa.array(chance.integers(0, 5, count))], schema=schema))
        thread.store(TakenSnapshot(number, step.snapshot(number)))
        wait_until(lambda number=number: len(mailbox.acknowledged) == number, "it is stored")  # type: ignore[misc]
        part = unpack_part(mailbox.acknowledged[-1].handle)
        storage.commit(CheckpointMetadata(number, 0.0, {"a.0": part}))
        step.completed(number)
        if number > 1:
            storage.discard(storage.stamp(number - 1))
        written.append(part.bytes)
    thread.close()
    assert all(size * 20 < written[0] for size in written[1:]), written
    again = operator.step()
    again.open(CONTEXT, [StoredState(PartStorage(str(tmp_path)), part, contextlib.nullcontext)])
    probe = pa.record_batch([pa.array(range(COUNT)), pa.array([1] * COUNT)], schema=schema)
    results = [
        sorted(tuple(row.values()) for each in one.process(probe) for row in each.to_pylist())
        for one in (step, again)
    ]
    assert results[0] == results[1]
