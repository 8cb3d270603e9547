# SPDX-License-Identifier: Apache-2.0
"""The subtasks of one job, from the start of their region: who is there, what they are told, and their figures.

Looks and adds up, per vertex in the time of a few numbers; what happens to a subtask is decided in `job_core`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.graph.deployment import InputDeployment, OutputDeployment, TaskDeployment
from penstock.graph.job_graph import RESULT_EDGE, JobEdge, JobGraph, JobVertex
from penstock.job.result import VertexProgress
from penstock.job.subtask import Subtask
from penstock.job.topology import JobTopology
from penstock.shuffle import AttemptId, ShuffleDescriptor

Live = Callable[[AttemptId], dict[str, float]]
"""What the last heartbeat said of an attempt."""
Place = tuple[int, int]
"""Vertex and index."""


@dataclass(slots=True)
class _Book:
    """One vertex: which subtasks nobody has taken, how many have not got so far, and how many stopped on the way."""

    pending: list[int]
    undeployed: int
    unfinished: int
    halted: int = 0


class JobTasks:
    """All subtasks of one job, by vertex and index."""

    def __init__(self, topology: JobTopology) -> None:
        self._topology = topology
        self._by_place: dict[Place, Subtask] = {}
        self._books: dict[int, _Book] = {}
        self._sources: dict[int, list[ShuffleDescriptor]] = {}
        """What consumers of an edge are told of its producers, from the first deployment that needs it."""

    @property
    def _graph(self) -> JobGraph:
        return self._topology.graph

    def add(self, vertex: JobVertex) -> None:
        """The subtasks of a vertex whose region may start; nothing when they are there."""
        if vertex.id in self._books:
            return
        count = vertex.parallelism
        self._books[vertex.id] = _Book(list(range(count)), count, count)
        for index in range(count):
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

    def of(self, vertex: int) -> list[Subtask]:
        """A vertex's subtasks; none before its region may start."""
        if vertex not in self._books:
            return []
        return [self._by_place[vertex, index] for index in range(self._graph.vertex(vertex).parallelism)]

    def pending(self, vertex: int) -> int:
        """How many subtasks of a vertex nobody has taken."""
        return len(self._books[vertex].pending)

    def first_pending(self, vertex: int, count: int) -> list[Place]:
        """The first of them."""
        return [(vertex, index) for index in self._books[vertex].pending[:count]]

    def is_complete(self, vertex: int) -> bool:
        """Whether all subtasks of a vertex ended well."""
        book = self._books.get(vertex)
        return book is not None and book.unfinished == 0

    def is_there(self, vertex: int) -> bool:
        """Whether the subtasks of a vertex may run, or will when what comes before them does."""
        return vertex in self._books

    def is_deployed(self, vertex: int) -> bool:
        """Whether all subtasks of a vertex run or ended well."""
        book = self._books.get(vertex)
        return book is not None and book.undeployed == 0 and book.halted == 0

    def undeployed(self, vertex: int) -> int:
        """How many subtasks of a vertex neither run nor have ended well."""
        book = self._books.get(vertex)
        return book.undeployed if book is not None else self._graph.vertex(vertex).parallelism

    def is_begun(self, vertex: int) -> bool:
        """Whether any subtask of a vertex runs or has ended well."""
        book = self._books.get(vertex)
        return book is not None and book.undeployed < self._graph.vertex(vertex).parallelism

    def is_taken(self, vertex: int) -> bool:
        """Whether any subtask of a vertex waits for its deployment."""
        book = self._books.get(vertex)
        return book is not None and book.undeployed > len(book.pending)

    def is_running(self, vertex: int) -> bool:
        """Whether any subtask of a vertex runs."""
        book = self._books.get(vertex)
        return book is not None and book.unfinished > book.undeployed

    def take(self, subtask: Subtask) -> None:
        """Somebody will run it."""
        pending = self._books[subtask.vertex.id].pending
        position = bisect_left(pending, subtask.index)
        if position < len(pending) and pending[position] == subtask.index:
            del pending[position]

    def deploy(self, subtask: Subtask) -> None:
        """It is told what to do."""
        subtask.deployed = True
        self._books[subtask.vertex.id].undeployed -= 1

    def finish(self, subtask: Subtask) -> None:
        """It ended well, or had nothing to do."""
        book = self._books[subtask.vertex.id]
        book.unfinished -= 1
        if not subtask.deployed:
            self.take(subtask)
            self.deploy(subtask)
        if subtask.empty:
            self.tell_anew(subtask)

    def halt(self, subtask: Subtask) -> None:
        """It was stopped unasked, and what follows is not known yet."""
        subtask.halted = True
        self._books[subtask.vertex.id].halted += 1

    def reset(self, subtask: Subtask, round_: int) -> None:
        """It is to be run again, from its beginning: restart `round_`."""
        book = self._books[subtask.vertex.id]
        book.halted -= subtask.halted
        book.undeployed += subtask.deployed
        book.unfinished += subtask.is_finished
        self.take(subtask)
        insort(book.pending, subtask.index)
        self._by_place[subtask.place] = subtask.again(self._topology.job, round_)
        self.tell_anew(subtask)

    def deployment(self, subtask: Subtask, attempt: AttemptId) -> TaskDeployment:
        """What an attempt is told: its channels with what is known of their producers, and its partitions."""
        inputs = []
        for edge, channels in self._topology.inputs(subtask.vertex.id, subtask.index):
            known = self._sources_of(edge)
            # The one place whose cost is that of the channels: they are what the attempt is told.
            sources = tuple([(known[index], first, count) for index, first, count in channels])
            inputs.append(InputDeployment(edge.id, sources, self._graph.vertex(edge.producer).is_bound))
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
        for subtask in self.of(vertex):
            metrics = subtask.metrics
            if not metrics and live is not None and subtask.attempt is not None:
                metrics = live(subtask.attempt)
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def vertex_progress(self, vertex: int, live: Live) -> VertexProgress:
        """A snapshot of one vertex."""
        description = self._graph.vertex(vertex)
        subtasks = self.of(vertex)
        return VertexProgress(
            vertex,
            description.name,
            description.parallelism,
            sum(1 for s in subtasks if s.is_live and s.deployed),
            sum(1 for s in subtasks if s.is_ended),
            self.sums(vertex, live),
        )

    def tell_anew(self, subtask: Subtask) -> None:
        """What consumers are told of a subtask has changed: it can be read, is empty, or is run again."""
        for edge in self._graph.outputs_of(subtask.vertex.id):
            if edge.id in self._sources:
                self._sources[edge.id][subtask.index] = self._source(edge.id, *subtask.place)

    def _sources_of(self, edge: JobEdge) -> list[ShuffleDescriptor]:
        if edge.id not in self._sources:
            producers = range(self._graph.vertex(edge.producer).parallelism)
            self._sources[edge.id] = [self._source(edge.id, edge.producer, index) for index in producers]
        return self._sources[edge.id]

    def _source(self, edge: int, vertex: int, index: int) -> ShuffleDescriptor:
        producer = self._by_place[vertex, index]
        if edge in producer.consumable:
            return producer.outputs[edge]
        return self._topology.placeholder(edge, vertex, index, empty=producer.empty)
