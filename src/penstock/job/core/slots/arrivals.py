# SPDX-License-Identifier: Apache-2.0
"""Workers that come, ask and go, and Spark jobs that return: what that means for the slots of one job.

A Spark job of workers that fails is tried again like any failure; one that Spark cancels ends the job, because that
is what a user's cancel looks like; one that we cancelled is no news. A DataFrame's Spark job that fails ends the job:
Spark has tried its tasks as often as it is told to.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import JobCancelledError, JobError, StaleError
from penstock.job.core import decisions as so
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.execution.topology import JobTopology
from penstock.job.core.failure import Rank
from penstock.job.core.ids import LEASED, SparkJob, WorkerId
from penstock.job.core.slots.refusals import too_late
from penstock.job.core.slots.slots import RUNS, Slots
from penstock.job.core.slots.workers import Worker, WorkerState
from penstock.job.core.states import JobState, Phase
from penstock.shuffle import AttemptId

_WITHOUT_REPORT = "was given up: its task asked for other work without a report"


class TaskArrivals:
    """The face of one job's slots towards Spark."""

    def __init__(self, slots: Slots, topology: JobTopology, phase: Phase) -> None:
        self._slots = slots
        self._workers = slots.workers
        self._spark_jobs = slots.spark_jobs
        self._topology = topology
        self._phase = phase

    # --- tasks

    def registered(self, event: events.TaskRegistered) -> Iterator[so.Decision]:
        """A worker asks for a subtask, or the task of a DataFrame's partition for its deployment."""
        task = event.task
        if isinstance(task, WorkerId):
            yield from self._worker_asks(task, event)
        elif not self._phase.is_active:
            yield self._too_late(event)
        elif self._spark_jobs.reader_of(task.vertex) != event.spark_job:
            error = StaleError(f"{task}: job {self._topology.graph.name} does not read this DataFrame so now")
            yield do.AnswerRegistration(event.call, task, error)
        else:
            yield so.Start(task, event.call, event.environment, event.address)

    def _worker_asks(self, task: WorkerId, event: events.TaskRegistered) -> Iterator[so.Decision]:
        worker = self._workers.find(task.number)
        if worker is not None and worker.identity == task and worker.attempt is not None:
            lost = worker.attempt
            self._workers.let_off(lost)
            yield so.Orphan(lost, _WITHOUT_REPORT)
            yield event  # its question stands, once what follows from that is done
        elif event.spark_job == LEASED and self._phase.state in RUNS:
            self._slots.leases += worker is None
            yield from _nothing_to_do(self._workers.register(task.number, event))
        elif not self._phase.is_active:
            if worker is not None and worker.attempt is None and worker.identity in (None, task):
                yield from _nothing_to_do(self._workers.release(worker))
            yield self._too_late(event)
        elif worker is None:
            yield do.ReleaseWorker(event.call)
        else:
            yield from _nothing_to_do(self._workers.register(task.number, event))

    def lost(self, event: events.TaskGone) -> Iterator[so.Decision]:
        """A task's process is gone, or that of a worker between two subtasks."""
        worker, calls = self._workers.lose(event.task)
        yield from _nothing_to_do(calls)
        # A worker that was not yet told what it works on is named by its own identity.
        attempt = event.task if worker is None or worker.attempt is None else worker.attempt
        if isinstance(attempt, AttemptId):
            if event.counts:
                yield so.NoteCounts(attempt, event.counts)
            yield so.Orphan(attempt, f"was lost: {event.cause}", worker.round if worker is not None else 0)

    def environment_lost(self, event: events.EnvironmentLost) -> Iterator[so.Decision]:
        """An environment is gone, and with it its workers."""
        yield from _nothing_to_do(self._workers.lose_environment(event.environment))
        yield so.OrphanHost(event.environment, event.cause, event.partitions)

    # --- Spark jobs

    def returned(self, event: events.SparkJobReturned) -> Iterator[so.Decision]:
        """One of the job's Spark jobs is over."""
        launched = self._spark_jobs.returned(event.spark_job)
        if launched is None:
            return
        yield so.Record("spark_job_returned", str(event.spark_job))
        gone = self._workers.lose_spark_job(event.spark_job)
        for worker in gone:
            yield from _nothing_to_do(worker.calls)
        if not self._spark_jobs.is_current(launched):
            return  # its DataFrame is read again, by another one
        if not self._phase.is_active:
            yield from self._last_word(launched, event)
        elif launched.vertex is None:
            yield from self._workers_returned(gone, event)
        elif event.cancelled:
            yield events.CancelRequested(event.job, event.error or "its Spark job was cancelled")
        elif event.error is not None:
            yield so.FailForGood(self._words(launched, event.error))
        else:
            yield so.ConfirmDataFrame(launched.vertex)

    def _workers_returned(self, gone: list[Worker], event: events.SparkJobReturned) -> Iterator[so.Decision]:
        own = self._spark_jobs.was_cancelled(event.spark_job)
        if self._phase.state is JobState.CONFIRMING:
            return  # all the work is done
        if event.cancelled and not own:
            yield events.CancelRequested(event.job, event.error or "its Spark job was cancelled")
            return
        attempts = tuple(worker.attempt for worker in gone if worker.attempt is not None)
        missing = sum(worker.state is WorkerState.MISSING for worker in gone)
        launched = max((worker.round for worker in gone), default=0)
        yield so.OrphanMany(attempts, missing, launched, event.error, own)

    def _last_word(self, launched: SparkJob, event: events.SparkJobReturned) -> Iterator[so.Decision]:
        """The job ends anyway; Spark may know better why."""
        if event.error is not None:
            own = event.cancelled and self._spark_jobs.was_cancelled(event.spark_job)
            kind = JobCancelledError if event.cancelled else JobError
            rank = Rank.OWN_CANCEL if own else Rank.ECHO
            yield so.FailForGood(self._words(launched, event.error), rank, kind, anew=False)
            if event.task_error:
                yield so.FailForGood(self._words(launched, event.task_error), Rank.TASK_ERROR, anew=False)

    def _words(self, launched: SparkJob, error: str) -> str:
        vertex = launched.vertex
        name = "the tasks" if vertex is None else self._topology.graph.vertex(vertex).name
        return f"the Spark job of {name} failed: {error}"

    def _too_late(self, event: events.TaskRegistered) -> so.Decision:
        error = too_late(event.task, self._topology.graph.name, self._phase.state)
        return do.AnswerRegistration(event.call, event.task, error)


def _nothing_to_do(calls: list[int]) -> Iterator[so.Decision]:
    return (do.ReleaseWorker(call) for call in calls)
