# SPDX-License-Identifier: Apache-2.0
"""Several streams' rows as one stream: branches side by side, without an exchange.

Where types differ Spark's analyser says what both become, and how: it widens numbers, makes days instants, reads
texts as what they meet, also inside arrays, maps and structs. Without a session only what may be null may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.api.expressions import Computed, ExpressionReader, meant, projected
from penstock.api.lineage import OperatorStep, Step
from penstock.api.reading import is_case_sensitive
from penstock.errors import PlanError, SchemaError
from penstock.graph import fields_of, is_one_value, merged_schema, newly_nullable, shown_type, with_fields
from penstock.operators.expressions import Call, Constant
from penstock.operators.layouts import places
from penstock.operators.verbs import Project, Widen


def united(sides: Sequence[tuple[Step, ...]], session: Any) -> tuple[Step, ...]:
    """All branches, with the nulls that any of them may have, and the types that Spark gives them.

    Raises SchemaError where names differ, or types that Spark brings to no common one; PlanError where a branch
    occurs twice.
    """
    given = [branch for side in sides for branch in side]
    if len({id(branch) for branch in given}) != len(given):
        raise PlanError(
            "a union whose branches are the same stream is not possible: its one stage would have to feed "
            "both sides; read the source twice, or write the stream out first with toDF()"
        )
    branches, schema = list(sides[0]), sides[0][0].schema
    known: dict[tuple[bytes, ...], _Meeting] = {}  # of very many streams few differ
    for side in sides[1:]:
        pair = schema, side[0].schema
        # To `==` schemas are the same whose metadata differ, which say Spark's types.
        key = tuple(each.serialize().to_pybytes() for each in pair)
        meeting = known.get(key) or known.setdefault(key, _met(*pair, session))
        schema, mine, theirs = meeting
        branches = [*_cast(branches, mine), *_cast(side, theirs)] if mine else branches + list(_cast(side, theirs))
    return tuple(_widened(branch, schema) for branch in branches)


_Meeting = tuple[pa.Schema, Project | None, Project | None]
"""The schema of two streams in one, and what casts the columns of each."""


def _met(one: pa.Schema, other: pa.Schema, session: Any) -> _Meeting:
    found = merged_schema(one, other)
    if found is not None:
        return found, None, None
    if one.names != other.names or session is None:
        raise _refusal(one, other)
    from penstock.spark.expressions import met

    try:
        sides = [_computed(*pair, session) for pair in zip((one, other), met(session, (one, other)), strict=True)]
    except SchemaError as error:
        raise _refusal(one, other, str(error).removeprefix("union: ")) from error
    mine, theirs = (side.schema for side in sides)
    found = merged_schema(mine, pa.schema(list(map(_named_as, mine, theirs))))  # by places, inside structs too
    if found is None:
        raise _refusal(one, other)
    one_cast, other_cast = (
        None if side.schema.equals(own, check_metadata=True) else side
        for side, own in zip(sides, (one, other), strict=True)
    )
    return found, one_cast, other_cast


def _named_as(mine: pa.Field, theirs: pa.Field) -> pa.Field:
    """The other's field with the names of ours, at any depth, where both are nested alike."""
    one, other = fields_of(mine.type), fields_of(theirs.type)
    inner = list(map(_named_as, one, other)) if len(one) == len(other) else other
    return theirs.with_name(mine.name).with_type(with_fields(theirs.type, inner))


def _computed(schema: pa.Schema, columns: Sequence[Any], session: Any) -> Project:
    reading = ExpressionReader(schema, session, "union")
    return projected(
        [reading.checked(Computed(each.field, each.expression), each.field.name) for each in columns], "union"
    )


def _cast(branches: Sequence[Step], cast: Project | None) -> Sequence[Step]:
    return branches if cast is None else [OperatorStep(branch, cast, cast.schema) for branch in branches]


def _widened(branch: Step, schema: pa.Schema) -> Step:
    if branch.schema.equals(schema):
        return branch
    names = newly_nullable(branch.schema, schema)
    return OperatorStep(branch, Widen(schema, tuple(names)), schema)


def by_name(left: pa.Schema, right: pa.Schema, allow_missing: bool, session: Any) -> tuple[Project, Project]:
    """The projections that bring two streams to the left's columns, then those that only the right has.

    A column that one side lacks is null there if `allow_missing`, and refused otherwise. The left says how names are
    written. So it is with fields of structs, also in arrays; those in maps stay at their places, as in Spark.
    """
    found = [(name, meant(left, name, session)) for name in right.names]
    theirs = [name if ours in right.names else ours for name, ours in found]
    lacking = [name for name in left.names if name not in theirs]
    extra = [name for name in theirs if name not in left.names]
    if (lacking or extra) and not allow_missing:
        raise _lacking(lacking, extra)
    names = _Names(is_case_sensitive(session), allow_missing)
    mine, wanted = dict(zip(left.names, left, strict=True)), dict(zip(theirs, right, strict=True))
    for name in left.names:
        if name in wanted:
            mine[name], wanted[name] = names.together(mine[name], wanted[name], name)
    fields = [*left, *(right.field(name) for name in extra)]
    return _side(fields, left, list(left.names), mine, names), _side(fields, right, theirs, wanted, names)


