# SPDX-License-Identifier: Apache-2.0
"""Streams to job graphs: chains, edges, parallelism.

Chaining: an operator joins the vertex of the step it reads unless that step has other readers in this job; then it
gets a vertex of its own behind a forward edge, so that what is shared runs once. An exchange starts a vertex, and so
does a combination of streams, whose exchanges end in its one vertex, each on a side of its own.

Parallelism: what was asked for; else the slots that are left, shared out evenly over the vertices that run at the
same time and ask for nothing, at least one each. Vertices that a blocking edge keeps apart do not run at the same
time; where no edge is blocking all do, also those that no edge joins. A source is not split finer than its parts,
and a vertex behind a forward edge has its producer's parallelism. Whether it all fits is the JobMaster's to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.api.lineage import (
    CombineStep,
    ExchangeChoice,
    OperatorStep,
    SourceStep,
    Step,
    in_order,
    parents_of,
)
from penstock.graph import Combine, JobEdge, JobGraph, JobVertex, Operator, refuse_deadlocks, regions
from penstock.shuffle import Settings, mode_to_kind
from penstock.shuffle.errors import PlanError
from penstock.task.exchanges import PartitionerSpec, exchange

PLANNING_SLOTS = 8
"""Slots that are assumed where a plan is only looked at, and there may be no session to ask."""
_NAME_LENGTH = 60
_FIXED = ("to_one", "custom", "range")
"""Exchanges whose subpartitions mean something, so that each has a consumer of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A job graph, and the DataFrames that its vertices read, by vertex."""

    graph: JobGraph
    dataframes: dict[int, object]


@dataclass(slots=True)
class _Vertex:
    """A vertex in the making. `leader` is the vertex whose parallelism it has, by forward edges."""

    id: int
    leader: int
    names: list[str]
    schema: pa.Schema
    source: SourceStep | None = None
    operators: list[Operator] = field(default_factory=list)
    asked: int | None = None
    limit: int | None = None
    combine: Combine | None = None


def plan_job(results: Sequence[Step], settings: Settings, slots: int, *, keep: bool = True) -> Plan:
    """The job that makes these results; `keep` says whether its output is the job's result or dropped.

    Raises PlanError for what cannot run, by the names of the stages.
    """
    builder = _Builder(settings)
    vertices = builder.build(tuple(results))
    names = [_shown(vertex) for vertex in builder.vertices]
    graph = JobGraph(
        names[vertices[-1]][-_NAME_LENGTH:],
        tuple(_job_vertex(vertex, name, 1) for vertex, name in zip(builder.vertices, names, strict=True)),
        tuple(builder.edges),
        tuple(vertices) if keep else (),
    )
    refuse_deadlocks(graph)
    shares = _parallelism(builder.vertices, _side_by_side(graph), slots)
    graph = replace(
        graph,
        vertices=tuple(replace(vertex, parallelism=shares[vertex.id]) for vertex in graph.vertices),
    )
    graph = _with_open_parallelism(graph, builder.vertices, settings.blocking.max_subpartitions)
    dataframes = {
        vertex.id: vertex.source.dataframe
        for vertex in builder.vertices
        if vertex.source is not None and vertex.source.dataframe is not None
    }
    return Plan(graph, dataframes)


class _Builder:
    """Turns steps into vertices and edges."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._readers: Counter[int] = Counter()
        self._vertex_of: dict[int, int] = {}
        self.vertices: list[_Vertex] = []
        self.edges: list[JobEdge] = []

    def build(self, results: tuple[Step, ...]) -> list[int]:
        """Add all steps; gives the vertices of the results."""
        steps = list(in_order(results))
        self._readers = Counter(id(parent) for step in steps for parent in parents_of(step))
        self._readers.update(id(step) for step in results)
        for step in steps:
            self._vertex_of[id(step)] = self._add(step)
        vertices = [self._vertex_of[id(step)] for step in results]
        if len(set(vertices)) != len(vertices):
            raise PlanError("a stream cannot be united with itself: read its source twice, or write it out first")
        return vertices

    def _add(self, step: Step) -> int:
        if isinstance(step, SourceStep):
            return self._new([step.name], step.schema, source=step, limit=step.limit)
        if isinstance(step, OperatorStep):
            return self._add_operator(step)
        if isinstance(step, CombineStep):
            return self._add_combine(step)
        vertex = self._new([step.name], step.schema, asked=step.choice.partitions)
        for parent in step.parents:
            edge = self._connect(self._vertex_of[id(parent)], vertex, step.spec, step.choice)
            if step.summary is not None:
                self.edges[edge] = replace(self.edges[edge], schema=step.schema, summary=step.summary)
        return vertex

    def _add_combine(self, step: CombineStep) -> int:
        vertex = self._new([step.combine.name.partition(":")[0]], step.schema, asked=step.partitions)
        self.vertices[vertex].combine = step.combine
        for side, read in enumerate(step.inputs):
            for parent in read.parents:
                self._connect(self._vertex_of[id(parent)], vertex, read.spec, read.choice, side)
        return vertex

    def _add_operator(self, step: OperatorStep) -> int:
        number = self._vertex_of[id(step.parent)]
        if self._readers[id(step.parent)] > 1:
            producer = self.vertices[number]
            number = self._new([], step.parent.schema, leader=producer.leader)
            self._connect(producer.id, number, exchange("forward"), ExchangeChoice())
        vertex = self.vertices[number]
        vertex.operators.append(step.operator)
        vertex.names.append(step.operator.name.partition(":")[0])
        vertex.schema = step.schema
        return number

    def _new(
        self,
        names: list[str],
        schema: pa.Schema,
        *,
        leader: int | None = None,
        source: SourceStep | None = None,
        asked: int | None = None,
        limit: int | None = None,
    ) -> int:
        number = len(self.vertices)
        own = number if leader is None else leader
        self.vertices.append(_Vertex(number, own, names, schema, source, [], asked, limit))
        return number

    def _connect(
        self, producer: int, consumer: int, spec: PartitionerSpec, choice: ExchangeChoice, side: int = 0
    ) -> int:
        kind = mode_to_kind(choice.mode or self._settings.shuffle.mode)
        service = choice.service or self._settings.shuffle.service
        schema = self.vertices[producer].schema
        number = len(self.edges)
        self.edges.append(JobEdge(number, producer, consumer, spec, schema, kind, service, side))
        return number


