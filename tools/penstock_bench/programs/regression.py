# SPDX-License-Identifier: Apache-2.0
"""A line fitted to the rows of each group, by `applyInPandas`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import penstock
from penstock_bench.programs.program import Program
from penstock_bench.programs.rows import Columns, write_tables

ROWS_OF_A_SHOP = 4_000
LINE = "shop long, slope double, start double"


def write(folder: Path, rows: int) -> None:
    """Prices and sales of shops, with a line in them."""

    def sales(random: np.random.Generator, count: int) -> Columns:
        shop = random.integers(0, max(1, rows // ROWS_OF_A_SHOP), count)
        price = random.random(count) * 10
        return {"shop": shop, "price": price, "sold": 100 - shop % 7 * price + random.normal(size=count)}

    write_tables(folder, rows, sales)


def line(sales: pd.DataFrame) -> pd.DataFrame:
    """The line of one shop."""
    slope, start = np.polyfit(sales["price"], sales["sold"], 1)
    return pd.DataFrame({"shop": sales["shop"].iloc[:1], "slope": slope, "start": start})


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    sales = spark.read.parquet(folder)
    return sales.groupBy("shop").applyInPandas(line, LINE)


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    sales = penstock.readParquet(spark, folder)
    return sales.groupBy("shop").applyInPandas(line, LINE)


PROGRAM = Program(
    "regression", "a line fitted in Pandas to each of 500 groups", 2_000_000, write, (in_pyspark,), (in_penstock,)
)
