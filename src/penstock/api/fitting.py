# SPDX-License-Identifier: Apache-2.0
"""Fits a plan to what a job has: slots, network buffers, and exchanges that cannot deadlock.

Parallelism: what was asked for; else the slots that are left, shared out evenly over the vertices of a region that
ask for nothing, at least one each. Regions do not count on running side by side, so each has all slots. A source is
not split finer than its parts, and a vertex after a forward edge has its producer's parallelism.

Modes: `auto` is pipelined where everything fits. The exchanges in auto mode of a region that needs more slots than
there are get a kind that stores (of `local` hybrid), and then its stages need not run at once; so do those of a
region some stage of which would get less than half of the slots, for the work of a program is often all in one stage,
unless its sources hold next to nothing. If even so its writers need more network buffers than the environments have,
they become blocking, which need none. An exchange that was asked to be pipelined stays, and whether it fits is the
JobMaster's to say. An exchange that could deadlock is stored (`penstock.graph.deadlocks`). The graph's notes say what
was changed and why.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from penstock.api.planned_vertices import FIXED_KINDS, PlanBuilder, PlannedVertex
from penstock.graph import JobEdge, JobGraph, Region, regions, slots_needed, without_deadlocks
from penstock.shuffle import PartitionKind, load_service

_BUFFERS = 2
"""The buffers that a writer is guaranteed at the least, however many subpartitions it has."""


def fitted(graph: JobGraph, builder: PlanBuilder, slots: int, buffers: int | None) -> JobGraph:
    """The graph with kinds that cannot deadlock, with parallelism, its automatic edges fit to slots and buffers."""
    crowded: list[str] = []
    while True:
        mended, reasons = without_deadlocks(graph, builder.asked)
        groups = [region.vertices for region in regions(mended)]
        shares = _parallelism(builder.vertices, groups, slots)
        vertices = tuple(replace(vertex, parallelism=shares[vertex.id]) for vertex in mended.vertices)
        mended = replace(mended, vertices=vertices, notes=(*builder.notes, *crowded, *reasons))
        found = (
            _crowded(mended, builder.asked, slots)
            or _narrow(mended, builder, slots)
            or _thirsty(mended, builder.asked, slots, buffers)
        )
        if found is None:
            return mended
        edges, why = found
        for edge in edges:
            graph = graph.with_edge(edge)
            crowded.append(f"{mended.title_of(edge)}: {edge.kind.label}, because {why}")


_Change = tuple[list[JobEdge], str]
"""Edges with their new kinds, and why they get them."""


def _crowded(graph: JobGraph, asked: set[int], slots: int) -> _Change | None:
    """The automatic edges of a region that needs more slots than there are."""
    for region in regions(graph):
        loose = _stored(_joining(graph, region), asked)
        if slots_needed(graph, region) > slots and loose:
            return loose, _crowded_text(graph, region, slots)
    return None


def _narrow(graph: JobGraph, builder: PlanBuilder, slots: int) -> _Change | None:
    """The automatic edges of a region whose stages share the slots so finely that most cores may stand still.

    The work is often in one stage. At once, that stage has only its share of the slots; stage after stage, all.
    """
    for region in () if builder.reads_little else regions(graph):
        loose = _stored(_joining(graph, region), builder.asked)
        few = [vertex for number in region.vertices if builder.may_be_wider(vertex := graph.vertex(number), slots)]
        if loose and few:
            why = f"at once the stage {few[0].name!r} would have {few[0].parallelism} of {slots} slots"
            return loose, why
    return None


def _thirsty(graph: JobGraph, asked: set[int], slots: int, buffers: int | None) -> _Change | None:
    """The automatic edges of a region whose writers need more buffers than there are."""
    for region in regions(graph) if buffers is not None else ():
        written = [edge for edge in graph.edges if edge.producer in region.vertices and _takes_buffers(edge.kind)]
        writers = sum(min(graph.vertex(edge.producer).parallelism, slots) for edge in written)
        loose = [
            replace(edge, kind=kind)
            for edge in written
            if edge.id not in asked and (kind := load_service(edge.service).capabilities.unbuffered) is not None
        ]
        if buffers is not None and _BUFFERS * writers > buffers and loose:
            why = f"{writers} writers at once would need {_BUFFERS * writers} network buffers and there are {buffers}"
            return loose, why
    return None


def _stored(edges: list[JobEdge], asked: set[int]) -> list[JobEdge]:
    """Those of the edges in auto mode whose service can store them, stored."""
    return [replace(edge, kind=edge.stored) for edge in edges if edge.id not in asked and edge.stored is not None]


def _takes_buffers(kind: PartitionKind) -> bool:
    return kind.runs_together or kind.is_hybrid


def _joining(graph: JobGraph, region: Region) -> list[JobEdge]:
    """The edges because of which a region runs at once."""
    return [edge for edge in graph.edges if edge.kind.runs_together and edge.producer in region.vertices]


def _crowded_text(graph: JobGraph, region: Region, slots: int) -> str:
    everything = len(region.vertices) == len(graph.vertices)
    names = ", ".join(repr(graph.vertex(number).name) for number in region.vertices)
    stages = "all stages" if everything else f"the stages {names}"
    return f"{stages} at once would need {slots_needed(graph, region)} slots and there are {slots}"


def with_open_parallelism(graph: JobGraph, vertices: list[PlannedVertex], subpartitions: int) -> JobGraph:
    """Vertices whose parallelism is chosen from the bytes they will read: none was asked for, all inputs wait."""
    bound = {number for region in regions(graph) if region.at_once for number in region.vertices}
    for edge in graph.edges:
        # A reader of a hybrid exchange may start before there are bytes to choose by.
        if edge.is_pointwise or edge.exchange.kind in FIXED_KINDS or edge.kind.is_hybrid:
            bound.add(edge.consumer)
        if edge.exchange.kind == "forward":
            bound.add(edge.producer)
    for vertex in graph.vertices:
        spread = [edge for edge in graph.inputs_of(vertex.id) if not edge.is_broadcast]
        if spread and vertex.id not in bound and vertices[vertex.id].asked is None:
            graph = graph.with_vertex(replace(vertex, subpartitions=subpartitions))
    return graph


def _parallelism(vertices: list[PlannedVertex], groups: list[tuple[int, ...]], slots: int) -> dict[int, int]:
    """Each vertex with its leader's share, which is the least of what the regions with that leader can give."""
    least: dict[int, int] = {}
    for group in groups:
        for leader, share in shares_of(vertices, group, slots).items():
            least[leader] = min(share, least.get(leader, share))
    return {vertex.id: least[vertex.leader] for vertex in vertices}


def shares_of(
    vertices: list[PlannedVertex], group: tuple[int, ...], slots: int, most: int | None = None
) -> dict[int, int]:
    """Leaders with what they asked for; the others share what is left, those with a limit below it first.

    A leader that did not ask gets `most` at most.
    """
    weight: Counter[int] = Counter()
    for number in group:
        resources = vertices[number].resources
        weight[vertices[number].leader] += 1 if resources is None else resources.slots
    fixed = {leader: asked for leader in weight if (asked := vertices[leader].asked) is not None}
    share = 1
    while open_leaders := [leader for leader in weight if leader not in fixed]:
        left = slots - sum(count * weight[leader] for leader, count in fixed.items())
        share = max(1, left // sum(weight[leader] for leader in open_leaders))
        limits = {leader: _least(vertices[leader].limit, most) for leader in open_leaders}
        small = {leader: limit for leader, limit in limits.items() if limit is not None and limit < share}
        if not small:
            fixed.update(dict.fromkeys(open_leaders, share))
        fixed.update(small)
    return fixed


def _least(*limits: int | None) -> int | None:
    """The least of those that there are."""
    return min((limit for limit in limits if limit is not None), default=None)
