# SPDX-License-Identifier: Apache-2.0
"""Docstrings and comments: sentences with an actor, as on the pages."""

from __future__ import annotations

import ast

import pytest

from prose import faults
from source import ROOT, Module, modules


def _file(text: str) -> Module:
    return Module(ROOT / "tests" / "made_up.py", text, ast.parse(text))


@pytest.mark.parametrize("root", ["src", "tests", "tools", "examples"])
def test_sentences_of_code_have_an_actor(root: str) -> None:
    """A docstring names the thing, or begins with a verb; none begins with a clause that stands for a noun."""
    found = [fault for module in modules(root) for fault in faults(module)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        '"""What is kept of a job."""',
        '"""Rules.\n\n- Files are swept. Whoever comes later finds none.\n"""',
        'def f():\n    """Whether it is there."""',
        'SECONDS = 1\n"""How long it waits."""',
        "x = 1  # Who reads it knows",
        "# A first line, and a second. Where\n# nothing is left it ends.\n",
        '"""Nothing is begun behind the last checkpoint."""',
    ],
)
def test_a_sentence_without_an_actor_is_found(text: str) -> None:
    """In modules, in functions, after attributes, in lists, and in comments over several lines."""
    assert len(faults(_file(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        '"""The rows that are kept. What else?"""',
        '"""Tell whether it is there, and how long."""',
        '"""Rows behind a barrier wait."""',
        "x = 'What it is'  # as it stands there\n",
        "x = 1  # It is what it is\ny = 2  # where it is is\n",
    ],
)
def test_a_sentence_with_an_actor_is_none(text: str) -> None:
    """Questions, clauses within a sentence, places, and strings that are no docstrings pass."""
    assert faults(_file(text)) == []
