# SPDX-License-Identifier: Apache-2.0
"""Column names that Spark has and that its own `mapInArrow` and readers cannot look up.

A DataFrame may have a column `a.b`, one with a backtick, two of the same name, or two that differ in case only. Spark
looks columns up by name on the way into a Python function and into a reader, and there such names mean something else
or nothing at all. So where there is one, all columns go by their places, and get their names back on the other side.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.graph import of_one_name

_PLAIN = re.compile(r"[A-Za-z_]\w*")


def place_names(names: Sequence[str]) -> list[str] | None:
    """A name for each place, where these names cannot be looked up; None where they can."""
    is_plain = all(_PLAIN.fullmatch(name) for name in names)
    if is_plain and not of_one_name(names):
        return None
    return [f"c{number}" for number in range(len(names))]
