# SPDX-License-Identifier: Apache-2.0
"""The decisions of the parts of a job's core, as values.

A part changes its own state only. A consequence for another part is one of these, which the loop in `job_core` takes
to the one part that owns the state it changes; one for the world outside is an instruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import JobError, PenstockError
from penstock.graph.deployment import TaskDeployment
from penstock.graph.failover import Place
from penstock.job.core.events import CancelRequested, TaskRegistered
from penstock.job.core.failure import Rank
from penstock.job.core.instructions import Instruction
from penstock.job.core.states import JobEvent
from penstock.shuffle import AttemptId, PartitionId, ShuffleDescriptor

# --- for attempts


@dataclass(frozen=True, slots=True)
class Start:
    """A task waits for what it is to do, and is to run this attempt."""

    attempt: AttemptId
    call: int
    environment: str
    address: str


@dataclass(frozen=True, slots=True)
class Orphan:
    """This attempt is not worked on any more. `launched`: the round of its worker's launch."""

    attempt: AttemptId
    cause: str
    launched: int = 0


@dataclass(frozen=True, slots=True)
class OrphanMany:
    """A Spark job of workers is over, and with it these attempts; `missing` of its workers never came.

    `error` is what Spark says; `own`: we had cancelled it.
    """

    attempts: tuple[AttemptId, ...]
    missing: int
    launched: int
    error: str | None
    own: bool


@dataclass(frozen=True, slots=True)
class ConfirmDataFrame:
    """A vertex's DataFrame was read to its end."""

    vertex: int


@dataclass(frozen=True, slots=True)
class OrphanHost:
    """An environment is gone with its tasks and these partitions."""

    environment: str
    cause: str
    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class BeginRound:
    """A restart: what is deployed from now on, or begins anew, does so in this round."""

    round: int


@dataclass(frozen=True, slots=True)
class Reset:
    """This subtask begins anew; `why` is the name of it in the trace."""

    place: Place
    why: str


@dataclass(frozen=True, slots=True)
class StopAll:
    """The job ends: whatever runs is told to stop."""

    cause: str


@dataclass(frozen=True, slots=True)
class StopWaiting:
    """Nothing is waited for any more."""


@dataclass(frozen=True, slots=True)
class DeployRegion:
    """The tasks of a region that runs together are to be told what to do."""

    region: int


@dataclass(frozen=True, slots=True)
class Forgive:
    """The failures of users' code so far count no more: the query has got on."""


# --- for slots


@dataclass(frozen=True, slots=True)
class LetOff:
    """The worker on this attempt, if it was one, will ask again; with a `call` it asks still."""

    attempt: AttemptId
    call: int | None = None


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """The attempt was told to stop, and its worker comes back when it has."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class DropDataFrame:
    """A vertex's DataFrame is going to be read anew, if it has been."""

    vertex: int


@dataclass(frozen=True, slots=True)
class DismissWorkers:
    """Idle workers may end, those that wait behind other attempts too."""


@dataclass(frozen=True, slots=True)
class HoldStarts:
    """The wish that nothing is started for now, or its end."""

    held: bool


@dataclass(frozen=True, slots=True)
class CancelSpark:
    """Spark is to end all that is left of the job, or the Spark jobs of workers that do not stop."""

    only_draining: bool = False


# --- for recovery


@dataclass(frozen=True, slots=True)
class Fail:
    """Something failed that may be mended: these subtasks, for this reason.

    `launched`: the round in which the Spark job was launched that has failed, where that is known. `explains`: the
    reason holds for stopped tasks too that have none yet. `missing` workers never came. `lacks`: their
    host had no room, memory or buffers.
    """

    places: frozenset[Place]
    cause: str
    rank: Rank
    launched: int = 0
    explains: bool = False
    missing: int = 0
    lacks: bool = False
    whole: bool = False
    """Of a query whose tasks begin anew alone, too, all do."""


