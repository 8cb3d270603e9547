# SPDX-License-Identifier: Apache-2.0
"""The inner join of a stream with a table that does not change, batch by batch: the table came with the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.operators.join_sides import RIGHT, AsSide, JoinedSides, others_of
from penstock.operators.keys import plain
from penstock.record.layout import int64_array
from penstock.stream.chain import PlainStep, State, StepContext
from penstock.stream.join_side import JoinSide
from penstock.stream.key_index import key_index

_SPARE = 1 << 16


@dataclass(frozen=True, slots=True)
class TableJoin:
    """Rows that meet rows of a table by their keys; a null key meets nothing."""

    sides: JoinedSides
    table: pa.Table = field(repr=False, compare=False)
    uid: str = ""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"join by {', '.join(self.sides.left.keys)} with a table of {self.table.num_rows} rows"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As in a query."""
        step = self.step()
        step.open(StepContext(0, 1, 1, ""), [])
        for batch in batches:
            yield from step.process(batch)

    def step(self) -> TableJoinStep:
        """The step of one subtask."""
        return TableJoinStep(self)


class TableJoinStep(PlainStep):
    """One subtask's table, by key."""

    def __init__(self, operator: TableJoin) -> None:
        self._operator = operator
        sides = operator.sides
        self._keys = sides.left.keys
        fields = list(sides.schema)[: len(self._keys)]
        self._index = key_index([one.type for one in fields])
        self._schema = pa.schema([*fields, *others_of(sides.right)])
        self._side = JoinSide()
        self._known = 0
        """The number of keys that the table has: their slots come first."""

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._operator.name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Number the table's keys."""
        for rows in AsSide(self._operator.sides, RIGHT).apply(iter(self._operator.table.to_batches())):
            places = [*range(len(self._keys)), *self._operator.sides.columns(RIGHT)]
            columns = [rows.column(place) for place in places]
            own = pa.RecordBatch.from_arrays(columns, schema=self._schema)
            if own.num_rows:
                self._side.add(self._index.slots(columns[: len(self._keys)]), own)
        self._known = len(self._index)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The pairs of the batch."""
        if len(self._index) > 2 * self._known + _SPARE:  # keys that the table does not have must not pile up
            keys = self._index.keys(np.arange(self._known, dtype=np.int64))
            self._index = key_index([key.type for key in keys])
            self._index.add(keys)
        slots = self._index.slots([plain(batch.column(key)) for key in self._keys])
        others = others_of(self._operator.sides.left)
        for pairs in self._side.matches(slots):
            own, rows = batch.take(int64_array(pairs.given)), pairs.rows
            columns = [*rows.columns[: len(self._keys)], *(own.column(one.name) for one in others)]
            columns += rows.columns[len(self._keys) :]
            yield pa.RecordBatch.from_arrays(columns, schema=self._operator.sides.result_schema)
