# SPDX-License-Identifier: Apache-2.0
"""Nobody asks for the type of a writer, a port, a view or a partition: each of them answers all that is asked of it.

A kind that comes later would have to be put into each such question, and nobody would find them all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from source import PACKAGE, Module, modules

ROOMS = ("buffer", "environment", "lifecycle", "network", "partition", "services", "testing")
"""The packages whose classes are meant, and the ends of an exchange in `shuffle`."""
NAMES = re.compile(r"(Port|Writer|Gate|View|Partition|Result|Supply|Source|Reader|Cursor|Layout)$")
ALLOWED: set[str] = set()
"""Modules that may ask: none."""


def kinds() -> set[str]:
    """The classes whose type nobody asks for; of `buffer/view.py` all that are protocols."""
    found = set()
    for module in modules("src/penstock"):
        path = module.path.relative_to(PACKAGE).as_posix()
        for kind in module.classes():
            is_protocol = any("Protocol" in ast.unparse(base) for base in kind.bases)
            if (
                (module.room in ROOMS and NAMES.search(kind.name))
                or (path == "buffer/view.py" and is_protocol)
                or path == "shuffle/endpoints.py"
            ):
                found.add(kind.name)
    return found


def asked(module: Module, wanted: set[str]) -> Iterator[str]:
    """The places where a module asks for one of these types."""
    for node in module.nodes:
        names: set[str] = set()
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, types]):
                names = _names(types)
            case ast.Call(func=ast.Name(id="TypeIs" | "TypeGuard")):
                names = _names(node)
            case ast.MatchClass(cls=kind):
                names = _names(kind)
            case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=compared):
                names = {name for each in compared for name in _names(each)}
        for name in names & wanted:
            yield f"{module.name}:{getattr(node, 'lineno', '?')} asks for {name}"


def _names(node: ast.AST) -> set[str]:
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def test_nobody_asks_for_the_type_of_a_writer_a_port_or_a_view() -> None:
    """In all of the wheel; the list of those that may is empty."""
    wanted = kinds()
    assert {"WriterPort", "StoredResult", "PipelinedPartition", "LocalView", "ServableView"} <= wanted
    found = [
        each for module in modules("src/penstock") if module.name not in ALLOWED for each in asked(module, wanted)
    ]
    assert not found, "\n".join(found)


def test_each_way_of_asking_is_noticed() -> None:
    """A call, a tuple, a union, a pattern and a comparison of types."""
    text = """
isinstance(a, WriterPort)
isinstance(a, (int, ports.WriterPort))
isinstance(a, int | WriterPort)
match a:
    case WriterPort():
        pass
type(a) is WriterPort
"""
    module = Module(PACKAGE / "sample.py", text, ast.parse(text))
    assert len(list(asked(module, {"WriterPort"}))) == 5
