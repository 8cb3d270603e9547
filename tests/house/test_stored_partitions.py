# SPDX-License-Identifier: Apache-2.0
"""There is one form of a stored partition: what a second one would need is looked for in the code."""

from __future__ import annotations

import ast
import re

from source import PACKAGE

ROOMS = ("partition", "environment", "services", "buffer", "record")
"""The packages that store and read partitions."""


def test_there_are_two_storage_magics() -> None:
    """Data files and indexes are all that a partition leaves on a disk; a magic is eight capitals as bytes."""
    found = {
        node.value
        for room in ROOMS
        for path in sorted((PACKAGE / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes) and re.fullmatch(b"[A-Z]{8}", node.value)
    }
    assert found == {b"PENSTDAT", b"PENSTIDX"}


def test_there_is_one_view_for_each_side_and_one_port_for_each_end() -> None:
    """A kind of partition that comes later is read by the views, and written through the port, that there are."""
    names = {
        node.name
        for path in (PACKAGE / "environment").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    assert {name for name in names if name.endswith("View")} == {"LocalView", "ServedView"}
    assert {name for name in names if name.endswith("Port")} == {"WriterPort", "GatePort"}


def test_a_class_with_a_lifecycle_has_no_flags() -> None:
    """A state is one row of its table: an attribute that is set to True or False would be a second state."""
    found = {
        f"{path.relative_to(PACKAGE)}:{node.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and _has_lifecycle(node) and _sets_flags(node)
    }
    assert not found


def _has_lifecycle(node: ast.ClassDef) -> bool:
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(ast.unparse(call.func).endswith("Lifecycle") for call in calls)


def _sets_flags(node: ast.ClassDef) -> bool:
    for each in ast.walk(node):
        if isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            is_flag = _is_boolean(each.value)
            if is_flag and any(re.fullmatch(r"self\.\w+", ast.unparse(target)) for target in targets):
                return True
    return False


def _is_boolean(value: ast.expr | None) -> bool:
    match value:
        case ast.Constant(value=bool()) | ast.UnaryOp(op=ast.Not()):
            return True
    return False
