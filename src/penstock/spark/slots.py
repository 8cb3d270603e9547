# SPDX-License-Identifier: Apache-2.0
"""How many tasks Spark can run at the same time.

Spark's own answer for the default resource profile, in total: what is free changes while we ask, so the tasks'
registrations tell the rest. It is 0 until executors have registered, which is waited for. Where the master is local,
or the conf says how many executors there are to be, the number is known before.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext

from penstock.graph import JobGraph, regions, slots_needed
from penstock.job.core.refusals import too_few_slots
from penstock.shuffle.errors import SlotsError

_POLL_SECONDS = 0.1
_SHOWN_HOLDERS = 5
_LOCAL = re.compile(r"local(\[[^\]]*\])?$")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,")


def total_slots(context: SparkContext, timeout: float) -> int:
    """The application's task slots; raises SlotsError when no executor registers in time."""
    deadline = time.monotonic() + timeout
    while True:
        slots = _slots_now(context)
        if slots > 0:
            return slots
        if time.monotonic() > deadline:
            raise SlotsError(
                f"no Spark executor has registered within {timeout:g} s (spark.penstock.job.slotsTimeout):"
                " 0 task slots; see the cluster manager"
            )
        time.sleep(_POLL_SECONDS)


def is_local(context: SparkContext) -> bool:
    """Whether all tasks run on the driver's machine, in its JVM."""
    return _LOCAL.match(context.master) is not None


def certain_slots(context: SparkContext) -> int | None:
    """The task slots the application has once all is there, without waiting for it; None where nobody knows."""
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false").strip().lower() == "true":
        return None
    if is_local(context):
        return _slots_now(context) or None
    cluster = _LOCAL_CLUSTER.match(context.master)
    told = (conf.get("spark.executor.instances"), conf.get("spark.executor.cores"))
    executors, cores = cluster.groups() if cluster else told
    if executors is None or cores is None:
        return None
    return int(executors) * int(int(cores) // float(conf.get("spark.task.cpus", "1")))


def refuse_what_cannot_fit(graph: JobGraph, slots: int) -> None:
    """Raise SlotsError where tasks that must run together are more than the application's slots can ever be."""
    for region in regions(graph):
        if all(graph.vertex(vertex).resources is None for vertex in region.vertices):
            needed = slots_needed(graph, region)
            if needed > slots:
                raise SlotsError(too_few_slots(graph.name, needed, slots))


@contextlib.contextmanager
def naming_holders(context: SparkContext) -> Iterator[None]:
    """A SlotsError out of this block says which Spark jobs have tasks running, ours and other people's."""
    try:
        yield
    except SlotsError as error:
        holders = slot_holders(context)
        if not holders:
            raise
        raise SlotsError(f"{error}. Tasks are running of {'; '.join(holders)}") from None


def slot_holders(context: SparkContext) -> list[str]:
    """The Spark jobs that run, most tasks first: number, what they are for, how many tasks they have running."""
    jobs = context._jsc.sc().statusStore().jobsList(None)  # noqa: SLF001 - PySpark has no public way to ask
    running = [jobs.apply(position) for position in range(jobs.size())]
    busy = [job for job in running if job.status().toString() == "RUNNING" and job.numActiveTasks() > 0]
    return [_holder(job) for job in sorted(busy, key=lambda job: -int(job.numActiveTasks()))[:_SHOWN_HOLDERS]]


def _holder(job: Any) -> str:
    description, group = job.description(), job.jobGroup()
    what = str(description.get() if description.isDefined() else job.name())
    of_group = f", group {group.get()}" if group.isDefined() else ""
    return f"Spark job {job.jobId()} ({what}{of_group}): {job.numActiveTasks()}"


def _slots_now(context: SparkContext) -> int:
    scala = context._jsc.sc()  # noqa: SLF001 - PySpark has no public way to ask
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
