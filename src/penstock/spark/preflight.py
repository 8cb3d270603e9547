# SPDX-License-Identifier: Apache-2.0
"""Before an application's first job: the workers' Python, and of `penstock doctor` only what is wrong."""

from __future__ import annotations

import os
import sys
import warnings

from pyspark import SparkContext

from penstock.observe import host_check
from penstock.observe.finding import Level
from penstock.shuffle import Settings
from penstock.shuffle.machine import machine_memory
from penstock.spark.hints import PenstockWarning
from penstock.spark.slots import is_local

_UNSET = "python3"
"""What PySpark takes for the workers where nobody says which Python."""


def needs_of(settings: Settings) -> host_check.Needs:
    """What these settings ask of a machine."""
    folders = tuple(part.strip() for part in settings.blocking.directories.split(",") if part.strip())
    return host_check.Needs(settings.network.memory_on(machine_memory()), settings.blocking.reserve, folders)


def run_workers_in_this_python(context: SparkContext) -> None:
    """Where nobody has said which Python runs the workers, and they run on this machine, it is the driver's.

    PySpark takes `python3` of the path, which without an activated environment knows neither Penstock nor what the
    user has installed.
    """
    said = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if not said and is_local(context) and context.pythonExec == _UNSET and sys.executable:
        context.pythonExec = sys.executable


def warn_of_what_is_wrong(settings: Settings) -> None:
    """Look at the driver's machine, in some milliseconds; a warning for each thing that a job may fail of."""
    needs = needs_of(settings)
    for finding in host_check.judge(host_check.facts(needs.folders), needs):
        if finding.level is Level.WRONG:
            warnings.warn(f"{finding.sentence()} (see penstock doctor)", PenstockWarning, stacklevel=2)
