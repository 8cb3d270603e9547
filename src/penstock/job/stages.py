# SPDX-License-Identifier: Apache-2.0
"""The regions of one job: which may start, and how many consumers a vertex gets that leaves their number open. Pure.

A region may start when all it reads is there: over a blocking edge, when every producer has ended well (and, where it
reads a DataFrame, that DataFrame's Spark job too); over a hybrid edge, when every producer runs or has ended, so that
no consumer holds a slot that a producer still needs. Where a vertex leaves its parallelism open, it is chosen here
when its region may start, from the bytes that its producers wrote; nothing is kept per producer and consumer. A plan
that comes with the choice made, because it was run before, keeps it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex
from penstock.graph.regions import Region, regions, slots_needed
from penstock.graph.shares import FEW_BYTES, Cut, choose_shares
from penstock.job.job_tasks import JobTasks, Place
from penstock.job.parts import Parts
from penstock.job.topology import JobTopology


class Stages:
    """The regions of one job and what is known of the bytes between them."""

    def __init__(self, topology: JobTopology, slots: int, target_bytes: int) -> None:
        self.regions = regions(topology.graph)
        self.slots = slots
        self._topology = topology
        self._target = target_bytes
        self._region_of = {vertex: region for region in self.regions for vertex in region.vertices}
        self._reads = {region.number: _edges_into(topology.graph, region) for region in self.regions}
        self._behind = self._vertices_behind()
        self._sizes: dict[int, list[int]] = {}
        self._counted: set[tuple[int, int]] = set()
        self._chosen: set[int] = set()

    @property
    def slots_needed(self) -> int:
        """The fewest slots with which the job can run: those of its largest region."""
        return max(slots_needed(self._topology.graph, region) for region in self.regions)

    def region_of(self, vertex: int) -> Region:
        """The region a vertex is in."""
        return self._region_of[vertex]

    def is_complete(self, region: Region, tasks: JobTasks) -> bool:
        """Whether every subtask of the region ended well."""
        return all(tasks.is_complete(vertex) for vertex in region.vertices)

    def ready(self, tasks: JobTasks, parts: Parts) -> Iterator[tuple[Region, bool]]:
        """The regions that may start or go on, in order; their subtasks are there from now on.

        With True those that may start only when what comes before them runs.
        """
        for region in self.regions:
            if self.is_complete(region, tasks):
                continue
            may_start = self.may_start(region, tasks, parts)
            if may_start or self._may_start_soon(region, tasks, parts):
                for number in region.vertices:
                    self._choose(self._topology.graph.vertex(number))
                    tasks.add(self._topology.graph.vertex(number))
                yield region, not may_start

    def add_sizes(self, producer: tuple[int, int], sizes: Mapping[int, Sequence[int]]) -> str:
        """A producer has finished: the bytes of its subpartitions by edge. What is wrong with them, or nothing.

        A producer that ran again is not counted twice.
        """
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

    def read_by(self, region: Region) -> list[JobEdge]:
        """The edges over which the region reads stored partitions of other regions."""
        return self._reads[region.number]

    def is_awaited(self, region: Region, tasks: JobTasks, parts: Parts) -> bool:
        """Whether anything holds a slot while it waits for the region: behind it, or in it for the rest of it."""
        if region.at_once and any(tasks.is_taken(v) or parts.is_launched(v) for v in region.vertices):
            return True
        return any(tasks.is_running(vertex) for vertex in self._behind[region.number])

    def waiting_behind(self, region: Region, tasks: JobTasks, withdrawn: Collection[Place]) -> list[Place]:
        """What runs behind the region and reads, over a hybrid edge, what does not run, or is `withdrawn` now."""
        stopped = {vertex for vertex, _ in withdrawn}
        found: list[Place] = []
        for vertex in self._behind[region.number]:
            producers = [edge.producer for edge in self._topology.graph.inputs_of(vertex) if edge.kind.is_hybrid]
            if any(producer in stopped or tasks.undeployed(producer) for producer in producers):
                found += [subtask.place for subtask in tasks.of(vertex) if subtask.is_live and subtask.deployed]
        return found

    def _vertices_behind(self) -> dict[int, list[int]]:
        """For each region the vertices of other regions that read from it, directly or through others."""
        behind: dict[int, list[int]] = {}
        for region in reversed(self.regions):
            found: dict[int, None] = {}
            for later in self.regions[region.number + 1 :]:
                if any(edge.producer in region.vertices for edge in self._reads[later.number]):
                    found.update(dict.fromkeys((*later.vertices, *behind[later.number])))
            behind[region.number] = list(found)
        return behind

    def may_start(self, region: Region, tasks: JobTasks, parts: Parts) -> bool:
        """Whether all that the region reads is there, or comes while it is read."""
        return all(self._is_readable(edge, tasks, parts) for edge in self.read_by(region))

    def _may_start_soon(self, region: Region, tasks: JobTasks, parts: Parts) -> bool:
        """Whether all it waits for are hybrid producers that have slots, or get theirs first.

        Not behind bound producers: a DataFrame's Spark job may run long before its tasks come.
        """
        if region.at_once or any(self._topology.graph.vertex(number).is_bound for number in region.vertices):
            return False
        return all(
            self._is_readable(edge, tasks, parts)
            or (edge.kind.is_hybrid and self._is_unbound(edge) and tasks.is_there(edge.producer))
            for edge in self.read_by(region)
        )

    def _is_unbound(self, edge: JobEdge) -> bool:
        return not self._topology.graph.vertex(edge.producer).is_bound

    def _is_readable(self, edge: JobEdge, tasks: JobTasks, parts: Parts) -> bool:
        if edge.kind.is_hybrid:
            return tasks.is_deployed(edge.producer)
        is_frame = self._topology.graph.vertex(edge.producer).is_bound
        return tasks.is_complete(edge.producer) and (not is_frame or parts.is_confirmed(edge.producer))

    def _is_open(self, edge: JobEdge) -> bool:
        """Whether the bytes on this edge say how many consumers there are."""
        return self._topology.graph.vertex(edge.consumer).subpartitions is not None and not edge.is_broadcast

    def _choose(self, vertex: JobVertex) -> None:
        if vertex.subpartitions is None or vertex.shares or vertex.id in self._chosen:
            return
        self._chosen.add(vertex.id)
        edges = self._topology.graph.inputs_of(vertex.id)
        known = [self._sizes[edge.id] for edge in edges if edge.id in self._sizes]
        # A service that counts no bytes leaves nothing to choose by: then there are as many consumers as slots.
        totals = [sum(column) for column in zip(*known, strict=True)] or [FEW_BYTES] * vertex.subpartitions
        shares = choose_shares(totals, self.slots, self._target, self._cut(vertex, edges))
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


def _edges_into(graph: JobGraph, region: Region) -> list[JobEdge]:
    inside = region.vertices
    return [edge for edge in graph.edges if edge.consumer in inside and edge.producer not in inside]
