# SPDX-License-Identifier: Apache-2.0
"""An island as a stream of the explicit API: the same steps that a user would write, over the same columns.

Each column has one name in the stream, made of its own and the number of its ExprId; a node's output lists columns,
some of them twice. Functions get them under their own names again. Whatever has no counterpart raises a RefusedError
that names the node, before anything runs: then the island is cut without it.

A DataFrame below an island is read with as many tasks as Spark has partitions of it, so a map function sees the
rows of a partition, in their order, and no others; where Spark decides on them as the query runs, the map is Spark's.
After an exchange there are as many partitions as slots, for Spark promises no number either, but for `repartition`,
whose number holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.api.functions import fromDataFrame
from penstock.api.lineage import (
    CombineInput,
    CombineStep,
    ExchangeChoice,
    ExchangeStep,
    OperatorStep,
    SourceStep,
    Step,
)
from penstock.errors import PenstockError, SchemaError
from penstock.graph import Operator
from penstock.islands.column_types import twice, unlike
from penstock.islands.finding import Island
from penstock.islands.meanings import MEANINGS, Role
from penstock.islands.plan_nodes import Attribute, Path, PlanNode, attributes
from penstock.operators.exchanges import PartitionerSpec, exchange, hash_exchange
from penstock.operators.expressions import Expression, UnsupportedError, probe
from penstock.operators.jvm_batches import StageInput
from penstock.operators.keys import refuse_ungroupable
from penstock.operators.verbs import Project, Where
from penstock.spark.expressions import tree_of
from penstock.spark.logical_plans import LogicalPlan, Part, SentFunction
from penstock.spark.partitions import known_partitions
from penstock.spark.python_stages import PythonCoGroups, PythonGroups, PythonMap, StageFunction, WorkerConf
from penstock.spark.types import arrow_schema_of_json

_NUMBERS = re.compile(r"(?<=\w)#\d+\b")
"""The numbers that tell columns from others, which are no part of the names that users know."""
_NAMES = 4
"""The most columns that are in a DataFrame's name."""
_VERBS = {
    "MapInArrow": "mapInArrow",
    "MapInPandas": "mapInPandas",
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapCoGroupsInArrow": "applyInArrow",
    "FlatMapCoGroupsInPandas": "applyInPandas",
}


class RefusedError(Exception):
    """A node that stays Spark's, and why."""

    def __init__(self, node: PlanNode, why: str) -> None:
        super().__init__(why)
        self.node = node
        self.why = why


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a node: the steps that give them, and its output in their columns."""

    steps: tuple[Step, ...]
    output: tuple[Attribute, ...]

    @property
    def schema(self) -> pa.Schema:
        """Each column once."""
        return self.steps[0].schema

    @property
    def columns(self) -> dict[int, str]:
        """The columns' names by number."""
        return {item.id: item.column for item in self.output}

    def places(self, chosen: Sequence[Attribute]) -> tuple[int, ...]:
        """The places of these among the columns."""
        names = self.schema.names
        return tuple(names.index(item.column) for item in chosen)

    def applied(self, operator: Operator, schema: pa.Schema) -> tuple[Step, ...]:
        """The rows with an operator after them."""
        return tuple(OperatorStep(step, operator, schema) for step in self.steps)

    def exchanged(self, spec: PartitionerSpec, choice: ExchangeChoice) -> tuple[Step, ...]:
        """The rows after an exchange."""
        return (ExchangeStep(self.steps, spec, choice),)


