# SPDX-License-Identifier: Apache-2.0
"""A logical plan of Spark's as a small tree, out of the JSON that Catalyst gives of a whole plan in one call.

The JSON lists all nodes, each ahead of its children. A node keeps its fields as they are there; a field that is no
expression, type or product is null. Attributes are known by the number of their ExprId, for names may occur twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Path = tuple[int, ...]
"""The way from the root to a node: the place of each child."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column of a plan. `kind` is its type in the form of Spark's JSON."""

    id: int
    name: str
    kind: Any
    nullable: bool

    @property
    def column(self) -> str:
        """The name that it has while Penstock has it: there is no other such one in a plan."""
        return f"{self.name}#{self.id}"


@dataclass(frozen=True, slots=True, eq=False)
class PlanNode:
    """One node: its class without the package, its own fields, where it stands."""

    kind: str
    fields: Mapping[str, Any]
    path: Path
    children: tuple[PlanNode, ...]

    def __iter__(self) -> Iterator[PlanNode]:
        """It and all nodes under it, each ahead of its children."""
        yield self
        for child in self.children:
            yield from child

    @property
    def function(self) -> Mapping[str, Any] | None:
        """The Python function of a node that calls one."""
        found = self.fields.get("functionExpr")
        return found[0] if found else None

    @property
    def title(self) -> str:
        """The node in a word or two, for people."""
        function = self.function
        return self.kind if function is None else f"{self.kind}({function['name']})"


def read_plan(text: str) -> PlanNode:
    """The plan of which this is the JSON."""
    nodes = json.loads(text)

    def read(place: int, path: Path) -> tuple[PlanNode, int]:
        own = nodes[place]
        children, following = [], place + 1
        for number in range(own["num-children"]):
            child, following = read(following, (*path, number))
            children.append(child)
        return PlanNode(_class_name(own), own, path, tuple(children)), following

    return read(0, ())[0]


def attributes(expressions: Sequence[Sequence[Mapping[str, Any]]]) -> list[Attribute] | None:
    """The attributes that a list of expressions is; None where one of them is something else."""
    found = [_attribute(parts[0]) for parts in expressions]
    return None if any(item is None for item in found) else [item for item in found if item is not None]


def expression_classes(expressions: Any) -> Iterator[str]:
    """The classes of all parts of expressions, in whatever lists they lie."""
    for part in expressions:
        if isinstance(part, list):
            yield from expression_classes(part)
        elif isinstance(part, dict) and "class" in part:
            yield _class_name(part)


def _attribute(own: Mapping[str, Any]) -> Attribute | None:
    if _class_name(own) != "AttributeReference":
        return None
    return Attribute(own["exprId"]["id"], own["name"], own["dataType"], own["nullable"])


def _class_name(own: Mapping[str, Any]) -> str:
    return str(own["class"]).rpartition(".")[2]
