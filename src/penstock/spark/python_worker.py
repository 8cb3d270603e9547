# SPDX-License-Identifier: Apache-2.0
"""The tasks of a Python worker of Spark's that it does once in its life, because it runs many tasks.

PySpark collects garbage after every task: with PyArrow and PySpark loaded that is 15 ms of each, 1 ms where what the
imports made is left out. And the environment's memory stays mapped between tasks (`attachment/kept_memory`), and the
sign of what the worker works on stays open (`machine/work_sign`).

When Spark has cancelled a task it closes the worker's pipe, and PySpark's daemon prints a traceback of every worker
that still wanted to flush it. A pipe that Spark has closed is no news, so those are left out.
"""

from __future__ import annotations

import gc
import sys
import traceback
from types import ModuleType
from typing import Any

from penstock.attachment.kept_memory import kept_memory
from penstock.machine.work_sign import WORK

_is_settled = False


def settle_in() -> None:
    """Call it at the beginning of a task, after the imports; does something once, and in a worker only."""
    global _is_settled
    if not _is_settled and _is_worker():
        _is_settled = True
        kept_memory.keep()
        WORK.open()
        leave_out_closed_pipes(sys.modules["__main__"])
        if "pyspark.daemon" in sys.modules:
            leave_out_closed_pipes(sys.modules["pyspark.daemon"])
        gc.collect()
        gc.freeze()


def _is_worker() -> bool:
    """Tell whether Spark has started this process: `python -m pyspark.daemon`, `pyspark.worker` or our own daemon."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and (spec.name.partition(".")[0] == "pyspark" or spec.name == "penstock.daemon")


def leave_out_closed_pipes(daemon: ModuleType) -> None:
    """From now on PySpark's daemon prints no traceback of a pipe that was closed at its other end."""
    if isinstance(getattr(daemon, "traceback", None), ModuleType):
        daemon.traceback = _Tracebacks()  # type: ignore[attr-defined]


class _Tracebacks:
    """The module `traceback`, but for one error."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    def print_exc(self, *arguments: Any, **named: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            traceback.print_exc(*arguments, **named)
