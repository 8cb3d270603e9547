# SPDX-License-Identifier: Apache-2.0
"""The first rows of each key by an order, kept up while rows come: a changelog that is read by key and rank.

A row is given with its rank, from 1, whenever another row has taken that rank. So the newest row of each key and rank
is the result: nothing is taken back in any other way, because the number of ranks of a key never falls. Of rows that
are equal in the order the one that came first stays ahead; nulls are last in either direction. Otherwise the order is
that of `ordering`: NaN is above all numbers.

The rows of a key lie in places that follow each other, as many as it needs: twice as many when these are full. So
memory is that of the rows that are there, whatever `count` is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.graph import INTERNAL
from penstock.operators.keys import plain
from penstock.operators.ordering import comparable
from penstock.record.layout import fixed_values, int64_array
from penstock.stream.arrow_pieces import width_of
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.increments import Chains
from penstock.stream.key_index import Grown, Slots, key_index
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
from penstock.stream.state_place import bytes_of, state_figures
from penstock.stream.state_rows import FrozenRows, StateRows

RANK = "rank"
_OUTPUT_ROWS = 1 << 16
_SLOT, _TURN = f"{INTERNAL}slot", f"{INTERNAL}turn"


@dataclass(frozen=True, slots=True)
class TopRows:
    """The first `count` rows of each key by `columns`, each with its direction, after an exchange by the keys."""

    schema: pa.Schema
    keys: tuple[str, ...]
    count: int
    columns: tuple[tuple[str, bool], ...]
    uid: str = ""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        order = ", ".join(f"{name} {'ascending' if ascending else 'descending'}" for name, ascending in self.columns)
        return f"top {self.count} by {', '.join(self.keys)}: {order}"

    @property
    def result_schema(self) -> pa.Schema:
        """The rows with their rank."""
        return self.schema.append(pa.field(RANK, pa.int64(), nullable=False))

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each rank once, at the end of the input."""
        step = TopStep(self)
        for batch in batches:
            for _ in step.process(batch):
                pass
        yield from step.all_rows()

    def step(self) -> TopStep:
        """The step of one subtask."""
        return TopStep(self)


