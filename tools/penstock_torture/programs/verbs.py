# SPDX-License-Identifier: Apache-2.0
"""Random steps without user functions: columns, unions, joins, aggregates, orders, exchanges, files."""

from __future__ import annotations

import random
from collections.abc import Callable

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock_torture.programs.expressions import (
    family,
    has_map,
    is_flat,
    quoted,
    random_condition,
    random_value,
)
from penstock_torture.programs.program import Program
from penstock_torture.programs.values import NAMES, ODD_NAMES

Verb = Callable[[Program, str], None]

_NUMERIC = ("sum({c})", "avg({c})", "max({c})", "sum({c})", "median({c})")
_AGGREGATES = {
    "integer": (*_NUMERIC, "sum({c} * 2)"),
    "fraction": _NUMERIC,
    "decimal": _NUMERIC,
    "boolean": ("bool_or({c})", "bool_and({c})"),
}
_MEETING: dict[type, tuple[DataType, ...]] = {
    IntegerType: (LongType(), DoubleType(), ByteType()),
    LongType: (IntegerType(), DecimalType(10, 2), DoubleType()),
    DoubleType: (FloatType(), LongType()),
    DecimalType: (LongType(), DecimalType(12, 4)),
    DateType: (TimestampType(), TimestampNTZType()),
    TimestampType: (DateType(),),
}
"""Types in whose place others may come where streams meet."""
_JOINS = ("inner", "left", "right", "full", "left_semi", "left_anti")
_MODES = ("None", "None", "'pipelined'", "'blocking'", "'hybrid'", "'hybrid_selective'", "'blocking_hash'")


def filtered(program: Program, number: str) -> None:
    """`filter` by a random condition."""
    text = random_condition(program.draw, program.schema(number))
    program.step(number, f"{{s}}.filter({text!r})", f"{{d}}.filter({text!r})")


def selected(program: Program, number: str) -> None:
    """`select` of some columns and expressions, in another order."""
    draw, schema = program.draw, program.schema(number)
    names = draw.sample(schema.names, draw.randint(1, len(schema.names)))
    items = [quoted(name) for name in names]
    for _ in range(draw.randint(0, 2)):
        items.insert(draw.randint(0, len(items)), f"{random_value(draw, schema)} AS {program.fresh('e')}")
    text = ", ".join(map(repr, items))
    program.step(number, f"{{s}}.select({text})", f"{{d}}.selectExpr({text})")


def with_column(program: Program, number: str) -> None:
    """`withColumn`, of a new name or of one that there is."""
    draw, schema = program.draw, program.schema(number)
    taken = [name for name in schema.names if name.isidentifier()] or ["a"]
    name = draw.choice(taken) if draw.random() < 0.4 else draw.choice(NAMES)
    text = random_value(draw, schema)
    program.step(
        number, f"{{s}}.withColumn({name!r}, F.expr({text!r}))", f"{{d}}.withColumn({name!r}, F.expr({text!r}))"
    )


def renamed(program: Program, number: str) -> None:
    """`withColumnRenamed` to a name that may be odd."""
    draw, schema = program.draw, program.schema(number)
    free = [name for name in (*NAMES, *ODD_NAMES) if name.lower() not in map(str.lower, schema.names)]
    old, new = draw.choice(schema.names), draw.choice(free)
    text = f".withColumnRenamed({old!r}, {new!r})"
    program.step(number, f"{{s}}{text}", f"{{d}}{text}")


def dropped(program: Program, number: str) -> None:
    """`drop` of a column."""
    names = program.schema(number).names
    if len(names) > 2:
        text = f".drop({program.draw.choice(names)!r})"
        program.step(number, f"{{s}}{text}", f"{{d}}{text}")


