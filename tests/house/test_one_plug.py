# SPDX-License-Identifier: Apache-2.0
"""A service has one writer, one gate and one environment to make; those that store share them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

import pytest

from penstock.shuffle import InputGate, ResultPartitionWriter
from source import PACKAGE, Module, modules

MEMBERS = {ResultPartitionWriter: 9, InputGate: 8}
"""The members that each end of an exchange may have, none of them optional."""
OF_ENDS = {"offer": "ResultPartitionWriter", "poll_ahead": "InputGate"}
"""A member that nothing else has, and the protocol that says it."""
ENDS = {
    "offer": {"StoredWriter", "SegmentWriter", "MemoryWriter"},
    "poll_ahead": {"StoredGate", "SegmentInputGate", "MemoryInputGate"},
}
"""The classes that are such ends: of all that store, of `local`'s segments, of the service for unit tests."""


def _members(kind: ast.ClassDef) -> set[str]:
    return {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}


def _with(member: str, found: list[Module], *, protocols: bool) -> Iterator[str]:
    """The classes that define this member."""
    for module in found:
        for kind in module.classes():
            is_protocol = any("Protocol" in ast.unparse(base) for base in kind.bases)
            if member in _members(kind) and is_protocol is protocols:
                yield kind.name


@pytest.mark.parametrize("member", OF_ENDS)
def test_there_is_one_protocol_for_each_end(member: str) -> None:
    """A second one would need a second class in each service."""
    assert list(_with(member, modules("src/penstock"), protocols=True)) == [OF_ENDS[member]]


@pytest.mark.parametrize("end", MEMBERS, ids=lambda end: end.__name__)
def test_an_end_has_few_members(end: type) -> None:
    """A plug-in must write them all; a member that it may leave out would be asked for everywhere."""
    own = {name for name, _ in inspect.getmembers(end) if name in vars(end) and not name.startswith("_")}
    assert 0 < len(own) <= MEMBERS[end]
    asked = [
        f"{module.name}:{node.lineno}"
        for module in modules("src/penstock")
        for node in module.nodes
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("hasattr", "getattr")
        and any(isinstance(each, ast.Constant) and each.value in own - {"close", "flush"} for each in node.args)
    ]
    assert not asked, "\n".join(asked)


@pytest.mark.parametrize("member", ENDS)
def test_services_that_store_share_their_ends(member: str) -> None:
    """A service brings its way to store and to fetch: another class with the members of an end is said twice."""
    services = [
        module
        for module in modules("src/penstock")
        if module.room in ("plugin", "services", "testing") and not module.path.name.startswith("conformance")
    ]
    assert set(_with(member, services, protocols=False)) == ENDS[member]


def test_a_second_end_is_noticed() -> None:
    """A class with the member, of its own, in any of the rooms; one that inherits it is none."""
    text = "class Second:\n    def offer(self, split): ...\nclass Third(StoredWriter):\n    pass\n"
    module = Module(PACKAGE / "sample.py", text, ast.parse(text))
    assert list(_with("offer", [module], protocols=False)) == ["Second"]
