# SPDX-License-Identifier: Apache-2.0
"""Columns as verbs name them: there once, and of a type whose values can be compared.

Collated strings compare by rules that are not here, so whatever compares them is refused by the column's name;
everything else takes them as they are.
"""

from __future__ import annotations

import difflib

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.graph import collation_of


def refuse_collated(field: pa.Field, what: str) -> None:
    """Raise SchemaError for a column that compares by a collation; `what` says what would compare it."""
    collation = collation_of(field)
    if collation is not None:
        raise SchemaError(
            f"{what}: column {field.name!r} has strings of collation {collation}, which Penstock cannot compare: do "
            "this step in Spark, or make a column of plain strings first, for UTF8_LCASE such as"
            f" df.withColumn({field.name!r}, expr('lower(`{field.name}`) COLLATE UTF8_BINARY'))"
        )


def only_column(schema: pa.Schema, name: str, what: str) -> pa.Field:
    """The one column of this name; raises SchemaError where there is none or more than one."""
    found = schema.get_all_field_indices(name)
    if len(found) == 1:
        return schema.field(found[0])
    if found:
        raise SchemaError(
            f"{what}: column {name!r} is there {len(found)} times, and nothing says which is meant: rename one of "
            "them first"
        )
    other_case = [other for other in schema.names if other.lower() == name.lower()]
    close = other_case or difflib.get_close_matches(name, schema.names, 1)
    why = " names are exact:" if other_case else ""
    hint = f";{why} did you mean {close[0]!r}?" if close else ""
    raise SchemaError(
        f"{what}: column {name!r} does not exist; the columns are {', '.join(schema.names) or 'none'}{hint}"
    )
