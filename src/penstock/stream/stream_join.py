# SPDX-License-Identifier: Apache-2.0
"""The join of two streams without an end: each row meets all rows of the other side that have come before it.

With a bound on the time between two rows that meet, the watermark of these times drops rows that nothing can meet any
more; without one, or by a watermark of other times, both sides are kept for ever. So each pair is given once, in
whatever order the rows come. A late row meets what is still there, and is not kept where nothing on time can meet it.

An outer join has a bound. A row of a side that is kept, which has met nothing, comes out with nulls when the
watermark says that nothing on time can meet it any more, and meets nothing after that. One without a key or a time,
and a late one that meets nothing, come out at once. So each comes out, with nulls or with what it meets, never both;
no row is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import PlanError
from penstock.operators.group_merges import boolean_array
from penstock.operators.intervals import interval_text
from penstock.operators.join_sides import LEFT, RIGHT, SIDE, JoinedSides, others_of
from penstock.operators.times import Times
from penstock.operators.windows import times_in
from penstock.record.layout import bits, fixed_values, int64_array, null_mask
from penstock.stream.chain import Chunk, PlainStep, State, StepContext, chunks_of
from penstock.stream.increments import Chains, ChangedSlots
from penstock.stream.join_side import JoinSide, Mask
from penstock.stream.key_index import KeyIndex, Slots, key_index
from penstock.stream.keyed_state import ABOUT, KeyedTable, refuse_other
from penstock.stream.lateness import Lateness
from penstock.stream.row_increments import added_chunks, replaced_chunks, replaced_rows
from penstock.stream.run_rows import taken_of
from penstock.stream.state_place import state_figures
from penstock.stream.watermark import Watermark

_NAMES = ("left", "right")
_SPARE = 1 << 12
_DONE = pa.field("done", pa.bool_())


@dataclass(frozen=True, slots=True)
class Between:
    """The bound on two rows that meet: the right one's time less the left one's, in microseconds.

    `by_watermark`: the watermark is of these times on both sides, so it says which rows are over.
    """

    times: tuple[str, str]
    lower: int
    upper: int
    by_watermark: bool = False

    @property
    def text(self) -> str:
        """As it is shown."""
        left, right = self.times
        return f"{right} - {left} in {interval_text(self.lower)} .. {interval_text(self.upper)}"


@dataclass(frozen=True, slots=True)
class StreamJoin:
    """After an exchange of both sides by their keys."""

    sides: JoinedSides
    between: Between | None = None
    uid: str = ""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        bound = "" if self.between is None else f", {self.between.text}"
        kind = "" if self.sides.how == "inner" else f"{self.sides.how} "
        return f"{kind}join by {', '.join(self.sides.left.keys)}{bound}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raises PlanError: bounded streams have a join of their own."""
        raise PlanError(f"{self.name} is a join of two streams without an end")

    def step(self) -> JoinStep:
        """The step of one subtask."""
        return JoinStep(self)


