# SPDX-License-Identifier: Apache-2.0
"""A function over frames sees each type, plain and nested, as PySpark shows it, and its rows come back."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses
from pyspark.sql import types as t

import penstock
from penstock.operators.frames import batch_of, frame_of
from penstock.spark.types import arrow_schema, conform_batch
from session_probe import conf

pytestmark = pytest.mark.spark

ZONE = "America/New_York"
TIME = dt.datetime(2026, 7, 1, 12, 30, 0, 5)  # noqa: DTZ001 - as PySpark takes and gives it
BIG = 2**53 + 1
PLAIN: dict[str, tuple[t.DataType, Any]] = {
    "byte": (t.ByteType(), 5),
    "long": (t.LongType(), BIG),
    "text": (t.StringType(), "a"),
    "bytes": (t.BinaryType(), b"\x00b"),
    "real": (t.DoubleType(), 1.5),
    "flag": (t.BooleanType(), True),
    "money": (t.DecimalType(10, 2), Decimal("1.50")),
    "day": (t.DateType(), dt.date(2026, 3, 5)),
    "instant": (t.TimestampType(), TIME),
    "wall": (t.TimestampNTZType(), TIME),
    "span": (t.DayTimeIntervalType(), dt.timedelta(hours=3, microseconds=7)),
}
NUMBERS = ["byte", "long", "real", "flag", "day", "instant", "wall", "bytes"]
"""In a frame of these PySpark has other types than in one with texts."""


def columns() -> dict[str, tuple[t.DataType, list[Any]]]:
    """All columns with two values each, nulls beside and inside them, and arrays without any."""
    found: dict[str, tuple[t.DataType, list[Any]]] = {}
    for name, (kind, value) in PLAIN.items():
        struct = t.StructType([t.StructField("x", kind), t.StructField("y", t.LongType())])
        found[name] = (kind, [value, None])
        found[f"{name}_full"] = (kind, [value, value])
        found[f"{name}_list"] = (t.ArrayType(kind), [[value, None], None])
        found[f"{name}_empty"] = (t.ArrayType(kind), [[], None])
        found[f"{name}_empties"] = (t.ArrayType(struct), [[], None])
        found[f"{name}_map"] = (t.MapType(t.StringType(), kind), [{"k": value, "l": None}, None])
        found[f"{name}_key"] = (t.MapType(kind, t.LongType()), [{value: BIG}, {value: None}])
        found[f"{name}_struct"] = (struct, [(value, BIG), (None, None)])
        found[f"{name}_structs"] = (t.ArrayType(struct), [[(value, 1), None, (None, None)], None])
        found[f"{name}_lists"] = (t.MapType(t.StringType(), t.ArrayType(kind)), [{"k": [value, None]}, None])
    return found


@pytest.fixture(scope="module")
def frame(spark: Any) -> Iterator[Any]:
    """Two rows of all columns in one batch, in a session of a zone far from UTC."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    types = columns()
    schema = t.StructType([t.StructField(name, kind) for name, (kind, _) in types.items()])
    rows = [[values[place] for _, values in types.values()] for place in (0, 1)]
    yield spark.createDataFrame(spark.sparkContext.parallelize(rows, 1), schema)
    spark.conf.set("spark.sql.session.timeZone", before)


def described(value: Any) -> Any:
    """A value with its types, at every depth."""
    import numpy as np

    if isinstance(value, np.ndarray) and not len(value):
        return []  # of structs and times PySpark makes an array of float64 there: a listed difference
    if isinstance(value, np.ndarray):
        return [str(value.dtype), [described(item) for item in value]]
    if isinstance(value, dict):
        return [[described(key), described(item)] for key, item in value.items()]
    return [type(value).__name__, repr(value)]


def seen(frame: Any) -> dict[str, str]:
    """The values of each column that a function sees."""
    return {str(name): f"{frame[name].dtype} {[described(v) for v in frame[name]]}" for name in frame.columns}


