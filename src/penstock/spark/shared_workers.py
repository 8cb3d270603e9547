# SPDX-License-Identifier: Apache-2.0
"""Lets our RDD tasks run in the Python workers that SQL's tasks run in, and the other way round.

Spark keeps a pool of Python workers, and a daemon that forks them, for each set of environment variables. SQL sets
one more than RDDs do, so what ran an RDD's task is not used to read a DataFrame: a second daemon starts, and its
workers import everything once more. The same variables make it one pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pyspark import RDD, SparkContext

_FLAGS = {
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": ("SPARK_SIMPLIFIED_TRACEBACK", "true"),
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": ("SPARK_HIDE_TRACEBACK", "false"),
}
"""The variables that SQL sets in its workers: setting, variable, and Spark's own value of the setting."""
_T = TypeVar("_T")


def in_shared_workers(rdd: RDD[_T], conf: Mapping[str, str]) -> RDD[_T]:
    """The same RDD with the environment of SQL's workers; call it on the last one, before an action."""
    rdd.ctx = _Context(rdd.ctx, sql_variables(conf))
    return rdd


def sql_variables(conf: Mapping[str, str]) -> dict[str, str]:
    """The variables that SQL adds in a session with this conf."""
    return {name: "1" for key, (name, usual) in _FLAGS.items() if conf.get(key, usual).strip().lower() == "true"}


class _Context:
    """A SparkContext with more in the environment of its workers; PySpark reads it when an action runs."""

    def __init__(self, context: SparkContext, variables: Mapping[str, str]) -> None:
        self._context = context
        self.environment = {**context.environment, **variables}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
