# SPDX-License-Identifier: Apache-2.0
"""Windows of batch jobs are Spark's: the same rows for tumbling, sliding and session windows, in any time zone."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

import penstock
from effort import some_of
from penstock.errors import PlanError, SchemaError

pytestmark = pytest.mark.spark

ZONES = ("UTC", "Asia/Kathmandu", "America/St_Johns")


def events(spark: SparkSession, seed: int) -> DataFrame:
    """Rows of a few keys around the beginning of 1970 and of a summer time, some without a time, a key or a value."""
    chance = random.Random(seed)
    rows: list[tuple[str | None, datetime | None, int | None]] = []
    for first in (datetime(1969, 12, 31, 23, 50), datetime(2024, 3, 31, 0, 30)):  # noqa: DTZ001 - the session's zone
        for _ in range(150):
            time = first + timedelta(
                microseconds=chance.choice((0, 1, 1_000_000)) + chance.randrange(6000) * 1_000_000
            )
            key = chance.choice(("a", "b", "c", None))
            rows.append((key, None if chance.random() < 0.05 else time, chance.choice((None, *range(10)))))
    return spark.createDataFrame(rows, "k string, ts timestamp, v long")


WINDOWS: dict[str, Column | Any] = {
    "tumbling": lambda: F.window("ts", "10 minutes"),
    "with a start": lambda: F.window("ts", "1 hour", startTime="15 minutes"),
    "before the start": lambda: F.window("ts", "1 hour", "1 hour", "-20 minutes"),
    "sliding": lambda: F.window("ts", "10 minutes", "5 minutes"),
    "that share no divisor": lambda: F.window("ts", "10 minutes", "4 minutes", "1 second"),
    "of a day": lambda: F.window("ts", "1 day"),
    "a session": lambda: F.session_window("ts", "40 seconds"),
    "a session of touching rows": lambda: F.session_window(F.date_trunc("minute", "ts"), "1 minute"),
    "under a name": lambda: F.window("ts", "2 hours 30 minutes").alias("w"),
    "of an expression": lambda: F.window(F.col("ts") + F.expr("interval 7 seconds"), "90 seconds"),
    "of a field with a column's name": lambda: F.window("came.ts", "1 hour"),
    "of a cast, which has the column's name": lambda: F.window(F.col("ts").cast("timestamp_ntz"), "1 day"),
    "of another column by this one's name": lambda: F.window(F.col("second").alias("ts"), "1 hour"),
    "of a text that is cast": lambda: F.session_window(F.col("text").cast("timestamp"), "1 minute"),
}


def same(ours: DataFrame, theirs: DataFrame) -> None:
    """The same columns, types and rows."""
    assert ours.columns == theirs.columns
    assert [field.dataType for field in ours.schema] == [field.dataType for field in theirs.schema]
    assert Counter(map(str, ours.collect())) == Counter(map(str, theirs.collect()))


@pytest.mark.parametrize("name", some_of(list(WINDOWS), 20))
def test_windows_are_sparks(spark: SparkSession, name: str) -> None:
    """By window and key, and by window alone; null times are in none, null keys are a key; zones take turns."""
    zone = ZONES[list(WINDOWS).index(name) % len(ZONES)]
    former = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        more = ("*", "ts + INTERVAL 3 DAYS AS second", "named_struct('ts', ts + INTERVAL 9 DAYS) AS came")
        frame = events(spark, ZONES.index(zone)).selectExpr(*more, "string(ts) AS text").cache()
        aggregates = [F.count("*").alias("n"), F.sum("v").alias("s"), F.max("v"), F.avg("v")]
        for keys in (("k",), ()):
            ours = penstock.fromDataFrame(frame).groupBy(*keys, WINDOWS[name]()).agg(*aggregates).toDF()
            same(ours, frame.groupBy(*keys, WINDOWS[name]()).agg(*aggregates))
    finally:
        spark.conf.set("spark.sql.session.timeZone", former or "UTC")


def test_windows_of_windows_are_sparks(spark: SparkSession) -> None:
    """A window is aggregated again by its last moment."""
    frame = events(spark, 7)
    counts = penstock.fromDataFrame(frame).groupBy("k", F.window("ts", "5 minutes")).agg(n=("*", "count"))
    ours = counts.groupBy(F.window("window", "20 minutes")).agg(most=("n", "max")).toDF()
    counted = frame.groupBy("k", F.window("ts", "5 minutes")).agg(F.count("*").alias("n"))
    same(ours, counted.groupBy(F.window("window", "20 minutes")).agg(F.max("n").alias("most")))


def test_periods_open_at_an_end_are_groups_as_for_spark(spark: SparkSession) -> None:
    """Structs that a user made: of two times, without one, without both, and none at all, by and without a key."""
    times = "CASE WHEN v % {0} = 0 THEN NULL ELSE date_trunc('hour', ts) END"
    period = f"named_struct('start', {times.format(2)}, 'end', {times.format(3)})"
    frame = events(spark, 5).selectExpr("k", "v", f"CASE WHEN v = 5 THEN NULL ELSE {period} END AS period")
    frame = frame.cache()
    for keys in (("k", "period"), ("period",)):
        same(penstock.fromDataFrame(frame).groupBy(*keys).count().toDF(), frame.groupBy(*keys).count())
    kept = frame.where("period IS NOT NULL").selectExpr("coalesce(period, period) AS period")
    theirs = frame.groupBy("period").count().collect()
    shapes = {None if p is None else (p.start is None, p.end is None) for p, _ in theirs}
    assert shapes == {None, (True, True), (True, False), (False, True), (False, False)}
    same(penstock.fromDataFrame(kept).groupBy("period").count().toDF(), kept.groupBy("period").count())


@pytest.mark.thorough
def test_sessions_of_sessions_are_sparks(spark: SparkSession, tmp_path: Path) -> None:
    """By fewer keys they touch, and are one: under another name, out of DataFrames and files, in Spark's hands."""
    frame = events(spark, 7).withColumn("parity", F.col("v") % 2)
    keys = ("k", "parity", F.session_window("ts", "2 minutes"))
    sessions = penstock.fromDataFrame(frame).groupBy(*keys).agg(n=("*", "count")).filter("n > 1")
    theirs = frame.groupBy(*keys).agg(F.count("*").alias("n")).filter("n > 1")
    most = F.max("n").alias("most")
    ours = sessions.withColumnRenamed("session_window", "w").select("n", "w", "k").groupBy("k", "w").agg(most).toDF()
    wanted = theirs.withColumnRenamed("session_window", "w").groupBy("k", "w").agg(most)
    assert wanted.count() < theirs.count(), "some are one"
    same(ours, wanted)
    same(
        penstock.fromDataFrame(theirs).groupBy("session_window").agg(most).toDF(),
        (wanted := theirs.groupBy("session_window").agg(most)),
    )
    same(sessions.toDF().groupBy("session_window").agg(most), wanted)
    for place, written in (("spark", theirs.write.parquet), ("ours", sessions.writeParquet)):
        written(folder := str(tmp_path / place))
        same(penstock.readParquet(spark, folder).groupBy("session_window").agg(most).toDF(), wanted)
        same(spark.read.parquet(folder).groupBy("session_window").agg(most), wanted)


