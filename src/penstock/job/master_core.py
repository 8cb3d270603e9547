# SPDX-License-Identifier: Apache-2.0
"""The JobMaster as a sans-I/O core: all jobs of one application, their slots and their partitions.

`handle(event, now)` gives the instructions the event leads to. What belongs to no job any more (a late task, a late
partition) is answered or released at once.

Jobs share the application's slots: `fairness` says who gets the next ones, and from whom they are taken.

Read tasks that wait for what a job makes again may lend it their slots. Those are nobody's to give, so they are not
counted; but where jobs have lent slots only and must still read a DataFrame, which takes another one, they are
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.job import events
from penstock.job import instructions as do
from penstock.job.fairness import Claim, even_share, grant_of, in_line, to_be_freed
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
        self._took_part: dict[str, tuple[str, ...]] = {}
        """Of jobs whose result is there: the environments that are to be told when it is released."""
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
        if len(self._jobs) > 1:
            self._make_room()
        for job in self._jobs.values():
            job.use_workers()
        while self._grant_next():
            pass

    def _make_room(self) -> None:
        """Take workers that ask for work from jobs with too many of them, for those who are first in the line."""
        claims = self._claims()
        share = even_share(claims, self._slots_total)
        free = self._slots_total - self.slots_in_use
        lacking, others = to_be_freed(in_line(claims, share), claims, free, share)
        for name, surplus in others:
            if lacking > 0:
                lacking -= self._jobs[name].give_back(min(surplus, lacking))

    def _grant_next(self) -> bool:
        """Give the first in the line what it wants; whether there may be another one."""
        claims = self._claims()
        share = even_share(claims, self._slots_total)
        line = in_line(claims, share)
        granted = grant_of(line, self._slots_total - self.slots_in_use, share) if line else 0
        if not granted or line[0].demand is None:
            return False
        self._turn += 1
        self._served[line[0].job] = self._turn
        self._jobs[line[0].job].grant(line[0].demand, granted)
        return True

    def _claims(self) -> list[Claim]:
        return [
            Claim(name, job.slots_held, job.demand(), self._served.get(name, 0)) for name, job in self._jobs.items()
        ]

    @property
    def _slots_total(self) -> int:
        """The slots of the application, as the newest job was told."""
        return next((job.slots_total for job in reversed(self._jobs.values())), 0)

    def _forget_ended(self) -> None:
        for name in [name for name, job in self._jobs.items() if job.is_over]:
            over = self._jobs.pop(name)
            if self.tracker.partitions_of(name):
                self._took_part[name] = over.environments
            self._served.pop(name, None)

    def _job_submitted(self, event: events.JobSubmitted) -> None:
        self._turn += 1
        self._served[event.job] = self._turn
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
        if job is None:
            return
        job.deadline_passed(event.what)
        if (
            job.is_last_lend(event.what)
            and sum(each.slots_starved for each in self._jobs.values()) >= job.slots_total
        ):
            for starved in self._jobs.values():
                if starved.slots_starved:
                    starved.refuse_lent()

    def _result_released(self, event: events.ResultReleased) -> None:
        if event.job in self._jobs:
            return
        environments = self._took_part.pop(event.job, ())
        for environment, descriptors in self.tracker.release(event.job).items():
            self._out.append(do.ReleasePartitions(environment, descriptors, event.expired))
        self._out.append(do.ReleaseJob(event.job, environments))


def _unknown(attempt: AttemptId) -> PenstockError:
    return StaleError(f"{attempt}: its job is over; this task may end")
