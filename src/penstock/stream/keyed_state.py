# SPDX-License-Identifier: Apache-2.0
"""Keys and their states in a checkpoint: how they are written, and whose they are when they are read again.

A step's keyed state is the chunk `about` (msgpack: version, states, hash, max_parallelism, parallelism) and chunks
`rows.<n>` of some of the keys each: Arrow streams with the columns `key.<i>` and `#<j>`. The key group of a
row is `pmod(hash(key), max_parallelism)`, where the hash is Spark's for ever. A vertex of another parallelism gives
each of its subtasks the keys of its groups (`record/key_groups.py`).

States that note what changes may be written as a chain (`increments`): `changed.<checkpoint>.rows.<n>` has rows of
the same columns. Of most states they take the place of those of the same keys that come earlier; rows that are only
ever added, as panes of windows and rows of inner joins, are there beside them (`row_increments`). Of states that have
several rows of a key, some of which go, `changed.<checkpoint>.keys.0` has the keys, and the rows are all that these
have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgpack
import pyarrow as pa

from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError
from penstock.operators.group_merges import boolean_array
from penstock.record.key_groups import HASH, GroupOwners
from penstock.stream.arrow_pieces import rows_of_piece, rows_of_stream, stream_pieces, width_of
from penstock.stream.chain import Buffer, Chunk, State, StepContext
from penstock.stream.increments import CHANGED, Chains, ChangedSlots, change_prefix
from penstock.stream.key_index import Slots
from penstock.stream.run_rows import taken_of

VERSION: Final = 3
CHUNK_ROWS = 1 << 20
"""Rows of a chunk at most; those with many bytes are fewer (`arrow_pieces`)."""
ABOUT = "about"
_ROWS = "rows."


class FrozenStates(Protocol):
    """The states of all slots at one moment."""

    @property
    def width(self) -> float:
        """The bytes of a slot's states, on average, and of its keys if they are among them."""

    def columns(self, start: int, end: int) -> Sequence[pa.Array | pa.ChunkedArray]:
        """The state columns of a range of slots."""


class FrozenSlotStates(FrozenStates, Protocol):
    """The same, where some slots can be asked for."""

    def of(self, slots: Slots) -> tuple[Slots, Sequence[pa.Array | pa.ChunkedArray]]:
        """Of these slots, which are in ascending order, those that have a state, and the columns of these."""


class FrozenKeys(Protocol):
    """The keys of all slots at one moment."""

    def __len__(self) -> int:
        """The number of slots."""

    def frozen_keys(self, start: int, end: int) -> Sequence[pa.Array | pa.ChunkedArray]:
        """The key columns of a range of slots, as values that never change."""


class KeyedTable:
    """Keys and states that lie in batches, the first `keys` columns of which are the keys: each row is a slot."""

    def __init__(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema, keys: int) -> None:
        self._table = pa.Table.from_batches(batches, schema)
        self.keys = keys

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def width(self) -> float:
        """The bytes of a row's other columns, on average."""
        return width_of(self._table.columns[self.keys :], len(self))

    @property
    def row_width(self) -> float:
        """The bytes of a whole row, on average."""
        return width_of(self._table.columns, len(self))

    def frozen_keys(self, start: int, end: int) -> list[pa.ChunkedArray]:
        """The key columns of a range of rows."""
        return [column.slice(start, end - start) for column in self._table.columns[: self.keys]]

    def columns(self, start: int, end: int) -> list[pa.ChunkedArray]:
        """The other columns."""
        return [column.slice(start, end - start) for column in self._table.columns[self.keys :]]


def frozen_chunks(
    what: str, index: FrozenKeys, states: FrozenStates, context: StepContext, keys_in_states: int = 0
) -> list[Chunk]:
    """The chunks of all keys and their states; bytes are made when the chunks are stored.

    `what` says what the states are: rows of other states are not read back. Key columns that are made when the chunks
    are stored are the first `keys_in_states` columns of `states`.
    """
    return [about_chunk(what, context), *whole_chunks(index, states, keys_in_states)]


