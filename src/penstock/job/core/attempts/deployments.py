# SPDX-License-Identifier: Apache-2.0
"""From a task that is to run a subtask to the answer that tells it what to do.

An attempt's partitions are registered with their shuffle services first. In a region whose tasks run together data
starts when every task that reads no DataFrame is there; one that reads a DataFrame may come later, because its Spark
job may run shuffles of its own first. Elsewhere every task is answered as soon as its partitions are known.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import StaleError
from penstock.graph.failover import Place
from penstock.graph.regions import Region
from penstock.job.core import decisions as so
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.attempts.descriptors import DeploymentDescriptors
from penstock.job.core.execution.stages import Stages
from penstock.job.core.execution.subtask import Subtask
from penstock.job.core.execution.subtasks import Subtasks
from penstock.job.core.execution.topology import JobTopology
from penstock.job.core.failure import Rank
from penstock.job.core.states import Phase
from penstock.link.master import PartitionConsumable
from penstock.shuffle import PartitionId, ProducerDescriptor


class Deployments:
    """The deployments of one job; a part of `attempts`."""

    def __init__(
        self,
        topology: JobTopology,
        subtasks: Subtasks,
        stages: Stages,
        descriptors: DeploymentDescriptors,
        phase: Phase,
    ) -> None:
        self.waiting: dict[int, dict[Place, Subtask]] = {}
        """In regions that run together and do not yet: who is ready, and waits for the rest."""
        self._topology = topology
        self._subtasks = subtasks
        self._stages = stages
        self._descriptors = descriptors
        self._phase = phase

    def start(self, start: so.Start) -> Iterator[so.Decision]:
        """A task is to run an attempt; refused where another one came first.

        Spark takes the refused one's end for that of the DataFrame's partition. So what the first one has read, or
        reads now, does not count unless its own end is Spark's reason: its input may have ended early.
        """
        attempt = start.attempt
        subtask = self._subtasks.find(attempt.vertex, attempt.subtask)
        if subtask is None or subtask.attempt is not None or subtask.empty:
            first = "there is none now" if subtask is None else "its Spark job has returned without it"
            if subtask is not None and subtask.attempt is not None:
                first = f"another attempt came first ({subtask.attempt})"
            yield do.AnswerRegistration(start.call, attempt, StaleError(f"{attempt}: not of this subtask: {first}"))
            if subtask is not None and subtask.attempt not in (None, attempt):
                yield from self._run_again(subtask)
            return
        self._subtasks.begin(subtask, attempt, start.call, start.environment)
        yield so.Record("task_registered", str(attempt))
        producer = ProducerDescriptor(attempt, start.environment, start.address)
        for edge, service, partition in self._topology.outputs(subtask.vertex, subtask.index):
            subtask.unregistered += 1
            yield do.RegisterPartition(edge, service, partition, producer)
        yield from self._deploy_if_ready(subtask)
        if subtask.vertex.is_bound and not self._stages.may_start(self._stages.region_of(subtask.vertex.id)):
            yield so.MakeRoom()  # Spark started it by itself, and what it reads is to be made again

    def _run_again(self, subtask: Subtask) -> Iterator[so.Decision]:
        vertex = subtask.vertex
        if vertex.reads_dataframe and not self._subtasks.is_confirmed(vertex.id):
            subtask.is_run_again = True
            if subtask.is_ended:
                yield lost_to_another(subtask)

    def registered(self, event: events.PartitionRegistered) -> Iterator[so.Decision]:
        """A partition has its descriptor."""
        subtask = self._subtasks.current(event.attempt)
        if subtask is None and self._phase.is_active:
            # Its attempt was withdrawn meanwhile: the partition is neither written nor read.
            yield do.ReleaseDescriptors(event.descriptor.environment, (event.descriptor,))
            return
        yield so.Track(event.descriptor)
        if subtask is not None and event.edge not in subtask.outputs:
            subtask.outputs[event.edge] = event.descriptor
            subtask.unregistered -= 1
            yield from self._deploy_if_ready(subtask)

    def refused(self, event: events.PartitionRefused) -> Iterator[so.Decision]:
        """A ShuffleMaster could not register a partition: its attempt can't run, nor could another one."""
        subtask = self._subtasks.current(event.attempt)
        if subtask is not None:
            yield so.FailForGood(f"{subtask.title}: its output could not be registered: {event.cause}")

    def consumable(self, event: PartitionConsumable) -> Iterator[so.Decision]:
        """A partition can be read: tell those who wait for it."""
        subtask = self.producer_of(event.partition)
        if subtask is not None and self._phase.is_active:
            yield from self._descriptors.announce(subtask, self._topology.edge_of(event.partition.dataset)[0])

    def producer_of(self, partition: PartitionId) -> Subtask | None:
        """The subtask whose current attempt writes a partition."""
        try:
            _, vertex = self._topology.edge_of(partition.dataset)
        except KeyError:
            return None
        subtask = self._subtasks.find(vertex, partition.index)
        if subtask is None or subtask.attempt is None or subtask.attempt.attempt != partition.attempt:
            return None
        return subtask

    def leave(self, subtask: Subtask) -> None:
        """A subtask waits no longer for its region."""
        self.waiting.get(self._stages.region_of(subtask.vertex.id).number, {}).pop(subtask.place, None)

    def _deploy_if_ready(self, changed: Subtask) -> Iterator[so.Decision]:
        if not self._phase.is_active or not changed.is_ready:
            return
        region = self._stages.region_of(changed.vertex.id)
        if not region.at_once or region.number in self._subtasks.moving:
            yield from self._deploy(changed)
            return
        waiting = self.waiting.setdefault(region.number, {})
        waiting[changed.place] = changed
        if self._are_all_there(region, waiting):
            yield so.AllThere(region.number)

    def deploy_region(self, deployed: so.DeployRegion) -> Iterator[so.Decision]:
        """Tell the tasks of a region what to do, if all are still there."""
        region = self._stages.regions[deployed.region]
        waiting = self.waiting.get(region.number, {})
        if not self._phase.is_active or not self._are_all_there(region, waiting):
            return
        self.waiting.pop(region.number, None)
        self._subtasks.moving.add(region.number)
        yield so.Record("tasks_complete", f"{region.number}: {len(waiting)}")
        for subtask in waiting.values():
            yield from self._deploy(subtask)
        yield so.RegionRuns(region.number)

    def _are_all_there(self, region: Region, waiting: dict[Place, Subtask]) -> bool:
        """Tell whether every subtask that reads no DataFrame is ready."""
        workers = [number for number in region.vertices if not self._topology.graph.vertex(number).is_bound]
        missing = sum(self._subtasks.undeployed(number) for number in workers)
        return len(waiting) >= missing and sum(1 for vertex, _ in waiting if vertex in workers) == missing

    def _deploy(self, subtask: Subtask) -> Iterator[so.Decision]:
        call, attempt = subtask.call, subtask.attempt
        if call is not None and attempt is not None:
            self._subtasks.deploy(subtask)
            yield so.Record("task_deployed", str(attempt))
            yield so.SendDeployment(call, attempt, self._descriptors.deployment(subtask, attempt))


def lost_to_another(subtask: Subtask) -> so.Fail:
    """A DataFrame's task has ended, maybe well, and Spark runs it again: whether it had all rows is unknown."""
    cause = (
        f"{subtask.title} ended, but Spark runs its task again: its rows may have ended early. Spark's page and the"
        " logs of its executors say why"
    )
    return so.Fail(frozenset({subtask.place}), cause, Rank.UNEXPLAINED, subtask.round, explains=True)
