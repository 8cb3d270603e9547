# SPDX-License-Identifier: Apache-2.0
"""Windows of a stream in output mode `update`: a row for each window that rows of a step have changed.

States are kept by key and window. The watermark drops those of windows that it has passed; rows that come for them
later are late, and are counted. Without a watermark nothing is dropped and nothing is late.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from penstock.operators.group_merges import boolean_array
from penstock.operators.keys import Groups, normalised
from penstock.operators.window_aggregates import WindowSpec
from penstock.operators.windows import FixedWindows, int64_values
from penstock.record.layout import int64_array
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.increments import Chains
from penstock.stream.key_index import KeyIndex, Slots, key_index
from penstock.stream.keyed_state import ABOUT, chained_chunks, refuse_other, restored_changes, restored_rows
from penstock.stream.lateness import Lateness
from penstock.stream.row_increments import LiveRows, Mask
from penstock.stream.state.slot_rows import SlotRows, slot_rows
from penstock.stream.state_place import state_figures
from penstock.stream.watermark import Watermark

_SPARE = 1 << 12
"""So many windows that have passed are kept before the others are gathered."""


class WindowUpdateStep(PlainStep):
    """Updates the windows of one subtask."""

    allows_later_watermarks = True

    def __init__(self, spec: WindowSpec, name: str) -> None:
        assert isinstance(spec.windows, FixedWindows)  # noqa: S101 - sessions are refused at the start
        self._name = name
        self._plan = spec.plan
        self._windows = spec.windows
        self._keys = len(spec.keys) + 1
        self._schema = spec.plan.state_schema
        self._index, self._rows = self._nothing()
        self._lateness = Lateness()
        self._chains = Chains()
        self._context = StepContext(0, 1, 1, "")

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Take this subtask's windows; raises CheckpointError for those of another aggregation."""
        self._context = context
        self._lateness.open(context, restored)
        rows, changes = (read(self._what, restored, context) for read in (restored_rows, restored_changes))
        for batch in itertools.chain(rows, changes):
            live = self._is_live(self._lateness, batch.columns)
            own = batch if live.all() else batch.filter(boolean_array(live))  # others had gone with the checkpoint
            self._put(pa.RecordBatch.from_arrays(own.columns, schema=self._schema))

    def check(self, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> None:
        """Raise CheckpointError where the states of a checkpoint are of another aggregation."""
        if ABOUT in names:
            refuse_other(self._what, read(ABOUT), self.name)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The new results of the windows that these states change."""
        passed = self._lateness.passed(self._plan.keys_of(batch))
        is_late = passed.is_over(self._windows.closing(self._plan.starts(batch)))
        if is_late.any():
            self._lateness.late_rows += self._plan.rows(batch.filter(boolean_array(is_late)))
            batch = batch.filter(boolean_array(~is_late))
        if not batch.num_rows:
            return ()
        passed = self._lateness.passed(self._plan.keys_of(batch))
        rows = self._plan.in_windows(self._windows, batch, lambda ends: ~passed.is_over(ends))
        slots = self._index.slots(rows.columns[: self._keys])
        touched, first, codes = np.unique(slots, return_index=True, return_inverse=True)
        keys = [normalised(key.take(int64_array(first))) for key in rows.columns[: self._keys]]
        known = np.flatnonzero(self._rows.known(touched))
        columns = rows.columns[self._keys :]
        if len(known):
            there = self._rows.get(touched[known])[1].columns
            columns = [pa.concat_arrays(both) for both in zip(there, columns, strict=True)]
            codes = np.concatenate([known, codes])
        groups = Groups(codes.astype(np.int32), len(touched), tuple(keys))
        fresh = self._plan.merged(groups, columns)
        self._chains.changed(touched)
        self._rows.put(touched, fresh.select(range(self._keys, fresh.num_columns)))
        return self._plan.results(fresh)

    def on_watermark(self, watermark: Watermark) -> Iterable[pa.RecordBatch]:
        """Drop what it has passed, when that is more than what stays."""
        self._lateness.advance(watermark)
        if len(self._index) > _SPARE:
            live = self._live()
            if 2 * len(live) < len(self._index):
                kept = self._with_keys(live)
                self._index, self._rows = self._nothing()
                self._put(kept)
                self._chains.forget()
        return ()

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """The watermark, and the windows that it has not passed; many refer to what older checkpoints hold."""
        is_live = partial(self._is_live, copy.copy(self._lateness))
        rows = LiveRows(self._index, self._rows.frozen(len(self._index)), is_live)
        place = (checkpoint, self._context)
        return [
            self._lateness.chunk(),
            *chained_chunks(self._what, place, self._chains, rows, rows, rows.key_columns - 1),
        ]

    def completed(self, checkpoint: int) -> None:
        """Snapshots may refer to it from here on."""
        self._chains.completed(checkpoint)

    def metrics(self) -> dict[str, float]:
        """Rows that were late, and those of the state."""
        return {**self._lateness.figures(), **state_figures(len(self._index), self._index, self._rows)}

    @property
    def _what(self) -> str:
        """The kind of the states: the aggregation, and the types of keys and states."""
        return f"{self.name}, updates ({', '.join(str(field.type) for field in self._schema)})"

    def _nothing(self) -> tuple[KeyIndex, SlotRows]:
        fields = list(self._schema)
        index = key_index([field.type for field in fields[: self._keys]])
        return index, slot_rows(pa.schema(fields[self._keys :]))

    def _put(self, states: pa.RecordBatch) -> None:
        if states.num_rows:
            slots = self._index.slots(states.columns[: self._keys])
            self._rows.put(slots, states.select(range(self._keys, states.num_columns)))

    def _live(self) -> Slots:
        """The slots of windows that have not passed."""
        slots = np.arange(len(self._index), dtype=np.int64)
        return np.flatnonzero(self._is_live(self._lateness, self._index.keys(slots)))

    def _is_live(self, lateness: Lateness, columns: Sequence[pa.Array]) -> Mask:
        """A mask of the windows of these columns, the keys first, that have not passed."""
        *keys, starts = columns[: self._keys]
        return ~lateness.passed(keys).is_over(int64_values(starts) + self._windows.size)

    def _with_keys(self, slots: Slots) -> pa.RecordBatch:
        columns = [*self._index.keys(slots), *self._rows.get(slots)[1].columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
