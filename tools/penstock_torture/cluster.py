# SPDX-License-Identifier: Apache-2.0
"""Spark's `local-cluster` on one machine: executors that are processes of their own, each with an environment.

Spark starts executors by the programs of `SPARK_HOME`, which must be set before this process has a JVM, and they work
in folders of its `work`. Such a folder is named after the second in which the application started, and nothing says
whose it is: so each process has a `SPARK_HOME` of its own, of links, and removes no folder that another one works in.
The memory is what two executors and a driver need on a small machine.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MASTER = "local-cluster[2,2,1024]"
SLOTS = 4
CONF = {
    "spark.master": MASTER,
    "spark.executor.memory": "512m",
    "spark.penstock.environment.scope": "executor",
    "spark.penstock.network.memory": "64m",
    "spark.log.level": "OFF",
}


@contextlib.contextmanager
def open_cluster(app_name: str) -> Iterator[Any]:
    """A session on two executors with two slots each, within `spark_home`; at the end all of it is stopped."""
    from penstock.spark.runtime import SparkRuntime
    from penstock.spark.session import open_session
    from penstock.testing import wait_until

    with open_session(app_name, None, dict(CONF)) as spark:
        spark.sparkContext.setLogLevel("OFF")  # killed executors are no news
        runtime = SparkRuntime.of(spark)
        wait_until(lambda: runtime.total_slots() == SLOTS, "both executors are there", 60)
        yield spark


@contextlib.contextmanager
def spark_home() -> Iterator[None]:
    """For a `with` block, executors can be started: from before this process has a JVM until no session needs it.

    The folders that executors work in are this process's own, and go at the end.
    """
    import pyspark

    before = os.environ.get("SPARK_HOME")
    with tempfile.TemporaryDirectory(prefix="spark-home-", ignore_cleanup_errors=True) as folder:
        for path in Path(before or Path(pyspark.__file__).parent).absolute().iterdir():
            if path.name != "work":
                Path(folder, path.name).symlink_to(path)
        os.environ["SPARK_HOME"] = folder
        try:
            yield
        finally:
            os.environ.pop("SPARK_HOME")
            if before is not None:
                os.environ["SPARK_HOME"] = before
