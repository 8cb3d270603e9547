# SPDX-License-Identifier: Apache-2.0
"""Spark's own name of a column's type, where the Arrow type does not tell it.

Some of Spark's types share one Arrow type: strings of any collation, `interval hour` and `interval day to second`,
`time(3)` and `time(6)`. Others have none: user-defined types such as vectors, variants and geometries are structs.
The metadata of a field in a plan's schema then has Spark's name, also of fields inside lists, maps and structs, and
a DataFrame made of the stream has that type again. Rows know nothing of it, and Arrow compares schemas without it.
"""

from __future__ import annotations

import json

import pyarrow as pa

SPARK_TYPE = b"SPARK::type"
"""The key of the metadata."""

_VALUES = ("variant", "geometry", "geography")
_MARKS = {name.encode() for name in _VALUES}
SESSIONS = "spark.sessionWindow"
"""Spark's name of the metadata of a column of sessions, under whatever name and after whatever verbs."""
_SESSIONS = {SESSIONS.encode(): b"true"}

_COLLATED = "string collate "
_BINARY = "UTF8_BINARY"


def spark_type(field: pa.Field) -> str | None:
    """Spark's name of a field's type, where the Arrow type does not tell it."""
    found = (field.metadata or {}).get(SPARK_TYPE)
    return None if found is None else str(found.decode())


def with_spark_type(field: pa.Field, name: str | None) -> pa.Field:
    """The field with Spark's name of its type; unchanged without one."""
    return field if name is None else field.with_metadata({**(field.metadata or {}), SPARK_TYPE: name.encode()})


def own_types(schema: pa.Schema) -> list[str]:
    """The columns with types that only Spark has, or that have such a type inside: user-defined ones, variants."""
    return [field.name for field in schema if _is_own(field)]


def _is_own(field: pa.Field) -> bool:
    name = spark_type(field) or ""
    return name.startswith(("{", *_VALUES)) or any(map(_is_own, _children(field.type)))


def is_one_value(kind: pa.DataType) -> bool:
    """Tell whether a struct is a variant or a geometry, by the marks that PySpark puts on its fields."""
    return isinstance(kind, pa.StructType) and any(_MARKS.intersection(field.metadata or ()) for field in kind)


def holds_one_value(kind: pa.DataType) -> bool:
    """Tell whether a type is a variant or a geometry, or has one inside."""
    return is_one_value(kind) or any(holds_one_value(field.type) for field in _children(kind))


def has_sessions(field: pa.Field) -> bool:
    """Tell whether the windows of a column are sessions: those that touch are one where they are grouped again."""
    return _SESSIONS.items() <= (field.metadata or {}).items()


def with_sessions(field: pa.Field, *, are_sessions: bool = True) -> pa.Field:
    """The field as a column of sessions; unchanged if they are none."""
    return field.with_metadata({**(field.metadata or {}), **_SESSIONS}) if are_sessions else field


def type_text(value: object) -> str:
    """The name of a type whose form in JSON is this: a word, or all of it, as user-defined types have it."""
    return value if isinstance(value, str) else json.dumps(value)


def type_json(name: str) -> str:
    """The JSON of a type with this name."""
    return name if name.startswith("{") else json.dumps(name)


def shown_type(field: pa.Field) -> str:
    """A field's type for people: Spark's name where there is one, of a user-defined type its class."""
    name = spark_type(field) or str(field.type)
    if not name.startswith("{"):
        return name
    found = json.loads(name)
    return str(found.get("pyClass") or found.get("class")).rpartition(".")[2]


def collated(collation: str) -> str | None:
    """Spark's name of strings of this collation; None for the one that compares bytes."""
    return None if collation.upper() == _BINARY else f"{_COLLATED}{collation.upper()}"


def collation_of(field: pa.Field) -> str | None:
    """The collation of a field's strings, or of those inside it; None where they compare by their bytes."""
    own = spark_type(field)
    if own is not None and own.startswith(_COLLATED):
        return own.removeprefix(_COLLATED)
    return next(filter(None, map(collation_of, _children(field.type))), None)


def same_columns(one: pa.Schema, other: pa.Schema) -> bool:
    """Tell whether two schemas have the same names and types, Spark's names of types included."""
    return bool(one.names == other.names and one.types == other.types) and _names(list(one)) == _names(list(other))


def _names(fields: list[pa.Field]) -> list[object]:
    return [(spark_type(field), _names(_children(field.type))) for field in fields]


def _children(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(index) for index in range(kind.num_fields)]
