# SPDX-License-Identifier: Apache-2.0
"""Rows of files brought to a stream's columns: what is the same type, and what is refused by name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import SchemaError
from penstock.graph import plain_type
from penstock.operators.projection import Projection

MOMENT = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC)
UTC, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
PAIR = pa.struct([("x", pa.int64()), ("y", pa.string())])

TAKEN: list[tuple[pa.Array, pa.DataType, list[Any]]] = [
    (pa.array([1], pa.int8()), pa.int64(), [1]),
    (pa.array([1], pa.int64()), pa.int64(), [1]),
    (pa.array([1], pa.int32()), pa.int8(), [1]),
    (pa.array([1], pa.uint32()), pa.int64(), [1]),
    (pa.array([7], pa.int32()), pa.float64(), [7.0]),
    (pa.array([7], pa.int32()), pa.decimal128(12, 2), [Decimal(7)]),
    (pa.array([7], pa.int64()), pa.decimal128(20, 0), [Decimal(7)]),
    (pa.array([1.5], pa.float32()), pa.float64(), [1.5]),
    (pa.array([Decimal("1.5")], pa.decimal128(9, 1)), pa.decimal128(12, 3), [Decimal("1.500")]),
    (pa.array([dt.date(2024, 1, 2)]), LOCAL, [dt.datetime(2024, 1, 2)]),  # noqa: DTZ001 - a local time
    (pa.array([MOMENT.replace(tzinfo=None)], LOCAL), UTC, [MOMENT]),
    (pa.array([MOMENT], pa.timestamp("ms", "Europe/Paris")), UTC, [MOMENT]),
    (pa.array([b"a"]), pa.string(), ["a"]),
    (pa.array(["a"], pa.string_view()), pa.string(), ["a"]),
    (pa.array(["a", "a"]).dictionary_encode(), pa.string(), ["a", "a"]),
    (pa.array([[1], None], pa.large_list(pa.int32())), pa.list_(pa.int64()), [[1], None]),
    (pa.array([{"Y": "a", "z": 0}, None]), PAIR, [{"x": None, "y": "a"}, None]),
    (pa.array([[("k", {"x": 1})]], pa.map_(pa.large_string(), pa.struct([("x", pa.int32())]))),
     pa.map_(pa.string(), PAIR), [[("k", {"x": 1, "y": None})]]),
    (pa.nulls(1), pa.int64(), [None]),
    (pa.array([65504.0, None], pa.float16()), pa.float32(), [65504.0, None]),
    (pa.array([Decimal("9.99"), None]).cast(pa.decimal64(18, 2)), pa.decimal128(18, 2), [Decimal("9.99"), None]),
    (pa.array([[1, 2], None, [3]], pa.list_view(pa.int64())), pa.list_(pa.int64()), [[1, 2], None, [3]]),
    (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None])), pa.string(), ["{}", None]),
]  # fmt: skip


@pytest.mark.parametrize(("column", "wanted", "values"), TAKEN, ids=[f"{c.type} as {w}" for c, w, _ in TAKEN])
def test_what_spark_takes_is_taken(column: pa.Array, wanted: pa.DataType, values: list[Any]) -> None:
    """Narrower numbers, other layouts, fields of structs by name: of a slice too, and known ahead of all rows."""
    schema = pa.schema([("c", wanted)])
    projection = Projection(schema, "f")
    projection.check(pa.schema([("c", column.type)]))
    for part in (column, pa.concat_arrays([column, column]).slice(len(column))):
        found = projection.project(pa.record_batch([part], ["c"]))
        assert found.schema.equals(schema)
        found.validate(full=True)
        assert found.column(0).to_pylist() == values


REFUSED = [
    (pa.int64(), pa.int32()),
    (pa.int64(), pa.float64()),
    (pa.int64(), pa.string()),
    (pa.string(), pa.int64()),
    (pa.float64(), pa.float32()),
    (pa.float32(), pa.int64()),
    (pa.bool_(), pa.int32()),
    (pa.date32(), UTC),
    (UTC, pa.date32()),
    (pa.decimal128(12, 2), pa.decimal128(12, 3)),
    (pa.list_(pa.int64()), pa.int64()),
    (PAIR, pa.struct([("x", pa.int32())])),
]


@pytest.mark.parametrize(("found", "wanted"), REFUSED, ids=[f"{f} as {w}" for f, w in REFUSED])
def test_what_spark_refuses_is_refused_by_name(found: pa.DataType, wanted: pa.DataType) -> None:
    """Before a row is read, with the file and the column."""
    with pytest.raises(SchemaError, match=r"^f: column 'c' is .* there, and the stream's is"):
        Projection(pa.schema([("c", wanted)]), "f").check(pa.schema([("c", found)]))


def test_columns_are_found_by_name() -> None:
    """In whatever order and case, missing ones null, others left out; two of one name but for case are refused."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    batch = pa.record_batch({"more": [0], "B": ["x"]})
    assert Projection(schema, "f").project(batch).to_pylist() == [{"a": None, "b": "x"}]
    assert Projection(schema, "f").columns(batch.schema) == ["B"]
    exact = Projection(schema, "f", is_case_sensitive=True)
    assert exact.project(batch).to_pylist() == [{"a": None, "b": None}]
    both = pa.record_batch({"b": ["x"], "B": ["y"]})
    assert exact.project(both).to_pylist() == [{"a": None, "b": "x"}]
    with pytest.raises(SchemaError, match=r"f: column 'b' is 'b', 'B': set spark.sql.caseSensitive"):
        Projection(schema, "f").project(both)


def test_a_value_that_does_not_fit_is_refused() -> None:
    """The type may be taken, the value not: with the file's name and the reason."""
    batch = pa.record_batch({"c": pa.array([300], pa.int32())})
    with pytest.raises(SchemaError, match=r"f: column 'c' .*300 not in range"):
        Projection(pa.schema([("c", pa.int8())]), "f").project(batch)


def test_plain_types_are_those_of_spark() -> None:
    """One layout for all strings, lists and instants, at any depth; numbers and nanoseconds stay as they are."""
    for kind, plain in (
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.large_list(pa.string_view()), pa.list_(pa.string())),
        (pa.list_(pa.float32(), 3), pa.list_(pa.float32())),
        (pa.struct([("t", pa.timestamp("s", "Asia/Tokyo"))]), pa.struct([("t", UTC)])),
        (pa.map_(pa.large_string(), pa.date64()), pa.map_(pa.string(), pa.date32())),
        (pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.uint8(), pa.uint8()),
        (pa.decimal32(9, 2), pa.decimal128(9, 2)),
        (pa.decimal64(18, 2), pa.decimal128(18, 2)),
        (pa.decimal256(39, 2), pa.decimal256(39, 2)),
        (pa.list_(pa.float16()), pa.list_(pa.float32())),
        (pa.struct([("j", pa.json_(pa.large_string()))]), pa.struct([("j", pa.string())])),
        (pa.uuid(), pa.uuid()),
    ):
        assert plain_type(kind).equals(plain)
