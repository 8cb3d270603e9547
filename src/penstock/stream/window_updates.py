# SPDX-License-Identifier: Apache-2.0
"""Windows of a stream in output mode `update`: a row for each window that rows of a step have changed.

States are kept by key and window. The watermark drops those of windows that it has passed; rows that come for them
later are late, and are counted. Without a watermark nothing is dropped and nothing is late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import pyarrow as pa

from penstock.operators.group_merges import boolean_array
from penstock.operators.window_aggregates import WindowSpec
from penstock.operators.windows import FixedWindows
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.key_index import KeyIndex, Slots, key_index
from penstock.stream.keyed_state import ABOUT, KeyedTable, frozen_chunks, refuse_other, restored_rows
from penstock.stream.lateness import Lateness
from penstock.stream.state_rows import StateRows
from penstock.stream.watermarks import LEAST, MOST

_SPARE = 1 << 12
"""So many windows that have passed are kept before the others are gathered."""


class WindowUpdateStep(PlainStep):
    """One subtask's windows."""

    def __init__(self, spec: WindowSpec, name: str) -> None:
        assert isinstance(spec.windows, FixedWindows)  # noqa: S101 - sessions are refused at the start
        self._name = name
        self._plan = spec.plan
        self._windows = spec.windows
        self._keys = len(spec.keys) + 1
        self._schema = spec.plan.state_schema
        self._index, self._rows = self._nothing()
        self._lateness = Lateness()
        self._context = StepContext(0, 1, 1, "")

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Take this subtask's windows; raises CheckpointError for those of another aggregation."""
        self._context = context
        self._lateness.open(context, restored)
        for batch in restored_rows(self._what, restored, context):
            self._put(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))

    def check(self, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> None:
        """Raise CheckpointError where the states of a checkpoint are of another aggregation."""
        if ABOUT in names:
            refuse_other(self._what, read(ABOUT), self.name)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The new results of the windows that these states change."""
        passed = self._lateness.passed(self._plan.keys_of(batch))
        is_late = np.asarray(self._windows.closing(self._plan.starts(batch)) <= passed)
        if is_late.any():
            self._lateness.late_rows += self._plan.rows(batch.filter(boolean_array(is_late)))
            batch = batch.filter(boolean_array(~is_late))
        if not batch.num_rows:
            return ()
        passed = self._lateness.passed(self._plan.keys_of(batch))
        fresh = self._plan.merge(self._plan.expanded(batch, passed, MOST))
        slots = self._index.slots(fresh.columns[: self._keys])
        known = self._rows.known(slots)
        if known.any():
            before = slots[known]
            fresh = self._plan.merge(pa.concat_batches([self._with_keys(before), fresh]))
            slots = np.concatenate([before, slots[~known]])
        self._rows.put(slots, fresh.select(range(self._keys, fresh.num_columns)))
        return self._plan.results(fresh)

    def on_watermark(self, watermark: int) -> Iterable[pa.RecordBatch]:
        """Drop what it has passed, when that is more than what stays."""
        self._lateness.advance(watermark)
        if len(self._index) > _SPARE:
            live = self._live()
            if 2 * len(live) < len(self._index):
                kept = self._with_keys(live)
                self._index, self._rows = self._nothing()
                self._put(kept)
        return ()

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """The windows that have not passed, and the watermark."""
        kept = self._with_keys(self._live())
        table = KeyedTable([kept], self._schema, self._keys - 1)
        return [self._lateness.chunk(), *frozen_chunks(self._what, table, table, self._context)]

    def metrics(self) -> dict[str, float]:
        """Rows that were late."""
        return {"rows_late": float(self._lateness.late_rows)}

    @property
    def _what(self) -> str:
        """The kind of the states: the aggregation, and the types of keys and states."""
        return f"{self.name}, updates ({', '.join(str(field.type) for field in self._schema)})"

    def _nothing(self) -> tuple[KeyIndex, StateRows]:
        fields = list(self._schema)
        index = key_index([field.type for field in fields[: self._keys]])
        return index, StateRows(pa.schema(fields[self._keys :]))

    def _put(self, states: pa.RecordBatch) -> None:
        if states.num_rows:
            slots = self._index.add(states.columns[: self._keys])
            self._rows.put(slots, states.select(range(self._keys, states.num_columns)))

    def _live(self) -> Slots:
        """The slots of windows that have not passed."""
        count = len(self._index)
        slots = np.arange(count, dtype=np.int64)
        if not count or self._lateness.watermark == LEAST:
            return slots
        keys = self._index.keys(slots)
        passed = self._lateness.passed(keys[:-1])
        starts = np.frombuffer(keys[-1].buffers()[1], np.int64, count, 8 * keys[-1].offset)
        return np.flatnonzero(starts + self._windows.size > passed)

    def _with_keys(self, slots: Slots) -> pa.RecordBatch:
        columns = [*self._index.keys(slots), *self._rows.take(slots).columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
