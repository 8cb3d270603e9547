# SPDX-License-Identifier: Apache-2.0
"""Windows of a stream without an end: states by key and pane wait until the watermark has passed their windows.

Each window is given out once, when the watermark reaches its end. A session waits until the watermark has passed its
end, because a row at its very end still belongs to it; so a replay gives the same sessions. States of a pane whose
last window was given out are dropped; rows that come for it later are late: they are counted, and nothing else.

States are batches that never change and are merged as they grow, so a row costs the same however many keys there are,
and a snapshot is a reference to them. It refers to an older one if few states have come since. Of panes it has those
that have come then, which a restore adds; of sessions all of the keys that have some more or fewer, because a row may
come beside a session that was given out, and begins another one.
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
from penstock.operators.windows import FixedWindows, Mask, SessionWindows
from penstock.record.layout import int64_array
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.increments import Chains
from penstock.stream.keyed_state import ABOUT, KeyedTable, refuse_other
from penstock.stream.lateness import Lateness
from penstock.stream.row_increments import KeysOfBatches, added_chunks, replaced_chunks, replaced_rows
from penstock.stream.state_place import settled
from penstock.stream.watermarks import MOST
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
            if isinstance(self._windows, FixedWindows):  # what is over had been given out
                states = self._not_over(self._lateness, states)
            self._due = min(self._due, self._first_due(states))
            self._states.add(states)

    def check(self, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> None:
        """Raise CheckpointError where the states of a checkpoint are of another aggregation."""
        if ABOUT in names:
            refuse_other(self._what, read(ABOUT), self.name)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Keep the states of windows that have not been given out; nothing is given out for rows."""
        is_late = self._is_over(self._lateness, batch)
        if is_late.any():
            self._lateness.late_rows += self._plan.rows(batch.filter(boolean_array(is_late)))
            batch = batch.filter(boolean_array(~is_late))
        if batch.num_rows:
            self._due = min(self._due, self._first_due(batch))
            self._states.add(batch)
            self._changed(batch)
        return ()

    def on_watermark(self, watermark: int) -> Iterable[pa.RecordBatch]:
        """The windows that end by this time."""
        due = watermark > self._due if isinstance(self._windows, SessionWindows) else watermark >= self._due
        found = self._fired(watermark) if due else ()
        self._lateness.advance(watermark)
        return found

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """All states, and the watermark up to which windows were given out; many refer to older checkpoints."""
        table = KeyedTable(self._states.runs, self._plan.state_schema, len(self._operator.spec.keys))
        place = (checkpoint, self._context)
        if isinstance(self._windows, SessionWindows):
            keys = partial(KeysOfBatches, table=table)
            chunks = replaced_chunks(self._what, place, self._chains, (table, len(table)), keys)
        else:
            piece = partial(self._come, copy.copy(self._lateness))
            chunks = added_chunks(self._what, place, self._chains, table, piece)
        return [self._lateness.chunk(), *chunks]

    def completed(self, checkpoint: int) -> None:
        """Snapshots may refer to it from here on."""
        self._chains.completed(checkpoint)

    def metrics(self) -> dict[str, float]:
        """Rows that were late, and those of the state."""
        return {**self._lateness.figures(), "state_rows": float(len(self._states))}

    @property
    def _what(self) -> str:
        """The kind of the states: the aggregation, and the types of keys and states."""
        return f"{self.name} ({', '.join(str(field.type) for field in self._plan.state_schema)})"

    def _fired(self, watermark: int) -> Iterable[pa.RecordBatch]:
        """The results of what ends by this time; what may still be needed stays."""
        states = self._states.merged()
        if states is None:
            self._due = MOST
            return ()
        if isinstance(self._windows, FixedWindows):
            passed = self._lateness.passed(self._plan.keys_of(states))
            ready = self._plan.expanded(states, passed, watermark)
            is_over = self._windows.closing(self._plan.starts(states)) <= watermark
        else:
            is_over = self._passed(states, watermark)
            ready = states.filter(boolean_array(is_over))
        if is_over.any():
            if isinstance(self._windows, SessionWindows):
                self._changed(states.take(int64_array(np.flatnonzero(is_over))))
            states = states.take(int64_array(np.flatnonzero(~is_over)))
            self._states.keep(states)
        self._lateness.advance(watermark)
        self._due = self._first_due(states)
        return self._plan.results(ready) if ready.num_rows else ()

    def _changed(self, states: pa.RecordBatch) -> None:
        """Note states that came, or the keys of sessions that came or went."""
        if isinstance(self._windows, SessionWindows):
            states = states.select(range(max(1, len(self._operator.spec.keys))))
        self._chains.added(states, len(self._states))

    def _come(self, lateness: Lateness, noted: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """The states that came, without those that have gone since."""
        return self._plan.merge(self._not_over(lateness, pa.concat_batches(noted)))

    def _not_over(self, lateness: Lateness, states: pa.RecordBatch) -> pa.RecordBatch:
        is_over = self._is_over(lateness, states)
        return states.filter(boolean_array(~is_over)) if is_over.any() else states

    def _is_over(self, lateness: Lateness, states: pa.RecordBatch) -> Mask:
        """A mask of the states all of whose windows were given out."""
        passed = lateness.passed(self._plan.keys_of(states))
        if isinstance(self._windows, FixedWindows):
            return np.asarray(self._windows.closing(self._plan.starts(states)) <= passed)
        return self._passed(states, passed)

    def _passed(self, states: pa.RecordBatch, watermark: Times | int) -> Mask:
        """A mask of the windows or sessions that end by a watermark."""
        ends = self._plan.ends(states)
        return np.asarray(ends < watermark if isinstance(self._windows, SessionWindows) else ends <= watermark)

    def _first_due(self, states: pa.RecordBatch) -> int:
        """The first end of a window of these that was not given out."""
        if not states.num_rows:
            return MOST
        if isinstance(self._windows, FixedWindows):
            passed: Times | int = self._lateness.passed(self._plan.keys_of(states))
            return int(self._windows.due(self._plan.starts(states), passed).min())
        return int(self._plan.ends(states).min())
