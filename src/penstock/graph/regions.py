# SPDX-License-Identifier: Apache-2.0
"""Pipelined regions: what must run at the same time, in the order in which it can run. Pure.

Rules. Pipelined edges join vertices into a region; blocking edges order regions, a region starts when all it reads is
complete. The tasks of vertices without pipelined edges need not run at once: any number of slots will do, so those
that are ready at the same time are put into one region and share the slots. A plan in which a region would have to
wait for itself is refused.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.graph.job_graph import JobEdge, JobGraph
from penstock.shuffle.errors import PlanError


@dataclass(frozen=True, slots=True)
class Region:
    """Vertices by id, in the graph's order; `at_once` says whether all their subtasks must run together."""

    number: int
    vertices: tuple[int, ...]
    at_once: bool


def regions(graph: JobGraph) -> tuple[Region, ...]:
    """All regions, each behind those whose results it reads, else in order of their first vertex.

    Raises PlanError where there is no such order.
    """
    members = _members(graph)
    region_of = {vertex: first for first, vertices in members.items() for vertex in vertices}
    needs: dict[int, set[int]] = {first: set() for first in members}
    joined = {region_of[edge.producer] for edge in graph.edges if edge.kind.pipelined}
    for edge in graph.edges:
        if edge.kind.pipelined:
            continue
        producer, consumer = region_of[edge.producer], region_of[edge.consumer]
        if producer != consumer:
            needs[consumer].add(producer)
        elif graph.vertex(edge.consumer).combine is not None:
            # It may ask for this side first, and the other one's producers, which stand still meanwhile, feed both.
            raise PlanError(_self_wait_text(graph, edge))
    ordered: list[tuple[tuple[int, ...], bool]] = []
    done: set[int] = set()
    while len(done) < len(members):
        ready = [first for first in members if first not in done and needs[first] <= done]
        if not ready:
            stuck = next(first for first in members if first not in done)
            raise PlanError(_cycle_text(graph, members[stuck]))
        done.update(ready)
        free = sorted(vertex for first in ready if first not in joined for vertex in members[first])
        ordered += [(tuple(free), False)] if free else []
        ordered += [(members[first], True) for first in ready if first in joined]
    return tuple(Region(number, *region) for number, region in enumerate(ordered))


def slots_needed(graph: JobGraph, region: Region) -> int:
    """The fewest task slots with which the region can run."""
    return sum(graph.vertex(vertex).parallelism for vertex in region.vertices) if region.at_once else 1


def refuse_deadlocks(graph: JobGraph) -> None:
    """Raise PlanError where a vertex is reached from another over two different pipelined paths.

    The consumer may then wait for rows of one path while the producer waits for room on the other: a
    pipelined exchange holds a bounded number of rows, so neither goes on. The same can happen where two combining
    stages, each of which reads one side before the other, share their producers: that is refused too.
    """
    outputs: dict[int, list[JobEdge]] = {}
    for edge in graph.edges:
        if edge.kind.pipelined:
            outputs.setdefault(edge.producer, []).append(edge)
    for vertex in graph.vertices:
        _refuse_second_path(graph, vertex.id, outputs)
    _refuse_crossed_sides(graph)
    regions(graph)


def _members(graph: JobGraph) -> dict[int, tuple[int, ...]]:
    """The vertices of each region, by its first vertex."""
    leader = {vertex.id: vertex.id for vertex in graph.vertices}

    def root(vertex: int) -> int:
        while leader[vertex] != vertex:
            leader[vertex] = leader[leader[vertex]]
            vertex = leader[vertex]
        return vertex

    for edge in graph.edges:
        if edge.kind.pipelined:
            leader[root(edge.consumer)] = root(edge.producer)
    groups: dict[int, list[int]] = {}
    for vertex in graph.vertices:
        groups.setdefault(root(vertex.id), []).append(vertex.id)
    return {ids[0]: tuple(ids) for ids in groups.values()}


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


def _refuse_crossed_sides(graph: JobGraph) -> None:
    pipelined = [edge for edge in graph.edges if edge.kind.pipelined]
    combining = [vertex for vertex in graph.vertices if vertex.combine is not None]
    for vertex in combining:
        others = [edge for edge in pipelined if vertex.id not in (edge.producer, edge.consumer)]
        sides: dict[int, int] = {}
        for edge in pipelined:
            if edge.consumer != vertex.id:
                continue
            reached = _joined_to(edge.producer, others)
            side = sides.setdefault(min(reached), edge.side)
            rival = next((other for other in combining if other.id in reached), None)
            if side != edge.side and rival is not None:
                raise PlanError(_crossed_text(vertex.name, rival.name))


def _joined_to(start: int, edges: list[JobEdge]) -> set[int]:
    """Every vertex that these edges join to one, in either direction."""
    reached, waiting = {start}, [start]
    while waiting:
        current = waiting.pop()
        for edge in edges:
            if current in (edge.producer, edge.consumer):
                fresh = {edge.producer, edge.consumer} - reached
                reached |= fresh
                waiting.extend(fresh)
    return reached


def _crossed_text(one: str, other: str) -> str:
    return (
        f"{one!r} and {other!r} read the same stages over pipelined exchanges, one input before the other: each may "
        'wait for rows that the other one holds up. Set mode="blocking" on the exchanges of one of them'
    )


def _deadlock_text(graph: JobGraph, one: tuple[int, ...], other: tuple[int, ...]) -> str:
    first, second = (" -> ".join(graph.vertex(vertex).name for vertex in path) for path in (one, other))
    paths = f"both {first}" if first == second else f"as {first} and as {second}"
    return (
        f"{graph.vertex(one[-1]).name!r} would read the rows of {graph.vertex(one[0]).name!r} over two pipelined "
        f"paths, {paths}: such a job can deadlock, because a pipelined exchange holds a bounded number of rows. "
        'Set mode="blocking" on the exchanges of these paths (or spark.penstock.shuffle.mode for the whole job), or '
        "read the source twice with two separate sources"
    )


def _self_wait_text(graph: JobGraph, edge: JobEdge) -> str:
    producer, consumer = graph.vertex(edge.producer).name, graph.vertex(edge.consumer).name
    return (
        f"{consumer!r} reads {producer!r} over a blocking exchange, and other paths between them are pipelined: it "
        'would wait for a result that can only be complete when it has read those. Set mode="blocking" on them too'
    )


def _cycle_text(graph: JobGraph, vertices: tuple[int, ...]) -> str:
    names = ", ".join(repr(graph.vertex(vertex).name) for vertex in vertices)
    return (
        f"the stages {names} are joined by pipelined exchanges, but one of them needs a complete result that "
        'another one only gives later. Set mode="blocking" on the pipelined exchanges between them'
    )
