# SPDX-License-Identifier: Apache-2.0
"""What can happen to the JobMaster's core. Plain values: no clock, socket or thread in them.

A `call` is the number of an answer somebody waits for; the core gives exactly one answer for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.graph.job_graph import JobGraph
from penstock.shuffle import AttemptId, PartitionId, ShuffleDescriptor
from penstock.shuffle.settings import RestartSettings

WORKER = -2
"""The `vertex` of a worker's identity: a Spark task that asks for one subtask after the other."""
LENT = -(1 << 30)
"""The `part` of a worker that no Spark job of the job started: a read task lends its slot while it waits."""


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A new job: its graph, the task slots of the application and how long it may wait for them.

    `target_bytes` is what one consumer of a blocking result should read, where their number is open; `restart` says
    how often and how soon what failed is run again.
    """

    job: str
    graph: JobGraph
    slots_total: int
    slots_timeout: float
    target_bytes: int = 64 << 20
    restart: RestartSettings = field(default_factory=RestartSettings)


@dataclass(frozen=True, slots=True)
class TaskRegistered:
    """A Spark task is there and asks for a deployment.

    A worker (`attempt.vertex` is WORKER, `attempt.subtask` its number) takes any subtask, again and again; a task
    that reads a DataFrame's partition can be that subtask only, and says which Spark job (`part`) it belongs to. A
    lent worker (`part` is LENT) has a negative number of its own choice, and stays until the job is over.
    """

    call: int
    attempt: AttemptId
    environment: str
    address: str
    part: int = 0


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

    `sizes` holds, per edge it wrote as a stored partition, the bytes of each subpartition, and `fingerprints`, per
    edge, a number that is the same for the same rows. `lost` is the partition that it could not read.
    """

    attempt: AttemptId
    state: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    error_type: str = ""
    sizes: Mapping[int, Sequence[int]] = field(default_factory=dict)
    fingerprints: Mapping[int, int] = field(default_factory=dict)
    lost: PartitionId | None = None


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
