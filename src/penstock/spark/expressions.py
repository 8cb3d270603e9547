# SPDX-License-Identifier: Apache-2.0
"""Spark's analyser as the reader of expressions: SQL strings and Columns to trees that tasks evaluate.

Spark parses and analyses them over an empty relation of the rows' schema: no job runs. So names, types, implicit
casts and errors are Spark's own. Functions that Spark itself replaces by others (`nvl`, `left`, `to_date`) are
replaced, and what is constant is computed; `current_date()` is therefore that of the call.

Limits: what has no kernel (`penstock.operators.expressions.FUNCTIONS`) is refused, as are Python and Scala UDFs,
random numbers, window functions and subqueries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import DataType, StructField, StructType, _parse_datatype_json_value

from penstock.errors import SchemaError
from penstock.graph import as_written
from penstock.operators.expressions import Call, ColumnRef, Constant, Expression, UnsupportedError
from penstock.operators.expressions.calendar import arrow_zone
from penstock.spark.types import arrow_schema, struct_type

_OPTIONS = ("failOnError", "ordinal", "legacySizeOfNull", "legacyInterval")
_LOGGER = "SQLQueryContextLogger"
"""PySpark's own, which writes the JVM's stack to stderr; our error says what matters."""


@dataclass(frozen=True, slots=True)
class Analysed:
    """One column of a projection: its name, its Arrow field as Spark has it, and how it is computed."""

    field: pa.Field
    expression: Expression

    @property
    def name(self) -> str:
        """The column's name."""
        return str(self.field.name)


def analyse(spark: SparkSession, schema: pa.Schema, items: Sequence[object], verb: str) -> list[Analysed]:
    """These expressions over rows of this schema; raises SchemaError that says what is wrong and what there is."""
    columns = [F.expr(item) if isinstance(item, str) else item for item in items]
    frame = empty_frame(spark, schema)
    with spark_errors(schema, verb, items):
        projected = frame.select(*cast("list[Column]", columns))
        plan = projected._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark has no public view of plans
        _refuse_other_plans(plan, verb)
        plan = simplified(spark, plan)
    fields = arrow_schema(projected.schema)
    found = plan.projectList()
    try:
        return [Analysed(fields.field(place), tree_of(found.apply(place), schema)) for place in range(found.size())]
    except UnsupportedError as error:
        raise unsupported(verb, items, str(error)) from error


def met(spark: SparkSession, schemas: Sequence[pa.Schema]) -> list[list[Analysed]]:
    """The columns of two streams under the types that Spark gives both in a union, for each stream.

    Raises SchemaError where Spark refuses, or where Arrow has no such cast.
    """
    frames = [empty_frame(spark, schema) for schema in schemas]
    with spark_errors(schemas[0], "union", [", ".join(schemas[1].names)]):
        plan = frames[0].union(frames[1])._jdf.queryExecution().analyzed()  # noqa: SLF001 - as above
    sides = [plan.children().apply(place) for place in range(2)]
    return [_side(side, schema) for side, schema in zip(sides, schemas, strict=True)]


def _side(plan: Any, schema: pa.Schema) -> list[Analysed]:
    """One side of a union: its rows as they are where Spark left them alone."""
    if _class_name(plan) != "Project":
        return [Analysed(field, ColumnRef(field.name, field.type)) for field in schema]
    found, names = plan.projectList(), schema.names
    types = json.loads(plan.schema().json())["fields"]
    try:
        return [
            Analysed(_field(names[place], types[place]), tree_of(found.apply(place), schema))
            for place in range(found.size())
        ]
    except UnsupportedError as error:
        raise unsupported("union", names, str(error)) from error


def unsupported(verb: str, items: Sequence[object], what: str) -> SchemaError:
    """The refusal of what Spark understands and Arrow cannot compute."""
    what = "Python UDF" if what == "PythonUDF" else what
    return SchemaError(
        f"{verb}: {shown(items)} cannot be computed over Arrow batches: {what} is not supported there; "
        "compute it with mapInArrow, or in Spark before fromDataFrame or after toDF"
    )


