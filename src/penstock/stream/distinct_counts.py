# SPDX-License-Identifier: Apache-2.0
"""Exact distinct counts, kept as pairs of a key's slot and a value: a row costs the same however many values came.

Lists of values by key would be made anew with each step. Here values have numbers, as keys have slots, and a pair is
the word of both: a batch finds its words in one table, and those that are new count for their keys. To number the
pairs of two columns as keys took four times as long. Values are compared as those that rows are grouped by; null is
no value.

In a checkpoint a pair is a row: the key, and the value. So a chunk has as many values as another one has keys,
however many of them one key has. Pairs are only ever added, so a snapshot is a reference to the first ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate_states import Aggregation
from penstock.operators.aggregates import plain_type
from penstock.operators.keys import numbered
from penstock.record.layout import int64_array, null_mask
from penstock.stream.arrow_pieces import width_of
from penstock.stream.chain import Chunk, State, StepContext, chunks_of
from penstock.stream.increments import Chains
from penstock.stream.key_index import KeyIndex, Slots, Words, WordTable, key_index
from penstock.stream.keyed_state import (
    ABOUT,
    chained_chunks,
    key_columns,
    refuse_other,
    restored_changes,
    restored_rows,
)
from penstock.stream.run_rows import taken_of
from penstock.stream.slot_array import SlotArray
from penstock.stream.state_place import bytes_of

_NAMES = ("count_distinct", "countdistinct")
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def counts_distinct(aggregation: Aggregation) -> bool:
    """Tell whether it is an exact distinct count."""
    return aggregation.function.lower() in _NAMES


class DistinctCounts:
    """The distinct values of one column for each key of `index`."""

    def __init__(self, place: int, aggregation: Aggregation, schema: pa.Schema, index: KeyIndex) -> None:
        self._prefix = f"distinct.{place}"
        self._title = aggregation.title
        self._kind = plain_type(schema.field(aggregation.column).type)
        self._index = index
        self._values = key_index([self._kind])
        self._pairs = WordTable()
        """Words of a slot, in the upper half, and the number of a value."""
        self._counts = SlotArray(np.int64)
        self._chains = Chains()

    def add(self, column: pa.Array, slots: Slots, count: int) -> None:
        """Take the rows of a batch: `slots` says whose each is, and `count` slots there are in all."""
        missing = null_mask(column)
        if missing is not None:
            column, slots = column.drop_null(), slots[~missing]
        known = len(self._pairs)
        if len(slots):
            words = slots.view(np.uint64) << _HALF | self._values.slots([column]).view(np.uint64)
            new = words[self._pairs.find(words) < 0]
            if len(new):
                self._pairs.add(numbered(new.view(np.int64))[1].view(np.uint64))
        self._chains.added(np.arange(known, len(self._pairs), dtype=np.int64), len(self._pairs))
        owners = _owners(self._pairs.words[known:])
        np.add.at(self._counts.writable(owners, count), owners, 1)

    def result(self, slots: Slots) -> pa.Array:
        """The counts of these slots, never null."""
        return int64_array(self._counts.at(slots))

    def snapshot(self, checkpoint: int, context: StepContext) -> list[Chunk]:
        """The pairs as they are now: those that older checkpoints hold are referred to."""
        pairs = _FrozenPairs(self._pairs.words, self._values, self._index)
        chunks = chained_chunks(self._what, (checkpoint, context), self._chains, pairs, pairs, pairs.key_columns)
        return [(f"{self._prefix}/{name}", make) for name, make in chunks]

    def completed(self, checkpoint: int) -> None:
        """Snapshots may refer to it from here on."""
        self._chains.completed(checkpoint)

    def restore(self, restored: Sequence[State], context: StepContext) -> None:
        """Take the pairs whose keys are this subtask's; raises CheckpointError for those of another count."""
        own = [chunks_of(state, self._prefix) for state in restored]
        rows = restored_rows(self._what, own, context)
        for batch in itertools.chain(rows, restored_changes(self._what, own, context)):
            values = batch.column(batch.num_columns - 1)
            slots = self._index.slots(key_columns(batch) or [values])
            self.add(values, slots, len(self._index))

    @property
    def nbytes(self) -> int:
        """The bytes of all."""
        return bytes_of((self._values, self._pairs, self._counts))

    def check(self, names: Collection[str], read: Callable[[str], Sequence[bytes]], place: str) -> None:
        """Raise CheckpointError where the pairs of a checkpoint are of another count."""
        if f"{self._prefix}/{ABOUT}" in names:
            refuse_other(self._what, read(f"{self._prefix}/{ABOUT}"), place)

    @property
    def _what(self) -> str:
        return f"distinct values of {self._title} ({self._kind})"


class _FrozenPairs:
    """The first pairs; keys and values are looked up when the chunks are stored."""

    def __init__(self, words: Words, values: KeyIndex, index: KeyIndex) -> None:
        self._words = words
        (self._values,) = values.frozen_keys(0, len(values))
        self._keys = index.frozen_keys(0, len(index))
        self.width = width_of([self._values], len(values)) + width_of(self._keys, len(index))

    def __len__(self) -> int:
        return len(self._words)

    def frozen_keys(self, start: int, end: int) -> list[pa.Array]:
        """None: they are among the columns, because to look them up takes long."""
        return []

    @property
    def key_columns(self) -> int:
        """The number of columns that are keys."""
        return len(self._keys)

    def columns(self, start: int, end: int) -> list[pa.Array | pa.ChunkedArray]:
        """The keys and the value of a range of pairs."""
        return self._of(self._words[start:end])

    def of(self, slots: Slots) -> tuple[Slots, list[pa.Array | pa.ChunkedArray]]:
        """The same of these pairs."""
        return slots, self._of(self._words[slots])

    def _of(self, words: Words) -> list[pa.Array | pa.ChunkedArray]:
        owners = _owners(words)
        keys = [taken_of(column, owners) for column in self._keys]
        return [*keys, taken_of(self._values, (words & _LOW).view(np.int64))]


def _owners(words: Words) -> Slots:
    return (words >> _HALF).view(np.int64)
