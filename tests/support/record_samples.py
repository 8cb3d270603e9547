# SPDX-License-Identifier: Apache-2.0
"""Sample batches of every Arrow type, from a seed: shared by the tests of this folder and the fuzzer."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

Maker = Callable[[random.Random, int], pa.Array]


def _of(kind: pa.DataType, value: Callable[[random.Random], Any]) -> Maker:
    def make(rng: random.Random, rows: int) -> pa.Array:
        return pa.array([None if rng.random() < 0.15 else value(rng) for _ in range(rows)], kind)

    return make


def _text(rng: random.Random) -> str:
    return "".join(rng.choice("abcäöü€ ") for _ in range(rng.choice((0, 1, 3, 8, 11, 30))))


def _blob(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 7, 8, 9, 40)))


def _integer(bits: int, signed: bool = True) -> Callable[[random.Random], int]:
    low = -(1 << bits - 1) if signed else 0
    return lambda rng: rng.choice((0, 1, low, low + (1 << bits) - 1, rng.randrange(low, low + (1 << bits))))


def _instant(rng: random.Random) -> dt.datetime:
    return dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=rng.randrange(-(10**9), 10**9))


def _number(rng: random.Random) -> decimal.Decimal:
    return decimal.Decimal(rng.randrange(-(10**8), 10**8)).scaleb(-2)


def _real(rng: random.Random) -> float:
    return rng.choice((0.0, 1.0, -2.5, float("inf"), rng.randrange(-1000, 1000) / 8))


def _ints(rng: random.Random) -> list[int | None]:
    return [None if rng.random() < 0.1 else rng.randrange(100) for _ in range(rng.randrange(5))]


def _record(rng: random.Random) -> dict[str, Any]:
    return {"a": rng.choice((None, rng.randrange(9))), "b": rng.choice((None, _text(rng)))}


def _records(rng: random.Random) -> list[dict[str, Any]]:
    return [_record(rng) for _ in range(rng.randrange(4))]


_RECORD = pa.struct([("a", pa.int32()), ("b", pa.string())])
_VIEWS = pa.struct([("a", pa.int32()), ("b", pa.string_view())])
_TIME = dt.time(1, 2, 3)


def _run_ends(rng: random.Random, rows: int) -> pa.Array:
    if rows == 0:
        return pa.array([], pa.run_end_encoded(pa.int32(), pa.string()))
    ends = sorted({rows, *(rng.randrange(1, rows + 1) for _ in range(rows // 2))})
    values = _of(pa.string(), _text)(rng, len(ends))
    return pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values)


def _dense_union(rng: random.Random, rows: int) -> pa.Array:
    kinds, offsets, counts = [], [], [0, 0]
    for _ in range(rows):
        kind = rng.randrange(2)
        kinds.append(kind)
        offsets.append(counts[kind])
        counts[kind] += 1
    children = [pa.array([rng.randrange(99) for _ in range(counts[0])], pa.int64())]
    children.append(pa.array([_text(rng) for _ in range(counts[1])], pa.string()))
    return pa.UnionArray.from_dense(pa.array(kinds, pa.int8()), pa.array(offsets, pa.int32()), children)


def _sparse_union(rng: random.Random, rows: int) -> pa.Array:
    kinds = pa.array([rng.randrange(2) for _ in range(rows)], pa.int8())
    ints = pa.array([rng.randrange(99) for _ in range(rows)], pa.int64())
    return pa.UnionArray.from_sparse(kinds, [ints, pa.array([_text(rng) for _ in range(rows)], pa.string())])


def _dictionary(rng: random.Random, rows: int) -> pa.Array:
    words = pa.array([None, *(f"{i}-{_text(rng)}" for i in range(20))], pa.string())
    return pa.DictionaryArray.from_arrays(_of(pa.int8(), lambda r: r.randrange(21))(rng, rows), words)


def _struct_of_dictionary(rng: random.Random, rows: int) -> pa.Array:
    return pa.StructArray.from_arrays([_dictionary(rng, rows)], ["d"])


def _uuid(rng: random.Random, rows: int) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), _of(pa.binary(16), lambda r: r.randbytes(16))(rng, rows))


MAKERS: dict[str, Maker] = {
    "null": lambda _, rows: pa.nulls(rows),
    "bool": _of(pa.bool_(), lambda rng: rng.random() < 0.5),
    "int8": _of(pa.int8(), _integer(8)),
    "int16": _of(pa.int16(), _integer(16)),
    "int32": _of(pa.int32(), _integer(32)),
    "int64": _of(pa.int64(), _integer(64)),
    "uint8": _of(pa.uint8(), _integer(8, signed=False)),
    "uint16": _of(pa.uint16(), _integer(16, signed=False)),
    "uint32": _of(pa.uint32(), _integer(32, signed=False)),
    "uint64": _of(pa.uint64(), _integer(64, signed=False)),
    "float32": _of(pa.float32(), _real),
    "float64": _of(pa.float64(), _real),
    "float16": lambda rng, rows: _of(pa.float32(), _real)(rng, rows).cast(pa.float16()),
    "string": _of(pa.string(), _text),
    "large_string": _of(pa.large_string(), _text),
    "string_view": _of(pa.string_view(), _text),
    "binary": _of(pa.binary(), _blob),
    "large_binary": _of(pa.large_binary(), _blob),
    "binary_view": _of(pa.binary_view(), _blob),
    "fixed_binary": _of(pa.binary(5), lambda rng: rng.randbytes(5)),
    "date32": _of(pa.date32(), lambda rng: _instant(rng).date()),
    "date64": _of(pa.date64(), lambda rng: _instant(rng).date()),
    "time32": _of(pa.time32("ms"), lambda _: _TIME),
    "time64": _of(pa.time64("ns"), lambda _: _TIME),
    "timestamp": _of(pa.timestamp("us", "UTC"), _instant),
    "timestamp_s": _of(pa.timestamp("s"), lambda rng: _instant(rng).replace(tzinfo=None)),
    "duration": _of(pa.duration("ms"), lambda rng: dt.timedelta(milliseconds=rng.randrange(-(10**6), 10**6))),
    "decimal128": _of(pa.decimal128(12, 2), _number),
    "decimal128_wide": _of(pa.decimal128(38, 2), _number),
    "decimal256": _of(pa.decimal256(50, 2), _number),
    "interval": _of(pa.month_day_nano_interval(), lambda rng: pa.MonthDayNano([1, rng.randrange(9), 3])),
    "list": _of(pa.list_(pa.int32()), _ints),
    "large_list": _of(pa.large_list(pa.int32()), _ints),
    "list_view": _of(pa.list_view(pa.int32()), _ints),
    "large_list_view": _of(pa.large_list_view(pa.int32()), _ints),
    "fixed_list": _of(pa.list_(pa.int16(), 2), lambda rng: [rng.randrange(9), None]),
    "struct": _of(_RECORD, _record),
    "list_of_struct": _of(pa.list_(_RECORD), _records),
    "map": _of(pa.map_(pa.string(), pa.int32()), lambda rng: [(f"k{i}", i) for i in range(rng.randrange(3))]),
    "struct_of_view": _of(_VIEWS, _record),
    "list_of_views": _of(pa.list_(_VIEWS), _records),
    "dictionary": _dictionary,
    "struct_of_dictionary": _struct_of_dictionary,
    "run_ends": _run_ends,
    "dense_union": _dense_union,
    "sparse_union": _sparse_union,
    "uuid": _uuid,
}
"""A maker per type, by name."""

NO_KEYS = {"map", "interval", "dense_union", "sparse_union"}
"""The types that no hash takes."""

NO_SPARK_TYPES = {"uint8", "uint16", "uint32", "uint64", "float16", "date64", "time32", "decimal256"}
"""The types that Penstock's own hash takes and Spark's does not."""

SPARK_TYPES = (set(MAKERS) - NO_KEYS - NO_SPARK_TYPES) | {"interval"}
"""The types that Spark's hash takes."""


def sample(name: str, rows: int, seed: int = 0) -> pa.Array:
    """An array of one type."""
    return MAKERS[name](random.Random(f"{name} {seed}"), rows)


def batch_of(names: list[str], rows: int, seed: int = 0) -> pa.RecordBatch:
    """A batch with a row number and one column per type."""
    columns = [pa.array(range(rows), pa.int64()), *(sample(name, rows, seed + i) for i, name in enumerate(names))]
    return pa.RecordBatch.from_arrays(columns, ["row", *(f"{i}_{name}" for i, name in enumerate(names))])


def cuts(rng: random.Random, stream: bytes, largest: int) -> Iterator[memoryview]:
    """The stream in pieces of random size."""
    position, view = 0, memoryview(stream)
    while position < len(stream):
        size = rng.randrange(1, largest + 1)
        yield view[position : position + size]
        position += size
