# SPDX-License-Identifier: Apache-2.0
"""A program: its rows, its two forms, and how long each form is.

Rules: both forms read the same files and give the same rows, in any order; functions that both use count for neither.
A form's lines are those of its functions without docstrings, comments and empty lines.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Program:
    """One program; `write(folder, rows)` makes its files.

    `pyspark` and `penstock` are the functions of each form. The first one is called with the session and the folder,
    and gives what has `toArrow()`. `against` says why the docs advise against Penstock here, or is empty.
    """

    name: str
    meaning: str
    rows: int
    write: Callable[[Path, int], None]
    pyspark: tuple[Callable[..., Any], ...]
    penstock: tuple[Callable[..., Any], ...]
    against: str = ""


def form_lines(functions: tuple[Callable[..., Any], ...]) -> int:
    """The lines of code of these functions."""
    return sum(_lines(function) for function in functions)


def _lines(function: Callable[..., Any]) -> int:
    text = textwrap.dedent(inspect.getsource(function))
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in lines if number not in prose and line.strip() and line.strip()[0] != "#")
