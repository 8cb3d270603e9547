# SPDX-License-Identifier: Apache-2.0
"""A stage's profile as a flame graph: the tree of its functions with their seconds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SHOWN = 0.002
"""A function is left out that took a smaller part of the stage's."""


def flame(stacks: Mapping[str, float]) -> list[Any]:
    """`[name, seconds, children]`, the children likewise and the largest first; the root is all functions.

    `stacks` are folded ones: names from the outermost on, joined by semicolons, with their seconds.
    """
    total = sum(stacks.values())
    return [
        "all functions",
        round(total, 3),
        _under({tuple(each.split(";")): s for each, s in stacks.items()}, total),
    ]


def _under(stacks: Mapping[tuple[str, ...], float], total: float) -> list[Any]:
    parts: dict[str, dict[tuple[str, ...], float]] = {}
    for (name, *rest), seconds in stacks.items():
        parts.setdefault(name, {})[tuple(rest)] = seconds
    took = {name: sum(inner.values()) for name, inner in parts.items()}
    return [
        [name, round(took[name], 3), _under({stack: s for stack, s in parts[name].items() if stack}, total)]
        for name in sorted(took, key=lambda name: -took[name])
        if took[name] >= _SHOWN * total
    ]
