# SPDX-License-Identifier: Apache-2.0
"""What a Python worker of Spark's does once in its life, because it runs many tasks.

PySpark collects garbage after every task: with PyArrow and PySpark loaded that is 15 ms of each, 1 ms where what the
imports made is left out. And the environment's memory stays mapped between tasks (`services/local/kept_memory`).
"""

from __future__ import annotations

import gc
import sys

from penstock.services.local.kept_memory import kept_memory

_is_settled = False


def settle_in() -> None:
    """Call it at the beginning of a task, behind the imports; does something once, and in a worker only."""
    global _is_settled
    if not _is_settled and _is_worker():
        _is_settled = True
        kept_memory.keep()
        gc.collect()
        gc.freeze()


def _is_worker() -> bool:
    """Whether Spark has started this process: `python -m pyspark.daemon` or `pyspark.worker`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.partition(".")[0] == "pyspark"
