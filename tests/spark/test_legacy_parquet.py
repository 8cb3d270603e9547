# SPDX-License-Identifier: Apache-2.0
"""Parquet of Spark's old calendar, written by Spark in its mode LEGACY, and as Spark 2 wrote it: PySpark's rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import penstock
from underway import listed

pytestmark = pytest.mark.spark

ZONES = ("Europe/Berlin", "America/Los_Angeles", "UTC", "Asia/Kolkata")
KINDS = ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS")
TEXTS = [
    "id",
    "unix_date(d) d",
    "unix_micros(t) t",
    "unix_date(l[0].d) l",
    "unix_micros(map_values(m)[0]) m",
]
"""Numbers, for years that Python has no dates of."""


def instants(seed: int) -> list[int]:
    """Microseconds of all times, most of them before 1900, and those around the switches."""
    draw = random.Random(seed)
    switches = [-62135773200, -62135600008, -12219296400, -12219292800, -2422054408, -2208988800]
    near = [each + draw.randint(-2 * 86400, 2 * 86400) for each in switches for _ in range(4)]
    return [each * 10**6 for each in [*near, *(draw.randint(-70_000_000_000, 2_000_000_000) for _ in range(40))]]


def numbers(frame: Any) -> list[tuple[Any, ...]]:
    """All values of a frame as numbers, in order."""
    return sorted(tuple(row) for row in frame.selectExpr(*TEXTS).collect())


def test_old_files_have_the_rows_that_spark_reads(spark: Any, tmp_path: Path) -> None:
    """Days and instants of each kind, in several zones in one folder, nested, under a filter; a file of Spark 2."""
    kept = {
        name: spark.conf.get(name)
        for name in (
            "spark.sql.session.timeZone",
            "spark.sql.parquet.outputTimestampType",
            "spark.sql.parquet.datetimeRebaseModeInWrite",
            "spark.sql.parquet.int96RebaseModeInWrite",
        )
    }
    folder = str(tmp_path / "in")
    try:
        for name in list(kept)[2:]:
            spark.conf.set(name, "LEGACY")
        for number, zone in enumerate(ZONES):
            spark.conf.set("spark.sql.session.timeZone", zone)
            spark.conf.set("spark.sql.parquet.outputTimestampType", KINDS[number % len(KINDS)])
            rows = spark.createDataFrame(
                [
                    (number * 1000 + at, micros, micros // 86_400_000_000)
                    for at, micros in enumerate(instants(number))
                ],
                "id long, micros long, days long",
            ).selectExpr("id", "date_from_unix_date(int(days)) d", "timestamp_micros(micros) t")
            rows = rows.selectExpr("*", "array(named_struct('d', d)) l", "map('k', t) m")
            rows.coalesce(1).write.mode("append").parquet(folder)
        for name, value in kept.items():
            spark.conf.set(name, value)
        (path,) = (file for file in listed(Path(folder), "*.parquet") if b"Los_Angeles" in file.read_bytes())
        table = pq.read_table(path)
        footer = {key: value for key, value in table.schema.metadata.items() if b"legacy" not in key}
        footer.pop(b"org.apache.spark.timeZone")  # Spark 2 did not say it: it is the JVM's own
        footer[b"org.apache.spark.version"] = b"2.4.8"
        pq.write_table(table.replace_schema_metadata(footer), f"{folder}/of-2.parquet", store_schema=False)
        right = spark.read.parquet(folder)
        assert numbers(penstock.readParquet(spark, folder).toDF()) == numbers(right)
        condition = "d < DATE'1582-10-20' AND t < TIMESTAMP'1500-01-01 00:00:00'"
        found = numbers(penstock.readParquet(spark, folder, filter=condition).toDF())
        assert found
        assert found == numbers(right.filter(condition))
    finally:
        for name, value in kept.items():
            spark.conf.set(name, value)
