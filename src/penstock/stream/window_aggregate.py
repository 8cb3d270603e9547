# SPDX-License-Identifier: Apache-2.0
"""Windows of a stream without an end: states by key and pane wait until the watermark has passed their windows.

Each window or session is given out once, when the watermark reaches its end, as by Spark. States of a pane whose last
window was given out are dropped; rows that come for it later are late: they are counted, and nothing else.

States are batches that never change and are merged as they grow, so a row costs the same however many keys there are,
and a snapshot is a reference to them. It refers to an older one if few states have come since. Of panes, and of
windows that rows have, it has those that have come then: a restore adds them, and leaves out what the watermark has
passed. Of sessions it has all of the keys that have some more or fewer, because a row may come beside a session that
was given out, and begins another one: a restore takes them as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from penstock.operators.group_merges import boolean_array
from penstock.operators.times import Times
from penstock.operators.window_aggregates import AllWindows, GrowingStates, WindowSpec
from penstock.operators.windows import FixedWindows
from penstock.record.layout import int64_array
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.increments import Chains
from penstock.stream.keyed_state import ABOUT, KeyedTable, refuse_other
from penstock.stream.lateness import Lateness
from penstock.stream.row_increments import KeysOfBatches, added_chunks, replaced_chunks, replaced_rows
from penstock.stream.state_place import settled, state_figures
from penstock.stream.watermark import MOST, Passed, Watermark
from penstock.stream.window_updates import WindowUpdateStep


@dataclass(frozen=True, slots=True)
class WindowAggregate:
    """After the exchange: states to the results of windows, each given once, or with `updates` when it changes."""

    spec: WindowSpec
    uid: str = ""
    updates: bool = False
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", self.spec.plan.state_schema)

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"windows by {self.spec.text}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All windows, at the end of the input."""
        return AllWindows(self.spec).apply(batches)

    def step(self) -> WindowStep | WindowUpdateStep:
        """The step of one subtask."""
        return WindowUpdateStep(self.spec, self.name) if self.updates else WindowStep(self)


class WindowStep(PlainStep):
    """One subtask's states and windows."""

    allows_later_watermarks = True

    def __init__(self, operator: WindowAggregate) -> None:
        self._operator = operator
        self._plan = operator.spec.plan
        self._windows = operator.spec.windows
        self._adds = not self._windows.are_sessions
        """True if states are only ever added, so that the watermark tells which ones have gone."""
        self._states = GrowingStates(self._plan, settled)
        self._lateness = Lateness()
        self._chains = Chains()
        self._due = MOST
        """No window ends before this."""
        self._context = StepContext(0, 1, 1, "")

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._operator.name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Take this subtask's states; raises CheckpointError for those of another aggregation."""
        self._context = context
        self._lateness.open(context, restored)
        for batch in replaced_rows(self._what, restored, context):
            states = pa.RecordBatch.from_arrays(batch.columns, schema=self._plan.state_schema)
            if self._adds:  # what is over had been given out
                states = self._not_over(self._lateness, states)
            self._due = min(self._due, self._first_due(states))
            self._states.add(states)

    def check(self, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> None:
        """Raise CheckpointError where the states of a checkpoint are of another aggregation."""
        if ABOUT in names:
            refuse_other(self._what, read(ABOUT), self.name)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Keep the states of windows that have not been given out; nothing is given out for rows."""
        is_late = self._passed(self._lateness, batch).is_over(self._closing(batch))
        if is_late.any():
            self._lateness.late_rows += self._plan.rows(batch.filter(boolean_array(is_late)))
            batch = batch.filter(boolean_array(~is_late))
        if batch.num_rows:
            self._due = min(self._due, self._first_due(batch))
            self._states.add(batch)
            self._changed(batch)
        return ()

    def on_watermark(self, watermark: Watermark) -> Iterable[pa.RecordBatch]:
        """The windows that are over by it."""
        reached = self._lateness.reached(watermark)
        found = self._fired(reached) if reached.has_reached(self._due) else ()
        self._lateness.advance(reached)
        return found

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """All states, and the watermark up to which windows were given out; many refer to older checkpoints."""
        table = KeyedTable(self._states.runs, self._plan.state_schema, len(self._operator.spec.keys))
        place = (checkpoint, self._context)
        if self._adds:
            piece = partial(self._come, copy.copy(self._lateness))
            chunks = added_chunks(self._what, place, self._chains, table, piece)
        else:
            keys = partial(KeysOfBatches, table=table)
            chunks = replaced_chunks(self._what, place, self._chains, (table, len(table)), keys)
        return [self._lateness.chunk(), *chunks]

    def completed(self, checkpoint: int) -> None:
        """Snapshots may refer to it from here on."""
        self._chains.completed(checkpoint)

    def metrics(self) -> dict[str, float]:
        """Rows that were late, and those of the state."""
        return {**self._lateness.figures(), **state_figures(len(self._states), self._states)}

    @property
    def _what(self) -> str:
        """The kind of the states: the aggregation, and the types of keys and states."""
        return f"{self.name} ({', '.join(str(field.type) for field in self._plan.state_schema)})"

    def _fired(self, watermark: Watermark) -> Iterable[pa.RecordBatch]:
        """The results of what is over by this one; what may still be needed stays."""
        states = self._states.merged()
        if states is None:
            self._due = MOST
            return ()
        is_over = watermark.is_over(self._closing(states))
        if isinstance(self._windows, FixedWindows):
            before = self._passed(self._lateness, states)
            ready = self._plan.expanded(states, lambda ends: watermark.is_over(ends) & ~before.is_over(ends))
        else:
            ready = states.filter(boolean_array(is_over))
        if is_over.any():
            if not self._adds:
                self._changed(states.take(int64_array(np.flatnonzero(is_over))))
            states = states.take(int64_array(np.flatnonzero(~is_over)))
            self._states.keep(states)
        self._lateness.advance(watermark)
        self._due = self._first_due(states)
        return self._plan.results(ready) if ready.num_rows else ()

    def _changed(self, states: pa.RecordBatch) -> None:
        """Note states that came, or the keys of sessions that came or went."""
        if not self._adds:
            states = states.select(range(max(1, len(self._operator.spec.keys))))
        self._chains.added(states, len(self._states))

    def _come(self, lateness: Lateness, noted: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """The states that came, without those that have gone since."""
        return self._plan.merge(self._not_over(lateness, pa.concat_batches(noted)))

    def _not_over(self, lateness: Lateness, states: pa.RecordBatch) -> pa.RecordBatch:
        is_over = self._passed(lateness, states).is_over(self._closing(states))
        return states.filter(boolean_array(~is_over)) if is_over.any() else states

    def _passed(self, lateness: Lateness, states: pa.RecordBatch) -> Passed:
        """The times up to which windows of the keys of these states were given out."""
        return lateness.passed(self._plan.keys_of(states))

    def _closing(self, states: pa.RecordBatch) -> Times:
        """The end of the last window of each of these states."""
        if isinstance(self._windows, FixedWindows):
            return self._windows.closing(self._plan.starts(states))
        return self._plan.ends(states)

    def _first_due(self, states: pa.RecordBatch) -> int:
        """The first end of a window of these that was not given out."""
        if not states.num_rows:
            return MOST
        if isinstance(self._windows, FixedWindows):
            panes = self._plan.starts(states)
            return int(self._windows.due(panes, self._passed(self._lateness, states).later_of(panes)).min())
        return int(self._plan.ends(states).min())
