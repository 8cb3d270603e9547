# SPDX-License-Identifier: Apache-2.0
"""The state of a processor in a checkpoint: how it is written, and what of it is read back after a change.

A step's chunks are `about` (msgpack: version, kind, hash, max_parallelism, parallelism, the keys' schema, and of each
variable its name, kind, schemas, time to live, and if it took the place of one that was dropped) and `<n>.<k>`, the
pieces of variable `n`: Arrow streams with the columns `key.<i>`, the entry's own `own.<i>`, `#<j>` and `expiry`
(milliseconds), one row for each value, list row or map entry. Timers are the variable `TIMERS`, with the column
`time`. Key groups are those of `keyed_state`.

A snapshot may write what has changed (`increments`): `changed.<checkpoint>.keys.<k>` has the keys whose state is
another than in the pieces before, and `changed.<checkpoint>.<n>.<k>` all that variable `n` has of them.

A variable is found by its name. Its columns are too: a new one that may be null is null, one that is gone is dropped,
others may have become wider (short to int to long, float to double). All else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError
from penstock.record.key_groups import HASH
from penstock.record.layout import fixed_values, int64_array
from penstock.stream.arrow_pieces import rows_of_piece, rows_of_stream, stream_pieces, width_of
from penstock.stream.chain import Buffer, Chunk, State, StepContext
from penstock.stream.increments import CHANGED, ChangedSlots, change_prefix
from penstock.stream.key_index import Slots
from penstock.stream.keyed_state import key_columns, own_rows
from penstock.stream.run_rows import taken_of
from penstock.stream.state.variables import EXPIRY, FrozenState, FrozenVariable, VariableSpec

KIND: Final = "processor"
TIMERS: Final = "(timers)"
VERSION: Final = 3
ABOUT = "about"
_KEYS: Final = 1 << 20
"""The most keys in one piece."""


@dataclass(frozen=True, slots=True)
class StoredVariable:
    """A variable as it was declared when it was stored."""

    number: int
    name: str
    kind: str
    schema: pa.Schema
    keys: pa.Schema | None
    has_expiry: bool
    replaces: bool = False
    """True if its processor had dropped another one of its name ahead of it."""


@dataclass(frozen=True, slots=True)
class About:
    """The description of a stored state."""

    keys: pa.Schema
    groups: int
    parallelism: int
    variables: tuple[StoredVariable, ...]

    @classmethod
    def of(cls, packed: bytes, place: str) -> About:
        """Read one; raises CheckpointError for what this version can't read."""
        try:
            found = msgpack.unpackb(packed)
            if found.get("version") != VERSION or (found.get("kind"), found["hash"]) != (KIND, HASH):
                raise CheckpointError(
                    f"{place}: the checkpoint to go on from holds {found.get('states') or found.get('kind')!r} of "
                    f"version {found.get('version')} with keys by {found['hash']}, and the query now has a processor"
                    f" of version {VERSION} with keys by {HASH}: start it at a new checkpointLocation"
                )
            variables = tuple(_stored(number, each) for number, each in enumerate(found["variables"]))
            keys, groups, parallelism = _schema(found["keys"]), found["max_parallelism"], found["parallelism"]
            return cls(keys, groups, parallelism, variables)
        except (KeyError, ValueError, TypeError, msgpack.UnpackException, pa.ArrowException) as error:
            raise CorruptCheckpointError(f"{place}: its keyed state can't be read: {error!r}") from error


def about(keys: pa.Schema, specs: Sequence[VariableSpec], context: StepContext) -> bytes:
    """The description of a state that is stored now; timers are the last variable."""
    described = [
        {
            "name": spec.name,
            "kind": spec.kind,
            "schema": spec.schema.serialize().to_pybytes(),
            "keys": b"" if spec.keys is None else spec.keys.serialize().to_pybytes(),
            "ttl": spec.ttl,
            "replaces": spec.replaces,
        }
        for spec in specs
    ]
    packed: bytes = msgpack.packb(
        {
            "version": VERSION,
            "kind": KIND,
            "hash": HASH,
            "max_parallelism": context.max_parallelism,
            "parallelism": context.parallelism,
            "keys": keys.serialize().to_pybytes(),
            "variables": described,
        }
    )
    return packed