@dataclass(frozen=True, slots=True)
class _Names:
    """How the fields of structs are found."""

    is_case_sensitive: bool
    allow_missing: bool

    def together(self, mine: pa.Field, theirs: pa.Field, path: str) -> tuple[pa.Field, pa.Field]:
        """Both fields with the same fields in their structs, in one order, each with its own types."""
        one, other = mine.type, theirs.type
        if is_one_value(one) or is_one_value(other):
            return mine, theirs
        if pt.is_list(one) and pt.is_list(other):
            pairs = [self.together(one.value_field, other.value_field, f"{path}.element")]
        elif pt.is_struct(one) and pt.is_struct(other):
            pairs = self._fields(list(one), list(other), path)
        else:
            return mine, theirs
        return _of(mine, [pair[0] for pair in pairs]), _of(theirs, [pair[1] for pair in pairs])

    def _fields(self, mine: list[pa.Field], theirs: list[pa.Field], path: str) -> list[tuple[pa.Field, pa.Field]]:
        names, wanted = ([field.name for field in each] for each in (theirs, mine))
        found = places(names, wanted, is_case_sensitive=self.is_case_sensitive)
        extra = [field.with_nullable(True) for place, field in enumerate(theirs) if place not in found]
        lacking = [field.name for field, place in zip(mine, found, strict=True) if place < 0]
        if (lacking or extra) and not self.allow_missing:
            raise _lacking(lacking, [field.name for field in extra], f" in column {path!r}")
        pairs = [
            (field, field.with_nullable(True))
            if place < 0
            else self.together(field, theirs[place].with_name(field.name), f"{path}.{field.name}")
            for field, place in zip(mine, found, strict=True)
        ]
        return [*pairs, *((field, field) for field in extra)]


def _of(field: pa.Field, inner: list[pa.Field]) -> pa.Field:
    """The field with these in it; they may be null, as in Spark, where a struct is made anew that may be."""
    if pt.is_list(field.type):
        return field.with_type(pa.list_(*inner))
    is_same = [each.name for each in inner] == [each.name for each in field.type]
    return field.with_type(
        pa.struct(inner if is_same or not field.nullable else [f.with_nullable(True) for f in inner])
    )


def _lacking(mine: list[str], theirs: list[str], where: str = "") -> SchemaError:
    return SchemaError(
        f"unionByName: {_listed(mine, 'the other stream')}{'; ' if mine and theirs else ''}"
        f"{_listed(theirs, 'this stream')}{where}: with allowMissingColumns=True they are null there"
    )


def _listed(names: list[str], where: str) -> str:
    return f"{where} has no {', '.join(map(repr, names))}" if names else ""


def _side(
    fields: list[pa.Field], schema: pa.Schema, names: list[str], wanted: dict[str, pa.Field], by: _Names
) -> Project:
    """One side's columns, called `names`, in the order of all fields, and with the wanted types."""
    reading = ExpressionReader(schema, None, "unionByName")
    columns = []
    for field in fields:
        if field.name in names:
            own = reading.column(schema.names[names.index(field.name)])
            kind, expression = wanted[field.name].type, own.expression
            if not kind.equals(own.field.type):
                case = ("caseSensitive", by.is_case_sensitive)
                expression = Call("FieldsByName", kind, (expression,), (case,))
            columns.append(Computed(own.field.with_name(field.name).with_type(kind), expression))
        else:
            columns.append(_nothing(field.with_nullable(True)))
    return projected(columns, "unionByName")


def _nothing(field: pa.Field) -> Computed:
    return Computed(field, Constant(pa.nulls(1, field.type)))


def _refusal(one: pa.Schema, other: pa.Schema, reason: str = "") -> SchemaError:
    shown = [", ".join(f"{field.name} {shown_type(field)}" for field in each) for each in (one, other)]
    way_out = (
        "cast one side with withColumn"
        if one.names == other.names
        else "select the same columns on both sides, or write unionByName"
    )
    return SchemaError(
        "union: names and types of columns must be the same, or types for which Spark has one of both; they are "
        f"({shown[0]}) and ({shown[1]}){reason and f': {reason}'}: {way_out}"
    )
