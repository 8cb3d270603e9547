# SPDX-License-Identifier: Apache-2.0
"""The JobMaster as a sans-I/O core: all jobs of one application, their slots and their partitions.

`handle(event, now)` gives the instructions the event leads to. Jobs share the application's slots: a job is
admitted when all it needs is free, in the order of submission; one that does not fit lets no later one pass,
so none starves. What belongs to no job any more (a late task, a late partition) is answered or released at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.job import events
from penstock.job import instructions as do
from penstock.job.job_context import JobContext
from penstock.job.job_core import JobCore
from penstock.job.result import JobProgress
from penstock.job.tracker import PartitionTracker
from penstock.shuffle import AttemptId
from penstock.shuffle.errors import PenstockError, StaleError


class MasterCore:
    """Events in, instructions out. `result_service` keeps the partitions of results."""

    def __init__(self, result_service: str = "local") -> None:
        self.tracker = PartitionTracker()
        self._result_service = result_service
        self._jobs: dict[str, JobCore] = {}
        self._queue: deque[str] = deque()
        self._out: list[do.Instruction] = []
        self._now = 0.0
        self._context = JobContext(self.tracker, self._out.append, lambda: self._now)
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.JobSubmitted: self._job_submitted,
            events.TaskRegistered: self._task_registered,
            events.PartitionRegistered: self._partition_registered,
            events.PartitionRefused: self._of_attempt(JobCore.refuse_partition),
            events.PartitionConsumable: self._partition_consumable,
            events.PartitionsLost: self._partitions_lost,
            events.ProducersAwaited: self._producers_awaited,
            events.TaskFinished: self._of_attempt(JobCore.finish_task),
            events.TaskLost: self._of_attempt(JobCore.lose_task),
            events.EnvironmentLost: self._environment_lost,
            events.SparkJobReturned: self._spark_job_returned,
            events.CancelRequested: self._cancel_requested,
            events.DeadlinePassed: self._deadline_passed,
            events.ResultReleased: self._result_released,
        }

    def handle(self, event: events.Event, now: float) -> list[do.Instruction]:
        """What this event leads to, in order. `now` is a clock's seconds and must not go backwards."""
        self._now = now
        self._handlers[type(event)](event)
        self._sweep()
        out = list(self._out)
        self._out.clear()
        return out

    @property
    def jobs(self) -> list[str]:
        """The jobs that are not over, in order of submission."""
        return list(self._jobs)

    @property
    def slots_in_use(self) -> int:
        """The slots of all admitted jobs."""
        return sum(job.slots_needed for name, job in self._jobs.items() if name not in self._queue)

    def progress(self, job: str, live: Callable[[AttemptId], dict[str, float]]) -> JobProgress | None:
        """A snapshot of a job that is not over."""
        core = self._jobs.get(job)
        return core.progress(live) if core is not None else None

    def attempts(self, job: str) -> list[AttemptId]:
        """The accepted attempts of a job that is not over."""
        core = self._jobs.get(job)
        return core.attempts() if core is not None else []

    def _sweep(self) -> None:
        for name in [name for name, job in self._jobs.items() if job.lifecycle.is_terminal]:
            del self._jobs[name]
            if name in self._queue:
                self._queue.remove(name)
        self._admit()

    def _admit(self) -> None:
        while self._queue:
            job = self._jobs[self._queue[0]]
            if self.slots_in_use + job.slots_needed > job.slots_total:
                return
            self._queue.popleft()
            job.admit()

    def _job_submitted(self, event: events.JobSubmitted) -> None:
        job = JobCore(event, self._result_service, self._context)
        self._jobs[event.job] = job
        job.wait_for_slots()
        if not job.lifecycle.is_terminal:
            self._queue.append(event.job)

    def _task_registered(self, event: events.TaskRegistered) -> None:
        job = self._jobs.get(event.attempt.job)
        if job is None:
            self._out.append(do.AnswerRegistration(event.call, event.attempt, _unknown(event.attempt)))
        else:
            job.register_task(event)

    def _producers_awaited(self, event: events.ProducersAwaited) -> None:
        job = self._jobs.get(event.attempt.job)
        if job is None:
            self._out.append(do.AnswerProducers(event.call, event.attempt, _unknown(event.attempt)))
        else:
            job.await_producers(event)

    def _partition_registered(self, event: events.PartitionRegistered) -> None:
        job = self._jobs.get(event.attempt.job)
        if job is None:
            self._out.append(do.ReleasePartitions(event.descriptor.environment, (event.descriptor,)))
        else:
            job.register_partition(event)

    def _of_attempt(self, method: Callable[[JobCore, Any], None]) -> Callable[[Any], None]:
        def handle(event: Any) -> None:
            job = self._jobs.get(event.attempt.job)
            if job is not None:
                method(job, event)

        return handle

    def _partition_consumable(self, event: events.PartitionConsumable) -> None:
        job = self._jobs.get(event.partition.dataset.rpartition("-")[0])
        if job is not None:
            job.partition_consumable(event.partition)

    def _partitions_lost(self, event: events.PartitionsLost) -> None:
        for name, partitions in self.tracker.lose(event.partitions).items():
            job = self._jobs.get(name)
            if job is None:
                self._out.append(do.ResultLost(name, partitions, event.cause))
            else:
                job.lose_partitions(partitions, event.cause)

    def _environment_lost(self, event: events.EnvironmentLost) -> None:
        lost = self.tracker.lose_environment(event.environment)
        for name, job in list(self._jobs.items()):
            job.lose_environment(event.environment, event.cause, lost.pop(name, ()))
        for name, partitions in lost.items():
            self._out.append(do.ResultLost(name, partitions, event.cause))

    def _spark_job_returned(self, event: events.SparkJobReturned) -> None:
        job = self._jobs.get(event.job)
        if job is not None:
            job.spark_job_returned(event)

    def _cancel_requested(self, event: events.CancelRequested) -> None:
        job = self._jobs.get(event.job)
        if job is not None:
            job.cancel(event.cause)

    def _deadline_passed(self, event: events.DeadlinePassed) -> None:
        job = self._jobs.get(event.job)
        if job is not None:
            job.deadline_passed(event.what)

    def _result_released(self, event: events.ResultReleased) -> None:
        if event.job in self._jobs:
            return
        environments = self.tracker.environments_of(event.job)
        for environment, descriptors in self.tracker.release(event.job).items():
            self._out.append(do.ReleasePartitions(environment, descriptors, event.expired))
        self._out.append(do.ReleaseJob(event.job, environments))


def _unknown(attempt: AttemptId) -> PenstockError:
    return StaleError(f"{attempt}: its job is over; this task may end")
