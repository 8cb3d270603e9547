# SPDX-License-Identifier: Apache-2.0
"""Before an application's first job: the workers' Python, and of `penstock doctor` only what is wrong."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import site
import sys
import warnings
from pathlib import Path

from pyspark import SparkContext

from penstock.errors import DISTRIBUTION
from penstock.machine.memory import machine_memory
from penstock.observe import host_check
from penstock.observe.finding import Level
from penstock.settings import Settings
from penstock.spark.hints import PenstockWarning
from penstock.spark.slots import is_local

_UNSET = "python3"
"""The command that PySpark takes for the workers if no setting says which Python."""
_DAEMON = "spark.python.daemon.module"


def needs_of(settings: Settings) -> host_check.Needs:
    """The needs of these settings from a machine."""
    folders = tuple(part.strip() for part in settings.blocking.directories.split(",") if part.strip())
    return host_check.Needs(settings.network.memory_on(machine_memory()), settings.blocking.reserve, folders)


def run_workers_in_this_python(context: SparkContext) -> None:
    """If no setting says which Python runs the workers, and they run on this machine, make it the driver's.

    PySpark takes `python3` of the path, which without an activated environment knows neither Penstock nor what the
    user has installed.
    """
    if not _is_said(context) and is_local(context) and context.pythonExec == _UNSET and sys.executable:
        context.pythonExec = sys.executable


def import_ahead(context: SparkContext) -> None:
    """From now on workers that run on this machine begin with all imports done (`penstock.daemon`).

    Spark reads this setting when a task needs a worker, in local mode from the driver's own conf. A daemon that the
    user has set stays. So does all where another Python, or a fresh process of this one, may know no Penstock: there
    our daemon could not start, and no Python function of the user's would run. A DataFrame that was made before
    Penstock's first stream keeps the Python of that time, so that one must know Penstock too.
    """
    pythons = {context.pythonExec} if _is_said(context) else {context.pythonExec, _UNSET}
    if is_local(context) and all(map(is_here, pythons)) and _is_installed_here():
        conf = context._jsc.sc().conf()  # noqa: SLF001 - PySpark gives a copy
        conf.setIfMissing(_DAEMON, "penstock.daemon")


def is_here(python: str) -> bool:
    """Tell whether this command starts the Python of this process: the same file in the same environment's folder."""
    found = shutil.which(python)
    if found is None or not sys.executable:
        return False
    return Path(found).absolute().parent == Path(sys.executable).parent and Path(found).samefile(sys.executable)


def _is_said(context: SparkContext) -> bool:
    return "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")


def _is_installed_here() -> bool:
    """Tell whether a fresh process finds Penstock, and from a place that is not a file of the application."""
    try:
        found = Path(str(importlib.metadata.distribution(DISTRIBUTION).locate_file("")))
    except importlib.metadata.PackageNotFoundError:
        return False
    return found in map(Path, (*site.getsitepackages(), site.getusersitepackages()))


def warn_of_what_is_wrong(settings: Settings) -> None:
    """Look at the driver's machine, in some milliseconds; a warning for each thing that a job may fail of."""
    needs = needs_of(settings)
    for finding in host_check.judge(host_check.facts(needs.folders), needs):
        if finding.level is Level.WRONG:
            warnings.warn(f"{finding.sentence()} (see penstock doctor)", PenstockWarning, stacklevel=2)
