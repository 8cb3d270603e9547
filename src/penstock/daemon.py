# SPDX-License-Identifier: Apache-2.0
"""Spark's Python daemon with everything imported before it forks: `spark.python.daemon.module=penstock.daemon`.

Spark starts one daemon on a host for each kind of worker, and forks it for every worker. PySpark's own imports
nothing before, so each worker imports PyArrow, PySpark and Penstock for itself: a second or two of a core, at the
same time as all the others. Here the daemon does it once. Local sessions take it by themselves; elsewhere set it
before the session is built, and have the package installed where the workers run.
`spark.executorEnv.PENSTOCK_PRELOAD` names more modules, separated by commas: your own, pandas, a model's library.

Rules: what is imported here must not start threads, which a fork does not copy; that of Arrow's allocator is one
that a fork may lose. A module that cannot be imported is left to the workers, where its error has a reader.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import zipimport
from pathlib import Path

MODULES = (
    "pyspark.worker",
    "pyarrow.compute",
    "penstock.spark.task",
    "penstock.spark.result_scan",
    "penstock.attachment.attachment",
    "penstock.operators.functions",
    "penstock.operators.exchanges",
)
"""The modules that every worker of ours imports sooner or later."""
MORE = "PENSTOCK_PRELOAD"


def leave_out_archives() -> None:
    """Take PySpark's own archives off the path where the same PySpark is installed beside them.

    Spark puts them first. A module out of them is compiled anew in each process, and each worker reads the list of
    all their files eighteen times.
    """
    for entry in list(sys.path):
        library = Path(entry)
        if library.suffix == ".zip" and library.parts[-4:-1] == ("pyspark", "python", "lib"):
            installed = library.parents[3]
            name = library.name.partition("-")[0].removesuffix(".zip")
            if str(installed) in sys.path and (installed / name / "__init__.py").is_file():
                sys.path.remove(entry)


def forget_archives() -> None:
    """Have workers read no archive again that is on the path now: they do when they begin, and none has changed."""
    for entry, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[entry]


def preload(more: str = "") -> list[str]:
    """Import all of it; gives the names that could not be imported."""
    missing = []
    for name in [*MODULES, *(part.strip() for part in more.split(",") if part.strip())]:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001 - a module may raise anything; the worker that needs it will say so
            missing.append(name)
    return missing


def look_up() -> None:
    """Find what all workers look up among the installed packages."""
    from penstock.settings import Settings
    from penstock.shuffle import load_service

    load_service(Settings().shuffle.service).preload()


def main() -> None:
    """Run PySpark's daemon here, with all modules imported before it forks."""
    leave_out_archives()
    from pyspark import daemon

    missing = preload(os.environ.get(MORE, ""))
    if missing:
        sys.stderr.write(f"penstock.daemon: not imported ahead: {', '.join(missing)}\n")
    look_up()
    forget_archives()
    gc.collect()
    gc.freeze()  # pages of objects that no collection touches stay shared with the workers
    daemon.manager()


if __name__ == "__main__":
    main()