def shown(frames: Iterator[Any]) -> Iterator[Any]:
    """One row for each column."""
    import pandas as pd

    for frame in frames:
        yield pd.DataFrame(list(seen(frame).items()), columns=["name", "text"])


def shown_of_group(frame: Any) -> Any:
    """The same for a group."""
    return next(shown(iter([frame])))


def rows_of(frame: Any) -> pa.Table:
    """The rows as a task gets them."""
    table = frame.toArrow().combine_chunks()
    (batch,) = table.to_batches()
    return pa.Table.from_batches([conform_batch(batch, arrow_schema(frame.schema))])


def different(found: dict[str, str], expected: dict[str, str]) -> dict[str, tuple[str, str]]:
    """The columns that are not shown as they should be."""
    return {name: (found[name], expected[name]) for name in expected if found[name] != expected[name]}


@pytest.mark.parametrize("names", [list(columns()), NUMBERS], ids=["all", "numbers"])
def test_frames_of_a_task_are_pysparks(frame: Any, names: list[str]) -> None:
    """`mapInPandas` shows every value and every type that PySpark shows."""
    chosen = frame.select(*names)
    expected = {row.name: row.text for row in chosen.mapInPandas(shown, "name string, text string").collect()}
    assert different(seen(frame_of(rows_of(chosen), ZONE, mapped=True)), expected) == {}


def test_frames_of_a_group_are_pysparks(frame: Any) -> None:
    """`applyInPandas` does, too."""
    grouped = frame.withColumn("key", F.lit(1)).groupBy("key")
    expected = {
        row.name: row.text for row in grouped.applyInPandas(shown_of_group, "name string, text string").collect()
    }
    found = seen(frame_of(rows_of(frame.withColumn("key", F.lit(1))), ZONE))
    assert different(found, expected) == {}


def test_what_goes_through_a_frame_comes_back(frame: Any) -> None:
    """Every column does, also those of which PySpark makes something else."""
    rows = rows_of(frame)
    back = batch_of(frame_of(rows, ZONE, mapped=True), rows.schema, ZONE, "f")
    wrong = [name for name in rows.column_names if back[name].to_pylist() != rows[name].combine_chunks().to_pylist()]
    assert wrong == []


def _clock(rows: Any) -> list[str]:
    """The hours and the types of what a function is given, as text: both change with the zone."""
    kind = rows.schema.field("many").type
    return [f"{hour} {kind}" for hour in pc.hour(rows.column("t")).to_pylist()]


def _clocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"shown": _clock(batch)})


def test_functions_over_arrow_see_the_sessions_zone(spark: Any) -> None:
    """The hour of an instant is that of PySpark, alone and in a list: batches, groups and their keys, cogroups."""
    text = "shown string"

    def of_group(key: Any, table: pa.Table) -> pa.Table:
        return pa.table({"shown": [f"{each} {key[0].type}" for each in _clock(table)]})

    def of_both(left: pa.Table, right: pa.Table) -> pa.Table:
        return pa.table({"shown": _clock(left) + _clock(right)})

    with conf(spark, {"spark.sql.session.timeZone": ZONE}):
        frame = spark.sql("SELECT timestamp'2026-07-01 22:30:00' AS t, array(timestamp'2026-01-01 01:00:00') AS many")
        rows = penstock.fromDataFrame(frame)
        grouped, groups = rows.keyBy("t"), frame.groupBy("t")
        pairs = (
            (rows.mapInArrow(_clocks, text), frame.mapInArrow(_clocks, text)),
            (grouped.applyInArrow(of_group, text), groups.applyInArrow(of_group, text)),
            (
                grouped.cogroup(rows.keyBy("t")).applyInArrow(of_both, text),
                groups.cogroup(frame.groupBy("t")).applyInArrow(of_both, text),
            ),
        )
        for ours, theirs in pairs:
            expected = sorted(row.shown for row in theirs.collect())
            assert expected[0].startswith("22 ")
            assert sorted(row.shown for row in ours.collect()) == expected
