# SPDX-License-Identifier: Apache-2.0
"""The logical plan of a DataFrame: its nodes by paths, parts of it as DataFrames, and other rows in their place.

Plans are the JVM's; nothing here runs anything. A part that is replaced keeps its attributes: the new rows get the
same ExprIds, so all that stands above refers to them as before. What the session has cached is in the plan that is
read, so it is a leaf and stays cached.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

Path = tuple[int, ...]

_CATALYST = "org.apache.spark.sql.catalyst"
_LOGICAL = f"{_CATALYST}.plans.logical"
_OF_A_TASK = (
    (b"TaskContext", "its function asks for the task that it runs in"),
    (b"_deserialize_accumulator", "its function adds to an accumulator"),
    (b"penstock.spark", "it is Penstock's own"),
)
"""What stands in a pickled function that means something else in another task than Spark's."""


@dataclass(frozen=True, slots=True)
class SentFunction:
    """A user's function as PySpark has pickled it."""

    name: str
    eval_type: int
    command: bytes


@dataclass(frozen=True, slots=True)
class Part:
    """Other rows for a node: a DataFrame, and which of its columns each attribute of the node is."""

    frame: DataFrame
    places: tuple[int, ...]


class PythonPatterns:
    """Tells whether a plan has any Python in it: a bit that Catalyst keeps, so it costs a call or two."""

    def __init__(self, spark: SparkSession) -> None:
        jvm = cast("Any", spark._jvm)  # noqa: SLF001 - PySpark has no public way to plans, here and below
        self._pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()

    def are_in(self, frame: DataFrame) -> bool:
        """True if a function of the user's is somewhere in the frame's plan."""
        return bool(frame._jdf.queryExecution().analyzed().containsPattern(self._pattern))  # noqa: SLF001


class LogicalPlan:
    """The analysed plan of one DataFrame, with what is cached in it."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._spark = frame.sparkSession
        self._session: Any = self._spark._jsparkSession  # noqa: SLF001
        self._jvm: Any = self._spark._jvm  # noqa: SLF001
        execution = frame._jdf.queryExecution()  # noqa: SLF001
        # Not the execution's own plan with cached parts: it would remember what is cached now.
        cache = self._session.sharedState().cacheManager()
        plan = cache.useCachedData(execution.normalized(), getattr(cache, "useCachedData$default$2")())
        # As the optimiser begins: a part that has a name in SQL stands where it is read, but for one that has to be
        # computed once for several readers.
        inlined = self._jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE
        usual = [getattr(inlined, f"apply$default${number}")() for number in (1, 2, 3)]
        self._plan = inlined(*usual).apply(plan)

    @property
    def is_streaming(self) -> bool:
        """True if it has no end."""
        return bool(self._plan.isStreaming())

    def json(self) -> str:
        """The whole tree."""
        return str(self._plan.toJSON())

    def expected_bytes(self, path: Path) -> int:
        """The size of a node's rows by Spark's statistics; very large where it knows nothing."""
        return int(self.node(path).stats().sizeInBytes())

    def node(self, path: Path) -> Any:
        """The JVM's node at a path."""
        found = self._plan
        for place in path:
            found = found.children().apply(place)
        return found

    def output(self, path: Path) -> list[Any]:
        """The attributes that a node gives, as JSON has them, in one call."""
        listed = self._new(f"{_LOGICAL}.Project", self.node(path).output(), self._no_rows())
        return cast("list[Any]", json.loads(listed.toJSON())[0]["projectList"])

    def simplified(self, path: Path) -> Any:
        """A Project or Filter by itself, over no rows: no functions that stand for others, constants computed."""
        own = self.node(path)
        kind = str(own.getClass().getSimpleName())
        given = own.projectList() if kind == "Project" else own.condition()
        plan = self._new(f"{_LOGICAL}.{kind}", given, self._no_rows())
        optimizer = self._jvm.org.apache.spark.sql.catalyst.optimizer
        for rule in (optimizer.ReplaceExpressions, optimizer.ConstantFolding):
            plan = rule.apply(plan)
        return plan

    def function(self, path: Path) -> SentFunction | str:
        """The function of a node, or why it can run in Spark's own tasks only."""
        expression = self.node(path).functionExpr()
        sent = expression.func()
        if str(sent.getClass().getSimpleName()) != "SimplePythonFunction":
            return "its function is no plain one"
        if sent.broadcastVars().size():
            return "its function reads a broadcast variable, or is so large that it is sent as one"
        if sent.pythonIncludes().size():
            return "its function needs files that were added to the session"
        command = bytes(sent.command().unsafeArray())
        why = next((why for mark, why in _OF_A_TASK if mark in command), "")
        return why or SentFunction(str(expression.name()), int(expression.evalType()), command)

    def profile(self, path: Path) -> bool:
        """True if a map asks for resources of its own."""
        return bool(self.node(path).profile().isDefined())

    def frame(self, path: Path, columns: Mapping[int, str], parts: Mapping[Path, Part]) -> DataFrame:
        """The rows of a node over other parts, with these of its attributes by their numbers, under other names."""
        node = self._rebuilt(self.node(path), path, parts)
        output = node.output()
        kept, seen = [], set()
        for place in range(output.size()):
            attribute = output.apply(place)
            number = int(attribute.exprId().id())
            if number in columns and number not in seen:
                seen.add(number)
                kept.append(self._alias(attribute, columns[number], None))
        return self._dataset(self._new(f"{_LOGICAL}.Project", self._sequence(kept), node))

    def replaced(self, parts: Mapping[Path, Part]) -> DataFrame:
        """The frame with other rows in the place of some nodes."""
        return self._dataset(self._rebuilt(self._plan, (), parts))

    def _rebuilt(self, node: Any, path: Path, parts: Mapping[Path, Part]) -> Any:
        if path in parts:
            part = parts[path]
            new = part.frame._jdf.queryExecution().analyzed()  # noqa: SLF001
            old, given = node.output(), new.output()
            named = [
                self._alias(given.apply(place), old.apply(number).name(), old.apply(number).exprId())
                for number, place in enumerate(part.places)
            ]
            return self._new(f"{_LOGICAL}.Project", self._sequence(named), new)
        if not any(other[: len(path)] == path for other in parts):
            return node
        children = node.children()
        rebuilt = [self._rebuilt(children.apply(n), (*path, n), parts) for n in range(children.size())]
        return node.withNewChildren(self._sequence(rebuilt))

    def _alias(self, expression: Any, name: str, number: Any) -> Any:
        own = (
            number
            if number is not None
            else self._jvm.org.apache.spark.sql.catalyst.expressions.NamedExpression.newExprId()
        )
        none, empty = self._jvm.scala.Option.empty(), self._sequence([])
        return self._new(f"{_CATALYST}.expressions.Alias", expression, name, own, empty, none, empty)

    def _no_rows(self) -> Any:
        return self._new(f"{_LOGICAL}.OneRowRelation")

    def _new(self, name: str, *arguments: Any) -> Any:
        return getattr(self._jvm, name)(*arguments)

    def _sequence(self, items: Sequence[Any]) -> Any:
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(list(items))

    def _dataset(self, plan: Any) -> DataFrame:
        rows = self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._session, plan)
        return DataFrame(rows, self._spark)
