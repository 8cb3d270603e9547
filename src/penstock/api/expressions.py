# SPDX-License-Identifier: Apache-2.0
"""The forms of a column or a condition that users write, checked against the rows' columns when the stream is built.

A SQL string or a `pyspark.sql.Column` is read by Spark's analyser, which gives names, types and errors; that needs
the stream's session. A `pyarrow.compute.Expression` needs none, and means what Arrow means. A plain column name
is itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.arrow_filters import refuse_places
from penstock.api.reading import is_case_sensitive
from penstock.errors import PlanError, SchemaError
from penstock.graph import as_written, plain_type
from penstock.operators.expressions import ArrowExpression, ColumnRef, Expression, UnsupportedError, by_arrow, probe
from penstock.operators.verbs import Project, Where

WAYS = "a SQL string, a pyspark Column or a pyarrow.compute expression"
_REMEDY = "write 'n > 1' or F.col('n') > 1; what Python alone can say goes into .mapInArrow(fn, schema)"


@dataclass(frozen=True, slots=True)
class Computed:
    """One column: its field, and how it is computed."""

    field: pa.Field
    expression: Expression


@dataclass(frozen=True, slots=True)
class ExpressionReader:
    """Reads expressions over rows of one schema for one verb; `session` may be None."""

    schema: pa.Schema
    session: Any
    verb: str

    def column(self, name: str) -> Computed:
        """A column of the rows as it is."""
        found = len(self.schema.get_all_field_indices(name))
        if found != 1:
            problem = "is there more than once" if found else "does not exist"
            listed = ", ".join(self.schema.names) or "none"
            raise SchemaError(f"{self.verb}: column {name!r} {problem}; the columns are {listed}")
        field = self.schema.field(name)
        return Computed(field, ColumnRef(name, field.type))

    def columns(self) -> list[Computed]:
        """All columns of the rows."""
        return [self.column(name) for name in self.schema.names]

    def computed(self, items: Sequence[object]) -> list[Computed]:
        """Each item computed; names are Spark's unless the item is one of Arrow's, which has none."""
        found: dict[int, Computed] = {}
        for_spark: list[int] = []
        for place, item in enumerate(items):
            if isinstance(item, str) and item in self.schema.names:
                found[place] = self.column(item)
            elif isinstance(item, pc.Expression):
                found[place] = self._by_arrow(item)
            elif isinstance(item, str) or is_spark_column(item):
                for_spark.append(place)
            else:
                raise TypeError(f"{self.verb}: an expression is {WAYS}, not {type(item).__name__}: {_REMEDY}")
        if for_spark:
            found.update(zip(for_spark, self._by_spark([items[place] for place in for_spark]), strict=True))
        return [found[place] for place in range(len(items))]

    def condition(self, item: object) -> Expression:
        """An expression that is true, false or null."""
        (found,) = self.computed([item])
        if not pa.types.is_boolean(found.expression.type):
            raise SchemaError(
                f"{self.verb}: {_shown(item)!r} is of type {found.expression.type}, and a condition is boolean: "
                "compare it with something, as in 'n > 0'"
            )
        return found.expression

    def _by_arrow(self, item: pc.Expression) -> Computed:
        names = _unique(self.schema.names)
        refuse_places(item, self.verb)
        try:
            kind = plain_type(by_arrow(item, _no_rows(self.schema).select(names)).type)
        except (pa.ArrowException, KeyError) as error:
            first = str(error).partition("\n")[0]
            listed = ", ".join(f"{field.name} {field.type}" for field in self.schema)
            raise SchemaError(f"{self.verb}: {item}: {first}; the columns are {listed}") from error
        # Arrow does not tell what an expression reads; its text does, and a name too many does no harm.
        read = tuple(name for name in names if name in str(item) or not name.isidentifier())
        return Computed(pa.field(str(item), kind), ArrowExpression(item, kind, read))

    def _by_spark(self, items: Sequence[object]) -> list[Computed]:
        if self.session is None:
            raise PlanError(
                f"{self.verb}: {items[0]!r} is read by Spark's analyser, and this stream has no session: "
                "give a pyarrow.compute expression, such as pc.field('v') > 3, or a source with a session"
            )
        from penstock.spark.expressions import analyse

        found = analyse(self.session, self.schema, items, self.verb)
        return [
            self.checked(Computed(one.field, one.expression), item) for one, item in zip(found, items, strict=True)
        ]

    def checked(self, found: Computed, item: object) -> Computed:
        """The same, computed once over no rows, so that what cannot be is refused here and not in a task."""
        if isinstance(found.expression, ColumnRef):
            own = self.column(found.expression.name)
            return Computed(own.field.with_name(found.field.name), own.expression)
        from penstock.spark.expressions import unsupported

        with _refusing(lambda what: unsupported(self.verb, [item], what)):
            probe(found.expression, _no_rows(self.schema))
        return found


def meant(schema: pa.Schema, name: str, session: Any) -> str:
    """The column that the session means by a name, perhaps in another case; the name itself where there is none."""
    found = as_written(schema, name)
    if found == name or session is None:
        return found
    return name if is_case_sensitive(session) else found


def projection(schema: pa.Schema, session: Any, verb: str, items: Sequence[object]) -> Project:
    """The operator of `select`; `*` stands for all columns."""
    reading = ExpressionReader(schema, session, verb)
    given = [part for item in items for part in (item if isinstance(item, list | tuple) else [item])]
    if not given:
        raise PlanError(f"{verb} needs at least one column")
    wanted = [part for item in given for part in (schema.names if _is_star(item) else [item])]
    return projected(reading.computed(wanted), verb)


def with_columns(schema: pa.Schema, session: Any, verb: str, columns: Mapping[str, object]) -> Project:
    """The operator that adds columns or replaces those of the same name, which then have it in the case given."""
    for name in columns:
        if not isinstance(name, str):
            raise TypeError(f"{verb}: a column's name is a string, not {type(name).__name__}")
    reading = ExpressionReader(schema, session, verb)
    found = reading.computed(list(columns.values()))
    made = {
        meant(schema, name, session): Computed(one.field.with_name(name), one.expression)
        for name, one in zip(columns, found, strict=True)
    }
    kept = [made.pop(name) if name in made else reading.column(name) for name in schema.names]
    return projected([*kept, *made.values()], verb)


def projected(columns: Sequence[Computed], verb: str) -> Project:
    """The operator that gives these columns."""
    names = [column.field.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"{verb}: {', '.join(map(repr, twice))} would be in the result twice: give it another name")
    return Project(tuple(column.expression for column in columns), pa.schema([column.field for column in columns]))


def condition(schema: pa.Schema, session: Any, verb: str, item: object) -> Where:
    """The operator of `filter`."""
    return Where(ExpressionReader(schema, session, verb).condition(item), _shown(item))


def is_spark_column(thing: object) -> bool:
    """Tell whether it is a Column of PySpark's, of which nothing is imported here."""
    return type(thing).__name__ == "Column" and type(thing).__module__.startswith("pyspark.sql")


def _is_star(item: object) -> bool:
    return isinstance(item, str) and item == "*"


def _shown(item: object) -> str:
    text = item if isinstance(item, str) else str(item)
    return text.removeprefix("Column<'").removesuffix("'>") if is_spark_column(item) else text


def _unique(names: Sequence[str]) -> list[str]:
    return [name for name in names if list(names).count(name) == 1]


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], names=schema.names)


@contextmanager
def _refusing(refusal: Callable[[str], SchemaError]) -> Iterator[None]:
    try:
        yield
    except (UnsupportedError, pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise refusal(str(error).partition("\n")[0]) from error
