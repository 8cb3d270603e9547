# SPDX-License-Identifier: Apache-2.0
"""Which columns may hold nulls, where schemas meet.

A field that is not nullable is a promise about all rows: Spark's optimizer answers `id IS NULL` by it without a look
at them. So where streams of the same columns meet, a field may be null if it may be so in one of them, and what is
read from files may always be null. Both hold at any depth: fields of structs, elements of lists, values of maps. The
keys of a map are never null, nor are the parts of a variant or geometry, of which Spark makes one value.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as pt

from penstock.graph.spark_types import is_one_value, same_columns

_Kind = Callable[[pa.DataType], bool]
_LISTS: tuple[tuple[_Kind, Callable[[pa.Field], pa.DataType]], ...] = (
    (pt.is_list, pa.list_),
    (pt.is_large_list, pa.large_list),
    (pt.is_list_view, pa.list_view),
    (pt.is_large_list_view, pa.large_list_view),
)


def as_nullable(schema: pa.Schema) -> pa.Schema:
    """The same columns, all of which may be null, also inside other types."""
    return pa.schema([_nullable(field) for field in schema])


def nullable_type(kind: pa.DataType) -> pa.DataType:
    """The type with nulls allowed everywhere inside it."""
    if pt.is_map(kind):
        key = kind.key_field.with_type(nullable_type(kind.key_type))
        return with_fields(kind, [key, _nullable(kind.item_field)])
    return with_fields(kind, [_nullable(field) for field in fields_of(kind)])


def merged_schema(one: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """The schema that rows of both fit; None where names or types differ by more than what may be null."""
    if not same_columns(as_nullable(one), as_nullable(other)):
        return None
    return pa.schema([_merged(mine, theirs) for mine, theirs in zip(one, other, strict=True)])


def merged_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that values of both fit, which differ at most by what may be null."""
    if one.equals(other):
        return one
    pairs = zip(fields_of(one), fields_of(other), strict=True)
    return with_fields(one, [_merged(mine, theirs) for mine, theirs in pairs])


def same_but_nulls(one: pa.DataType, other: pa.DataType) -> bool:
    """Tell whether two types differ at most in their nullability."""
    return bool(one.equals(other) or nullable_type(one).equals(nullable_type(other)))


def with_nulls_of(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The columns of one schema, which may be null where those of another may; both are nested in the same way."""
    return pa.schema([_like(mine, theirs) for mine, theirs in zip(one, other, strict=True)])


def newly_nullable(one: pa.Schema, wider: pa.Schema) -> list[str]:
    """The columns that may be null, or hold nulls, only in the wider of two schemas of the same columns."""
    pairs = zip(one, wider, strict=True)
    return [mine.name for mine, wide in pairs if mine.nullable != wide.nullable or not mine.type.equals(wide.type)]


def _nullable(field: pa.Field) -> pa.Field:
    kind = field.type if is_one_value(field.type) else nullable_type(field.type)
    return field.with_nullable(True).with_type(kind)


def _merged(one: pa.Field, other: pa.Field) -> pa.Field:
    return one.with_nullable(one.nullable or other.nullable).with_type(merged_type(one.type, other.type))


def _like(one: pa.Field, other: pa.Field) -> pa.Field:
    pairs = zip(fields_of(one.type), fields_of(other.type), strict=True)
    fields = [_like(mine, theirs) for mine, theirs in pairs]
    return one.with_nullable(other.nullable).with_type(with_fields(one.type, fields))


def fields_of(kind: pa.DataType) -> list[pa.Field]:
    """The fields inside a struct, map or list; none of any other type."""
    if pt.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind) or isinstance(kind, pa.BaseExtensionType):
        return []
    return [kind.field(place) for place in range(kind.num_fields)]


def with_fields(kind: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    """The type over other fields; itself where it is none of structs, maps and lists."""
    if pt.is_struct(kind):
        return pa.struct(fields)
    if pt.is_map(kind):
        return pa.map_(*fields, keys_sorted=kind.keys_sorted)
    if pt.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    for is_kind, make in _LISTS:
        if is_kind(kind):
            return make(fields[0])
    return kind
