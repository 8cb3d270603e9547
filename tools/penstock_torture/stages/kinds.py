# SPDX-License-Identifier: Apache-2.0
"""The kinds of stages: for each a random plan, the operators of it, and the oracle that it must agree with."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.api.lineage import SourceStep, parents_of
from penstock.api.stateful import row_maker, state_schema
from penstock.api.stream import Stream
from penstock.api.streaming.modes import in_mode
from penstock.operators.groups import Side
from penstock.operators.join_sides import AsSide, JoinedSides
from penstock.operators.windows import WindowKey
from penstock.stream.duplicates import DropDuplicates
from penstock.stream.state.operator import ROWS, Spellings, StatefulOperator
from penstock.stream.stream_join import Between, StreamJoin
from penstock.stream.watermark_step import AssignWatermark
from penstock_torture.stages.joins import KEPT, Joins
from penstock_torture.stages.processors import OPS, Machine, Machines
from penstock_torture.stages.rules import Firsts, Oracle, Sessions, Tops, Totals, Windows
from penstock_torture.stages.tasks import GROUPS
from penstock_torture.stages.values import TIME, Row, key_fields, names_of

_FIGURES = {"n": ("*", "count"), "total": ("v", "sum"), "least": ("v", "min"), "most": ("v", "max")}
_WINDOW = pa.struct([("start", TIME), ("end", TIME)])
_SPELLINGS = Spellings(state_schema, row_maker)
AGGREGATED = ("numbers", "texts", "floats", "two", "none")
"""Kinds of keys that aggregates take: not structs, as their page says."""
KEYED = ("numbers", "texts", "floats", "two")


@dataclass(frozen=True)
class Stage:
    """A stage and its oracle; `front` turns rows of a side into what the stage's tasks take."""

    text: str
    key: str
    schemas: tuple[pa.Schema, ...]
    front: tuple[tuple[Any, ...], ...]
    operator: Any
    oracle: Oracle
    columns: Callable[[random.Random, int], Row]
    """The columns of a row beside its key and time, where so many milliseconds have been reached."""
    has_late_rows: bool = True
    time_mode: str = ""
    is_by_time: bool = False
    """True if the time is a key too."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the columns by which rows are dealt out, which are the first ones."""
        return (*names_of(self.key), "t") if self.is_by_time else names_of(self.key)


def stage_of(kind: str, chance: random.Random, milliseconds: Callable[[], int]) -> Stage:
    """A random stage of a kind."""
    return KINDS[kind](chance, milliseconds)


def _schema(key: str, *others: pa.Field) -> pa.Schema:
    return pa.schema([*key_fields(key), pa.field("t", TIME), *others])


_V = pa.field("v", pa.int64())


def _v(chance: random.Random, _: int) -> Row:
    return {"v": chance.choice((None, *range(-5, 6)))}


def _operators(stream: Stream, mode: str | None) -> list[Any]:
    found, step = [], in_mode(stream.branches, mode)[0]
    while not isinstance(step, SourceStep):
        if hasattr(step, "operator"):
            found.append(step.operator)
        step = parents_of(step)[0]
    return [each for each in found[::-1] if not isinstance(each, AssignWatermark)]


def _source(schema: pa.Schema) -> Stream:
    return Stream((SourceStep("rows", schema, streaming=True),)).withWatermark("t", "0 seconds")


def _aggregated(
    text: str, key: str, schema: pa.Schema, by: Sequence[Any], mode: str, oracle: Oracle, columns: Any = _v
) -> Stage:
    *front, last = _operators(_source(schema).keyBy(*names_of(key), *by).agg(**_FIGURES), mode)
    return Stage(text, key, (schema,), (tuple(front),), last, oracle, columns)


def _windows(mode: str) -> Callable[[random.Random, Any], Stage]:
    def made(chance: random.Random, _: Any) -> Stage:
        key = chance.choice(AGGREGATED)
        size, slide, offset = bounds = chance.choice(((10, 10, 0), (12, 4, 1), (10, 4, 0), (7, 3, 2), (1, 1, 0)))
        oracle = Windows(names_of(key), GROUPS, bounds, updates=mode == "update")
        by = WindowKey("t", size, slide, offset, 0, "w")
        return _aggregated(f"windows {bounds}, {mode}", key, _schema(key, _V), (by,), mode, oracle)

    return made


def _sessions(chance: random.Random, _: Any) -> Stage:
    key, gap = chance.choice(AGGREGATED), chance.choice((1, 3, 8))
    oracle = Sessions(names_of(key), GROUPS, gap)
    by = WindowKey("t", 0, 0, 0, gap, "w")
    return _aggregated(f"sessions of gap {gap}", key, _schema(key, _V), (by,), "append", oracle)


