# SPDX-License-Identifier: Apache-2.0
"""The regions of one job: which may start, and which running tasks wait for. Questions only.

A region may start when all it reads is there: over a blocking edge, when every producer has ended well (and, where it
reads a DataFrame, that DataFrame's Spark job too); over a hybrid edge, when every producer runs or has ended, so that
no consumer holds a slot that a producer still needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from penstock.graph.job_graph import JobEdge
from penstock.graph.regions import Region, regions, slots_needed
from penstock.job.core.execution.capacity import Capacity
from penstock.job.core.execution.progress import Roll
from penstock.job.core.execution.topology import JobTopology


class Stages:
    """The regions of one job, in an order in which they can run."""

    def __init__(self, topology: JobTopology, progress: Roll, capacity: Capacity) -> None:
        self.capacity = capacity
        self.regions = regions(topology.graph)
        self._topology = topology
        self._progress = progress
        self._region_of = {vertex: region for region in self.regions for vertex in region.vertices}
        self._reads = {region.number: self._edges_into(region) for region in self.regions}
        self._behind = self._vertices_behind()

    @property
    def name(self) -> str:
        """The job's, for people."""
        return self._topology.graph.name

    @property
    def slots_needed(self) -> int:
        """The fewest slots with which the job can run: those of its largest region."""
        return max(slots_needed(self._topology.graph, region) for region in self.regions)

    def region_of(self, vertex: int) -> Region:
        """The region a vertex is in."""
        return self._region_of[vertex]

    def read_by(self, region: Region) -> list[JobEdge]:
        """The edges over which the region reads stored partitions of other regions."""
        return self._reads[region.number]

    def behind(self, region: Region) -> list[int]:
        """The vertices of other regions that read from it, directly or through others."""
        return self._behind[region.number]

    def is_open(self, region: Region) -> bool:
        """Tell whether the region has been opened; it stays open."""
        return all(self._progress.is_open(vertex) for vertex in region.vertices)

    def is_complete(self, region: Region) -> bool:
        """Tell whether every subtask of the region ended well."""
        return all(self._progress.is_complete(vertex) for vertex in region.vertices)

    def is_awaited(self, region: Region) -> bool:
        """Tell whether a task outside waits for the region in its slot, or one in it for the rest of it."""
        progress = self._progress
        if region.at_once and any(progress.is_taken(v) or progress.is_running(v) for v in region.vertices):
            return True
        return any(self._progress.is_running(vertex) for vertex in self.behind(region))

    def may_start(self, region: Region) -> bool:
        """Tell whether all partitions that the region reads are there, or come while they are read."""
        return all(self._is_readable(edge) for edge in self.read_by(region))

    def _may_start_soon(self, region: Region, coming: Collection[int]) -> bool:
        """Tell whether all it waits for are hybrid producers that have slots, or get theirs first: `coming` regions.

        False after bound producers: a DataFrame's Spark job may run long before its tasks come.
        """
        if region.at_once or any(self._topology.graph.vertex(number).is_bound for number in region.vertices):
            return False
        return all(self._is_readable(edge) or self._comes_soon(edge, coming) for edge in self.read_by(region))

    def startable(self) -> Iterator[tuple[Region, bool]]:
        """The regions that may start or go on, in order; with True those that may only when others run."""
        coming: set[int] = set()
        for region in self.regions:
            if not self.is_complete(region):
                may_start = self.may_start(region)
                if may_start or self._may_start_soon(region, coming):
                    coming.add(region.number)
                    yield region, not may_start

    def _is_readable(self, edge: JobEdge) -> bool:
        if edge.kind.is_hybrid:
            return self._progress.is_deployed(edge.producer)
        is_dataframe = self._topology.graph.vertex(edge.producer).is_bound
        return self._progress.is_complete(edge.producer) and (
            not is_dataframe or self._progress.is_confirmed(edge.producer)
        )

    def _comes_soon(self, edge: JobEdge, coming: Collection[int]) -> bool:
        is_dataframe = self._topology.graph.vertex(edge.producer).is_bound
        is_coming = self._progress.is_open(edge.producer) and self.region_of(edge.producer).number in coming
        return edge.kind.is_hybrid and not is_dataframe and is_coming

    def _edges_into(self, region: Region) -> list[JobEdge]:
        edges, inside = self._topology.graph.edges, region.vertices
        return [edge for edge in edges if edge.consumer in inside and edge.producer not in inside]

    def _vertices_behind(self) -> dict[int, list[int]]:
        behind: dict[int, list[int]] = {}
        for region in reversed(self.regions):
            found: dict[int, None] = {}
            for later in self.regions[region.number + 1 :]:
                if any(edge.producer in region.vertices for edge in self._reads[later.number]):
                    found.update(dict.fromkeys((*later.vertices, *behind[later.number])))
            behind[region.number] = list(found)
        return behind
