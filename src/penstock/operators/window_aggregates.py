# SPDX-License-Identifier: Apache-2.0
"""Aggregation by windows and keys: partial states by pane before the exchange, windows after it.

The exchange goes by the keys alone, so all panes of a key come to one task, which puts windows together. A hidden
count of rows goes with the states: a pane that comes too late is counted by its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from penstock.graph import INTERNAL, with_sessions
from penstock.operators.aggregate_operators import AggregationPlan
from penstock.operators.aggregates import ALL_COLUMNS, Aggregation
from penstock.operators.group_merges import boolean_array
from penstock.operators.groups import ChunkBuffer
from penstock.operators.keys import Groups
from penstock.operators.times import Times
from penstock.operators.windows import (
    END,
    START,
    FixedWindows,
    GivenWindows,
    Mask,
    Windows,
    bounds_in,
    int64_values,
    merged_sessions,
    window_column,
    window_kind,
)
from penstock.record.layout import int64_array

ROWS = f"{INTERNAL}rows"
OUTPUT_ROWS = 1 << 16
_MERGE_ROWS = 1 << 16
_FEW_ROWS = 64
"""Merging so few ahead of the exchange takes longer than it saves."""
_FRESH_RUNS = 32
_FRESH_ROWS = 1 << 13
"""So many batches, of so many rows at most, are merged as they come."""


@dataclass(frozen=True)
class WindowSpec:
    """The part that travels: rows' schema, the names of the keys in order with the window's among them, the rest."""

    schema: pa.Schema
    columns: tuple[str, ...]
    windows: Windows
    aggregations: tuple[Aggregation, ...]
    ansi: bool = True

    @cached_property
    def plan(self) -> WindowPlan:
        """The plan, made once per process."""
        return WindowPlan(self)

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns besides the window."""
        return tuple(name for name in self.columns if name != self.windows.name)

    @property
    def text(self) -> str:
        """The aggregation as it is shown."""
        items = ", ".join(item.title for item in self.aggregations)
        return f"{', '.join([*self.keys, self.windows.title])}: {items}"

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "plan"}


