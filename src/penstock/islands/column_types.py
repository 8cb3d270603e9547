# SPDX-License-Identifier: Apache-2.0
"""Which columns islands have: of types whose rows are the same in the JVM, in Arrow and in a function of the user's.

All others (variants, geometries, user-defined types, intervals, times of day, collated strings) are left to Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.islands.plan_nodes import Attribute

_PLAIN = frozenset(
    (
        "boolean",
        "byte",
        "short",
        "integer",
        "long",
        "float",
        "double",
        "string",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    )
)


def unlike(columns: Sequence[Attribute]) -> str:
    """Why these columns can't be in an island; empty if they can."""
    for column in columns:
        if found := _unlike(column.kind):
            return f"column {column.name!r} has {found}"
    return ""


def twice(columns: Sequence[Attribute]) -> str:
    """Why a function can't be called with these columns: two of them have one name; empty if it can."""
    found = [name for name, count in Counter(column.name for column in columns).items() if count > 1]
    return f"the column {found[0]!r} is there twice" if found else ""


def _unlike(kind: Any) -> str:
    if isinstance(kind, str):
        return "" if kind in _PLAIN or kind.startswith("decimal") else f"the type {kind}"
    name = kind.get("type")
    if name == "array":
        return _unlike(kind["elementType"])
    if name == "map":
        return _unlike(kind["keyType"]) or _unlike(kind["valueType"])
    if name != "struct":
        return f"the type {name}"
    names = [field["name"] for field in kind["fields"]]
    if len(set(names)) < len(names):
        return "a struct with a field that is there twice"
    if not names:
        return "a struct without fields"
    return next((why for field in kind["fields"] if (why := _of_field(field))), "")


def _of_field(field: Any) -> str:
    return "a collated string" if field.get("metadata") else _unlike(field["type"])
