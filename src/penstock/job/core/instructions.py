# SPDX-License-Identifier: Apache-2.0
"""The instructions of the JobMaster's core. The shell does it; the core never waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.graph.deployment import TaskDeployment
from penstock.graph.job_graph import JobGraph
from penstock.graph.streaming import SavedParts
from penstock.job.core.deadlines import Deadline
from penstock.job.core.ids import SparkJob, SparkJobId, TaskId
from penstock.job.core.result import JobResult
from penstock.link.commands import CancelTask, TaskAction, UpdatePartitionInfo
from penstock.shuffle import AttemptId, PartitionDescriptor, PartitionId, ProducerDescriptor, ShuffleDescriptor

ForTask = CancelTask | TaskAction | UpdatePartitionInfo
"""The words that an environment passes on to one of its tasks."""


@dataclass(frozen=True, slots=True)
class LaunchSparkJobs:
    """Start these Spark jobs of a job: of workers and of DataFrames; the graph is as it is now."""

    job: str
    graph: JobGraph
    spark_jobs: tuple[SparkJob, ...]


@dataclass(frozen=True, slots=True)
class CancelSparkJobs:
    """Cancel what is left of a job's Spark jobs, or of one of them."""

    job: str
    spark_job: SparkJobId | None = None


@dataclass(frozen=True, slots=True)
class RegisterPartition:
    """Make a partition known to its ShuffleMaster; the answer is PartitionRegistered or PartitionRefused."""

    edge: int
    service: str
    partition: PartitionDescriptor
    producer: ProducerDescriptor


@dataclass(frozen=True, slots=True)
class AnswerRegistration:
    """Answer a registration: with the deployment of this attempt, or with the error."""

    call: int
    attempt: TaskId
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
class TellEnvironment:
    """Tell an environment something for one of its tasks."""

    environment: str
    command: ForTask


@dataclass(frozen=True, slots=True)
class StartDeadline:
    """Send DeadlinePassed after this many seconds, unless it is withdrawn or the job ends before."""

    job: str
    deadline: Deadline
    seconds: float


@dataclass(frozen=True, slots=True)
class WithdrawDeadline:
    """This deadline is not waited for any more."""

    job: str
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class ReleaseDescriptors:
    """Release partitions: what the environment holds (empty: none) and what is held outside.

    Late readers are told that they were released, or that their lease has run out.
    """

    environment: str
    descriptors: tuple[ShuffleDescriptor, ...]
    expired: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseJobEverywhere:
    """Tell these environments and the ShuffleMasters that nothing of this job is needed any more."""

    job: str
    environments: tuple[str, ...]


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


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Write the metadata of a checkpoint; the answer is CheckpointStored or CheckpointStoreFailed."""

    job: str
    saved: SavedParts


@dataclass(frozen=True, slots=True)
class LookWhoOwns:
    """Look whether the query's location is still this driver's; the answer is OwnerSeen."""

    job: str


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Remove what is stored of a checkpoint."""

    job: str
    checkpoint: int


@dataclass(frozen=True, slots=True)
class DiscardPart:
    """Remove one task's snapshot."""

    job: str
    handle: bytes


@dataclass(frozen=True, slots=True)
class DiscardLogs:
    """Remove what attempts that are over have logged and no checkpoint needs: files begun before this one."""

    job: str
    before: int


@dataclass(frozen=True, slots=True)
class WarnOfCheckpoint:
    """A checkpoint is damaged, and an older one is taken: the log warns of it."""

    job: str
    checkpoint: int
    instead: int
    cause: str


@dataclass(frozen=True, slots=True)
class AnswerCheckpoint:
    """Answer the call for a checkpoint: with its number, or with why there is none."""

    job: str
    call: int
    checkpoint: int | None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Say that this host keeps losing its environment, the last one for this cause, and is left out for a while."""

    host: str
    cause: str


@dataclass(frozen=True, slots=True)
class WarnOfWait:
    """Say that this job waits for slots that it has lost."""

    job: str
    text: str


ForQuery = (
    StoreCheckpoint
    | LookWhoOwns
    | DiscardCheckpoint
    | DiscardPart
    | DiscardLogs
    | AnswerCheckpoint
    | WarnOfCheckpoint
)
"""The instructions about the checkpoints of a query."""
Instruction = (
    LaunchSparkJobs
    | CancelSparkJobs
    | RegisterPartition
    | AnswerRegistration
    | ReleaseWorker
    | AnswerProducers
    | TellEnvironment
    | StartDeadline
    | WithdrawDeadline
    | ReleaseDescriptors
    | ReleaseJobEverywhere
    | FailJob
    | CompleteJob
    | ResultLost
    | LeaveOut
    | WarnOfWait
    | ForQuery
)


def name_of(instruction: Instruction) -> str:
    """Its name for an error: of something told to an environment, the name of that."""
    return type(instruction.command if isinstance(instruction, TellEnvironment) else instruction).__name__


def job_of(instruction: Instruction) -> str:
    """The job that an instruction is for."""
    match instruction:
        case RegisterPartition():
            return instruction.producer.attempt.job
        case AnswerRegistration() | AnswerProducers():
            return instruction.attempt.job
        case TellEnvironment():
            return instruction.command.attempt.job
        case ReleaseDescriptors():
            return instruction.descriptors[0].partition.job
        case ReleaseWorker() | LeaveOut():
            return ""
        case _:
            return instruction.job
