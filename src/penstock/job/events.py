# SPDX-License-Identifier: Apache-2.0
"""What can happen to the JobMaster's core. Plain values: no clock, socket or thread in them.

A `call` is the number of an answer somebody waits for; the core gives exactly one answer for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.graph.job_graph import JobGraph
from penstock.shuffle import AttemptId, PartitionId, ShuffleDescriptor

RANGE_PART = -1
"""The Spark job that carries every subtask of the first region that reads no DataFrame; see `range_part`."""


def range_part(region: int) -> int:
    """The Spark job that carries the subtasks of a region which read no DataFrame; other parts are vertex ids."""
    return RANGE_PART - region


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A new job: its graph, the task slots of the application and how long it may wait for them.

    `target_bytes` is what one consumer of a blocking result should read, where their number is open.
    """

    job: str
    graph: JobGraph
    slots_total: int
    slots_timeout: float
    target_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class TaskRegistered:
    """A task started and asks for its deployment."""

    call: int
    attempt: AttemptId
    environment: str
    address: str


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
class PartitionConsumable:
    """A partition can be read: its first buffer is there, or all of it."""

    partition: PartitionId


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
class TaskFinished:
    """A task reports its end: `FINISHED`, `FAILED` or `CANCELED`.

    `sizes` holds, per edge it wrote as a blocking partition, the bytes of each subpartition.
    """

    attempt: AttemptId
    state: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    error_type: str = ""
    sizes: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskLost:
    """A task's process is gone without a report."""

    attempt: AttemptId
    cause: str


@dataclass(frozen=True, slots=True)
class EnvironmentLost:
    """An environment process, or the connection to it, is gone with all it held."""

    environment: str
    cause: str


@dataclass(frozen=True, slots=True)
class SparkJobReturned:
    """One of a job's Spark jobs is over: with success, cancelled, or with an error."""

    job: str
    part: int
    error: str | None = None
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody wants the job to stop."""

    job: str
    cause: str


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """A deadline that the core asked for went by; late ones are ignored."""

    job: str
    what: str


@dataclass(frozen=True, slots=True)
class ResultReleased:
    """Nobody will read the result of this finished job any more, or its lease has run out."""

    job: str
    expired: bool = False


Event = (
    JobSubmitted
    | TaskRegistered
    | PartitionRegistered
    | PartitionRefused
    | PartitionConsumable
    | PartitionsLost
    | ProducersAwaited
    | TaskFinished
    | TaskLost
    | EnvironmentLost
    | SparkJobReturned
    | CancelRequested
    | DeadlinePassed
    | ResultReleased
)
