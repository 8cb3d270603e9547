# SPDX-License-Identifier: Apache-2.0
"""Snapshots of rows that come and go: by slot, as batches that came, and by the keys of which rows went.

The watermark takes rows away, and says after a restore which ones it had taken. So rows in older pieces that are over
need no mention in later ones: a restore leaves them out. Rows may go otherwise too, or change; then a later piece has
all rows of their keys, and those in older pieces do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.group_merges import boolean_array
from penstock.record.layout import int64_array
from penstock.stream.arrow_pieces import PIECE_BYTES, width_of
from penstock.stream.chain import Buffer, Chunk, State, StepContext
from penstock.stream.increments import CHANGED, Chains, change_prefix
from penstock.stream.key_index import KeyIndex, Slots, key_index
from penstock.stream.keyed_state import (
    CHUNK_ROWS,
    FrozenKeys,
    KeyedTable,
    OwnBatches,
    about_chunk,
    changed_rows_name,
    key_columns,
    ranges,
    rows_as_bytes,
    whole_chunks,
)
from penstock.stream.run_rows import taken_of

Mask = npt.NDArray[np.bool_]
Columns = list[pa.Array]
_ROWS = "rows."


class FrozenOfSlots(Protocol):
    """The states of slots at one moment."""

    @property
    def width(self) -> float:
        """The bytes of a slot's states, on average."""

    def of(self, slots: Slots) -> tuple[Slots, Sequence[pa.Array | pa.ChunkedArray]]:
        """Of these slots, which are in ascending order, those that have a state, and the columns of these."""


class LiveRows:
    """Keys and states of slots at one moment, those that `is_live` keeps: it is asked when they are stored."""

    def __init__(self, index: FrozenKeys, states: FrozenOfSlots, is_live: Callable[[Columns], Mask]) -> None:
        self._count = len(index)
        self._keys = index.frozen_keys(0, self._count)
        self._states = states
        self._is_live = is_live

    def __len__(self) -> int:
        return self._count

    @property
    def key_columns(self) -> int:
        """The number of columns that are keys."""
        return len(self._keys)

    @property
    def width(self) -> float:
        """The bytes of a slot's keys and states, on average."""
        return width_of(self._keys, self._count) + self._states.width

    def frozen_keys(self, start: int, end: int) -> Columns:
        """None: they are among the columns."""
        return []

    def columns(self, start: int, end: int) -> Columns:
        """Keys and states of a range of slots."""
        return self.of(np.arange(start, end, dtype=np.int64))[1]

    def of(self, slots: Slots) -> tuple[Slots, Columns]:
        """The same of these slots, which are in ascending order."""
        slots, states = self._states.of(slots)
        found = [*(taken_of(column, slots) for column in self._keys), *map(_whole, states)]
        live = self._is_live(found)
        if live.all():
            return slots, found
        mask = boolean_array(live)
        return slots[live], [column.filter(mask) for column in found]


def added_chunks(
    what: str,
    place: tuple[int, StepContext],
    chains: Chains,
    table: KeyedTable,
    piece: Callable[[Sequence[pa.RecordBatch]], pa.RecordBatch],
) -> list[Chunk]:
    """The chunks of rows that are only ever added: all of `table`, or those of the batches that `chains` has noted.

    `piece` makes of noted batches the rows that are stored. The storing thread calls it.
    """
    checkpoint, context = place

    def changed(noted: Sequence[pa.RecordBatch]) -> list[Chunk]:
        return [
            (changed_rows_name(checkpoint, number), _Added(batches, piece, table.keys))
            for number, batches in enumerate(_grouped(noted))
        ]

    rows = chains.chunks(checkpoint, len(table), lambda: whole_chunks(table, table), changed)
    return [about_chunk(what, context), *rows]


class _Added:
    """Makes the bytes of rows that came."""

    def __init__(
        self,
        batches: Sequence[pa.RecordBatch],
        piece: Callable[[Sequence[pa.RecordBatch]], pa.RecordBatch],
        keys: int,
    ) -> None:
        self._batches = batches
        self._piece = piece
        self._keys = keys

    def __call__(self) -> list[Buffer]:
        return rows_as_bytes(self._piece(self._batches).columns, self._keys)


class ReplacedKeys(Protocol):
    """The keys whose rows a piece has, all of them."""

    def columns(self) -> Columns:
        """The keys."""

    def has(self, start: int, end: int) -> Mask:
        """A mask of the rows in a range of all that are of one of these keys."""


