# SPDX-License-Identifier: Apache-2.0
"""The plan in place of a result whose job failed while Spark planned an action over it.

Spark keeps the plan of a DataFrame, its failure too: a later `collect()` would raise the old error without running
anything. So planning gives one partition instead. Reading it raises the error in the action that was planned; in
any later one it opens the result, which runs the job again, and reads all of it. Limits: such a DataFrame has one
partition, until a new plan is made of it (by `count()`, say); the task holds a slot while the job runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.attachment.launch import EnvironmentLaunch
from penstock.link.master import OpenResult
from penstock.spark.result_access import PlannedPartition, ResultAccess
from penstock.spark.result_reader import attached

_EXECUTION = "spark.sql.execution.id"


@dataclass(frozen=True, slots=True)
class FailedPlanning:
    """A result that could not be opened while an action was planned. The JobMaster knows why."""

    result: str
    schema: pa.Schema
    launch: EnvironmentLaunch = field(repr=False)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the whole result; raises how planning failed in the action that was planned."""
        with attached(self.launch) as attachment:
            # No deadline here: the job's own deadlines end it, and the environment's lease a dead driver's.
            partitions = attachment.ask(OpenResult(self.result, _action())).partitions
        for index, descriptor in enumerate(partitions):
            yield from ResultAccess(
                PlannedPartition(self.result, index, descriptor, self.schema, self.launch)
            ).batches()


def _action() -> str:
    """The id that tells actions apart: the query's execution, else the stage; the same for a task's attempts."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return "no task"
    return str(context.getLocalProperty(_EXECUTION) or f"stage {context.stageId()}")
