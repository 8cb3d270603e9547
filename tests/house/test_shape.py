# SPDX-License-Identifier: Apache-2.0
"""The size and shape of the code: what a reader can take in at once."""

from __future__ import annotations

import ast
import statistics

import pytest

from source import CODE, ROOT, Definition, Function, Module, code_lines, modules

LINES_PER_MODULE = 500
LINES_PER_FUNCTION_P90 = 30
LINES_PER_FUNCTION = 80
FORBIDDEN_IN_NAMES = ("Impl", "Default", "Abstract", "Util", "Utils", "NG")
BASES_NOT_COUNTED = {"Protocol", "Exception", "Enum", "IntEnum", "StrEnum", "NamedTuple", "object", "Generic"}


def _length(node: Definition) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _public(module: Module) -> list[Definition]:
    """Definitions a reader of the module's documentation would expect: not private, not nested in a function."""
    found: list[Definition] = []
    levels: list[ast.Module | ast.ClassDef] = [module.tree]
    while levels:
        for node in levels.pop().body:
            if isinstance(node, Definition) and not node.name.startswith("_"):
                found.append(node)
                if isinstance(node, ast.ClassDef):
                    levels.append(node)
    return found


def test_modules_are_short() -> None:
    """Past five hundred lines a module is two."""
    long = [f"{m.name}: {m.lines}" for m in modules(*CODE) if m.lines > LINES_PER_MODULE]
    assert not long, "\n".join(long)


def test_functions_are_short() -> None:
    """Nine of ten have at most thirty lines, and none is a page."""
    lengths = {f"{m.name}:{f.name}": _length(f) for m in modules(*CODE) for f in m.functions()}
    p90 = statistics.quantiles(lengths.values(), n=10)[-1]
    assert p90 <= LINES_PER_FUNCTION_P90
    long = [f"{name}: {length}" for name, length in lengths.items() if length > LINES_PER_FUNCTION]
    assert not long, "\n".join(long)


def test_inheritance_is_flat() -> None:
    """A class of ours has at most one level of classes of ours above it; errors form a tree on purpose."""
    bases: dict[str, list[str]] = {}
    for module in modules(*CODE):
        for kind in module.classes():
            if module.path.name not in ("errors.py", "tree.py"):
                bases[kind.name] = [_name(base) for base in kind.bases]
    wrong = [
        f"{name} -> {base} -> {above}"
        for name, direct in bases.items()
        for base in direct
        for above in bases.get(base, [])
        if above in bases and above not in BASES_NOT_COUNTED
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_and_classes_say_what_they_are_for() -> None:
    """A module's docstring has its rules and limits, a class's its state.

    A function has one where that says more than the signature: units, order, errors, ownership.
    """
    wrong = [module.name for module in modules(*CODE, "tests") if not ast.get_docstring(module.tree)]
    wrong += [
        f"{module.name}:{node.lineno} {node.name}"
        for module in modules(*CODE)
        for node in _public(module)
        if isinstance(node, ast.ClassDef) and not ast.get_docstring(node)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("example", "most"), [("folder_shuffle", 200), ("sqlite_shuffle", 200), ("zlib_transport", 150)]
)
def test_plug_ins_are_short(example: str, most: int) -> None:
    """A service, and a transport, in one file: lines that are code, so no docstrings, comments or empty ones."""
    assert code_lines((ROOT / "examples" / "plugin" / f"{example}.py").read_text()) < most


def test_names_say_what_a_thing_is() -> None:
    """No class or module is named after a pattern instead of its role."""
    wrong = [
        f"{module.name}:{kind.lineno} {kind.name}"
        for module in modules(*CODE)
        for kind in module.classes()
        if any(kind.name.lstrip("_").startswith(word) or kind.name.endswith(word) for word in FORBIDDEN_IN_NAMES)
    ]
    wrong += [m.name for m in modules(*CODE) if m.path.stem in ("util", "utils", "helpers", "common", "misc")]
    assert not wrong, "\n".join(wrong)


def test_every_test_says_what_it_shows() -> None:
    """A failing test's docstring is the first thing one reads; two tests of a file never share a name."""
    wrong = []
    for module in modules("tests", "src/penstock/testing"):
        tests = [node for node in _public(module) if node.name.startswith("test_") and isinstance(node, Function)]
        wrong += [f"{module.name}:{test.lineno} {test.name}" for test in tests if not ast.get_docstring(test)]
        names = [node.name for node in module.tree.body if isinstance(node, Definition)]
        wrong += [f"{module.name} defines {name} twice" for name in set(names) if names.count(name) > 1]
    assert not wrong, "\n".join(wrong)


def test_tests_share_what_lies_in_support() -> None:
    """In the folder of a room there are tests alone; what they share, whoever it is from, has one folder."""
    others = [
        m.name
        for m in modules("tests")
        if m.path.parent.name != "support" and not (m.path.name.startswith("test_") or m.path.name == "conftest.py")
    ]
    assert not others, "\n".join(others)


def test_test_files_have_names_of_their_own() -> None:
    """Pytest imports test files by their bare names."""
    names = [m.path.name for m in modules("tests") if m.path.name not in ("conftest.py", "__init__.py")]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)
