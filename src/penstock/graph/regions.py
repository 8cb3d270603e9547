# SPDX-License-Identifier: Apache-2.0
"""Regions: what must run at the same time, in the order in which it can run. Pure.

Rules. Edges whose producer waits for its readers (`kind.runs_together`) join vertices into a region, which runs all
at once. All other edges order regions: a consumer region comes after the regions of its producers. After a blocking
edge it waits for complete partitions; after a hybrid one it may start early, which is the scheduler's business, and
the order is the same. A vertex that no such edge joins is a region of its own and runs on any number of slots.

A streaming query is one region, whatever its edges.

An edge of another kind inside a region orders nothing: its producer and its consumer run together anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from penstock.errors import PlanError
from penstock.graph.job_graph import JobGraph


@dataclass(frozen=True, slots=True)
class Region:
    """Vertices by id, in the graph's order; `at_once` says whether all their subtasks must run together."""

    number: int
    vertices: tuple[int, ...]
    at_once: bool


def regions(graph: JobGraph) -> tuple[Region, ...]:
    """All regions, each after those whose results it reads, else in order of their first vertex.

    Raises PlanError where there is no such order.
    """
    if graph.streaming is not None:
        return (Region(0, tuple(vertex.id for vertex in graph.vertices), at_once=True),)
    members = _members(graph)
    needs = _needs(graph, members)
    order = _sorted(needs)
    if len(order) < len(members):
        raise PlanError(_cycle_text(graph, stuck_vertices(graph)))
    joined = {edge.producer for edge in graph.edges if edge.kind.runs_together}
    return tuple(
        Region(number, members[first], any(vertex in joined for vertex in members[first]))
        for number, first in enumerate(order)
    )


def slots_needed(graph: JobGraph, region: Region) -> int:
    """The fewest task slots with which the region can run."""
    return sum(graph.vertex(vertex).slots for vertex in region.vertices) if region.at_once else 1


def stuck_vertices(graph: JobGraph) -> tuple[int, ...]:
    """The vertices of the regions that wait for each other; none where all have an order."""
    members = _members(graph)
    needs = _needs(graph, members)
    left = set(members) - set(_sorted(needs))
    # A vertex that is only downstream of a circle is not part of it.
    backward = {first: {other for other in left if first in needs[other]} for first in left}
    left -= set(_sorted(backward))
    return tuple(vertex.id for vertex in graph.vertices if any(vertex.id in members[first] for first in left))


def _members(graph: JobGraph) -> dict[int, tuple[int, ...]]:
    """The vertices of each region, by its first vertex."""
    leader = {vertex.id: vertex.id for vertex in graph.vertices}

    def root(vertex: int) -> int:
        while leader[vertex] != vertex:
            leader[vertex] = leader[leader[vertex]]
            vertex = leader[vertex]
        return vertex

    for edge in graph.edges:
        if edge.kind.runs_together:
            leader[root(edge.consumer)] = root(edge.producer)
    groups: dict[int, list[int]] = {}
    for vertex in graph.vertices:
        groups.setdefault(root(vertex.id), []).append(vertex.id)
    return {ids[0]: tuple(ids) for ids in groups.values()}


def _needs(graph: JobGraph, members: dict[int, tuple[int, ...]]) -> dict[int, set[int]]:
    """For each region the others that come before it."""
    region_of = {vertex: first for first, vertices in members.items() for vertex in vertices}
    needs: dict[int, set[int]] = {first: set() for first in members}
    for edge in graph.edges:
        producer, consumer = region_of[edge.producer], region_of[edge.consumer]
        if producer != consumer:
            needs[consumer].add(producer)
    return needs


def _sorted(needs: dict[int, set[int]]) -> list[int]:
    """Each after all that it needs, the lowest number first; one that waits for itself is left out."""
    missing = {item: len(wanted) for item, wanted in needs.items()}
    behind: dict[int, list[int]] = {item: [] for item in needs}
    for item, wanted in needs.items():
        for other in wanted:
            behind[other].append(item)
    ready = [item for item, count in missing.items() if not count]
    heapify(ready)
    order = []
    while ready:
        item = heappop(ready)
        order.append(item)
        for other in behind[item]:
            missing[other] -= 1
            if not missing[other]:
                heappush(ready, other)
    return order


def _cycle_text(graph: JobGraph, vertices: tuple[int, ...]) -> str:
    names = ", ".join(repr(graph.vertex(vertex).name) for vertex in vertices)
    return (
        f"the stages {names} wait for each other: one of them needs a result that another one only gives later. "
        'Set mode="blocking" or mode="hybrid" on the pipelined exchanges between them'
    )
