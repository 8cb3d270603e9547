# SPDX-License-Identifier: Apache-2.0
"""Pages name code as `file:function`, and what they name is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from source import PACKAGE, ROOT, Function

PAGES = sorted((ROOT / "docs").rglob("*.md"))
NAMED = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)(?::([A-Za-z_][\w.]*))?`")


@cache
def _names(path: Path) -> frozenset[str]:
    """The names that a file defines at its top and in its classes, as `name` and `Class.name`; assigned names too."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        found |= _defined(node)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for member in node.body for name in _defined(member)}
    return frozenset(found)


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | Function):
        return {node.name}
    if isinstance(node, ast.AnnAssign):
        return {ast.unparse(node.target)}
    return {ast.unparse(target) for target in node.targets} if isinstance(node, ast.Assign) else set()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_files_and_functions_exist(page: Path) -> None:
    """A path is below `src/penstock` or below the repository; a name after a colon is defined there."""
    wrong = []
    for path, name in NAMED.findall(page.read_text()):
        file = next((base / path for base in (PACKAGE, ROOT) if (base / path).is_file()), None)
        if file is None:
            wrong.append(f"there is no {path}")
        elif name and name not in _names(file):
            wrong.append(f"{path} has no {name}")
    assert not wrong, "\n".join(wrong)


LIVES = {
    "batch": (
        50,
        {"api", "spark", "job", "attachment", "services", "task", "operators", "record", "buffer", "link"}
        | {"environment", "partition", "network"},
    ),
    "barrier": (
        60,
        {"checkpoint", "job", "link", "shuffle", "environment", "partition", "network", "services", "stream"},
    ),
    "failure": (
        60,
        {"task", "spark", "errors", "link", "environment", "job", "graph", "stream", "checkpoint", "services"},
    ),
}


@pytest.mark.parametrize("life", LIVES)
def test_the_life_of_a_thing_names_functions_of_every_room_on_its_way(life: str) -> None:
    """The page would show nothing if its names were of another form than the test looks for."""
    least, rooms = LIVES[life]
    found = NAMED.findall((ROOT / "docs" / f"life-of-a-{life}.md").read_text())
    assert len({name for name in found if name[1]}) >= least
    assert {path.partition("/")[0] for path, _ in found} >= rooms


def test_a_name_that_is_not_there_is_noticed() -> None:
    """Methods, functions and constants are found under their names, and nothing else is."""
    names = _names(PACKAGE / "task" / "runner.py")
    assert {"run_subtask", "SubtaskPlan", "SubtaskPlan.place", "EnvironmentOf"} <= names
    assert "SubtaskPlan.nothing" not in names
