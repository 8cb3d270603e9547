# SPDX-License-Identifier: Apache-2.0
"""Functions over the groups of two keyed streams that have the same key.

Contracts are PySpark's: `fn(left, right)` or `fn(key, left, right)`, over tables or frames, once for each key that
either side has; a side without it gives no rows but all columns. Null is a key like any other, as in `groupBy`. Both
sides are collected, the left one first; what exceeds the task's memory is put aside (see `groups`).

When not to use it: for a plain equi-join, which `join` does without a call for each key.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.errors import PlanError
from penstock.operators.conform import Conformer
from penstock.operators.frame_keys import FrameKeys
from penstock.operators.frames import batch_of, frame_of
from penstock.operators.functions import checked_frame, checked_table, function_name, regrouped
from penstock.operators.groups import GroupCollector, Side
from penstock.operators.loans import Loan
from penstock.operators.memory import task_memory
from penstock.operators.zones import batches_in, schema_in

_WITH_KEY = 3


def takes_key(function: Callable[..., object], verb: str) -> bool:
    """Tell whether a function takes the key before the two sides; raises PlanError for other numbers of arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    count = sum(1 for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    if count not in (_WITH_KEY - 1, _WITH_KEY):
        raise PlanError(
            f"the function in {verb} must take either two arguments (left, right) or three (key, left, right); "
            f"{function_name(function)} takes {count}"
        )
    return count == _WITH_KEY


@dataclass(frozen=True, slots=True)
class CoGroupApply:
    """The common part of the cogroup operators: the sides, the function and its form, and the schema of its rows."""

    sides: tuple[Side, Side]
    function: Callable[..., Any]
    with_key: bool
    schema: pa.Schema

    def groups(
        self, inputs: Sequence[Iterator[pa.RecordBatch]], timezone: str = "UTC"
    ) -> Iterator[tuple[tuple[pa.Scalar, ...], list[pa.Table]]]:
        """Each key with the rows of both sides, with their instants in a time zone."""
        sides = tuple(Side(schema_in(side.schema, timezone), side.keys) for side in self.sides)
        collector = GroupCollector(sides, task_memory())
        for side, batches in enumerate(inputs):
            for batch in batches_in(batches, timezone):
                collector.add(batch, side)
        for key, slices in collector.groups():
            yield (
                key,
                [pa.Table.from_batches(found, side.schema) for side, found in zip(sides, slices, strict=True)],
            )

    def call(self, key: tuple[object, ...], sides: Sequence[object]) -> Any:
        """The function's answer for one key."""
        return self.function(key, *sides) if self.with_key else self.function(*sides)

    def shown(self, verb: str) -> str:
        """The name that `explain` shows."""
        return f"cogroup {verb}({function_name(self.function)}) by {', '.join(self.sides[0].keys) or 'nothing'}"


@dataclass(frozen=True, slots=True)
class CoGroupApplyInArrow:
    """`fn([key,] table, table) -> table` for each key."""

    groups: CoGroupApply
    timezone: str = "UTC"
    loan: Loan | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return self.groups.shown("applyInArrow")

    def apply(self, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """The rows that the function returns for each key."""
        yield from regrouped(self._results(inputs), self.loan)

    def _results(self, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        conformer = Conformer(self.groups.schema, self.name)
        for key, sides in self.groups.groups(inputs, self.timezone):
            for batch in checked_table(self.groups.call(key, sides), self.name).to_batches():
                yield conformer.conform(batch)


@dataclass(frozen=True, slots=True)
class CoGroupApplyInPandas:
    """`fn([key,] frame, frame) -> frame` for each key."""

    groups: CoGroupApply
    timezone: str = "UTC"
    loan: Loan | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return self.groups.shown("applyInPandas")

    def apply(self, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """The rows that the function returns for each key."""
        yield from regrouped(self._results(inputs), self.loan)

    def _results(self, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        left = self.groups.sides[0]
        keys = FrameKeys([left.schema.field(key).type for key in left.keys], self.timezone)
        for scalars, sides in self.groups.groups(inputs):
            key = keys.of(scalars)
            frames = [frame_of(side, self.timezone) for side in sides]
            frame = checked_frame(self.groups.call(key, frames), self.name)
            yield batch_of(frame, self.groups.schema, self.timezone, self.name)
