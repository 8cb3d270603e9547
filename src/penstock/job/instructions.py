# SPDX-License-Identifier: Apache-2.0
"""What the JobMaster's core wants done. The shell does it; the core never waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.graph.deployment import TaskDeployment
from penstock.graph.job_graph import JobGraph
from penstock.job.parts import LaunchPart
from penstock.job.result import JobResult
from penstock.shuffle import AttemptId, PartitionDescriptor, PartitionId, ProducerDescriptor, ShuffleDescriptor
from penstock.shuffle.errors import PenstockError

SLOTS = "slots"
"""The deadline of waiting for slots beside other Penstock jobs."""
DEPLOY = "deploy"
"""The deadline for the tasks of a region to be there; see `deploy_deadline`."""
RESTART = "restart"
"""The deadline after which what failed is run again; see `restart_deadline`."""
UNEXPLAINED = "unexplained"
"""The deadline for Spark to say why it stopped tasks."""
DRAIN = "drain"
"""The deadline for tasks that were told to stop while the job goes on, when nothing else is left to do."""
SETTLE = "settle"
"""The deadline after which Spark is asked to cancel what did not stop by itself."""
GRACE = "grace"
"""The deadline for tasks whose Spark job has returned already, as after the user's cancel."""
LENT = "lent"
"""The deadline after which slots that readers lend are counted, where a DataFrame is still to be read."""
ABANDON = "abandon"
"""The deadline after which a job ends although something never reported its end."""


def deploy_deadline(region: int, round_: int) -> str:
    """The deadline for the tasks of one region to be there, at one of its starts."""
    return f"{DEPLOY} {region} {round_}"


def restart_deadline(round_: int) -> str:
    """The deadline after which what one restart has reset is run again."""
    return f"{RESTART} {round_}"


@dataclass(frozen=True, slots=True)
class LaunchSparkJobs:
    """Start these Spark jobs of a job: of workers and of DataFrames; the graph is as it is now."""

    job: str
    graph: JobGraph
    parts: tuple[LaunchPart, ...]


@dataclass(frozen=True, slots=True)
class CancelSparkJobs:
    """Cancel what is left of a job's Spark jobs, or of one of them."""

    job: str
    part: int | None = None


@dataclass(frozen=True, slots=True)
class RegisterPartition:
    """Make a partition known to its ShuffleMaster; the answer is PartitionRegistered or PartitionRefused."""

    edge: int
    service: str
    partition: PartitionDescriptor
    producer: ProducerDescriptor


@dataclass(frozen=True, slots=True)
class AnswerRegistration:
    """Answer a registration: with the deployment, or with the error."""

    call: int
    attempt: AttemptId
    answer: TaskDeployment | PenstockError


@dataclass(frozen=True, slots=True)
class ReleaseWorker:
    """There is nothing to do for this worker: it may end and free its slot."""

    call: int


@dataclass(frozen=True, slots=True)
class AnswerProducers:
    """Answer a wait for producers: None when they are confirmed, or the error."""

    call: int
    attempt: AttemptId
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class UpdatePartitionInfo:
    """Tell a consumer's environment who an unknown producer is."""

    environment: str
    consumer: AttemptId
    gate: int
    descriptor: ShuffleDescriptor


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Tell a task, through its environment, to stop."""

    environment: str
    attempt: AttemptId
    cause: str


@dataclass(frozen=True, slots=True)
class StartDeadline:
    """Send DeadlinePassed after this many seconds, unless the job ends before."""

    job: str
    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ReleasePartitions:
    """Release partitions: what the environment holds (empty: none) and what is held outside.

    Late readers are told that they were released, or that their lease has run out.
    """

    environment: str
    descriptors: tuple[ShuffleDescriptor, ...]
    expired: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseJob:
    """Tell these environments and the ShuffleMasters that nothing of this job is needed any more."""

    job: str
    environments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RefuseJob:
    """The job was never started."""

    job: str
    result: JobResult
    error: PenstockError


@dataclass(frozen=True, slots=True)
class FailJob:
    """The job is over, without success."""

    job: str
    result: JobResult
    error: PenstockError


@dataclass(frozen=True, slots=True)
class CompleteJob:
    """The job is over, with success; the partitions of its result in order, and the plan as it was run."""

    job: str
    result: JobResult
    partitions: tuple[ShuffleDescriptor, ...]
    graph: JobGraph | None = None


@dataclass(frozen=True, slots=True)
class ResultLost:
    """A result that was complete can't be read any more."""

    job: str
    partitions: tuple[PartitionId, ...]
    cause: str


Instruction = (
    LaunchSparkJobs
    | CancelSparkJobs
    | RegisterPartition
    | AnswerRegistration
    | ReleaseWorker
    | AnswerProducers
    | UpdatePartitionInfo
    | CancelTask
    | StartDeadline
    | ReleasePartitions
    | ReleaseJob
    | RefuseJob
    | FailJob
    | CompleteJob
    | ResultLost
)
