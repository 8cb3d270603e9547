# SPDX-License-Identifier: Apache-2.0
"""Spark, its hosts and the shell of the JobMaster as a model around the core, one small step after the other.

Rules of the model: Spark has `slots` cores and starts queued tasks first in, first out; a worker asks, works, reports
and asks again; a Spark job returns when its tasks have ended; a task whose process dies is tried again by Spark, as
on a cluster, unless the test kills its whole Spark job. Steps still to happen stand in `todo`; `run` does all of them
in order, a random test picks. The work of tasks with their deployments is the test's business. Every call must be
answered once, and the model counts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from penstock.errors import FailureKind, PenstockError
from penstock.graph.deployment import TaskDeployment
from penstock.graph.job_graph import JobGraph
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.deadlines import Deadline, DeadlineKind
from penstock.job.core.ids import SparkJob, SparkJobId, SparkJobKind, TaskId, WorkerId
from penstock.job.core.master_core import MasterCore
from penstock.job.core.result import JobResult
from penstock.link.commands import CancelTask
from penstock.link.master import PartitionConsumable, TaskEnd, TaskFinished
from penstock.settings import RestartSettings
from penstock.shuffle import AttemptId, DatasetId, PartitionId, ShuffleDescriptor

_T = TypeVar("_T")
Place = tuple[int, int]


def workers_job(number: int) -> SparkJobId:
    """The Spark job of a launch of workers; the first is number 0."""
    return SparkJobId(SparkJobKind.WORKERS, number)


def frame_job(number: int) -> SparkJobId:
    """The Spark job of one reading of a DataFrame; the first has the number of its vertex."""
    return SparkJobId(SparkJobKind.DATAFRAME, number)


@dataclass(eq=False)
class SparkTask:
    """A Spark task with a core: a worker, or the task of a DataFrame's partition."""

    identity: TaskId
    spark_job: SparkJobId
    environment: str
    call: int | None = None
    attempt: AttemptId | None = None
    is_over: bool = False

    @property
    def key(self) -> tuple[str, SparkJobId]:
        """Its Spark job."""
        return self.identity.job, self.spark_job


@dataclass(eq=False)
class Step:
    """Something that is going to happen."""

    name: str
    act: Callable[[], None]
    key: object = None


@dataclass
class Ended:
    """The end of a job."""

    result: JobResult
    error: PenstockError | None = None
    partitions: tuple[ShuffleDescriptor, ...] = ()


