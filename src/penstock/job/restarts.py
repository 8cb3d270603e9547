# SPDX-License-Identifier: Apache-2.0
"""Runs again what failed and what depends on it. Which subtasks these are is `recovery`; here it is done.

A subtask that is reset gets a new attempt: the old one is told to stop, its partitions are released, and what it
still says is of no interest. A DataFrame that is read again gets a new Spark job. A cancelled or failing job is never
restarted.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.job import instructions as do
from penstock.job.confirmations import Confirmations
from penstock.job.ending import Ending
from penstock.job.failure import CONSEQUENCE
from penstock.job.job_context import UNEXPLAINED_SECONDS
from penstock.job.job_scope import JobScope
from penstock.job.job_tasks import Place
from penstock.job.states import JobEvent, JobState
from penstock.job.subtask import Subtask
from penstock.shuffle.errors import StaleError


class Restarts:
    """The restarts of one job."""

    def __init__(self, scope: JobScope, confirmations: Confirmations, ending: Ending) -> None:
        self._scope = scope
        self._confirmations = confirmations
        self._ending = ending
        self._resumes_at = ""
        self._unexplained: set[Place] = set()

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be started yet, because the restart strategy asks to wait."""
        return bool(self._resumes_at)

    @property
    def unexplained(self) -> frozenset[Place]:
        """The subtasks that were stopped, and nobody has said why."""
        return frozenset(self._unexplained)

    def recover(self, failed: Iterable[Place], cause: str, rank: int, launched: int = 0) -> None:
        """Run again what failed and what depends on it, or fail the job.

        `launched`: the round in which the Spark job was launched that has failed, where that is known.
        """
        scope, failed = self._scope, set(failed)
        if not scope.lifecycle.is_active:
            self._ending.fail(cause, rank)
            return
        self._ending.note(cause, rank, anew=not scope.recovery.is_burst(scope.now(), launched))
        delay = scope.recovery.begin(scope.now(), launched)
        if delay is None:
            self._ending.give_up(cause, rank, scope.recovery.given_up)
            return
        places = scope.recovery.restarts(failed)
        if places and scope.lifecycle.state is JobState.CONFIRMING:
            scope.lifecycle.fire(JobEvent.RESTART)
        self._unexplained -= places
        scope.record("restart", f"{scope.recovery.round}: {cause.partition(chr(10))[0]}")
        for place in sorted(places):
            self._reset(scope.tasks.at(*place), "task_restarted")
        self._withdraw()
        if delay > 0:
            self._resumes_at = do.restart_deadline(scope.recovery.round)
            scope.emit(do.StartDeadline(scope.job, self._resumes_at, delay))

    def wait_for_reason(self, place: Place, cause: str) -> None:
        """A subtask was stopped by Spark: because somebody cancels, or because another task died. Spark will say."""
        self._ending.note(cause, CONSEQUENCE)
        self._unexplained.add(place)
        self._scope.emit(do.StartDeadline(self._scope.job, do.UNEXPLAINED, UNEXPLAINED_SECONDS))

    def deadline_passed(self, what: str) -> None:
        """One of the deadlines of a restart went by."""
        if what == self._resumes_at:
            self._resumes_at = ""
        elif what == do.UNEXPLAINED and self._unexplained and self._scope.lifecycle.is_active:
            self.recover(self._unexplained, "tasks were stopped, and Spark does not say why", CONSEQUENCE)

    def _withdraw(self) -> None:
        """What was about to start, and may not now that its producers run again, gives its slots back."""
        scope = self._scope
        for region in scope.stages.regions:
            if scope.stages.may_start(region, scope.tasks, scope.parts):
                continue
            for vertex in region.vertices:
                if scope.graph.vertex(vertex).is_bound and scope.tasks.is_begun(vertex):
                    continue  # its tasks can't be told to begin anew one by one
                for subtask in scope.tasks.of(vertex):
                    if subtask.call is not None:
                        self._reset(subtask, "task_withdrawn")
                self._give_up_frame(vertex)

    def _give_up_frame(self, vertex: int) -> None:
        if self._scope.graph.vertex(vertex).is_bound and self._scope.parts.is_launched(vertex):
            part = self._scope.parts.give_up(vertex)
            if part is not None:
                self._scope.emit(do.CancelSparkJobs(self._scope.job, part))

    def _reset(self, subtask: Subtask, entry: str) -> None:
        scope, attempt = self._scope, subtask.attempt
        self._stop(subtask)
        if attempt is not None:
            self._confirmations.drop(attempt, StaleError(f"{attempt}: it is run again"))
        written = [descriptor.partition for descriptor in subtask.outputs.values()]
        for environment, descriptors in scope.tracker.release_some(written).items():
            scope.emit(do.ReleasePartitions(environment, descriptors))
        self._give_up_frame(subtask.vertex.id)
        scope.moving.discard(scope.stages.region_of(subtask.vertex.id).number)
        scope.record(entry, f"v{subtask.vertex.id}.{subtask.index}")
        scope.tasks.reset(subtask, scope.recovery.round)

    def _stop(self, subtask: Subtask) -> None:
        scope, attempt = self._scope, subtask.attempt
        if attempt is None:
            return
        if subtask.call is None:
            if subtask.is_live:
                scope.emit(do.CancelTask(subtask.environment, attempt, f"{subtask.title} is run again"))
                scope.workers.drain(attempt)
        elif subtask.vertex.is_bound:
            scope.drop_call(subtask, StaleError(f"{attempt}: its DataFrame is read again"))
        else:
            scope.workers.take_back(attempt, subtask.call)
