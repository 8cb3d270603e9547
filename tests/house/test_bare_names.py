# SPDX-License-Identifier: Apache-2.0
"""Names of code that stand on the pages without a path are there too.

A span of code counts where it looks like a name of ours: `CamelCase`, `snake_case`, `UPPER_CASE`, `module.function`,
`Class.method`, `file.py`. Each name must be an identifier somewhere in the code, or in a block of code of its page.
Of a dotted one the second part must be defined in the module or class that the first one names. So a page does not
outlive the names that it speaks of. The changelog speaks of the past, and is left out.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyarrow.compute
import pyspark.sql.functions
import pyspark.sql.streaming
import pytest

import penstock
from source import ROOT, Function, modules

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOREIGN = {
    "DataSourceV2ScanRelation",  # Spark's, in Scala
    "PythonInputPartition",
    "PythonPartitionReaderFactory",
    "DataStream",  # Flink's
    "TRY_CAST",  # SQL
}
IN_PROSE = {"query": "StreamingQuery", "stream": "Stream"}
"""Objects of users, by the names that the pages give them."""
OTHERS = {"event", "kafka", "pyspark", "pa", "pc", "spark", "transactional"}
"""Names of other libraries, and what they give."""

SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\(\))?")
CODE = re.compile(r"_?[A-Z][a-z0-9]+[A-Z]\w*|_?[a-z0-9]+(?:_[a-z0-9]+)+|_?[A-Z]+(?:_[A-Z0-9]+)+")


@cache
def _identifiers() -> frozenset[str]:
    """All that code, tests and examples call something by; texts that are one name too, such as those of options."""
    files = [each for each in modules("src", "tools", "tests", "examples") if each.path != Path(__file__)]
    found = {name for each in files for name in (each.path.name, each.path.stem, each.path.parent.name)}
    found.update(name for each in files for node in each.nodes for name in _names_in(node))
    return frozenset(found)


def _names_in(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
            yield name
        case ast.keyword(arg=str(name)):
            yield name
        case ast.Constant(value=str(name)) if name.isidentifier():
            yield name


@cache
def _owners() -> dict[str, frozenset[str]]:
    """The names that modules, rooms and classes of the package define; two of one name are one here."""
    found: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for each in modules("src", "tools"):
        is_room = each.path.stem == "__init__"
        file = each.path.parent if is_room else each.path
        found.setdefault(file.stem, set()).update(name for node in each.tree.body for name in _defined(node))
        found.setdefault(file.parent.name, set()).add(file.stem)
        for node in each.classes():
            found.setdefault(node.name, set()).update(_members(node))
            bases.setdefault(node.name, set()).update(ast.unparse(base).partition("[")[0] for base in node.bases)
    for name in bases:
        for base in _all_bases(name, bases):
            found[name] |= found.get(base, set())
    return {name: frozenset(defined) for name, defined in found.items()}


def _all_bases(name: str, bases: dict[str, set[str]]) -> Iterator[str]:
    for base in bases.get(name, ()):
        yield base
        yield from _all_bases(base, bases)


def _defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from map(ast.unparse, targets)
        case ast.AnnAssign(target=target):
            yield ast.unparse(target)
        case ast.ImportFrom(names=names):
            yield from (each.asname or each.name for each in names)


def _members(owner: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(owner):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case _ if isinstance(node, Function):
                yield node.name


def _is_foreign(name: str) -> bool:
    libraries = (pyspark.sql.DataFrame, pyspark.sql.functions, pyspark.sql.streaming, pyarrow.compute)
    return name in FOREIGN or any(hasattr(library, name) for library in libraries)


def _unknown(span: str, on_page: frozenset[str]) -> str:
    """Why a span of code names nothing, or an empty string."""
    parts = span.removesuffix("()").split(".")
    is_whole = parts[0] == "penstock"
    if parts[0] in OTHERS or _is_foreign(parts[-1]):
        return ""
    if len(parts) == 1 and not CODE.fullmatch(parts[0]):
        return ""  # a plain word
    if parts[-1] == "py":
        return "" if ".".join(parts[-2:]) in _identifiers() else f"there is no file {span}"
    for part in parts:
        if part not in _identifiers() and part not in on_page:
            return f"nothing is called {part}"
    for owner, name in itertools.pairwise(parts):
        defined = _owners().get(owner if is_whole else IN_PROSE.get(owner, owner))
        is_public = owner == "penstock" and hasattr(penstock, name)
        if not (defined is None or name in defined or is_public):
            return f"{owner} has no {name}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_on_a_page_are_names_of_code(page: Path) -> None:
    """A name that the code has no more is to be corrected on its page; one of another system is listed above."""
    text = page.read_text()
    on_page = frozenset(word for block in BLOCK.findall(text) for word in re.findall(r"\w+", block))
    spans = {span for span in SPAN.findall(BLOCK.sub("", text)) if NAME.fullmatch(span)}
    wrong = {span: why for span in sorted(spans) if (why := _unknown(span, on_page))}
    assert not wrong, "\n".join(f"`{span}`: {why}" for span, why in wrong.items())


@pytest.mark.parametrize(
    ("span", "why"),
    [
        ("RestartSets.after", ""),
        ("failure.rank_of", ""),
        ("query.lastProgress", ""),
        ("regexp_replace", ""),
        ("RestartSets.before", "RestartSets has no before"),
        ("failure.rank_off", "nothing is called rank_off"),
        ("no_such_function", "nothing is called no_such_function"),
        ("NoSuchClass", "nothing is called NoSuchClass"),
        ("word", ""),
    ],
)
def test_names_that_are_not_there_are_noticed(span: str, why: str) -> None:
    """Of each form one that is there and one that is not; plain words are no names."""
    assert _unknown(span, frozenset()) == why
