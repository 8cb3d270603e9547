# SPDX-License-Identifier: Apache-2.0
"""Random steps with user functions: mapInArrow, mapInPandas, functions of groups and of pairs of groups."""

from __future__ import annotations

from pyspark.sql.types import StructField, StructType

from penstock_torture.programs.expressions import has_map, is_flat, quoted
from penstock_torture.programs.functions import (
    Made,
    arrow_function,
    cogroup_function,
    group_function,
    pandas_function,
)
from penstock_torture.programs.program import Program
from penstock_torture.programs.values import spelled

_UNSHOWN = ("integer", "fraction", "boolean", "timestamp", "date", "local")


def _schema_text(made: Made, schema: StructType) -> str:
    return spelled(schema) if made.schema is None else repr(made.schema)


def mapped_in_arrow(program: Program, number: str) -> None:
    """`mapInArrow`."""
    name = program.fresh("f")
    made = arrow_function(program.draw, name, scratch_megabytes=program.shape.scratch_megabytes)
    program.define(made.text)
    text = f".mapInArrow({name}, {_schema_text(made, program.schema(number))})"
    program.step(number, f"{{s}}{text}", f"{{d}}{text}")


def mapped_in_pandas(program: Program, number: str) -> None:
    """`mapInPandas`; numbers beside nulls are floats in a frame, so they are not shown."""
    name = program.fresh("f")
    schema = program.schema(number)
    shown = [field.name for field in schema.fields if not is_flat(field.dataType)]
    made = pandas_function(program.draw, name, shown)
    program.define(made.text)
    text = f".mapInPandas({name}, {_schema_text(made, schema)})"
    program.step(number, f"{{s}}{text}", f"{{d}}{text}")


def group_applied(program: Program, number: str) -> None:
    """`applyInArrow` or `applyInPandas` of each group."""
    draw, schema = program.draw, program.schema(number)
    keys = _keys(program, schema)
    kind = draw.choice(("table", "frame"))
    name = program.fresh("f")
    made = group_function(draw, name, kind, scratch_megabytes=program.shape.scratch_megabytes)
    program.define(made.text)
    verb = "applyInArrow" if kind == "table" else "applyInPandas"
    text = f".{verb}({name}, {_schema_text(made, schema)})"
    named = ", ".join(map(repr, keys))
    cols = ", ".join(f"F.col({quoted(key)!r})" for key in keys)
    program.step(number, f"{{s}}.keyBy({named}){text}", f"{{d}}.groupBy({cols}){text}")


def cogrouped(program: Program, number: str) -> None:
    """`cogroup` with a small table of the same key."""
    draw, schema = program.draw, program.schema(number)
    keys = [key for key in _keys(program, schema) if "`" not in key][:1]
    if not keys:
        return
    key = next(field for field in schema.fields if field.name == keys[0])
    other = program.table(StructType([StructField(key.name, key.dataType, draw.random() < 0.6)]), 20)
    kind = draw.choice(("table", "frame"))
    name = program.fresh("f")
    made = cogroup_function(draw, name, kind)
    program.define(made.text)
    verb = "applyInArrow" if kind == "table" else "applyInPandas"
    text = f".{verb}({name}, {_schema_text(made, schema)})"
    col = f"F.col({quoted(key.name)!r})"
    program.step(
        number,
        f"{{s}}.keyBy({key.name!r}).cogroup(s{other}.keyBy({key.name!r})){text}",
        f"{{d}}.groupBy({col}).cogroup(d{other}.groupBy({col})){text}",
    )


def _keys(program: Program, schema: StructType) -> list[str]:
    able = [field.name for field in schema.fields if not has_map(field.dataType)]
    return program.draw.sample(able, min(len(able), program.draw.choice((0, 1, 1, 1, 2))))
