# SPDX-License-Identifier: Apache-2.0
"""A launcher whose tasks are threads that speak gRPC as an environment does, and a service that only gives names."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from penstock.graph.deployment import TaskDeployment
from penstock.job.client import MasterClient
from penstock.job.events import WORKER
from penstock.job.launcher import LaunchRequest
from penstock.job.parts import LaunchPart
from penstock.job.sessions import ENVIRONMENT
from penstock.shuffle import (
    AttemptId,
    JobShuffleContext,
    PartitionDescriptor,
    PartitionId,
    ProducerDescriptor,
    ShuffleDescriptor,
    ShuffleEnvironment,
    ShuffleEnvironmentContext,
    ShuffleMaster,
    ShuffleMasterContext,
    control,
)
from penstock.shuffle.errors import ControlError, PenstockError

DEADLINE = 20.0


class FakeShuffleService:
    """Gives descriptors, moves nothing, and writes down what it was asked."""

    name = "fake"

    def __init__(self) -> None:
        self.story: list[str] = []
        self.fail_registration = False

    def create_shuffle_master(self, context: ShuffleMasterContext) -> ShuffleMaster:
        """The driver side: this object."""
        self.story.append("create")
        return self

    def create_shuffle_environment(self, context: ShuffleEnvironmentContext) -> ShuffleEnvironment:
        """There is none."""
        raise NotImplementedError

    async def start(self) -> None:
        """Note it."""
        self.story.append("start")

    async def close(self) -> None:
        """Note it."""
        self.story.append("close")

    def register_job(self, context: JobShuffleContext) -> None:
        """Note it."""
        self.story.append(f"register {context.job}")

    def unregister_job(self, job: str) -> None:
        """Note it."""
        self.story.append(f"unregister {job}")

    async def register_partition_with_producer(
        self, job: str, partition: PartitionDescriptor, producer: ProducerDescriptor
    ) -> ShuffleDescriptor:
        """A descriptor beside the producer, or an error."""
        if self.fail_registration:
            raise PenstockError("the service is full")
        identity = PartitionId(partition.dataset, partition.index, producer.attempt.attempt)
        return ShuffleDescriptor(
            identity, "job_fakes:service", partition.kind, producer.environment, producer.address
        )

    async def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        """Note it."""
        self.story.append(f"release {descriptor.partition.dataset}")


_service = FakeShuffleService()


def service() -> FakeShuffleService:
    """The one service of the process, as the registry makes it."""
    return _service


def fresh_service() -> FakeShuffleService:
    """The service with nothing written down."""
    _service.story.clear()
    _service.fail_registration = False
    return _service


class FakeEnvironment:
    """An environment: a session, a thread on its instruction stream, and calls for its tasks."""

    def __init__(self, address: str, secret: bytes, name: str) -> None:
        self.name = name
        self.client = MasterClient(address, secret, ENVIRONMENT, name)
        self.instructions: list[control.Message] = []
        self.changed = threading.Condition()
        self.ended = threading.Event()
        self.client.call(
            control.ATTACH_ENVIRONMENT, {"environment": name, "address": "tcp://h:1", "host": "h", "pid": 1}
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def call(self, method: str, message: control.Message, timeout: float = DEADLINE) -> control.Message:
        """A call in the environment's name."""
        return self.client.call(method, {"environment": self.name, "address": "tcp://h:1", **message}, timeout)

    def register(self, identity: AttemptId, part: int) -> TaskDeployment | None:
        """A task asks for what to do; None: nothing more."""
        wire = self.call(control.REGISTER_TASK, {"attempt": identity.to_wire(), "part": part}).get("deployment")
        return None if wire is None else TaskDeployment.from_wire(tuple(wire))

    def finished(self, attempt: AttemptId, state: str = "FINISHED", error: str = "", kind: str = "") -> None:
        """A task's end, in the words of Spark's side."""
        message = {
            "attempt": attempt.to_wire(),
            "state": state,
            "metrics": {"rows_out": 3},
            "sizes": [],
            "fingerprints": [],
            "error": error,
            "error_type": kind,
            "lost": None,
        }
        self.call(control.TASK_FINISHED, message)

    def wait_for(self, op: str, count: int = 1) -> list[control.Message]:
        """The instructions with this op, once there are as many."""
        with self.changed:
            ready = self.changed.wait_for(lambda: len(self._of(op)) >= count, DEADLINE)
            assert ready, f"{count} x {op} expected, got {self.instructions}"
            return self._of(op)

    def close(self) -> None:
        """Hang up."""
        self.client.close()
        self._thread.join(DEADLINE)

    def _of(self, op: str) -> list[control.Message]:
        return [item for item in self.instructions if item["op"] == op]

    def _listen(self) -> None:
        try:
            for instruction in self.client.instructions({"environment": self.name}):
                with self.changed:
                    self.instructions.append(instruction)
                    self.changed.notify_all()
        except ControlError:
            pass
        finally:
            self.ended.set()


Task = Callable[[FakeEnvironment, TaskDeployment], None]
"""What a task does with its deployment, its report included."""


class ThreadLauncher:
    """Runs every worker, and every task of a DataFrame, as a thread; a part returns when its threads have ended."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._numbers = itertools.count(1)
        self.environment: FakeEnvironment | None = None
        self.cancelled: list[str] = []
        self.launched: list[str] = []
        self.absent: set[int] = set()
        """Workers that Spark never starts."""
        self.errors: list[BaseException] = []

    def launch(self, request: LaunchRequest) -> None:
        """Start the threads."""
        self.launched.append(request.submission.job)
        for part in request.parts:
            threading.Thread(target=self._run_part, args=(request, part), daemon=True).start()

    def cancel(self, job: str, part: int | None = None) -> None:
        """Note it; threads can't be cancelled."""
        self.cancelled.append(job if part is None else f"{job} {part}")

    def close(self) -> None:
        """Nothing to close."""

    def _run_part(self, request: LaunchRequest, part: LaunchPart) -> None:
        job = request.submission.job
        places = [(WORKER, number) for number in part.workers if number not in self.absent]
        if part.vertex is not None:
            places = [(part.vertex, subtask) for subtask in range(request.graph.vertex(part.vertex).parallelism)]
        identities = [AttemptId(job, vertex, subtask, next(self._numbers)) for vertex, subtask in places]
        threads = [threading.Thread(target=self._run_task, args=(i, part.part), daemon=True) for i in identities]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        request.returned(part.part, None, False)

    def _run_task(self, identity: AttemptId, part: int) -> None:
        assert self.environment is not None
        environment = self.environment
        try:
            while (deployment := environment.register(identity, part)) is not None:
                self._task(environment, deployment)
                if identity.vertex != WORKER:
                    return
        except (PenstockError, ValueError) as error:  # a closed channel raises ValueError
            self.errors.append(error)