class JoinStep(PlainStep):
    """One subtask's rows of both sides."""

    def __init__(self, operator: StreamJoin) -> None:
        self._operator = operator
        sides = operator.sides
        self._keys = len(sides.left.keys)
        fields = list(sides.schema)
        self._kinds = [field.type for field in fields[: self._keys]]
        self._columns = [[*range(self._keys), *sides.columns(number)] for number in (LEFT, RIGHT)]
        self._schemas = [pa.schema([*fields[: self._keys], *others_of(side)]) for side in (sides.left, sides.right)]
        self._index = key_index(self._kinds)
        self._sides = (JoinSide(), JoinSide())
        self._chains = (Chains(), Chains())
        self._lateness = Lateness()
        self._context = StepContext(0, 1, 1, "")
        between = operator.between
        self._trusts = between is not None and between.by_watermark
        self.holds_back = max(between.upper, -between.lower, 0) if between is not None and self._trusts else 0
        """A row on time may meet one that is older than the watermark by so many microseconds, at most."""

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._operator.name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Take this subtask's rows; raises CheckpointError for those of another join."""
        self._context = context
        if any(self._operator.sides.kept):
            self._lateness.open(context, restored)
        for number, name in enumerate(_NAMES):
            own = [found for state in restored if (found := chunks_of(state, name))]
            width = len(self._schemas[number])
            for batch in replaced_rows(self._what(number), own, context):
                rows = pa.RecordBatch.from_arrays(batch.columns[:width], schema=self._schemas[number])
                done = _flags(batch.column(width)) if self._operator.sides.kept[number] else None
                if self._operator.between is not None and (over := self._is_over(number, rows)).any():
                    rows = rows.filter(boolean_array(~over))  # they had come out, or had met enough
                    done = None if done is None else done[~over]
                self._sides[number].add(self._index.slots(rows.columns[: self._keys]), rows, done)

    def check(self, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> None:
        """Raise CheckpointError where the rows of a checkpoint are of another join."""
        for number, name in enumerate(_NAMES):
            if f"{name}/{ABOUT}" in names:
                refuse_other(self._what(number), read(f"{name}/{ABOUT}"), self.name)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The pairs that these rows make with what came before, and with each other."""
        side = fixed_values(batch.column(SIDE), np.dtype(np.int8))
        for number in (LEFT, RIGHT):
            chosen = np.flatnonzero(side == number)
            if len(chosen):
                found = batch if len(chosen) == len(side) else batch.take(int64_array(chosen))
                columns = [found.column(place) for place in self._columns[number]]
                rows = pa.RecordBatch.from_arrays(columns, schema=self._schemas[number])
                yield from self._met(number, rows)

    def on_watermark(self, watermark: Watermark) -> Iterable[pa.RecordBatch]:
        """Drop rows that nothing can meet any more; those that an outer join owes come out."""
        reached = self._lateness.reached(watermark)
        if not self._trusts and not reached.is_end:
            return ()
        self._lateness.advance(reached)
        lonely: list[pa.RecordBatch] = []
        if self._operator.between is not None:
            for number, side in enumerate(self._sides):
                is_over = partial(self._is_over, number)
                if self._operator.sides.kept[number]:
                    lonely += [self._alone(number, rows) for rows in side.lonely(is_over)]
                side.drop(is_over)
            if len(self._index) > _SPARE and 2 * sum(map(len, self._sides)) < len(self._index):
                self._gather()
        return lonely

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """All rows of both sides; of an outer join also which of them are done, and the watermark.

        Large sides refer to what older checkpoints hold.
        """
        chunks: list[Chunk] = [self._lateness.chunk()] if any(self._operator.sides.kept) else []
        for number, name in enumerate(_NAMES):
            taken = self._kept_rows if self._operator.sides.kept[number] else self._added_rows
            chunks += [(f"{name}/{chunk}", make) for chunk, make in taken(number, (checkpoint, self._context))]
        return chunks

    def completed(self, checkpoint: int) -> None:
        """Snapshots may refer to it from here on."""
        for chains in self._chains:
            chains.completed(checkpoint)

    def metrics(self) -> dict[str, float]:
        """Rows that are kept, and their bytes."""
        return state_figures(sum(map(len, self._sides)), self._index, *self._sides)

    def _what(self, number: int) -> str:
        kinds = ", ".join(str(field.type) for field in self._schemas[number])
        return f"{self.name}, {_NAMES[number]} ({kinds})"

    def _added_rows(self, number: int, place: tuple[int, StepContext]) -> list[Chunk]:
        """The rows of a side to which rows are added; those that are over go by the watermark."""
        table = KeyedTable(self._sides[number].batches, self._schemas[number], self._keys)
        return added_chunks(self._what(number), place, self._chains[number], table, pa.concat_batches)

    def _kept_rows(self, number: int, place: tuple[int, StepContext]) -> list[Chunk]:
        """The rows of a side of which all come out, with the marks of those that are done."""
        side, schema = self._sides[number], self._schemas[number].append(_DONE)
        batches = [
            pa.RecordBatch.from_arrays([*rows.columns, boolean_array(done)], schema=schema)
            for rows, done in zip(side.batches, side.done, strict=True)
        ]
        table = KeyedTable(batches, schema, self._keys)
        slots, index = side.slots, self._index

        def replaced(noted: Sequence[Slots]) -> _KeysOfRows:
            return _KeysOfRows(ChangedSlots(noted), index, slots)

        return replaced_chunks(self._what(number), place, self._chains[number], (table, len(index)), replaced)

    def _met(self, number: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """All that these rows of a side give; they are kept for what comes later."""
        is_kept = self._operator.sides.kept[number]
        if is_kept and (bare := self._bare(number, rows)).any():
            yield self._alone(number, rows.filter(boolean_array(bare)))
            rows = rows.filter(boolean_array(~bare))
        done = np.zeros(rows.num_rows, np.bool_)
        slots = self._index.slots(rows.columns[: self._keys])
        yield from self._pairs(number, (rows, slots), done)
        if self._operator.between is not None and not self._lateness.watermark.is_none:
            over = self._is_over(number, rows)
            if is_kept and (over & ~done).any():
                yield self._alone(number, rows.filter(boolean_array(over & ~done)))
            if over.any():
                rows, slots, done = rows.filter(boolean_array(~over)), slots[~over], done[~over]
        if rows.num_rows:
            self._sides[number].add(slots, rows, done)
            if is_kept:
                self._chains[number].changed(slots)
            else:
                self._chains[number].added(rows, len(self._sides[number]))

    def _pairs(self, number: int, given: tuple[pa.RecordBatch, Slots], done: Mask) -> Iterator[pa.RecordBatch]:
        """The pairs of rows and their slots with the other side; on both sides rows are marked that have met one."""
        rows, slots = given
        for pairs in self._sides[1 - number].matches(slots):
            own, others = rows.take(int64_array(pairs.given)), pairs.rows
            left, right = (own, others) if number == LEFT else (others, own)
            if self._operator.between is not None:
                meets = self._meets(left, right, self._operator.between)
                if self._operator.sides.kept[1 - number]:  # what is over was given out with nulls, or has met enough
                    meets &= ~self._is_over(1 - number, others)
                marked = pairs.mark(meets)
                if self._operator.sides.kept[1 - number]:
                    self._chains[1 - number].changed(marked)
                done[pairs.given[meets]] = True
                if not meets.all():
                    left, right = (each.filter(boolean_array(meets)) for each in (left, right))
            if left.num_rows:
                columns = [*left.columns, *right.columns[self._keys :]]
                yield pa.RecordBatch.from_arrays(columns, schema=self._operator.sides.result_schema)

    def _bare(self, number: int, rows: pa.RecordBatch) -> Mask:
        """A mask of rows that lack a key or their time."""
        between = self._operator.between
        assert between is not None  # noqa: S101 - an outer join has one
        bare: Mask = np.zeros(rows.num_rows, np.bool_)
        for missing in (*map(null_mask, rows.columns[: self._keys]), times_in(rows.column(between.times[number]))[1]):
            if missing is not None:
                bare |= missing
        return bare

    def _alone(self, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with nulls for the other side."""
        schema = self._operator.sides.result_schema
        nulls = [pa.nulls(rows.num_rows, one.type) for one in self._schemas[1 - number]][self._keys :]
        keys, others = rows.columns[: self._keys], rows.columns[self._keys :]
        columns = [*keys, *others, *nulls] if number == LEFT else [*keys, *nulls, *others]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _meets(self, left: pa.RecordBatch, right: pa.RecordBatch, between: Between) -> Mask:
        times, missing = zip(
            *(times_in(rows.column(name)) for rows, name in zip((left, right), between.times, strict=True)),
            strict=True,
        )
        apart = times[1] - times[0]
        meets: Mask = (apart >= between.lower) & (apart <= between.upper)
        for each in missing:
            if each is not None:
                meets &= ~each
        return meets

    def _is_over(self, number: int, rows: pa.RecordBatch) -> Mask:
        """A mask of rows that no row on time can meet: not one that is as old as the watermark, nor a later one."""
        between = self._operator.between
        assert between is not None  # noqa: S101 - asked by the callers
        times, missing = times_in(rows.column(between.times[number]))
        until: Times = times + (between.upper if number == LEFT else -between.lower)
        over = self._lateness.passed(rows.columns[: self._keys]).is_late(until)
        return over if missing is None else over | missing

    def _gather(self) -> None:
        """Number the keys anew: most have no rows any more."""
        kept = [zip(side.batches, side.done, strict=True) for side in self._sides]
        self._index, self._sides = key_index(self._kinds), (JoinSide(), JoinSide())
        for number, runs in enumerate(kept):
            for rows, done in runs:
                self._sides[number].add(self._index.slots(rows.columns[: self._keys]), rows, done)
        for number, is_kept in enumerate(self._operator.sides.kept):
            if is_kept:  # what was noted are slots
                self._chains[number].forget()


class _KeysOfRows:
    """The keys that have changed, and which rows are theirs; `rows` are the slots of all rows, run after run."""

    def __init__(self, changed: ChangedSlots, index: KeyIndex, rows: Sequence[npt.NDArray[np.int64]]) -> None:
        self._changed = changed
        self._count = len(index)
        self._keys = index.frozen_keys(0, self._count)
        self._rows = rows
        self._flags: Mask | None = None

    def columns(self) -> list[pa.Array]:
        """The keys, each once."""
        changed = self._changed.part(0, self._count)
        return [taken_of(column, changed) for column in self._keys]

    def has(self, start: int, end: int) -> Mask:
        """A mask of the rows in a range of all, run after run, that are of one of these keys."""
        if self._flags is None:
            self._flags = np.zeros(self._count, np.bool_)
            self._flags[self._changed.part(0, self._count)] = True
            self._all = np.concatenate([*self._rows, np.zeros(0, np.int64)])
        found: Mask = self._flags[self._all[start:end]]
        return found


def _flags(column: pa.Array) -> Mask:
    return bits(column.buffers()[1], column.offset, len(column)).astype(np.bool_)
