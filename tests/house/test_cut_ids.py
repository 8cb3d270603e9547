# SPDX-License-Identifier: Apache-2.0
"""Identities have parts, and one module writes and reads their text: nobody else takes it apart."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from source import modules

CUTS = {"split", "rsplit", "partition", "rpartition", "startswith", "endswith", "removeprefix", "removesuffix"}
IDS = {"dataset", "job", "attempt", "environment"}
"""The names of variables and fields that hold an identity as text."""
TYPED = {*IDS, "partition", "identity", "spark_job"}
"""The same for identities with parts, whose text is `str` of them."""
WHERE = "src/penstock/shuffle/ids.py"


def cuts(nodes: Iterable[ast.AST]) -> list[int]:
    """The lines in which the text of an identity is cut or searched."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CUTS:
            text = node.func.value
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            text = node.value
        else:
            continue
        if _is_id(text, IDS) or (isinstance(text, ast.Call) and _makes_text(text)):
            found.append(node.lineno)
    return found


def _makes_text(call: ast.Call) -> bool:
    return getattr(call.func, "id", "") == "str" and _is_id(call.args[0], TYPED)


def _is_id(node: ast.expr, names: set[str]) -> bool:
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")) in names


def test_nobody_cuts_an_identity() -> None:
    """Code that needs a part of it asks for that part."""
    found = [f"{m.name}:{line}" for m in modules("src/penstock") if m.name != WHERE for line in cuts(m.nodes)]
    assert not found, "\n".join(found)


def test_a_cut_is_noticed() -> None:
    """In a field, in a variable and in the text of an identity with parts; other texts may be cut."""
    cut = ('x.dataset.rpartition("-")', "job[1:]", 'str(it.partition).split(".")', 'environment.startswith("a")')
    assert all(cuts(ast.walk(ast.parse(line))) for line in cut)
    assert not any(
        cuts(ast.walk(ast.parse(line))) for line in ('path.rpartition("/")', "partition.split(2)", "jobs[1:]")
    )
