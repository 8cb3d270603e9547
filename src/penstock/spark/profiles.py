# SPDX-License-Identifier: Apache-2.0
"""Stages with resources of their own: Spark's profiles for their tasks, and how many of them run at once.

A profile asks for task resources only, so its tasks run on the executors that are there, beside the others: one that
takes two cores takes two of the application's slots. Spark in `local[N]` has no such profiles.
"""

from __future__ import annotations

import math
from dataclasses import replace

from pyspark import SparkContext
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests

from penstock.errors import SettingError, SlotsError
from penstock.graph import JobGraph, JobVertex, Resources, regions
from penstock.spark.slots import conf_value

_TASK_CPUS = "spark.task.cpus"


def profile_of(resources: Resources) -> ResourceProfile:
    """Spark's profile for these resources."""
    requests = TaskResourceRequests().cpus(resources.cpus)
    for name, amount in resources.amounts:
        requests = requests.resource(name, amount)
    return ResourceProfileBuilder().require(requests).build


def with_slots(graph: JobGraph, context: SparkContext) -> JobGraph:
    """The graph with the slots that each task of its stages with resources takes.

    Raises SettingError where Spark has no profiles for tasks, SlotsError where tasks that must run together can't.
    """
    together = {number for region in regions(graph) if region.at_once for number in region.vertices}
    for vertex in graph.vertices:
        if vertex.resources is not None:
            _refuse_local(vertex, vertex.resources, context.master)
            _refuse_too_many(vertex, vertex.resources, context, is_together=vertex.id in together)
            slots = max(1, math.ceil(vertex.resources.cpus / float(conf_value(context, _TASK_CPUS, "1"))))
            graph = graph.with_vertex(replace(vertex, resources=replace(vertex.resources, slots=slots)))
    return graph


def _refuse_local(vertex: JobVertex, resources: Resources, master: str) -> None:
    if master.startswith("local") and not master.startswith("local-cluster"):
        raise SettingError(
            f"withResources: the stage {vertex.name} asks for {resources.title} per task, and Spark in {master} has "
            "one kind of slot only: run on a cluster, or leave withResources out here"
        )


def _refuse_too_many(vertex: JobVertex, resources: Resources, context: SparkContext, *, is_together: bool) -> None:
    scala = context._jsc.sc()  # noqa: SLF001 - PySpark has no public way to ask
    profile = profile_of(resources)._java_resource_profile  # noqa: SLF001
    scala.resourceProfileManager().addResourceProfile(profile)
    at_once = int(scala.maxNumConcurrentTasks(profile))
    if at_once < (vertex.parallelism if is_together else 1):
        how = " at the same time" if is_together else ""
        raise SlotsError(
            f"the stage {vertex.name} has {vertex.parallelism} tasks that need {resources.title} each{how}, and the "
            f"application can run {at_once} of them at once: use a smaller numPartitions, "
            'mode="hybrid" before and after it, or executors with more'
        )