@dataclass(frozen=True, slots=True)
class AwaitReason:
    """A subtask was stopped by Spark: because its job was cancelled, or because another task died. Spark will say.

    Or its DataFrame broke off, of which `rank` tells: then Spark runs its task again, or gives its own job up.
    """

    place: Place
    cause: str
    rank: Rank = Rank.CONSEQUENCE


@dataclass(frozen=True, slots=True)
class CompareReaders:
    """A subtask that ran again gave other rows on these edges than before restart `born`."""

    place: Place
    edges: tuple[int, ...]
    title: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Subtasks that were about to start, and may not now that their producers run again, give their slots back."""


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """Readers that hold all slots which their producers need give them back."""


# --- for the checkpoints of a query


@dataclass(frozen=True, slots=True)
class AllThere:
    """All tasks of a region that runs together are ready."""

    region: int


@dataclass(frozen=True, slots=True)
class RegionRuns:
    """All tasks of a region that runs together have been told what to do."""

    region: int


@dataclass(frozen=True, slots=True)
class SendDeployment:
    """A task is to be told what to do."""

    call: int
    attempt: AttemptId
    deployment: TaskDeployment


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Tasks begin anew, of a query only those `alone` where there are such; or, `for_good`, the job is over."""

    cause: str
    for_good: bool = False
    alone: frozenset[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class Unrestorable:
    """A task could not begin with its part of the checkpoint, because that is damaged."""

    place: Place
    cause: str


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A task has ended well."""

    attempt: AttemptId


# --- for the end


@dataclass(frozen=True, slots=True)
class Advance:
    """The job goes on to its next state, if this is what moves it from the one it is in."""

    event: JobEvent


@dataclass(frozen=True, slots=True)
class RememberCause:
    """Why something failed, in case it can't be mended; `anew`: what went before was."""

    cause: str
    rank: Rank
    anew: bool = False


@dataclass(frozen=True, slots=True)
class FailForGood:
    """The job is to end for this reason; `why` it is not tried again.

    `anew`: it is the reason even where something else failed before, which was mended; what failed is told with it
    where it is the `sequel` of that.
    """

    cause: str
    rank: Rank = Rank.CAUSE
    kind: type[PenstockError] = JobError
    why: str = ""
    anew: bool = True
    sequel: bool = False


# --- for the accounts


@dataclass(frozen=True, slots=True)
class Track:
    """A partition is there."""

    descriptor: ShuffleDescriptor


@dataclass(frozen=True, slots=True)
class Release:
    """These partitions are not needed any more, where they are still tracked."""

    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class ReleaseRead:
    """All readers of these edges have read the partitions written over them."""

    edges: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoteCounts:
    """An attempt of a query's task is over, and these are its counts of rows."""

    attempt: AttemptId
    counts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A task could not read a partition, of its own job or of an earlier one's result."""

    partition: PartitionId
    cause: str


@dataclass(frozen=True, slots=True)
class Record:
    """An entry for the job's trace: what happened, to whom."""

    name: str
    ids: str


@dataclass(frozen=True, slots=True)
class Conclude:
    """The job is over: well, or with this error; `entry` is the last of its trace."""

    entry: str
    error: PenstockError | None = None


ForAttempts = (
    Start | Orphan | OrphanMany | OrphanHost | ConfirmDataFrame | BeginRound | Reset | StopAll | StopWaiting
    | DeployRegion | Forgive
)  # fmt: skip
ForSlots = LetOff | DrainWorker | DropDataFrame | DismissWorkers | HoldStarts | CancelSpark
ForRecovery = Fail | AwaitReason | CompareReaders | Withdraw | MakeRoom
ForCheckpoints = AllThere | RegionRuns | SendDeployment | Interrupt | Unrestorable | TaskEnded
ForEnding = Advance | RememberCause | FailForGood
ForAccounts = Record | Track | Release | ReleaseRead | Unreadable

ForParts = ForAttempts | ForSlots | ForRecovery | ForCheckpoints | ForEnding | ForAccounts
"""The decisions that a part carries out on its own state."""
Decision = ForParts | Conclude | NoteCounts | TaskRegistered | CancelRequested | Instruction
