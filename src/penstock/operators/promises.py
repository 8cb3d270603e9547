# SPDX-License-Identifier: Apache-2.0
"""Nulls where a schema promises none: NOT NULL columns, and such fields, elements and values inside others.

Only types that promise something are looked at, and where their arrays know that they hold no null, no values are.
Values under a null (a field of a struct that is null) do not count, and break no promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that some values break: which one, by its path, and how many."""

    path: str
    nulls: int


def promises(field: pa.Field) -> bool:
    """Tell whether a field says of itself or of anything inside that it is never null."""
    return not field.nullable or any(promises(inner) for _, inner in _inner(field.type))


def broken(column: pa.Array, field: pa.Field) -> Broken | None:
    """The first promise of a field that a column of its type breaks."""
    return next(_broken(column, field, str(field.name)), None)


def _broken(column: pa.Array, field: pa.Field, path: str) -> Iterator[Broken]:
    if not field.nullable and column.null_count:
        yield Broken(path, column.null_count)
    kept = [(place, name, inner) for place, (name, inner) in enumerate(_inner(field.type)) if promises(inner)]
    if not kept:
        return
    parts = _parts(column)
    for place, name, inner in kept:
        yield from _broken(parts[place], inner, f"{path}.{name}")


def _inner(kind: pa.DataType) -> list[tuple[str, pa.Field]]:
    """The fields that a nested type holds, as Spark's paths name them."""
    if pt.is_struct(kind):
        return [(inner.name, inner) for inner in kind]
    if pt.is_map(kind):
        return [("key", kind.key_field), ("value", kind.item_field)]
    if hasattr(kind, "value_field"):  # lists of any layout
        return [("element", kind.value_field)]
    return []


def _parts(column: pa.Array) -> list[pa.Array]:
    """The values inside, without those that lie under a null of the column or outside of it."""
    if column.null_count:
        column = column.drop_null()
    if pt.is_struct(column.type):
        return [column.field(place) for place in range(column.type.num_fields)]
    if pt.is_map(column.type):
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return [part.slice(first, last - first) for part in (column.keys, column.items)]
    return [column.flatten()]
