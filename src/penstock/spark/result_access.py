# SPDX-License-Identifier: Apache-2.0
"""Reads one partition of a lazy DataFrame's result in a Spark task, also where it is lost and must be made again.

Rules. The task asks the JobMaster before it reads: Spark has planned the DataFrame once, and the partition that it
planned may be gone. If it is, the job that made it runs again, and the task works for it as one of its workers until
the job is over: so a job runs even when tasks that wait for it hold all the slots. Rows that were read in part cannot
be taken back from Spark: then the task fails, and a new attempt of it, or the next action, begins anew. A plan to
work by is the only thing that a task unpickles out of an answer, and only where `unpack_plan` finds it sealed with
the application's secret. Limit: a partition that is lost again and again is given up.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.attachment.launch import EnvironmentLaunch
from penstock.errors import (
    AuthenticationError,
    EnvironmentLostError,
    IncompleteDataError,
    PartitionError,
    PartitionLostError,
    PenstockError,
)
from penstock.job.core.ids import LEASED
from penstock.link import control
from penstock.link.master import ReadAnswer, ReadResult
from penstock.shuffle import ShuffleDescriptor
from penstock.spark.result_reader import attached, read_attached

if TYPE_CHECKING:
    from penstock.attachment.attachment import Attachment
    from penstock.graph.job_graph import JobGraph
    from penstock.spark.task import TaskPlan

_LOST = (PartitionError, EnvironmentLostError, IncompleteDataError, AuthenticationError)
"""The errors of a reader if a partition, or the environment of its own host, is not there any more.

An environment that dies while a task attaches to it has closed the connection before it proved anything.
"""
_LOSSES = 8
_NOT_AGAIN = "Spark keeps the plan of this DataFrame, so make it again with toDF()"
_GIVEN = "Spark has been given some of its rows already, so it is not recomputed under way: run the action again"
_TOO_OFTEN = "It was lost again and again"


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """One partition of a result, as it was planned: the result's name, the index in it, its descriptor then."""

    result: str
    index: int
    descriptor: ShuffleDescriptor
    schema: pa.Schema
    launch: EnvironmentLaunch = field(repr=False)


def pack_plan(launch: EnvironmentLaunch, job: str, graph: JobGraph) -> bytes:
    """The plan by which a read task works for a job: its graph, sealed. The secret itself does not travel."""
    from pyspark import cloudpickle

    return control.seal(launch.secret, control.PLAN_PURPOSE.format(job=job), cloudpickle.dumps(graph))


def unpack_plan(launch: EnvironmentLaunch, answer: ReadAnswer) -> TaskPlan:
    """The work that an answer offers.

    Raises AuthenticationError, and unpickles nothing, unless a holder of this application's secret sealed the plan
    for that job. The secret came to this task in its own closure.
    """
    from penstock.spark.task import TaskPlan

    graph = control.unseal(launch.secret, control.PLAN_PURPOSE.format(job=answer.job), answer.plan)
    return TaskPlan(launch, answer.job, pickle.loads(graph), LEASED)  # noqa: S301 - sealed, see above


class ResultAccess:
    """Reads one partition once."""

    def __init__(self, planned: PlannedPartition) -> None:
        self._planned = planned
        self._descriptor = planned.descriptor
        self._stage = _stage()
        self._lost: PenstockError | None = None
        self._losses = 0
        self._leased = ""
        self._given = False
        self._is_final = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows; raises the error that says why there are none, and what to do."""
        while not self._descriptor.empty:
            try:
                with attached(self._planned.launch) as attachment:
                    answer = self._ask(attachment)
                    if not answer.plan and not answer.ask_again:
                        yield from self._read(attachment, answer)
                        return
                if answer.plan:
                    self._lease(answer)
            except _LOST as error:
                self._note_loss(error)

    def _ask(self, attachment: Attachment) -> ReadAnswer:
        """The JobMaster's answer about the partition; its refusal is final."""
        lost = "" if self._lost is None else str(self._lost)
        planned, partition = self._planned, self._descriptor.partition
        request = ReadResult(planned.result, planned.index, partition, self._stage, lost, self._leased)
        try:
            return attachment.ask(request)
        except PartitionError:
            self._is_final = True
            raise

    def _read(self, attachment: Attachment, answer: ReadAnswer) -> Iterator[pa.RecordBatch]:
        if answer.partition is not None:
            self._descriptor, self._lost = answer.partition, None
        elif self._lost is not None:
            self._is_final = True
            raise _advised(self._lost, _NOT_AGAIN)
        if self._descriptor.empty:
            return
        planned = self._planned
        for batch in read_attached(attachment, (self._descriptor,), planned.schema, planned.launch):
            self._given = True
            yield batch

    def _lease(self, answer: ReadAnswer) -> None:
        """Work for the job until it lets this task go."""
        from penstock.spark.task import LOST, lease_slot

        try:
            plan = unpack_plan(self._planned.launch, answer)
        except AuthenticationError:
            self._is_final = True  # asking again would give a forger another try
            raise
        state, error = lease_slot(plan)
        if state == LOST:
            raise EnvironmentLostError(error)
        self._leased = answer.job

    def _note_loss(self, error: PenstockError) -> None:
        """Try again: another partition where this one is lost, else another environment. Raises what is final."""
        self._losses += 1
        if self._is_final:
            raise error from None
        self._leased = ""
        if isinstance(error, PartitionError | IncompleteDataError) or error.partition is not None:
            self._lost = error
        if self._given:
            self._report()
            raise _advised(error, _GIVEN) from None
        if self._losses >= _LOSSES:
            raise _advised(error, _TOO_OFTEN) from None

    def _report(self) -> None:
        """Tell the JobMaster, so that the next reader finds it made again, or being made."""
        with suppress(PenstockError), attached(self._planned.launch) as attachment:
            self._ask(attachment)


def _advised(error: PenstockError, advice: str) -> PenstockError:
    kind = PartitionLostError if isinstance(error, EnvironmentLostError) else type(error)
    return kind(f"{error}. {advice}")


def _stage() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return -1 if context is None else int(context.stageId())
