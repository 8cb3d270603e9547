# SPDX-License-Identifier: Apache-2.0
"""The number of tasks that Spark can run at the same time.

Spark's own answer for the default resource profile, in total: what is free changes while we ask, so the tasks'
registrations tell the rest. It is 0 until executors have registered, which is waited for. If the master is local, or
the conf says how many executors there are to be, or may be, the number is known before.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from penstock.errors import SlotsError
from penstock.graph import JobGraph, regions, slots_needed
from penstock.job.core.slots.refusals import too_few_slots

_POLL_SECONDS = 0.1
_SHOWN_HOLDERS = 5
REPLACED_SECONDS = 10.0
"""In this time a cluster manager has started another executor, or it does not."""
REGISTRATION_SECONDS = 30.0
"""Executors of a new application register in this time; Spark's own jobs wait as long for them at most."""
_LOCAL = re.compile(r"local(\[[^\]]*\])?$")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,")


def total_slots(context: SparkContext, timeout: float) -> int:
    """The application's task slots; raises SlotsError when no executor registers in time.

    Executors of a new application register one after the other, so a plan made at once would see some of them only:
    all that the conf says are waited for, as long as the application is young. With dynamic allocation none is waited
    for: an executor comes when tasks wait for it, so all count that may come.
    """
    if _is_dynamic(context):
        return _slots_that_may_come(context)
    deadline = time.monotonic() + timeout
    expected = certain_slots(context) or 1
    while True:
        slots = slots_now(context)
        if slots >= expected or (slots > 0 and not _is_young(context)):
            return slots
        if time.monotonic() > deadline:
            raise SlotsError(
                f"no Spark executor has registered within {timeout:g} s (spark.penstock.job.slotsTimeout):"
                " 0 task slots; see the cluster manager"
            )
        time.sleep(_POLL_SECONDS)


def _is_young(context: SparkContext) -> bool:
    return time.time() - int(context.startTime) / 1000 < REGISTRATION_SECONDS


def is_local(context: SparkContext) -> bool:
    """Tell whether all tasks run on the driver's machine, in its JVM."""
    return _LOCAL.match(context.master) is not None


def only_local_folder(context: SparkContext) -> str:
    """The folder where Spark stores on the driver's machine; empty where it has several, which PySpark can't name."""
    several = "," in (os.environ.get("SPARK_LOCAL_DIRS") or conf_value(context, "spark.local.dir", ""))
    return "" if several else str(Path(context._temp_dir).parent)  # noqa: SLF001 - no public way, and no call


class SlotWatch:
    """The number of slots that is told while jobs run: fewer only when they have stayed fewer for a while, else all.

    A cluster manager replaces an executor that died, so for some seconds there are fewer. A job that was planned in
    these seconds knows of fewer, so as many as before are told too.
    """

    def __init__(self) -> None:
        self._told: int | None = None
        self._fewer_since: float | None = None

    def look(self, slots: int, now: float) -> int | None:
        """There are so many; what is to be told now, if anything. None at all are waited for, as before a job."""
        if not slots:
            return None
        if self._told is None or slots >= self._told:
            self._fewer_since, self._told = None, slots
            return slots
        self._fewer_since = now if self._fewer_since is None else self._fewer_since
        if now - self._fewer_since < REPLACED_SECONDS:
            return None
        self._fewer_since, self._told = None, slots
        return slots


def slots_now(context: SparkContext) -> int:
    """The application's task slots at this moment; 0 where no executor is there."""
    scala = context._jsc.sc()  # noqa: SLF001 - PySpark has no public way to ask
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def environments_now(context: SparkContext, scope: str) -> int:
    """The number of environments for the executors that are there now: one for each host, or for each executor."""
    known = context._jsc.sc().statusStore().executorList(True)  # noqa: SLF001 - PySpark has no public way
    executors = [known.apply(position) for position in range(known.size())]
    places = [str(each.hostPort()) for each in executors if each.id() != "driver"]
    return len(places) if scope == "executor" else len({place.rpartition(":")[0] for place in places})


