# SPDX-License-Identifier: Apache-2.0
"""The end of `make check`: how much code there is, and the places where it is widest.

A look, not a limit; the limits are tests of this folder.
"""

from __future__ import annotations

from collections.abc import Iterable

from coupling import class_figures, parameter_counts
from source import code_lines, modules

SHOWN = 5


def report() -> str:
    """The size of source, tools and tests; then three short lists, the largest first."""
    classes = class_figures()
    lists = {
        "classes with the most attributes": ((figures.attributes, figures.name) for figures in classes),
        "objects taken by most others (values not counted)": (
            (len(figures.holders), f"{figures.name} ({figures.public} public members)")
            for figures in classes
            if not figures.is_value
        ),
        "functions with the most arguments": parameter_counts(),
    }
    widest = [f"{title}: {_most(pairs)}" for title, pairs in lists.items()]
    return "\n".join([_sizes(), *widest])


def _sizes() -> str:
    sizes = []
    for root in ("src", "tools", "tests"):
        files = list(modules(root))
        sizes.append(f"{root} {sum(code_lines(module.text) for module in files)} in {len(files)} modules")
    return f"lines of code, without empty lines, comments and docstrings: {', '.join(sizes)}"


def _most(pairs: Iterable[tuple[int, str]]) -> str:
    chosen = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:SHOWN]
    return ", ".join(f"{name.removeprefix('src/penstock/')} {count}" for count, name in chosen)


if __name__ == "__main__":
    print(report())
