# SPDX-License-Identifier: Apache-2.0
"""What follows when a Spark job returns: its workers are gone, or its DataFrame was read to the end.

A Spark job of workers that fails is tried again like any failure; one that Spark cancels ends the job, because that
is what a user's cancel looks like; one that we cancelled is no news. A DataFrame's Spark job that fails ends the job:
Spark has tried its tasks as often as it is told to.
"""

from __future__ import annotations

from penstock.job import events
from penstock.job import instructions as do
from penstock.job.confirmations import Confirmations
from penstock.job.ending import Ending
from penstock.job.failure import CAUSE, ECHO, OWN_CANCEL
from penstock.job.job_scope import JobScope
from penstock.job.parts import LaunchPart
from penstock.job.restarts import Restarts
from penstock.job.states import JobState
from penstock.job.task_ends import TaskEnds
from penstock.job.workers import Worker
from penstock.shuffle.errors import JobCancelledError, JobError

_NEVER_ENDED = "its Spark job returned, but the task never reported its end"


class SparkEnds:
    """The ends of one job's Spark jobs."""

    def __init__(
        self,
        scope: JobScope,
        task_ends: TaskEnds,
        restarts: Restarts,
        confirmations: Confirmations,
        ending: Ending,
    ) -> None:
        self._scope = scope
        self._task_ends = task_ends
        self._restarts = restarts
        self._confirmations = confirmations
        self._ending = ending

    def returned(self, event: events.SparkJobReturned) -> None:
        """One of the job's Spark jobs is over."""
        scope = self._scope
        launched = scope.parts.returned(event.part)
        if launched is None:
            return
        scope.record("spark_job_returned", str(event.part))
        gone = scope.workers.lose_part(event.part) if launched.vertex is None else []
        scope.answer_calls(call for worker in gone for call in worker.calls)
        if not scope.parts.is_current(launched):
            pass  # its DataFrame is read again, by another one
        elif not scope.lifecycle.is_active:
            self._add_word(launched, event)
        elif launched.vertex is None:
            self._workers_returned(gone, event)
        elif event.cancelled:
            self._ending.cancel(event.error or "its Spark job was cancelled")
        elif event.error is not None:
            self._ending.fail(self._words(launched, event), CAUSE)
        else:
            self._confirm_frame(launched.vertex)
        self._ending.finish_if_complete()

    def _words(self, launched: LaunchPart, event: events.SparkJobReturned) -> str:
        vertex = launched.vertex
        name = "the tasks" if vertex is None else f"DataFrame {self._scope.graph.vertex(vertex).name}"
        return f"the Spark job of {name} failed: {event.error}"

    def _add_word(self, launched: LaunchPart, event: events.SparkJobReturned) -> None:
        """The job ends anyway; Spark may know better why."""
        if event.error is not None:
            own = event.cancelled and (self._ending.cancelled_spark or self._scope.parts.was_cancelled(event.part))
            kind = JobCancelledError if event.cancelled else JobError
            self._ending.fail(self._words(launched, event), OWN_CANCEL if own else ECHO, kind)

    def _workers_returned(self, gone: list[Worker], event: events.SparkJobReturned) -> None:
        scope = self._scope
        own = scope.parts.was_cancelled(event.part)
        if scope.lifecycle.state is JobState.CONFIRMING:
            return  # all the work is done
        if event.cancelled and not own:
            self._ending.cancel(event.error or "its Spark job was cancelled")
            return
        lost = [s for w in gone if w.attempt is not None and (s := scope.tasks.current(w.attempt)) is not None]
        lost = [subtask for subtask in lost if not subtask.is_ended]
        places = {subtask.place for subtask in lost} | self._restarts.unexplained
        for subtask in lost:
            if subtask.attempt is not None and subtask.deployed:
                # Spark kills its process some seconds later, and that one may still write.
                scope.emit(do.CancelTask(subtask.environment, subtask.attempt, "its Spark job is over"))
        self._task_ends.mark_lost(lost)
        missing = [worker for worker in gone if worker.identity is None]
        launched = max((worker.round for worker in gone), default=0)
        if event.error is not None and not own and (places or missing):
            self._restarts.recover(places, f"the Spark job of the tasks failed: {event.error}", ECHO, launched)
        elif lost:
            self._restarts.recover(places, f"{lost[0].title}: {_NEVER_ENDED}", CAUSE, launched)
        elif missing and not own:
            cause = f"the Spark job of the tasks returned, but {len(missing)} of its tasks never came"
            self._restarts.recover((), cause, ECHO, launched)

    def _confirm_frame(self, vertex: int) -> None:
        scope = self._scope
        subtasks = [subtask for subtask in scope.tasks.of(vertex) if not subtask.is_ended]
        lost = [subtask for subtask in subtasks if subtask.attempt is not None]
        if lost:
            self._task_ends.mark_lost(lost)
            places = {subtask.place for subtask in subtasks}
            self._restarts.recover(places, f"{lost[0].title}: {_NEVER_ENDED}", CAUSE, lost[0].round)
            return
        for subtask in subtasks:
            subtask.empty = True
            scope.tasks.finish(subtask)
            scope.updates.announce_empty(subtask)
        scope.parts.confirm(vertex)
        scope.record("producers_confirmed", f"DataFrame {scope.graph.vertex(vertex).name}")
        self._confirmations.answer()
