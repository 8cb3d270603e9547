# SPDX-License-Identifier: Apache-2.0
"""How a job ends: well, refused, failed or cancelled, and what it waits for before it does.

- A job that goes well ends when all its regions are complete, all Spark jobs of its DataFrames have returned and all
  tasks that were told to stop have; those that do not are cancelled. It does not wait for its workers: when they ask
  next they are told that it is over, and so are those that Spark starts late. Spark's cancel would kill them, and
  hold their slots for seconds.
- A job that fails or is cancelled tells its tasks to stop over their sockets. Spark's own cancel is the fallback: at
  once where what is left has not begun, else after a deadline.
"""

from __future__ import annotations

from penstock.graph.execution_state import ExecutionEvent
from penstock.job import instructions as do
from penstock.job.confirmations import Confirmations
from penstock.job.failure import CAUSE, FailureCause
from penstock.job.job_context import ABANDON_SECONDS, GRACE_SECONDS, SETTLE_SECONDS
from penstock.job.job_scope import JobScope
from penstock.job.states import JobEvent, JobState
from penstock.job.subtask import Subtask
from penstock.job.topology import edge_dataset
from penstock.shuffle import PartitionId
from penstock.shuffle.errors import JobCancelledError, JobError, PenstockError


class Ending:
    """The end of one job."""

    def __init__(self, scope: JobScope, confirmations: Confirmations) -> None:
        self._scope = scope
        self._confirmations = confirmations
        self._failure = FailureCause()
        self._epilogue = ""
        self._consumed: set[int] = set()
        self._stopping: list[Subtask] = []
        self._spark_cancelled = False
        self._in_grace = False

    # --- causes

    @property
    def cancelled_spark(self) -> bool:
        """Whether we have told Spark to cancel all Spark jobs of this job."""
        return self._spark_cancelled

    @property
    def awaits_spark(self) -> bool:
        """Whether the job fails and all that is known is that a DataFrame broke off."""
        return not self._scope.lifecycle.is_active and self._failure.awaits_spark

    def note(self, cause: str, rank: int, *, anew: bool = False) -> None:
        """Remember why something failed, in case it can't be mended; `anew`: what went before was."""
        if anew:
            self._failure = FailureCause()
        self._failure.add(cause, rank)

    def fail(self, cause: str, rank: int = CAUSE, kind: type[PenstockError] = JobError) -> None:
        """Something went wrong for good: stop the rest and end."""
        lifecycle = self._scope.lifecycle
        if lifecycle.is_terminal:
            return
        was_active = lifecycle.is_active
        if lifecycle.state is not JobState.CANCELLING:
            self._failure.add(cause, rank, kind)
        lifecycle.fire(JobEvent.FAILURE)
        if was_active:
            self._stop_tasks(f"job {self._scope.graph.name} failed")
        self.settle_if_quiet()

    def give_up(self, cause: str, rank: int, why: str) -> None:
        """Something went wrong and may not be tried again, for this reason."""
        self._epilogue = why
        self.fail(cause, rank)

    def cancel(self, cause: str) -> None:
        """Somebody wants the job to stop."""
        lifecycle, name = self._scope.lifecycle, self._scope.graph.name
        if lifecycle.is_terminal:
            return
        if lifecycle.state is JobState.WAITING_FOR_SLOTS:
            self.refuse(JobCancelledError(f"job {name} was cancelled: {cause}"), JobEvent.CANCEL)
            return
        was_active = lifecycle.is_active
        lifecycle.fire(JobEvent.CANCEL)
        if was_active:
            self.note(cause, CAUSE, anew=True)
            self._stop_tasks(f"job {name} was cancelled: {cause}")
        self.settle_if_quiet()

    def refuse(self, error: PenstockError, event: JobEvent = JobEvent.REFUSED) -> None:
        """End a job that was never started."""
        scope = self._scope
        scope.lifecycle.fire(event)
        for worker in scope.workers.idle:  # lent ones, which need no admission to come
            scope.release_workers([worker])
        scope.record("job_refused", scope.job)
        scope.emit(do.RefuseJob(scope.job, scope.result(), error))

    # --- the good end

    def finish_if_complete(self) -> None:
        """Release what was read, and end when there is nothing left to do; called when something has ended."""
        scope = self._scope
        if scope.lifecycle.state is JobState.RUNNING:
            self._release_consumed()
            if all(scope.stages.is_complete(region, scope.tasks) for region in scope.stages.regions):
                scope.lifecycle.fire(JobEvent.TASKS_FINISHED)
                if scope.workers.draining:
                    scope.emit(do.StartDeadline(scope.job, do.DRAIN, SETTLE_SECONDS))
        if scope.lifecycle.state is JobState.CONFIRMING and self._is_over():
            scope.lifecycle.fire(JobEvent.CONFIRMED)
            self._complete()

    def _is_over(self) -> bool:
        """Whether no DataFrame is being read, and no task still has to stop."""
        scope = self._scope
        return scope.parts.all_returned or not (scope.parts.open_frames() or scope.workers.draining)

    def _release_consumed(self) -> None:
        scope = self._scope
        read: set[str] = set()
        for region in scope.stages.regions:
            if not scope.stages.is_complete(region, scope.tasks):
                self._consumed.discard(region.number)
            elif region.number not in self._consumed:
                self._consumed.add(region.number)
                read |= {edge_dataset(scope.job, edge.id) for edge in scope.stages.read_by(region)}
        if read:
            held = scope.tracker.partitions_of(scope.job)
            self._release_some([partition for partition in held if partition.dataset in read])

    def _release_some(self, partitions: list[PartitionId]) -> None:
        for environment, descriptors in self._scope.tracker.release_some(partitions).items():
            self._scope.emit(do.ReleasePartitions(environment, descriptors))

    def _complete(self) -> None:
        scope = self._scope
        partitions = tuple(scope.tasks.result_partitions())
        self._release(keep=tuple(item.partition for item in partitions if not item.empty))
        scope.release_workers(scope.workers.idle)
        scope.answer_calls(scope.workers.drop_parked())
        scope.record("job_finished", scope.job)
        scope.emit(do.CompleteJob(scope.job, scope.result(), partitions, scope.graph))

    def _release(self, keep: tuple[PartitionId, ...]) -> None:
        scope = self._scope
        environments = {subtask.environment for subtask in scope.tasks if subtask.environment}
        for environment, descriptors in scope.tracker.release(scope.job, keep).items():
            scope.emit(do.ReleasePartitions(environment, descriptors))
        if not keep:
            scope.emit(do.ReleaseJob(scope.job, tuple(sorted(environments))))

    # --- the bad end

    def _stop_tasks(self, cause: str) -> None:
        scope = self._scope
        for subtask in scope.tasks:
            if subtask.call is not None:
                if subtask.attempt is not None:
                    scope.workers.free(subtask.attempt)
                scope.drop_call(subtask)
                subtask.stop()
            elif subtask.is_live and subtask.attempt is not None:
                subtask.lifecycle.handle(ExecutionEvent.CANCEL)
                self._stopping.append(subtask)
                scope.emit(do.CancelTask(subtask.environment, subtask.attempt, cause))
        self._confirmations.drop_all()
        scope.release_workers(scope.workers.idle)
        scope.answer_calls(scope.workers.drop_parked())
        scope.emit(do.StartDeadline(scope.job, do.SETTLE, SETTLE_SECONDS))

    def settle_if_quiet(self) -> None:
        """End a job that fails or is cancelled when nothing of it is left, or hurry along what is."""
        scope = self._scope
        if scope.lifecycle.state not in (JobState.FAILING, JobState.CANCELLING):
            return
        if scope.workers.draining or self._are_stopping():
            if scope.parts.all_returned and not self._in_grace:
                # Spark has given these tasks up and kills them in some seconds, which nobody needs to wait for.
                self._in_grace = True
                scope.emit(do.StartDeadline(scope.job, do.GRACE, GRACE_SECONDS))
        elif scope.parts.all_returned:
            self._end()
        elif not self._failure.awaits_spark and (scope.workers.missing or self._frames_to_begin()):
            # What is left has not begun, so there is nothing in it to stop politely. Where a DataFrame broke off,
            # its Spark job fails by itself, and must not be cancelled before it has said why.
            self._cancel_all()

    def _are_stopping(self) -> bool:
        while self._stopping and not self._stopping[-1].is_live:
            self._stopping.pop()
        return bool(self._stopping)

    def _frames_to_begin(self) -> bool:
        tasks, frames = self._scope.tasks, self._scope.parts.open_frames()
        return any(s.attempt is None and not s.empty for vertex in frames for s in tasks.of(vertex))

    def deadline_passed(self, what: str) -> None:
        """One of the deadlines of an end went by."""
        state = self._scope.lifecycle.state
        if what == do.DRAIN and state is JobState.CONFIRMING:
            for part in self._scope.parts.open_workers():
                if self._scope.workers.of_part(part):
                    self._cancel_part(part)
        elif what == do.SETTLE and state in (JobState.FAILING, JobState.CANCELLING):
            self._cancel_all()
        elif what in (do.ABANDON, do.GRACE) and state in (JobState.FAILING, JobState.CANCELLING):
            self._abandon()

    def _cancel_part(self, part: int) -> None:
        if self._scope.parts.cancel(part):
            self._scope.emit(do.CancelSparkJobs(self._scope.job, part))

    def _cancel_all(self) -> None:
        if not self._spark_cancelled:
            self._spark_cancelled = True
            self._scope.emit(do.StartDeadline(self._scope.job, do.ABANDON, ABANDON_SECONDS))
            self._scope.emit(do.CancelSparkJobs(self._scope.job))

    def _abandon(self) -> None:
        for subtask in self._scope.tasks:
            if subtask.is_live:
                self._scope.drop_call(subtask)
                subtask.lifecycle.handle(ExecutionEvent.FAIL)
        self._end()

    def _end(self) -> None:
        scope = self._scope
        cancelled = scope.lifecycle.state is JobState.CANCELLING
        scope.lifecycle.fire(JobEvent.SETTLED)
        self._release(keep=())
        scope.record("job_canceled" if cancelled else "job_failed", scope.job)
        verb, kind = ("was cancelled", JobCancelledError) if cancelled else ("failed", self._failure.kind)
        error = kind(f"job {scope.graph.name} {verb}: {self._failure.text}{self._epilogue}")
        scope.emit(do.FailJob(scope.job, scope.result(), error))
