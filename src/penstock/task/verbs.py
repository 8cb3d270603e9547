# SPDX-License-Identifier: Apache-2.0
"""The operators behind the everyday verbs: rows chosen, columns computed, lists unfolded, the first rows.

All work batch by batch and hold nothing. What a verb raises for values (a division by zero, text that is no number)
is a ValuesError whose first line names the verb and the column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.record.layout import element_positions, list_spans, take, take_batch
from penstock.task.expressions import ColumnRef, Expression, ValuesError, columns_of, evaluate, selected
from penstock.task.expressions.values import array_of

_NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Where:
    """Keeps the rows for which a condition is true."""

    condition: Expression
    text: str

    @property
    def name(self) -> str:
        """What `explain` shows."""
        return f"filter({self.text})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the condition reads."""
        return columns_of(self.condition)

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that are kept; batches without any are left out."""
        for batch in batches:
            try:
                kept = selected(self.condition, batch)
            except ValuesError as error:
                raise ValuesError(f"{self.name}: {error}") from error
            if kept.num_rows:
                yield kept


@dataclass(frozen=True, slots=True)
class Project:
    """Gives these columns in place of the rows' own; `expressions` has one for each field of `schema`."""

    expressions: tuple[Expression, ...]
    schema: pa.Schema

    @property
    def name(self) -> str:
        """What `explain` shows."""
        made = [
            field.name
            for field, expression in zip(self.schema, self.expressions, strict=True)
            if not (isinstance(expression, ColumnRef) and expression.name == field.name)
        ]
        shown = self.schema.names if not made else [f"{len(self.schema) - len(made)} columns", *made]
        more = [f"{len(shown) - _NAMES_SHOWN} more"] if len(shown) > _NAMES_SHOWN else []
        return f"select({', '.join([*shown[:_NAMES_SHOWN], *more])})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, each once."""
        return tuple(dict.fromkeys(name for item in self.expressions for name in columns_of(item)))

    def keeps(self, column: str) -> bool:
        """Whether a column keeps its name and its values."""
        place = self.schema.get_field_index(column)
        expression = self.expressions[place] if place >= 0 else None
        return isinstance(expression, ColumnRef) and expression.name == column

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each batch with the new columns."""
        for batch in batches:
            columns = [
                self._column(field, expression, batch)
                for field, expression in zip(self.schema, self.expressions, strict=True)
            ]
            if columns:
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
            else:
                yield batch.select([])

    def _column(self, field: pa.Field, expression: Expression, batch: pa.RecordBatch) -> pa.Array:
        if isinstance(expression, ColumnRef):
            return batch.column(expression.name)  # as it is, in whatever layout
        try:
            return evaluate(expression, batch)
        except ValuesError as error:
            raise ValuesError(f"column {field.name!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class Explode:
    """One row for each element of a list column; with `outer` one also for rows without elements, and null there."""

    column: str
    outer: bool
    schema: pa.Schema

    @property
    def name(self) -> str:
        """What `explain` shows."""
        return f"explode{'_outer' if self.outer else ''}({self.column})"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows, elements in their order."""
        place = self.schema.get_field_index(self.column)
        for batch in batches:
            spans = list_spans(batch.column(place))
            counts = np.maximum(spans.lengths, 1) if self.outer else spans.lengths
            rows = np.repeat(np.arange(batch.num_rows), counts)
            positions, _ = element_positions(spans)
            empty = np.repeat(spans.lengths, counts) == 0
            places = np.zeros(len(rows), np.int64)
            places[~empty] = positions
            elements = take(spans.values, array_of(places, pa.int64(), empty if self.outer else None))
            repeated = take_batch(batch, array_of(rows, pa.int64()))
            columns = [elements if at == place else column for at, column in enumerate(repeated.columns)]
            if len(rows):
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True, slots=True)
class Limit:
    """The first rows of a task; it reads no further."""

    rows: int

    @property
    def name(self) -> str:
        """What `explain` shows."""
        return f"limit({self.rows})"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """So many rows at most."""
        left = self.rows
        if not left:
            return
        for batch in batches:
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return