def _given_windows(chance: random.Random, _: Any) -> Stage:
    """Windows that the rows have."""
    key = chance.choice(AGGREGATED)

    def columns(chance: random.Random, reached: int) -> Row:
        start = (reached + chance.randint(-20, 30)) // 10 * 10
        return {**_v(chance, reached), "w": {"start": start, "end": start + 10}}

    first = _source(pa.schema([*key_fields(key), ("t", TIME), ("v", pa.int64())]))
    given = first.keyBy(*names_of(key), WindowKey("t", 10, 10, 0, 0, "w")).agg(v=("v", "max"))
    *front, last = _operators(given.keyBy(*names_of(key), "w").agg(**_FIGURES), "append")
    front = front[-1:]
    schema = front[0].spec.schema
    oracle = Windows(names_of(key), GROUPS, (10, 10, 0), updates=False, given=True)
    return Stage("windows of windows", key, (schema,), (tuple(front),), last, oracle, columns)


def _totals(chance: random.Random, _: Any) -> Stage:
    key = chance.choice(AGGREGATED)
    return _aggregated("totals", key, _schema(key, _V), (), "update", Totals(names_of(key), GROUPS))


def _join(chance: random.Random, _: Any) -> Stage:
    key, how = chance.choice(KEYED), chance.choice(list(KEPT))
    between = chance.choice(((-3, 5), (2, 5), (-7, -2), (0, 0), *((None,) if how == "inner" else ())))
    keys, columns = names_of(key), key_fields(key)
    schemas = (
        pa.schema([*columns, pa.field("t", TIME), _V]),
        pa.schema([*columns, pa.field("u", TIME), pa.field("x", pa.int64())]),
    )
    sides = JoinedSides(Side(schemas[0], keys), Side(schemas[1], keys), how)
    bound = None if between is None else Between(("t", "u"), between[0], between[1], by_watermark=True)
    operator = StreamJoin(sides, bound)
    oracle = Joins(keys, GROUPS, how, between)
    return Stage(
        f"{how} join between {between}",
        key,
        schemas,
        ((AsSide(sides, 0),), (AsSide(sides, 1),)),
        operator,
        oracle,
        lambda chance, _: {"v": chance.randint(0, 99), "x": chance.randint(0, 99)},
        has_late_rows=False,
    )


def _duplicates(chance: random.Random, _: Any) -> Stage:
    key = chance.choice(KEYED)
    keys, schema = names_of(key), _schema(key, _V)
    way = chance.choice(("for ever", "by time", "for a while"))
    if way == "for ever":
        operator, oracle = DropDuplicates(schema, keys), Firsts(keys, GROUPS)
    elif way == "by time":
        operator, oracle = DropDuplicates(schema, (*keys, "t"), "t"), Firsts((*keys, "t"), GROUPS, "t")
    else:
        keeps = chance.choice((0, 3, 12))
        operator, oracle = DropDuplicates(schema, keys, "t", keeps), Firsts(keys, GROUPS, "t", keeps)
    is_by_time = way == "by time"
    return Stage(f"duplicates, kept {way}", key, (schema,), ((),), operator, oracle, _v, is_by_time=is_by_time)


def _top(chance: random.Random, _: Any) -> Stage:
    key, count, ascending = chance.choice(KEYED), chance.choice((1, 2, 5)), chance.random() < 0.5
    schema = _schema(key, pa.field("v", pa.float64()))
    (operator,) = _operators(_source(schema).keyBy(*names_of(key)).top(count, "v", ascending=ascending), None)
    oracle = Tops(names_of(key), GROUPS, count, "v", ascending=ascending)
    values = (None, float("nan"), -0.0, 0.0, 1.0, 2.0, 3.0, float("inf"))
    text = f"top {count}, {'ascending' if ascending else 'descending'}"
    return Stage(text, key, (schema,), ((),), operator, oracle, lambda chance, _: {"v": chance.choice(values)})


def _processor(chance: random.Random, milliseconds: Callable[[], int]) -> Stage:
    key, mode = chance.choice(KEYED), chance.choice(("none", "eventtime", "processingtime"))
    ttl = chance.choice((None, 25)) if mode == "processingtime" else None
    ops = OPS if mode != "none" else tuple(op for op in OPS if "timer" not in op)
    schema = _schema(key, pa.field("op", pa.string()), pa.field("x", pa.int64()), pa.field("y", pa.int64()))
    output = pa.schema([*key_fields(key), pa.field("said", pa.string())])
    keys = names_of(key)
    machine = Machine(keys, ttl, has_timers=mode != "none")
    operator = StatefulOperator(ROWS, machine, schema, keys, output, _SPELLINGS, time_mode=mode)
    oracle = Machines(keys, GROUPS, machine, milliseconds if mode == "processingtime" else None)

    def columns(chance: random.Random, reached: int) -> Row:
        op = chance.choice(ops)
        return {"op": op, "x": chance.randint(0, 4), "y": reached + chance.randint(1, 40)}

    return Stage(
        f"processor, times {mode}, ttl {ttl}", key, (schema,), ((),), operator, oracle, columns, time_mode=mode
    )


KINDS: dict[str, Callable[[random.Random, Any], Stage]] = {
    "windows": _windows("append"),
    "updates": _windows("update"),
    "sessions": _sessions,
    "given windows": _given_windows,
    "totals": _totals,
    "join": _join,
    "duplicates": _duplicates,
    "top": _top,
    "processor": _processor,
}
"""By name; a seed takes one after the other."""
