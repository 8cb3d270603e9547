# SPDX-License-Identifier: Apache-2.0
"""A state of many keys in one task, in memory and in mapped files: rows in a second, snapshots, a restore, memory.

    python -m penstock_bench.large_state --keys 20000000 --limit 512

Each store runs in a process of its own, and the restore of each in another one. Those with files have so many MiB of
private memory at most (`RLIMIT_DATA`). Rows are batches of 65,536 random keys; two numbers are got, added to and put
for each, as a batch processor does, or with `--state aggregation` as `agg` counts and adds them. Other states have a
text, list, entry, window, session, row or timer for each key, and a batch changes one of each of its keys, or adds
it. A snapshot is written by the thread that a task has for it, into the folder. The first one is whole, and then come
three with one key of a hundred changed; `changed_fsync_seconds` is how long the disk takes for 6 MB alone right
after, at most.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.checkpoint.metadata import CheckpointMetadata, unpack_part
from penstock.checkpoint.storage import CheckpointStorage
from penstock.operators.aggregate_states import Aggregation
from penstock.operators.groups import Side
from penstock.operators.join_sides import LEFT, AsSide, JoinedSides
from penstock.operators.window_aggregates import WindowSpec
from penstock.operators.windows import FixedWindows, SessionWindows
from penstock.stream.aggregate import KeyedAggregate
from penstock.stream.chain import Chunk, State, StepContext
from penstock.stream.duplicates import DropDuplicates
from penstock.stream.restored_state import StoredState
from penstock.stream.state.store import KeyedStore
from penstock.stream.state.variables import (
    LIST,
    MAP,
    VALUE,
    ListVariable,
    MapVariable,
    ValueVariable,
    VariableSpec,
)
from penstock.stream.state_place import StateFiles, state_in
from penstock.stream.storing import SnapshotStore, TakenSnapshot
from penstock.stream.stream_join import Between, StreamJoin
from penstock.stream.watermark import Watermark
from penstock.stream.window_aggregate import WindowAggregate
from penstock.testing.memory_host import MemoryHost
from penstock.testing.memory_mailbox import MemoryMailbox
from penstock.testing.waiting import wait_until
from penstock_bench.environment import own_bytes

BATCH = 1 << 16
ROUNDS = 100
CHANGED = 100
"""One key of so many changes."""
KEYS = pa.schema([("k", pa.int64())])
VALUES = pa.schema([("n", pa.int64()), ("amount", pa.int64())])
SPECS = (VariableSpec("total", VALUE, VALUES),)
TEXTS = pa.schema([("text", pa.string())])
LONG = "x" * 200
NAMES = pa.schema([("name", pa.string())])
CONTEXT = StepContext(0, 1, 128, "totals")
PART = "totals.0"
PATIENCE = 600.0
STORES = ("memory", "files")
COMPARED = (
    *("rows_a_second", "rows_a_processor_second", "whole_seconds", "changed_seconds"),
    *("restore_seconds", "restore_processor_seconds"),
)
"""The figures of which the second store's are shown in those of the first."""
SYNCED = 6 << 20
"""Bytes, about as many as a snapshot of the changes of 20 million keys has."""
ROWS = pa.schema([("k", pa.int64()), ("amount", pa.int64())])
TIMED = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us"))])
AGGREGATIONS = (Aggregation("n", "*", "count"), Aggregation("amount", "amount", "sum"))

Figures = dict[str, float]


class ManyKeys(Protocol):
    """The state that is measured."""

    @property
    def keys(self) -> int:
        """The number of keys."""

    def add(self, numbers: np.ndarray) -> None:
        """Take a batch of rows with these keys."""

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """The chunks of a checkpoint."""

    def completed(self, checkpoint: int) -> None:
        """It is complete."""

    def restore(self, state: State) -> None:
        """Begin with what a checkpoint holds."""


class StoreState:
    """All state of a processor with these keys and variables."""

    def __init__(self, keys: pa.Schema, specs: Sequence[VariableSpec]) -> None:
        self._store = KeyedStore(keys, specs)
        self.completed = self._store.completed

    @property
    def keys(self) -> int:
        """The number of keys."""
        return self._store.keys

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """The chunks of a checkpoint."""
        return self._store.snapshot(CONTEXT, checkpoint)

    def restore(self, state: State) -> None:
        """Begin with what a checkpoint holds."""
        self._store.restore([state], CONTEXT, 0)


