# SPDX-License-Identifier: Apache-2.0
"""The part of `penstock doctor` that looks before an application's first job: it says only what is wrong."""

from __future__ import annotations

import warnings

from penstock.observe import host_check
from penstock.observe.finding import Level
from penstock.shuffle import Settings
from penstock.shuffle.machine import machine_memory
from penstock.spark.hints import PenstockWarning


def needs_of(settings: Settings) -> host_check.Needs:
    """What these settings ask of a machine."""
    folders = tuple(part.strip() for part in settings.blocking.directories.split(",") if part.strip())
    return host_check.Needs(settings.network.memory_on(machine_memory()), settings.blocking.reserve, folders)


def warn_of_what_is_wrong(settings: Settings) -> None:
    """Look at the driver's machine, in some milliseconds; a warning for each thing that a job may fail of."""
    needs = needs_of(settings)
    for finding in host_check.judge(host_check.facts(needs.folders), needs):
        if finding.level is Level.WRONG:
            warnings.warn(f"{finding.sentence()} (see penstock doctor)", PenstockWarning, stacklevel=2)