class TopStep(PlainStep):
    """One subtask's keys and rows."""

    def __init__(self, operator: TopRows) -> None:
        self._operator = operator
        self._index = key_index([plain(pa.nulls(0, operator.schema.field(key).type)).type for key in operator.keys])
        self._places = _RankLayout(operator.count)
        self._rows = StateRows(operator.schema)
        self._chains = Chains()
        self._context = StepContext(0, 1, 1, "")

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._operator.name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Take this subtask's rows; raises CheckpointError for those of another order."""
        self._context = context
        rows, changes = (read(self._what, restored, context) for read in (restored_rows, restored_changes))
        for batch in itertools.chain(rows, changes):
            keys = key_columns(batch)
            ranks = fixed_values(batch.column(len(keys)), np.dtype(np.int64))
            slots = self._index.slots(keys or [batch.column(0)])
            touched = np.unique(slots)
            counts = np.zeros(len(touched), np.int64)
            np.maximum.at(counts, np.searchsorted(touched, slots), ranks + 1)
            self._have(touched, np.maximum(counts, self._places.counts(touched)))
            columns = batch.columns[len(keys) + 1 :]
            rows = pa.RecordBatch.from_arrays(columns, schema=self._operator.schema)
            self._rows.put(self._places.of(slots, ranks), rows)

    def check(self, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> None:
        """Raise CheckpointError where the rows of a checkpoint are of another order."""
        if ABOUT in names:
            refuse_other(self._what, read(ABOUT), self.name)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The rows whose rank is new."""
        slots = self._slots(batch)
        touched, come = np.unique(slots, return_counts=True)
        counts = self._places.counts(touched)
        owners, before = _spread(touched, counts)
        rows = batch
        if len(owners):
            known = self._rows.take(self._places.of(owners, before))
            rows = pa.concat_batches([known, batch.cast(known.schema)])
        own = np.concatenate([owners, slots])
        order, ranks = self._ranked(rows, own)
        first = ranks < self._operator.count
        order, ranks = order[first], ranks[first]
        is_new = order >= len(owners)
        is_new[~is_new] = before[order[~is_new]] != ranks[~is_new]
        if not is_new.any():
            return ()
        order, ranks = order[is_new], ranks[is_new]
        found = rows.take(int64_array(order))
        self._have(touched, np.minimum(counts + come, self._operator.count))
        places = self._places.of(own[order], ranks)
        self._chains.changed(places)
        self._rows.put(places, found)
        return (self._given(found, ranks),)

    def all_rows(self) -> Iterator[pa.RecordBatch]:
        """All rows with their ranks."""
        slots = np.arange(len(self._index), dtype=np.int64)
        owners, ranks = _spread(slots, self._places.counts(slots))
        for first in range(0, len(owners), _OUTPUT_ROWS):
            own, some = owners[first : first + _OUTPUT_ROWS], ranks[first : first + _OUTPUT_ROWS]
            yield self._given(self._rows.take(self._places.of(own, some)), some)

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """All rows, by key and rank; a large state refers to what older checkpoints hold."""
        keys = self._index.frozen_keys(0, len(self._index))
        rows = _FrozenRanks(keys, self._rows.frozen(len(self._places)), self._places)
        return chained_chunks(self._what, (checkpoint, self._context), self._chains, rows, rows, len(keys))

    def completed(self, checkpoint: int) -> None:
        """Snapshots may refer to it from here on."""
        self._chains.completed(checkpoint)

    def metrics(self) -> dict[str, float]:
        """Keys that have state, and its bytes."""
        return state_figures(len(self._index), self._index, self._places, self._rows)

    @property
    def _what(self) -> str:
        return f"{self.name} ({', '.join(str(field.type) for field in self._operator.schema)})"

    def _slots(self, batch: pa.RecordBatch) -> Slots:
        return self._index.slots([plain(batch.column(key)) for key in self._operator.keys] or [batch.column(0)])

    def _have(self, slots: Slots, counts: Slots) -> None:
        """Have places for so many rows of each of these slots; rows of those that need more places move."""
        before, after = self._places.have(slots, counts)
        if len(before):
            self._rows.move(before, after)
            self._chains.changed(after)

    def _ranked(self, rows: pa.RecordBatch, owners: Slots) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The rows in order by owner, and the rank of each among those of its owner, from 0."""
        names = [_SLOT, *(f"{number}" for number, _ in enumerate(self._operator.columns)), _TURN]
        given = [comparable(rows.column(name)) for name, _ in self._operator.columns]
        turns = int64_array(np.arange(len(owners)))
        directions = [True, *(ascending for _, ascending in self._operator.columns), True]
        keys = [(name, "ascending" if up else "descending") for name, up in zip(names, directions, strict=True)]
        table = pa.table([int64_array(owners), *given, turns], names)
        order = fixed_values(pc.sort_indices(table, sort_keys=keys), np.dtype(np.uint64))
        order = order.astype(np.int64)
        sorted_owners = owners[order]
        begins = np.flatnonzero(np.r_[True, sorted_owners[1:] != sorted_owners[:-1]])
        lengths = np.diff(np.r_[begins, len(order)])
        return order, np.arange(len(order)) - np.repeat(begins, lengths)

    def _given(self, rows: pa.RecordBatch, ranks: npt.NDArray[np.int64]) -> pa.RecordBatch:
        columns = [*rows.columns, int64_array(np.ascontiguousarray(ranks + 1))]
        return pa.RecordBatch.from_arrays(columns, schema=self._operator.result_schema)


class _RankLayout:
    """The places of the rows of each slot, by rank; its ranks are those up to the number of its rows."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._starts = SlotArray(np.int64)
        self._counts = SlotArray(np.int64)
        self._rooms = SlotArray(np.int64)
        self.owners, self.numbers = Grown(np.int32), Grown(np.int32)
        """The slot and the rank of each place."""

    def __len__(self) -> int:
        return len(self.owners)

    @property
    def nbytes(self) -> int:
        return bytes_of((self._starts, self._counts, self._rooms, self.owners, self.numbers))

    def of(self, slots: Slots, ranks: Slots) -> Slots:
        """The place of each of these ranks, which are all there."""
        places: Slots = self._starts.at(slots) + ranks
        return places

    def counts(self, slots: Slots) -> Slots:
        """The number of rows of each of these slots."""
        return self._counts.at(slots)

    def have(self, slots: Slots, counts: Slots) -> tuple[Slots, Slots]:
        """Have so many rows of each of these slots: the places of rows that move, and those to which they do."""
        count = int(slots.max(initial=-1)) + 1
        grows = counts > self._rooms.at(slots)
        former = after = np.zeros(0, np.int64)
        if grows.any():
            own = slots[grows]
            moved, numbers = _spread(own, self._counts.at(own))
            former = self.of(moved, numbers)
            rooms = np.minimum(1 << np.ceil(np.log2(counts[grows])).astype(np.int64), self._most)
            self._rooms.writable(own, count)[own] = rooms
            self._starts.writable(own, count)[own] = len(self) + np.cumsum(rooms) - rooms
            for grown, values in zip((self.owners, self.numbers), _spread(own, rooms), strict=True):
                grown.extend(values.astype(np.int32))
            after = self.of(moved, numbers)
        self._counts.writable(slots, count)[slots] = counts
        return former, after


def _spread(slots: Slots, counts: Slots) -> tuple[Slots, Slots]:
    """So many of each slot: whose each is, and its number among those of the slot."""
    owners = np.repeat(slots, counts)
    return owners, np.arange(len(owners), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)


class _FrozenRanks:
    """The rows of all places at one moment, with their keys and ranks."""

    def __init__(self, keys: Sequence[pa.Array | pa.ChunkedArray], rows: FrozenRows, places: _RankLayout) -> None:
        self._keys = keys
        self._rows = rows
        self._owners, self._ranks = places.owners.values, places.numbers.values
        self.width = width_of(keys, len(keys[0]) if keys else 0) + rows.width

    def __len__(self) -> int:
        return len(self._owners)

    def frozen_keys(self, start: int, end: int) -> list[pa.Array]:
        """None: they are among the columns, because a place is no key."""
        return []

    def columns(self, start: int, end: int) -> list[pa.Array | pa.ChunkedArray]:
        """Of a range of places those that have a row: key, rank and row."""
        return self._with_keys(*self._rows.present(start, end))[1]

    def of(self, slots: Slots) -> tuple[Slots, list[pa.Array | pa.ChunkedArray]]:
        """The same of these places, which are in ascending order."""
        return self._with_keys(*self._rows.of(slots))

    def _with_keys(self, places: Slots, rows: list[pa.Array]) -> tuple[Slots, list[pa.Array | pa.ChunkedArray]]:
        owners = self._owners[places].astype(np.int64)
        keys = [taken_of(key, owners) for key in self._keys]
        return places, [*keys, int64_array(self._ranks[places].astype(np.int64)), *rows]