class WindowPlan:
    """The way of rows to states and of states to results, for both sides of the exchange."""

    def __init__(self, spec: WindowSpec) -> None:
        self.spec = spec
        self.windows = spec.windows
        bounds = [pa.field(name, pa.int64(), nullable=False) for name in spec.windows.bounds]
        rows = Aggregation(ROWS, ALL_COLUMNS, "count")
        keys = (*spec.keys, *spec.windows.bounds)
        schema = pa.schema([*spec.schema, *bounds])
        self._plan = AggregationPlan(schema, keys, (*spec.aggregations, rows), ansi=spec.ansi)
        self.state_schema = self._plan.state_schema
        times = spec.schema.field(spec.windows.column)
        kind = window_kind(times.type)
        given = {item.name: item for item in self._plan.result_schema}
        can_be_null = isinstance(spec.windows, GivenWindows) and spec.windows.keeps_nulls and times.nullable
        window = pa.field(spec.windows.name, kind, nullable=can_be_null)
        given[spec.windows.name] = with_sessions(window, are_sessions=spec.windows.are_sessions)
        names = [*spec.columns, *(item.name for item in spec.aggregations)]
        self.result_schema = pa.schema([given[name] for name in names])

    def partial(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The states of a batch's rows by key and pane; rows without a time have none."""
        bounds, missing = bounds_in(batch.column(self.windows.column), self.windows)
        if missing is not None:
            batch, bounds = batch.filter(boolean_array(~missing)), tuple(each[~missing] for each in bounds)
        columns = [int64_array(np.ascontiguousarray(each)) for each in bounds]
        rows = pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self._plan.input_schema)
        states = self._plan.lift(rows)
        return states if states.num_rows <= _FEW_ROWS else self.merge(states)

    def merge(self, states: pa.RecordBatch) -> pa.RecordBatch:
        """One state row for each key and pane, or session."""
        if self.windows.are_sessions and states.num_rows:
            found = merged_sessions(self.keys_of(states), self.starts(states), self.ends(states))
            states = self._with(states, dict(zip((START, END), found, strict=True)))
        return self._plan.reduce(states)

    def expanded(self, states: pa.RecordBatch, chosen_by: Callable[[Times], Mask]) -> pa.RecordBatch:
        """The states of the windows that are chosen by their ends, out of those of their panes."""
        if not isinstance(self.windows, FixedWindows):
            return states
        found = self.in_windows(self.windows, states, chosen_by)
        return found if self.windows.slide == self.windows.size else self._plan.reduce(found)

    def in_windows(
        self, windows: FixedWindows, states: pa.RecordBatch, chosen_by: Callable[[Times], Mask]
    ) -> pa.RecordBatch:
        """The same, not merged: each pane's state once for each of its windows."""
        rows, starts = windows.windows(self.starts(states), chosen_by)
        return self._with(states.take(int64_array(rows)), {START: starts})

    def merged(self, groups: Groups, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """One state row for each of these groups; `columns` are the rows' states without keys."""
        return self._plan.merged(groups, columns)

    def results(self, states: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The results of windows' states, in batches of bounded size."""
        starts = self.starts(states)
        ends = self.ends(states)
        found = self._plan.finish(states)
        columns = {name: found.column(name) for name in found.schema.names}
        kind = self.result_schema.field(self.windows.name).type
        columns[self.windows.name] = window_column(starts, ends, kind)
        whole = pa.RecordBatch.from_arrays(
            [columns[name] for name in self.result_schema.names], schema=self.result_schema
        )
        for first in range(0, whole.num_rows, OUTPUT_ROWS):
            yield whole.slice(first, OUTPUT_ROWS)

    def keys_of(self, states: pa.RecordBatch) -> list[pa.Array]:
        """The key columns besides the window."""
        return [states.column(place) for place in range(len(self.spec.keys))]

    def starts(self, states: pa.RecordBatch) -> Times:
        """The beginnings of panes, windows or sessions."""
        return int64_values(states.column(START))

    def ends(self, states: pa.RecordBatch) -> Times:
        """The ends of windows or sessions."""
        if isinstance(self.windows, FixedWindows):
            return self.starts(states) + self.windows.size
        return int64_values(states.column(END))

    def rows(self, states: pa.RecordBatch) -> int:
        """The number of rows that these states are of."""
        return int(int64_values(states.column(states.num_columns - 1)).sum())

    def _with(self, states: pa.RecordBatch, bounds: dict[str, Times]) -> pa.RecordBatch:
        for name, values in bounds.items():
            place = states.schema.get_field_index(name)
            states = states.set_column(place, states.schema.field(place), int64_array(np.ascontiguousarray(values)))
        return states


class GrowingStates:
    """State rows that are merged as they grow: each row is merged a number of times that grows by the logarithm."""

    def __init__(self, plan: WindowPlan, settled: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None) -> None:
        """`settled` puts what is merged where it is to lie."""
        self._plan = plan
        self._place = settled
        self._runs: list[pa.RecordBatch] = []
        self._fresh = 0
        self._fresh_runs = 0
        self._settled = 0

    def __len__(self) -> int:
        return self._fresh + self._settled

    @property
    def nbytes(self) -> int:
        """The bytes of all states."""
        return sum(run.nbytes for run in self._runs)

    def add(self, states: pa.RecordBatch) -> None:
        """Take more states in."""
        if states.num_rows:
            self._runs.append(states)
            self._fresh += states.num_rows
            self._fresh_runs += 1
            if self._fresh >= max(_MERGE_ROWS, self._settled):
                self.merged()
            elif self._fresh_runs >= _FRESH_RUNS and self._fresh <= _FRESH_ROWS:
                self._merge_fresh()

    def merged(self) -> pa.RecordBatch | None:
        """All states, each key and pane once; they stay here."""
        if self._fresh:
            whole = self._plan.merge(self._runs[0] if len(self._runs) == 1 else pa.concat_batches(self._runs))
            whole = whole if self._place is None else self._place(whole)
            self._settle([whole])
        return self._runs[0] if self._runs else None

    def keep(self, states: pa.RecordBatch) -> None:
        """Hold these in the place of all; they are merged."""
        self._settle([states if self._place is None else self._place(states)] if states.num_rows else [])

    @property
    def runs(self) -> tuple[pa.RecordBatch, ...]:
        """Batches that together are all states, and never change."""
        return tuple(self._runs)

    def _settle(self, runs: list[pa.RecordBatch]) -> None:
        self._runs, self._fresh, self._fresh_runs = runs, 0, 0
        self._settled = sum(run.num_rows for run in runs)

    def _merge_fresh(self) -> None:
        """Make one run of many small ones, so that little is left to merge when a window is due."""
        whole = self._plan.merge(pa.concat_batches(self._runs[-self._fresh_runs :]))
        self._runs[-self._fresh_runs :] = [whole]
        self._fresh, self._fresh_runs = whole.num_rows, 1


@dataclass(frozen=True, slots=True)
class PartialWindows:
    """Before the exchange: rows to states by key and pane."""

    spec: WindowSpec

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"partial aggregate by {self.spec.text}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The states of large chunks; of single batches where they come one by one, as in a streaming query."""
        plan, buffer = self.spec.plan, ChunkBuffer()
        for batch in batches:
            chunk = buffer.add(batch)
            if chunk is not None:
                yield plan.partial(chunk)
        chunk = buffer.take()
        if chunk is not None:
            yield plan.partial(chunk)


@dataclass(frozen=True, slots=True)
class AllWindows:
    """After the exchange, in a batch job: states to the results of all windows."""

    spec: WindowSpec

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"windows by {self.spec.text}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row for each window and key."""
        plan = self.spec.plan
        states = GrowingStates(plan)
        for batch in batches:
            states.add(batch)
        whole = states.merged()
        if whole is not None:
            yield from plan.results(plan.expanded(whole, _all_ends))


def _all_ends(ends: Times) -> Mask:
    return np.ones(len(ends), np.bool_)
