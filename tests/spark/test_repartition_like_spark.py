# SPDX-License-Identifier: Apache-2.0
"""`penstock.repartition` puts every row where Spark's own `repartition` puts it, for every type that can be a key.

Without columns both spread rows evenly, in their own order.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

import penstock
from effort import some_of
from session_probe import SessionProbe

pytestmark = pytest.mark.spark

PARTITIONS = 5

KEYS = {
    "boolean": "IF(id % 5 = 0, NULL, id % 2 = 0)",
    "byte": "IF(id % 7 = 0, NULL, CAST(id % 200 - 100 AS BYTE))",
    "short": "IF(id % 7 = 0, NULL, CAST(id * 331 % 60000 - 30000 AS SHORT))",
    "int": "IF(id % 7 = 0, NULL, CAST(id * 7919 - 700000 AS INT))",
    "long": "IF(id % 7 = 0, NULL, id * 9223372036854 - 461168601842738790)",
    "float": """CASE id % 9 WHEN 0 THEN NULL WHEN 1 THEN CAST('NaN' AS FLOAT) WHEN 2 THEN CAST(-0.0 AS FLOAT)
        WHEN 3 THEN CAST(0.0 AS FLOAT) WHEN 4 THEN CAST('-Infinity' AS FLOAT) ELSE CAST(id AS FLOAT) / -7 END""",
    "double": """CASE id % 9 WHEN 0 THEN NULL WHEN 1 THEN CAST('NaN' AS DOUBLE) WHEN 2 THEN -0.0D WHEN 3 THEN 0.0D
        WHEN 4 THEN CAST('Infinity' AS DOUBLE) ELSE id / -7 END""",
    "string": """CASE id % 6 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN CONCAT('käse-', id)
        ELSE REPEAT(CAST(id AS STRING), CAST(id % 9 AS INT)) END""",
    "binary": """CASE id % 6 WHEN 0 THEN NULL WHEN 1 THEN X'' WHEN 2 THEN X'FF00'
        ELSE CAST(CAST(id AS STRING) AS BINARY) END""",
    "date": "IF(id % 7 = 0, NULL, DATE_ADD(DATE'1969-06-01', CAST(id AS INT)))",
    "timestamp": "IF(id % 7 = 0, NULL, TIMESTAMP_MICROS(id * 1234567891 - 617283945500000))",
    "timestamp_ntz": "IF(id % 7 = 0, NULL, TIMESTAMP_NTZ'1969-06-01 12:00:00' + id * INTERVAL '7' HOUR)",
    "decimal_small": "IF(id % 7 = 0, NULL, CAST((id - 500) / 3 AS DECIMAL(9, 2)))",
    "decimal_18": "IF(id % 7 = 0, NULL, CAST(id * 12345678901 - 99999 AS DECIMAL(18, 3)))",
    "decimal_large": """CASE id % 7 WHEN 0 THEN NULL WHEN 1 THEN CAST(id - 500 AS DECIMAL(38, 6))
        ELSE CAST(id AS DECIMAL(38, 6)) * -123456789012345678901 END""",
    "struct": "IF(id % 7 = 0, NULL, NAMED_STRUCT('a', IF(id % 3 = 0, NULL, id), 'b', CAST(id % 11 AS STRING)))",
    "array": """CASE id % 6 WHEN 0 THEN NULL WHEN 1 THEN ARRAY() WHEN 2 THEN ARRAY(NULL, id, NULL)
        ELSE SEQUENCE(0, id % 5) END""",
    "nested": "ARRAY(NAMED_STRUCT('x', ARRAY(id, NULL), 'y', IF(id % 2 = 0, NULL, CAST(id AS STRING))))",
    "day_time": "IF(id % 7 = 0, NULL, MAKE_DT_INTERVAL(CAST(id - 500 AS INT), 1, 2, 3.5))",
}
"""Each key type, with nulls and its awkward values."""


@pytest.fixture(scope="module")
def source(spark: Any) -> Any:
    """A thousand rows with a column per key type, written out once: both sides read the same."""
    columns = ", ".join(f"{expression} AS k_{name}" for name, expression in KEYS.items())
    frame = spark.sql(f"SELECT id, {columns} FROM range(0, 1000, 1, 2)").cache()  # noqa: S608 - our own text
    assert frame.count() == 1000
    yield frame
    frame.unpersist()


def places(frame: Any) -> list[tuple[int, int]]:
    """Each row's number with the partition it is in."""
    from pyspark.sql import functions as f

    rows = frame.select("id", f.spark_partition_id().alias("partition")).collect()
    return sorted((row.id, row.partition) for row in rows)


