# SPDX-License-Identifier: Apache-2.0
"""Spark's Python daemon with everything imported before it forks: `spark.python.daemon.module=penstock.daemon`.

Spark starts one daemon on a host for each kind of worker, and forks it for every worker. PySpark's own imports
nothing before, so each worker imports PyArrow, PySpark and Penstock for itself: a second or two of a core, at the
same time as all the others. Here the daemon does it once. Set it before the session is built; the package must be
installed where the workers run. `spark.executorEnv.PENSTOCK_PRELOAD` names more modules, separated by commas: your
own, pandas, a model's library.

Rules: what is imported here must not start threads, which a fork does not copy; that of Arrow's allocator is one
that a fork may lose. A module that cannot be imported is left to the workers, where its error has a reader.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

MODULES = (
    "pyspark.worker",
    "pyarrow.compute",
    "penstock.spark.task",
    "penstock.spark.result_scan",
    "penstock.services.local.attachment",
    "penstock.services.local.service",
)
"""What every worker of ours imports sooner or later."""
MORE = "PENSTOCK_PRELOAD"


def preload(more: str = "") -> list[str]:
    """Import all of it; gives the names that could not be imported."""
    missing = []
    for name in [*MODULES, *(part.strip() for part in more.split(",") if part.strip())]:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001 - a module may raise anything; the worker that needs it will say so
            missing.append(name)
    return missing


def main() -> None:
    """Be Spark's daemon."""
    from pyspark import daemon

    missing = preload(os.environ.get(MORE, ""))
    if missing:
        sys.stderr.write(f"penstock.daemon: not imported ahead: {', '.join(missing)}\n")
    gc.collect()
    gc.freeze()  # pages of objects that no collection touches stay shared with the workers
    daemon.manager()


if __name__ == "__main__":
    main()