def united(program: Program, number: str) -> None:
    """`union` with other rows, whose nullability is another, and of some columns the type."""
    draw, schema = program.draw, program.schema(number)
    other = program.table(_others(program, schema.fields))
    if draw.random() < 0.4:
        order = draw.sample(schema.names, len(schema.names))
        text = ", ".join(repr(quoted(name)) for name in order)
        extra = ""
        if draw.random() < 0.5:
            program.step(other, "{s}.withColumn('extra', F.lit(1))", "{d}.withColumn('extra', F.lit(1))")
            text, extra = f"{text}, 'extra'", ", allowMissingColumns=True"
        program.step(
            number,
            f"{{s}}.unionByName(s{other}.select({text}){extra})",
            f"{{d}}.unionByName(d{other}.select({text}){extra})",
        )
    elif draw.random() < 0.5:
        program.step(number, f"s{other}.union({{s}})", f"d{other}.union({{d}})")
    else:
        program.step(number, f"{{s}}.union(s{other})", f"{{d}}.union(d{other})")


def _others(program: Program, fields: list[StructField], nulls: float = 0.5) -> StructType:
    """The same columns, which may be null or not; of some the type is another that Spark brings together with it."""
    draw = program.draw
    others = [StructField(one.name, _other_type(draw, one.dataType), draw.random() < nulls) for one in fields]
    return StructType(others)


def _other_type(draw: random.Random, kind: DataType) -> DataType:
    if isinstance(kind, ArrayType):
        return ArrayType(_other_type(draw, kind.elementType), kind.containsNull)
    found = _MEETING.get(type(kind), ())
    return draw.choice(found) if found and draw.random() < 0.15 else kind


def joined(program: Program, number: str) -> None:
    """`join` on one or two flat columns with a small table."""
    draw, schema = program.draw, program.schema(number)
    flat = [field for field in schema.fields if is_flat(field.dataType)]
    if not flat:
        return
    keys = draw.sample(flat, min(len(flat), draw.choice((1, 1, 2))))
    fields = _others(program, keys, 0.6).fields
    taken = {name.lower() for name in schema.names}
    names = [name for name in ("right", "Right 2", "r.3") if name not in taken]
    fields += [StructField(names[0], StringType(), draw.random() < 0.5)]
    draw.shuffle(fields)
    other = program.table(StructType(fields), draw.choice((1, 3, 20)))
    listed = [key.name for key in keys]
    theirs = listed if all("." not in name and "`" not in name for name in listed) else None
    how, mode = draw.choice(_JOINS), draw.choice(_MODES)
    keyed = f"{', '.join(map(repr, listed))}, mode={mode}"
    if theirs is not None:
        program.step(
            number,
            f"{{s}}.keyBy({keyed}).join(s{other}.keyBy({keyed}), {how!r})",
            f"{{d}}.join(d{other}, {listed!r}, {how!r})",
        )


def aggregated(program: Program, number: str) -> None:
    """`keyBy(...).agg(...)` with PySpark's aggregates, over up to two keys."""
    draw, schema = program.draw, program.schema(number)
    able = [field.name for field in schema.fields if not has_map(field.dataType)]
    keys = draw.sample(able, min(len(able), draw.choice((0, 1, 1, 2))))
    texts = [f"count(*) AS {program.fresh('n')}"]
    fields = draw.sample(schema.fields, min(3, len(schema.fields)))
    texts += [f"{_aggregate(program, field)} AS {program.fresh('g')}" for field in fields]
    exprs = ", ".join(f"F.expr({text!r})" for text in texts)
    named = ", ".join(map(repr, keys))
    cols = ", ".join(f"F.col({quoted(key)!r})" for key in keys)
    ours = f"{{s}}.keyBy({named})" if keys else "{s}.toOne()"
    theirs = f"{{d}}.groupBy({cols})" if keys else "{d}.groupBy()"
    program.step(number, f"{ours}.agg({exprs})", f"{theirs}.agg({exprs})")


def _aggregate(program: Program, field: StructField) -> str:
    draw, name = program.draw, quoted(field.name)
    functions = [*_AGGREGATES[family(field.dataType)]] if family(field.dataType) in _AGGREGATES else []
    functions += ["count({c})"] if not is_flat(field.dataType) else ["count({c})", "count(DISTINCT {c})", "min({c})"]
    text = draw.choice(functions).replace("{c}", name)
    if draw.random() < 0.2:
        text += f" FILTER (WHERE {random_condition(draw, StructType([field]))})"
    return text


