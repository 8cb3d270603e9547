# SPDX-License-Identifier: Apache-2.0
"""Several streams' rows as one stream: branches side by side, without an exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.api.expressions import Computed, ExpressionReader, meant, projected
from penstock.api.lineage import OperatorStep, Step
from penstock.errors import PlanError, SchemaError
from penstock.graph import fields_of, merged_schema, newly_nullable, shown_type, wider_schema
from penstock.operators.expressions import Call, ColumnRef, Constant
from penstock.operators.verbs import Project, Widen


def united(sides: Sequence[tuple[Step, ...]]) -> tuple[Step, ...]:
    """All branches, with the nulls that any of them may have, and the widest numbers; raises as follows.

    SchemaError where names or types differ, PlanError where a branch occurs twice.
    """
    schema = sides[0][0].schema
    for side in sides[1:]:
        wide = wider_schema(schema, side[0].schema), wider_schema(side[0].schema, schema)
        same = schema.names == side[0].schema.names
        schema = _merged(*wide) if same else _merged(schema, side[0].schema)
    branches = tuple(branch for side in sides for branch in side)
    if len({id(branch) for branch in branches}) != len(branches):
        raise PlanError(
            "a union whose branches are the same stream is not possible: its one stage would have to feed "
            "both sides; read the source twice, or write the stream out first with toDF()"
        )
    return tuple(_widened(branch, schema) for branch in branches)


def _widened(branch: Step, schema: pa.Schema) -> Step:
    if branch.schema.equals(schema):
        return branch
    if branch.schema.types != schema.types:
        cast = projected([_cast(*pair) for pair in zip(branch.schema, schema, strict=True)], "union")
        branch = OperatorStep(branch, cast, cast.schema)
    names = newly_nullable(branch.schema, schema)
    return OperatorStep(branch, Widen(schema, tuple(names)), schema)


def _cast(own: pa.Field, wider: pa.Field) -> Computed:
    column = ColumnRef(own.name, own.type)
    if fields_of(own.type) or own.type.equals(wider.type):
        return Computed(own, column)
    return Computed(own.with_type(wider.type), Call("Cast", wider.type, (column,), (("mode", "ANSI"),)))


def by_name(left: pa.Schema, right: pa.Schema, allow_missing: bool, session: Any) -> tuple[Project, Project]:
    """The projections that bring two streams to the left's columns, then those that only the right has.

    A column that one side lacks is null there if `allow_missing`, and refused otherwise. The left says how names are
    written.
    """
    found = [(name, meant(left, name, session)) for name in right.names]
    theirs = [name if ours in right.names else ours for name, ours in found]
    lacking = [name for name in left.names if name not in theirs]
    extra = [name for name in theirs if name not in left.names]
    if (lacking or extra) and not allow_missing:
        raise SchemaError(
            f"unionByName: {_listed(lacking, 'the other stream')}{'; ' if lacking and extra else ''}"
            f"{_listed(extra, 'this stream')}: with allowMissingColumns=True they are null there"
        )
    fields = [*left, *(right.field(name) for name in extra)]
    return _side(fields, left, list(left.names)), _side(fields, right, theirs)


def _listed(names: list[str], where: str) -> str:
    return f"{where} has no {', '.join(map(repr, names))}" if names else ""


def _side(fields: list[pa.Field], schema: pa.Schema, names: list[str]) -> Project:
    """One side's columns, called `names`, in the order of all fields."""
    reading = ExpressionReader(schema, None, "unionByName")
    columns = []
    for field in fields:
        if field.name in names:
            own = reading.column(schema.names[names.index(field.name)])
            columns.append(Computed(own.field.with_name(field.name), own.expression))
        else:
            columns.append(_nothing(field.with_nullable(True)))
    return projected(columns, "unionByName")


def _nothing(field: pa.Field) -> Computed:
    return Computed(field, Constant(pa.nulls(1, field.type)))


def _merged(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    found = merged_schema(one, other)
    if found is not None:
        return found
    shown = [", ".join(f"{field.name} {shown_type(field)}" for field in each) for each in (one, other)]
    way_out = (
        "cast one side with withColumn"
        if one.names == other.names
        else "select the same columns on both sides, or write unionByName"
    )
    raise SchemaError(
        f"union: names and types of columns must be the same; they are ({shown[0]}) and ({shown[1]}): {way_out}"
    )