def chained_chunks(
    what: str,
    place: tuple[int, StepContext],
    chains: Chains,
    index: FrozenKeys,
    states: FrozenSlotStates,
    keys_in_states: int = 0,
) -> list[Chunk]:
    """The same for the checkpoint of this number: where few keys have changed, `chains` refers to the others.

    The owner of `chains` notes the slots that change, and tells it of checkpoints that are complete.
    """
    checkpoint, context = place
    count = len(index)

    def changed(noted: Sequence[Slots]) -> list[Chunk]:
        keys, slots = index.frozen_keys(0, count), ChangedSlots(noted)
        return [
            (changed_rows_name(checkpoint, number), _ChangedRows(keys, states, slots, place, keys_in_states))
            for number, place in enumerate(ranges(slots.most, width_of(keys, count) + states.width))
        ]

    rows = chains.chunks(checkpoint, count, lambda: whole_chunks(index, states, keys_in_states), changed)
    return [about_chunk(what, context), *rows]


def changed_rows_name(checkpoint: int, number: int) -> str:
    """The name of a chunk of rows that came, or changed, up to a checkpoint."""
    return f"{change_prefix(checkpoint)}.{_ROWS}{number}"


def about_chunk(what: str, context: StepContext) -> Chunk:
    """The chunk that says what the states are."""
    about: bytes = msgpack.packb(
        {
            "version": VERSION,
            "states": what,
            "hash": HASH,
            "max_parallelism": context.max_parallelism,
            "parallelism": context.parallelism,
        }
    )
    return ABOUT, lambda: about


def whole_chunks(index: FrozenKeys, states: FrozenStates, keys_in_states: int = 0) -> list[Chunk]:
    """The chunks of all rows."""
    count = len(index)
    some = min(count, CHUNK_ROWS)
    width = width_of(index.frozen_keys(0, some), some) + states.width
    return [
        (f"{_ROWS}{number}", _Rows(index.frozen_keys(*place), states, place, keys_in_states))
        for number, place in enumerate(ranges(count, width))
    ]


def ranges(count: int, width: float) -> Iterator[tuple[int, int]]:
    """The chunks of so many rows of so many bytes each: the first one of each, and the one after its last."""
    step = rows_of_piece(width, CHUNK_ROWS)
    return ((start, min(count, start + step)) for start in range(0, count, step))


class _Rows:
    """Makes the bytes of one chunk."""

    def __init__(
        self, keys: Sequence[pa.Array | pa.ChunkedArray], states: FrozenStates, slots: tuple[int, int], more: int
    ) -> None:
        self._keys = keys
        self._states = states
        self._range = slots
        self._key_columns = len(keys) + more

    def __call__(self) -> list[Buffer]:
        return rows_as_bytes([*self._keys, *self._states.columns(*self._range)], self._key_columns)


class _ChangedRows:
    """Makes the bytes of one chunk of what has changed."""

    def __init__(
        self,
        keys: Sequence[pa.Array | pa.ChunkedArray],
        states: FrozenSlotStates,
        changed: ChangedSlots,
        place: tuple[int, int],
        more: int,
    ) -> None:
        self._keys = keys
        self._states = states
        self._changed = changed
        self._range = place
        self._key_columns = len(keys) + more

    def __call__(self) -> list[Buffer]:
        slots, columns = self._states.of(self._changed.part(*self._range))
        return rows_as_bytes([*(taken_of(column, slots) for column in self._keys), *columns], self._key_columns)


def rows_as_bytes(columns: Sequence[pa.Array | pa.ChunkedArray], keys: int) -> list[Buffer]:
    """The columns as an Arrow stream; so many of them are keys."""
    names = [f"key.{at}" if at < keys else f"#{at - keys}" for at in range(len(columns))]
    return stream_pieces(pa.Table.from_arrays(columns, names=names))


