# SPDX-License-Identifier: Apache-2.0
"""The regions of one job in their order: which one runs, which Spark jobs carry it, how many consumers it gets. Pure.

One region runs at a time. Where a vertex leaves its parallelism open, it is chosen here when its region starts, from
the bytes that its producers wrote; nothing is kept per producer and consumer, only sums per subpartition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.graph.job_graph import JobEdge, JobVertex
from penstock.graph.regions import Region, regions, slots_needed
from penstock.graph.shares import FEW_BYTES, Cut, choose_shares
from penstock.job.events import range_part
from penstock.job.topology import JobTopology

Sizes = dict[int, list[int]]
"""Per edge the bytes of each subpartition, over all producers."""


@dataclass(frozen=True, slots=True)
class LaunchPart:
    """One Spark job: its number and the `(vertex, subtask)` pairs it carries."""

    part: int
    subtasks: tuple[tuple[int, int], ...]


class RegionOrder:
    """Where a job stands among its regions."""

    def __init__(self, topology: JobTopology, slots: int, target_bytes: int) -> None:
        self._topology = topology
        self._slots = slots
        self._target = target_bytes
        self._regions = regions(topology.graph)
        self._current = -1
        self._sizes: Sizes = {}
        self.slots_needed = max(map(self._slots_of, self._regions))
        """The slots a job holds while it runs: those of its largest region, as far as there are slots for it."""
        self.parts: dict[int, bool] = {}
        """The Spark jobs of the region that runs, and whether they have returned."""

    @property
    def current(self) -> Region:
        """The region that runs."""
        return self._regions[self._current]

    @property
    def has_next(self) -> bool:
        """Whether another region comes behind it."""
        return self._current + 1 < len(self._regions)

    @property
    def all_returned(self) -> bool:
        """Whether every Spark job of the region that runs has returned."""
        return all(self.parts.values())

    def start_next(self) -> tuple[LaunchPart, ...]:
        """Go on to the next region; the Spark jobs it needs."""
        self._current += 1
        for number in self.current.vertices:
            self._choose(self._topology.graph.vertex(number))
        subtasks: dict[int, list[tuple[int, int]]] = {}
        for number in self.current.vertices:
            vertex = self._topology.graph.vertex(number)
            carried = subtasks.setdefault(self.part_of(vertex), [])
            carried.extend((number, index) for index in range(vertex.parallelism))
        parts = tuple(LaunchPart(part, tuple(carried)) for part, carried in sorted(subtasks.items()))
        self.parts = {part.part: False for part in parts}
        return parts

    def part_of(self, vertex: JobVertex) -> int:
        """The Spark job that carries a vertex of the region that runs."""
        return vertex.id if vertex.reads_dataframe else range_part(self._current)

    def add_sizes(self, sizes: Mapping[int, Sequence[int]]) -> str:
        """A producer has finished: the bytes of its subpartitions by edge. What is wrong with them, or nothing."""
        chosen = {edge.id for edge in self._topology.graph.edges if self._is_open(edge)}
        for edge, found in sizes.items():
            if edge not in chosen:
                continue
            wanted = self._topology.graph.vertex(self._topology.graph.edge(edge).consumer).subpartitions
            if len(found) != wanted:
                return f"its shuffle service counted the bytes of {len(found)} subpartitions, there are {wanted}"
            known = self._sizes.setdefault(edge, [0] * len(found))
            self._sizes[edge] = [one + other for one, other in zip(known, found, strict=True)]

        return ""

    def consumed_edges(self) -> Iterator[JobEdge]:
        """The blocking edges that the region that runs has read."""
        for edge in self._topology.graph.edges:
            if not edge.kind.pipelined and edge.consumer in self.current.vertices:
                yield edge

    def _is_open(self, edge: JobEdge) -> bool:
        """Whether the bytes on this edge say how many consumers there are."""
        return self._topology.graph.vertex(edge.consumer).subpartitions is not None and not edge.is_broadcast

    def _slots_of(self, region: Region) -> int:
        if region.at_once:
            return slots_needed(self._topology.graph, region)
        vertices = [self._topology.graph.vertex(number) for number in region.vertices]
        return min(self._slots, sum(max(v.parallelism, v.subpartitions or 0) for v in vertices))

    def _choose(self, vertex: JobVertex) -> None:
        if vertex.subpartitions is None:
            return
        edges = self._topology.graph.inputs_of(vertex.id)
        known = [self._sizes[edge.id] for edge in edges if edge.id in self._sizes]
        # A service that counts no bytes leaves nothing to choose by: then there are as many consumers as slots.
        totals = [sum(column) for column in zip(*known, strict=True)] or [FEW_BYTES] * vertex.subpartitions
        shares = choose_shares(totals, self._slots, self._target, self._cut(vertex, edges))
        chosen = replace(vertex, parallelism=len(shares), shares=shares)
        self._topology.graph = self._topology.graph.with_vertex(chosen)

    def _cut(self, vertex: JobVertex, edges: Sequence[JobEdge]) -> Cut | None:
        """Where one side may be read in parts: its bytes and producers, if it has one edge only."""
        side = getattr(vertex.combine, "divisible_side", None)
        own = [edge for edge in edges if edge.side == side and edge.id in self._sizes]
        if side is None or len(own) != 1:
            return None
        producers = self._topology.graph.vertex(own[0].producer).parallelism
        return Cut(side, self._sizes[own[0].id], producers)
