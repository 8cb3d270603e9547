# SPDX-License-Identifier: Apache-2.0
"""Two ledgers side by side: the entries of each account in which they differ, by `cogroup` and Pandas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import penstock
from penstock_bench.programs.program import Program
from penstock_bench.programs.rows import Columns, piece_number, write_tables

ENTRIES_OF_AN_ACCOUNT = 2_000
DIFFERENCE = "account long, day int, amount double, booked double"


def write(folder: Path, rows: int) -> None:
    """Two folders of entries; one in a hundred has another amount."""

    def entries(random: np.random.Generator, count: int) -> Columns:
        accounts = max(1, rows // 2 // ENTRIES_OF_AN_ACCOUNT)
        number = np.arange(count) + count * piece_number(random)
        return {
            "account": number % accounts,
            "day": (number // accounts).astype(np.int32),
            "amount": number % 977 + (random.random(count) < 0.01),
        }

    def others(random: np.random.Generator, count: int) -> Columns:
        random.random(count)
        return entries(random, count)

    write_tables(folder / "mine", rows // 2, entries)
    write_tables(folder / "theirs", rows // 2, others)


def differences(account: tuple[int], mine: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """The entries of one account whose amounts are not the same."""
    both = mine.merge(theirs[["day", "amount"]].rename(columns={"amount": "booked"}), on="day", how="outer")
    both["account"] = account[0]
    return both[both["amount"] != both["booked"]]


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    mine = spark.read.parquet(f"{folder}/mine").groupBy("account")
    theirs = spark.read.parquet(f"{folder}/theirs").groupBy("account")
    return mine.cogroup(theirs).applyInPandas(differences, DIFFERENCE)


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    mine = penstock.readParquet(spark, f"{folder}/mine").groupBy("account")
    theirs = penstock.readParquet(spark, f"{folder}/theirs").groupBy("account")
    return mine.cogroup(theirs).applyInPandas(differences, DIFFERENCE)


PROGRAM = Program(
    "two ledgers", "two tables cogrouped, compared in Pandas", 2_000_000, write, (in_pyspark,), (in_penstock,)
)