def restored_rows(what: str, restored: Sequence[State], context: StepContext) -> Iterator[pa.RecordBatch]:
    """This subtask's keys and states, as they were written; raises CheckpointError where that can't be."""
    return _restored(what, restored, context, _ROWS)


def restored_changes(what: str, restored: Sequence[State], context: StepContext) -> Iterator[pa.RecordBatch]:
    """The rows that have changed since, oldest first: of keys that are there, or are new."""
    return _restored(what, restored, context, CHANGED)


def _restored(what: str, restored: Sequence[State], context: StepContext, start: str) -> Iterator[pa.RecordBatch]:
    for state in restored:
        own = OwnBatches(what, state, context)
        names = [name for name in state if name.startswith(start)]
        for name in sorted(names, key=lambda name: name.rpartition(".")[0]):  # checkpoint after checkpoint
            yield from own.of(name)


class OwnBatches:
    """This subtask's rows of one state; raises CheckpointError where it can't be read."""

    def __init__(self, what: str, state: State, context: StepContext) -> None:
        self._state = state
        self._context = context
        self._have_moved = _check(what, state, context)

    def of(self, name: str) -> Iterator[pa.RecordBatch]:
        """The rows of one chunk that are this subtask's."""
        for batch in rows_of_stream(self._state[name]):
            own = own_rows(batch, self._context) if self._have_moved else batch
            if own.num_rows:
                yield own


def key_columns(batch: pa.RecordBatch) -> list[pa.Array]:
    """The key columns of restored rows."""
    return [column for name, column in zip(batch.schema.names, batch.columns, strict=True) if name.startswith("key.")]


def refuse_other(what: str, states: Iterable[bytes], place: str) -> None:
    """Raise CheckpointError where one of these chunks `about` is of other states than `what`."""
    for about in states:
        _read(what, about, place)


def _read(what: str, packed: bytes, place: str) -> tuple[int, int]:
    """The key groups and the parallelism with which states were written, if they are `what`."""
    try:
        about = msgpack.unpackb(packed)
        version, function, states = about["version"], about["hash"], about["states"]
        groups = int(about["max_parallelism"]), int(about["parallelism"])
    except (KeyError, ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptCheckpointError(f"{place}: its keyed state can't be read: {error!r}") from error
    if version != VERSION or function != HASH:
        raise CheckpointError(
            f"{place}: its keyed state is of version {version} with keys by {function}; this Penstock reads "
            f"version {VERSION} with keys by {HASH}: start it at a new checkpointLocation"
        )
    if states != what:
        raise CheckpointError(
            f"{place}: the checkpoint to go on from holds the state of '{states}', and the query now has "
            f"'{what}': start it at a new checkpointLocation"
        )
    return groups


def _check(what: str, state: State, context: StepContext) -> bool:
    """Tell whether keys have moved between subtasks since it was written; CheckpointError if they can't."""
    if ABOUT not in state:
        raise CorruptCheckpointError(f"{context.place}: its keyed state can't be read: it has no chunk {ABOUT!r}")
    width, parallelism = _read(what, state[ABOUT], context.place)
    if parallelism == context.parallelism:
        return False
    if width != context.max_parallelism:
        raise CheckpointError(
            f"{context.place}: its state lies in {width} key groups, and the query now has "
            f"{context.max_parallelism}: with another number of them a query can't change its parallelism"
        )
    return True


def own_rows(batch: pa.RecordBatch, context: StepContext) -> pa.RecordBatch:
    """The rows whose keys are this subtask's."""
    keys = key_columns(batch)
    if not keys:
        return batch if context.subtask == 0 else batch.slice(0, 0)
    owners = GroupOwners(context.max_parallelism, context.parallelism).of(keys)
    return batch.filter(boolean_array(owners == context.subtask))
