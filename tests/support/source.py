# SPDX-License-Identifier: Apache-2.0
"""The sight of the house tests: the repository's files and their syntax trees, read once."""

from __future__ import annotations

import ast
import gc
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "penstock"
CODE = ("src/penstock", "tools", "examples/wordcount")
"""The folders of all that is no test and no small example."""
GENERATED = {
    ".venv",
    ".git",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    "__pycache__",
    "build",
    "dist",
}
TEXT = {".py", ".md", ".toml", ".txt", ".cfg", ".ini", ".yml", ".yaml", ".sh", ".json", ""}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def code_lines(text: str) -> int:
    """Lines that are code: no docstrings, comments or empty ones."""
    lines = {number for number, line in enumerate(text.splitlines(), 1) if line.strip() and line.lstrip()[0] != "#"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


@dataclass(frozen=True)
class Module:
    """One Python file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The name for failures."""
        return str(self.path.relative_to(ROOT))

    @property
    def dotted(self) -> str:
        """The name by which it is imported."""
        top = next(ROOT / root for root in ("src", "tools", "examples") if self.path.is_relative_to(ROOT / root))
        parts = self.path.relative_to(top).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def room(self) -> str:
        """The sub-package of penstock it is in; its own name where it lies on top."""
        parts = self.path.relative_to(PACKAGE).parts
        return parts[0] if len(parts) > 1 else self.path.stem

    @property
    def lines(self) -> int:
        """Its length."""
        return self.text.count("\n")

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """The whole tree, walked once for all tests."""
        return tuple(ast.walk(self.tree))

    def functions(self) -> list[Function]:
        """All functions and methods, nested ones too."""
        return [node for node in self.nodes if isinstance(node, Function)]

    def classes(self) -> list[ast.ClassDef]:
        """All classes."""
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    def imports(self) -> list[tuple[str, int]]:
        """Every module or name imported, with its line, wherever in the file."""
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [(alias.name, node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
        return found


@cache
def modules(*roots: str) -> tuple[Module, ...]:
    """The Python files below these folders of the repository."""
    paths = sorted(path for root in roots for path in (ROOT / root).rglob("*.py") if "__pycache__" not in path.parts)
    gc.disable()  # looking for garbage among millions of new nodes takes three times as long as making them
    try:
        return tuple(_module(path) for path in paths)
    finally:
        gc.enable()
        gc.freeze()


@cache
def _module(path: Path) -> Module:
    text = path.read_text()
    return Module(path, text, ast.parse(text))


@cache
def text_files() -> tuple[Path, ...]:
    """Every text file of the repository that somebody wrote."""
    return tuple(
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file()
        and path.suffix in TEXT
        and not GENERATED & set(path.relative_to(ROOT).parts)
        and not any(part.endswith(".egg-info") for part in path.parts)
    )
