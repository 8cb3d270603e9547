# SPDX-License-Identifier: Apache-2.0
"""The subtasks of one job, from the start of their region: who is there, what they are told, and their figures.

Looks and adds up; what happens to a subtask is decided in `job_core`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.graph.deployment import InputDeployment, OutputDeployment, TaskDeployment
from penstock.graph.job_graph import RESULT_EDGE, JobGraph, JobVertex
from penstock.job.result import VertexProgress
from penstock.job.subtask import Subtask
from penstock.job.topology import JobTopology
from penstock.shuffle import AttemptId, ShuffleDescriptor

Live = Callable[[AttemptId], dict[str, float]]
"""What the last heartbeat said of an attempt."""


class JobTasks:
    """All subtasks of one job, by vertex and index."""

    def __init__(self, topology: JobTopology) -> None:
        self._topology = topology
        self._by_place: dict[tuple[int, int], Subtask] = {}

    @property
    def _graph(self) -> JobGraph:
        return self._topology.graph

    def add(self, vertex: JobVertex) -> None:
        """The subtasks of a vertex whose region starts."""
        for index in range(vertex.parallelism):
            self._by_place[vertex.id, index] = Subtask.of(self._topology.job, vertex, index)

    def __iter__(self) -> Iterator[Subtask]:
        return iter(self._by_place.values())

    def at(self, vertex: int, index: int) -> Subtask:
        """The subtask at a place; raises KeyError."""
        return self._by_place[vertex, index]

    def find(self, vertex: int, index: int) -> Subtask | None:
        """The subtask at a place, if there is such a place."""
        return self._by_place.get((vertex, index))

    def current(self, attempt: AttemptId) -> Subtask | None:
        """The subtask whose accepted attempt this is."""
        subtask = self._by_place.get((attempt.vertex, attempt.subtask))
        return subtask if subtask is not None and subtask.attempt == attempt else None

    def deployment(self, subtask: Subtask, attempt: AttemptId) -> TaskDeployment:
        """What an attempt is told: its channels with what is known of their producers, and its partitions."""
        inputs = []
        for edge, channels in self._topology.inputs(subtask.vertex.id, subtask.index):
            sources = tuple((self._source(edge.id, edge.producer, i), first, count) for i, first, count in channels)
            inputs.append(InputDeployment(edge.id, sources, self._graph.vertex(edge.producer).reads_dataframe))
        counts = {edge: p.subpartitions for edge, _, p in self._topology.outputs(subtask.vertex, subtask.index)}
        outputs = tuple(OutputDeployment(edge, d, counts[edge]) for edge, d in subtask.outputs.items())
        return TaskDeployment(attempt, tuple(inputs), outputs)

    def result_partitions(self) -> list[ShuffleDescriptor]:
        """The result's partitions in order; subtasks that never came keep their place."""
        found = []
        for vertex in self._graph.result:
            for index in range(self._graph.vertex(vertex).parallelism):
                subtask = self._by_place[vertex, index]
                empty = self._topology.placeholder(RESULT_EDGE, vertex, index, empty=True)
                found.append(subtask.outputs.get(RESULT_EDGE, empty))
        return found

    def sums(self, vertex: int, live: Live | None) -> dict[str, float]:
        """The sums over a vertex's subtasks; `live` gives what heartbeats said of those that still run."""
        sums: dict[str, float] = {}
        for subtask in self._of(vertex):
            metrics = subtask.metrics
            if not metrics and live is not None and subtask.attempt is not None:
                metrics = live(subtask.attempt)
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def vertex_progress(self, vertex: int, live: Live) -> VertexProgress:
        """A snapshot of one vertex."""
        description = self._graph.vertex(vertex)
        subtasks = self._of(vertex)
        return VertexProgress(
            vertex,
            description.name,
            description.parallelism,
            sum(1 for s in subtasks if s.is_live and s.deployed),
            sum(1 for s in subtasks if s.is_ended),
            self.sums(vertex, live),
        )

    def _of(self, vertex: int) -> list[Subtask]:
        """A vertex's subtasks; none before its region starts."""
        places = ((vertex, index) for index in range(self._graph.vertex(vertex).parallelism))
        return [self._by_place[place] for place in places if place in self._by_place]

    def _source(self, edge: int, vertex: int, index: int) -> ShuffleDescriptor:
        producer = self._by_place[vertex, index]
        if edge in producer.consumable:
            return producer.outputs[edge]
        return self._topology.placeholder(edge, vertex, index, empty=producer.empty)
