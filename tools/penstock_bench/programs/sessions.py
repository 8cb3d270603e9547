# SPDX-License-Identifier: Apache-2.0
"""Sessions: the clicks of each user, cut where nothing came for half an hour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import penstock
from penstock_bench.programs.program import Program
from penstock_bench.programs.rows import Columns, named, write_tables

GAP = 1_800
CLICKS_OF_A_USER = 1_000
SESSIONS = "user string, session int, began long, clicks long, pages long"


def write(folder: Path, rows: int) -> None:
    """A month of clicks, a thousand of each user."""

    def clicks(random: np.random.Generator, count: int) -> Columns:
        return {
            "user": named("user-", random.integers(0, max(1, rows // CLICKS_OF_A_USER), count)),
            "time": random.integers(0, 30 * 86_400, count),
            "page": named("/page/", random.integers(0, 500, count)),
        }

    write_tables(folder, rows, clicks)


def sessions(clicks: pd.DataFrame) -> pd.DataFrame:
    """The sessions of one user."""
    clicks = clicks.sort_values("time", ignore_index=True)
    number = (clicks["time"].diff() > GAP).cumsum()
    found = clicks.groupby(number).agg(began=("time", "min"), clicks=("time", "size"), pages=("page", "nunique"))
    found.insert(0, "session", found.index.astype("int32"))
    found.insert(0, "user", clicks["user"].iloc[0])
    return found


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    clicks = spark.read.parquet(folder)
    found = clicks.groupBy("user").applyInPandas(sessions, SESSIONS)
    return found.groupBy("user").agg({"session": "count", "clicks": "max", "pages": "avg"})


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    clicks = penstock.readParquet(spark, folder)
    found = clicks.groupBy("user").applyInPandas(sessions, SESSIONS)
    return found.groupBy("user").agg({"session": "count", "clicks": "max", "pages": "avg"})


PROGRAM = Program(
    "sessions", "clicks grouped by user, cut in Pandas, counted", 400_000, write, (in_pyspark,), (in_penstock,)
)
