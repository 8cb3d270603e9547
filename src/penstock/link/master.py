# SPDX-License-Identifier: Apache-2.0
"""The questions to the JobMaster, each with its answer. Environments ask for themselves and for their tasks.

An environment attaches first, on each of its connections. A task's calls go through its environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.errors import FailureKind, ProtocolError
from penstock.link.figures import ChannelFigures, PartitionFigures, UseFigures
from penstock.link.questions import Asked
from penstock.link.wire import Done
from penstock.shuffle import AttemptId, PartitionId, ShuffleDescriptor
from penstock.shuffle.requests import Request


@dataclass(frozen=True, slots=True)
class AttachEnvironment(Request[Done]):
    """An environment process is there; `address` is where others read its partitions.

    From now on its commands come over this connection, those after the number that it has `taken`.
    """

    environment: str
    address: str
    host: str
    pid: int
    taken: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Heartbeat(Request[Done]):
    """An environment lives: its figures, and those of its tasks. It has `taken` the commands up to this number.

    `metrics` is where it serves them itself, empty if it does not.
    """

    environment: str
    statistics: dict[str, float] = field(default_factory=dict)
    tasks: tuple[tuple[AttemptId, dict[str, float]], ...] = ()
    taken: int = 0
    asked: Asked = field(default_factory=Asked)
    partitions: tuple[PartitionFigures, ...] = ()
    channels: tuple[ChannelFigures, ...] = ()
    metrics: str = ""
    uses: tuple[UseFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    """The next work (`graph.TaskDeployment` as it travels, the attempt first), or None: nothing more."""

    deployment: object = None

    @property
    def attempt(self) -> AttemptId | None:
        """The attempt to work on; raises ProtocolError where that can't be read."""
        if self.deployment is None:
            return None
        if not isinstance(self.deployment, tuple | list) or not self.deployment:
            raise ProtocolError(f"a deployment can't be {self.deployment!r:.200}")
        return AttemptId.from_wire(tuple(self.deployment[0]))


@dataclass(frozen=True, slots=True)
class RegisterTask(Request[Registered]):
    """A task asks for work, by its own name; `spark_job` is the number of the Spark job that it is in.

    Its environment fills in its own name and address. It has one if it serves others, which it does from the first
    task on that works for a job that `uses_data_plane`.
    """

    attempt: AttemptId
    spark_job: int = 0
    environment: str = ""
    address: str = ""
    uses_data_plane: bool = True


@dataclass(frozen=True, slots=True)
class AwaitProducers(Request[Done]):
    """Answered when the producers of this attempt are confirmed."""

    attempt: AttemptId


class TaskEnd(StrEnum):
    """The ends of an attempt."""

    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


@dataclass(frozen=True, slots=True)
class TaskFinished(Request[Done]):
    """An attempt has ended. Sizes (bytes of each subpartition) and fingerprints are by edge.

    Of one that failed, `failure` says what that means, and `lost` is the partition that could not be read, where that
    is the cause. `left` are the edges that it has not read to their end, because it had enough;
    `is_cut`: it has not written all of its rows, because they are not wanted.
    """

    attempt: AttemptId
    state: TaskEnd
    metrics: dict[str, float] = field(default_factory=dict)
    sizes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    fingerprints: dict[int, int] = field(default_factory=dict)
    error: str = ""
    failure: FailureKind = FailureKind.CAUSE
    lost: PartitionId | None = None
    left: tuple[int, ...] = ()
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class AcknowledgeCheckpoint(Request[Done]):
    """A task's part of a checkpoint is stored: `handle` says how it is found again, `figures` what it took."""

    attempt: AttemptId
    checkpoint: int
    handle: bytes
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint(Request[Done]):
    """A task takes no part in a checkpoint."""

    attempt: AttemptId
    checkpoint: int
    cause: str


@dataclass(frozen=True, slots=True)
class DataEnded(Request[Done]):
    """All of a task's data is processed: it waits for the checkpoint that holds its last state."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class ResultOpened:
    """The partitions of a result, in order."""

    partitions: tuple[ShuffleDescriptor, ...]


@dataclass(frozen=True, slots=True)
class OpenResult(Request[ResultOpened]):
    """A task asks for a result by its name; answered when its job is over.

    It could not be opened when an action was planned; the task names its own action.
    """

    result: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """The next step: read `partition`, or else work for `job` with this `plan`, or else `ask_again` at once.

    None of them: there is no other partition than the one that the task knows.
    """

    partition: ShuffleDescriptor | None = None
    job: str = ""
    plan: bytes = b""
    ask_again: bool = False


@dataclass(frozen=True, slots=True)
class ReadResult(Request[ReadAnswer]):
    """A task of a Spark stage (negative: not known) is going to read the partition at `index` of a result.

    `partition` is the one it knows of. `lost` says why it could not read that one; `leased` is the job that it has
    leased its slot to and that has let it go.
    """

    result: str
    index: int
    partition: PartitionId
    stage: int = -1
    lost: str = ""
    leased: str = ""

    @property
    def job(self) -> str:
        """The job that made the partition."""
        return self.partition.job


@dataclass(frozen=True, slots=True)
class PartitionConsumable(Request[Done]):
    """A partition can be read: at its first buffer, or complete. A report, sent until it is taken."""

    partition: PartitionId
    number: int = 0


@dataclass(frozen=True, slots=True)
class TaskLost(Request[Done]):
    """A task has gone without a word. A report, sent until it is taken. `counts` are those of its rows, if any."""

    attempt: AttemptId
    cause: str
    number: int = 0
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PutFlag(Request[Done]):
    """A gate of a job holds more than its high-water mark, or less than its low one again. A report, as above."""

    job: str
    flag: str
    is_raised: bool
    number: int = 0


Report = PartitionConsumable | TaskLost | PutFlag
"""The reports of an environment that ask nothing. Its `number`, from 1 on, counts the environment's reports."""

UNANSWERED = (AcknowledgeCheckpoint, DeclineCheckpoint, DataEnded)
"""The words of a streaming task that wait for no answer: it hears of an error where it waits next."""

RELAYED: dict[str, type[Request[Any]]] = {
    kind.METHOD: kind for kind in (RegisterTask, AwaitProducers, TaskFinished, OpenResult, ReadResult, *UNANSWERED)
}
"""The questions that an environment passes on for its tasks, each asked until it is answered."""
