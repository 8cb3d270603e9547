# SPDX-License-Identifier: Apache-2.0
"""Islands of recorded plans: which nodes are in them, which are left, and why. No Spark."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from penstock.islands.column_types import twice, unlike
from penstock.islands.finding import EVERYTHING, PAYING, find_islands
from penstock.islands.meanings import MEANINGS, table
from penstock.islands.plan_nodes import Attribute, attributes, read_plan
from source import ROOT

LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"


def attribute(number: int, name: str = "v", kind: Any = "long") -> dict[str, Any]:
    """A column as the JSON of a plan has it."""
    own = {"class": f"{EXPRESSIONS}.AttributeReference", "num-children": 0, "name": name, "dataType": kind}
    return {**own, "nullable": True, "exprId": {"id": number}}


def node(kind: str, *children: list[Any], **fields: Any) -> list[Any]:
    """A node and what is below it, each ahead of its children."""
    return [{"class": f"{LOGICAL}.{kind}", "num-children": len(children), **fields}, *itertools.chain(*children)]


def function(kind: str, *children: list[Any], **fields: Any) -> list[Any]:
    """A node that calls a function."""
    kinds = {"type": "struct", "fields": [{"name": "v"}]}
    udf = {"class": f"{EXPRESSIONS}.PythonUDF", "num-children": 0, "name": "f", "dataType": kinds, **fields}
    return node(kind, *children, functionExpr=[udf], output=[[attribute(1)]], isBarrier=fields.get("barrier", False))


def project(child: list[Any], *expressions: str) -> list[Any]:
    """A projection with parts of these classes."""
    parts = [[attribute(1)], *([{"class": f"{EXPRESSIONS}.{name}"}] for name in expressions)]
    return node("Project", child, projectList=parts)


LEAF = node("Range")
MAP = function("MapInArrow", LEAF)
GROUPS = function("FlatMapGroupsInArrow", project(MAP))
BY_NUMBER = node("Repartition", MAP, numPartitions=3, shuffle=True)

PLANS: dict[str, tuple[list[Any], str, list[list[str]]]] = {
    "a map alone": (MAP, PAYING, []),
    "a map alone, if all is placed": (MAP, EVERYTHING, [["MapInArrow"]]),
    "a group": (function("FlatMapGroupsInPandas", project(LEAF)), PAYING, [["FlatMapGroupsInPandas"]]),
    "a map and a group": (GROUPS, PAYING, [["FlatMapGroupsInArrow", "Project", "MapInArrow"]]),
    "a projection on top is Spark's": (project(GROUPS), PAYING, [["FlatMapGroupsInArrow", "Project", "MapInArrow"]]),
    "a map over an exchange": (BY_NUMBER, PAYING, [["Repartition", "MapInArrow"]]),
    "an exchange over Spark's rows": (
        function("MapInPandas", node("Repartition", project(LEAF), numPartitions=3, shuffle=True)),
        PAYING,
        [["MapInPandas", "Repartition"]],
    ),
    "an exchange without a function": (node("Repartition", LEAF, numPartitions=3, shuffle=True), EVERYTHING, []),
    "coalesce": (node("Repartition", MAP, numPartitions=1, shuffle=False), PAYING, []),
    "an aggregate between": (
        function("FlatMapGroupsInArrow", project(node("Aggregate", GROUPS))),
        PAYING,
        [["FlatMapGroupsInArrow"], ["FlatMapGroupsInArrow", "Project", "MapInArrow"]],
    ),
    "two below a join": (
        node("Join", GROUPS, node("SubqueryAlias", GROUPS)),
        PAYING,
        [["FlatMapGroupsInArrow", "Project", "MapInArrow"]] * 2,
    ),
    "a cogroup": (
        function("FlatMapCoGroupsInPandas", project(GROUPS), project(LEAF)),
        PAYING,
        [["FlatMapCoGroupsInPandas", "Project", "FlatMapGroupsInArrow", "Project", "MapInArrow"]],
    ),
    "a barrier": (
        function("FlatMapGroupsInArrow", project(function("MapInArrow", LEAF, barrier=True))),
        PAYING,
        [["FlatMapGroupsInArrow"]],
    ),
    "random numbers between": (
        function("FlatMapGroupsInArrow", project(MAP, "Alias", "Rand")),
        PAYING,
        [["FlatMapGroupsInArrow"]],
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_islands_of_a_plan(name: str) -> None:
    """Their nodes from the top; none is in two, and leaves are in none."""
    plan, placed, expected = PLANS[name]
    found = find_islands(read_plan(json.dumps(plan)), placed)
    assert [[item.kind for item in island.nodes] for island in found.islands] == expected
    paths = [path for island in found.islands for path in island.inside]
    assert len(set(paths)) == len(paths)
    assert not any(leaf.path in island.inside for island in found.islands for leaf in island.leaves)


def test_a_group_over_a_projection_that_is_not_ours_reads_it_from_spark() -> None:
    """The island begins above it, and the function below it may be an island of its own."""
    grouped = function("FlatMapGroupsInArrow", project(GROUPS, "PythonUDF"))
    found = find_islands(read_plan(json.dumps(grouped)))
    assert [island.functions for island in found.islands] == [1, 2]
    assert found.left[(0,)] == "it has a Python UDF in an expression"


def test_what_was_refused_is_left_with_its_reason() -> None:
    """An attempt in vain cuts the island there; the rest is looked for again."""
    plan = read_plan(json.dumps(function("FlatMapGroupsInArrow", project(BY_NUMBER))))
    (whole,) = find_islands(plan).islands
    assert whole.functions == 2
    found = find_islands(plan, refused={(0, 0, 0): "no kernel"})
    assert [island.functions for island in found.islands] == [1]
    assert found.left[(0, 0, 0)] == "no kernel"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("decimal(10,2)", ""),
        ({"type": "array", "elementType": "date"}, ""),
        ({"type": "udt"}, "the type udt"),
        ("interval day", "the type interval day"),
        ({"type": "map", "keyType": "string", "valueType": "variant"}, "the type variant"),
        (
            {"type": "struct", "fields": [{"name": "a", "type": "long"}] * 2},
            "a struct with a field that is there twice",
        ),
    ],
)
def test_columns_that_are_the_same_in_arrow(kind: Any, why: str) -> None:
    """All others are left, at any depth."""
    assert unlike([Attribute(1, "c", kind, nullable=True)]) == (why and f"column 'c' has {why}")


def test_columns_are_known_by_their_numbers() -> None:
    """Two of one name are two columns in a stream, and none that a function could tell apart."""
    found = attributes([[attribute(1, "a")], [attribute(2, "a")]])
    assert found is not None
    assert [item.column for item in found] == ["a#1", "a#2"]
    assert twice(found) == "the column 'a' is there twice"
    assert attributes([[{"class": f"{EXPRESSIONS}.Alias"}]]) is None


def test_the_page_shows_the_table() -> None:
    """What is accelerated stands on the page as it does in the code, row by row."""
    page = (ROOT / "docs" / "acceleration.md").read_text()
    rows = [
        f"| `{written}` | `{kind}` | {ours} | {limits or 'no limits'} |" for written, kind, ours, limits in table()
    ]
    assert "\n".join(rows) in page
    assert len(rows) == len(MEANINGS)