def replaced_chunks(
    what: str,
    place: tuple[int, StepContext],
    chains: Chains,
    rows: tuple[KeyedTable, int],
    replaced: Callable[[Sequence[pa.RecordBatch]], ReplacedKeys],
) -> list[Chunk]:
    """The chunks of a table's rows, or of those of the keys that `chains` has noted.

    `rows` are the table and the number of what is noted of it: keys, or rows where keys are not counted.
    """
    (table, count), (checkpoint, context) = rows, place

    def changed(noted: Sequence[pa.RecordBatch]) -> list[Chunk]:
        keys = replaced(noted)
        found: list[Chunk] = [(f"{change_prefix(checkpoint)}.keys.0", lambda: _keys_as_bytes(keys.columns()))]
        found += [
            (changed_rows_name(checkpoint, number), _Replaced(table, keys, part))
            for number, part in enumerate(ranges(len(table), table.row_width))
        ]
        return found if noted else []

    made = chains.chunks(checkpoint, count, lambda: whole_chunks(table, table), changed)
    return [about_chunk(what, context), *made]


class _Replaced:
    """Makes the bytes of the rows of some keys in a range of all."""

    def __init__(self, table: KeyedTable, keys: ReplacedKeys, place: tuple[int, int]) -> None:
        self._table = table
        self._keys = keys
        self._range = place

    def __call__(self) -> list[Buffer]:
        at = int64_array(np.flatnonzero(self._keys.has(*self._range)))
        columns = [*self._table.frozen_keys(*self._range), *self._table.columns(*self._range)]
        return rows_as_bytes([column.take(at) for column in columns], self._table.keys)


class KeysOfBatches:
    """The keys that batches have in their first columns, and which rows of a table are theirs."""

    def __init__(self, batches: Sequence[pa.RecordBatch], table: KeyedTable) -> None:
        self._batches = batches
        self._table = table
        self._made: KeyIndex | None = None

    def columns(self) -> Columns:
        """The keys, each once."""
        return [_whole(column) for column in self._index.frozen_keys(0, len(self._index))]

    def has(self, start: int, end: int) -> Mask:
        """A mask of the rows in a range of the table that are of one of these keys."""
        keys = [_whole(column) for column in self._table.frozen_keys(start, end)]
        if not keys:
            return np.ones(end - start, np.bool_)
        return np.asarray(self._index.find(keys) >= 0)

    @property
    def _index(self) -> KeyIndex:
        if self._made is None:
            count = self._table.keys
            self._made = key_index(self._batches[0].schema.types[:count])
            for batch in self._batches:
                self._made.slots(batch.columns[:count] or batch.columns)
        return self._made


def replaced_rows(what: str, restored: Sequence[State], context: StepContext) -> Iterator[pa.RecordBatch]:
    """This subtask's rows of chains of keys whose rows were replaced: of each key those of the newest piece."""
    for state in restored:
        own = OwnBatches(what, state, context)
        seen: KeyIndex | None = None
        starts = sorted({".".join(name.split(".")[:2]) for name in state if name.startswith(CHANGED)}, reverse=True)
        for start in [*(f"{start}." for start in starts), ""]:
            for name in (name for name in state if name.startswith(f"{start}{_ROWS}")):
                for batch in own.of(name):
                    yield _not_seen(batch, seen)
            for batch in own.of(f"{start}keys.0") if f"{start}keys.0" in state else ():
                keys = key_columns(batch)
                seen = key_index([key.type for key in keys]) if seen is None else seen
                seen.slots(keys or batch.columns)


def _not_seen(batch: pa.RecordBatch, seen: KeyIndex | None) -> pa.RecordBatch:
    if seen is None:
        return batch
    is_new = seen.find(key_columns(batch) or batch.columns) < 0
    return batch if is_new.all() else batch.filter(boolean_array(is_new))


def _keys_as_bytes(keys: Columns) -> list[Buffer]:
    """Keys as an Arrow stream; a column beside them says how many they are where they have none."""
    count = len(keys[0]) if keys else 1
    return rows_as_bytes([*keys, pa.nulls(count, pa.int8())], len(keys))


def _grouped(batches: Sequence[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches that are not too many rows for one chunk, unless one is."""
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if group and (rows + batch.num_rows > CHUNK_ROWS or size + batch.nbytes > PIECE_BYTES):
            yield group
            group, rows, size = [], 0, 0
        group.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if group:
        yield group


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
