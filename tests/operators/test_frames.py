# SPDX-License-Identifier: Apache-2.0
"""Frames show nested values exactly and give them back: integers beside nulls, maps, structs, timestamps."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import SchemaError
from penstock.operators.frames import batch_of, frame_of

BIG = 2**53 + 1
ZONE = "America/New_York"
INSTANT = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
WALL = dt.datetime(2026, 7, 1, 8)  # noqa: DTZ001 - the clock of that zone
LONG, TIME = pa.int64(), pa.timestamp("us", "UTC")
STRUCT = pa.struct([("x", LONG), ("t", TIME)])

CASES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "list": (pa.list_(LONG), [[BIG, None], None, []]),
    "large list": (pa.large_list(LONG), [[BIG, None], None]),
    "lists": (pa.list_(pa.list_(LONG)), [[[BIG, None], None], [[BIG], [BIG]]]),
    "map": (pa.map_(pa.string(), LONG), [[("k", BIG), ("l", None)], None]),
    "map by time": (pa.map_(TIME, LONG), [[(INSTANT, BIG)], [(INSTANT, None)]]),
    "struct": (STRUCT, [{"x": BIG, "t": INSTANT}, {"x": None, "t": None}, None]),
    "structs": (pa.list_(STRUCT), [[{"x": BIG, "t": INSTANT}, None], None]),
    "map in a struct": (
        pa.struct([("m", pa.map_(pa.string(), STRUCT))]),
        [{"m": [("k", {"x": BIG, "t": None}), ("l", None)]}, {"m": None}],
    ),
    "times": (pa.list_(TIME), [[INSTANT, None], None]),
    "lists of times": (pa.list_(pa.list_(TIME)), [[[INSTANT], [None], None], [[INSTANT], [INSTANT]]]),
    "wall times": (pa.struct([("t", pa.timestamp("us"))]), [{"t": WALL}, {"t": None}]),
    "no fields": (pa.struct([]), [{}, None]),
}


@pytest.mark.parametrize("whole", [True, False], ids=["table", "batch"])
@pytest.mark.parametrize("name", CASES)
def test_nested_values_come_back_as_they_were(name: str, whole: bool) -> None:
    """Through a frame and back nothing is lost, whatever is beside a null; also from the middle of an array."""
    kind, values = CASES[name]
    schema = pa.schema([("c", kind), ("n", pa.int8())])
    table = pa.table({"c": [None, *values, None], "n": range(len(values) + 2)}, schema).slice(1, len(values))
    rows: Any = table if whole else table.combine_chunks().to_batches()[0]
    for mapped in (True, False):
        frame = frame_of(rows, ZONE, mapped=mapped)
        assert list(frame.columns) == ["c", "n"]
        assert batch_of(frame, schema, ZONE, "f").column(0).to_pylist() == values


def test_functions_see_none_and_the_sessions_clock() -> None:
    """A null inside is None, a number is an int, and a time is what a clock of the session's zone shows."""
    import pandas as pd

    rows = pa.table({"c": [{"x": BIG, "t": INSTANT}, {"x": None, "t": None}]}, pa.schema([("c", STRUCT)]))
    assert frame_of(rows, ZONE)["c"].tolist() == [{"x": BIG, "t": pd.Timestamp(WALL)}, {"x": None, "t": None}]
    rows = pa.table({"c": [[INSTANT, None]]}, pa.schema([("c", pa.list_(TIME))]))
    (times,) = frame_of(rows, ZONE)["c"]
    assert (times.dtype, times[0], times[1]) == (object, pd.Timestamp(WALL), pd.NaT)


def test_times_come_back_from_the_sessions_clock() -> None:
    """Without a zone they are of the session's, with one they are that instant; an hour is there twice."""
    import pandas as pd

    schema = pa.schema([("c", pa.list_(TIME)), ("s", STRUCT)])
    twice = dt.datetime(2026, 11, 1, 1, 30)  # noqa: DTZ001 - as a function gives it
    frame = pd.DataFrame({"c": [[WALL, INSTANT, pd.Timestamp(INSTANT).tz_convert("Asia/Tokyo"), twice, None]]})
    frame["s"] = [(1, WALL)]
    found = batch_of(frame, schema, ZONE, "f").to_pylist()[0]
    assert found["c"] == [INSTANT, INSTANT, INSTANT, dt.datetime(2026, 11, 1, 6, 30, tzinfo=dt.UTC), None]
    assert found["s"] == {"x": 1, "t": INSTANT}


