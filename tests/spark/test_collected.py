# SPDX-License-Identifier: Apache-2.0
"""Rows that the driver reads itself are those of a DataFrame: values, Python types, Arrow types, pandas dtypes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PythonException

import penstock
from effort import with_all
from penstock.api.actions import all_rows
from penstock.errors import JobError
from session_probe import conf

pytestmark = pytest.mark.spark

VALUES = """
    SELECT 1 AS id, true AS b, 1Y AS i1, 2S AS i2, 3 AS i4, 4L AS i8, 1.5F AS f4, 2.5D AS f8, 12.30BD AS d,
      'ä' AS s, X'00FF' AS x, DATE'1969-12-31' AS day, TIMESTAMP'2026-03-29 02:30:00.000001' AS at,
      TIMESTAMP_NTZ'1900-01-01 00:00:00' AS ntz, array(1, NULL) AS a, map('k', array(X'01')) AS m,
      named_struct('when', TIMESTAMP'2001-01-01 00:00:00', 'deep', named_struct('n', 1)) AS st,
      array(map(1, 'x')) AS am
    UNION ALL SELECT 2, NULL, NULL, NULL, NULL, NULL, float('nan'), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
      NULL, NULL, NULL
"""
OTHERS = "SELECT 1 AS id, INTERVAL '1' DAY AS span, 'a' COLLATE UTF8_LCASE AS word"


def streams(spark: Any, query: str) -> tuple[Any, Any]:
    """A stream of these rows, sorted, and the DataFrame."""
    frame = spark.sql(query).orderBy("id").localCheckpoint()
    return penstock.fromDataFrame(frame).sortBy("id", numPartitions=1), frame


def types_of(value: Any) -> Any:
    """The Python types in a value, nested ones too."""
    if isinstance(value, dict):
        return dict, [(types_of(key), types_of(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [types_of(item) for item in value]
    return type(value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        with_all({"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.execution.arrow.pyspark.enabled": "true"}),
        with_all(
            {
                "spark.sql.execution.arrow.useLargeVarTypes": "true",
                "spark.sql.execution.arrow.pyspark.enabled": "true",
                "spark.sql.execution.arrow.pyspark.selfDestruct.enabled": "true",
            }
        ),
    ],
    ids=["defaults", "Tokyo", "large"],
)
def test_rows_are_those_of_a_dataframe(spark: Any, settings: dict[str, str]) -> None:
    """Every plain type and null, in `collect`, `take`, `toArrow` and `toPandas`, under settings that change them."""
    stream, frame = streams(spark, VALUES)
    with conf(spark, settings):
        ours = all_rows(stream.branches, spark, "collect")
        assert not isinstance(ours, type(frame)), "the driver is to read these itself"
        mine, theirs = stream.collect(), frame.collect()
        assert repr(mine) == repr(theirs)
        assert types_of(mine) == types_of(theirs)
        assert repr(stream.take(1)) == repr(theirs[:1])
        assert stream.toArrow().num_rows == 2, "PySpark's own form fails at the null struct"
        stream, frame = stream.drop("st"), frame.drop("st")
        assert stream.toArrow().schema == frame.toArrow().schema
        assert str(stream.toArrow()) == str(frame.toArrow())
        pd.testing.assert_frame_equal(stream.toPandas(), frame.toPandas(), check_exact=True)


def test_no_rows_and_other_types(spark: Any) -> None:
    """An empty result has its schema; types that PySpark converts in the JVM, or no columns, come by a DataFrame."""
    stream, frame = (rows.drop("st") for rows in streams(spark, VALUES))
    nothing = stream.filter("id > 5")
    assert nothing.collect() == []
    assert nothing.toArrow().schema == frame.toArrow().schema
    pd.testing.assert_frame_equal(nothing.toPandas(), frame.filter("id > 5").toPandas())
    stream, frame = streams(spark, OTHERS)
    assert stream.collect() == frame.collect()
    assert [stream.select("id").drop("id").count(), len(stream.select("id").drop("id").collect())] == [1, 1]


def test_what_a_function_raises_is_pysparks_error(spark: Any) -> None:
    """Out of each action a `PythonException` and `JobError`: the user's error first, his frames, the place."""

    def bad(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("boom")

    stream = penstock.fromDataFrame(spark.range(4)).mapInArrow(bad, "id long")
    for action in (stream.collect, stream.count, stream.run):
        with pytest.raises(PythonException) as caught:
            action()
        assert isinstance(caught.value, JobError)
        lines = str(caught.value).splitlines()
        assert lines[:2] == ["ValueError: boom (in mapInArrow(bad))", "Traceback (most recent call last):"]
        assert "in bad" in lines[2]
        assert lines[4] == "ValueError: boom"
        assert lines[5].startswith("raised in mapInArrow(bad)")
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - made here
