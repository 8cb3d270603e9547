# SPDX-License-Identifier: Apache-2.0
"""There is one form of a stored partition: what a second one would need is looked for in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

import pytest

from source import PACKAGE, modules

HOSTS = ("partition", "environment", "services", "buffer", "record", "external")
"""The packages that store and read partitions of a host."""
MAGIC = re.compile(rb"[A-Z][A-Z0-9]{3,7}")
"""Four to eight capitals and digits as bytes."""


def _magics(nodes: Iterable[ast.AST]) -> set[bytes]:
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes) and MAGIC.fullmatch(node.value)
    }


def _magics_in(*rooms: str) -> set[bytes]:
    files = [each for each in modules("src/penstock") if each.room in rooms and each.path != OF_SPARK]
    return {magic for each in files for magic in _magics(each.nodes)}


OF_SPARK = PACKAGE / "services" / "spark_ess" / "places.py"
"""A number out of four letters there names our files among those of Spark's shuffles: none of a form."""


def test_there_are_two_storage_magics() -> None:
    """Data files and indexes are all that a partition leaves on a disk; an object's index is known by its name."""
    assert _magics_in(*HOSTS) == {b"PENSTDAT", b"PENSTIDX"}


def test_a_block_has_one_form() -> None:
    """A worker's merged file, an object and a connection have the same blocks, with one head."""
    assert _magics_in("remote") == {b"PBL1"}


def test_a_short_magic_is_noticed() -> None:
    """One of four letters is one; a word is none."""
    assert _magics(ast.walk(ast.parse("A = b'POI1'\nB = b'PENSTDAT'\nC = b'named'\nD = b'OK'"))) == {
        b"POI1",
        b"PENSTDAT",
    }


def test_there_is_one_view_for_each_side_and_one_port_for_each_end() -> None:
    """A kind of partition that comes later is read by the views, and written through the port, that there are."""
    names = {node.name for each in modules("src/penstock") if each.room == "environment" for node in each.classes()}
    assert {name for name in names if name.endswith("View")} == {"LocalView", "ServedView"}
    assert {name for name in names if name.endswith("Port")} == {"WriterPort", "GatePort"}


def test_a_class_with_a_lifecycle_has_no_flags() -> None:
    """A state is one row of its table: an attribute that is set to True or False would be a second state."""
    kinds = {
        node.name: (f"{each.name}:{node.name}", node) for each in modules("src/penstock") for node in each.classes()
    }
    alive = {name for name, (_, node) in kinds.items() if _has_lifecycle(node)}
    alive |= {name for name, (_, node) in kinds.items() if any(ast.unparse(base) in alive for base in node.bases)}
    assert {"StoredWriter", "StoredGate", "RemoteGate"} <= alive
    found = {where: flags for name in alive for where, node in [kinds[name]] if (flags := _flags(node))}
    assert not found


@pytest.mark.parametrize(
    ("line", "is_flag"),
    [
        ("self._done = True", True),
        ("self._done = not ends", True),
        ("self._done = self._left == 0", True),
        ("self._done = bool(self._left)", True),
        ("self._done |= self._left == 0", True),
        ("self._done = self._left is None or self._done", True),
        ("self._count = self._count + 1", False),
        ("self._kept = found or other", False),
        ("done = True", False),
    ],
)
def test_flags_are_noticed_under_any_name(line: str, is_flag: bool) -> None:
    """Constants, negations, comparisons and what is made of them; values that may be anything else are none."""
    (node,) = ast.parse(f"class Life:\n    def move(self):\n        {line}").body
    assert isinstance(node, ast.ClassDef)
    assert bool(_flags(node)) is is_flag


def _has_lifecycle(node: ast.ClassDef) -> bool:
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(ast.unparse(call.func).endswith("Lifecycle") for call in calls)


def _flags(node: ast.ClassDef) -> list[str]:
    """The attributes that are set to what is a boolean; a constant of the constructor is one that changes."""
    found = []
    for method in ast.walk(node):
        if not isinstance(method, ast.FunctionDef):
            continue
        is_first = method.name == "__init__"
        for each in ast.walk(method):
            if isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign):
                targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                is_flag = isinstance(each.value, ast.Constant) if is_first else True
                if is_flag and _is_boolean(each.value):
                    found += [text for target in targets if re.fullmatch(r"self\.\w+", text := ast.unparse(target))]
    return found


def _is_boolean(value: ast.expr | None) -> bool:
    match value:
        case ast.Constant(value=bool()) | ast.UnaryOp(op=ast.Not()) | ast.Compare():
            return True
        case ast.BoolOp(values=values):
            return any(map(_is_boolean, values))
        case ast.Call(func=ast.Name(id="bool" | "any" | "all" | "isinstance")):
            return True
    return False
