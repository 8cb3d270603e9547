# SPDX-License-Identifier: Apache-2.0
"""Features of sensor readings by `mapInPandas`, and their means for each sensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import penstock
from penstock_bench.programs.program import Program
from penstock_bench.programs.rows import Columns, write_tables

FEATURES = "sensor long, level double, swing double, phase double"
MEANS = {"level": "avg", "swing": "max", "phase": "avg"}


def write(folder: Path, rows: int) -> None:
    """Readings of five thousand sensors."""

    def readings(random: np.random.Generator, count: int) -> Columns:
        return {
            "sensor": random.integers(0, 5_000, count),
            "second": random.integers(0, 86_400, count),
            "low": random.random(count),
            "high": 1 + random.random(count),
        }

    write_tables(folder, rows, readings)


def features(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Level, swing and phase of the day of each reading."""
    for frame in frames:
        yield pd.DataFrame({
            "sensor": frame["sensor"],
            "level": np.log1p(frame["low"] * frame["high"]),
            "swing": np.sqrt(frame["high"] - frame["low"]),
            "phase": np.sin(frame["second"] * (2 * np.pi / 86_400)),
        })  # fmt: skip


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    readings = spark.read.parquet(folder)
    return readings.mapInPandas(features, FEATURES).groupBy("sensor").agg(MEANS)


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    readings = penstock.readParquet(spark, folder)
    return readings.mapInPandas(features, FEATURES).groupBy("sensor").agg(MEANS)


PROGRAM = Program(
    "features", "readings to features in Pandas, their means", 3_000_000, write, (in_pyspark,), (in_penstock,)
)
