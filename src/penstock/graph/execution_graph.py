# SPDX-License-Identifier: Apache-2.0
"""JobGraph to subtasks: who reads which subpartition of whom. Pure.

Rules of the wiring:
- all-to-all edges (hash, rebalance, broadcast, random, to_one, custom): every producer subtask writes one
  subpartition per consumer subtask; consumer `i` reads subpartition `i` of every producer.
- pointwise edges (rescale, forward) with S producers and T consumers: with S >= T each partition has one
  subpartition and consumer `i` reads partitions `[i*S//T, (i+1)*S//T)`; with S < T partition `p` serves
  consumers `[ceil(p*T/S), ceil((p+1)*T/S))`, each with a subpartition of its own.

Non-goal: attempts and states, which change while a job runs, are the JobMaster's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex
from penstock.shuffle.errors import PlanError


@dataclass(frozen=True, slots=True)
class ExecutionGraph:
    """The physical plan of one job: its subtasks and their channels."""

    graph: JobGraph

    def __post_init__(self) -> None:
        for edge in self.graph.edges:
            producers, consumers = self._parallelisms(edge)
            if edge.exchange.kind == "forward" and producers != consumers:
                raise PlanError(
                    f"edge {edge.id} of job {self.graph.name} is a forward edge from {producers} to {consumers} "
                    "subtasks: a forward edge needs the same parallelism on both sides; use rescale() or rebalance()"
                )

    def subtasks(self) -> Iterator[tuple[JobVertex, int]]:
        """Every `(vertex, subtask)` in order of the vertices."""
        for vertex in self.graph.vertices:
            for subtask in range(vertex.parallelism):
                yield vertex, subtask

    def subpartitions_of(self, edge: int, producer_subtask: int) -> int:
        """The number of subpartitions that this producer subtask writes for the edge with this id."""
        description = self.graph.edge(edge)
        producers, consumers = self._parallelisms(description)
        _check_subtask(edge, "producer", producer_subtask, producers)
        if not description.is_pointwise:
            return consumers
        if producers >= consumers:
            return 1
        first, end = _consumers_of(producer_subtask, producers, consumers)
        return end - first

    def channels_of(self, edge: int, consumer_subtask: int) -> list[tuple[int, int]]:
        """What this consumer subtask reads: `(partition index, subpartition index)` in order of the partitions."""
        description = self.graph.edge(edge)
        producers, consumers = self._parallelisms(description)
        _check_subtask(edge, "consumer", consumer_subtask, consumers)
        if not description.is_pointwise:
            return [(partition, consumer_subtask) for partition in range(producers)]
        if producers >= consumers:
            first = consumer_subtask * producers // consumers
            end = (consumer_subtask + 1) * producers // consumers
            return [(partition, 0) for partition in range(first, end)]
        partition = consumer_subtask * producers // consumers
        first, _ = _consumers_of(partition, producers, consumers)
        return [(partition, consumer_subtask - first)]

    def _parallelisms(self, edge: JobEdge) -> tuple[int, int]:
        return self.graph.vertex(edge.producer).parallelism, self.graph.vertex(edge.consumer).parallelism


def _consumers_of(partition: int, producers: int, consumers: int) -> tuple[int, int]:
    return -(-partition * consumers // producers), -(-(partition + 1) * consumers // producers)


def _check_subtask(edge: int, side: str, subtask: int, parallelism: int) -> None:
    if not 0 <= subtask < parallelism:
        raise IndexError(f"edge {edge} has {parallelism} {side} subtasks, there is no number {subtask}")


def regions(graph: JobGraph) -> list[frozenset[int]]:
    """The pipelined regions: sets of vertex ids joined by pipelined edges, in order of their first vertex."""
    region_of = {vertex.id: vertex.id for vertex in graph.vertices}

    def root(vertex: int) -> int:
        while region_of[vertex] != vertex:
            region_of[vertex] = region_of[region_of[vertex]]
            vertex = region_of[vertex]
        return vertex

    for edge in graph.edges:
        if edge.kind.pipelined:
            region_of[root(edge.consumer)] = root(edge.producer)
    members: dict[int, list[int]] = {}
    for vertex in graph.vertices:
        members.setdefault(root(vertex.id), []).append(vertex.id)
    return [frozenset(ids) for ids in members.values()]


def slots_needed(graph: JobGraph, region: frozenset[int]) -> int:
    """The task slots that the region occupies while it runs: all its subtasks at once."""
    return sum(vertex.parallelism for vertex in graph.vertices if vertex.id in region)


def refuse_deadlocks(graph: JobGraph) -> None:
    """Raise PlanError where a vertex is reached from another over two different pipelined paths.

    The consumer may then wait for rows of one path while the producer waits for room on the other: a
    pipelined exchange holds a bounded number of rows, so neither goes on.
    """
    outputs: dict[int, list[JobEdge]] = {}
    for edge in graph.edges:
        if edge.kind.pipelined:
            outputs.setdefault(edge.producer, []).append(edge)
    for vertex in graph.vertices:
        _refuse_second_path(graph, vertex.id, outputs)


def _refuse_second_path(graph: JobGraph, start: int, outputs: dict[int, list[JobEdge]]) -> None:
    reached: dict[int, tuple[int, ...]] = {start: (start,)}
    waiting = deque([start])
    while waiting:
        current = waiting.popleft()
        for edge in outputs.get(current, ()):
            path = (*reached[current], edge.consumer)
            known = reached.get(edge.consumer)
            if known is not None:
                raise PlanError(_deadlock_text(graph, known, path))
            reached[edge.consumer] = path
            waiting.append(edge.consumer)


def _deadlock_text(graph: JobGraph, one: tuple[int, ...], other: tuple[int, ...]) -> str:
    first, second = (" -> ".join(graph.vertex(vertex).name for vertex in path) for path in (one, other))
    paths = f"both {first}" if first == second else f"as {first} and as {second}"
    return (
        f"{graph.vertex(one[-1]).name!r} would read the rows of {graph.vertex(one[0]).name!r} over two pipelined "
        f"paths, {paths}: such a job can deadlock, because a pipelined exchange holds a bounded number of rows. "
        "Write one branch out first (branch.toDF(), then penstock.fromDataFrame of what was written), or read the "
        "source twice with two separate sources"
    )
