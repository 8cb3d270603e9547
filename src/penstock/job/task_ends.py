# SPDX-License-Identifier: Apache-2.0
"""How attempts end, and what follows: reports of tasks, and the loss of tasks, environments and partitions.

An exception of the user's code most often comes again, so it is tried again only as often as the settings say. What a
task could not read is lost, whatever its service says; the task and the producer run again. A task that says unasked
that it was cancelled was stopped by Spark, which will say why.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.graph.execution_state import ExecutionEvent
from penstock.job import events
from penstock.job import instructions as do
from penstock.job.deployments import Deployments
from penstock.job.ending import Ending
from penstock.job.failure import CAUSE, CUT_OFF, rank_of
from penstock.job.job_scope import JobScope
from penstock.job.job_tasks import Place
from penstock.job.restarts import Restarts
from penstock.job.subtask import Subtask
from penstock.shuffle import AttemptId, PartitionId


class TaskEnds:
    """The ends of one job's attempts."""

    def __init__(self, scope: JobScope, deployments: Deployments, restarts: Restarts, ending: Ending) -> None:
        self._scope = scope
        self._deployments = deployments
        self._restarts = restarts
        self._ending = ending

    def finish(self, event: events.TaskFinished) -> None:
        """A task reports its end."""
        scope = self._scope
        scope.workers.free(event.attempt)
        subtask = scope.tasks.current(event.attempt)
        if subtask is None or subtask.is_ended:
            return
        subtask.metrics = dict(event.metrics)
        scope.record("task_finished", f"{event.attempt} {event.state}")
        if event.state == "FINISHED" and subtask.deployed:
            self._end_well(subtask, event)
        elif event.state == "CANCELED":
            self._end_cancelled(subtask, event)
        else:
            self._end_badly(subtask, event)

    def _end_well(self, subtask: Subtask, event: events.TaskFinished) -> None:
        scope = self._scope
        subtask.lifecycle.handle(ExecutionEvent.FINISH)
        if not subtask.is_finished:
            return  # it was told to stop, and was faster
        scope.tasks.finish(subtask)
        wrong = scope.stages.add_sizes(subtask.place, event.sizes)
        if wrong:
            self._ending.fail(f"{subtask.title}: {wrong}")
        if not scope.lifecycle.is_active:
            return
        for edge in subtask.outputs:
            scope.updates.announce(subtask, edge)
        readers = scope.recovery.misled(subtask, event.fingerprints)
        if readers:
            self._restarts.recover(readers, f"{subtask.title} gave other rows than in its attempt before", CAUSE)
        self._ending.finish_if_complete()

    def _end_cancelled(self, subtask: Subtask, event: events.TaskFinished) -> None:
        subtask.stop()
        self._scope.drop_call(subtask)
        if self._scope.lifecycle.is_active:
            self._scope.tasks.halt(subtask)
            cause = f"{subtask.title} was cancelled: {event.error or 'no reason given'}"
            self._restarts.wait_for_reason(subtask.place, cause)

    def _end_badly(self, subtask: Subtask, event: events.TaskFinished) -> None:
        subtask.lifecycle.handle(ExecutionEvent.FAIL)
        self._scope.drop_call(subtask)
        rank = rank_of(event.error_type)
        cause = f"{subtask.title} failed: {event.error or 'no reason given'}"
        if event.lost is not None:
            self._lose_read(event.lost, cause)
        elif rank == CAUSE:
            subtask.user_errors += 1
        if rank == CUT_OFF or subtask.user_errors > self._scope.submitted.restart.user_errors:
            self._ending.fail(cause, rank)
        else:
            self._restarts.recover({subtask.place}, cause, rank)

    def _lose_read(self, partition: PartitionId, cause: str) -> None:
        """A task could not read a partition: of its job, whose remains are released, or an earlier one's result."""
        scope = self._scope
        if scope.tracker.job_of(partition) == scope.job:
            for environment, descriptors in scope.tracker.release_some([partition]).items():
                scope.emit(do.ReleasePartitions(environment, descriptors))
            return
        for job, partitions in scope.tracker.lose([partition]).items():
            scope.emit(do.ResultLost(job, partitions, cause))

    def lose_task(self, event: events.TaskLost) -> None:
        """A task's process is gone, or that of a worker between two subtasks."""
        scope = self._scope
        worker = scope.workers.lose(event.attempt)
        if worker is not None and worker.call is not None:
            scope.emit(do.ReleaseWorker(worker.call))
        # A worker that was not yet told what it works on is named by its own identity.
        attempt = event.attempt if worker is None or worker.attempt is None else worker.attempt
        launched = worker.round if worker is not None else 0
        self._lose_attempt(attempt, f"was lost: {event.cause}", launched)

    def give_up(self, attempt: AttemptId, cause: str) -> None:
        """An attempt will never report its end, although its process lives."""
        self._scope.workers.free(attempt)
        self._lose_attempt(attempt, cause, 0)

    def _lose_attempt(self, attempt: AttemptId, cause: str, launched: int) -> None:
        scope = self._scope
        subtask = scope.tasks.current(attempt)
        if subtask is None or subtask.is_ended:
            return
        scope.record("task_lost", str(attempt))
        self.mark_lost([subtask])
        if self._ending.awaits_spark:
            return  # Spark ends this task too, and will say why
        if subtask.vertex.is_bound:
            launched = subtask.round
        self._restarts.recover({subtask.place}, f"{subtask.title} {cause}", CAUSE, launched)

    def mark_lost(self, subtasks: Iterable[Subtask]) -> None:
        """These have ended without a report; whoever waits for their deployment is answered."""
        for subtask in subtasks:
            subtask.lifecycle.handle(ExecutionEvent.FAIL)
            self._scope.drop_call(subtask)

    def lose_environment(self, environment: str, cause: str, partitions: tuple[PartitionId, ...]) -> None:
        """An environment is gone with its tasks and partitions."""
        scope = self._scope
        scope.answer_calls(scope.workers.lose_environment(environment))
        hit = [subtask for subtask in scope.tasks if subtask.is_live and subtask.environment == environment]
        self.mark_lost(hit)
        places = {subtask.place for subtask in hit} | self._needed(partitions)
        if places:
            scope.record("environment_lost", environment)
            names = ", ".join(subtask.title for subtask in hit[:3]) or f"{len(partitions)} partitions"
            self._restarts.recover(places, f"environment {environment} is lost ({cause}), and with it {names}", CAUSE)

    def lose_partitions(self, partitions: tuple[PartitionId, ...], cause: str) -> None:
        """Partitions of this job are gone, as a ShuffleMaster or an environment says."""
        needed = self._needed(partitions)
        if needed:
            named = ", ".join(str(item) for item in partitions[:3])
            self._restarts.recover(needed, f"{len(partitions)} partitions are lost ({named}): {cause}", CAUSE)

    def _needed(self, partitions: tuple[PartitionId, ...]) -> set[Place]:
        """The producers of those that somebody will still read."""
        found = set()
        for partition in partitions:
            subtask = self._deployments.producer_of(partition)
            if subtask is not None:
                edge, _ = self._scope.topology.edge_of(partition.dataset)
                if edge < 0 or not self._scope.tasks.is_complete(self._scope.graph.edge(edge).consumer):
                    found.add(subtask.place)
        return found
