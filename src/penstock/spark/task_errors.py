# SPDX-License-Identifier: Apache-2.0
"""The errors of tasks that Spark ran again: a job that was cancelled tells none of them, and another only one."""

from __future__ import annotations

import logging
from typing import Any

from pyspark import SparkContext

_LOG = logging.getLogger(__name__)
_TASKS = 20
"""The most failed tasks of a stage that are looked at."""
_LIMIT = 8000


def error_of_task(context: SparkContext, tag: str) -> str:
    """The error of the first task that failed in the Spark jobs with a tag, without the JVM's stack; "" if none."""
    try:
        return _without_stack(min(_failed_tasks(context, tag), default=(0, ""))[1])
    except Exception:  # noqa: BLE001 - the caller has an error of its own, which must not get lost
        _LOG.debug("Spark does not say which tasks of %s failed", tag, exc_info=True)
        return ""


def _failed_tasks(context: SparkContext, tag: str) -> list[tuple[int, str]]:
    """The number and the error of each, from Spark's own store of what its pages show."""
    scala: Any = context._jsc.sc()  # noqa: SLF001 - PySpark has no public way to it
    names: Any = context._jvm  # noqa: SLF001
    api = names.org.apache.spark.status.api.v1
    only_failed = names.java.util.ArrayList([api.TaskStatus.FAILED])
    store, found = scala.statusStore(), []
    for job in scala.statusTracker().getJobIdsForTag(tag):
        stages = store.job(job).stageIds()
        for place in range(stages.size()):
            stage = store.lastStageAttempt(stages.apply(place))
            tasks = store.taskList(stage.stageId(), stage.attemptId(), 0, _TASKS, api.TaskSorting.ID, only_failed)
            for number in range(tasks.size()):
                task = tasks.apply(number)
                if task.errorMessage().isDefined():
                    found.append((task.taskId(), str(task.errorMessage().get())))
    return found


def _without_stack(error: str) -> str:
    """An error up to the first line of the JVM's stack."""
    return error.partition("\n\tat ")[0].strip()[:_LIMIT]