def made_distinct(program: Program, number: str) -> None:
    """`distinct`, or `dropDuplicates` of some columns, which alone are compared afterwards."""
    draw, schema = program.draw, program.schema(number)
    if draw.random() < 0.5:
        program.step(number, "{s}.distinct()", "{d}.distinct()")
        return
    able = [field.name for field in schema.fields if not has_map(field.dataType) and "`" not in field.name]
    if able:
        keys = draw.sample(able, min(len(able), draw.randint(1, 2)))
        shown = ", ".join(repr(quoted(key)) for key in keys)
        text = f".dropDuplicates({keys!r}).select({shown})"
        program.step(number, f"{{s}}{text}", f"{{d}}{text}")


def sorted_rows(program: Program, number: str) -> None:
    """`sortBy` by all columns, so that equal keys are equal rows; nested columns go. Perhaps `limit` after it."""
    draw = program.draw
    flat = [field.name for field in program.schema(number).fields if is_flat(field.dataType)]
    if not flat:
        return
    draw.shuffle(flat)
    shown = ", ".join(repr(quoted(name)) for name in flat)
    ascending = [draw.random() < 0.5 for _ in flat]
    cols = ", ".join(f"F.col({quoted(name)!r})" for name in flat)
    limit = f".limit({draw.choice((0, 1, 5, 50))})" if draw.random() < 0.5 else ""
    names = ", ".join(map(repr, flat))
    program.ordered = program.step(
        number,
        f"{{s}}.select({shown}).sortBy({names}, ascending={ascending}){limit}",
        f"{{d}}.select({shown}).orderBy({cols}, ascending={ascending}){limit}",
    )


def exploded(program: Program, number: str) -> None:
    """`explode` of a list column in its place, also the outer form."""
    draw, schema = program.draw, program.schema(number)
    lists = [field.name for field in schema.fields if isinstance(field.dataType, ArrayType)]
    if lists:
        name, outer = draw.choice(lists), draw.random() < 0.5
        function = "explode_outer" if outer else "explode"
        others = ", ".join(
            f"F.{function}({quoted(each)!r}).alias({each!r})" if each == name else f"F.col({quoted(each)!r})"
            for each in schema.names
        )
        program.step(number, f"{{s}}.explode({name!r}, outer={outer})", f"{{d}}.select({others})")


def exchanged(program: Program, number: str) -> None:
    """An exchange that changes no rows, or `broadcast` to two, which doubles them."""
    draw = program.draw
    mode, count = draw.choice(_MODES), draw.choice((1, 2, 3))
    verb = draw.choice(("rebalance", "rescale", "random", "broadcast", "keyBy", "through", "repartition", "custom"))
    if verb == "through":
        program.step(number, "penstock.fromDataFrame({s}.toDF())", "{d}")
    elif verb == "broadcast":
        count = min(count, 2)
        program.step(
            number,
            f"{{s}}.broadcast({count}, mode={mode})",
            "{d}.union({d})" if count == 2 else "{d}",
        )
    elif verb == "custom":
        ours = f"{{s}}.partitionCustom(lambda batch: np.arange(batch.num_rows) % {count}, {count}, mode={mode})"
        program.step(number, ours, "{d}")
    elif verb == "repartition":
        able = [one.name for one in program.schema(number).fields if not has_map(one.dataType) and one.name.isalnum()]
        named = "".join(f", {key!r}" for key in draw.sample(able, min(1, len(able))))
        ours = f"penstock.fromDataFrame(penstock.repartition({{s}}.toDF(), {count}{named}))"
        program.step(number, ours, f"{{d}}.repartition({count}{named})")
    elif verb == "keyBy":
        able = [field.name for field in program.schema(number).fields if family(field.dataType) != "map"]
        keys = draw.sample(able, min(1, len(able)))
        named = "".join(f"{key!r}, " for key in keys)
        program.step(number, f"{{s}}.keyBy({named}mode={mode})", "{d}")
    else:
        program.step(number, f"{{s}}.{verb}({count}, mode={mode})", f"{{d}}.repartition({count})")


def persisted(program: Program, number: str) -> None:
    """`persist`, and both sides read it twice: here and in what follows."""
    program.step(number, "{s}.persist()", "{d}.cache()")
    if program.draw.random() < 0.5:
        program.step(number, "{s}.union({s})", "{d}.union({d})")
