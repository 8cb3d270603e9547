# SPDX-License-Identifier: Apache-2.0
"""JobGraph to subtasks: who reads which subpartition of whom. Pure.

Rules of the wiring:
- all-to-all edges (hash, rebalance, broadcast, random, to_one, custom): every producer subtask writes one
  subpartition per consumer subtask; consumer `i` reads subpartition `i` of every producer. If the number of
  consumers is chosen from the data, there are more subpartitions, and a consumer reads its share of them.
- pointwise edges (rescale, forward) with S producers and T consumers: with S >= T each partition has one
  subpartition and consumer `i` reads partitions `[i*S//T, (i+1)*S//T)`; with S < T partition `p` serves
  consumers `[ceil(p*T/S), ceil((p+1)*T/S))`, each with a subpartition of its own.

Non-goal: attempts and states, which change while a job runs, are the JobMaster's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.errors import PlanError
from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex
from penstock.graph.shares import even_shares


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
            consumer = self.graph.vertex(description.consumer)
            return consumers if consumer.subpartitions is None else consumer.subpartitions
        if producers >= consumers:
            return 1
        first, end = _consumers_of(producer_subtask, producers, consumers)
        return end - first

    def channels_of(self, edge: int, consumer_subtask: int) -> list[tuple[int, int, int]]:
        """The channels of a consumer: `(partition index, first subpartition, count)` in order of the partitions."""
        description = self.graph.edge(edge)
        producers, consumers = self._parallelisms(description)
        _check_subtask(edge, "consumer", consumer_subtask, consumers)
        if not description.is_pointwise:
            return self._ranges(description, consumer_subtask, producers)
        if producers >= consumers:
            first = consumer_subtask * producers // consumers
            end = (consumer_subtask + 1) * producers // consumers
            return [(partition, 0, 1) for partition in range(first, end)]
        partition = consumer_subtask * producers // consumers
        first, _ = _consumers_of(partition, producers, consumers)
        return [(partition, consumer_subtask - first, 1)]

    def _ranges(self, edge: JobEdge, subtask: int, producers: int) -> list[tuple[int, int, int]]:
        consumer = self.graph.vertex(edge.consumer)
        if consumer.subpartitions is None:
            return [(partition, subtask, 1) for partition in range(producers)]
        if edge.is_broadcast:
            return [(partition, 0, 1) for partition in range(producers)]
        shares = consumer.shares or even_shares(consumer.subpartitions, consumer.parallelism)
        share = shares[subtask]
        return [(index, share.first, share.count) for index in range(producers) if share.reads(edge.side, index)]

    def _parallelisms(self, edge: JobEdge) -> tuple[int, int]:
        return self.graph.vertex(edge.producer).parallelism, self.graph.vertex(edge.consumer).parallelism


def _consumers_of(partition: int, producers: int, consumers: int) -> tuple[int, int]:
    return -(-partition * consumers // producers), -(-(partition + 1) * consumers // producers)


def _check_subtask(edge: int, side: str, subtask: int, parallelism: int) -> None:
    if not 0 <= subtask < parallelism:
        raise IndexError(f"edge {edge} has {parallelism} {side} subtasks, there is no number {subtask}")
