# SPDX-License-Identifier: Apache-2.0
"""All state of one task's processor: its keys, its variables, its timers.

Keys get slots and keep them. When most keys have no state any more, or expired state may fill the memory, all is
built anew out of what is live. That costs a pass over the live state, and comes when as much was added since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError
from penstock.operators.keys import plain
from penstock.record.layout import int64_array
from penstock.stream.arrow_pieces import rows_of_piece
from penstock.stream.chain import Chunk, State, StepContext
from penstock.stream.increments import Chains, ChangedSlots
from penstock.stream.key_index import KeyIndex, Slots, key_index
from penstock.stream.run_rows import taken_of
from penstock.stream.state.columns import values_of
from penstock.stream.state.stored import (
    ABOUT,
    TIMERS,
    About,
    Evolution,
    StoredVariable,
    about,
    changed_pieces,
    changes_in,
    own_batches,
    pieces,
    refuse_moved,
    restored_rows,
    stored_keys,
)
from penstock.stream.state.timers import TIME, Timers
from penstock.stream.state.variables import (
    FrozenState,
    FrozenVariable,
    ListVariable,
    MapVariable,
    ValueVariable,
    VariableSpec,
    variable,
)
from penstock.stream.state_place import bytes_of

SPARE = 1 << 16
_INT64 = np.dtype(np.int64)
_TIMERS = VariableSpec(TIMERS, "timers", pa.schema([(TIME, pa.int64())]))
AnyVariable = ValueVariable | ListVariable | MapVariable


class Restorable(Protocol):
    """A variable, or timers."""

    def restore(self, slots: Slots, columns: list[pa.Array]) -> None:
        """Take rows that one of its kind gave when it was frozen."""


class KeyedStore:
    """One task's. `keys` is the schema of the key columns; `dropped` are variables that a checkpoint may hold."""

    def __init__(self, keys: pa.Schema, specs: Sequence[VariableSpec], dropped: Collection[str] = ()) -> None:
        self._keys = keys
        self._specs = tuple(specs)
        self._dropped = frozenset(dropped)
        self._before = 0
        """The number of keys and of their values, rows and entries when all was built anew last."""
        self._chains = Chains()
        self._timers = Timers()
        """One object for ever: the step that fires timers holds it while all is built anew."""
        self._timers.changes = self._chains
        self._begin()

    @property
    def timers(self) -> Timers:
        """The timers of all keys."""
        return self._timers

    @property
    def keys(self) -> int:
        """The number of keys that have slots."""
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """The bytes of all."""
        return bytes_of((self._index, self._timers, *self._variables.values()))

    def variable(self, name: str) -> AnyVariable:
        """A variable by its name."""
        return self._variables[name]

    def slots(self, columns: Sequence[pa.Array], rows: int) -> Slots:
        """The slot of each row's key."""
        return self._index.slots([plain(column) for column in columns] or [pa.nulls(rows)])

    def keys_of(self, slots: Slots) -> pa.RecordBatch:
        """The keys of these slots."""
        columns = [_as(column, field.type) for column, field in zip(self._index.keys(slots), self._keys, strict=True)]
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(slots), pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, schema=self._keys)

    def tidy(self, now: int) -> bool:
        """Build anew what is for the most part in use no more; whether that was all, so that no slots count any more.

        A map or the timers are built anew by themselves; all is where keys have no state, or may have expired state.
        """
        if self._timers.size > 2 * self._timers.live + SPARE:
            timers = self._timers.frozen(0)
            self._timers.begin_anew()
            give_back(timers, self._timers)
        for name, each in self._variables.items():
            if each.is_sparse:
                self._variables[name] = self._empty(each.spec)
                give_back(each.frozen(0), self._variables[name])
        live = sum(each.live_keys for each in self._variables.values())
        keys = len(self._index)
        may_expire = any(spec.ttl is not None for spec in self._specs) and keys + live > 2 * self._before + SPARE
        if keys <= 2 * (live + self._timers.live) + SPARE and not may_expire:
            return False
        self._build_anew(now)
        self._before = len(self._index) + sum(each.live_keys for each in self._variables.values())
        return True

    def snapshot(self, context: StepContext, checkpoint: int | None = None) -> list[Chunk]:
        """All of it as it is now; bytes are made when the chunks are stored.

        With its `checkpoint` a large state refers to what older ones hold.
        """
        packed = about(self._keys, [*self._specs, _TIMERS], context)
        count = len(self._index)
        keys = self._index.frozen_keys(0, count)
        frozen: list[tuple[FrozenState, Sequence[str]]] = [
            *((each.frozen(count), each.spec.names) for each in self._variables.values()),
            (self._timers.frozen(count), (TIME,)),
        ]
        chunks: list[Chunk] = [(ABOUT, lambda: packed)]

        def whole() -> list[Chunk]:
            return [made for number, each in enumerate(frozen) for made in pieces(number, *each, keys)]

        def changed(noted: Sequence[Slots]) -> list[Chunk]:
            return changed_pieces(checkpoint or 0, frozen, keys, ChangedSlots(noted))

        return chunks + (whole() if checkpoint is None else self._chains.chunks(checkpoint, count, whole, changed))

    def completed(self, checkpoint: int) -> None:
        """A checkpoint of which a snapshot was taken, or a later one, is complete."""
        self._chains.completed(checkpoint)

    def restore(self, states: Sequence[State], context: StepContext, now: int) -> None:
        """Take this subtask's keys out of the states; raises CheckpointError where that can't be."""
        for state in states:
            if ABOUT not in state:
                raise CorruptCheckpointError(f"{context.place}: its keyed state has no chunk {ABOUT!r}")
            found = About.of(state[ABOUT], context.place)
            refuse_moved(found, context)
            plans = self._plans(found, context.place)
            for stored in found.variables:
                for batch in restored_rows(state, found, stored, context) if stored.name in plans else ():
                    slots = self._index.slots(stored_keys(batch))
                    plans[stored.name](slots, batch, now)
            for start in changes_in(state):
                self._restore_changes(state, start, found, context, now)
        self._before = len(self._index) + sum(each.live_keys for each in self._variables.values())

    def _restore_changes(self, state: State, start: str, found: About, context: StepContext, now: int) -> None:
        """Take what had changed up to one checkpoint in the place of what is there of the same keys."""
        plans = self._plans(found, context.place)
        for batch in own_batches(state, f"{start}.keys", found, context):
            slots = np.unique(self._index.slots(stored_keys(batch)))
            for kept in self._variables.values():
                kept.clear(slots)
            self._timers.clear(slots)
        for stored in found.variables:
            if stored.name in plans:
                for batch in own_batches(state, f"{start}.{stored.number}", found, context):
                    plans[stored.name](self._index.slots(stored_keys(batch)), batch, now)

    def check(self, abouts: Sequence[bytes], place: str) -> None:
        """Raise CheckpointError where a state of this description can't be read."""
        for packed in abouts:
            self._plans(About.of(packed, place), place)

    def _begin(self) -> None:
        self._index: KeyIndex = key_index([_plain(field.type) for field in self._keys])
        self._chains.forget()
        self._variables = {spec.name: self._empty(spec) for spec in self._specs}
        self._timers.begin_anew()

    def _empty(self, spec: VariableSpec) -> AnyVariable:
        """A variable without state, which notes what changes."""
        made = variable(spec)
        made.changes = self._chains
        return made

    def _build_anew(self, now: int) -> None:
        """Give all keys that have something new slots, and forget the others and what has expired."""
        former, index = self._variables, self._index
        count = len(index)
        timers = self._timers.frozen(count)
        self._begin()
        keys = index.frozen_keys(0, count)
        for name, each in former.items():
            for slots, columns in ranges(each.frozen(count)):
                if each.spec.ttl is not None:
                    slots, columns = _unexpired(slots, columns, now)  # noqa: PLW2901 - what is left of them
                if len(slots):
                    self._variables[name].restore(self._moved(keys, slots), columns)
        for slots, columns in ranges(timers):
            self._timers.restore(self._moved(keys, slots), columns)

    def _plans(self, found: About, place: str) -> Mapping[str, Callable[[Slots, pa.RecordBatch, int], None]]:
        """By name what takes the rows of a stored variable."""
        if found.keys.types != self._keys.types:
            raise CheckpointError(
                f"{place}: the checkpoint to go on from has keys of types {', '.join(map(str, found.keys.types))}, "
                f"and the query now {', '.join(map(str, self._keys.types))}: start it at a new checkpointLocation"
            )
        plans: dict[str, Callable[[Slots, pa.RecordBatch, int], None]] = {}
        for stored in found.variables:
            if stored.name == TIMERS:
                plans[TIMERS] = lambda slots, batch, _: self._timers.restore(slots, [batch.column(TIME)])
            elif stored.name in self._variables:
                plan = self._plan(stored, place)
                if plan is not None:
                    plans[stored.name] = plan
            elif stored.name not in self._dropped:
                raise CheckpointError(
                    f"{place}: the checkpoint to go on from holds the state {stored.name!r}, and the processor has "
                    f"none of that name ({', '.join(sorted(self._variables)) or 'it has none'}): declare it, or drop "
                    f"it by handle.deleteIfExists({stored.name!r}) in init"
                )
        return plans

    def _plan(self, stored: StoredVariable, place: str) -> Callable[[Slots, pa.RecordBatch, int], None] | None:
        """Takes the rows of a stored variable; None: its declaration replaces it, and is not the one that did."""
        kept = self._variables[stored.name]
        if kept.spec.replaces and not stored.replaces:
            return None
        try:
            evolution = Evolution(stored, kept.spec, place)
        except CheckpointError:
            if not kept.spec.replaces:
                raise
            return None
        return lambda slots, batch, now: kept.restore(*evolution.rows(slots, batch, now))

    def _moved(self, keys: Sequence[pa.Array | pa.ChunkedArray], slots: Slots) -> Slots:
        """The new slots of former ones."""
        return self._index.slots([taken_of(column, slots) for column in keys] or [pa.nulls(len(slots))])


def ranges(frozen: FrozenVariable) -> Iterator[tuple[Slots, list[pa.Array]]]:
    """All rows of a variable, some at a time; those that there are."""
    step = rows_of_piece(frozen.width, frozen.step)
    for start in range(0, frozen.count, step):
        slots, columns = frozen.rows(start, min(frozen.count, start + step))
        if len(slots):
            yield slots, columns


def give_back(former: FrozenVariable, empty: Restorable) -> None:
    """Give an empty variable the rows that it had, of the same slots."""
    for slots, columns in ranges(former):
        empty.restore(slots, columns)


def _unexpired(slots: Slots, columns: list[pa.Array], now: int) -> tuple[Slots, list[pa.Array]]:
    live = (values_of(columns[-1], _INT64) > now).nonzero()[0]
    if len(live) == len(slots):
        return slots, columns
    return slots[live], [column.take(int64_array(live)) for column in columns]


def _plain(kind: pa.DataType) -> pa.DataType:
    return plain(pa.nulls(0, kind)).type


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)
