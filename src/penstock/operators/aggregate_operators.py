# SPDX-License-Identifier: Apache-2.0
"""Partial aggregation before an exchange and final aggregation after it.

Both reduce chunks of about a million rows to one state row per group and merge these as they grow. The partial
side keeps to a bound: where grouping does not help (more groups than half the rows) states are passed on as they
are, and what has grown beyond 64 MiB is passed on and forgotten. The final side keeps all groups of its task.
Without keys there is one group, and the final side gives one row even for no input, as SQL does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PlanError
from penstock.graph import same_but_nulls
from penstock.operators.aggregate_states import Aggregation, Function, State
from penstock.operators.aggregates import (
    ALL_COLUMNS,
    MOMENTS,
    lifted,
    plain_type,
)
from penstock.operators.group_functions import MERGES, function_of
from penstock.operators.group_merges import Mask, boolean_array, exact_sums, may_overflow, merged_by_group
from penstock.operators.groups import ChunkBuffer
from penstock.operators.keys import Groups, group_rows, refuse_ungroupable
from penstock.record.relabelled import relabelled

_RUNNING_BYTES = 64 << 20
_MERGE_ROWS = 1 << 16
_OUTPUT_ROWS = 1 << 16


class AggregationPlan:
    """The plan that both sides know: the functions, and the schemas of states and results."""

    def __init__(
        self, schema: pa.Schema, keys: Sequence[str], aggregations: Sequence[Aggregation], *, ansi: bool = True
    ) -> None:
        refuse_ungroupable(schema, keys)
        self.keys = tuple(keys)
        self.aggregations = tuple(aggregations)
        self.functions: tuple[Function, ...] = tuple(function_of(item, schema, ansi=ansi) for item in aggregations)
        self._states: tuple[State, ...] = tuple(state for function in self.functions for state in function.states)
        key_fields = [schema.field(key).with_type(plain_type(schema.field(key).type)) for key in keys]
        names = [*keys, *(item.name for item in aggregations)]
        if len(set(names)) != len(names):
            raise PlanError(f"result columns {', '.join(names)}: each name may occur once, keys included")
        states = [
            pa.field(f"{item.name}#{state.suffix}", state.type)
            for item, function in zip(aggregations, self.functions, strict=True)
            for state in function.states
        ]
        results = [
            _result_field(item, function, schema) for item, function in zip(aggregations, self.functions, strict=True)
        ]
        self.input_schema = schema
        self.state_schema = pa.schema([*key_fields, *states])
        self.result_schema = pa.schema([*key_fields, *results])

    def columns(self) -> list[int]:
        """The places of the input columns that are read, each once."""
        used = [*self.keys, *(item.column for item in self.aggregations if item.column != ALL_COLUMNS)]
        places = [self.input_schema.get_field_index(name) for name in dict.fromkeys(used)]
        return places or list(range(len(self.input_schema)))[:1]

    def lift(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """One state row per input row."""
        groups = [chunk.column(key) for key in self.keys]
        arrays = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(groups, self.state_schema, strict=False)
        ]
        for item, function in zip(self.aggregations, self.functions, strict=True):
            if item.column != ALL_COLUMNS:
                column = chunk.column(item.column)
            else:  # only its length counts, and rows without columns have one too
                column = chunk.column(0) if chunk.num_columns else pa.nulls(chunk.num_rows)
            arrays += [lifted(state, column) for state in function.states]
        return pa.RecordBatch.from_arrays(arrays, schema=self.state_schema)

    def reduce(self, states: pa.RecordBatch) -> pa.RecordBatch:
        """One state row per group, in first-seen order."""
        groups = group_rows([states.column(index) for index in range(len(self.keys))], states.num_rows)
        if groups.count == 0:
            return states.slice(0, 0)
        return self.merged(groups, states.columns[len(self.keys) :])

    def merged(self, groups: Groups, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """One state row per group, of which there is one at least; `columns` are the rows' states without keys."""
        merged: list[pa.Array | None] = self._merged_by_rows(groups, columns)
        lost: dict[int, Mask] = {}
        for index, (state, column) in enumerate(zip(self._states, columns, strict=True)):
            if state.rules is not None and may_overflow(groups, column):
                merged[index], beyond = exact_sums(groups, column)
                if beyond is not None and state.rules.ansi:
                    raise state.rules.error(state.type)
                if beyond is not None:
                    lost[index] = beyond
        rest = [index for index, column in enumerate(merged) if column is None]
        by_arrow = merged_by_group(groups, [columns[i] for i in rest], [self._states[i].merge for i in rest])
        for index, column in zip(rest, by_arrow, strict=True):
            merged[index] = column
        for index, beyond in lost.items():
            # The state behind such a sum says whether it is lost; true or null, so it needs no merging here.
            merged[index + 1] = pc.if_else(boolean_array(beyond), boolean_array(beyond), merged[index + 1])
        return pa.RecordBatch.from_arrays([*groups.keys, *merged], schema=self.state_schema)

    def _merged_by_rows(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array | None]:
        """The merged states that Arrow's aggregation does not make; None for the others."""
        merged: list[pa.Array | None] = []
        for function in self.functions:
            own = columns[len(merged) : len(merged) + len(function.states)]
            merge = MERGES.get(function.states[0].merge)
            merged += [None] * len(own) if merge is None else merge(groups.codes, groups.count, own)
        return merged

    def finish(self, states: pa.RecordBatch) -> pa.RecordBatch:
        """The results of reduced states."""
        position = len(self.keys)
        arrays = list(states.columns[:position])
        for function in self.functions:
            columns = states.columns[position : position + len(function.states)]
            position += len(columns)
            result = function.finish(*columns)
            same = same_but_nulls(result.type, function.type)
            arrays.append(relabelled(result, function.type) if same else result.cast(function.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.result_schema)

    def nothing(self) -> pa.RecordBatch:
        """The states of one group without rows: counts of zero, nulls else."""
        zero = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(np.zeros(1, np.int64))])
        zero_float = zero.view(pa.float64())
        arrays = []
        for function in self.functions:
            for state in function.states:
                if state.merge == MOMENTS:
                    arrays.append(zero if state.suffix == "count" else zero_float)
                else:
                    arrays.append(zero if state.suffix == "count" else pa.nulls(1, state.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.state_schema)


def _result_field(item: Aggregation, function: Function, schema: pa.Schema) -> pa.Field:
    if not function.keeps_type:
        return pa.field(item.name, function.type, nullable=function.may_be_null)
    column = schema.field(item.column)
    return column.with_name(item.name).with_type(function.type).with_nullable(True)


@dataclass(frozen=True)
class _Spec:
    """The part that travels: the plan is built again on its host, because functions do not pickle."""

    schema: pa.Schema
    keys: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]
    ansi: bool

    @cached_property
    def plan(self) -> AggregationPlan:
        """The plan, made once per process."""
        return AggregationPlan(self.schema, self.keys, self.aggregations, ansi=self.ansi)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "plan"}

    @property
    def text(self) -> str:
        """The aggregations as they are shown."""
        items = ", ".join(item.title for item in self.aggregations)
        return f"{'by ' + ', '.join(self.keys) if self.keys else 'of all rows'}: {items}"