def may_shrink(context: SparkContext) -> bool:
    """Tell whether fewer slots mean that some were lost: not in local mode, nor if Spark gives some back itself."""
    return not is_local(context) and not _is_dynamic(context)


def certain_slots(context: SparkContext) -> int | None:
    """The task slots that the application will have, without waiting for them; None if the conf does not tell."""
    if is_local(context):
        return slots_now(context) or None
    if _is_dynamic(context):
        return None
    cluster = _LOCAL_CLUSTER.match(context.master)
    told = (conf_value(context, "spark.executor.instances", ""), conf_value(context, "spark.executor.cores", ""))
    executors, cores = cluster.groups() if cluster else told
    if not executors or not cores:
        return None
    return int(executors) * int(int(cores) // float(conf_value(context, "spark.task.cpus", "1")))


def _slots_that_may_come(context: SparkContext) -> int:
    """The task slots of all executors that dynamic allocation may start; SlotsError where the conf has no limit."""
    cores = conf_value(context, "spark.executor.cores", "1" if context.master.startswith("yarn") else "")
    most = conf_value(context, "spark.dynamicAllocation.maxExecutors", "")
    if not most or not cores:
        missing = "spark.executor.cores" if most else "spark.dynamicAllocation.maxExecutors"
        raise SlotsError(
            f"spark.dynamicAllocation.enabled=true, and nobody says how many tasks may run at once: set {missing}"
        )
    each = int(int(cores) // float(conf_value(context, "spark.task.cpus", "1")))
    return max(int(most) * each, slots_now(context))


def conf_value(context: SparkContext, key: str, default: str) -> str:
    """One entry of the application's conf: `getConf` would fetch all, which takes longer than a small job's plan."""
    return str(context._jsc.sc().conf().get(key, default))  # noqa: SLF001 - see above


def _is_dynamic(context: SparkContext) -> bool:
    return conf_value(context, "spark.dynamicAllocation.enabled", "false").strip().lower() == "true"


def refuse_what_cannot_fit(graph: JobGraph, slots: int) -> None:
    """Raise SlotsError where tasks that must run together are more than the application's slots can ever be."""
    for region in regions(graph):
        if all(graph.vertex(vertex).resources is None for vertex in region.vertices):
            needed = slots_needed(graph, region)
            if needed > slots:
                raise SlotsError(too_few_slots(graph, needed, slots))


@contextlib.contextmanager
def naming_holders(context: SparkContext) -> Iterator[None]:
    """A SlotsError out of this block says which Spark jobs have tasks running, ours and other people's."""
    try:
        yield
    except SlotsError as error:
        holders = slot_holders(context)
        if not holders:
            raise
        raise type(error)(f"{error}. Tasks are running of {'; '.join(holders)}") from None


def slot_holders(context: SparkContext) -> list[str]:
    """The Spark jobs that run, most tasks first: number, what they are for, how many tasks they have running.

    The scheduler is asked, because Spark's status store follows it late: it leaves updates out that come soon after
    another.
    """
    queue = context._jsc.sc().taskScheduler().rootPool().getSortedTaskSetQueue()  # noqa: SLF001 - no public way to ask
    tasks: Counter[int] = Counter()
    properties: dict[int, Any] = {}
    for position in range(queue.size()):
        manager = queue.apply(position)
        job = int(manager.taskSet().priority())  # the first job that needs the stage
        tasks[job] += int(manager.runningTasks())
        properties[job] = manager.taskSet().properties()
    busy = [(job, running) for job, running in tasks.most_common(_SHOWN_HOLDERS) if running]
    return [f"Spark job {job} ({_purpose(context, job, properties[job])}): {running}" for job, running in busy]


def _purpose(context: SparkContext, job: int, properties: Any) -> str:
    what = properties.getProperty("spark.job.description") or context._jsc.sc().statusStore().job(job).name()  # noqa: SLF001
    group = properties.getProperty("spark.jobGroup.id")
    return f"{what}, group {group}" if group else str(what)
