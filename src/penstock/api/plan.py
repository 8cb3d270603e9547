# SPDX-License-Identifier: Apache-2.0
"""Streams to job graphs: chains, edges, parallelism.

Chaining: an operator joins the vertex of the step it reads unless that step has other readers in this job; then it
gets a vertex of its own behind a forward edge, so that what is shared runs once. An exchange starts a vertex.

Parallelism: what was asked for; else the slots that are left, shared out evenly over the vertices that ask for
nothing, at least one each (all vertices of a job run at the same time, also those that no edge joins). A source is
not split finer than its parts, and a vertex behind a forward edge has its producer's parallelism. Whether it all fits
is the JobMaster's to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.api.lineage import ExchangeStep, OperatorStep, SourceStep, Step, in_order, parents_of
from penstock.graph import JobEdge, JobGraph, JobVertex, Operator, refuse_deadlocks
from penstock.shuffle import Settings, mode_to_kind
from penstock.shuffle.errors import PlanError
from penstock.task.exchanges import exchange

_NAME_LENGTH = 60


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
    shares = _parallelism(builder.vertices, slots)
    graph = replace(
        graph,
        vertices=tuple(replace(vertex, parallelism=shares[vertex.id]) for vertex in graph.vertices),
    )
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
        vertex = self._new([step.name], step.schema, asked=step.choice.partitions)
        for parent in step.parents:
            self._connect(self._vertex_of[id(parent)], vertex, step)
        return vertex

    def _add_operator(self, step: OperatorStep) -> int:
        number = self._vertex_of[id(step.parent)]
        if self._readers[id(step.parent)] > 1:
            producer = self.vertices[number]
            number = self._new([], step.parent.schema, leader=producer.leader)
            self._connect(producer.id, number, None)
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

    def _connect(self, producer: int, consumer: int, step: ExchangeStep | None) -> None:
        shuffle = self._settings.shuffle
        mode = (step.choice.mode if step is not None else None) or shuffle.mode
        service = (step.choice.service if step is not None else None) or shuffle.service
        spec = exchange("forward") if step is None else step.spec
        schema = self.vertices[producer].schema
        self.edges.append(JobEdge(len(self.edges), producer, consumer, spec, schema, mode_to_kind(mode), service))


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
    )


def _parallelism(vertices: list[_Vertex], slots: int) -> dict[int, int]:
    """Leaders with what they asked for; the others share what is left, those with a limit below it first."""
    weight = Counter(vertex.leader for vertex in vertices)
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
    return {vertex.id: fixed[vertex.leader] for vertex in vertices}
