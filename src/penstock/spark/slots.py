# SPDX-License-Identifier: Apache-2.0
"""How many tasks Spark can run at the same time.

Spark's own answer for the default resource profile, in total: what is free changes while we ask, so the tasks'
registrations tell the rest. It is 0 until executors have registered, which is waited for.
"""

from __future__ import annotations

import time

from pyspark import SparkContext

from penstock.shuffle.errors import SlotsError

_POLL_SECONDS = 0.1


def total_slots(context: SparkContext, timeout: float) -> int:
    """The application's task slots; raises SlotsError when no executor registers in time."""
    deadline = time.monotonic() + timeout
    while True:
        scala = context._jsc.sc()  # noqa: SLF001 - PySpark has no public way to ask
        slots = int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
        if slots > 0:
            return slots
        if time.monotonic() > deadline:
            raise SlotsError(
                f"no Spark executor has registered within {timeout:g} s (spark.penstock.job.slotsTimeout):"
                " 0 task slots; see the cluster manager"
            )
        time.sleep(_POLL_SECONDS)
