# SPDX-License-Identifier: Apache-2.0
"""The prose of the repository, and the sentences in it that have no actor: for the house tests of pages and code."""

from __future__ import annotations

import ast
import inspect
import re
import tokenize
from collections.abc import Iterator
from io import StringIO

from source import Module

_CLAUSE = r"(?:\A|(?<=[.:] )|(?<=\| ))(?:{words})\b[^?]*?(?:\. |\.?$)"
NOUN_CLAUSE = re.compile(_CLAUSE.format(words="What|Whatever|Who|Whoever|Whether"))
NOUN_CLAUSE_IN_CODE = re.compile(_CLAUSE.format(words="What|Whatever|Who|Whoever|Whether|Where|How"))
"""A docstring has room for one sentence, so there a condition begins with "if" too."""
BEHIND_IN_TIME = re.compile(
    r"\b[Bb]ehind (?:(?:the|a|an|its|each|every|any|this|that|all|two|first|last|next|complete|failed|such) )*"
    r"(?:checkpoints?|commits?|restarts?|kills?|failures?|snapshots?|polls?|tests?|finish|planning|imports|move|layers?"
    r"|moments?|minutes?|seconds?)\b"
)
"""An event comes "after" another one; things stand "behind" each other."""


def paragraphs(text: str) -> list[str]:
    """Prose as one line each: paragraphs, items of lists, cells of tables; no headings and no code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |\|))", text)
    return [re.sub(r"^(?:[-*] |\d+\. )", "", " ".join(block.split())) for block in blocks if block.strip()]


def faults(module: Module) -> list[str]:
    """The sentences of a file's docstrings and comments that begin with a noun clause, or say "behind" of a time."""
    texts = [*_docstrings(module), *_comments(module)]
    return [
        f"{module.name}:{line}: {match.group()[:80]}"
        for line, text in texts
        for paragraph in paragraphs(text)
        for pattern in (NOUN_CLAUSE_IN_CODE, BEHIND_IN_TIME)
        for match in pattern.finditer(paragraph)
    ]


def _docstrings(module: Module) -> Iterator[tuple[int, str]]:
    """The strings that stand alone, those of attributes too, each with its line."""
    for node in module.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, inspect.cleandoc(node.value.value)


def _comments(module: Module) -> Iterator[tuple[int, str]]:
    """The comments, those in neighbouring lines as one, each with its first line."""
    found: list[tuple[int, str]] = []
    last = (-1, -1)
    for token in tokenize.generate_tokens(StringIO(module.text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        text = token.string.lstrip("#: ")
        goes_on = last == (line - 1, column) and not token.line[:column].strip()
        if goes_on:
            found[-1] = (found[-1][0], f"{found[-1][1]} {text}")
        else:
            found.append((line, text))
        last = (line, column)
    yield from found
