# SPDX-License-Identifier: Apache-2.0
"""The questions to the JobMaster, each with its answer. Environments ask for themselves and for their tasks.

A caller proves itself first: `Challenge`, then `Authenticate` (`MasterProof` has the caller's part). Every other call
carries the session that the proof gave. A task's calls go through its environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.link import control
from penstock.link.figures import ChannelFigures, PartitionFigures
from penstock.link.questions import Asked
from penstock.link.wire import Done, to_wire
from penstock.shuffle import AttemptId, PartitionId, ShuffleDescriptor
from penstock.shuffle.errors import AuthenticationError, ProtocolError
from penstock.shuffle.failure_kinds import FailureKind
from penstock.shuffle.requests import Request

Metadata = tuple[tuple[str, str | bytes], ...]
"""The head of a gRPC call."""

MASTER = "master"
"""The role that the JobMaster proves."""
ENVIRONMENT = "environment"
"""The role of an environment process."""
PLANNER = "planner"
"""The role of the process in which Spark plans a DataFrame."""


@dataclass(frozen=True, slots=True)
class Challenged:
    """The JobMaster's nonce, good for one proof."""

    nonce: bytes


@dataclass(frozen=True, slots=True)
class Challenge(Request[Challenged]):
    """Begin."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The session that every further call carries, and the JobMaster's own proof."""

    session: str
    proof: bytes


@dataclass(frozen=True, slots=True)
class Authenticate(Request[Authenticated]):
    """The proof of this role and identity, over both nonces."""

    nonce: bytes
    client_nonce: bytes
    role: str
    identity: str
    proof: bytes


@dataclass(frozen=True, slots=True)
class AttachEnvironment(Request[Done]):
    """An environment process is there; `address` is where others read its partitions."""

    environment: str
    address: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Listen(Request[Done]):
    """The stream of `commands` for this environment, after the number that it has `taken`; not answered once."""

    environment: str
    taken: int = 0


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

    Its environment fills in its own name and address.
    """

    attempt: AttemptId
    spark_job: int = 0
    environment: str = ""
    address: str = ""


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
    `is_cut`: it has not written all of its rows, because nobody wants them.
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
    """The partitions of a result, in order, and how many bytes they have."""

    partitions: tuple[ShuffleDescriptor, ...]
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class OpenResult(Request[ResultOpened]):
    """A planner asks for a result by its name; answered when its job is over.

    A task that opens what could not be opened when its action was planned names that action.
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
    """A task has gone without a word. A report, sent until it is taken."""

    attempt: AttemptId
    cause: str
    number: int = 0


Report = PartitionConsumable | TaskLost
"""The reports of an environment that ask nothing. Its `number`, from 1 on, counts the environment's reports."""

UNANSWERED = (AcknowledgeCheckpoint, DeclineCheckpoint, DataEnded)
"""The words of a streaming task that wait for no answer: it hears of an error where it waits next."""

RELAYED: dict[str, type[Request[Any]]] = {
    kind.METHOD: kind for kind in (RegisterTask, AwaitProducers, TaskFinished, ReadResult, *UNANSWERED)
}
"""The questions that an environment passes on for its tasks, each asked until it is answered."""


def call_of(request: Request[Any], session: Metadata, question: int = 0) -> tuple[bytes, Metadata]:
    """The message and the head of a gRPC call with this request; the handshake's own needs no session.

    `question` is the number under which it comes again where it is not answered; 0 for what may come twice.
    """
    data = control.pack(to_wire(request))
    if isinstance(request, Challenge | Authenticate):
        return b"", ((control.HELLO_HEADER, data),)
    return data, (*session, (control.QUESTION_HEADER, str(question))) if question else session


class MasterProof:
    """A caller's part of the handshake with the JobMaster, without its I/O."""

    def __init__(self, secret: bytes, role: str, identity: str) -> None:
        self._secret = secret
        self._role = role
        self._identity = identity
        self._mine = control.nonce()
        self._theirs = b""

    def answer(self, challenged: Challenged) -> Authenticate:
        """The proof for this challenge."""
        self._theirs = challenged.nonce
        proof = control.proof(self._secret, self._role, challenged.nonce, self._mine, self._identity)
        return Authenticate(challenged.nonce, self._mine, self._role, self._identity, proof)

    def check(self, authenticated: Authenticated, where: str) -> str:
        """The session; AuthenticationError where the JobMaster at `where` has not proved itself."""
        expected = control.proof(self._secret, MASTER, self._mine, self._theirs, self._identity)
        if not control.proof_matches(expected, authenticated.proof):
            raise AuthenticationError(f"the JobMaster at {where} could not prove the application's secret")
        return authenticated.session
