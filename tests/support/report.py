# SPDX-License-Identifier: Apache-2.0
"""The end of `make check`: the places where the code is widest.

A look, not a limit; the limits are tests of this folder.
"""

from __future__ import annotations

from collections.abc import Iterable

from coupling import class_figures, parameter_counts

SHOWN = 5


def report() -> str:
    """Three short lists, the largest first."""
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
    return "\n".join(f"{title}: {_most(pairs)}" for title, pairs in lists.items())


def _most(pairs: Iterable[tuple[int, str]]) -> str:
    chosen = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:SHOWN]
    return ", ".join(f"{name.removeprefix('src/penstock/')} {count}" for count, name in chosen)


if __name__ == "__main__":
    print(report())