class ProcessorState(StoreState):
    """Two numbers of each key, which a batch processor gets, adds to and puts."""

    def __init__(self) -> None:
        super().__init__(KEYS, SPECS)

    def add(self, numbers: np.ndarray) -> None:
        """Get, add and put the numbers of a batch of keys."""
        keys, counts = np.unique(numbers, return_counts=True)
        slots = self._store.slots([pa.array(keys)], len(keys))
        total = self._store.variable("total")
        assert isinstance(total, ValueVariable)  # noqa: S101 - declared as one
        _, before = total.get(slots, 0)
        n = pc.add(pc.fill_null(before["n"], 0), pa.array(counts))
        amount = pc.add(pc.fill_null(before["amount"], 0), pa.array(counts * 7))
        total.put(slots, pa.RecordBatch.from_arrays([n, amount], schema=VALUES), 0)


class TextState(StoreState):
    """A long text of each key, which is a text too: it is got, and put again."""

    def __init__(self) -> None:
        super().__init__(pa.schema([("k", pa.string())]), [VariableSpec("text", VALUE, TEXTS)])

    def add(self, numbers: np.ndarray) -> None:
        """Get and put the texts of a batch of keys."""
        keys = pa.array(np.unique(numbers)).cast(pa.string())
        slots = self._store.slots([keys], len(keys))
        texts = self._store.variable("text")
        assert isinstance(texts, ValueVariable)  # noqa: S101 - declared as one
        texts.get(slots, 0)
        made = pc.binary_join_element_wise(keys, LONG, "")
        texts.put(slots, pa.RecordBatch.from_arrays([made], schema=TEXTS), 0)


class ListState(StoreState):
    """Rows of two numbers for each key, to which a batch adds one of each of its keys."""

    def __init__(self) -> None:
        super().__init__(KEYS, [VariableSpec("rows", LIST, VALUES)])

    def add(self, numbers: np.ndarray) -> None:
        """Add a row to the list of each of these keys."""
        slots = self._store.slots([pa.array(numbers)], len(numbers))
        rows = self._store.variable("rows")
        assert isinstance(rows, ListVariable)  # noqa: S101 - declared as one
        column = pa.array(numbers)
        rows.append(slots, pa.RecordBatch.from_arrays([column, column], schema=VALUES), 0)


class MapState(StoreState):
    """Two numbers for one name of each key: an entry of a map, which is got and put again."""

    def __init__(self) -> None:
        super().__init__(KEYS, [VariableSpec("entries", MAP, VALUES, NAMES)])

    def add(self, numbers: np.ndarray) -> None:
        """Get and put the entries of a batch of keys."""
        keys = np.unique(numbers)
        slots = self._store.slots([pa.array(keys)], len(keys))
        entries = self._store.variable("entries")
        assert isinstance(entries, MapVariable)  # noqa: S101 - declared as one
        names = pa.RecordBatch.from_arrays([pa.repeat("clicks", len(keys))], schema=NAMES)
        _, values = entries.get(slots, names, 0)
        n = pc.add(pc.fill_null(values["n"], 0), 1)
        entries.put(slots, names, pa.RecordBatch.from_arrays([n, pa.array(keys)], schema=VALUES), 0)


class AggregationState:
    """A count and a sum of each key; the results are made, as for a query."""

    def __init__(self) -> None:
        self._step = KeyedAggregate(ROWS, ("k",), AGGREGATIONS).step()
        self._step.open(CONTEXT, [])
        self.completed, self.snapshot = self._step.completed, self._step.snapshot

    @property
    def keys(self) -> int:
        """The number of keys."""
        return self._step.keys

    def add(self, numbers: np.ndarray) -> None:
        """Count and add the rows of a batch."""
        amounts = np.full(len(numbers), 7, np.int64)
        for _ in self._step.process(pa.record_batch([pa.array(numbers), pa.array(amounts)], schema=ROWS)):
            pass

    def restore(self, state: State) -> None:
        """Begin with what a checkpoint holds."""
        self._step.open(CONTEXT, [state])


