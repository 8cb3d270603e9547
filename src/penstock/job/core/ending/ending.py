# SPDX-License-Identifier: Apache-2.0
"""The end of a job: well, refused, failed or cancelled, and what it waits for before it does.

- A job that goes well ends when all its regions are complete, all Spark jobs of its DataFrames have returned and all
  tasks that were told to stop have; those that do not are cancelled. It does not wait for its workers: when they ask
  next they are told that it is over, and so are those that Spark starts late. Spark's cancel would kill them, and
  hold their slots for seconds.
- A job that fails or is cancelled tells its tasks to stop over their sockets. Spark's own cancel is the fallback: at
  once where what is left has not begun, else after a deadline.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import JobCancelledError, PenstockError
from penstock.job.core import decisions as so
from penstock.job.core.deadlines import (
    ABANDON_SECONDS,
    GRACE_SECONDS,
    SETTLE_SECONDS,
    Deadline,
    DeadlineKind,
    Wanted,
)
from penstock.job.core.events import CancelRequested, InstructionFailed
from penstock.job.core.execution.progress import Roll
from penstock.job.core.execution.stages import Stages
from penstock.job.core.failure import FailureCause, Rank, is_users
from penstock.job.core.slots.spark_jobs import SparkJobs
from penstock.job.core.slots.workers import Workers
from penstock.job.core.states import JobEvent, JobLifecycle, JobState


class Ending:
    """The end of one job. Moves its lifecycle; others only look at that."""

    def __init__(
        self, lifecycle: JobLifecycle, stages: Stages, subtasks: Roll, workers: Workers, spark_jobs: SparkJobs
    ) -> None:
        self._name = stages.name
        self._lifecycle = lifecycle
        self._stages = stages
        self._subtasks = subtasks
        self._workers = workers
        self._spark_jobs = spark_jobs
        self._failure = FailureCause()
        self._why_given_up = ""
        self._consumed: set[int] = set()
        self._asked_spark = False
        self._drained = False

    def advance(self, step: so.Advance) -> Iterator[so.Decision]:
        """The job has slots, or tasks run again; nothing in any other state."""
        if self._lifecycle.allows(step.event):
            self._lifecycle.move(step.event)
            self._drained = False
            if step.event is JobEvent.ADMITTED:
                yield so.Record("job_admitted", self._lifecycle.name)

    # --- causes

    def remember(self, cause: so.RememberCause) -> None:
        """Something failed that may be mended."""
        if cause.anew:
            self._failure = FailureCause()
        self._failure.add(cause.cause, cause.rank)

    def fail(self, failed: so.FailForGood) -> Iterator[so.Decision]:
        """Something went wrong for good: stop the rest and end."""
        lifecycle = self._lifecycle
        if lifecycle.allows(JobEvent.REFUSED):
            yield from self._refuse(JobEvent.REFUSED, failed.kind(failed.cause))
            return
        if lifecycle.is_terminal:
            return
        was_active = lifecycle.is_active
        self._why_given_up = failed.why or self._why_given_up
        if lifecycle.state is not JobState.CANCELING:
            if failed.anew and was_active:
                if failed.sequel and self._failure.is_known:
                    self._why_given_up = f"; before that: {self._failure.text.partition(chr(10))[0]}"
                self._failure = FailureCause()
            self._failure.add(failed.cause, failed.rank, failed.kind)
        lifecycle.move(JobEvent.FAILURE)
        if was_active:
            yield so.Interrupt(failed.cause, for_good=True)
            yield so.StopAll(f"job {self._name} failed")
            yield so.DismissWorkers()

    def break_off(self, event: InstructionFailed) -> Iterator[so.Decision]:
        """An instruction could not be carried out: the job would wait for what it leads to for ever."""
        yield so.FailForGood(event.cause)

    def cancel(self, cancelled: CancelRequested) -> Iterator[so.Decision]:
        """The job is told to stop."""
        lifecycle = self._lifecycle
        if lifecycle.state is JobState.WAITING_FOR_SLOTS:
            error = JobCancelledError(f"job {self._name} was cancelled: {cancelled.cause}")
            yield from self._refuse(JobEvent.CANCEL, error)
            return
        if lifecycle.is_terminal:
            return
        was_active = lifecycle.is_active
        lifecycle.move(JobEvent.CANCEL)
        if was_active:
            self._failure = FailureCause()
            self._failure.add(cancelled.cause, Rank.CAUSE)
            yield so.Interrupt(cancelled.cause, for_good=True)
            yield so.StopAll(f"job {self._name} was cancelled: {cancelled.cause}")
            yield so.DismissWorkers()

    def _refuse(self, event: JobEvent, error: PenstockError) -> Iterator[so.Decision]:
        """End a job that was never started."""
        self._lifecycle.move(event)
        yield so.DismissWorkers()  # leased ones, which need no admission to come
        yield so.Conclude("job_refused", error)

    # --- the end itself

    def settle(self) -> Iterator[so.Decision]:
        """All that follows from an event was done: release what was read, and end where nothing is left to do."""
        if self._lifecycle.state is JobState.RUNNING:
            yield from self._release_read()
            if all(self._stages.is_complete(region) for region in self._stages.regions):
                self._lifecycle.move(JobEvent.TASKS_FINISHED)
        if self._lifecycle.state is JobState.CONFIRMING:
            if self._spark_jobs.all_returned or not (self._spark_jobs.open_dataframes() or self._workers.draining):
                self._lifecycle.move(JobEvent.CONFIRMED)
                yield so.DismissWorkers()
                yield so.Interrupt("the job has ended", for_good=True)
                yield so.Conclude("job_finished")
        elif self._lifecycle.is_ending:
            yield from self._hurry()

    def _release_read(self) -> Iterator[so.Decision]:
        read: list[int] = []
        for region in self._stages.regions:
            if not self._stages.is_complete(region):
                self._consumed.discard(region.number)
            elif region.number not in self._consumed:
                self._consumed.add(region.number)
                read += [edge.id for edge in self._stages.read_by(region)]
        if read:
            yield so.ReleaseRead(tuple(read))

    def _hurry(self) -> Iterator[so.Decision]:
        """End a job that fails or is cancelled when nothing of it is left, or hurry along what is."""
        if self._is_stopping:
            return
        if self._spark_jobs.all_returned:
            yield from self._end()
        elif not self._failure.awaits_spark and (self._workers.missing or self._has_dataframes_to_begin()):
            # The rest has not begun, so there is nothing in it to stop politely. If a DataFrame broke off, its Spark
            # job fails by itself, and must not be cancelled before it has said why.
            yield from self._ask_spark()

    @property
    def _is_stopping(self) -> bool:
        return bool(self._workers.draining or self._subtasks.live)

    def _has_dataframes_to_begin(self) -> bool:
        return any(self._subtasks.pending(vertex) for vertex in self._spark_jobs.open_dataframes())

    def _ask_spark(self) -> Iterator[so.Decision]:
        if not self._asked_spark:
            self._asked_spark = True
            yield so.CancelSpark()

    def _end(self) -> Iterator[so.Decision]:
        cancelled = self._lifecycle.state is JobState.CANCELING
        self._lifecycle.move(JobEvent.SETTLED)
        verb, kind = ("was cancelled", JobCancelledError) if cancelled else ("failed", self._failure.kind)
        text = f"{self._failure.text}{self._why_given_up}"
        if cancelled or not is_users(text):
            # A job is named by its last stage, which may be the one that failed.
            text = f"job {self._name} {verb}: {text.replace(f'{self._name}, ', '')}"
        error = kind(text)
        yield so.Conclude("job_canceled" if cancelled else "job_failed", error)

    # --- deadlines

    def deadlines(self) -> Wanted:
        """The deadlines that it waits for now."""
        if self._lifecycle.state is JobState.CONFIRMING and self._workers.draining and not self._drained:
            return {Deadline(DeadlineKind.DRAIN): SETTLE_SECONDS}
        if not self._lifecycle.is_ending:
            return {}
        last = (DeadlineKind.ABANDON, ABANDON_SECONDS) if self._asked_spark else (DeadlineKind.SETTLE, SETTLE_SECONDS)
        wanted = {Deadline(last[0]): last[1]}
        if self._is_stopping and self._spark_jobs.all_returned:
            # Spark has given these tasks up and kills them in some seconds, and that need not be waited for.
            wanted[Deadline(DeadlineKind.GRACE)] = GRACE_SECONDS
        return wanted

    def deadline_passed(self, deadline: Deadline) -> Iterator[so.Decision]:
        """One of them went by."""
        if deadline.kind is DeadlineKind.DRAIN:
            self._drained = True
            yield so.CancelSpark(only_draining=True)
        elif deadline.kind is DeadlineKind.SETTLE:
            yield from self._ask_spark()
        else:
            yield so.StopWaiting()
            yield from self._end()
