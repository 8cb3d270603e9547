# SPDX-License-Identifier: Apache-2.0
"""`agg` on a keyed unbounded stream: kept incrementally, each step gives the new results of the keys it touched.

Three ways to keep the states, chosen from the functions:
- exact distinct counts: pairs of keys and values (`distinct_counts`), beside all others of the aggregation;
- counts, sums and means of integers and floats, extremes of numbers and times: arrays of numbers (`accumulators`);
- everything else that `agg` knows: rows of states, merged as in a batch job (`state_rows`). Each step makes anew
  what holds all values of a key, so there the cost of a row grows with the values of its key.

A state belongs to the task that its key's rows come to. If a vertex's parallelism has changed, each task takes the
keys of its key groups out of all states, so the exchange in front must go by key groups then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.aggregate_operators import AggregationPlan, aggregate_pair
from penstock.operators.aggregate_states import Aggregation
from penstock.operators.aggregates import ALL_COLUMNS
from penstock.operators.keys import plain
from penstock.record.layout import fixed_values
from penstock.stream.accumulators import Accumulator, accumulator
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.distinct_counts import DistinctCounts, counts_distinct
from penstock.stream.increments import Chains
from penstock.stream.key_index import KeyIndex, Slots, key_index
from penstock.stream.keyed_state import (
    ABOUT,
    chained_chunks,
    key_columns,
    refuse_other,
    restored_changes,
    restored_rows,
)
from penstock.stream.slot_array import FrozenSlots
from penstock.stream.state_place import bytes_of, state_figures, zeros
from penstock.stream.state_rows import FrozenRows, StateRows


@dataclass(frozen=True, slots=True)
class KeyedAggregate:
    """An aggregation by key over a stream without end, after an exchange by the same keys (or to one task).

    Its rows are the keys and the results of `result_schema`, once for each step that touched a key. `apply` is the
    same over a bounded input: one row for each key.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]
    ansi: bool = True
    uid: str = ""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        items = ", ".join(item.title for item in self.aggregations)
        return f"aggregate {'by ' + ', '.join(self.keys) if self.keys else 'of all rows'}: {items}"

    @property
    def result_schema(self) -> pa.Schema:
        """Keys and results; raises PlanError or SchemaError for what is not possible."""
        return AggregationPlan(self.schema, self.keys, self.aggregations, ansi=self.ansi).result_schema

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row for each key, at the end of the input."""
        partial, final, _ = aggregate_pair(self.schema, self.keys, self.aggregations, ansi=self.ansi)
        yield from final.apply(partial.apply(batches))

    def step(self) -> AggregateStep:
        """The step of one subtask."""
        return AggregateStep(self)


class AggregateStep(PlainStep):
    """One subtask's keys and states."""

    def __init__(self, operator: KeyedAggregate) -> None:
        self._operator = operator
        items = operator.aggregations
        self._schema = operator.result_schema
        self._others = tuple(item for item in items if not counts_distinct(item))
        self._plan = AggregationPlan(operator.schema, operator.keys, self._others, ansi=operator.ansi)
        self._index = self._new_index()
        self._states: NumberStates | RowStates = self._new_states()
        self._distinct = {
            place: DistinctCounts(place, item, operator.schema, self._index)
            for place, item in enumerate(items)
            if counts_distinct(item)
        }
        self._last: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self._chains = Chains()
        self._context = StepContext(0, 1, 1, "")

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._operator.name

    @property
    def keys(self) -> int:
        """The number of keys that it has a state of."""
        return len(self._index)

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Take this subtask's keys out of the states."""
        self._context = context
        for batch in restored_rows(self._what, restored, context):
            slots = self._index.add(key_columns(batch) or [batch.column(0)])
            self._states.restore(batch, slots, len(self._index))
        for batch in restored_changes(self._what, restored, context):
            slots = self._index.slots(key_columns(batch) or [batch.column(0)])
            self._states.restore(batch, slots, len(self._index))
        for distinct in self._distinct.values():
            distinct.restore(restored, context)

    def check(self, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> None:
        """Raise CheckpointError where the states of a checkpoint are of another aggregation."""
        if ABOUT in names:
            refuse_other(self._what, read(ABOUT), self.name)
        for distinct in self._distinct.values():
            distinct.check(names, read, self.name)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The new results of the keys in the batch."""
        slots = self._slots(batch)
        touched = self._touched(slots)
        self._chains.changed(touched)
        self._states.add(batch, slots, len(self._index))
        others = iter(self._states.results(touched))
        columns = self._index.keys(touched)
        for place, item in enumerate(self._operator.aggregations):
            distinct = self._distinct.get(place)
            if distinct is None:
                columns.append(next(others))
            else:
                distinct.add(plain(batch.column(item.column)), slots, len(self._index))
                columns.append(distinct.result(touched))
        return (pa.RecordBatch.from_arrays(columns, schema=self._schema),)

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """Keys and states as they are now; a large state refers to what older checkpoints hold."""
        states = self._states.frozen(len(self._index))
        place = (checkpoint, self._context)
        chunks = chained_chunks(self._what, place, self._chains, self._index, states)
        for distinct in self._distinct.values():
            chunks += distinct.snapshot(checkpoint, self._context)
        return chunks

    def completed(self, checkpoint: int) -> None:
        """Snapshots may refer to it from here on."""
        self._chains.completed(checkpoint)
        for distinct in self._distinct.values():
            distinct.completed(checkpoint)

    def metrics(self) -> dict[str, float]:
        """Keys that have state, and its bytes."""
        return state_figures(len(self._index), self._index, self._states, *self._distinct.values())

    @property
    def _what(self) -> str:
        """The kind of the states: the aggregation, and the types of keys and states."""
        return f"{self.name} ({', '.join(str(field.type) for field in self._plan.state_schema)})"

    def _slots(self, batch: pa.RecordBatch) -> Slots:
        columns = [plain(batch.column(key)) for key in self._operator.keys]
        return self._index.slots(columns or [batch.column(0)])

    def _touched(self, slots: Slots) -> Slots:
        """The slots of the rows, each once: of several rows of a slot the last one counts."""
        if len(self._last) < len(self._index):
            self._last = zeros(2 * len(self._index), np.int32)
        numbers = np.arange(len(slots), dtype=np.int32)
        self._last[slots] = numbers
        distinct: Slots = slots[self._last[slots] == numbers]
        return distinct

    def _new_index(self) -> KeyIndex:
        return key_index([self._plan.state_schema.field(key).type for key in self._operator.keys])

    def _new_states(self) -> NumberStates | RowStates:
        operator = self._operator
        found = [accumulator(item, operator.schema, ansi=operator.ansi) for item in self._others]
        kept = [item for item in found if item is not None]
        return NumberStates(self._others, kept) if len(kept) == len(found) else RowStates(self._plan, self._index)


class NumberStates:
    """States that are numbers."""

    def __init__(self, aggregations: Sequence[Aggregation], accumulators: Sequence[Accumulator]) -> None:
        self._columns = [item.column for item in aggregations]
        self._accumulators = tuple(accumulators)

    @property
    def nbytes(self) -> int:
        """The bytes of all."""
        return bytes_of(array for state in self._accumulators for array in state.arrays)

    def add(self, batch: pa.RecordBatch, slots: Slots, count: int) -> None:
        """Take a batch's rows."""
        for name, state in zip(self._columns, self._accumulators, strict=True):
            state.add(plain(batch.column(0 if name == ALL_COLUMNS else name)), slots, count)

    def results(self, slots: Slots) -> list[pa.Array]:
        """The aggregates of these slots."""
        return [state.result(slots) for state in self._accumulators]

    def frozen(self, count: int) -> FrozenNumbers:
        """The states of the first slots."""
        return FrozenNumbers([array.frozen(count) for state in self._accumulators for array in state.arrays])

    def restore(self, batch: pa.RecordBatch, slots: Slots, count: int) -> None:
        """Take states that `FrozenNumbers` gave."""
        arrays = [array for state in self._accumulators for array in state.arrays]
        for number, array in enumerate(arrays):
            values = array.writable(slots, count)
            column = batch.column(f"#{number}")
            values[slots] = fixed_values(column, values.dtype)


class FrozenNumbers:
    """Arrays of numbers that do not change any more."""

    def __init__(self, arrays: Sequence[FrozenSlots]) -> None:
        self._arrays = tuple(arrays)
        self.width = float(sum(array.width for array in arrays))

    def columns(self, start: int, end: int) -> list[pa.Array]:
        """Those of a range of slots; booleans are bytes."""
        return [_column(array.values(start, end)) for array in self._arrays]

    def of(self, slots: Slots) -> tuple[Slots, list[pa.Array]]:
        """Those of these slots, which are in ascending order."""
        return slots, [_column(array.at(slots)) for array in self._arrays]


def _column(values: npt.NDArray[Any]) -> pa.Array:
    values = values.view(np.uint8) if values.dtype == np.bool_ else values
    return pa.Array.from_buffers(_TYPES[values.dtype], len(values), [None, pa.py_buffer(values)])


class RowStates:
    """States of any type, one row for each slot."""

    def __init__(self, plan: AggregationPlan, index: KeyIndex) -> None:
        self._plan = plan
        self._index = index
        self._keys = len(plan.keys)
        self._schema = pa.schema(list(plan.state_schema)[self._keys :])
        self._rows = StateRows(self._schema)

    @property
    def nbytes(self) -> int:
        """The bytes of all."""
        return self._rows.nbytes

    def add(self, batch: pa.RecordBatch, slots: Slots, count: int) -> None:
        """Merge the states of a batch's rows with those that are there."""
        fresh = self._plan.reduce(self._plan.lift(batch))
        found = self._index.slots(fresh.columns[: self._keys] or [fresh.column(0)])
        known = self._rows.known(found)
        if known.any():
            before = found[known]
            there = self._with_keys(before)
            # The old ones come first, so the order of the groups is: those, then the new ones.
            fresh = self._plan.reduce(pa.concat_batches([there, fresh]))
            found = np.concatenate([before, found[~known]])
        self._rows.put(found, fresh.select(range(self._keys, fresh.num_columns)))

    def results(self, slots: Slots) -> list[pa.Array]:
        """The aggregates of these slots."""
        found: list[pa.Array] = self._plan.finish(self._with_keys(slots)).columns[self._keys :]
        return found

    def frozen(self, count: int) -> FrozenRows:
        """The states of the first slots."""
        return self._rows.frozen(count)

    def restore(self, batch: pa.RecordBatch, slots: Slots, count: int) -> None:
        """Take states that `FrozenRows` gave."""
        states = batch.columns[self._keys :]
        self._rows.put(slots, pa.RecordBatch.from_arrays(states, schema=self._schema))

    def _with_keys(self, slots: Slots) -> pa.RecordBatch:
        columns = [*self._index.keys(slots), *self._rows.take(slots).columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._plan.state_schema)


_TYPES = {
    np.dtype(kind.to_pandas_dtype()): kind
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64()),
    )
}
"""The Arrow type of each NumPy type that states have."""