class VariablePiece:
    """Makes the bytes of one piece of a variable."""

    def __init__(
        self,
        keys: Sequence[pa.Array | pa.ChunkedArray],
        variable: FrozenVariable,
        names: Sequence[str],
        place: tuple[int, int],
    ) -> None:
        self._keys = keys
        self._variable = variable
        self._names = names
        self._range = place

    def __call__(self) -> list[Buffer]:
        """The bytes."""
        slots, columns = self._variable.rows(*self._range)
        keys = [taken_of(column, slots) for column in self._keys]
        names = [*(f"key.{n}" for n in range(len(keys))), *self._names]
        return stream_pieces(pa.Table.from_arrays([*keys, *columns], names=names))


def pieces(
    number: int, variable: FrozenVariable, names: Sequence[str], keys: Sequence[pa.Array | pa.ChunkedArray]
) -> list[Chunk]:
    """The chunks of one variable."""
    return [
        (f"{number}.{k}", VariablePiece(keys, variable, names, place))
        for k, place in enumerate(_ranges(variable.count, keys, variable))
    ]


class ChangedPiece:
    """Makes the bytes of one piece of what has changed: rows of a variable, or the keys alone."""

    def __init__(
        self,
        keys: Sequence[pa.Array | pa.ChunkedArray],
        changed: ChangedSlots,
        place: tuple[int, int],
        variable: tuple[FrozenState, Sequence[str]] | None = None,
    ) -> None:
        self._keys = keys
        self._changed = changed
        self._range = place
        self._variable = variable

    def __call__(self) -> list[Buffer]:
        """The bytes."""
        slots = self._changed.part(*self._range)
        columns: list[pa.Array] = []
        names: list[str] = []
        if self._variable is not None:
            frozen, names = self._variable[0], list(self._variable[1])
            slots, columns = frozen.of(slots)
        keys = [taken_of(column, slots) for column in self._keys]
        names = [*(f"key.{n}" for n in range(len(keys))), *names]
        return stream_pieces(pa.Table.from_arrays([*keys, *columns], names=names))


def changed_pieces(
    checkpoint: int,
    variables: Sequence[tuple[FrozenState, Sequence[str]]],
    keys: Sequence[pa.Array | pa.ChunkedArray],
    changed: ChangedSlots,
) -> list[Chunk]:
    """The chunks of what has changed up to a checkpoint: the keys, and all that the variables have of them."""
    start = change_prefix(checkpoint)
    found: list[Chunk] = [
        (f"{start}.keys.{k}", ChangedPiece(keys, changed, place))
        for k, place in enumerate(_ranges(changed.most, keys))
    ]
    for number, each in enumerate(variables):
        found += [
            (f"{start}.{number}.{k}", ChangedPiece(keys, changed, place, each))
            for k, place in enumerate(_ranges(changed.most, keys, each[0]))
        ]
    return found


def _ranges(
    count: int, keys: Sequence[pa.Array | pa.ChunkedArray], variable: FrozenVariable | None = None
) -> Iterator[tuple[int, int]]:
    """The pieces of so many slots, of the keys alone or with a variable: where each begins and ends."""
    width = width_of(keys, len(keys[0]) if keys else 0)
    step = rows_of_piece(width, _KEYS) if variable is None else rows_of_piece(width + variable.width, variable.step)
    return ((start, min(count, start + step)) for start in range(0, count, step))


def changes_in(state: State) -> list[str]:
    """The beginnings of the names of all that has changed from checkpoint to checkpoint, oldest first."""
    return sorted({".".join(name.split(".")[:2]) for name in state if name.startswith(CHANGED)})


def own_batches(state: State, start: str, found: About, context: StepContext) -> Iterator[pa.RecordBatch]:
    """The rows that are this subtask's, of the chunks whose names begin so and end with a number."""
    for name in (name for name in state if name.rpartition(".")[0] == start):
        for batch in rows_of_stream(state[name]):
            own = batch if found.parallelism == context.parallelism else own_rows(batch, context)
            if own.num_rows:
                yield own


def restored_rows(
    state: State, found: About, stored: StoredVariable, context: StepContext
) -> Iterator[pa.RecordBatch]:
    """The rows of a variable that are this subtask's."""
    return own_batches(state, str(stored.number), found, context)