@pytest.mark.parametrize(
    ("others", "mapped", "expected"),
    [
        ({}, True, "float64"),
        ({"s": ["a", None]}, True, "Int64"),
        ({"l": [[1], None]}, True, "Int64"),
        ({"s": ["a", None]}, False, "float64"),
    ],
)
def test_integers_with_nulls_are_what_pyspark_has(others: dict[str, Any], mapped: bool, expected: str) -> None:
    """`mapInPandas` has pandas' nullable integers in frames of more than numbers and times."""
    rows = pa.table({"n": pa.array([BIG, None], LONG), "f": pa.array([1, 2], LONG), **others})
    frame = frame_of(rows, ZONE, mapped=mapped)
    assert [str(frame[name].dtype) for name in ("n", "f")] == [expected, "int64"]
    if expected == "Int64":
        assert batch_of(frame[["n"]], rows.select(["n"]).schema, ZONE, "f").column(0).to_pylist() == [BIG, None]


def test_frames_of_odd_columns() -> None:
    """Names that are there twice stay in their places; no rows and no columns are frames too."""
    kind = pa.list_(LONG)
    schema = pa.schema([("c", kind), ("c", LONG), ("c", kind)])
    table = pa.Table.from_arrays([pa.array([[1]], kind), pa.array([2], LONG), pa.array([[3]], kind)], schema=schema)
    frame = frame_of(table, ZONE)
    assert list(frame.columns) == ["c"] * 3
    assert [list(frame.iloc[0, 0]), frame.iloc[0, 1], list(frame.iloc[0, 2])] == [[1], 2, [3]]
    assert (frame_of(table.slice(0, 0), ZONE).shape, frame_of(table.select([]), ZONE).shape) == ((0, 3), (1, 0))


_NOON = ["2020-07-01 12:00:00", None, "2021-01-01 12:00:00"]
_INSTANTS = [dt.datetime(2020, 7, 1, 16, tzinfo=dt.UTC), None, dt.datetime(2021, 1, 1, 17, tzinfo=dt.UTC)]


@pytest.mark.parametrize("dtype", ["category", "timestamp[us][pyarrow]", "datetime64[us]"])
def test_times_of_any_dtype_are_on_the_sessions_clock(dtype: str) -> None:
    """Categories and Arrow's own times without a zone were taken for UTC, or ended the task."""
    import pandas as pd

    frame = pd.DataFrame({"t": pd.Series(pd.to_datetime(_NOON)).astype(dtype)})
    batch = batch_of(frame, pa.schema([("t", TIME)]), ZONE, "f")
    assert batch.column(0).to_pylist() == _INSTANTS


@pytest.mark.parametrize("kind", [TIME, pa.list_(TIME)], ids=str)
def test_times_that_pandas_has_no_clock_for_are_refused(kind: pa.DataType) -> None:
    """In 1500 pandas gave the wrong hour; the refusal names the column and the time."""
    import numpy as np
    import pandas as pd

    old = np.array(["1500-07-01T12:00:00"], "datetime64[ms]")
    frame = pd.DataFrame({"t": pd.Series(old) if kind == TIME else pd.Series([old])})
    with pytest.raises(SchemaError, match=r"column 't'.*1500-07-01 12:00:00 is out of the years"):
        batch_of(frame, pa.schema([("t", kind)]), ZONE, "f")


def test_arrays_of_several_dimensions_are_lists_of_lists() -> None:
    """As PySpark takes them; Arrow by itself takes one dimension."""
    import numpy as np
    import pandas as pd

    cube = np.arange(4).reshape(2, 1, 2)
    frame = pd.DataFrame({"m": [cube[0], None, [[7]]], "c": [cube, None, [[[7]]]]})
    lists = pa.list_(pa.list_(LONG))
    batch = batch_of(frame, pa.schema([("m", lists), ("c", pa.list_(lists))]), ZONE, "f")
    assert batch.to_pydict() == {"m": [[[0, 1]], None, [[7]]], "c": [[[[0, 1]], [[2, 3]]], None, [[[7]]]]}
