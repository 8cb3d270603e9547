# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions of PySpark's, `F.sum("v")` or `sum(v * 2) AS total`, as Spark's analyser understands them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from penstock.errors import SchemaError
from penstock.operators.expressions import Call, Constant, Expression, UnsupportedError
from penstock.spark.expressions import empty_frame, shown, simplified, spark_errors, tree_of, unsupported

_FUNCTIONS = {
    "Sum": "sum",
    "Count": "count",
    "Average": "avg",
    "Min": "min",
    "Max": "max",
    "First": "first",
    "Last": "last",
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
    "StddevSamp": "stddev",
    "StddevPop": "stddev_pop",
    "VarianceSamp": "variance",
    "VariancePop": "var_pop",
    "Percentile": "median",
    "Product": "product",
}
"""Ours, by the name of Spark's class; `median` is a percentile to Spark, and `bool_and` a minimum."""

_MIDDLE = 0.5


@dataclass(frozen=True, slots=True)
class AnalysedAggregate:
    """One aggregate: its result's name, our function, and what it is over; None for all rows."""

    name: str
    function: str
    argument: Expression | None


def analyse_aggregate(spark: SparkSession, schema: pa.Schema, item: Any) -> AnalysedAggregate:
    """The aggregate over rows of this schema; raises SchemaError for what is none, or none of ours."""
    column = F.expr(item) if isinstance(item, str) else item
    with spark_errors(schema, "agg", [item]):
        frame = empty_frame(spark, schema).agg(column)
        plan = simplified(spark, frame._jdf.queryExecution().analyzed())  # noqa: SLF001 - PySpark shows no plans
    name = frame.columns[0]
    if _class_name(plan) != "Aggregate":
        raise SchemaError(f"agg: {shown([item])} is planned by Spark as {_class_name(plan)}: {_instead()}")
    aggregate = plan.aggregateExpressions().apply(0)
    if _class_name(aggregate) == "Alias":
        aggregate = aggregate.child()
    if _class_name(aggregate) != "AggregateExpression":
        raise SchemaError(f"agg: {shown([item])} is more than one aggregate function of a column: {_instead()}")
    found = _matched(name, schema, aggregate, item)
    where = aggregate.filter()
    return found if where.isEmpty() else _filtered(found, schema, where.get(), item)


def _matched(name: str, schema: pa.Schema, aggregate: Any, item: Any) -> AnalysedAggregate:
    function = aggregate.aggregateFunction()
    ours = _FUNCTIONS.get(_class_name(function))
    if aggregate.isDistinct():
        ours = {"count": "count_distinct", "min": "min", "max": "max"}.get(ours or "")
    try:
        arguments = [tree_of(function.children().apply(place), schema) for place in range(function.children().size())]
    except UnsupportedError as error:
        raise unsupported("agg", [item], str(error)) from error
    parameters = [one.scalar.as_py() for one in arguments[1:] if isinstance(one, Constant)]
    fits = len(arguments) == 1 or (ours == "median" and parameters == [_MIDDLE, 1])
    if ours is None or not fits or _tries(function) or _treats_nulls_otherwise(ours, function):
        raise SchemaError(f"agg: {shown([item])} has no counterpart here: {_instead()}")
    argument = arguments[0]
    if ours == "count" and isinstance(argument, Constant) and argument.array.null_count == 0:
        return AnalysedAggregate(name, ours, None)
    return AnalysedAggregate(name, ours, argument)


def _tries(function: Any) -> bool:
    """Tell whether it is `try_sum` or `try_avg`, which Spark has as a mode of `sum` and `avg`."""
    own = json.loads(function.toJSON())[0]
    holder = function.evalContext() if "evalContext" in own else function if "evalMode" in own else None
    return holder is not None and str(holder.evalMode().toString()) == "TRY"


def _treats_nulls_otherwise(ours: str, function: Any) -> bool:
    """Tell whether it was told to IGNORE NULLS, or to RESPECT them, when ours does the other."""
    if ours not in ("first", "last", "collect_list", "collect_set"):
        return False
    told = json.loads(function.toJSON())[0].get("ignoreNulls")
    return told is (ours in ("first", "last"))


def _filtered(found: AnalysedAggregate, schema: pa.Schema, where: Any, item: Any) -> AnalysedAggregate:
    """`FILTER (WHERE ...)`: null in place of what it leaves out, which all functions but these two pass over."""
    if found.function in ("first", "last"):
        raise SchemaError(f"agg: {shown([item])}: {found.function} takes no FILTER here: filter the stream first")
    argument = found.argument or Constant(pa.array([1], pa.int32()))
    try:
        chosen = Call("CaseWhen", argument.type, (tree_of(where, schema), argument))
    except UnsupportedError as error:
        raise unsupported("agg", [item], str(error)) from error
    return AnalysedAggregate(found.name, found.function, chosen)


def _instead() -> str:
    return "aggregate first, then compute with withColumn; or applyInArrow, which sees each group whole"


def _class_name(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())
