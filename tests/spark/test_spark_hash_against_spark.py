# SPDX-License-Identifier: Apache-2.0
"""Spark is the oracle: `spark_hash` must give what `hash(...)` gives, for every type and odd value."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.record.spark_hash import spark_hash, spark_partition_ids

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(spark: Any) -> Any:
    """A session in UTC that knows the type `time`."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.timeType.enabled", "true")
    return session


def _raw(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _integers(rng: random.Random, bits: int) -> list[int | None]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return [0, 1, -1, high, low, None, 5, *(rng.randrange(low, high) for _ in range(33))]


def _columns() -> dict[str, pa.Array]:
    rng = random.Random(7)
    ints = functools.partial(_integers, rng)
    texts = ["", "a", "ab", "abc", "abcd", "abcde", "ü", "日本語", "\U0001f600" * 3, None, "x" * 1000, "\x7f\x00"]
    texts += ["".join(rng.choice("abcäöü€ ") for _ in range(rng.randrange(40))) for _ in range(28)]
    blobs = [b"", b"\xff", b"\x80\x81\x82", None, bytes(range(256)) * 20] + [rng.randbytes(k) for k in range(35)]
    days = ints(16)
    micros = [None if v is None else v * 977 for v in ints(48)]
    doubles = [0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), 1e-310, None] + [
        rng.gauss(0, 1e9) for _ in range(32)
    ]
    return {
        "bool": pa.array([v if v is None else v % 2 == 0 for v in ints(8)]),
        "int8": pa.array(ints(8), pa.int8()),
        "int16": pa.array(ints(16), pa.int16()),
        "int32": pa.array(ints(32), pa.int32()),
        "int64": pa.array(ints(64), pa.int64()),
        "float": pa.array(doubles, pa.float64()).cast(pa.float32(), safe=False),
        "double": pa.array(doubles),
        "string": pa.array(texts),
        "binary": pa.array(blobs),
        "date": pa.array(days, pa.int32()).cast(pa.date32()),
        "timestamp": pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC")),
        "timestamp_ntz": pa.array(micros, pa.int64()).cast(pa.timestamp("us")),
        "interval": pa.array(micros, pa.int64()).cast(pa.duration("us")),
        "time": pa.array([None if v is None else abs(v) * 1000 for v in ints(36)], pa.int64()).cast(pa.time64("ns")),
        "decimal9": pa.array(ints(24), pa.int32()).cast(pa.decimal128(18, 2)),
        "decimal38": _decimals(rng),
        "null": pa.nulls(40),
        "struct": pa.array(
            [None if i == 3 else {"a": v, "b": t} for i, (v, t) in enumerate(zip(ints(64), texts, strict=True))]
        ),
        "list": pa.array([None if i == 4 else ints(16)[: i % 7] for i in range(40)], pa.list_(pa.int32())),
        "nested": pa.array([[{"k": texts[i], "v": [1.5, None, -0.0]}, None][: i % 3] for i in range(40)]),
    }


def _decimals(rng: random.Random) -> pa.Array:
    edges = [0, 1, -1, 127, 128, -128, -129, 255, 256, 32767, 32768, -32768, 10**37, -(10**37), 1 << 63, -(1 << 63)]
    values = edges + [rng.randrange(-(10 ** rng.randrange(1, 38)), 10**37) for _ in range(23)]
    raw = b"".join(v.to_bytes(16, "little", signed=True) for v in [*values, 0])
    array = pa.Array.from_buffers(pa.decimal128(38, 0), 40, [None, pa.py_buffer(raw)])
    return pa.concat_arrays([array.slice(0, 39), pa.nulls(1, array.type)])


def _oracle(spark: Any, table: pa.Table, *keys: str) -> list[int]:
    from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

    frame = spark.createDataFrame(table)
    return [row[0] for row in frame.select(F.hash(*[F.col(key) for key in keys])).collect()]


def test_every_type(spark: Any) -> None:
    """Each type on its own, with nulls, extremes, odd lengths and unicode."""
    from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

    columns = _columns()
    frame = spark.createDataFrame(pa.table(columns))
    rows = frame.select(*[F.hash(F.col(name)).alias(name) for name in columns]).collect()
    for name, column in columns.items():
        assert spark_hash([column]).tolist() == [row[name] for row in rows], name


