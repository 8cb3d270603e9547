# SPDX-License-Identifier: Apache-2.0
"""Spark's `local-cluster` on one machine: executors that are processes of their own, each with an environment.

Spark starts executors by the programs of `SPARK_HOME`, which must be set before this process has a JVM; what they
leave in its folder `work` is removed at the end. The memory is what two executors and a driver need on a small
machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MASTER = "local-cluster[2,2,1024]"
SLOTS = 4
_CONF = {
    "spark.master": MASTER,
    "spark.executor.memory": "512m",
    "spark.penstock.environment.scope": "executor",
    "spark.penstock.network.memory": "64m",
    "spark.log.level": "OFF",
}


@contextlib.contextmanager
def open_cluster(app_name: str) -> Iterator[Any]:
    """A session on two executors with two slots each; at the end all of it is stopped."""
    from penstock.spark.runtime import SparkRuntime
    from penstock.spark.session import open_session
    from penstock.testing import wait_until

    with spark_home(), open_session(app_name, None, dict(_CONF)) as spark:
        spark.sparkContext.setLogLevel("OFF")  # killed executors are no news
        runtime = SparkRuntime.of(spark)
        wait_until(lambda: runtime.total_slots() == SLOTS, "both executors are there", 60)
        yield spark


@contextlib.contextmanager
def spark_home() -> Iterator[None]:
    """For a `with` block, executors can be started: before the first session of this process."""
    import pyspark

    home = Path(os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent)))
    work = home / "work"
    before = set(work.iterdir()) if work.exists() else set()
    try:
        yield
    finally:
        for path in set(work.iterdir()) - before if work.exists() else ():
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            work.rmdir()
