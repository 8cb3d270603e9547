# SPDX-License-Identifier: Apache-2.0
"""`penstock.latestRows`: the newest row of each key in a folder that a query writes with `epochColumn`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.api.known_arguments import suggests_arguments
from penstock.errors import PlanError

if TYPE_CHECKING:
    from penstock.spark.user_types import DataFrame, SparkSession

EPOCH = "epoch"


@suggests_arguments
def latestRows(
    spark: SparkSession, path: str, *keys: str, epoch: int | None = None, epochColumn: str = EPOCH
) -> DataFrame:
    """A DataFrame of the newest row of each key in the Parquet files of `path`, without the column of epochs.

    The query writes with `option("keyColumns", "k")`. With `epoch`, the number of a complete checkpoint, the rows are
    those of that moment; without one those of the newest that is published whole, or is being published.
    """
    from penstock.spark.newest_rows import newest_rows

    if not keys or not all(isinstance(key, str) for key in keys):
        raise TypeError("latestRows takes the names of the key columns: latestRows(spark, path, 'user')")
    frame = spark.read.parquet(str(path))
    missing = [name for name in (*keys, epochColumn) if name not in frame.columns]
    if missing:
        raise PlanError(
            f"latestRows: {path} has no column {missing[0]!r}, only {', '.join(frame.columns)}: a query with"
            " option('keyColumns', ...) writes it"
        )
    if epoch is not None:
        frame = frame.filter(frame[epochColumn] <= epoch)
    found: DataFrame = newest_rows(frame, keys, epochColumn)
    return found