def _shown(vertex: _Vertex) -> str:
    return " + ".join(vertex.names)


def _job_vertex(vertex: _Vertex, name: str, parallelism: int) -> JobVertex:
    source = vertex.source
    return JobVertex(
        vertex.id,
        name,
        parallelism,
        vertex.schema,
        source=None if source is None else source.source,
        reads_dataframe=source is not None and source.dataframe is not None,
        operators=tuple(vertex.operators),
        combine=vertex.combine,
    )


def _with_open_parallelism(graph: JobGraph, vertices: list[_Vertex], subpartitions: int) -> JobGraph:
    """Vertices whose parallelism is chosen from the bytes they will read: nobody asked for one, all inputs wait."""
    bound = {number for region in regions(graph) if region.at_once for number in region.vertices}
    bound |= {edge.consumer for edge in graph.edges if edge.is_pointwise or edge.exchange.kind in _FIXED}
    bound |= {edge.producer for edge in graph.edges if edge.exchange.kind == "forward"}
    for vertex in graph.vertices:
        spread = [edge for edge in graph.inputs_of(vertex.id) if not edge.is_broadcast]
        if spread and vertex.id not in bound and vertices[vertex.id].asked is None:
            graph = graph.with_vertex(replace(vertex, subpartitions=subpartitions))
    return graph


def _side_by_side(graph: JobGraph) -> list[tuple[int, ...]]:
    """The vertices that run at the same time: each region, or all where no edge is blocking."""
    if all(edge.kind.pipelined for edge in graph.edges):
        return [tuple(vertex.id for vertex in graph.vertices)]
    return [region.vertices for region in regions(graph)]


def _parallelism(vertices: list[_Vertex], groups: list[tuple[int, ...]], slots: int) -> dict[int, int]:
    """Each vertex with its leader's share, which is the least of what the groups with that leader can give."""
    least: dict[int, int] = {}
    for group in groups:
        for leader, share in _shares(vertices, group, slots).items():
            least[leader] = min(share, least.get(leader, share))
    return {vertex.id: least[vertex.leader] for vertex in vertices}


def _shares(vertices: list[_Vertex], group: tuple[int, ...], slots: int) -> dict[int, int]:
    """Leaders with what they asked for; the others share what is left, those with a limit below it first."""
    weight = Counter(vertices[number].leader for number in group)
    fixed = {leader: asked for leader in weight if (asked := vertices[leader].asked) is not None}
    share = 1
    while open_leaders := [leader for leader in weight if leader not in fixed]:
        left = slots - sum(count * weight[leader] for leader, count in fixed.items())
        share = max(1, left // sum(weight[leader] for leader in open_leaders))
        small = {
            leader: limit
            for leader in open_leaders
            if (limit := vertices[leader].limit) is not None and limit < share
        }
        if not small:
            fixed.update(dict.fromkeys(open_leaders, share))
        fixed.update(small)
    return fixed
