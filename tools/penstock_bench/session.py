# SPDX-License-Identifier: Apache-2.0
"""The one Spark session of a bench, with what is best for Spark's own shuffle on one machine.

Measured choices: Unix sockets and batches of 65,536 rows between the JVM and Python, a heap that does not run
into garbage collection, and no coalescing of shuffle partitions behind our back; adaptive execution stays on.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from typing import Any

SLOTS = 8
"""Four consumers, and as many for the source: with two sources on two cores the consumers starve at the end."""


def bench_session(
    slots: int = SLOTS, conf: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[Any]:
    """A session for a `with` block; `conf` is added to what suits Spark best."""
    from penstock.spark.session import open_session

    best = {
        "spark.driver.memory": f"{_heap_gigabytes()}g",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
    }
    return open_session("penstock-bench", slots, {**best, **(conf or {})})


def machine() -> dict[str, Any]:
    """The facts that the figures depend on."""
    import pyarrow as pa
    import pyspark

    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pa.__version__,
    }


def collect_garbage(spark: Any) -> None:
    """Let the JVM collect now what a run left, and not in the middle of the next one."""
    spark.sparkContext._jvm.System.gc()  # noqa: SLF001 - PySpark has no public way


def _heap_gigabytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return max(1, min(4, total // 4))
