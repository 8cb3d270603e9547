# SPDX-License-Identifier: Apache-2.0
"""The first rows of each key by an order, kept up while rows come: a changelog that is read by key and rank.

A row is given with its rank, from 1, whenever another row has taken that rank. So the newest row of each key and rank
is the result: nothing is taken back in any other way, because the number of ranks of a key never falls. Of rows that
are equal in the order the one that came first stays ahead; nulls are last in either direction.
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
from penstock.record.layout import fixed_values, int64_array
from penstock.stream.arrow_pieces import width_of
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.increments import Chains
from penstock.stream.key_index import Slots, key_index
from penstock.stream.keyed_state import (
    ABOUT,
    chained_chunks,
    key_columns,
    refuse_other,
    restored_changes,
    restored_rows,
)
from penstock.stream.run_rows import taken_of
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
    """One subtask's keys and rows: rank `r` of slot `s` lies in place `s * count + r`."""

    def __init__(self, operator: TopRows) -> None:
        self._operator = operator
        self._index = key_index([plain(pa.nulls(0, operator.schema.field(key).type)).type for key in operator.keys])
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
            places = self._index.slots(keys) * self._operator.count + ranks
            columns = batch.columns[len(keys) + 1 :]
            self._rows.put(places, pa.RecordBatch.from_arrays(columns, schema=self._operator.schema))

    def check(self, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> None:
        """Raise CheckpointError where the rows of a checkpoint are of another order."""
        if ABOUT in names:
            refuse_other(self._what, read(ABOUT), self.name)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The rows whose rank is new."""
        count = self._operator.count
        slots = self._slots(batch)
        touched = np.unique(slots)
        places = (touched[:, None] * count + np.arange(count)).ravel()
        places = places[self._rows.known(places)]
        before = self._rows.take(places) if len(places) else batch.slice(0, 0)
        rows = pa.concat_batches([before, batch.cast(before.schema)])
        owners = np.concatenate([places // count, slots])
        order, ranks = self._ranked(rows, owners)
        first = ranks < count
        order, ranks = order[first], ranks[first]
        now = owners[order] * count + ranks
        stays = np.zeros(len(order), np.bool_)
        old = order < len(places)
        stays[old] = places[order[old]] == now[old]
        changed = np.flatnonzero(~stays)
        if not len(changed):
            return ()
        found = rows.take(int64_array(order[changed]))
        self._chains.changed(now[changed])
        self._rows.put(now[changed], found)
        return (self._given(found, ranks[changed]),)

    def all_rows(self) -> Iterator[pa.RecordBatch]:
        """All rows with their ranks."""
        places = self._places()
        for first in range(0, len(places), _OUTPUT_ROWS):
            part = places[first : first + _OUTPUT_ROWS]
            yield self._given(self._rows.take(part), part % self._operator.count)

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """All rows, by key and rank; a large state refers to what older checkpoints hold."""
        count = len(self._index) * self._operator.count
        keys = self._index.frozen_keys(0, len(self._index))
        rows = _FrozenRanks(keys, self._rows.frozen(count), (self._operator.count, count))
        return chained_chunks(self._what, (checkpoint, self._context), self._chains, rows, rows, len(keys))

    def completed(self, checkpoint: int) -> None:
        """Snapshots may refer to it from here on."""
        self._chains.completed(checkpoint)

    def metrics(self) -> dict[str, float]:
        """Keys that have state."""
        return {"state_rows": float(len(self._index))}

    @property
    def _what(self) -> str:
        return f"{self.name} ({', '.join(str(field.type) for field in self._operator.schema)})"

    def _slots(self, batch: pa.RecordBatch) -> Slots:
        return self._index.slots([plain(batch.column(key)) for key in self._operator.keys])

    def _places(self) -> npt.NDArray[np.int64]:
        places = np.arange(len(self._index) * self._operator.count, dtype=np.int64)
        return places[self._rows.known(places)]

    def _ranked(self, rows: pa.RecordBatch, owners: Slots) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The rows in order by owner, and the rank of each among those of its owner, from 0."""
        turns = int64_array(np.arange(len(owners)))
        keys = [(_SLOT, "ascending")]
        keys += [(name, "ascending" if ascending else "descending") for name, ascending in self._operator.columns]
        names = [name for name, _ in self._operator.columns]
        table = pa.table([int64_array(owners), *(rows.column(name) for name in names), turns], [_SLOT, *names, _TURN])
        order = fixed_values(pc.sort_indices(table, sort_keys=[*keys, (_TURN, "ascending")]), np.dtype(np.uint64))
        order = order.astype(np.int64)
        sorted_owners = owners[order]
        begins = np.flatnonzero(np.r_[True, sorted_owners[1:] != sorted_owners[:-1]])
        lengths = np.diff(np.r_[begins, len(order)])
        return order, np.arange(len(order)) - np.repeat(begins, lengths)

    def _given(self, rows: pa.RecordBatch, ranks: npt.NDArray[np.int64]) -> pa.RecordBatch:
        columns = [*rows.columns, int64_array(np.ascontiguousarray(ranks + 1))]
        return pa.RecordBatch.from_arrays(columns, schema=self._operator.result_schema)


class _FrozenRanks:
    """The rows of all places at one moment, with their keys and ranks."""

    def __init__(self, keys: Sequence[pa.Array | pa.ChunkedArray], rows: FrozenRows, places: tuple[int, int]) -> None:
        self._keys = keys
        self._rows = rows
        self._ranks, self._count = places
        self.width = width_of(keys, self._count // self._ranks) + rows.width

    def __len__(self) -> int:
        return self._count

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
        keys = [taken_of(key, places // self._ranks) for key in self._keys]
        return places, [*keys, int64_array(places % self._ranks), *rows]
