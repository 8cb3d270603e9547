# SPDX-License-Identifier: Apache-2.0
"""Compares the rows of two forms of a program, in whatever order; doubles may differ in their last digits."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

REL = 1e-9


def difference(mine: pa.Table, theirs: pa.Table) -> str | None:
    """The first difference of two tables as sets of rows, or None; columns go by their names."""
    if sorted(mine.schema.names) != sorted(theirs.schema.names):
        return f"columns {mine.schema.names}, not {theirs.schema.names}"
    theirs = theirs.select(mine.schema.names)
    kinds = [(a.name, a.type, b.type) for a, b in zip(mine.schema, theirs.schema, strict=True) if a.type != b.type]
    if kinds:
        return f"types {kinds}"
    if mine.num_rows != theirs.num_rows:
        return f"{mine.num_rows} rows, not {theirs.num_rows}"
    for number, (one, other) in enumerate(zip(_rows(mine), _rows(theirs), strict=True)):
        if not all(map(_equal, one, other)):
            return f"row {number} is {one}, not {other}"
    return None


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows in the order of all columns, exact ones first: a last digit must not move a row."""
    exact = [name for name in table.schema.names if not pa.types.is_floating(table.schema.field(name).type)]
    rest = [name for name in table.schema.names if name not in exact]
    ordered = table.sort_by([(name, "ascending") for name in exact + rest])
    return list(zip(*(column.to_pylist() for column in ordered.columns), strict=True))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=REL) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)
