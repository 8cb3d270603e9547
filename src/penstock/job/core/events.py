# SPDX-License-Identifier: Apache-2.0
"""The events of the JobMaster's core. Plain values: no clock, socket or thread in them.

Reports of tasks and environments go in as they said them (`link.master`); the rest is here. A `call` is the number of
an answer that is waited for; the core gives exactly one answer for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.graph.job_graph import JobGraph
from penstock.graph.streaming import QueryBeginning
from penstock.job.core.deadlines import Deadline
from penstock.job.core.ids import SparkJobId, TaskId
from penstock.link.master import (
    AcknowledgeCheckpoint,
    DataEnded,
    DeclineCheckpoint,
    PartitionConsumable,
    TaskFinished,
)
from penstock.settings import RestartSettings
from penstock.shuffle import AttemptId, PartitionId, ShuffleDescriptor


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A new job: its graph, the task slots of the application and how long it may wait for them.

    `target_bytes` is what one consumer of a blocking result should read, where their number is open; `restart` says
    how often and how soon what failed is run again; `beginning` what a streaming query goes on from. A job
    that does not fit is refused; one that `may_wait`, because it lost slots, waits until it can be planned anew.
    """

    job: str
    graph: JobGraph
    slots_total: int
    slots_timeout: float
    target_bytes: int = 64 << 20
    restart: RestartSettings = field(default_factory=RestartSettings)
    beginning: QueryBeginning = field(default_factory=QueryBeginning)
    may_wait: bool = False


@dataclass(frozen=True, slots=True)
class TaskRegistered:
    """A Spark task of this Spark job is there and asks what to do.

    A worker takes any subtask, again and again; the task of a DataFrame's partition can be that subtask only. A
    leased worker stays until the job is over.
    """

    call: int
    task: TaskId
    environment: str
    address: str
    spark_job: SparkJobId


@dataclass(frozen=True, slots=True)
class PartitionRegistered:
    """The ShuffleMaster knows an attempt's partition and gave its descriptor."""

    attempt: AttemptId
    edge: int
    descriptor: ShuffleDescriptor


@dataclass(frozen=True, slots=True)
class PartitionRefused:
    """The ShuffleMaster could not register an attempt's partition."""

    attempt: AttemptId
    cause: str


@dataclass(frozen=True, slots=True)
class PartitionsLost:
    """Partitions are gone, as their ShuffleMaster says."""

    partitions: tuple[PartitionId, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class ProducersAwaited:
    """A consumer read its inputs to their end and asks whether that end is real."""

    call: int
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class TaskGone:
    """A task's process is gone without a report; a worker is named by itself or by what it works on.

    `counts` are those of its rows, as they were when it died.
    """

    task: TaskId
    cause: str
    counts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EnvironmentLost:
    """An environment process, or the connection to it, is gone with all it held.

    The core of a job is told which `partitions` of it these were.
    """

    environment: str
    cause: str
    partitions: tuple[PartitionId, ...] = ()


@dataclass(frozen=True, slots=True)
class SparkJobReturned:
    """One of a job's Spark jobs is over: with success, cancelled, or with an error.

    `task_error` is the error of the first task that failed in one that reads a DataFrame, where Spark knows one.
    """

    job: str
    spark_job: SparkJobId
    error: str | None = None
    cancelled: bool = False
    task_error: str = ""


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """The application has so many task slots now; where they are fewer, `lost` says what went."""

    total: int
    lost: str = ""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The job is to stop."""

    job: str
    cause: str


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """A deadline that the core asked for went by; one that was withdrawn is ignored."""

    job: str
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class InstructionFailed:
    """An instruction for this job could not be carried out: a fault on our side or a plug-in's."""

    job: str
    cause: str


@dataclass(frozen=True, slots=True)
class ResultReleased:
    """The result of this finished job is not read any more, or its lease has run out."""

    job: str
    expired: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    """A checkpoint of a query is wanted now."""

    call: int
    job: str


@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """The metadata of a checkpoint is there."""

    job: str
    checkpoint: int


@dataclass(frozen=True, slots=True)
class CheckpointStoreFailed:
    """The metadata of a checkpoint could not be written.

    `final` is what the query ends with where no other will be written by this driver either.
    """

    job: str
    checkpoint: int
    cause: str
    final: type[PenstockError] | None = None


@dataclass(frozen=True, slots=True)
class OwnerSeen:
    """The query's location is this driver's, as far as is known; or the query ends with `final`: `cause`."""

    job: str
    cause: str = ""
    final: type[PenstockError] | None = None


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A query is to end well; one that `goes_on` with other numbers of tasks does not end its run."""

    job: str
    goes_on: bool = False


ForParts = (
    TaskRegistered
    | PartitionRegistered
    | PartitionRefused
    | PartitionConsumable
    | PartitionsLost
    | ProducersAwaited
    | TaskFinished
    | TaskGone
    | EnvironmentLost
    | SparkJobReturned
    | SlotsChanged
    | CancelRequested
    | InstructionFailed
    | AcknowledgeCheckpoint
    | DeclineCheckpoint
    | DataEnded
    | CheckpointAsked
    | CheckpointStored
    | CheckpointStoreFailed
    | OwnerSeen
    | StopAsked
)
"""The events that one part of a job's core hears of."""
ForJob = ForParts | DeadlinePassed
Event = ForJob | JobSubmitted | ResultReleased


def job_of(event: Event) -> str:
    """The job that an event is for, where it is for one."""
    match event:
        case TaskRegistered() | TaskGone():
            return event.task.job
        case PartitionRegistered() | PartitionRefused() | ProducersAwaited() | TaskFinished():
            return event.attempt.job
        case AcknowledgeCheckpoint() | DeclineCheckpoint() | DataEnded():
            return event.attempt.job
        case PartitionConsumable():
            return event.partition.job
        case PartitionsLost() | EnvironmentLost() | SlotsChanged():
            return ""
        case _:
            return event.job
