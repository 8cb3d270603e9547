# SPDX-License-Identifier: Apache-2.0
"""Names of what Spark runs for us: workers, and the Spark jobs that carry them or read a DataFrame.

On the wire a worker is an attempt of a vertex that no plan has, because environments fence both alike, and a Spark
job is a number. No other module knows these codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from penstock.shuffle import AttemptId

WorkerNumber = NewType("WorkerNumber", int)
"""Tells the workers of one job apart: launched ones count from 0, leased ones have a negative one of their choice."""

_WORKER_VERTEX = -2
_LEASED_CODE = -(1 << 30)


@dataclass(frozen=True, slots=True, order=True)
class WorkerId:
    """One Spark attempt of a worker: a Spark task that asks for one subtask after the other."""

    job: str
    number: WorkerNumber
    spark_attempt: int

    def __str__(self) -> str:
        return f"{self.job}/worker{self.number}#{self.spark_attempt}"

    def to_attempt(self) -> AttemptId:
        """Under which name it speaks to its environment."""
        return AttemptId(self.job, _WORKER_VERTEX, self.number, self.spark_attempt)


TaskId = WorkerId | AttemptId
"""A Spark task: a worker, or the task of a DataFrame's partition, which can be that subtask only."""


def task_of(attempt: AttemptId) -> TaskId:
    """Inverse of `to_attempt`, for either kind of task."""
    if attempt.vertex != _WORKER_VERTEX:
        return attempt
    return WorkerId(attempt.job, WorkerNumber(attempt.subtask), attempt.attempt)


class SparkJobKind(StrEnum):
    """The kinds of our Spark jobs."""

    WORKERS = "workers"
    DATAFRAME = "dataframe"
    LEASED = "leased"
    """None of ours: read tasks lease their slots while they wait."""


@dataclass(frozen=True, slots=True, order=True)
class SparkJobId:
    """One Spark job of one of our jobs; `number` counts within its kind."""

    kind: SparkJobKind
    number: int = 0

    def __str__(self) -> str:
        return self.kind if self == LEASED else f"{self.kind}{self.number}"

    def to_wire(self) -> int:
        """As a number in a control message."""
        if self.kind is SparkJobKind.DATAFRAME:
            return self.number
        return _LEASED_CODE if self.kind is SparkJobKind.LEASED else -1 - self.number

    @classmethod
    def from_wire(cls, wire: int) -> SparkJobId:
        """Inverse of `to_wire`."""
        if wire >= 0:
            return cls(SparkJobKind.DATAFRAME, wire)
        return LEASED if wire == _LEASED_CODE else cls(SparkJobKind.WORKERS, -1 - wire)


LEASED = SparkJobId(SparkJobKind.LEASED)


@dataclass(frozen=True, slots=True)
class SparkJob:
    """A Spark job to be started: the workers it carries, or the vertex whose DataFrame it reads."""

    id: SparkJobId
    workers: tuple[WorkerNumber, ...] = ()
    vertex: int | None = None
    is_first: bool = True
    """Of a DataFrame: whether it is read for the first time."""
