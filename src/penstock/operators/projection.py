# SPDX-License-Identifier: Apache-2.0
"""Rows of files brought to the columns that a stream has: where rows come in, and nowhere else.

One file has other layouts, other columns, another order than the next. The stream's schema says what its rows are; a
file's own schema only says what is in it. Columns are found by name, as Spark finds them: also in another case unless
the session is case-sensitive; what a file lacks is null, what it has more is left out, narrower numbers widen
(`penstock.operators.layouts`). A column that does not fit is refused by its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.graph import same_but_nulls
from penstock.operators.layouts import Differences, MisfitError, fitted, places
from penstock.record.relabelled import relabelled


@dataclass(slots=True)
class Projection:
    """Makes one file's batches fit a schema, all of whose columns may be null; `place` names the file in errors."""

    schema: pa.Schema
    place: str
    is_case_sensitive: bool = False
    _seen: pa.Schema | None = field(default=None, init=False)
    _places: list[int] = field(default_factory=list, init=False)

    def check(self, found: pa.Schema) -> None:
        """Raise SchemaError where rows of such a file would not fit, whatever their values."""
        if not found.equals(self.schema):
            nothing = [pa.nulls(0, each.type) for each in found]
            self.project(pa.RecordBatch.from_arrays(nothing, schema=found))

    def columns(self, found: pa.Schema) -> list[str]:
        """The columns of the file that are needed, in the file's words."""
        return [found.names[place] for place in self._found(found) if place >= 0]

    def project(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with exactly the schema; raises SchemaError."""
        if batch.schema.equals(self.schema):
            return batch
        if self._seen is None or not self._seen.equals(batch.schema):
            self._places = self._found(batch.schema)
            self._seen = batch.schema
        columns = [
            pa.nulls(batch.num_rows, each.type) if place < 0 else self._fitted(batch.column(place), each)
            for place, each in zip(self._places, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema) if columns else batch.select([])

    def _found(self, found: pa.Schema) -> list[int]:
        try:
            return places(found.names, self.schema.names, is_case_sensitive=self.is_case_sensitive)
        except SchemaError as error:
            raise SchemaError(f"{self.place}: {error}") from None

    def _fitted(self, column: pa.Array, wanted: pa.Field) -> pa.Array:
        if same_but_nulls(column.type, wanted.type):
            return relabelled(column, wanted.type)
        try:
            return fitted(column, wanted.type, Differences(widens=True, is_case_sensitive=self.is_case_sensitive))
        except (pa.ArrowException, MisfitError) as error:
            reason = "" if isinstance(error, MisfitError) else f" ({error})"
            raise SchemaError(
                f"{self.place}: column {wanted.name!r} is {column.type} there, and the stream's is {wanted.type}"
                f"{reason}: declare the wider type where a schema is given, or read the files as two streams and cast"
                " one of them"
            ) from error
        except SchemaError as error:
            raise SchemaError(f"{self.place}: column {wanted.name!r}: {error}") from None
