# SPDX-License-Identifier: Apache-2.0
"""The newest row of each key of a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn


def newest_rows(frame: DataFrame, keys: Sequence[str], order: str) -> DataFrame:
    """Of each key the row with the greatest value of `order`, without that column."""
    names = [name for name in frame.columns if name != order]
    newest = fn.max_by(fn.struct(*[fn.col(f"`{name}`") for name in names]), fn.col(f"`{order}`")).alias("newest")
    found = frame.groupBy(*[f"`{key}`" for key in keys]).agg(newest)
    return found.select(*[fn.col("newest").getField(name).alias(name) for name in names])
