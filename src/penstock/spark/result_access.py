# SPDX-License-Identifier: Apache-2.0
"""Reads one partition of a lazy DataFrame's result in a Spark task, also where it is lost and must be made again.

Rules. The task asks the JobMaster before it reads: Spark has planned the DataFrame once, and the partition that it
planned may be gone. Where it is, the job that made it runs again, and the task works for it as one of its workers
until the job is over: so a job for which all the slots are held by tasks that wait for it still has somebody to run
it. What was read in part cannot be taken back from Spark: then the task fails, and a new attempt of it, or the next
action, begins anew. Limit: a partition that is lost so many times over is given up.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.job.result_reads import ReadAnswer, ReadRequest
from penstock.services.local.launch import EnvironmentLaunch
from penstock.shuffle import ShuffleDescriptor, control
from penstock.shuffle.errors import (
    AuthenticationError,
    EnvironmentLostError,
    IncompleteDataError,
    PartitionError,
    PartitionLostError,
    PenstockError,
)
from penstock.spark.result_reader import attached, read_attached

if TYPE_CHECKING:
    from penstock.services.local.attachment import Attachment

_LOST = (PartitionError, EnvironmentLostError, IncompleteDataError, AuthenticationError)
"""What a reader meets where a partition, or the environment of its own host, is not there any more.

An environment that dies while a task attaches to it has closed the connection before it proved anything.
"""
_LOSSES = 8
_CALL_SECONDS = 30.0
_NOT_AGAIN = "Spark keeps the plan of this DataFrame, so make it again with toDF()"
_GIVEN = "Spark has been given some of its rows already, so it is not made again under way: run the action again"
_TOO_OFTEN = "It was lost again and again"


@dataclass(frozen=True, slots=True)
class ResultPlace:
    """One partition of a result, as it was planned: the result's name, the place in it, what lay there."""

    result: str
    index: int
    descriptor: ShuffleDescriptor
    schema: pa.Schema
    launch: EnvironmentLaunch = field(repr=False)


class ResultAccess:
    """Reads one partition once."""

    def __init__(self, place: ResultPlace) -> None:
        self._place = place
        self._descriptor = place.descriptor
        self._stage = _stage()
        self._lost: PenstockError | None = None
        self._losses = 0
        self._lent = ""
        self._given = False
        self._is_final = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows; raises the error that says why there are none, and what to do."""
        while not self._descriptor.empty:
            try:
                with attached(self._place.launch) as attachment:
                    answer = self._ask(attachment)
                    if not answer.plan and not answer.ask_again:
                        yield from self._read(attachment, answer)
                        return
                if answer.plan:
                    self._lend(answer)
            except _LOST as error:
                self._note_loss(error)

    def _ask(self, attachment: Attachment) -> ReadAnswer:
        """What the JobMaster says of the partition; what it refuses is final."""
        lost = "" if self._lost is None else str(self._lost)
        place, partition = self._place, self._descriptor.partition
        request = ReadRequest(place.result, place.index, partition, self._stage, lost, self._lent)
        try:
            return ReadAnswer.from_wire(attachment.call(control.READ_RESULT, request.to_wire(), _CALL_SECONDS))
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
        place = self._place
        for batch in read_attached(attachment, (self._descriptor,), place.schema, place.launch):
            self._given = True
            yield batch

    def _lend(self, answer: ReadAnswer) -> None:
        """Work for the job until it lets this task go."""
        from penstock.spark.task import LOST, lend_slot

        # From a JobMaster that has proved the application's secret, as the closure of this very task.
        state, error = lend_slot(pickle.loads(answer.plan))  # noqa: S301
        if state == LOST:
            raise EnvironmentLostError(error)
        self._lent = answer.job

    def _note_loss(self, error: PenstockError) -> None:
        """Try again: another partition where this one is lost, else another environment. Raises what is final."""
        self._losses += 1
        if self._is_final:
            raise error from None
        self._lent = ""
        if isinstance(error, PartitionError | IncompleteDataError) or error.partition is not None:
            self._lost = error
        if self._given:
            self._report()
            raise _advised(error, _GIVEN) from None
        if self._losses >= _LOSSES:
            raise _advised(error, _TOO_OFTEN) from None

    def _report(self) -> None:
        """Tell the JobMaster, so that whoever reads it next finds it made again, or being made."""
        with suppress(PenstockError), attached(self._place.launch) as attachment:
            self._ask(attachment)


def _advised(error: PenstockError, advice: str) -> PenstockError:
    kind = PartitionLostError if isinstance(error, EnvironmentLostError) else type(error)
    return kind(f"{error}. {advice}")


def _stage() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return -1 if context is None else int(context.stageId())
