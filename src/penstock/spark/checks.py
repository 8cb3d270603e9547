# SPDX-License-Identifier: Apache-2.0
"""What Penstock cannot run on, refused in one clear sentence before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.graph.job_graph import JobGraph
from penstock.shuffle.errors import PlanError, SettingError

KILLERS = ("spark.python.worker.killOnIdleTimeout", "spark.sql.execution.pyspark.udf.killOnIdleTimeout")


def refuse_connect(spark: Any) -> None:
    """Refuse a Spark Connect session, and what is no session."""
    module = type(spark).__module__
    if "connect" in module:
        raise SettingError(
            "Penstock needs a classic SparkSession: a Spark Connect client has no driver process for the JobMaster"
            " to live in. Run the program on the driver (spark-submit, or without .remote(...))"
        )
    if not module.startswith("pyspark.sql"):
        raise SettingError(f"a SparkSession is needed, not a {type(spark).__name__}")


def refuse_conf(conf: Mapping[str, str], service: str) -> None:
    """Refuse settings of Spark under which pipelined stages would break."""
    if _is_true(conf, "spark.speculation"):
        raise SettingError(
            "spark.speculation=true starts second attempts of running tasks, which a pipelined exchange"
            " cannot have: set spark.speculation=false"
        )
    for key in KILLERS:
        if _is_true(conf, key):
            raise SettingError(
                f"{key}=true kills Python workers that wait for a slower stage (back-pressure): set it to false"
            )
    if service == "local" and _is_true(conf, "spark.dynamicAllocation.enabled"):
        raise SettingError(
            "spark.dynamicAllocation.enabled=true removes executors whose data the local shuffle service still holds:"
            " set it to false, or choose another service with spark.penstock.shuffle.service"
        )


def refuse_what_cannot_travel(graph: JobGraph) -> None:
    """Refuse a job whose functions or sources can't be sent to tasks, naming the first and why."""
    for vertex in graph.vertices:
        for operator in vertex.operators:
            _pickle(operator, operator.name)
        if vertex.source is not None:
            _pickle(vertex.source, f"the source {vertex.name}")
    for edge in graph.edges:
        _pickle(edge.exchange, f"the partition function of the exchange into {graph.vertex(edge.consumer).name}")


def _pickle(thing: object, name: str) -> None:
    from pyspark import cloudpickle

    try:
        cloudpickle.dumps(thing)
    except Exception as error:
        raise PlanError(
            f"{name} cannot be sent to tasks: {error} (make locks, connections, open files and sessions inside the"
            " function instead of using those of the driver)"
        ) from error


def python_hint(error: str) -> str:
    """What to do when the workers run another Python than the driver, or an empty string."""
    if "PYTHON_VERSION_MISMATCH" in error or "ModuleNotFoundError" in error or "No module named" in error:
        return (
            " (Spark's workers do not run this Python: set the environment variable PYSPARK_PYTHON, or"
            " spark.pyspark.python, to an interpreter with Penstock before the session is built)"
        )
    return ""


def _is_true(conf: Mapping[str, str], key: str) -> bool:
    return conf.get(key, "false").strip().lower() == "true"
