# SPDX-License-Identifier: Apache-2.0
"""Short names of a job's stages, as people call them: the table that is read, their functions, the verbs.

A stage's whole name is what `explain` shows, with paths of files and kinds of exchanges. Here a path is its
table's name, a function stands without its verb, an exchange is the verb that asked for it, and what only
fits types is left out. Two stages of one job never have the same short name. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

PARTS = 4
"""A longer name loses the middle."""
_COLUMNS = 32
"""Characters of what stands in a verb's parentheses."""
_FORMATS = ("parquet", "csv", "json", "text", "delta", "iceberg", "orc")
_FILLERS = ("nullable(", "rows of their own", "as ")
_RULES = tuple(
    (re.compile(pattern), put)
    for pattern, put in (
        (r"^map(?:InArrow|InPandas|Partitions)?\((?!<)(\w+)\)$", r"\1"),
        (r"^apply\w*\((?!<)(\w+)\) by (.*)$", r"\1 by \2"),
        (r"^hash\((.*)\)$", r"keyBy(\1)"),
        (r"^(partial )?aggregate of all rows$", r"\1agg of all rows"),
        (r"^partial aggregate by (.*)$", r"partial groupBy(\1)"),
        (r"^aggregate by (.*)$", r"groupBy(\1)"),
        (r"^sort by (.*)$", r"sort(\1)"),
        (r"^sample of (.*)$", r"sample for sort(\1)"),
        (r"^find ranges of (.*)$", r"ranges for sort(\1)"),
    )
)
_PATH = re.compile(r"[\w.:~-]*/[^()]*$")
_BY = re.compile(r" by (.*)$|^groupBy\((.*)\)$")


def titles_of(stages: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """The short name of each stage by its id."""
    found: dict[int, str] = {}
    seen: dict[str, int] = {}
    for stage in stages:
        title = short_name(stage["name"])
        seen[title] = seen.get(title, 0) + 1
        found[stage["id"]] = title if seen[title] == 1 else f"{title} ({seen[title]})"
    return found


def short_name(name: str) -> str:
    """The short form of a stage's name."""
    whole = [_short_part(part) for part in _parts(name) if not part.startswith(_FILLERS)] or [name]
    parts = [part for part, after in zip(whole, [*whole[1:], ""], strict=True) if not _is_said_again(part, after)]
    if len(parts) > PARTS:
        parts = [*parts[: PARTS - 2], "…", parts[-1]]
    return " + ".join(parts)


def _parts(name: str) -> list[str]:
    """The operators of a name; a plus within parentheses is a user's."""
    parts, depth, begin = [], 0, 0
    for place, char in enumerate(name):
        depth += (char == "(") - (char == ")")
        if depth == 0 and name.startswith(" + ", place):
            parts.append(name[begin:place])
            begin = place + 3
    return [*parts, name[begin:]]


def _short_part(part: str) -> str:
    words = part.split(" ")
    more = "more" in words
    names = [_table(word, more=more) if _PATH.match(word) else word for word in words]
    if names != words:
        part = " ".join(names)
        part = re.sub(r" and \d+ more files$", "", part)
        if names[0] in _FORMATS:
            part = re.sub(rf"^{names[0]} (files of )?", "", part)
    for pattern, put in _RULES:
        part = pattern.sub(put, part)
    head, sign, inside = part.partition("(")
    if sign and len(inside) > _COLUMNS:
        part = f"{head}({inside[: _COLUMNS - 1].rstrip(', ')}…)"
    return part


def _table(path: str, *, more: bool) -> str:
    """The name of the table to which a file belongs, or of a folder."""
    steps = [step for step in path.split("/") if step and "=" not in step and not step.endswith(":")]
    if not steps:
        return path
    stem, dot, _ = steps[-1].partition(".")
    if not dot:
        return steps[-1]
    if len(steps) > 1 and (more or stem.startswith("part-") or not stem or stem.isdigit()):
        return steps[-2]
    return stem or steps[-1]


def _is_said_again(part: str, after: str) -> bool:
    """True for an exchange that the verb after it names too: by keys, or of all rows to one task."""
    if part == "toOne":
        return after == "agg of all rows"
    found = _BY.search(after)
    return found is not None and part == f"keyBy({found[1] or found[2]})"
