# SPDX-License-Identifier: Apache-2.0
"""The JobMaster as a sans-I/O core: all jobs of one application, their slots and their partitions.

`handle(event, now)` gives the instructions the event leads to. What belongs to no job any more (a late task, a late
partition) is answered or released at once.

Jobs share the application's slots. Free ones go to the job that holds the fewest, of equals to the one that has waited
longest since it got any; what it wants all at once or not at all is kept free for it, and nobody passes. While somebody
waits, a job with more than its even share takes no new subtasks on its surplus, so it shrinks as its tasks end.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from penstock.job import events
from penstock.job import instructions as do
from penstock.job.demand import Demand
from penstock.job.job_context import JobContext
from penstock.job.job_core import JobCore
from penstock.job.result import JobProgress, TraceEntry
from penstock.job.tracker import PartitionTracker
from penstock.shuffle import AttemptId
from penstock.shuffle.errors import PenstockError, StaleError


class MasterCore:
    """Events in, instructions out. `result_service` keeps the partitions of results."""

    def __init__(self, result_service: str = "local") -> None:
        self.tracker = PartitionTracker()
        self._result_service = result_service
        self._jobs: dict[str, JobCore] = {}
        self._served: dict[str, int] = {}
        self._turn = 0
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
        self._forget_ended()
        self._schedule()
        out = list(self._out)
        self._out.clear()
        return out

    @property
    def jobs(self) -> list[str]:
        """The jobs that are not over, in order of submission."""
        return list(self._jobs)

    @property
    def slots_in_use(self) -> int:
        """The slots of all jobs."""
        return sum(job.slots_held for job in self._jobs.values())

    def progress(self, job: str, live: Callable[[AttemptId], dict[str, float]]) -> JobProgress | None:
        """A snapshot of a job that is not over."""
        core = self._jobs.get(job)
        return core.progress(live) if core is not None else None

    def attempts(self, job: str) -> list[AttemptId]:
        """The accepted attempts of a job that is not over."""
        core = self._jobs.get(job)
        return core.attempts() if core is not None else []

    def trace(self, job: str) -> list[TraceEntry]:
        """What has happened so far in a job that is not over."""
        core = self._jobs.get(job)
        return core.trace() if core is not None else []

    def _schedule(self) -> None:
        demands = {name: job.use_workers(None) for name, job in self._jobs.items()}
        waiting = {name for name, demand in demands.items() if demand is not None}
        if len(self._jobs) > 1 and waiting:
            for name, job in self._jobs.items():
                if waiting - {name}:
                    demands[name] = job.use_workers(max(1, job.slots_total // len(self._jobs)))
        while self._grant_next(demands):
            pass

    def _grant_next(self, demands: dict[str, Demand | None]) -> bool:
        """Give the next job in the line what it wants; whether there may be another one."""
        line = [(self._jobs[name].slots_held, self._served.get(name, 0), name) for name, d in demands.items() if d]
        for _, _, name in sorted(line, key=itemgetter(0, 1)):
            job, demand = self._jobs[name], demands[name]
            free = job.slots_total - self.slots_in_use
            if demand is None or free < (demand.slots if demand.together else 1):
                return False
            others = len(line) > 1 and not demand.together
            share = max(1, job.slots_total // len(self._jobs) - job.slots_held) if others else free
            self._turn += 1
            self._served[name] = self._turn
            job.grant(demand, min(free, share))
            demands[name] = job.use_workers(None)
            return True
        return False

    def _forget_ended(self) -> None:
        for name in [name for name, job in self._jobs.items() if job.lifecycle.is_terminal]:
            del self._jobs[name]
            self._served.pop(name, None)

    def _job_submitted(self, event: events.JobSubmitted) -> None:
        self._jobs[event.job] = JobCore(event, self._result_service, self._context)
        self._jobs[event.job].wait_for_slots()

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
