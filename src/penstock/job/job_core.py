# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's view of one job, from its submission to its end: what each event leads to.

Events in, instructions out; no await, socket, clock, thread or log. Rules:

- Spark tasks are workers that ask for one subtask after the other; only those that read a DataFrame are bound to
  theirs. Which subtasks may run is in `stages`, what they are given in `demand` and `staffing`, how many slots in
  `master_core`; how they are told in `deployments`.
- A consumer is deployed with placeholders and told of each producer at its first buffer (`updates`). Whoever consumes
  a DataFrame's rows ends only after that DataFrame's Spark job has returned (`confirmations`).
- What fails is run again with what depends on it (`task_ends`, `recovery`, `restarts`); the job fails when its
  restarts are used up, when user code fails more often than allowed, or when Spark gives a DataFrame up (`ending`).
"""

from __future__ import annotations

from penstock.job import events
from penstock.job import instructions as do
from penstock.job.confirmations import Confirmations
from penstock.job.demand import Demand
from penstock.job.deployments import Deployments
from penstock.job.ending import Ending
from penstock.job.job_context import JobContext
from penstock.job.job_scope import JobScope
from penstock.job.job_tasks import Live
from penstock.job.restarts import Restarts
from penstock.job.result import JobProgress, TraceEntry
from penstock.job.spark_ends import SparkEnds
from penstock.job.staffing import Staffing
from penstock.job.states import JobState
from penstock.job.task_ends import TaskEnds
from penstock.shuffle import AttemptId, PartitionId

_RUNS = (JobState.WAITING_FOR_SLOTS, JobState.RUNNING)


class JobCore:
    """One job. The master's core calls one method per event; instructions leave through the context."""

    def __init__(self, submitted: events.JobSubmitted, result_service: str, context: JobContext) -> None:
        self.job = submitted.job
        self._scope = scope = JobScope(submitted, result_service, context)
        self._confirmations = Confirmations(scope)
        self._ending = Ending(scope, self._confirmations)
        self._restarts = Restarts(scope, self._confirmations, self._ending)
        self._deployments = Deployments(scope, self._ending)
        self._task_ends = TaskEnds(scope, self._deployments, self._restarts, self._ending)
        self._staffing = Staffing(scope, self._deployments, self._restarts, self._ending)
        self._spark_ends = SparkEnds(scope, self._task_ends, self._restarts, self._confirmations, self._ending)

    @property
    def is_over(self) -> bool:
        """Whether nothing can happen any more."""
        return self._scope.lifecycle.is_terminal

    @property
    def environments(self) -> tuple[str, ...]:
        """The environments that its subtasks ran beside."""
        return tuple(sorted({subtask.environment for subtask in self._scope.tasks if subtask.environment}))

    @property
    def slots_total(self) -> int:
        """The application's slots when the job was submitted."""
        return self._scope.submitted.slots_total

    @property
    def slots_held(self) -> int:
        """The slots that are the job's own."""
        return self._staffing.slots_held

    @property
    def slots_starved(self) -> int:
        """The slots lent to it although it can't go on without other ones; mostly none."""
        return self._staffing.slots_starved

    # --- slots

    def wait_for_slots(self) -> None:
        """Stand in the queue, or refuse a job that can never fit."""
        self._staffing.wait_for_slots()

    def demand(self) -> Demand | None:
        """The slots it would like to have now beside those it holds."""
        return self._staffing.demand()

    def give_back(self, slots: int) -> int:
        """Release up to so many idle workers that others need more; how many."""
        return self._staffing.give_back(slots)

    def use_workers(self) -> None:
        """Give idle workers their next subtasks, and let go those without any."""
        self._staffing.use_workers()

    def grant(self, demand: Demand, slots: int) -> None:
        """Start what was asked for, at most so many as there are slots."""
        self._staffing.grant(demand, slots)

    def is_last_lend(self, what: str) -> bool:
        """Whether nobody has lent this job a slot since that deadline was asked for."""
        return self._staffing.is_last_lend(what)

    def refuse_lent(self) -> None:
        """Those who lend slots must give them up."""
        self._staffing.refuse_lent()

    # --- tasks

    def register_task(self, event: events.TaskRegistered) -> None:
        """A worker asks for a subtask, or the task of a DataFrame's partition for its deployment."""
        scope = self._scope
        if event.attempt.vertex == events.WORKER:
            self._register_worker(event)
        elif scope.lifecycle.is_active:
            self._deployments.register_frame_task(event)
        else:
            scope.emit(do.AnswerRegistration(event.call, event.attempt, scope.over(event.attempt)))

    def _register_worker(self, event: events.TaskRegistered) -> None:
        scope = self._scope
        worker = scope.workers.find(event.attempt.subtask)
        if worker is not None and worker.identity == event.attempt and worker.attempt is not None:
            self._task_ends.give_up(worker.attempt, "was given up: its task asked for other work without a report")
        if event.part == events.LENT and scope.lifecycle.state in _RUNS:
            self._staffing.register_lent(event)
        elif not scope.lifecycle.is_active:
            if worker is not None and worker.attempt is None and worker.identity in (None, event.attempt):
                scope.release_workers([worker])
            scope.emit(do.AnswerRegistration(event.call, event.attempt, scope.over(event.attempt)))
        elif worker is None:
            scope.emit(do.ReleaseWorker(event.call))
        else:
            scope.answer_calls(scope.workers.register(event))
        self._ending.settle_if_quiet()

    def register_partition(self, event: events.PartitionRegistered) -> None:
        """A partition has its descriptor."""
        self._deployments.register_partition(event)

    def refuse_partition(self, event: events.PartitionRefused) -> None:
        """A ShuffleMaster could not register a partition."""
        self._deployments.refuse_partition(event)

    def partition_consumable(self, partition: PartitionId) -> None:
        """A partition can be read."""
        self._deployments.partition_consumable(partition)

    def await_producers(self, event: events.ProducersAwaited) -> None:
        """A consumer asks whether the end of its inputs is real."""
        self._confirmations.ask(event)

    def finish_task(self, event: events.TaskFinished) -> None:
        """A task reports its end."""
        self._task_ends.finish(event)
        self._ending.settle_if_quiet()

    def lose_task(self, event: events.TaskLost) -> None:
        """A task's process is gone."""
        self._task_ends.lose_task(event)
        self._ending.settle_if_quiet()

    def lose_environment(self, environment: str, cause: str, partitions: tuple[PartitionId, ...]) -> None:
        """An environment is gone with its tasks and partitions."""
        self._task_ends.lose_environment(environment, cause, partitions)
        self._ending.settle_if_quiet()

    def lose_partitions(self, partitions: tuple[PartitionId, ...], cause: str) -> None:
        """Partitions of this job are gone."""
        self._task_ends.lose_partitions(partitions, cause)
        self._ending.settle_if_quiet()

    # --- the rest

    def spark_job_returned(self, event: events.SparkJobReturned) -> None:
        """One of the job's Spark jobs is over."""
        self._spark_ends.returned(event)
        self._ending.settle_if_quiet()

    def deadline_passed(self, what: str) -> None:
        """A deadline that was asked for went by."""
        self._staffing.deadline_passed(what)
        self._restarts.deadline_passed(what)
        self._ending.deadline_passed(what)

    def cancel(self, cause: str) -> None:
        """Somebody wants the job to stop."""
        self._ending.cancel(cause)

    def progress(self, live: Live) -> JobProgress:
        """A snapshot; `live` gives what heartbeats said of an attempt."""
        scope = self._scope
        vertices = tuple(scope.tasks.vertex_progress(vertex.id, live) for vertex in scope.graph.vertices)
        return JobProgress(self.job, scope.graph.name, scope.lifecycle.state, scope.seconds, vertices)

    def trace(self) -> list[TraceEntry]:
        """What has happened so far."""
        return list(self._scope.trace)

    def attempts(self) -> list[AttemptId]:
        """The attempts that were accepted."""
        return [subtask.attempt for subtask in self._scope.tasks if subtask.attempt is not None]
