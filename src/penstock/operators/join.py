# SPDX-License-Identifier: Apache-2.0
"""Equi-joins of two keyed streams, partition by partition. Which rows meet is found by Arrow's hash join (Acero).

One side is collected, the other is streamed past it in large chunks: the right side is collected, of a right join
the left one. So write the smaller side on the right. Acero is given the keys and row numbers only, and the rows are
then gathered by these numbers: it cannot carry nested columns, and so any column can be carried. A chunk of the
streamed side takes up to half as much memory again as the collected side may.

Keys match as Spark matches them: null matches nothing, NaN matches NaN, -0.0 matches 0.0. A collected side that
exceeds the task's memory makes both sides go to disk by the hash of their keys, and they are joined bucket by
bucket; only the rows of one key of the collected side must fit. The order of the result is not promised.

Which rows meet is found for so many streamed rows at once that they make four million pairs, and rows are gathered in
batches of at most 32 MB; one streamed row that meets all others, and one large row, must fit.

When not to use it: for conditions other than equality (cogroup and a function), and without keys (a cross join).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.operators.aggregates import plain_type
from penstock.operators.empty_sides import EmptySideError
from penstock.operators.groups import CHUNK_BYTES, CHUNK_ROWS, ChunkBuffer, Side, gathered
from penstock.operators.keys import int64_array, normalised, plain
from penstock.operators.memory import TaskMemory, task_memory
from penstock.operators.spill import BUCKETS, LEVELS, SpillFile, emptied, key_buckets
from penstock.record import word_hash
from penstock.record.layout import fixed_values, valid_mask
from penstock.record.row_sizes import MOST_BYTES, RowSizes, bounded

_OUTPUT_ROWS = 1 << 16
_STREAM_ROWS = 1 << 20
_BUILDS = 4
MOST_PAIRS = 1 << 22
"""Sixteen bytes each."""
_FEW_EQUAL = 8
"""If no more rows have one key, the pairs of a chunk are not much more than the chunk itself."""
_MOST_HASHES = 1 << 22
"""The number of hashes that are told apart when rows are counted by the hash of their keys."""
_STREAM, _BUILD = "stream", "build"
_LEFT, _RIGHT = 0, 1
_BOTH_NEEDED = ("inner", "left_semi")

JOINS = {
    "inner": "inner",
    "left": "left outer",
    "right": "left outer",
    "full": "left outer",
    "left_semi": "left semi",
    "left_anti": "left anti",
}
"""Acero's kind of each join, with the streamed side as its left; the rest of a full join is ours."""


def join_schema(left: Side, right: Side, how: str) -> pa.Schema:
    """The keys once, by the left's names, then the left's other columns, then the right's."""
    keys = []
    for key, other in zip(left.keys, right.keys, strict=True):
        field = left.schema.field(key)
        keys.append(field.with_type(plain_type(field.type)).with_nullable(_may_be_null(left, right, how, key, other)))
    others = [_others(left, how in ("right", "full"))]
    if how not in ("left_semi", "left_anti"):
        others.append(_others(right, how in ("left", "full")))
    return pa.schema([*keys, *chain.from_iterable(others)])


def _may_be_null(left: Side, right: Side, how: str, key: str, other: str) -> bool:
    of_left, of_right = left.schema.field(key).nullable, right.schema.field(other).nullable
    # As Spark has it: of a full join it is the one side's key or the other's, and either side may have met nothing.
    return bool(how == "full" or (of_right if how == "right" else of_left))


def _others(side: Side, missing: bool) -> list[pa.Field]:
    fields = [field for field in side.schema if field.name not in side.keys]
    return [field.with_nullable(True) for field in fields] if missing else fields


