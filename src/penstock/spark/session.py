# SPDX-License-Identifier: Apache-2.0
"""A local SparkSession with settings that suit Penstock, for the command line, examples and tests."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark.java import find_java

_LOGGING = Path(__file__).resolve().with_name("log4j2.properties")

MIN_SLOTS = 4
"""Pipelined stages need slots at the same time, also on a machine with few cores."""


def build_session(app_name: str, slots: int | None = None, conf: dict[str, str] | None = None) -> SparkSession:
    """A local session with `slots` task slots (default: the cores, at least four), or the one there is already."""
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    count = slots or max(MIN_SLOTS, os.cpu_count() or 1)
    builder = SparkSession.builder.master(f"local[{count}]").appName(app_name)
    for key, value in {**_defaults(), **(conf or {})}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextlib.contextmanager
def open_session(
    app_name: str, slots: int | None = None, conf: dict[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session for a `with` block; at its end everything of Penstock's and Spark's on it is stopped."""
    from penstock.spark.runtime import SparkRuntime

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    quiet = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"}
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # a JVM killed along with us is no news
    spark = build_session(app_name, slots, {**quiet, **(conf or {})})
    try:
        yield spark
    finally:
        if spark.sparkContext._jsc is not None:  # noqa: SLF001 - how PySpark itself tells that it is not stopped yet
            SparkRuntime.of(spark).close()
        spark.stop()


def _defaults() -> dict[str, str]:
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
