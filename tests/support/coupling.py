# SPDX-License-Identifier: Apache-2.0
"""The hold of the parts of the code on each other: circles of imports, how wide classes are, who takes whom.

Read from the syntax trees alone. An import counts wherever it stands: at the top, inside a function or under
`TYPE_CHECKING`, because each says that one module knows of the other. A class is named by its bare name; where two
have the same one, they count together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from source import CODE, Function, Module, modules

VALUE_BASES = {"Enum", "IntEnum", "StrEnum", "IntFlag", "NamedTuple", "Protocol", "Exception"}
"""A class that derives from these keeps no state that others could change, or is as narrow as its reader needs."""


@dataclass(frozen=True)
class Figures:
    """One class: `public` members, `attributes` in all, and the classes whose constructors take it."""

    name: str
    module: str
    public: int
    attributes: int
    is_value: bool
    holders: tuple[str, ...]


def import_graph() -> dict[str, set[str]]:
    """Each module by its dotted name, with those it imports."""
    found = {module.dotted: module for module in modules(*CODE)}
    graph: dict[str, set[str]] = {}
    for name, module in found.items():
        imported = {_module_of(target, found) for target, _ in module.imports()}
        graph[name] = {target for target in imported if target and target != name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The groups of modules that each reach all others of their group, by Kosaraju's two passes."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        order += _finished(start, graph, seen)
    back: dict[str, set[str]] = {name: set() for name in graph}
    for name, targets in graph.items():
        for target in targets:
            back[target].add(name)
    seen = set()
    groups = [set(_finished(name, back, seen)) for name in reversed(order) if name not in seen]
    return [group for group in groups if len(group) > 1]


@cache
def class_figures() -> tuple[Figures, ...]:
    """All classes."""
    classes = [(module, kind) for module in modules(*CODE) for kind in module.classes()]
    names = {kind.name for _, kind in classes}
    holders: dict[str, set[str]] = {name: set() for name in names}
    for _, kind in classes:
        for annotation in _taken(kind):
            for name in _names(annotation) & names - {kind.name}:
                holders[name].add(kind.name)
    return tuple(
        Figures(
            kind.name,
            module.name,
            len(_public(kind)),
            len(_attributes(kind)),
            _is_value(kind),
            tuple(sorted(holders[kind.name])),
        )
        for module, kind in classes
    )


def parameter_counts() -> list[tuple[int, str]]:
    """The number of parameters that each function takes, `self` and `cls` not counted, with its name."""
    return [
        (_parameters(function), f"{module.name}:{function.name}")
        for module in modules(*CODE)
        for function in module.functions()
    ]


def _module_of(target: str, found: dict[str, Module]) -> str:
    """The module that `package.module`, `package.module.name` or `package.name` means; empty if it is not ours."""
    return target if target in found else target.rpartition(".")[0] if target.rpartition(".")[0] in found else ""


def _finished(start: str, graph: dict[str, set[str]], seen: set[str]) -> list[str]:
    """The modules that can be reached from here and were not seen, each after all that it reaches."""
    if start in seen:
        return []
    seen.add(start)
    order: list[str] = []
    way = [(start, iter(sorted(graph[start])))]
    while way:
        name, left = way[-1]
        following = next((target for target in left if target not in seen), None)
        if following is None:
            order.append(name)
            way.pop()
        else:
            seen.add(following)
            way.append((following, iter(sorted(graph[following]))))
    return order


def _taken(kind: ast.ClassDef) -> Iterator[ast.expr]:
    """The annotations of what the constructor takes: of `__init__`, or of a dataclass's fields."""
    for node in kind.body:
        if isinstance(node, ast.AnnAssign) and _is_dataclass(kind):
            yield node.annotation
        elif isinstance(node, Function) and node.name == "__init__":
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            yield from (argument.annotation for argument in arguments if argument.annotation)


def _names(annotation: ast.expr) -> set[str]:
    text = [node.value for node in ast.walk(annotation) if isinstance(node, ast.Constant) and type(node.value) is str]
    quoted = [ast.parse(part, mode="eval").body for part in text]
    return {node.id for tree in (annotation, *quoted) for node in ast.walk(tree) if isinstance(node, ast.Name)} | {
        node.attr for node in ast.walk(annotation) if isinstance(node, ast.Attribute)
    }


def _attributes(kind: ast.ClassDef) -> set[str]:
    """The attributes that an instance keeps: fields, and all that its methods assign to `self`."""
    found = {
        node.target.id for node in kind.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for method in (node for node in kind.body if isinstance(node, Function)):
        found |= {
            node.attr
            for node in ast.walk(method)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
    return found


def _public(kind: ast.ClassDef) -> set[str]:
    methods = {node.name for node in kind.body if isinstance(node, Function)}
    return {name for name in methods | _attributes(kind) if not name.startswith("_")}


def _is_dataclass(kind: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in kind.decorator_list)


def _is_value(kind: ast.ClassDef) -> bool:
    is_frozen = any("frozen=True" in ast.unparse(decorator) for decorator in kind.decorator_list)
    bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in kind.bases}
    return is_frozen or bool(bases & VALUE_BASES) or kind.name.endswith("Error")


def _parameters(function: Function) -> int:
    arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return sum(argument.arg not in ("self", "cls") for argument in arguments)
