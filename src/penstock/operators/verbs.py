# SPDX-License-Identifier: Apache-2.0
"""The operators behind the everyday verbs: rows chosen, columns computed, lists unfolded, the first rows.

All work batch by batch and hold nothing; all but the last are `BatchByBatch`. An error that a verb raises for values
(a division by zero, text that is no number) is a ValuesError whose first line names the verb and the column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.operators.batch_by_batch import BatchByBatch, EachBatch
from penstock.operators.expressions import ColumnRef, Expression, ValuesError, columns_of, evaluate, selected
from penstock.operators.expressions.portions import Portions
from penstock.operators.expressions.values import array_of, of_type
from penstock.operators.promises import broken, promises
from penstock.record.layout import NDArray, list_spans, take, take_batch
from penstock.record.relabelled import relabelled_batch
from penstock.record.row_sizes import MOST_BYTES, MOST_ROWS, RowSizes, bounded

_NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Where(BatchByBatch):
    """Keeps the rows for which a condition is true."""

    condition: Expression
    text: str

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"filter({self.text})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the condition reads."""
        return columns_of(self.condition)

    def each(self) -> EachBatch:
        """The rows that are kept; batches without any are left out."""
        parts = Portions(self._kept, may_grow=False)
        return lambda batch: (kept for kept in parts.of(batch) if kept.num_rows)

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return selected(self.condition, batch)
        except ValuesError as error:
            raise ValuesError(f"{self.name}: {error}") from error


@dataclass(frozen=True, slots=True)
class Project(BatchByBatch):
    """Gives these columns in place of the rows' own; `expressions` has one for each field of `schema`."""

    expressions: tuple[Expression, ...]
    schema: pa.Schema

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
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
        """Tell whether a column keeps its name and its values."""
        place = self.schema.get_field_index(column)
        expression = self.expressions[place] if place >= 0 else None
        return isinstance(expression, ColumnRef) and expression.name == column

    def each(self) -> EachBatch:
        """The batch with the new columns, in parts where they are large."""
        return Portions(self._projected, may_grow=any(map(self._may_grow, self.schema, self.expressions))).of

    def _projected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            self._column(field, expression, batch)
            for field, expression in zip(self.schema, self.expressions, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema) if columns else batch.select([])

    @staticmethod
    def _may_grow(field: pa.Field, expression: Expression) -> bool:
        """Tell whether values are computed that have no fixed width."""
        return not isinstance(expression, ColumnRef) and not (
            pa.types.is_primitive(field.type) or pa.types.is_decimal(field.type)
        )

    def _column(self, field: pa.Field, expression: Expression, batch: pa.RecordBatch) -> pa.Array:
        if isinstance(expression, ColumnRef):
            return batch.column(expression.name)  # as it is, in whatever layout
        try:
            return of_type(evaluate(expression, batch), field.type)
        except ValuesError as error:
            raise ValuesError(f"column {field.name!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class Widen(BatchByBatch):
    """The same rows under a schema that allows more nulls; nothing is copied."""

    schema: pa.Schema
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"nullable({', '.join(self.columns)})"

    def each(self) -> EachBatch:
        """The batch under the wider schema."""
        return lambda batch: map(relabelled_batch, (batch,), (self.schema,))

    def of(self, names: set[str]) -> Widen:
        """The same for some of the columns."""
        kept = pa.schema([field for field in self.schema if field.name in names])
        return Widen(kept, tuple(name for name in self.columns if name in names))


@dataclass(frozen=True, slots=True)
class Promise(BatchByBatch):
    """The same rows under the schema of a table, which may allow fewer nulls; one that it forbids is an error."""

    schema: pa.Schema
    table: str

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"as {self.table}"

    def each(self) -> EachBatch:
        """The batch; raises SchemaError with the column's path."""
        return self._kept

    def _kept(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for field, column in zip(self.schema, batch.columns, strict=True):
            found = broken(column, field) if promises(field) else None
            if found is not None:
                raise SchemaError(
                    f"column {found.path!r} of {self.table} is NOT NULL, and {found.nulls} rows have a null "
                    "there: filter them out, or fill them with coalesce in a function that declares NOT NULL"
                )
        yield relabelled_batch(batch, self.schema)


@dataclass(frozen=True, slots=True)
class Explode(BatchByBatch):
    """One row for each element of a list column; with `outer` one also for rows without elements, and null there."""

    column: str
    outer: bool
    schema: pa.Schema

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"explode{'_outer' if self.outer else ''}({self.column})"

    def each(self) -> EachBatch:
        """The rows, elements in their order, in batches of bounded size."""
        return self._exploded

    def _exploded(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield from _Exploded(batch, self).batches()


class _Exploded:
    """The rows that come of one batch, made piece by piece: a row may have any number of elements."""

    def __init__(self, batch: pa.RecordBatch, explode: Explode) -> None:
        self._schema = explode.schema
        self._place = explode.schema.get_field_index(explode.column)
        self._spans = list_spans(batch.column(self._place))
        self._others = batch.select([at for at in range(batch.num_columns) if at != self._place])
        lengths = self._spans.lengths
        self._counts = np.maximum(lengths, 1) if explode.outer else lengths
        self._ends = np.cumsum(self._counts)
        self._row_sizes = RowSizes(self._others.columns)
        self._element_sizes = RowSizes([self._spans.values])

    def batches(self) -> Iterator[pa.RecordBatch]:
        total = int(self._ends[-1]) if len(self._ends) else 0
        most = self._row_sizes.most + self._element_sizes.most
        for start in range(0, total, MOST_ROWS):
            rows, places, is_empty = self._numbers(start, min(total, start + MOST_ROWS))
            if most * len(rows) <= MOST_BYTES:
                yield self._gathered(rows, places, is_empty)
                continue
            sizes = self._row_sizes.of(rows)
            sizes[~is_empty] += self._element_sizes.of(places[~is_empty])
            for begin, end in bounded(sizes, MOST_BYTES):
                yield self._gathered(rows[begin:end], places[begin:end], is_empty[begin:end])

    def _numbers(self, start: int, stop: int) -> tuple[NDArray, NDArray, NDArray]:
        """Of these rows of the result: the row and the element that each is of, and whether it has no element."""
        first, last = np.searchsorted(self._ends, (start, stop - 1), "right")
        counts = self._counts[first : last + 1].copy()
        ahead = start - int(self._ends[first] - counts[0])  # of the first row, what was given before
        counts[0] -= ahead
        counts[-1] -= int(self._ends[last]) - stop
        rows = np.repeat(np.arange(first, last + 1), counts)
        in_row = np.arange(start, stop) - (self._ends - self._counts)[rows]
        is_empty = self._spans.lengths[rows] == 0
        return rows, np.where(is_empty, 0, self._spans.starts[rows] + in_row), is_empty

    def _gathered(self, rows: NDArray, places: NDArray, is_empty: NDArray) -> pa.RecordBatch:
        found = array_of(places, pa.int64(), is_empty if is_empty.any() else None)
        columns = list(take_batch(self._others, array_of(rows, pa.int64())).columns)
        columns.insert(self._place, take(self._spans.values, found))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


@dataclass(frozen=True, slots=True)
class Limit:
    """The first rows of a task; it reads no further."""

    rows: int

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"limit({self.rows})"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The first rows, at most as many as the limit."""
        left = self.rows
        if not left:
            return
        for batch in batches:
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return
