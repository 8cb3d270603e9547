# SPDX-License-Identifier: Apache-2.0
"""What a Python worker of Spark's does once in its life, because it runs many tasks.

PySpark collects garbage after every task: with PyArrow and PySpark loaded that is 15 ms of each, 1 ms where what the
imports made is left out. And the environment's memory stays mapped between tasks (`services/local/kept_memory`).
"""

from __future__ import annotations

import gc

from penstock.services.local.kept_memory import kept_memory

_is_settled = False


def settle_in() -> None:
    """Call it at the beginning of a task, behind the imports; does something the first time only."""
    global _is_settled
    if not _is_settled:
        _is_settled = True
        kept_memory.keep()
        gc.collect()
        gc.freeze()