def refuse_moved(found: About, context: StepContext) -> None:
    """Raise CheckpointError where keys would have to move between other key groups."""
    if found.parallelism != context.parallelism and found.groups != context.max_parallelism:
        raise CheckpointError(
            f"{context.place}: its state lies in {found.groups} key groups, and the query now has "
            f"{context.max_parallelism}: with another number of them a query can't change its parallelism"
        )


class Evolution:
    """Reads rows of a variable as it was into one as it is declared now."""

    def __init__(self, stored: StoredVariable, spec: VariableSpec, place: str) -> None:
        self._stored = stored
        self._spec = spec
        self._place = place
        if stored.kind != spec.kind:
            raise self._error(f"was a {stored.kind}, and now is a {spec.kind}")
        if (stored.keys is None) != (spec.keys is None) or (
            stored.keys is not None and spec.keys is not None and stored.keys.types != spec.keys.types
        ):
            raise self._error(f"had the own keys ({_text(stored.keys)}), and now has ({_text(spec.keys)})")
        self._columns: list[Callable[[pa.RecordBatch], pa.Array]] = [self._reader(field) for field in spec.schema]

    def rows(self, slots: Slots, batch: pa.RecordBatch, now: int) -> tuple[Slots, list[pa.Array]]:
        """The rows of a batch as the variable takes them: whose each is, and the columns.

        One that gets a time to live lives from now on, and one that loses it has none of what has expired.
        """
        if self._spec.ttl is None and self._stored.has_expiry:
            live = np.flatnonzero(fixed_values(batch.column(EXPIRY), np.dtype(np.int64)) > now)
            slots, batch = slots[live], batch.take(int64_array(live))
        own = [batch.column(f"own.{n}") for n in range(len(self._spec.keys or ()))]
        found = [*own, *(read(batch) for read in self._columns)]
        if self._spec.ttl is None:
            return slots, found
        if self._stored.has_expiry:
            return slots, [*found, batch.column(EXPIRY)]
        return slots, [*found, pa.repeat(pa.scalar(now + self._spec.ttl, pa.int64()), batch.num_rows)]

    def _reader(self, field: pa.Field) -> Callable[[pa.RecordBatch], pa.Array]:
        at = self._stored.schema.get_field_index(field.name)
        if at < 0:
            if not field.nullable:
                raise self._error(f"has a new column {field.name!r} that may not be null")
            return lambda batch: pa.nulls(batch.num_rows, field.type)
        before = self._stored.schema.field(at)
        if before.type == field.type and (field.nullable or not before.nullable):
            return lambda batch: batch.column(f"#{at}")
        if not is_wider(before.type, field.type) or (before.nullable and not field.nullable):
            raise self._error(f"had the column {_field_text(before)}, and now has {_field_text(field)}")
        return lambda batch: batch.column(f"#{at}").cast(field.type)

    def _error(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._place}: the state {self._spec.name!r} of the checkpoint to go on from {what}: give the new one "
            "another name and drop this one, handle.deleteIfExists(...), or start at a new checkpointLocation"
        )


def is_wider(before: pa.DataType, after: pa.DataType) -> bool:
    """Tell whether all values of a type are values of another, as Spark widens them."""
    if pt.is_signed_integer(before) and pt.is_signed_integer(after):
        return bool(before.bit_width <= after.bit_width)
    if pt.is_floating(before) and pt.is_floating(after):
        return bool(before.bit_width <= after.bit_width)
    return bool(pt.is_signed_integer(before) and before.bit_width <= 32 and pt.is_float64(after))


def stored_keys(batch: pa.RecordBatch) -> list[pa.Array]:
    """The key columns; any other where there are no keys, which tells the number of rows."""
    return key_columns(batch) or [batch.column(0)]


def _stored(number: int, found: dict[str, Any]) -> StoredVariable:
    keys = _schema(found["keys"]) if found["keys"] else None
    schema, has_expiry = _schema(found["schema"]), found["ttl"] is not None
    return StoredVariable(
        number, found["name"], found["kind"], schema, keys, has_expiry, found.get("replaces", False)
    )


def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def _text(schema: pa.Schema | None) -> str:
    return ", ".join(_field_text(field) for field in schema or ())


def _field_text(field: pa.Field) -> str:
    return f"{field.name!r} {field.type}{'' if field.nullable else ' not null'}"
