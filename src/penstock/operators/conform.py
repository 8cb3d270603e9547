# SPDX-License-Identifier: Apache-2.0
"""User functions' output made to fit the declared schema, or refused with the column's name.

These rows fit:
- Columns: the declared names in the declared order; the same names in another order are put in order.
- Equal types pass untouched. Types that differ only in their physical layout are cast (`penstock.operators.layouts`).
- Everything else is refused as PySpark refuses it, also a narrower integer: a silent widening would hide that the
  declared schema is not what the function returns. A cast that would lose something (nanoseconds) is refused too.
- Nulls in a column declared NOT NULL are refused, and so are those in such fields, elements and values inside others.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.operators.layouts import MisfitError, fitted
from penstock.operators.promises import broken, promises


@dataclass(frozen=True, slots=True)
class Misfit:
    """The words for a type that does not fit: who gave it, and what to do."""

    giver: str = "the function returned"
    remedy: str = "cast it there, or declare that type"


class Conformer:
    """Makes batches of one operator fit one schema; remembers the last schema it saw."""

    def __init__(self, schema: pa.Schema, operator: str, misfit: Misfit = Misfit()) -> None:
        self._schema = schema
        self._operator = operator
        self._misfit = misfit
        self._strict = [index for index, field in enumerate(schema) if promises(field)]
        self._seen: pa.Schema | None = None
        self._order: list[int] | None = None

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with exactly the declared schema; raises SchemaError."""
        if batch.schema is not self._seen:
            self._order = self._plan(batch.schema)
            self._seen = batch.schema
        if self._order is not None:
            batch = self._rebuilt(batch, self._order)
        for index in self._strict:
            refuse_broken(batch.column(index), self._schema.field(index), self._operator)
        return batch

    def _plan(self, found: pa.Schema) -> list[int] | None:
        declared = self._schema
        if found.equals(declared):
            return None
        if found.names == declared.names:
            return list(range(len(declared)))
        missing = [name for name in declared.names if name not in found.names]
        extra = [name for name in found.names if name not in declared.names]
        if missing or extra or len(found) != len(declared):
            raise SchemaError(
                f"{self._operator}: the function returned columns ({', '.join(found.names)}), declared are "
                f"({', '.join(declared.names)}); missing: {', '.join(missing) or 'none'}, "
                f"unexpected: {', '.join(extra) or 'none'}: declare what it returns, or return what is declared"
            )
        order = [found.get_field_index(name) for name in declared.names]
        if -1 in order:
            raise SchemaError(f"{self._operator}: column names that occur twice must come in the declared order")
        return order

    def _rebuilt(self, batch: pa.RecordBatch, order: list[int]) -> pa.RecordBatch:
        columns = []
        for index, field in zip(order, self._schema, strict=True):
            column = batch.column(index)
            try:
                columns.append(fitted(column, field.type))
            except (pa.ArrowException, MisfitError) as error:
                reason = "" if isinstance(error, MisfitError) else f" ({error})"
                raise SchemaError(
                    f"{self._operator}: column {field.name!r} is declared {field.type} "
                    f"and {self._misfit.giver} {column.type}{reason}: {self._misfit.remedy}"
                ) from error
        if not columns:
            return batch
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def refuse_broken(column: pa.Array, field: pa.Field, operator: str) -> None:
    """Raise SchemaError where a column has nulls that its declared field allows none of."""
    found = broken(column, field)
    if found is not None:
        raise SchemaError(
            f"{operator}: column {found.path!r} is declared NOT NULL and has {found.nulls} nulls: fill them there, "
            "or leave NOT NULL out"
        )


def conform(batch: pa.RecordBatch, schema: pa.Schema, operator: str = "the function") -> pa.RecordBatch:
    """One batch made to fit; for many batches keep a Conformer."""
    return Conformer(schema, operator).conform(batch)
