# SPDX-License-Identifier: Apache-2.0
"""The words to tasks about their producers: at their deployment, and later, when a partition can be read.

A consumer may be deployed before its producers are known; a placeholder stands for each of those until its first
buffer is there, and who runs is told then.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.graph.deployment import InputDeployment, OutputDeployment, TaskDeployment
from penstock.graph.job_graph import RESULT_EDGE, JobEdge
from penstock.job.core import decisions as so
from penstock.job.core import instructions as do
from penstock.job.core.execution.progress import Roll
from penstock.job.core.execution.subtask import Subtask
from penstock.job.core.execution.topology import JobTopology
from penstock.link.commands import UpdatePartitionInfo
from penstock.shuffle import AttemptId, ShuffleDescriptor


class DeploymentDescriptors:
    """Of one job."""

    def __init__(self, topology: JobTopology, subtasks: Roll) -> None:
        self._topology = topology
        self._subtasks = subtasks
        self._sources: dict[int, list[ShuffleDescriptor]] = {}
        """The descriptors by which consumers of an edge know its producers, from the first deployment that needs
        them.
        """

    def deployment(self, subtask: Subtask, attempt: AttemptId) -> TaskDeployment:
        """The deployment of an attempt: its channels with what is known of their producers, and its partitions."""
        graph, inputs = self._topology.graph, []
        for edge, channels in self._topology.inputs(subtask.vertex.id, subtask.index):
            known = self._sources_of(edge)
            # The one place whose cost is that of the channels: they are what the attempt is told.
            sources = tuple([(known[index], first, count) for index, first, count in channels])
            inputs.append(InputDeployment(edge.id, sources, graph.vertex(edge.producer).is_bound))
        counts = {edge: p.subpartitions for edge, _, p in self._topology.outputs(subtask.vertex, subtask.index)}
        outputs = tuple(OutputDeployment(edge, d, counts[edge]) for edge, d in subtask.outputs.items())
        return TaskDeployment(attempt, tuple(inputs), outputs)

    def announce(self, subtask: Subtask, edge: int) -> Iterator[so.Decision]:
        """A partition can be read; nothing when that was told before."""
        if edge in subtask.consumable or edge not in subtask.outputs:
            return
        subtask.consumable.add(edge)
        self.renew(subtask)
        descriptor = subtask.outputs[edge]
        yield so.Record("partition_consumable", str(descriptor.partition))
        yield from self._tell(edge, subtask.index, descriptor)

    def announce_empty(self, subtask: Subtask) -> Iterator[so.Decision]:
        """A subtask never started, because there were no rows for it: its partitions are empty."""
        self.renew(subtask)
        for edge in self._topology.graph.outputs_of(subtask.vertex.id):
            descriptor = self._topology.placeholder(edge.id, *subtask.place, empty=True)
            yield from self._tell(edge.id, subtask.index, descriptor)

    def renew(self, subtask: Subtask) -> None:
        """Renew the descriptors by which consumers know a subtask: it can be read, is empty, or is run again."""
        for edge in self._topology.graph.outputs_of(subtask.vertex.id):
            if edge.id in self._sources:
                self._sources[edge.id][subtask.index] = self._source(edge.id, *subtask.place)

    def result_partitions(self) -> list[ShuffleDescriptor]:
        """The result's partitions in order; subtasks that never came keep their place."""
        found = []
        for vertex in self._topology.graph.result:
            for subtask in self._subtasks.of(vertex):
                empty = self._topology.placeholder(RESULT_EDGE, *subtask.place, empty=True)
                found.append(subtask.outputs.get(RESULT_EDGE, empty))
        return found

    def _tell(self, edge: int, index: int, descriptor: ShuffleDescriptor) -> Iterator[so.Decision]:
        if edge == RESULT_EDGE:
            return
        consumer = self._topology.graph.edge(edge).consumer
        if not self._subtasks.is_running(consumer):
            return
        told = 0
        for number in self._topology.consumers_of(edge, index):
            reader = self._subtasks.find(consumer, number)
            if reader is not None and reader.deployed and reader.attempt is not None and not reader.is_ended:
                told += 1
                yield do.TellEnvironment(reader.environment, UpdatePartitionInfo(reader.attempt, descriptor))
        if told:
            yield so.Record("partition_info_updated", str(descriptor.partition))

    def _sources_of(self, edge: JobEdge) -> list[ShuffleDescriptor]:
        if edge.id not in self._sources:
            producers = range(self._topology.graph.vertex(edge.producer).parallelism)
            self._sources[edge.id] = [self._source(edge.id, edge.producer, index) for index in producers]
        return self._sources[edge.id]

    def _source(self, edge: int, vertex: int, index: int) -> ShuffleDescriptor:
        producer = self._subtasks.find(vertex, index)
        if producer is not None and edge in producer.consumable:
            return producer.outputs[edge]
        return self._topology.placeholder(edge, vertex, index, empty=producer is not None and producer.empty)