def compared(source: Any, *keys: str) -> None:
    """The same places, and the same rows, on both sides."""
    narrow = source.select(*dict.fromkeys(("id", *keys)))
    ours = penstock.repartition(narrow, PARTITIONS, *keys)
    theirs = narrow.repartition(PARTITIONS, *keys)
    found = places(ours)
    assert found == places(theirs)
    assert len({partition for _, partition in found}) > 1, "this says nothing"


@pytest.mark.parametrize("name", some_of(["boolean", "string", "double", "decimal_large", "nested", "timestamp"], 2))
def test_same_place(source: Any, name: str) -> None:
    """One key column. The hash of every type is compared with Spark's in `tests/record`."""
    compared(source, f"k_{name}")


@pytest.mark.thorough
def test_several_columns(source: Any) -> None:
    """The hash goes on from column to column, nulls in between included."""
    compared(source, "k_int", "k_string", "k_decimal_large", "k_double")
    compared(source, "k_date", "id")


def test_values_come_through(source: Any) -> None:
    """Not only the place: every value of every type is what it was."""
    ours = {row.id: row for row in penstock.repartition(source, 3, "id").collect()}
    assert len(ours) == 1000
    for row in source.collect():
        got = ours[row.id]
        for name in source.columns:
            left, right = row[name], got[name]
            if isinstance(left, float) and math.isnan(left):
                assert math.isnan(right), name
            else:
                assert left == right, name
                assert not isinstance(left, float) or math.copysign(1, left) == math.copysign(1, right), name


def test_number_alone_spreads_evenly(spark: Any) -> None:
    """Round-robin: all rows, once each, and partitions of nearly one size."""
    ours = places(penstock.repartition(spark.range(0, 1000, 1, 2), PARTITIONS))
    assert [row for row, _ in ours] == list(range(1000))
    sizes = Counter(partition for _, partition in ours)
    assert sorted(sizes) == list(range(PARTITIONS))
    assert max(sizes.values()) - min(sizes.values()) <= 2


def test_columns_alone_take_the_slots_at_hand(spark: Any) -> None:
    """Without a number there are as many partitions as slots are left, never 200."""
    frame = penstock.repartition(spark.range(0, 1000, 1, 1), "id")
    partitions = frame.rdd.getNumPartitions()
    assert 1 < partitions <= 8
    assert frame.count() == 1000
    assert SessionProbe(spark).slots_in_use() == 0


def test_user_defined_types_and_variants_keep_their_type(spark: Any) -> None:
    """Through exchanges, verbs, functions and unions: the DataFrame has the type and the values that it had."""
    from pyspark.ml.linalg import Vectors

    vectors = spark.createDataFrame([(1, Vectors.dense([1.0, 2.0])), (2, Vectors.sparse(3, [0], [1.0]))], ["k", "v"])
    variants = spark.sql("""SELECT k, array(parse_json(concat('{"a":', k, '}'))) v FROM VALUES (1), (2) AS t(k)""")
    for frame in some_of((vectors, variants), 2):
        stream = penstock.fromDataFrame(frame)
        ways = [
            penstock.repartition(frame, 2, "k"),
            stream.filter("k > 0").select("v", "k").withColumn("n", "k + 1").drop("n").select("k", "v").toDF(),
            stream.keyBy("k").applyInArrow(lambda rows: rows, frame.schema).toDF(),
            stream.filter("k = 1").union(penstock.fromDataFrame(frame).filter("k = 2")).toDF(),
        ]
        right = sorted(map(str, frame.collect()))
        for way in ways:
            assert way.schema["v"].dataType == frame.schema["v"].dataType
            assert sorted(map(str, way.collect())) == right
