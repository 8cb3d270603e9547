# SPDX-License-Identifier: Apache-2.0
"""The readers of each partition in one job, and the names of the partitions.

A thin view of the execution graph for the JobMaster; nothing is kept per channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from penstock.graph.execution_graph import ExecutionGraph
from penstock.graph.job_graph import RESULT_EDGE, JobEdge, JobGraph, JobVertex
from penstock.shuffle import DatasetId, PartitionDescriptor, ShuffleDescriptor


class JobTopology:
    """The subtasks of one job and the partitions between them."""

    def __init__(self, job: str, graph: JobGraph) -> None:
        self.job = job
        self.graph = graph

    @property
    def graph(self) -> JobGraph:
        """The plan; it changes when the parallelism of a vertex is chosen, before its region starts."""
        return self._graph

    @graph.setter
    def graph(self, graph: JobGraph) -> None:
        self._graph = graph
        self._execution = ExecutionGraph(graph)
        self._pointwise = cache(self._pointwise_consumers)

    def outputs(self, vertex: JobVertex, subtask: int) -> Iterator[tuple[int, str, PartitionDescriptor]]:
        """The partitions that a subtask writes: the edge, the service and the partition."""
        for edge in self.graph.outputs_of(vertex.id):
            count = self._execution.subpartitions_of(edge.id, subtask)
            dataset = DatasetId(self.job, edge.id)
            yield edge.id, edge.service, PartitionDescriptor(dataset, subtask, edge.kind, count, edge.is_broadcast)
        if vertex.id in self.graph.result:
            dataset, keeper = DatasetId(self.job, vertex.id, is_result=True), self.graph.keeper
            yield RESULT_EDGE, keeper.service, PartitionDescriptor(dataset, subtask, keeper.kind, 1)

    def inputs(self, vertex: int, subtask: int) -> Iterator[tuple[JobEdge, list[tuple[int, int, int]]]]:
        """The inputs of a subtask: the edge, and per channel the producing subtask, first subpartition, number."""
        for edge in self.graph.inputs_of(vertex):
            yield edge, list(self._execution.channels_of(edge.id, subtask))

    def placeholder(self, edge: int, vertex: int, index: int, *, empty: bool) -> ShuffleDescriptor:
        """The descriptor of a partition whose producer is not known (yet), or never came because it has no rows."""
        if edge == RESULT_EDGE:
            dataset = DatasetId(self.job, vertex, is_result=True)
            service, kind = self.graph.keeper.service, self.graph.keeper.kind
        else:
            dataset, description = DatasetId(self.job, edge), self.graph.edge(edge)
            service, kind = description.service, description.kind
        unknown = ShuffleDescriptor.unknown(dataset, index, service, kind)
        return ShuffleDescriptor(unknown.partition, service, kind, empty=True) if empty else unknown

    def edge_of(self, dataset: DatasetId) -> tuple[int, int]:
        """The edge and the producing vertex of a dataset of this job; raises KeyError."""
        if dataset.job != self.job:
            raise KeyError(dataset)
        if not dataset.is_result:
            return dataset.number, self.graph.edge(dataset.number).producer
        if dataset.number not in self.graph.result:
            raise KeyError(dataset)
        return RESULT_EDGE, dataset.number

    def consumers_of(self, edge: int, index: int) -> Sequence[int]:
        """The subtasks that read a producer's partition."""
        description = self.graph.edge(edge)
        if description.is_pointwise:
            return self._pointwise(edge).get(index, ())
        consumer = self.graph.vertex(description.consumer)
        if consumer.shares and not description.is_broadcast:
            return [i for i, share in enumerate(consumer.shares) if share.reads(description.side, index)]
        return range(consumer.parallelism)

    def _pointwise_consumers(self, edge: int) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for subtask in range(self.graph.vertex(self.graph.edge(edge).consumer).parallelism):
            for producer, _, _ in self._execution.channels_of(edge, subtask):
                found.setdefault(producer, []).append(subtask)
        return found
