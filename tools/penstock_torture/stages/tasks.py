# SPDX-License-Identifier: Apache-2.0
"""The tasks of one stage, without a clock, a thread or a file; and checkpoints whose pieces refer to older ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.checkpoint.metadata import Chunk as StoredChunk
from penstock.checkpoint.storage import pieces_of
from penstock.record.key_groups import GroupOwners, group_range
from penstock.stream.chain import Chain, Chunk, StepContext
from penstock.stream.steps import step_of
from penstock.stream.watermarks import EventTimeProgress
from penstock.testing import VirtualClock

GROUPS = 16
WIDTHS = (1, 2, 3, 7)
State = dict[str, bytes]
TINY = {
    "stream.increments.LEAST_SLOTS": 0,
    "stream.increments._LEAST_BYTES": 1,
    "stream.duplicates._SPARE": 1,
    "stream.stream_join._SPARE": 1,
    "stream.window_updates._SPARE": 1,
    "stream.join_side.MOST_PAIRS": 3,
    "stream.keyed_state.CHUNK_ROWS": 2,
    "stream.state_rows.SPARE_ROWS": 1,
    "stream.state.store.SPARE": 1,
    "stream.state.list_rows.SPARE_ROWS": 1,
    "stream.state.stored._KEYS": 2,
    "operators.window_aggregates.OUTPUT_ROWS": 2,
    "operators.window_aggregates._MERGE_ROWS": 2,
}
"""Sizes from which a state is compacted, cut, or written in pieces, as small as they can be."""


@contextmanager
def tiny_thresholds(wanted: bool) -> Iterator[None]:
    """With those sizes, where they are wanted."""
    before = []
    for place, value in TINY.items() if wanted else ():
        module, _, name = place.rpartition(".")
        loaded = import_module(f"penstock.{module}")
        before.append((loaded, name, getattr(loaded, name)))
        setattr(loaded, name, value)
    try:
        yield
    finally:
        for loaded, name, former in before:
            setattr(loaded, name, former)


class Tasks:
    """`width` tasks of a stage, whose rows are dealt out by so many columns, which are the first ones."""

    def __init__(self, operator: Any, keys: int, width: int, clock: VirtualClock) -> None:
        self._operator = operator
        self._keys = keys
        self._clock = clock
        self.width = width
        self.chains: list[Chain] = []
        self.open(width, [])

    def open(self, width: int, states: Sequence[State]) -> None:
        """Begin so many tasks with the states of all that were there."""
        self.close()
        self.width = width
        self.chains = [Chain([("it", step_of(self._operator))]) for _ in range(width)]
        for task, chain in enumerate(self.chains):
            own = [states[task]] if width == len(states) else list(states)
            chain.open(StepContext(task, width, GROUPS, "the stage", clock=self._clock), own)

    def push(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The rows that these give, to the end of their epoch."""
        found: list[pa.RecordBatch] = []
        for batch in batches:
            owners = self._owners(batch)
            for task, chain in enumerate(self.chains):
                own = batch.take(pa.array(np.flatnonzero(owners == task)))
                if own.num_rows:
                    found += chain.push(own)
                    found += chain.end_epoch()
        return found

    def advance(self, task: int, watermark: int) -> list[pa.RecordBatch]:
        """The rows that a watermark gives."""
        return self.chains[task].advance(EventTimeProgress(watermark), 0.0)[0]

    def fire(self) -> list[pa.RecordBatch]:
        """The rows that the clock gives."""
        found: list[pa.RecordBatch] = []
        for chain in self.chains:
            while (wait := chain.wake_in) is not None and wait <= 0:
                found += chain.time_passed()
        return found

    def groups(self, task: int) -> list[int]:
        """The key groups of a task; of a stage without keys the one group is the first task's."""
        return list(group_range(GROUPS, self.width, task)) if self._keys else [0] * (task == 0)

    def close(self) -> None:
        """End all; idempotent."""
        chains, self.chains = self.chains, []
        for chain in chains:
            chain.close()

    def _owners(self, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
        if not self._keys:
            return np.zeros(batch.num_rows, np.int64)
        return np.asarray(GroupOwners(GROUPS, self.width).of(batch.columns[: self._keys]))


def groups_of(columns: Sequence[pa.Array]) -> list[int]:
    """The key group of each row."""
    found: list[int] = np.asarray(GroupOwners(GROUPS, GROUPS).of(columns)).tolist()
    return found


class Checkpoints:
    """Those of a stage: some fail, tasks hear of some late or never, and what only older ones needed goes."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._numbers = itertools.count(1)
        self._files: dict[str, bytes] = {}
        self._untold = 0

    def forget(self) -> None:
        """The tasks are others, which are told of nothing that was before."""
        self._untold = 0

    def take(self, tasks: Tasks) -> list[State] | None:
        """The states as a restore would read them; None where it failed."""
        if self._untold and self._chance.random() < 0.5:
            self._tell(tasks)
        number, needed = next(self._numbers), set[str]()
        own: set[str] = set()
        states = [
            self._stored(f"{number}/{task}", chain.snapshot(number), needed, own)
            for task, chain in enumerate(tasks.chains)
        ]
        if self._chance.random() < 0.2:
            self._files = {file: data for file, data in self._files.items() if file not in own}
            return None
        self._files = {file: data for file, data in self._files.items() if file in needed}
        self._untold = number
        if self._chance.random() < 0.7:
            self._tell(tasks)
        return states

    def _tell(self, tasks: Tasks) -> None:
        for chain in tasks.chains:
            chain.completed(self._untold)

    def _stored(self, place: str, chunks: Sequence[Chunk], needed: set[str], own: set[str]) -> State:
        state: State = {}
        tells_places = self._chance.random() < 0.9  # the host's store, which tells none, writes it else
        for name, make in chunks:
            made = make()
            if isinstance(made, StoredChunk):
                file = made.file
            else:
                file = f"{place}/{name}"
                own.add(file)
                self._files[file] = b"".join(pieces_of(made))
                written: Callable[[StoredChunk], None] | None = getattr(make, "written", None)
                if tells_places and written is not None:
                    written(StoredChunk(name, 0, len(self._files[file]), 0, file))
            needed.add(file)
            state[name] = self._files[file]
        return state