class TimedState:
    """The state of a step of event time, of which all rows have about the same time."""

    def __init__(self, operator: WindowAggregate | StreamJoin | DropDuplicates) -> None:
        self._operator = operator
        self._step = operator.step()
        self._step.open(CONTEXT, [])
        self._step.on_watermark(Watermark(0))
        self._added = 0
        self.completed, self.snapshot = self._step.completed, self._step.snapshot

    @property
    def keys(self) -> int:
        """The number of rows."""
        return self._added

    def add(self, numbers: np.ndarray) -> None:
        """Take a row of each of these keys."""
        if isinstance(self._operator, DropDuplicates):  # others change nothing
            numbers = numbers + self._added
        times = (self._added + np.arange(len(numbers))) % 1000
        self._added += len(numbers)
        batch = pa.record_batch([pa.array(numbers), pa.array(times).cast(TIMED.field("t").type)], schema=TIMED)
        for each in self._sent(batch):
            for _ in self._step.process(each):
                pass

    def restore(self, state: State) -> None:
        """Begin with what a checkpoint holds."""
        self._step.open(CONTEXT, [state])

    def _sent(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The rows that come over the exchange."""
        if isinstance(self._operator, WindowAggregate):
            return [self._operator.spec.plan.partial(batch)]
        if isinstance(self._operator, StreamJoin):
            return AsSide(self._operator.sides, LEFT).apply(iter([batch]))
        return [batch]


class TimerState(StoreState):
    """A timer of each key, which rows put off."""

    def __init__(self) -> None:
        super().__init__(KEYS, ())
        self._times = np.zeros(0, np.int64)

    def add(self, numbers: np.ndarray) -> None:
        """Put the timers of these keys off."""
        slots = np.unique(self._store.slots([pa.array(numbers)], len(numbers)))
        if len(self._times) < self._store.keys:
            self._times = np.concatenate([self._times, np.zeros(self._store.keys, np.int64)])
        self._store.timers.delete(slots, self._times[slots])
        self._times[slots] += 1000
        self._store.timers.register(slots, self._times[slots])
        self._store.tidy(0)


def _windows(kind: FixedWindows | SessionWindows) -> TimedState:
    items = (Aggregation("n", "*", "count"), Aggregation("last", "t", "max"))
    return TimedState(WindowAggregate(WindowSpec(TIMED, ("k", kind.name), kind, items)))


def _join(how: str) -> TimedState:
    sides = JoinedSides(Side(TIMED, ("k",)), Side(TIMED.set(1, pa.field("u", TIMED.field("t").type)), ("k",)), how)
    return TimedState(StreamJoin(sides, Between(("t", "u"), 0, 1000, by_watermark=True)))


STATES: dict[str, Callable[[], ManyKeys]] = {
    "processor": ProcessorState,
    "texts": TextState,
    "lists": ListState,
    "maps": MapState,
    "aggregation": AggregationState,
    "windows": lambda: _windows(FixedWindows("t", 1000, 1000)),
    "sessions": lambda: _windows(SessionWindows("t", 1000)),
    "join": lambda: _join("inner"),
    "outer join": lambda: _join("left"),
    "duplicates": lambda: TimedState(DropDuplicates(TIMED, ("k",))),
    "timers": TimerState,
}


class OwnMemory:
    """The private memory of this process at its most, in MiB, looked at twenty times in a second."""

    def __init__(self) -> None:
        self.most = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="own-memory", daemon=True)

    def __enter__(self) -> OwnMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            self.most = max(self.most, own_bytes(os.getpid()) / (1 << 20))


def run(folder: Path, keys: int, state: ManyKeys, rounds: int = ROUNDS) -> Figures:
    """Fill a state, change it, and take checkpoints of it."""
    chance = np.random.default_rng(1)
    figures: Figures = {}
    with OwnMemory() as memory:
        began = time.monotonic()
        for first in range(0, keys, BATCH):
            state.add(np.arange(first, min(keys, first + BATCH)))
        figures["fill_seconds"] = time.monotonic() - began
        began, used = time.monotonic(), time.process_time()
        for _ in range(rounds):
            state.add(chance.integers(0, keys, BATCH))
        figures["rows_a_second"] = rounds * BATCH / (time.monotonic() - began)
        figures["rows_a_processor_second"] = rounds * BATCH / (time.process_time() - used)
        figures |= _checkpoints(state, folder, keys, chance)
    return figures | {"own_mib": memory.most}


def restore(folder: Path, state: ManyKeys) -> Figures:
    """Begin with the newest checkpoint."""
    storage = CheckpointStorage(str(folder))
    metadata = storage.newest().metadata
    assert metadata is not None  # noqa: S101 - one was written
    with OwnMemory() as memory:
        began, used = time.monotonic(), time.process_time()
        state.restore(StoredState(storage, metadata.parts[PART], contextlib.nullcontext))
        seconds, used = time.monotonic() - began, time.process_time() - used
    return {"restore_seconds": seconds, "restore_processor_seconds": used, "restored_mib": memory.most}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keys", type=int, default=20_000_000)
    parser.add_argument("--limit", type=int, default=512, help="MiB of private memory of a process with files")
    parser.add_argument("--folder", type=Path, help="where state and checkpoints lie; a temporary one if not given")
    parser.add_argument("--only", choices=("run", "restore"), help=argparse.SUPPRESS)
    parser.add_argument("--store", choices=STORES, help="one of both alone")
    parser.add_argument("--state", choices=STATES, default="processor", help="whose state it is")
    options = parser.parse_args(arguments)
    if options.only:
        _only(options)
        return 0
    found: dict[str, Figures] = {}
    for store in [options.store] if options.store else STORES:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as folder:
            _show(f"{store}, {options.state}, {options.keys:,} keys", run := _child(options, store, folder, "run"))
            _show("restored", restored := _child(options, store, folder, "restore"))
        found[store] = run | restored
    if len(found) == len(STORES):
        memory, files = (found[store] for store in STORES)
        _show("files by memory", {name: files[name] / memory[name] for name in COMPARED})
    return 0


def _show(title: str, figures: Figures) -> None:
    sys.stdout.write(f"{title}\n")
    sys.stdout.writelines(f"  {name:<26}{value:>16,.2f}\n" for name, value in figures.items())
    sys.stdout.flush()


def _only(options: argparse.Namespace) -> None:
    """Do one part in this process, and write its figures as JSON."""
    files = None
    if options.store == "files":
        resource.setrlimit(resource.RLIMIT_DATA, (options.limit << 20,) * 2)
        files = StateFiles([str(options.folder)])
    with state_in(files):
        state = STATES[options.state]()
        at = options.folder / "at"
        found = run(at, options.keys, state) if options.only == "run" else restore(at, state)
    json.dump(found, sys.stdout)


def _child(options: argparse.Namespace, store: str, folder: str, only: str) -> Figures:
    command = [sys.executable, "-m", "penstock_bench.large_state", "--only", only, "--store", store]
    command += ["--keys", str(options.keys), "--limit", str(options.limit), "--folder", folder]
    command += ["--state", options.state]
    ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)  # it says itself why it failed
    if ended.returncode:
        raise SystemExit(f"{store}, {options.state}: {only} ended with {ended.returncode}")
    figures: Figures = json.loads(ended.stdout)
    return figures


def _checkpoints(state: ManyKeys, folder: Path, keys: int, chance: np.random.Generator) -> Figures:
    """One that is whole, and three with one key of a hundred changed: the slowest of these counts."""
    storage = CheckpointStorage(str(folder))
    storage.claim()
    mailbox = MemoryMailbox(MemoryHost("bench"))
    store = SnapshotStore(str(folder), storage.owner, PART, mailbox)
    found: Figures = {}
    for number in range(1, 5):
        began = time.monotonic()
        chunks = state.snapshot(number)
        stood = time.monotonic() - began
        store.store(TakenSnapshot(number, chunks))
        del chunks
        wait_until(lambda number=number: len(mailbox.acknowledged) == number, "it is stored", PATIENCE)  # type: ignore[misc]
        part = unpack_part(mailbox.acknowledged[-1].handle)
        storage.commit(CheckpointMetadata(number, 0.0, {PART: part}))
        state.completed(number)
        kind = "whole" if number == 1 else "changed"
        figures = {"barrier_ms": 1000 * stood, "seconds": time.monotonic() - began, "mb": part.size / 1e6}
        if number > 1:
            figures["fsync_seconds"] = _synced(folder)
        for name, value in figures.items():
            found[f"{kind}_{name}"] = max(found.get(f"{kind}_{name}", 0.0), value)
        for first in range(0, keys // CHANGED, BATCH):
            state.add(chance.integers(0, keys, min(BATCH, keys // CHANGED - first)))
    store.close()
    return found


def _synced(folder: Path) -> float:
    """The seconds in which the disk has some bytes that are written to it."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began = time.monotonic()
        file.write(bytes(SYNCED))
        os.fsync(file.fileno())
        return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
