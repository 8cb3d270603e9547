# SPDX-License-Identifier: Apache-2.0
"""The key that functions over frames are given is what stands in the frame, as in PySpark."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from penstock.operators.cogroup import CoGroupApply, CoGroupApplyInPandas
from penstock.operators.frame_keys import FrameKeys
from penstock.operators.frames import batch_of, frame_of
from penstock.operators.functions import GroupApply, GroupApplyInPandas, GroupForm
from penstock.operators.groups import Side

ZONE = "America/New_York"
MICROS = 1_583_042_706_123_456
COLUMNS = {
    **{f"int{bits}": pa.array([5, None], f"int{bits}") for bits in (8, 16, 32, 64)},
    "float": pa.array([1.5, None], pa.float32()),
    "double": pa.array([1.5, None]),
    "boolean": pa.array([True, None]),
    "string": pa.array(["x", None]),
    "binary": pa.array([b"x", None]),
    "decimal": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
    "date": pa.array([18000, None], pa.date32()),
    "timestamp": pa.array([MICROS, None], pa.timestamp("us", "UTC")),
    "timestamp of seconds": pa.array([MICROS // 10**6, None], pa.timestamp("s", "UTC")),
    "timestamp_ntz": pa.array([MICROS, None], pa.timestamp("us")),
    "interval": pa.array([MICROS, None], pa.duration("us")),
    "time": pa.array([3_600_000_000_000, None], pa.time64("ns")),
    "void": pa.nulls(2),
}


def same(one: Any, other: Any) -> bool:
    """Of one type, and equal or both missing."""
    if type(one) is not type(other):
        return False
    return one is other or bool(pd.isna(one) and pd.isna(other)) or bool(one == other)


@pytest.mark.parametrize("name", COLUMNS)
def test_keys_are_what_stands_in_the_frame(name: str) -> None:
    """For each type, with and without a value: the first row of a frame of that group."""
    column = COLUMNS[name]
    keys = FrameKeys([column.type], ZONE)
    for row in range(2):
        frame = frame_of(pa.RecordBatch.from_arrays([column.slice(row, 1)], names=["k"]), ZONE)
        (found,) = keys.of((column[row],))
        assert same(found, frame["k"][0]), (found, frame["k"][0])


def test_keys_of_a_dictionary_are_those_of_its_values() -> None:
    """A frame shows a dictionary as categories, which PySpark never has; the key is the value."""
    column = pa.array(["x", None]).dictionary_encode()
    keys = FrameKeys([column.type], ZONE)
    assert [keys.of((scalar,)) for scalar in column] == [("x",), (None,)]


def test_operators_give_these_keys() -> None:
    """Over groups and over cogroups: a timestamp is the session's local time, without a zone."""
    schema = pa.schema([("k", pa.timestamp("us", "UTC")), ("n", pa.int32())])
    batch = pa.record_batch([pa.array([MICROS], schema.field(0).type), pa.array([7], pa.int32())], schema=schema)
    seen: list[tuple[Any, ...]] = []

    def note(key: tuple[Any, ...], *frames: Any) -> Any:
        seen.append(key)
        return frames[0]

    group = GroupApply(schema, ("k", "n"), note, GroupForm(with_key=True), schema)
    list(GroupApplyInPandas(group, ZONE).apply(iter([batch])))
    side = Side(schema, ("k", "n"))
    list(CoGroupApplyInPandas(CoGroupApply((side, side), note, True, schema), ZONE).apply([iter([batch])] * 2))
    expected = (pd.Timestamp("2020-03-01 01:05:06.123456"), 7)
    assert seen == [expected, expected]
    assert all(key[0].tz is None and type(key[1]).__name__ == "int32" for key in seen)


def test_maps_are_dicts_in_a_frame_and_come_back() -> None:
    """At any depth, as PySpark shows them to functions; the frame fits the schema that it came from."""
    kind = pa.map_(pa.string(), pa.int32())
    columns = {
        "m": pa.array([[("a", 1)], None, []], kind),
        "l": pa.array([[[("a", 1)]], None, []], pa.list_(kind)),
        "s": pa.array([{"m": [("a", 1)]}, None, {"m": None}], pa.struct([("m", kind)])),
        "n": pa.array([[("k", [("a", 1)])], None, []], pa.map_(pa.string(), kind)),
    }
    rows = pa.RecordBatch.from_pydict(columns)
    frame = frame_of(rows, ZONE)
    assert [frame["m"][row] for row in range(3)] == [{"a": 1}, None, {}]
    assert frame["l"][0][0] == {"a": 1}
    assert frame["s"][0] == {"m": {"a": 1}}
    assert frame["n"][0] == {"k": {"a": 1}}
    assert batch_of(frame, rows.schema, ZONE, "test").equals(rows)
