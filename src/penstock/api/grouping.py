# SPDX-License-Identifier: Apache-2.0
"""The arguments of `keyBy` and `agg`: names, pairs, PySpark's dictionaries, and Columns read by Spark's analyser.

An aggregate of an expression, `F.sum(F.col("v") * 2)`, is one of a column that is computed first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.api.expressions import Computed, ExpressionReader, is_spark_column, projected
from penstock.api.schemas import column_arguments
from penstock.errors import PlanError
from penstock.graph import INTERNAL
from penstock.operators.aggregates import Aggregation
from penstock.operators.expressions import ColumnRef
from penstock.operators.verbs import Project

_FORMS = (
    "agg takes name=('column', 'function'), {'column': 'function'}, or aggregate functions of columns such as "
    "F.sum('v').alias('total') or 'sum(v) AS total'"
)


@dataclass(frozen=True, slots=True)
class Aggregations:
    """The aggregations, and the operator that computes their input columns if the stream does not have them all."""

    aggregations: tuple[Aggregation, ...]
    inputs: Project | None = None


def grouped_keys(
    schema: pa.Schema, session: Any, cols: Sequence[object], verb: str
) -> tuple[Project | None, tuple[str, ...]]:
    """The key columns' names, and the operator that makes those which are expressions."""
    given = list(cols[0]) if len(cols) == 1 and isinstance(cols[0], list | tuple) else list(cols)
    if not any(is_spark_column(item) for item in given):
        return None, column_arguments(given, schema, verb)
    reading = ExpressionReader(schema, session, verb)
    found = [
        one if is_spark_column(item) else reading.column(column_arguments([item], schema, verb)[0])
        for item, one in zip(given, _computed(reading, given), strict=True)
    ]
    fresh = [one for one in found if not _is_column(one)]
    names = tuple(str(one.field.name) for one in found)
    return (projected([*reading.columns(), *fresh], verb) if fresh else None), names


def _computed(reading: ExpressionReader, given: Sequence[object]) -> list[Computed]:
    return [reading.computed([item])[0] if is_spark_column(item) else reading.columns()[0] for item in given]


def _is_column(one: Computed) -> bool:
    return isinstance(one.expression, ColumnRef) and one.expression.name == one.field.name


def aggregated(schema: pa.Schema, session: Any, exprs: Sequence[object], named: Mapping[str, object]) -> Aggregations:
    """All aggregations of one `agg`; raises PlanError or TypeError for what is none."""
    wanted: list[Aggregation] = []
    made: list[Computed] = []
    for item in exprs:
        if isinstance(item, Mapping):
            wanted += [_of_dictionary(column, function) for column, function in item.items()]
        elif isinstance(item, str) or is_spark_column(item):
            wanted.append(_of_column(ExpressionReader(schema, session, "agg"), item, made))
        else:
            raise TypeError(f"{_FORMS}; not {item!r}")
    for name, value in named.items():
        if is_spark_column(value):
            found = _of_column(ExpressionReader(schema, session, "agg"), value, made)
            wanted.append(Aggregation(name, found.column, found.function))
        else:
            wanted.append(_of_pair(name, value))
    if not wanted:
        raise PlanError("agg needs at least one result column, such as n=('word', 'count')")
    columns = [*ExpressionReader(schema, session, "agg").columns(), *made] if made else []
    return Aggregations(tuple(wanted), projected(columns, "agg") if made else None)


def plain_aggregations(
    schema: pa.Schema, keys: Sequence[str], function: str, cols: Sequence[str]
) -> tuple[Aggregation, ...]:
    """One function over these columns, or over all numeric ones that are no keys, named as Spark names them."""
    names = column_arguments(cols, schema, function) if cols else _numeric(schema, keys)
    if not names:
        raise PlanError(f"{function}: there is no numeric column beside the keys")
    return tuple(_of_dictionary(name, function) for name in names)


def _numeric(schema: pa.Schema, keys: Sequence[str]) -> tuple[str, ...]:
    tests = (pt.is_integer, pt.is_floating, pt.is_decimal)
    return tuple(field.name for field in schema if field.name not in keys and any(test(field.type) for test in tests))


def _of_dictionary(column: object, function: object) -> Aggregation:
    if not (isinstance(column, str) and isinstance(function, str)):
        raise PlanError(f"{_FORMS}; not {{{column!r}: {function!r}}}")
    return Aggregation(f"{function}({'1' if column == '*' else column})", column, function)


def _of_pair(name: str, value: object) -> Aggregation:
    if not (isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str) for part in value)):
        raise PlanError(f"agg: {name} must be a pair (column name, function name), not {value!r}")
    return Aggregation(name, *value)


def _of_column(reading: ExpressionReader, item: object, made: list[Computed]) -> Aggregation:
    """An aggregate function of Spark's; adds to `made` what must be computed first."""
    if reading.session is None:
        raise PlanError(f"agg: {item} is read by Spark's analyser, and this stream has no session; {_FORMS}")
    from penstock.spark.aggregations import analyse_aggregate

    found = analyse_aggregate(reading.session, reading.schema, item)
    if found.argument is None:
        return Aggregation(found.name, "*", found.function)
    if isinstance(found.argument, ColumnRef):
        return Aggregation(found.name, found.argument.name, found.function)
    name = f"{INTERNAL}{found.name}"
    field = pa.field(name, found.argument.type)
    made.append(reading.checked(Computed(field, found.argument), item))
    return Aggregation(found.name, name, found.function)
