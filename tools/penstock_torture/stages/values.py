# SPDX-License-Identifier: Apache-2.0
"""Values of random stages: odd keys, and rows in a form in which two sides compare."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
Found = Counter[str]
"""Rows as text, and how often each is there."""
TIME = pa.timestamp("us")
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - event times have no zone here
_PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])

KEYS: dict[str, tuple[tuple[pa.DataType, tuple[Any, ...]], ...]] = {
    "numbers": ((pa.int64(), (None, 0, -1, 7, 1 << 62, 3, 4, 5, 6)),),
    "texts": ((pa.string(), (None, "", " ", "a", "A", "\x00", "ä" * 40)),),
    "floats": ((pa.float64(), (None, math.nan, -0.0, 0.0, math.inf, 1.5, -1.5)),),
    "structs": ((_PAIR, (None, {"a": None, "b": None}, {"a": 1, "b": ""}, {"a": 1, "b": None}, {"a": 2, "b": "x"})),),
    "two": ((pa.string(), (None, "", "a")), (pa.float64(), (None, math.nan, -0.0, 0.0, 2.0))),
    "none": (),
}
"""Key columns by the name of their kind, each with its type and values."""


def names_of(kind: str) -> tuple[str, ...]:
    """The names of the key columns of a kind."""
    return tuple(f"k{place}" for place in range(len(KEYS[kind])))


def random_key(kind: str, chance: random.Random) -> Row:
    """The key columns of a row."""
    return {name: chance.choice(values) for name, (_, values) in zip(names_of(kind), KEYS[kind], strict=True)}


def key_fields(kind: str) -> list[pa.Field]:
    """The key columns."""
    return [pa.field(name, type_) for name, (type_, _) in zip(names_of(kind), KEYS[kind], strict=True)]


def plain(value: Any) -> Any:
    """A value as both sides spell it: one NaN, one zero, times as microseconds, structs as tuples."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0 if value else 0.0
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, Mapping):
        return tuple((name, plain(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    return value


def spelled(rows: Iterable[Mapping[str, Any]]) -> Found:
    """Rows that can be compared and counted."""
    return Counter(repr(sorted((name, plain(value)) for name, value in row.items())) for row in rows)


def rows_in(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """The rows of batches."""
    return [row for batch in batches for row in batch.to_pylist()]


def batch_of(rows: Iterable[Row], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of rows whose times are numbers."""
    columns = {name: [row[name] for row in rows] for name in schema.names}
    return pa.RecordBatch.from_arrays([_array(columns[field.name], field.type) for field in schema], schema=schema)


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(type_):
        return pa.array(values, pa.int64()).cast(type_)
    return pa.array(values, type_)


def group_sizes(found: Found, wanted: Found) -> str:
    """A few of the rows that one side has and the other one lacks."""
    more, less = found - wanted, wanted - found
    parts = [
        f"{sum(rows.values())} {what}, such as {next(iter(sorted(rows)))}"
        for what, rows in (("too many", more), ("missing", less))
        if rows
    ]
    return "; ".join(parts)
