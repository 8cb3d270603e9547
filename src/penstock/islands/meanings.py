# SPDX-License-Identifier: Apache-2.0
"""The one table of what a node of Spark's plans is to Penstock: what we take over, on which conditions, and the rest.

A condition looks at the node's own fields; it gives the reason why this node stays Spark's, or an empty text. What
only an attempt tells (a type, an expression that has no kernel) is refused by `translation`, and stays Spark's too.
`docs/acceleration.md` shows this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from penstock.islands.plan_nodes import PlanNode, attributes, expression_classes


class Role(Enum):
    """What a node does in an island: calls a function, or lies between such nodes."""

    FUNCTION = auto()
    GROUPS = auto()
    EXCHANGE = auto()
    NARROW = auto()


@dataclass(frozen=True, slots=True)
class Meaning:
    """A node that we take over: what users write for it, what runs in its place, and when it is left all the same."""

    written: str
    ours: str
    role: Role
    left: Callable[[PlanNode], str] = lambda _: ""
    limits: str = ""

    @property
    def calls_function(self) -> bool:
        """True for a Python stage."""
        return self.role in (Role.FUNCTION, Role.GROUPS)

    @property
    def exchanges(self) -> bool:
        """True if its rows come over an exchange."""
        return self.role in (Role.GROUPS, Role.EXCHANGE)


def _map(node: PlanNode) -> str:
    if node.fields.get("isBarrier"):
        return "a barrier stage, whose tasks Spark starts together"
    return _function(node)


def _function(node: PlanNode) -> str:
    function: Mapping[str, Any] = node.function or {}
    if not function.get("udfDeterministic", True):
        return "its function is marked as nondeterministic"
    fields = function.get("dataType", {}).get("fields", []) if isinstance(function.get("dataType"), dict) else []
    return "" if fields else "its function gives rows without columns"


def _repartition(node: PlanNode) -> str:
    return "" if node.fields["shuffle"] else "coalesce joins partitions in their order"


def _by_expression(node: PlanNode) -> str:
    keys = attributes(node.fields["partitionExpressions"])
    if keys is None:
        return "it places rows by more than plain columns"
    return "" if keys or node.fields.get("optNumPartitions") else "it says neither columns nor a number"


def _plain_expressions(node: PlanNode) -> str:
    given = node.fields.get("projectList") or [node.fields.get("condition")]
    for name in expression_classes(given):
        if name in _NOT_OURS:
            return _NOT_OURS[name]
    return ""


_NOT_OURS = {
    "PythonUDF": "it has a Python UDF in an expression",
    "ScalaUDF": "it has a UDF of the JVM's",
    "ScalarSubquery": "it has a subquery",
    "Exists": "it has a subquery",
    "InSubquery": "it has a subquery",
    "ListQuery": "it has a subquery",
    "OuterReference": "it has a subquery",
    "CurrentTimestamp": "it asks for the time, which is one for a whole query",
    "CurrentDate": "it asks for the time, which is one for a whole query",
    "LocalTimestamp": "it asks for the time, which is one for a whole query",
    "Now": "it asks for the time, which is one for a whole query",
    "Rand": "it draws random numbers",
    "Randn": "it draws random numbers",
    "Uuid": "it draws random numbers",
    "Shuffle": "it draws random numbers",
    "SparkPartitionID": "it asks for the number of its partition",
    "MonotonicallyIncreasingID": "it asks for the number of its partition",
    "InputFileName": "it asks for the file that is read",
}

MEANINGS: Mapping[str, Meaning] = {
    "MapInArrow": Meaning("df.mapInArrow", "the same function", Role.FUNCTION, _map, "no barrier, no profile"),
    "MapInPandas": Meaning("df.mapInPandas", "the same function", Role.FUNCTION, _map, "no barrier, no profile"),
    "FlatMapGroupsInArrow": Meaning(
        "groupBy().applyInArrow", "exchange by the keys, the same function", Role.GROUPS, _function, "plain keys"
    ),
    "FlatMapGroupsInPandas": Meaning(
        "groupBy().applyInPandas", "exchange by the keys, the same function", Role.GROUPS, _function, "plain keys"
    ),
    "FlatMapCoGroupsInArrow": Meaning(
        "cogroup().applyInArrow", "an exchange on each side, the same function", Role.GROUPS, _function, "plain keys"
    ),
    "FlatMapCoGroupsInPandas": Meaning(
        "cogroup().applyInPandas", "an exchange on each side, the same function", Role.GROUPS, _function, "plain keys"
    ),
    "Repartition": Meaning("df.repartition(n)", "rebalance", Role.EXCHANGE, _repartition, "no coalesce"),
    "RepartitionByExpression": Meaning(
        "df.repartition(n, 'k')", "exchange by Spark's own hash", Role.EXCHANGE, _by_expression, "plain columns"
    ),
    "Project": Meaning(
        "select, withColumn, drop", "Arrow's kernels", Role.NARROW, _plain_expressions, "expressions with kernels"
    ),
    "Filter": Meaning(
        "filter, where", "Arrow's kernels", Role.NARROW, _plain_expressions, "expressions with kernels"
    ),
    "SubqueryAlias": Meaning("alias, a name in SQL", "nothing", Role.NARROW),
    "View": Meaning("a view in SQL", "nothing", Role.NARROW),
}
"""By the class of the node."""

LEFT: Mapping[str, str] = {
    "Aggregate": "`groupBy().agg` between functions is Spark's for now",
    "Join": "joins between functions are Spark's for now",
    "Union": "unions are Spark's for now",
    "Sort": "sorted rows keep Spark's order",
    "GlobalLimit": "what a limit gives first is Spark's to say",
    "LocalLimit": "what a limit gives first is Spark's to say",
    "Window": "windows over rows are Spark's for now",
    "InMemoryRelation": "it is cached, and stays so",
    "CollectMetrics": "`observe` counts where Spark does",
    "ArrowEvalPython": "UDFs in expressions are Spark's for now",
    "BatchEvalPython": "UDFs in expressions are Spark's for now",
    "FlatMapGroupsInPandasWithState": "state belongs to a stream",
}
"""Why nodes that one might expect above are Spark's; all others are because they were not looked at yet."""


def why_left(node: PlanNode) -> str:
    """The reason why a node stays Spark's, as far as itself tells; empty if it is ours."""
    meaning = MEANINGS.get(node.kind)
    if meaning is None:
        return LEFT.get(node.kind, "Spark's own")
    return meaning.left(node)


def table() -> list[tuple[str, str, str, str]]:
    """The rows of the page: what users write, Spark's node, what runs in its place, and the limits."""
    return [(item.written, kind, item.ours, item.limits) for kind, item in MEANINGS.items()]
