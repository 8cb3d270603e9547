# SPDX-License-Identifier: Apache-2.0
"""Runs a stream and reads at once what it left: rows for the driver, a count, or the names of written files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from penstock.api.lineage import Step
from penstock.api.persisted import PersistedReading
from penstock.api.plan import PLANNING_SLOTS, plan_job

if TYPE_CHECKING:
    from penstock.job.core.result import FinishedJob

_T = TypeVar("_T")
_RUNS = 3
_TOLD_SECONDS = 2.0


def run_and_read(
    branches: tuple[Step, ...],
    reading: PersistedReading,
    read: Callable[[FinishedJob], _T],
    prepare: Callable[[], None] = lambda: None,
) -> _T:
    """Run the stream and read what it left, which goes then. `prepare` is called when it has been planned once.

    Should it be lost before it is read, with the environment that holds it, the stream runs again.
    """
    from penstock.spark.checks import refuse_what_cannot_travel

    runtime, settings = reading.runtime, reading.settings
    refuse_what_cannot_travel(plan_job(reading.outline(branches), settings, PLANNING_SLOTS).graph)
    prepare()
    runs_left = _RUNS
    while True:
        runs_left -= 1
        gone = threading.Event()
        finished = runtime.finished(lambda: reading.plan(branches).parts, settings, lost=gone.set)
        try:
            return read(finished)
        except Exception:
            # The reader says that it failed; the JobMaster says, maybe a little later, whether our result is gone.
            if not runs_left or not gone.wait(_TOLD_SECONDS):
                raise
        finally:
            runtime.release(finished.result.job)