class _Running:
    """States that are merged as they grow."""

    def __init__(self, plan: AggregationPlan) -> None:
        self._plan = plan
        self._merged: pa.RecordBatch | None = None
        self._fresh: list[pa.RecordBatch] = []
        self._fresh_rows = 0

    def add(self, states: pa.RecordBatch) -> int:
        """Take reduced states; gives the bytes that are held."""
        self._fresh.append(states)
        self._fresh_rows += states.num_rows
        settled = 0 if self._merged is None else self._merged.num_rows
        # Merging only when as much is new as is settled keeps the whole work linear.
        if self._fresh_rows >= max(_MERGE_ROWS, settled):
            self._merge()
        held = [*self._fresh, *([] if self._merged is None else [self._merged])]
        return sum(int(batch.nbytes) for batch in held)

    def take(self) -> pa.RecordBatch | None:
        """All groups, each once; nothing is held afterwards."""
        if self._fresh:
            self._merge()
        merged, self._merged = self._merged, None
        return merged

    def _merge(self) -> None:
        parts = [*([] if self._merged is None else [self._merged]), *self._fresh]
        self._fresh, self._fresh_rows = [], 0
        self._merged = self._plan.reduce(parts[0] if len(parts) == 1 else pa.concat_batches(parts))


@dataclass(frozen=True, slots=True)
class PartialAggregate:
    """Before the exchange: input rows to states, fewer where grouping helps."""

    spec: _Spec

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"partial aggregate {self.spec.text}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """States of the whole input."""
        plan = self.spec.plan
        columns = plan.columns()
        buffer = ChunkBuffer()
        running = _Running(plan)
        for batch in batches:
            chunk = buffer.add(batch.select(columns))
            if chunk is not None:
                yield from self._absorb(plan, chunk, running)
        chunk = buffer.take()
        if chunk is not None:
            yield from self._absorb(plan, chunk, running)
        rest = running.take()
        if rest is not None:
            yield rest

    def _absorb(self, plan: AggregationPlan, chunk: pa.RecordBatch, running: _Running) -> Iterator[pa.RecordBatch]:
        states = plan.reduce(plan.lift(chunk))
        if states.num_rows > chunk.num_rows // 2 and states.num_rows > _MERGE_ROWS:
            yield states
            return
        if running.add(states) > _RUNNING_BYTES:
            full = running.take()
            if full is not None:
                yield full


@dataclass(frozen=True, slots=True)
class FinalAggregate:
    """After the exchange: states to results."""

    spec: _Spec

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"aggregate {self.spec.text}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row per group."""
        plan = self.spec.plan
        buffer = ChunkBuffer()
        running = _Running(plan)
        for batch in batches:
            chunk = buffer.add(batch)
            if chunk is not None:
                running.add(plan.reduce(chunk))
        chunk = buffer.take()
        if chunk is not None:
            running.add(plan.reduce(chunk))
        states = running.take()
        if states is None and not plan.keys:
            states = plan.nothing()
        if states is None:
            return
        results = plan.finish(states)
        for start in range(0, results.num_rows, _OUTPUT_ROWS):
            yield results.slice(start, _OUTPUT_ROWS)


def aggregate_pair(
    schema: pa.Schema, keys: Sequence[str], aggregations: Sequence[Aggregation], *, ansi: bool = True
) -> tuple[PartialAggregate, FinalAggregate, AggregationPlan]:
    """Both sides of one aggregation, checked; and their plan, which knows the schemas.

    With `ansi` a sum that leaves its type is an error, as with `spark.sql.ansi.enabled`.
    """
    spec = _Spec(schema, tuple(keys), tuple(aggregations), ansi)
    return PartialAggregate(spec), FinalAggregate(spec), spec.plan
