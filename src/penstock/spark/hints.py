# SPDX-License-Identifier: Apache-2.0
"""One-time advice about a pipeline that would be faster written another way."""

from __future__ import annotations

import warnings

from pyspark.sql import DataFrame

given: set[str] = set()
"""The hints that this process has given."""


class PenstockHint(UserWarning):
    """Advice; nothing is wrong. Silence it with `warnings.simplefilter("ignore", PenstockHint)`."""


class PenstockWarning(UserWarning):
    """Something is wrong here of which a job may fail."""


def hint_parquet(frame: DataFrame, stacklevel: int = 3) -> None:
    """Say once that a DataFrame which only reads Parquet files need not go through the JVM."""
    if "parquet" in given or not is_parquet_scan(frame):
        return
    given.add("parquet")
    warnings.warn(
        "this DataFrame only reads Parquet files: penstock.readParquet(spark, path) reads them as Arrow in the"
        " Python workers and skips the JVM's rows",
        PenstockHint,
        stacklevel=stacklevel,
    )


def is_parquet_scan(frame: DataFrame) -> bool:
    """Tell whether a DataFrame's plan is one bare scan of Parquet files."""
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark has no public view of plans
    if plan.getClass().getSimpleName() != "LogicalRelation":
        return False
    relation = plan.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return False
    return "parquet" in str(relation.fileFormat().toString()).lower()