class Translation:
    """Translates one island of a plan; `parts` are those below it that have been replaced."""

    def __init__(self, plan: LogicalPlan, island: Island, conf: WorkerConf, parts: Mapping[Path, Part]) -> None:
        self._plan = plan
        self._island = island
        self._conf = conf
        self._parts = parts

    def rows(self) -> Rows:
        """The island's rows. Raises RefusedError."""
        return self._rows(self._island.root, seen=False)

    def _rows(self, node: PlanNode, *, seen: bool) -> Rows:
        """The rows of a node; they are `seen` by partitions where a map function gets them as they are."""
        inside, role = self._island.inside, MEANINGS[node.kind].role
        seen = role is Role.FUNCTION or (seen and role is Role.NARROW)
        try:
            below = [
                self._rows(child, seen=seen) if child.path in inside else self._leaf(child, seen=seen)
                for child in node.children
            ]
            return self._translated(node, below)
        except (PenstockError, UnsupportedError, pa.ArrowException) as error:
            raise RefusedError(node, _NUMBERS.sub("", str(error).partition("\n")[0])) from error

    def _translated(self, node: PlanNode, below: list[Rows]) -> Rows:
        ways = {
            "MapInArrow": self._map,
            "MapInPandas": self._map,
            "FlatMapGroupsInArrow": self._groups,
            "FlatMapGroupsInPandas": self._groups,
            "FlatMapCoGroupsInArrow": self._cogroups,
            "FlatMapCoGroupsInPandas": self._cogroups,
            "Repartition": self._repartition,
            "RepartitionByExpression": self._repartition,
            "Project": self._project,
            "Filter": self._filter,
        }
        way = ways.get(node.kind)
        return below[0] if way is None else way(node, below)  # the others are names of rows alone

    def _leaf(self, leaf: PlanNode, *, seen: bool) -> Rows:
        """What Spark gives; raises SchemaError where the node that reads it can't be ours."""
        output = self._output(leaf)
        frame = self._plan.frame(leaf.path, {item.id: item.column for item in output}, self._parts)
        (source,) = fromDataFrame(frame).branches
        is_plain = not any(path[: len(leaf.path)] == leaf.path for path in self._parts)
        count = known_partitions(frame) if is_plain and seen else None
        if isinstance(source, SourceStep):
            names = ", ".join(item.name for item in output[:_NAMES]) + (", ..." if len(output) > _NAMES else "")
            source = replace(source, partitions=count, name=f"DataFrame({names})")
        if seen and count is None:
            raise SchemaError("Spark makes the partitions that its function sees while the query runs")
        return Rows((source,), output)

    def _output(self, node: PlanNode) -> tuple[Attribute, ...]:
        output = attributes(self._plan.output(node.path))
        if why := unlike(output) if output else "there are no columns":
            raise SchemaError(why)
        return tuple(output or ())

    def _filter(self, node: PlanNode, below: list[Rows]) -> Rows:
        (rows,) = below
        tree = self._expression(self._plan.simplified(node.path).condition(), rows)
        return replace(rows, steps=rows.applied(Where(tree, "..."), rows.schema))

    def _project(self, node: PlanNode, below: list[Rows]) -> Rows:
        (rows,) = below
        output = self._output(node)
        made = self._plan.simplified(node.path).projectList()
        places = {item.id: place for place, item in reversed(list(enumerate(output)))}
        chosen = [output[place] for place in sorted(places.values())]
        trees = tuple(self._expression(made.apply(places[item.id]), rows) for item in chosen)
        operator = Project(trees, _schema(chosen))
        return Rows(rows.applied(operator, operator.schema), output)

    def _expression(self, expression: Any, rows: Rows) -> Expression:
        schema = rows.schema
        tree = tree_of(expression, schema, rows.columns)
        probe(tree, pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], names=schema.names))
        return tree

    def _repartition(self, node: PlanNode, below: list[Rows]) -> Rows:
        (rows,) = below
        count = node.fields.get("numPartitions") or node.fields.get("optNumPartitions")
        keys = attributes(node.fields.get("partitionExpressions") or []) or []
        if keys:
            names = [key.column for key in keys]
            spec = hash_exchange(rows.schema, names, spark_compatible=count is not None)
        else:
            spec = exchange("to_one" if count == 1 else "rebalance")
        return Rows(rows.exchanged(spec, ExchangeChoice(count)), rows.output)

    def _map(self, node: PlanNode, below: list[Rows]) -> Rows:
        (rows,) = below
        if self._plan.profile(node.path):
            raise RefusedError(node, "its tasks have resources of their own")
        given = self._input(node, rows, rows.output)
        function, output = self._function(node, ())
        return Rows(rows.applied(PythonMap(function, given), function.schema), output)

    def _groups(self, node: PlanNode, below: list[Rows]) -> Rows:
        (rows,) = below
        keys = _keys(node, attributes(node.fields["groupingAttributes"]))
        side = _Side(keys, rows.output[len(keys) :])
        given = self._input(node, rows, side.arguments)
        function, output = self._function(node, side.offsets)
        met = replace(rows, steps=rows.exchanged(*_by(rows.schema, keys)))
        names = tuple(key.column for key in keys)
        operator = PythonGroups(function, given, names, in_structs=node.kind == "FlatMapGroupsInArrow")
        return Rows(met.applied(operator, function.schema), output)

    def _cogroups(self, node: PlanNode, below: list[Rows]) -> Rows:
        counts = (node.fields[f"{side}GroupingLen"] for side in ("left", "right"))
        sides = [_Side(rows.output[:count], rows.output[count:]) for rows, count in zip(below, counts, strict=True)]
        left, right = sides
        if [_comparable(key) for key in left.keys] != [_comparable(key) for key in right.keys]:
            raise RefusedError(node, "the keys of its sides have other types")
        one, other = (self._input(node, rows, side.arguments) for rows, side in zip(below, sides, strict=True))
        function, output = self._function(node, (*left.offsets, *right.offsets))
        names = tuple(tuple(key.column for key in side.keys) for side in sides)
        operator = PythonCoGroups(function, (one, other), (names[0], names[1]))
        inputs = tuple(
            CombineInput(rows.steps, *_by(rows.schema, side.keys)) for rows, side in zip(below, sides, strict=True)
        )
        return Rows((CombineStep(inputs, operator, function.schema),), output)

    def _input(self, node: PlanNode, rows: Rows, given: Sequence[Attribute]) -> StageInput:
        if not given:
            raise RefusedError(node, "its function gets rows without columns")
        if why := twice(given):
            raise RefusedError(node, why)
        names = tuple(item.name for item in given)
        return StageInput(rows.schema, rows.places(given), names, self._conf.timezone, self._conf.batch_rows)

    def _function(self, node: PlanNode, offsets: tuple[int, ...]) -> tuple[StageFunction, tuple[Attribute, ...]]:
        output = attributes(node.fields["output"])
        why = unlike(output) if output else "it gives rows without columns"
        if output is None or why:
            raise RefusedError(node, why)
        sent = self._plan.function(node.path)
        if not isinstance(sent, SentFunction):
            raise RefusedError(node, sent)
        return StageFunction(sent, self._conf.values, offsets, _schema(output), _VERBS[node.kind]), tuple(output)


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a node over groups: its keys, and the columns that users see; keys may be among these."""

    keys: Sequence[Attribute]
    data: Sequence[Attribute]

    @property
    def own_keys(self) -> list[Attribute]:
        """The keys that are no columns of the user's."""
        known = {item.id for item in self.data}
        return [key for key in self.keys if key.id not in known]

    @property
    def arguments(self) -> list[Attribute]:
        """The columns that PySpark's worker is sent."""
        return [*self.own_keys, *self.data]

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where in these the keys and the user's columns are, as the worker is told."""
        sent = [item.id for item in self.arguments]
        first = len(self.own_keys)
        # A key that is a column is that column; the same one may be a key twice.
        keys = [sent.index(key.id) for key in self.keys]
        values = range(first, len(sent))
        return (len(keys) + len(values) + 1, len(keys), *keys, *values)


def _keys(node: PlanNode, keys: list[Attribute] | None) -> list[Attribute]:
    if keys is None:
        raise RefusedError(node, "its keys are no plain columns")
    return keys


def _by(schema: pa.Schema, keys: Sequence[Attribute]) -> tuple[PartitionerSpec, ExchangeChoice]:
    """The exchange that brings rows with equal keys together."""
    names = list(dict.fromkeys(key.column for key in keys))
    if not names:
        return exchange("to_one"), ExchangeChoice(1)
    refuse_ungroupable(schema, names)
    return hash_exchange(schema, names), ExchangeChoice()


def _comparable(key: Attribute) -> str:
    return str(key.kind)


def _schema(columns: Sequence[Attribute]) -> pa.Schema:
    fields = [{"name": item.column, "type": item.kind, "nullable": item.nullable, "metadata": {}} for item in columns]
    return arrow_schema_of_json(fields)
