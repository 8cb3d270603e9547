# SPDX-License-Identifier: Apache-2.0
"""How many partitions Spark has of a DataFrame's rows, as far as its plan tells before anything runs."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

_RUNS = ("AdaptiveSparkPlan", "Exchange", "Subquery", "CollectLimit", "TakeOrderedAndProject", "BatchScan penstock")

_MOST = 1000


def known_partitions(frame: DataFrame) -> int | None:
    """The number; None where it is decided while the query runs, as it is behind an exchange of Spark's, or large."""
    plan: Any = frame._jdf.queryExecution().executedPlan()  # noqa: SLF001 - PySpark has no public view of plans
    # Ahead of an exchange Spark may draw samples or send a table to all hosts, just to say what there will be.
    if any(word in line for line in str(plan.toString()).splitlines() for word in _RUNS):
        return None
    count = int(plan.execute().getNumPartitions())
    return count if 0 < count <= _MOST else None