def test_several_columns_are_chained(spark: Any) -> None:
    """The order of columns counts and nulls pass the hash on."""
    columns = _columns()
    for keys in (["int64", "string", "double"], ["nested", "null", "decimal38"], list(columns)):
        expected = _oracle(spark, pa.table(columns), *keys)
        assert spark_hash([columns[key] for key in keys]).tolist() == expected


def test_every_nan_is_one(spark: Any) -> None:
    """NaN with several bit patterns, quiet and signalling, positive and negative."""
    patterns = np.array(
        [0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 99, (0x7FF0 << 48) + 1, (0xFFF4 << 48)], np.uint64
    )
    narrow = np.array([0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7F800001, 0xFFA00000], np.uint32)
    table = pa.table({"d": _raw(patterns, pa.float64()), "f": _raw(narrow, pa.float32())})
    for name in ("d", "f"):
        assert spark_hash([table[name].chunk(0)]).tolist() == _oracle(spark, table, name)


def test_units_are_converted_as_spark_does(spark: Any) -> None:
    """Seconds, milli- and nanoseconds (also negative) land on the microsecond Spark puts them on."""
    values = pa.array([0, 1, -1, 1_500, -1_500, 999, -999, 1_234_567_891, -1_234_567_891], pa.int64())
    kinds = [make(unit) for make in (pa.timestamp, pa.duration) for unit in ("s", "ms", "us", "ns")]
    kinds += [pa.timestamp("ns", "UTC"), pa.timestamp("s", "Europe/Berlin"), pa.time64("us")]
    for kind in kinds:
        column = values
        if kind == pa.time64("us"):
            column = pa.array([abs(v.as_py()) for v in values], pa.int64())
        elif kind == pa.duration("ns"):  # PySpark refuses to cut these
            column = pa.array([v.as_py() * 1000 for v in values], pa.int64())
        column = column.cast(kind)
        assert spark_hash([column]).tolist() == _oracle(spark, pa.table({"c": column}), "c"), kind


def test_many_random_strings(spark: Any) -> None:
    """All lengths from 0 to 70 mixed in one column, and rows long enough for the way of a few rows."""
    rng = random.Random(3)
    values = [rng.randbytes(rng.randrange(71)) for _ in range(3000)] + [rng.randbytes(n) for n in (5_000, 70_001)]
    rng.shuffle(values)
    column = pa.array(values)
    assert spark_hash([column]).tolist() == _oracle(spark, pa.table({"c": column}), "c")


def test_calendar_interval(spark: Any) -> None:
    """Months, days and microseconds, each mixed in Spark's order."""
    parts = [(14, 25, 18367.5), (-3, 0, 0.0), (0, -40, -1.25), (0, 0, 0.000001)]
    sql = " union all ".join(f"select {i} i, hash(make_interval(0, {m}, 0, {d}, 0, 0, {s})) h"
                             for i, (m, d, s) in enumerate(parts))  # fmt: skip
    expected = [row.h for row in spark.sql(sql).orderBy("i").collect()]
    column = pa.array([pa.MonthDayNano([m, d, round(s * 1e9)]) for m, d, s in parts])
    assert spark_hash([column]).tolist() == expected


def test_partition_ids_are_where_repartition_puts_rows(spark: Any) -> None:
    """`repartition(n, key)` and `spark_partition_ids` agree row by row."""
    from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

    column = pa.array([*range(-500, 500), None], pa.int64())
    for n in (1, 7, 16, 300):
        frame = spark.createDataFrame(pa.table({"c": column})).repartition(n, "c")
        placed = {row.c: row.p for row in frame.select("c", F.spark_partition_id().alias("p")).collect()}
        ids = spark_partition_ids([column], n)
        assert ids.dtype == (np.uint8 if n <= 256 else np.uint16)
        assert dict(zip(column.to_pylist(), ids.tolist(), strict=True)) == placed


def test_spark_refuses_what_we_refuse(spark: Any) -> None:
    """Maps: an error on both sides."""
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException):
        spark.sql("select hash(map(1, 2))")
