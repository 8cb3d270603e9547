# SPDX-License-Identifier: Apache-2.0
"""Several streams' rows as one stream: branches side by side, without an exchange."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.api.expressions import Computed, Reading, projected
from penstock.api.lineage import Step
from penstock.graph import same_columns, spark_type
from penstock.shuffle.errors import PlanError, SchemaError
from penstock.task.expressions import Constant
from penstock.task.verbs import Project


def united(sides: Sequence[tuple[Step, ...]]) -> tuple[Step, ...]:
    """All branches; raises SchemaError where schemas differ, PlanError where a branch occurs twice."""
    first = sides[0][0].schema
    for side in sides[1:]:
        _check_same_schema(first, side[0].schema)
    branches = tuple(branch for side in sides for branch in side)
    if len({id(branch) for branch in branches}) != len(branches):
        raise PlanError(
            "a union whose branches are the same stream is not possible: its one stage would have to feed "
            "both sides; read the source twice, or write the stream out first with toDF()"
        )
    return branches


def by_name(left: pa.Schema, right: pa.Schema, allow_missing: bool) -> tuple[Project, Project]:
    """What brings two streams to the left's columns, then those that only the right has.

    A column that one side lacks is null there if `allow_missing`, and refused otherwise.
    """
    lacking = [name for name in left.names if name not in right.names]
    extra = [name for name in right.names if name not in left.names]
    if (lacking or extra) and not allow_missing:
        raise SchemaError(
            f"unionByName: {_listed(lacking, 'the other stream')}{'; ' if lacking and extra else ''}"
            f"{_listed(extra, 'this stream')}: with allowMissingColumns=True they are null there"
        )
    fields = [*left, *(right.field(name) for name in extra)]
    sides = [_side(fields, schema) for schema in (left, right)]
    return sides[0], sides[1]


def _listed(names: list[str], where: str) -> str:
    return f"{where} has no {', '.join(map(repr, names))}" if names else ""


def _side(fields: list[pa.Field], schema: pa.Schema) -> Project:
    reading = Reading(schema, None, "unionByName")
    columns = [
        reading.column(field.name) if field.name in schema.names else _nothing(field.with_nullable(True))
        for field in fields
    ]
    return projected(columns, "unionByName")


def _nothing(field: pa.Field) -> Computed:
    return Computed(field, Constant(pa.nulls(1, field.type)))


def _check_same_schema(one: pa.Schema, other: pa.Schema) -> None:
    if same_columns(one, other):
        return
    shown = [", ".join(f"{field.name} {spark_type(field) or field.type}" for field in each) for each in (one, other)]
    way_out = (
        "cast one side with withColumn"
        if one.names == other.names
        else "select the same columns on both sides, or write unionByName"
    )
    raise SchemaError(
        f"union: names and types of columns must be the same; they are ({shown[0]}) and ({shown[1]}): {way_out}"
    )