@dataclass(frozen=True, slots=True)
class EquiJoin:
    """Joins two sides on their keys, by position; `schema` is `join_schema` of them."""

    left: Side
    right: Side
    how: str
    schema: pa.Schema

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        pairs = zip(self.left.keys, self.right.keys, strict=True)
        return f"{self.how} join on {', '.join(one if one == two else f'{one} = {two}' for one, two in pairs)}"

    @property
    def divisible_side(self) -> int | None:
        """The side of which several tasks may each take a part, if each of them reads all of the other side."""
        return None if self.how == "full" else self.streamed_side

    @property
    def streamed_side(self) -> int:
        """The side that is not collected."""
        return _RIGHT if self.how == "right" else _LEFT

    @property
    def needed_sides(self) -> tuple[int, ...]:
        """The sides without whose rows there are none in the result."""
        if self.how == "full":
            return ()
        return (_LEFT, _RIGHT) if self.how in _BOTH_NEEDED else (self.streamed_side,)

    def apply(self, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """The joined rows."""
        streamed = self.streamed_side
        sides = (self.left, self.right)
        join = _PartitionJoin(self, (sides[streamed], sides[1 - streamed]), task_memory())
        # Raised while the first side is read, so nothing has been given yet.
        with suppress(EmptySideError):
            yield from join.rows(inputs[streamed], inputs[1 - streamed], 0)


class _PartitionJoin:
    """One task's join: `streamed` past what is `built`."""

    def __init__(self, join: EquiJoin, sides: tuple[Side, Side], memory: TaskMemory) -> None:
        self._join = join
        self._streamed, self._built = sides
        self._memory = memory
        self._buffer_bytes = max(1, min(CHUNK_BYTES, memory.limit // 8))

    def rows(
        self, stream: Iterator[pa.RecordBatch], build: Iterator[pa.RecordBatch], level: int
    ) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in build:
            held.append(batch)
            size += batch.nbytes
            if self._memory.exceeded_by(size) and level < LEVELS:
                yield from self._by_buckets(stream, chain(emptied(held), build), level)
                return
        if not size and self._join.how in _BOTH_NEEDED:
            return
        built = _BuiltSide(self._join, self._built, held, min(MOST_BYTES, max(1, self._memory.limit // 8)))
        held.clear()
        # Acero builds its table anew for each chunk, so a chunk is several times what is built: a tenth of the work.
        most = max(self._buffer_bytes, min(_BUILDS * size, self._memory.limit // 2))
        buffer = ChunkBuffer(max(_STREAM_ROWS, _BUILDS * built.rows.num_rows), most)
        for batch in stream:
            chunk = buffer.add(batch)
            if chunk is not None:
                yield from built.matches(chunk, self._streamed)
        chunk = buffer.take()
        if chunk is not None:
            yield from built.matches(chunk, self._streamed)
        if self._join.how == "full":
            yield from built.unmatched()

    def _by_buckets(
        self, stream: Iterator[pa.RecordBatch], build: Iterator[pa.RecordBatch], level: int
    ) -> Iterator[pa.RecordBatch]:
        with ExitStack() as files:
            spilled = []
            for side, batches in ((self._built, build), (self._streamed, stream)):
                spill = SpillFile(side.schema, self._memory)
                files.callback(spill.close)
                self._put_aside(batches, spill, side, level)
                spilled.append(spill)
            built, streamed = spilled
            filled = sum(1 for bucket in range(BUCKETS) if built.size(bucket))
            # If all went into one bucket, it is one key, as good as certainly: cutting again is no use.
            following = level + 1 if filled > 1 else LEVELS
            for bucket in range(BUCKETS):
                yield from self.rows(streamed.read(bucket), built.read(bucket), following)

    def _put_aside(self, batches: Iterator[pa.RecordBatch], spill: SpillFile, side: Side, level: int) -> None:
        buffer = ChunkBuffer(CHUNK_ROWS, self._buffer_bytes)
        for batch in batches:
            chunk = buffer.add(batch)
            if chunk is not None:
                spill.write(chunk, key_buckets(side.key_columns(chunk), level))
        chunk = buffer.take()
        if chunk is not None:
            spill.write(chunk, key_buckets(side.key_columns(chunk), level))


class _BuiltSide:
    """The collected rows, and which of them have met a row."""

    def __init__(self, join: EquiJoin, side: Side, batches: list[pa.RecordBatch], most_bytes: int) -> None:
        self._join = join
        self._side = side
        self._most_bytes = most_bytes
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in side.schema.types], schema=side.schema)
        self.rows = pa.concat_batches(batches) if batches else empty
        self._keys = _numbered(side, self.rows, _BUILD)
        self._sizes = RowSizes(self.rows.columns)
        self._mask = min(_MOST_HASHES, 1 << (4 * self.rows.num_rows).bit_length()) - 1
        self._met = np.zeros(self.rows.num_rows, np.bool_)

    def matches(self, chunk: pa.RecordBatch, streamed: Side) -> Iterator[pa.RecordBatch]:
        """The result's rows for a chunk of the streamed side."""
        keys = _numbered(streamed, chunk, _STREAM)
        sizes = RowSizes(chunk.columns)
        for begin, end in self._cuts(chunk, streamed):
            pairs = _pairs(JOINS[self._join.how], keys.slice(begin, end - begin), self._keys)
            for start in range(0, pairs.num_rows, _OUTPUT_ROWS):
                yield from self._gathered(chunk, streamed, sizes, pairs.slice(start, _OUTPUT_ROWS))

    def unmatched(self) -> Iterator[pa.RecordBatch]:
        """The rows that met none, with nulls for the other side."""
        numbers = np.flatnonzero(~self._met)
        missing = [field.type for field in _others(self._join.left, True)]
        for start, end in bounded(self._sizes.of(numbers), self._most_bytes):
            for begin in range(start, end, _OUTPUT_ROWS):
                found = gathered(self.rows, int64_array(numbers[begin : min(end, begin + _OUTPUT_ROWS)]))
                nulls = [pa.nulls(found.num_rows, kind) for kind in missing]
                yield self._row_batch(self._side.key_columns(found), nulls, _others_of(self._side, found))

    def _cuts(self, chunk: pa.RecordBatch, streamed: Side) -> Iterator[tuple[int, int]]:
        """The streamed rows in parts, each of which makes a bounded number of pairs, or is one row."""
        rows = chunk.num_rows
        whole = iter(((0, rows),))
        if self._join.how in ("left_semi", "left_anti") or rows * self.rows.num_rows <= MOST_PAIRS:
            return whole
        most = int(self._equal.max())
        if most <= _FEW_EQUAL or rows * most <= MOST_PAIRS:
            return whole
        made = np.maximum(self._equal[self._places(streamed.key_columns(chunk))], 1)
        return whole if made.sum() <= MOST_PAIRS else bounded(made, MOST_PAIRS)

    @cached_property
    def _equal(self) -> npt.NDArray[np.int64]:
        """The number of collected rows for each hash of the keys: at least as many as have the keys.

        Nulls meet nothing.
        """
        columns = self._side.key_columns(self.rows)
        valid = np.logical_and.reduce([valid_mask(column) for column in columns])
        return np.bincount(self._places(columns)[valid], minlength=self._mask + 1)

    def _places(self, columns: list[pa.Array]) -> npt.NDArray[np.int64]:
        hashes = word_hash([normalised(column) for column in columns])
        return (hashes & np.uint64(self._mask)).astype(np.int64)

    def _gathered(
        self, chunk: pa.RecordBatch, streamed: Side, sizes: RowSizes, pairs: pa.Table
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these pairs, in batches of bounded size."""
        stream_rows = _one_array(pairs.column(_STREAM))
        build_rows = _one_array(pairs.column(_BUILD)) if _BUILD in pairs.column_names else None
        for begin, end in self._bounded(sizes, stream_rows, build_rows):
            found = gathered(chunk, stream_rows.slice(begin, end - begin))
            others: list[pa.Array] = []
            if build_rows is not None:
                part = build_rows.slice(begin, end - begin)
                others = _gathered_others(self._side, self.rows, part)
                if self._join.how == "full":
                    self._met[_valid_values(part)] = True
            yield self._row_batch(streamed.key_columns(found), _others_of(streamed, found), others)

    def _bounded(
        self, sizes: RowSizes, stream_rows: pa.Array, build_rows: pa.Array | None
    ) -> Iterator[tuple[int, int]]:
        if (sizes.most + self._sizes.most) * len(stream_rows) <= self._most_bytes:
            return iter(((0, len(stream_rows)),))
        found = sizes.of(fixed_values(stream_rows, np.int64))
        if build_rows is not None:
            met = valid_mask(build_rows)
            found[met] += self._sizes.of(fixed_values(build_rows, np.int64)[met])
        return bounded(found, self._most_bytes)

    def _row_batch(self, keys: list[pa.Array], streamed: list[pa.Array], built: list[pa.Array]) -> pa.RecordBatch:
        others = [*built, *streamed] if self._join.streamed_side == _RIGHT else [*streamed, *built]
        return pa.RecordBatch.from_arrays([*map(plain, keys), *others], schema=self._join.schema)


def _others_of(side: Side, rows: pa.RecordBatch) -> list[pa.Array]:
    return [column for name, column in zip(side.schema.names, rows.columns, strict=True) if name not in side.keys]


def _gathered_others(side: Side, rows: pa.RecordBatch, numbers: pa.Array) -> list[pa.Array]:
    wanted = [index for index, name in enumerate(side.schema.names) if name not in side.keys]
    return list(gathered(rows.select(wanted), numbers).columns) if wanted else []


def _numbered(side: Side, rows: pa.RecordBatch, number: str) -> pa.Table:
    """The normalised keys by position, and the number of each row."""
    keys = [normalised(column) for column in side.key_columns(rows)]
    # Acero knows no keys of the null type; a null of any type matches nothing.
    keys = [pa.nulls(len(key), pa.bool_()) if pt.is_null(key.type) else key for key in keys]
    names = [*map(str, range(len(keys))), number]
    return pa.Table.from_arrays([*keys, int64_array(np.arange(rows.num_rows))], names=names)


def _pairs(how: str, stream: pa.Table, build: pa.Table) -> pa.Table:
    """The row numbers of what meets; null for the built side of a streamed row that meets none."""
    # pyarrow.acero, and Table.join, would import pyarrow.dataset and with it pandas; the module beneath does not.
    from pyarrow._acero import Declaration, HashJoinNodeOptions, TableSourceNodeOptions

    keys = stream.column_names[:-1]
    built = [] if how in ("left semi", "left anti") else [_BUILD]
    options = HashJoinNodeOptions(how, keys, keys, left_output=[_STREAM], right_output=built)
    sources = [Declaration("table_source", TableSourceNodeOptions(table)) for table in (stream, build)]
    # One thread: the task has one core, and rows then come in the same order every time.
    return Declaration("hashjoin", options, sources).to_table(use_threads=False)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _valid_values(numbers: pa.Array) -> npt.NDArray[np.int64]:
    valid = numbers.drop_null() if numbers.null_count else numbers
    return (
        np.frombuffer(valid.buffers()[1], np.int64, len(valid), valid.offset * 8)
        if len(valid)
        else np.zeros(0, np.int64)
    )