class Cluster:
    """A core with everything around it."""

    def __init__(self, slots: int = 8, environments: Iterable[str] = ("a",)) -> None:
        self.core = MasterCore()
        self.slots = slots
        self.gone = 0
        """Slots that were lost with a host: no task begins there."""
        self.environments = list(environments)
        self.now = 0.0
        self.pace = 0.001
        self.todo: list[Step] = []
        self.queue: deque[tuple[str, SparkJobId, TaskId]] = deque()
        self.tasks: list[SparkTask] = []
        self.open: dict[tuple[str, SparkJobId], int] = {}
        self.deadlines: list[tuple[float, str, Deadline]] = []
        self.withdrawn: list[tuple[str, Deadline]] = []
        self.location_lost: tuple[str, type[PenstockError]] | tuple[()] = ()
        """The error that ends a query whose driver looks who owns its location, if any."""
        self.log: list[do.Instruction] = []
        self.ended: dict[str, Ended] = {}
        self.ends: Counter[str] = Counter()
        self.asked: set[int] = set()
        self.hung_up: set[int] = set()
        self.answers: Counter[int] = Counter()
        self.known: dict[PartitionId, ShuffleDescriptor] = {}
        self.released: Counter[PartitionId] = Counter()
        self.lost: set[PartitionId] = set()
        self.deployments: dict[AttemptId, TaskDeployment] = {}
        self.traced: dict[str, int] = {}
        self.after: Callable[[do.Instruction], None] = lambda _: None
        self._attempts = 1000
        self._placed = 0

    # --- events

    def send(self, event: events.Event) -> list[do.Instruction]:
        """Handle one event; what it led to at once."""
        self.now += self.pace
        out = self.core.handle(event, self.now)
        for instruction in out:
            self.log.append(instruction)
            self._note(instruction)
            self.after(instruction)
        assert self.core.slots_in_use <= self.slots, "more slots than there are"
        return out

    def submit(
        self,
        graph: JobGraph,
        job: str = "j1",
        *,
        timeout: float = 60,
        restart: RestartSettings | None = None,
        target: int = 64 << 20,
        left: int | None = None,
    ) -> list[do.Instruction]:
        """Submit a job, and do all that follows; it is planned anew where it is for the slots that are `left`."""
        slots = self.slots if left is None else left
        submitted = (job, graph, slots, timeout, target, restart or RestartSettings())
        out = self.send(events.JobSubmitted(*submitted, may_wait=left is not None))
        self.run()
        return out

    def run(self) -> None:
        """Do all that is going to happen, in order."""
        for _ in range(100_000):
            if not self.step():
                return
        raise AssertionError("it never comes to rest")

    def step(self, choose: Callable[[int], int] = lambda _: 0) -> bool:
        """Do one of the things that are going to happen; whether there was one."""
        count = len(self.todo) + self.may_begin
        if not count:
            return False
        number = choose(count)
        if number == len(self.todo):
            self._start(*self.queue.popleft())
        else:
            self.todo.pop(number).act()
        return True

    @property
    def may_begin(self) -> bool:
        """Tell whether Spark has a core for the first task of its queue."""
        return bool(self.queue) and len(self.tasks) < self.slots - self.gone

    # --- what tests look at

    def of(self, kind: type[_T]) -> list[_T]:
        """All instructions of a kind so far, or what environments were told of it."""
        said = (item.command if isinstance(item, do.TellEnvironment) else item for item in self.log)
        return [item for item in said if isinstance(item, kind)]

    def working(self, job: str = "j1") -> list[Place]:
        """The subtasks that tasks work on."""
        attempts = [task.attempt for task in self.tasks if task.attempt and task.identity.job == job]
        return sorted((attempt.vertex, attempt.subtask) for attempt in attempts)

    def workers(self, job: str = "j1") -> list[SparkTask]:
        """The workers with a core."""
        return [t for t in self.tasks if t.identity.job == job and isinstance(t.identity, WorkerId)]

    def task(self, vertex: int, subtask: int, job: str = "j1") -> SparkTask:
        """The task that works on a subtask."""
        found = [t for t in self.tasks if t.attempt and t.identity.job == job]
        (task,) = [t for t in found if t.attempt and (t.attempt.vertex, t.attempt.subtask) == (vertex, subtask)]
        return task

    def attempt(self, vertex: int, subtask: int, job: str = "j1") -> AttemptId:
        """The attempt somebody works on."""
        attempt = self.task(vertex, subtask, job).attempt
        assert attempt is not None
        return attempt

    def deployment(self, vertex: int, subtask: int, job: str = "j1") -> TaskDeployment:
        """The deployment of the task that works on a subtask."""
        return self.deployments[self.attempt(vertex, subtask, job)]

    def trace(self, name: str, job: str = "j1") -> list[str]:
        """The entries of a job's trace with this name, while it runs or afterwards."""
        entries = self.ended[job].result.trace if job in self.ended else self.core.trace(job)
        return [ids for _, entry, ids in entries if entry == name]

    def restarted(self, job: str = "j1") -> list[Place]:
        """The places that were restarted since this was asked last."""
        entries = self.trace("task_restarted", job)
        first, self.traced[job] = self.traced.get(job, 0), len(entries)
        return sorted(_place(entry) for entry in entries[first:])

    # --- what tests do

    def finish(self, vertex: int, subtask: int, job: str = "j1", **report: object) -> None:
        """A task reports its end, well unless `report` says otherwise, and all that follows happens."""
        self.report(self.task(vertex, subtask, job), **report)
        self.run()

    def fail(
        self, vertex: int, subtask: int, kind: FailureKind = FailureKind.CAUSE, job: str = "j1", **more: object
    ) -> None:
        """A task reports an error."""
        report = {"state": TaskEnd.FAILED, "error": f"{kind}: boom", "failure": kind, **more}
        self.finish(vertex, subtask, job, **report)

    def finish_all(self, vertex: int, job: str = "j1") -> None:
        """All that comes of a vertex ends well."""
        while any(place[0] == vertex for place in self.working(job)):
            self.finish(*next(place for place in self.working(job) if place[0] == vertex), job)

    def finish_job(self, job: str = "j1", **report: object) -> None:
        """Everything that comes ends well, until nothing comes any more."""
        for _ in range(100_000):
            if not self.working(job):
                return
            self.finish(*self.working(job)[0], job, **report)
        raise AssertionError("it never ends")

    def report(self, task: SparkTask, **report: object) -> None:
        """A task says how it ended; a worker will ask again, the task of a DataFrame ends."""
        attempt, task.attempt = task.attempt, None
        assert attempt is not None
        if isinstance(task.identity, WorkerId):
            self._plan("ask", lambda: self._ask(task), task)
        else:
            self._plan("end", lambda: self._end(task), task)
        self.send(TaskFinished(attempt, **{"state": TaskEnd.FINISHED, **report}))  # type: ignore[arg-type]

    def consumable(self, vertex: int, subtask: int, edge: int, job: str = "j1") -> None:
        """The first buffer of what somebody writes is there."""
        outputs = self.deployment(vertex, subtask, job).outputs
        (found,) = [output.descriptor.partition for output in outputs if output.edge == edge]
        self.send(PartitionConsumable(found))
        self.run()

    def lose(self, task: SparkTask, cause: str = "its process died", *, retried: bool = True) -> None:
        """A task's process dies; Spark tries it again."""
        attempt: TaskId = task.attempt or task.identity
        self._drop(task)
        if retried:
            self._retry(task)
        else:
            self._one_less(task.key)
        self.send(events.TaskGone(attempt, cause))

    def lose_task(self, vertex: int, subtask: int, job: str = "j1") -> None:
        """The process of whoever works on a subtask dies, and all that follows happens."""
        self.lose(self.task(vertex, subtask, job))
        self.run()

    def lose_environment(self, name: str, replaced_by: str = "") -> None:
        """An environment is gone with its tasks."""
        self.environments = [replaced_by if known == name else known for known in self.environments]
        self.environments = [known for known in self.environments if known] or ["fresh"]
        self.lost |= {item for item, descriptor in self.known.items() if descriptor.environment == name}
        for task in [task for task in self.tasks if task.environment == name]:
            self._drop(task)
            self._retry(task)
        self.send(events.EnvironmentLost(name, "no heartbeat"))

    def lose_partition(self, vertex: int, subtask: int, edge: int, job: str = "j1") -> PartitionId:
        """The partition of a subtask's last attempt is gone, as its service says."""
        dataset = DatasetId(job, edge) if edge >= 0 else DatasetId(job, vertex, is_result=True)
        found = max(item for item in self.known if item.dataset == dataset and item.index == subtask)
        self.lost.add(found)
        self.send(events.PartitionsLost((found,), "disk gone"))
        self.run()
        return found

    def kill_spark_job(
        self, job: str, spark_job: SparkJobId, error: str = "cancelled", *, cancelled: bool = True
    ) -> None:
        """Spark ends a Spark job; its tasks' ends are seen before and after, in any order."""
        if (job, spark_job) not in self.open:
            return
        self.queue = deque(item for item in self.queue if item[:2] != (job, spark_job))
        for task in [task for task in self.tasks if task.key == (job, spark_job)]:
            attempt = task.attempt or task.identity
            self._drop(task)
            self._plan("lost", lambda attempt=attempt: self._say_lost(attempt))
        self.open[job, spark_job] = 0
        self._plan("return", lambda: self._return(job, spark_job, error, cancelled=cancelled))

    def deadline(self, kind: DeadlineKind, job: str = "j1") -> None:
        """A deadline goes by, and all that follows happens; it must have been asked for."""
        (entry, *_) = [entry for entry in self.deadlines if entry[1] == job and entry[2].kind is kind]
        self.deadlines.remove(entry)
        self.now = max(self.now, entry[0])
        self.send(events.DeadlinePassed(job, entry[2]))
        self.run()

    def late_deadline(self, kind: DeadlineKind, job: str = "j1") -> None:
        """A deadline that was withdrawn goes by all the same, and all that follows happens."""
        (late, *_) = [item for item in self.withdrawn if item[0] == job and item[1].kind is kind]
        self.withdrawn.remove(late)
        self.send(events.DeadlinePassed(*late))
        self.run()

    def call(self) -> int:
        """A new call."""
        self.asked.add(len(self.asked) + 1)
        return len(self.asked)

    def check_answers(self) -> None:
        """Every call was answered once; those whose caller has gone at most once."""
        assert max(self.answers.values(), default=0) <= 1
        assert set(self.answers) <= self.asked
        assert self.asked - set(self.answers) <= self.hung_up

    def check_partitions(self) -> None:
        """Every partition was released once or lost or is kept by the result of a job."""
        kept = {item.partition for ended in self.ended.values() for item in ended.partitions if not item.empty}
        assert max(self.released.values(), default=0) <= 1
        assert set(self.released) <= set(self.known)
        assert set(self.known) - set(self.released) <= self.lost | kept

    # --- how it works

    def _plan(self, name: str, act: Callable[[], None], key: object = None) -> None:
        self.todo.append(Step(name, act, key))

    def _forget(self, key: object) -> None:
        self.todo = [step for step in self.todo if step.key is not key]

    def _start(self, job: str, spark_job: SparkJobId, identity: TaskId) -> None:
        environment = self.environments[self._placed % len(self.environments)]
        self._placed += 1
        task = SparkTask(identity, spark_job, environment)
        self.tasks.append(task)
        self._ask(task)

    def _ask(self, task: SparkTask) -> None:
        task.call = self.call()
        self.send(events.TaskRegistered(task.call, task.identity, task.environment, "tcp://x:1", task.spark_job))

    def _end(self, task: SparkTask) -> None:
        self._drop(task)
        self._one_less(task.key)

    def _drop(self, task: SparkTask) -> None:
        task.is_over = True
        self.tasks.remove(task)
        self._forget(task)
        if task.call is not None:
            self.hung_up.add(task.call)

    def _one_less(self, key: tuple[str, SparkJobId]) -> None:
        if key in self.open:
            self.open[key] -= 1
            if self.open[key] == 0:
                self._plan("return", lambda: self._return(*key))

    def _retry(self, task: SparkTask) -> None:
        identity = task.identity
        if task.key in self.open:
            self._attempts += 1
            self.queue.append((identity.job, task.spark_job, again_as(identity, self._attempts)))

    def _return(self, job: str, spark_job: SparkJobId, error: str | None = None, *, cancelled: bool = False) -> None:
        if self.open.pop((job, spark_job), None) is not None:
            self.send(events.SparkJobReturned(job, spark_job, error, cancelled))

    def _say_lost(self, attempt: TaskId) -> None:
        self.send(events.TaskGone(attempt, "killed"))

    def _note(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.LaunchSparkJobs(job, graph, spark_jobs):
                for launched in spark_jobs:
                    self._launched(job, graph, launched)
            case do.RegisterPartition():
                self._plan("register", lambda: self._registered(instruction), instruction)
            case do.AnswerRegistration(call, attempt, answer):
                self._answered(call, attempt, answer)
            case do.ReleaseWorker(call):
                self._answered(call, None, None)
            case do.AnswerProducers(call):
                self.answers[call] += 1
            case do.StartDeadline(job, deadline, seconds):
                assert all(entry[1:] != (job, deadline) for entry in self.deadlines), "armed twice"
                self.deadlines.append((self.now + seconds, job, deadline))
            case do.WithdrawDeadline(job, deadline):
                self.deadlines = [entry for entry in self.deadlines if entry[1:] != (job, deadline)]
                self.withdrawn.append((job, deadline))
            case do.TellEnvironment(_, CancelTask(attempt, _, is_unwanted)):
                self._stop(attempt, is_unwanted=is_unwanted)
            case do.CancelSparkJobs(job, spark_job):
                self._plan("kill", lambda: self._kill(job, spark_job))
            case do.ReleaseDescriptors(_, descriptors):
                self.released.update(item.partition for item in descriptors)
            case do.LookWhoOwns(job):
                self._plan("look", lambda: self.send(events.OwnerSeen(job, *self.location_lost)))
            case do.CompleteJob(job, result, partitions):
                self._job_over(job, Ended(result, None, partitions))
            case do.FailJob(job, result, error):
                self._job_over(job, Ended(result, error))
            case _:
                pass

    def _launched(self, job: str, graph: JobGraph, launched: SparkJob) -> None:
        tasks: list[TaskId] = [WorkerId(job, number, 0) for number in launched.workers]
        if launched.vertex is not None:
            width = self.frame_width(job, graph, launched)
            tasks = [AttemptId(job, launched.vertex, subtask, 0) for subtask in range(width)]
        self.open[job, launched.id] = len(tasks)
        for task in tasks:
            self._attempts += 1
            self.queue.append((job, launched.id, again_as(task, self._attempts)))

    def _registered(self, instruction: do.RegisterPartition) -> None:
        partition, producer = instruction.partition, instruction.producer
        identity = PartitionId(partition.dataset, partition.index, producer.attempt.attempt)
        descriptor = ShuffleDescriptor(
            identity, instruction.service, partition.kind, producer.environment, producer.address
        )
        assert identity not in self.known, "registered twice"
        self.known[identity] = descriptor
        if producer.environment not in self.environments:
            self.lost.add(identity)
        self.send(events.PartitionRegistered(producer.attempt, instruction.edge, descriptor))

    def frame_width(self, job: str, graph: JobGraph, launched: SparkJob) -> int:
        """The number of partitions that a DataFrame has; the tasks of the others never come."""
        assert launched.vertex is not None
        return graph.vertex(launched.vertex).parallelism

    def _answered(self, call: int, attempt: AttemptId | None, answer: object) -> None:
        self.answers[call] += 1
        found = [task for task in self.tasks if task.call == call]
        for task in found:
            task.call = None
            if isinstance(answer, TaskDeployment):
                task.attempt = attempt
            else:
                self._plan("end", lambda task=task: self._end(task), task)
        if isinstance(answer, TaskDeployment) and attempt is not None:
            assert attempt not in self.deployments, "deployed twice"
            self.deployments[attempt] = answer

    def _stop(self, attempt: AttemptId, *, is_unwanted: bool) -> None:
        stopped = self._cut if is_unwanted else self._stopped
        for task in self.tasks:
            if task.attempt == attempt:
                self._plan("stop", lambda task=task: stopped(task, attempt), task)

    def _stopped(self, task: SparkTask, attempt: AttemptId) -> None:
        if task.attempt == attempt:
            self.report(task, state=TaskEnd.CANCELED, error="told to stop", failure=FailureKind.CONSEQUENCE)

    def _cut(self, task: SparkTask, attempt: AttemptId) -> None:
        """Nobody wants its rows: it ends early."""
        if task.attempt == attempt:
            self.report(task, is_cut=True)

    def _kill(self, job: str, spark_job: SparkJobId | None) -> None:
        for key in [key for key in self.open if key[0] == job and spark_job in (None, key[1])]:
            self.kill_spark_job(*key)

    def _job_over(self, job: str, ended: Ended) -> None:
        self.ends[job] += 1
        self.ended[job] = ended
        self.deadlines = [entry for entry in self.deadlines if entry[1] != job]


def again_as(task: TaskId, number: int) -> TaskId:
    """Another Spark attempt of a task."""
    if isinstance(task, WorkerId):
        return WorkerId(task.job, task.number, number)
    return AttemptId(task.job, task.vertex, task.subtask, number)


def _place(entry: str) -> Place:
    vertex, _, subtask = entry.removeprefix("v").partition(".")
    return int(vertex), int(subtask)
