# SPDX-License-Identifier: Apache-2.0
"""The verbs that need no expression: columns renamed and dropped, lists unfolded, the first rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.api.expressions import Computed, ExpressionReader, is_spark_column, meant, projected
from penstock.api.lineage import OperatorStep, ResourcesStep, Step
from penstock.api.schemas import column_arguments
from penstock.errors import PlanError, SchemaError
from penstock.graph import Operator
from penstock.operators.exchanges import PartitionerSpec, exchange
from penstock.operators.sorting import Order, SortRows
from penstock.operators.verbs import Explode, Limit, Project, Where, Widen


def renamed(schema: pa.Schema, session: Any, names: Mapping[str, str], verb: str) -> Project:
    """The columns, some under other names."""
    if not all(isinstance(new, str) for new in names.values()):
        raise TypeError(f"{verb}: names are strings, not {', '.join(type(new).__name__ for new in names.values())}")
    names = {meant(schema, name, session): new for name, new in names.items()}
    reading = ExpressionReader(schema, None, verb)
    columns = [reading.column(name) for name in schema.names]
    return projected([Computed(_renamed(one.field, names), one.expression) for one in columns], verb)


def _renamed(field: pa.Field, names: Mapping[str, str]) -> pa.Field:
    return field.with_name(names.get(field.name, field.name))


def dropped(schema: pa.Schema, session: Any, columns: Sequence[object]) -> Project:
    """The columns but these; what is no column is ignored, as in Spark."""
    names = {meant(schema, _name(column), session) for column in columns}
    return chosen(schema, [name for name in schema.names if name not in names], "drop")


def chosen(schema: pa.Schema, names: Sequence[str], verb: str) -> Project:
    """These columns alone, as they are."""
    reading = ExpressionReader(schema, None, verb)
    return projected([reading.column(name) for name in names], verb)


def _name(column: object) -> str:
    if is_spark_column(column):
        return str(column).removeprefix("Column<'").removesuffix("'>")
    if not isinstance(column, str):
        raise TypeError(f"drop takes names of columns, not {type(column).__name__}")
    return column


def exploded(schema: pa.Schema, column: str, outer: bool) -> Explode:
    """The operator of `explode`, checked."""
    (column,) = column_arguments([column], schema, "explode")
    field = ExpressionReader(schema, None, "explode").column(column).field
    kind = field.type
    if pt.is_map(kind):
        raise SchemaError(f"explode: column {column!r} is a map: make a list of its entries with mapInArrow first")
    if not (pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)):
        raise SchemaError(
            f"explode: column {column!r} of type {kind} is no list: make one first, such as split({column}, ' ')"
        )
    element = pa.field(column, kind.value_type, kind.value_field.nullable or outer)
    return Explode(column, outer, schema.set(schema.get_field_index(column), element))


def rows_argument(num: object, verb: str) -> int:
    """A number of rows."""
    if isinstance(num, bool) or not isinstance(num, int):
        raise TypeError(f"{verb}: the number of rows must be a whole number, not {num!r}")
    if num < 0:
        raise PlanError(f"{verb}: the number of rows must not be negative, but it is {num}")
    return num


def limited(branches: Sequence[Step], schema: pa.Schema, rows: int) -> tuple[int, PartitionerSpec, list[Operator]]:
    """Rows that each task gives at most, the exchange after it, and the operators of the one task after that.

    The exchange mixes what was sorted, so it is sorted again there: only as many rows as each task gave.
    """
    order = _order_of(branches[0]) if len(branches) == 1 else None
    if order is None:
        return rows, exchange("to_one"), [Limit(rows)]
    gone = [key.column for key in order.keys if not _is_kept(branches[0], key.column)]
    if gone:
        raise PlanError(
            f"limit: the stream is sorted by {', '.join(map(repr, gone))}, which is not among its columns any more, "
            "or has other values: put limit directly after sortBy, and the select after it"
        )
    return rows, exchange("to_one"), [SortRows(Order(schema, order.keys), placed=False), Limit(rows)]


def _order_of(step: Step) -> Order | None:
    """The order in which a step gives its rows, looking through the verbs of this module and conditions."""
    while isinstance(step, OperatorStep | ResourcesStep):
        if isinstance(step, OperatorStep):
            if isinstance(step.operator, SortRows):
                return step.operator.order
            if not isinstance(step.operator, Where | Limit | Project | Explode | Widen):
                return None
        step = step.parent
    return None


def _is_kept(step: Step, column: str) -> bool:
    """Tell whether a column that rows were sorted by still has its name and its values."""
    while isinstance(step, OperatorStep | ResourcesStep):
        if isinstance(step, OperatorStep):
            if isinstance(step.operator, SortRows):
                return True
            if isinstance(step.operator, Project) and not step.operator.keeps(column):
                return False
        step = step.parent
    return False
