# SPDX-License-Identifier: Apache-2.0
"""From a task that asks for work to the answer that tells it what to do.

An attempt's partitions are registered with their shuffle services first. In a region whose tasks run together data
starts when every task that reads no DataFrame is there; one that reads a DataFrame may come later, because its Spark
job may run shuffles of its own first. Elsewhere every task is answered as soon as its partitions are known.
"""

from __future__ import annotations

from penstock.graph.execution_state import ExecutionEvent
from penstock.graph.regions import Region
from penstock.job import events
from penstock.job import instructions as do
from penstock.job.ending import Ending
from penstock.job.job_scope import JobScope
from penstock.job.job_tasks import Place
from penstock.job.subtask import Subtask
from penstock.job.workers import Worker
from penstock.shuffle import AttemptId, PartitionId, ProducerDescriptor
from penstock.shuffle.errors import StaleError


class Deployments:
    """The deployments of one job."""

    def __init__(self, scope: JobScope, ending: Ending) -> None:
        self._scope = scope
        self._ending = ending
        self._waiting: dict[int, dict[Place, Subtask]] = {}
        """In regions that run together: who is ready, and waits for the others."""

    def register_frame_task(self, event: events.TaskRegistered) -> None:
        """The task of a DataFrame's partition asks for its deployment."""
        scope = self._scope
        subtask = scope.tasks.find(event.attempt.vertex, event.attempt.subtask)
        refusal = ""
        if subtask is None or scope.parts.part_of(subtask.vertex.id) != event.part:
            refusal = f"{event.attempt}: job {scope.graph.name} has no such subtask now"
        elif subtask.attempt is not None or subtask.empty:
            first = subtask.attempt or "its Spark job has returned without it"
            refusal = f"{event.attempt}: another attempt of this subtask came first ({first})"
        if subtask is None or refusal:
            scope.emit(do.AnswerRegistration(event.call, event.attempt, StaleError(refusal)))
        else:
            self._begin(subtask, event.attempt, event.call, (event.environment, event.address))

    def assign(self, worker: Worker, place: Place) -> None:
        """An idle worker runs a subtask that nobody has taken."""
        subtask = self._scope.tasks.at(*place)
        attempt = AttemptId(self._scope.job, *place, subtask.generation)
        call = worker.call
        if call is None:
            raise ValueError(f"worker {worker.number} of job {self._scope.job} is not idle")
        self._scope.workers.assign(worker, attempt)
        self._begin(subtask, attempt, call, (worker.environment, worker.address))

    def register_partition(self, event: events.PartitionRegistered) -> None:
        """A partition has its descriptor."""
        scope = self._scope
        subtask = scope.tasks.current(event.attempt)
        if subtask is None and scope.lifecycle.is_active:
            # Its attempt was given up meanwhile: nobody will write or read it.
            scope.emit(do.ReleasePartitions(event.descriptor.environment, (event.descriptor,)))
            return
        scope.tracker.start(scope.job, event.descriptor)
        if subtask is None or event.edge in subtask.outputs:
            return
        subtask.outputs[event.edge] = event.descriptor
        subtask.unregistered -= 1
        self._deploy_ready(subtask)

    def refuse_partition(self, event: events.PartitionRefused) -> None:
        """A ShuffleMaster could not register a partition: its attempt can't run, nor could another one."""
        subtask = self._scope.tasks.current(event.attempt)
        if subtask is not None:
            self._ending.fail(f"{subtask.title}: its output could not be registered: {event.cause}")

    def partition_consumable(self, partition: PartitionId) -> None:
        """A partition can be read: tell those who wait for it."""
        subtask = self.producer_of(partition)
        if subtask is not None and self._scope.lifecycle.is_active:
            self._scope.updates.announce(subtask, self._scope.topology.edge_of(partition.dataset)[0])

    def producer_of(self, partition: PartitionId) -> Subtask | None:
        """The subtask whose current attempt writes a partition."""
        try:
            _, vertex = self._scope.topology.edge_of(partition.dataset)
        except KeyError:
            return None
        subtask = self._scope.tasks.find(vertex, partition.index)
        if subtask is None or subtask.attempt is None or subtask.attempt.attempt != partition.attempt:
            return None
        return subtask

    def _begin(self, subtask: Subtask, attempt: AttemptId, call: int, where: tuple[str, str]) -> None:
        scope = self._scope
        scope.tasks.take(subtask)
        subtask.begin(attempt, call, *where)
        scope.record("task_registered", str(attempt))
        producer = ProducerDescriptor(attempt, *where)
        for edge, service, partition in scope.topology.outputs(subtask.vertex, subtask.index):
            subtask.unregistered += 1
            scope.emit(do.RegisterPartition(edge, service, partition, producer))
        self._deploy_ready(subtask)

    def _deploy_ready(self, changed: Subtask) -> None:
        scope = self._scope
        region = scope.stages.region_of(changed.vertex.id)
        if not scope.lifecycle.is_active or not changed.is_ready:
            return
        if not region.at_once or region.number in scope.moving:
            self._deploy(changed)
            return
        self._waiting.setdefault(region.number, {})[changed.place] = changed
        if self._are_all_there(region):
            waiting = self._waiting.pop(region.number)
            scope.moving.add(region.number)
            scope.record("tasks_complete", f"{region.number}: {len(waiting)}")
            for subtask in waiting.values():
                self._deploy(subtask)

    def _are_all_there(self, region: Region) -> bool:
        """Whether every subtask that reads no DataFrame is ready."""
        scope = self._scope
        workers = [number for number in region.vertices if not scope.graph.vertex(number).is_bound]
        missing = sum(scope.tasks.undeployed(number) for number in workers)
        if len(self._waiting[region.number]) < missing:
            return False
        # Some may have been lost or reset since they came; this look at all of them is rare.
        waiting = {
            place: subtask
            for place, subtask in self._waiting[region.number].items()
            if subtask.is_ready and scope.tasks.find(*place) is subtask
        }
        self._waiting[region.number] = waiting
        return sum(1 for vertex, _ in waiting if vertex in workers) == missing

    def _deploy(self, subtask: Subtask) -> None:
        call, attempt = subtask.call, subtask.attempt
        if call is None or attempt is None:
            return
        scope = self._scope
        subtask.call = None
        subtask.round = scope.recovery.round
        subtask.lifecycle.handle(ExecutionEvent.RUN)
        scope.tasks.deploy(subtask)
        scope.record("task_deployed", str(attempt))
        scope.emit(do.AnswerRegistration(call, attempt, scope.tasks.deployment(subtask, attempt)))