def shown(items: Sequence[object]) -> str:
    """Expressions as messages quote them."""
    return ", ".join(repr(item) if isinstance(item, str) else _short(str(item)) for item in items)


def _short(column: str) -> str:
    """A Column's text without the innards that Spark shows of some."""
    plain = column.partition("(columnnodeexpression(")[0]
    return f"{plain}(...)'>" if plain != column else column


def empty_frame(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """A DataFrame without rows; a relation of the JVM, so nothing is sent there."""
    types = struct_type(schema)
    session = spark._jsparkSession  # noqa: SLF001 - createDataFrame would make an RDD for it
    parsed = session.parseDataType(types.json())
    jvm = cast("Any", spark._jvm)  # noqa: SLF001 - as above
    return DataFrame(session.createDataFrame(jvm.java.util.ArrayList(), parsed), spark)


@contextmanager
def spark_errors(schema: pa.Schema, verb: str, items: Sequence[object]) -> Iterator[None]:
    """Spark's refusals as SchemaError: its first sentence, and which columns there are."""
    logger = PySparkLogger.getLogger(_LOGGER)  # of PySpark's class, also if we ask first: it logs with more fields
    was, logger.disabled = logger.disabled, True
    try:
        yield
    except (AnalysisException, ParseException, PySparkException) as error:
        raise SchemaError(f"{verb}: {shown(items)}: {_first_sentence(error)}; {_columns(schema)}") from None
    finally:
        logger.disabled = was


def _first_sentence(error: PySparkException) -> str:
    text = str(error).strip().partition("\n")[0].partition(" SQLSTATE:")[0]
    head, bracket, rest = text.partition("] ")
    return (rest if bracket and head.startswith("[") else text).rstrip(". ")


def _columns(schema: pa.Schema) -> str:
    listed = ", ".join(f"{field.name} {kind}" for field, kind in zip(schema, _spark_names(schema), strict=True))
    return f"the columns are {listed or 'none'}"


def _spark_names(schema: pa.Schema) -> list[str]:
    return [field.dataType.simpleString() for field in struct_type(schema)]


def _refuse_other_plans(plan: Any, verb: str) -> None:
    kinds = _kinds(plan)
    if "Aggregate" in kinds:
        raise SchemaError(f"{verb}: an aggregate function makes one row of many: write groupBy(...).agg(...)")
    if "Generate" in kinds:
        raise SchemaError(f"{verb}: explode makes many rows of one: write .explode('column')")
    if "Window" in kinds:
        raise SchemaError(f"{verb}: there are no window functions: keyBy(...).applyInArrow sees each group whole")
    if kinds != ["Project", "LocalRelation"]:
        raise SchemaError(f"{verb}: Spark plans this as {kinds[0]}, which is no projection of these rows alone")


def _kinds(plan: Any) -> list[str]:
    """The plan's nodes from the top down, along first children."""
    kinds = [_class_name(plan)]
    while plan.children().size():
        plan = plan.children().apply(0)
        kinds.append(_class_name(plan))
    return kinds


def simplified(spark: SparkSession, plan: Any) -> Any:
    """The plan without functions that stand for others, and with what is constant computed."""
    optimizer = cast("Any", spark._jvm).org.apache.spark.sql.catalyst.optimizer  # noqa: SLF001 - as above
    for rule in (optimizer.ReplaceExpressions, optimizer.ComputeCurrentTime, optimizer.ConstantFolding):
        plan = rule.apply(plan)
    return plan


def tree_of(node: Any, schema: pa.Schema, columns: Mapping[int, str] | None = None) -> Expression:
    """An analysed expression of the JVM's over rows of this schema.

    Its attributes are found by name, or by the number of their ExprId where `columns` has the names of those. Raises
    UnsupportedError for types and constants Arrow has not.
    """
    own = json.loads(node.toJSON())
    return _PlanReader(own, schema, columns).read(node, 0)[0]


class _PlanReader:
    """Reads a tree of the JVM's, with its JSON beside it: all nodes, each ahead of its children."""

    def __init__(
        self, nodes: list[dict[str, Any]], schema: pa.Schema, columns: Mapping[int, str] | None = None
    ) -> None:
        self._nodes = nodes
        self._schema = schema
        self._columns = columns

    def read(self, node: Any, place: int) -> tuple[Expression, int]:
        """The expression at a place, and the place after it."""
        own = self._nodes[place]
        name = str(own["class"]).rpartition(".")[2]
        if name == "AttributeReference":
            # Its name alone may be given on; compared or changed, a collated string would need its collation.
            if place > 1 and "collate" in str(node.dataType().simpleString()):
                raise UnsupportedError(f"function of collated strings, which column {own['name']!r} has")
            return ColumnRef(self._column(own), _arrow_type(own["dataType"])), place + 1
        if name == "Literal":
            return _constant(node, own), place + 1
        children = node.children()
        arguments: list[Expression] = []
        position = place + 1
        for index in range(own["num-children"]):
            argument, position = self.read(children.apply(index), position)
            arguments.append(argument)
        if name in ("Alias", "KnownNullable", "KnownNotNull", "CommonExpressionDef"):
            return arguments[0], position
        if name == "With":
            names = [_reference(node.defs().apply(index)) for index in range(len(arguments) - 1)]
            return _replaced(arguments[0], dict(zip(names, arguments[1:], strict=True))), position
        kind = own["dataType"] if name in ("Cast", "CommonExpressionRef") else json.loads(node.dataType().json())
        return Call(name, _arrow_type(kind), tuple(arguments), _options(node, own)), position

    def _column(self, own: dict[str, Any]) -> str:
        if self._columns is None:  # Spark gives a column the case in which it was written here
            return as_written(self._schema, own["name"])
        return self._columns[own["exprId"]["id"]]


def _replaced(expression: Expression, known: Mapping[int, Expression]) -> Expression:
    """The expression with what it has in common with others put in the place of references to it."""
    if not isinstance(expression, Call):
        return expression
    if expression.function == "CommonExpressionRef":
        found = expression.option("reference")
        return known.get(cast("int", found), expression)
    return replace(expression, arguments=tuple(_replaced(argument, known) for argument in expression.arguments))


def _reference(node: Any) -> int:
    return int(node.id().id())


def _options(node: Any, own: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    found = [(key, own[key]) for key in _OPTIONS if key in own]
    if str(own["class"]).endswith(".Like"):
        found.append(("escapeChar", str(node.escapeChar())))  # which the JSON has not
    if "id" in own:
        found.append(("reference", _reference(node)))
    if "evalContext" in own or "evalMode" in own:
        found.append(("mode", str(node.evalMode().toString())))
    if own.get("timeZoneId"):
        found.append(("zone", arrow_zone(own["timeZoneId"])))
    return tuple(found)


def _spark_type(kind: Any) -> DataType:
    return _parse_datatype_json_value(kind)


def _arrow_type(kind: Any) -> pa.DataType:
    try:
        return arrow_schema(StructType([StructField("value", _spark_type(kind))])).field(0).type
    except (PySparkException, TypeError, ValueError) as error:
        raise UnsupportedError(f"type {kind if isinstance(kind, str) else kind.get('type')}") from error


def _field(name: str, own: dict[str, Any]) -> pa.Field:
    (found,) = arrow_schema(StructType([StructField(name, _spark_type(own["type"]), own["nullable"])]))
    return found


def _constant(node: Any, own: dict[str, Any]) -> Constant:
    kind = _arrow_type(own["dataType"])
    if own["value"] is None:
        return Constant(pa.nulls(1, kind))
    if pa.types.is_temporal(kind):
        # Days or microseconds, as Spark holds them; the JSON has them as text in the JVM's time zone.
        whole = pa.int32() if kind.bit_width == 32 else pa.int64()
        return Constant(pa.array([int(node.value())], whole).cast(kind))
    if pa.types.is_string(kind):
        return Constant(pa.array([own["value"]], kind))
    if pa.types.is_boolean(kind):
        return Constant(pa.array([own["value"] == "true"], kind))
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return Constant(pa.array([own["value"]], pa.string()).cast(kind))
    raise UnsupportedError(f"constant of type {kind}")


def _class_name(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())