def test_times_without_a_zone_have_windows_too(spark: SparkSession) -> None:
    """TIMESTAMP_NTZ stays what it is."""
    frame = events(spark, 3).withColumn("ts", F.col("ts").cast("timestamp_ntz"))
    ours = penstock.fromDataFrame(frame).groupBy(F.window("ts", "7 minutes", "2 minutes")).count().toDF()
    same(ours, frame.groupBy(F.window("ts", "7 minutes", "2 minutes")).count())


MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "two windows": (lambda s: s.groupBy(F.window("ts", "1 hour"), F.window("ts", "1 day")), PlanError, "2 windows"),
    "no time": (lambda s: s.groupBy(F.window("v", "1 hour")), SchemaError, "a window is of timestamps"),
    "no column": (lambda s: s.groupBy(F.window("x", "1 hour")), SchemaError, "x"),
    "a long slide": (lambda s: s.groupBy(F.window("ts", "1 hour", "2 hours")), PlanError, "a slide of 2 hours"),
    "a long start": (lambda s: s.groupBy(F.window("ts", "1 hour", "1 hour", "1 hour")), PlanError, "startTime"),
    "months": (lambda s: s.groupBy(F.window("ts", "1 month")), PlanError, "no fixed length"),
    "a gap of its own for each row": (
        lambda s: s.groupBy(F.session_window("ts", F.when(F.col("v") > 1, "1 minute").otherwise("1 hour"))),
        PlanError,
        "one length for all rows",
    ),
    "many tasks for windows without a key": (
        lambda s: s.groupBy(F.window("ts", "1 hour"), numPartitions=3),
        PlanError,
        "in one partition, not in 3",
    ),
    "a join by windows": (
        lambda s: s.groupBy(F.window("ts", "1 hour")).count().groupBy("window").join,
        AttributeError,
        "no keys of a join",
    ),
    "each window once": (
        lambda s: s.groupBy(F.window("ts", "1 hour")).count().distinct(),
        SchemaError,
        "cannot be grouped by",
    ),
    "a function of a window's rows": (
        lambda s: s.groupBy(F.window("ts", "1 hour")).applyInArrow,
        AttributeError,
        "date_trunc",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_windows_that_can_not_be_are_refused(spark: SparkSession, mistake: str) -> None:
    """By what is wrong with them."""
    attempt, kind, words = MISTAKES[mistake]
    with pytest.raises(kind, match=words):
        attempt(penstock.fromDataFrame(events(spark, 1)))


def test_a_window_needs_no_session(spark: SparkSession) -> None:
    """`penstock.window` is what `F.window` is."""
    frame = events(spark, 2)
    stream = penstock.fromDataFrame(frame)
    for ours, theirs in (
        (
            penstock.window("ts", "10 minutes", "5 minutes", "1 minute"),
            F.window("ts", "10 minutes", "5 minutes", "1 minute"),
        ),
        (penstock.session_window("ts", "1 minute").alias("s"), F.session_window("ts", "1 minute").alias("s")),
    ):
        one, other = (stream.groupBy("k", key).count().toDF().toArrow() for key in (ours, theirs))
        assert one.schema == other.schema
        assert Counter(map(str, one.to_pylist())) == Counter(map(str, other.to_pylist()))
    assert isinstance(one, pa.Table)
