# SPDX-License-Identifier: Apache-2.0
"""The number of consumers of a vertex that leaves it open: chosen once, from the bytes its producers wrote.

Nothing is kept per producer and consumer. A producer that ran again is not counted twice. A plan that comes with the
choice made, because it was run before, keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.graph.failover import Place
from penstock.graph.job_graph import JobEdge, JobVertex
from penstock.graph.shares import FEW_BYTES, Cut, choose_shares
from penstock.job.core.execution.capacity import Capacity
from penstock.job.core.execution.topology import JobTopology


class Widths:
    """The bytes between the vertices of one job, where a vertex's parallelism depends on them."""

    def __init__(self, topology: JobTopology, capacity: Capacity, target_bytes: int) -> None:
        self._topology = topology
        self._capacity = capacity
        self._target = target_bytes
        self._sizes: dict[int, list[int]] = {}
        self._counted: set[tuple[int, int]] = set()

    def add(self, producer: Place, sizes: Mapping[int, Sequence[int]]) -> str:
        """A producer has finished: the bytes of its subpartitions by edge. Returns the fault in them, or nothing."""
        for edge in self._topology.graph.outputs_of(producer[0]):
            found = sizes.get(edge.id)
            if found is None or not self._is_open(edge) or (edge.id, producer[1]) in self._counted:
                continue
            wanted = self._topology.graph.vertex(edge.consumer).subpartitions
            if len(found) != wanted:
                return f"its shuffle service counted the bytes of {len(found)} subpartitions, there are {wanted}"
            self._counted.add((edge.id, producer[1]))
            known = self._sizes.setdefault(edge.id, [0] * len(found))
            self._sizes[edge.id] = [one + other for one, other in zip(known, found, strict=True)]
        return ""

    def choose(self, vertex: JobVertex) -> None:
        """The region of a vertex is opened: its parallelism is fixed now, if it was open."""
        if vertex.subpartitions is None or vertex.shares:
            return
        edges = self._topology.graph.inputs_of(vertex.id)
        known = [self._sizes[edge.id] for edge in edges if edge.id in self._sizes]
        # A service that counts no bytes leaves nothing to choose by: then there are as many consumers as slots.
        totals = [sum(column) for column in zip(*known, strict=True)] or [FEW_BYTES] * vertex.subpartitions
        shares = choose_shares(totals, self._capacity.total, self._target, self._cut(vertex, edges))
        chosen = replace(vertex, parallelism=len(shares), shares=shares)
        self._topology.graph = self._topology.graph.with_vertex(chosen)

    def _is_open(self, edge: JobEdge) -> bool:
        """Tell whether the bytes on this edge say how many consumers there are."""
        return self._topology.graph.vertex(edge.consumer).subpartitions is not None and not edge.is_broadcast

    def _cut(self, vertex: JobVertex, edges: Sequence[JobEdge]) -> Cut | None:
        """The side that may be read in parts: its bytes and producers, if it has one edge only."""
        side = getattr(vertex.combine, "divisible_side", None)
        own = [edge for edge in edges if edge.side == side and edge.id in self._sizes]
        if side is None or len(own) != 1:
            return None
        producers = self._topology.graph.vertex(own[0].producer).parallelism
        return Cut(side, self._sizes[own[0].id], producers)
