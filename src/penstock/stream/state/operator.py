# SPDX-License-Identifier: Apache-2.0
"""`transformWithState` and its relatives as operators: a user's processor with state for each key.

In a batch job all rows of a key come to one task too, after all rows of the second stream, if there is one. Timers
that wait at the end of its input fire then, in order of time, as those of Flink's batch jobs do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from penstock.errors import PlanError
from penstock.stream.chain import StepContext
from penstock.stream.state.calls import BatchCalls, ProcessorCalls
from penstock.stream.state.declarations import Declarations, SchemaOf
from penstock.stream.state.python_values import RowMaker
from penstock.stream.state.row_calls import AsFrames, AsRows, KeyByKeyCalls
from penstock.stream.state.shared_rows import shared_first
from penstock.stream.state.step import ProcessorStep
from penstock.stream.state.times import NONE
from penstock.stream.watermark import MOST, Watermark

ROWS: Final = "transformWithState"
FRAMES: Final = "transformWithStateInPandas"
BATCHES: Final = "transformWithStateInArrow"


@dataclass(frozen=True, slots=True)
class Spellings:
    """The ways in which users write schemas and rows are made: both are PySpark's, which this room does not know."""

    schema_of: SchemaOf
    row_maker: RowMaker


@dataclass(frozen=True, slots=True)
class StatefulOperator:
    """A processor over a keyed stream, after an exchange by the same keys; `form` is the verb that it came by."""

    form: str
    processor: Any
    input_schema: pa.Schema
    keys: tuple[str, ...]
    schema: pa.Schema
    spellings: Spellings = field(repr=False)
    time_mode: str = NONE
    timezone: str = "UTC"
    initial: pa.Table | None = field(default=None, repr=False, compare=False)
    has_shared: bool = False
    uid: str = ""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        given = self.processor
        kind = given if isinstance(given, type) else type(given)
        return f"{self.form}({kind.__name__}) by {', '.join(self.keys) or 'nothing'}"

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns."""
        return pa.schema([self.input_schema.field(key) for key in self.keys])

    def declarations(self) -> Declarations:
        """An empty declaration of its states."""
        return Declarations(self.name, self.time_mode, self.spellings.schema_of)

    def calls(self) -> ProcessorCalls:
        """The calls of an object of its own, as each task has one."""
        processor = self._made()
        if self.form == BATCHES:
            return BatchCalls(processor, self.schema, self.name, self.timezone, self.time_mode)
        make_rows = self.spellings.row_maker
        if self.form == FRAMES:
            shown = AsFrames(self.schema, self.name, self.timezone)
            return KeyByKeyCalls(processor, shown, self.time_mode, make_rows)
        rows = AsRows(self.schema, self.name, self.timezone, make_rows)
        return KeyByKeyCalls(processor, rows, self.time_mode, make_rows)

    def step(self) -> ProcessorStep:
        """The step of one subtask."""
        return ProcessorStep(self)

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that a bounded input gives."""
        step = self.step()
        try:
            step.open(StepContext(0, 1, 1, self.name), ())
            for batch in shared_first(batches) if self.has_shared else batches:
                yield from step.process(batch)
            yield from step.on_watermark(Watermark(MOST))
            yield from step.end_input(stopped=False)
        finally:
            step.close()

    def _made(self) -> Any:
        make: Callable[[], Any]
        make = self.processor if isinstance(self.processor, type) else lambda: copy.deepcopy(self.processor)
        try:
            return make()
        except Exception as error:
            raise PlanError(
                f"{self.name}: each task needs a processor of its own, and it can't be made or copied "
                f"({type(error).__name__}: {error}): open what can't be copied in init(), not in __init__()"
            ) from error
