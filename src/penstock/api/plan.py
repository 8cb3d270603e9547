# SPDX-License-Identifier: Apache-2.0
"""Streams to job graphs: chains, edges, parallelism.

Chaining: an operator joins the vertex of the step it reads unless that step has other readers in this job; then it
gets a vertex of its own after a forward edge, so that a shared step runs once. An exchange starts a vertex, and so
does a combination of streams, whose exchanges end in its one vertex, each on a side of its own.

Parallelism: what was asked for; else the slots that are left, shared out evenly over the vertices of a region that
ask for nothing, at least one each. Regions do not count on running side by side, so each has all slots. A source is
not split finer than its parts, and a vertex after a forward edge has its producer's parallelism.

Sources read no more than is needed of them (`penstock.api.pushdown`).

Modes: `auto` is pipelined where everything fits. The exchanges in auto mode of a region that needs more slots than
there are get a kind that stores (of `local` hybrid), and then its stages need not run at once; so do those of a
region some stage of which would get less than half of the slots, for the work of a program is often all in one stage,
unless its sources hold next to nothing. If even so its writers need more network buffers than the environments have,
they become blocking, which need none. An exchange that was asked to be pipelined stays, and whether it fits is the
JobMaster's to say. An exchange that could deadlock is stored (`penstock.graph.deadlocks`). The graph's notes say what
was changed and why.

Services: every kind is one that the exchange's service carries (`penstock.shuffle.capabilities`). The result is kept
by the service of the session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.api.lineage import (
    CombineStep,
    ExchangeChoice,
    OperatorStep,
    ResourcesStep,
    SourceStep,
    Step,
    in_order,
    parents_of,
)
from penstock.api.pushdown import pushed_down
from penstock.errors import PlanError, SettingError
from penstock.graph import (
    Combine,
    JobEdge,
    JobGraph,
    JobVertex,
    KeptBy,
    Operator,
    Region,
    Resources,
    regions,
    slots_needed,
    without_deadlocks,
)
from penstock.graph.shares import FEW_BYTES
from penstock.graph.streaming import StreamingOptions
from penstock.operators.exchanges import PartitionerSpec, exchange
from penstock.settings import Settings
from penstock.shuffle import PartitionKind, load_service
from penstock.shuffle.kinds import AUTO

PLANNING_SLOTS = 8
"""Slots that are assumed where a plan is only looked at, and there may be no session to ask."""
_BUFFERS = 2
"""The buffers that a writer is guaranteed at the least, however many subpartitions it has."""
_NAME_LENGTH = 80
_FIXED = ("to_one", "custom", "range")
"""Exchanges whose subpartitions mean something, so that each has a consumer of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A job graph, and the DataFrames that its vertices read, by vertex."""

    graph: JobGraph
    dataframes: dict[int, object]

    @property
    def parts(self) -> tuple[JobGraph, dict[int, Any]]:
        """Both, as whoever runs it takes them."""
        return self.graph, dict(self.dataframes)


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
    resources: Resources | None = None
    uid: str = ""


def plan_job(
    results: Sequence[Step],
    settings: Settings,
    slots: int,
    *,
    keep: bool = True,
    persist: bool = False,
    buffers: int | None = None,
) -> Plan:
    """The job that makes these results; its output is the job's result if it is to `keep` it, else dropped.

    With `persist` it stays until it is released by name. `buffers` are the network buffers of all environments
    together; None where nobody knows. Raises PlanError for what cannot run, by the names of the stages, and
    SettingError for what a shuffle service can't carry.
    """
    builder = _Builder(settings)
    vertices = builder.build(pushed_down(tuple(results)))
    names = [_shown(vertex) for vertex in builder.vertices]
    graph = JobGraph(
        _shortened(names[vertices[-1]]),
        tuple(_job_vertex(vertex, name, 1) for vertex, name in zip(builder.vertices, names, strict=True)),
        tuple(builder.edges),
        tuple(vertices) if keep else (),
        kept_by=_keeper(settings.shuffle.service, persist=persist) if keep else None,
    )
    graph = _fitted(graph, builder, slots, buffers)
    graph = _with_open_parallelism(graph, builder.vertices, settings.blocking.max_subpartitions)
    dataframes = {
        vertex.id: vertex.source.dataframe
        for vertex in builder.vertices
        if vertex.source is not None and vertex.source.dataframe is not None
    }
    return Plan(graph, dataframes)


def plan_query(results: Sequence[Step], settings: Settings, slots: int, options: StreamingOptions) -> JobGraph:
    """The job of a streaming query, whose tasks run all at once over pipelined exchanges.

    An exchange has another kind only where the stream asked for it, which is the caller's to refuse.
    """
    builder = _Builder(replace(settings, shuffle=replace(settings.shuffle, mode=AUTO)), is_query=True)
    builder.build(tuple(results))
    names = [_shown(vertex) for vertex in builder.vertices]
    shares = _shares(builder.vertices, tuple(vertex.id for vertex in builder.vertices), slots)
    vertices = tuple(
        _job_vertex(vertex, name, shares[vertex.leader]) for vertex, name in zip(builder.vertices, names, strict=True)
    )
    return JobGraph(options.name, vertices, tuple(builder.edges), streaming=options)


class _Builder:
    """Turns steps into vertices and edges."""

    def __init__(self, settings: Settings, *, is_query: bool = False) -> None:
        self._settings = settings
        self._is_query = is_query
        self._readers: Counter[int] = Counter()
        self._vertex_of: dict[int, int] = {}
        self.vertices: list[_Vertex] = []
        self.edges: list[JobEdge] = []
        self.asked: set[int] = set()
        """The edges whose mode was said, by the stream or by the settings."""
        self.notes: dict[str, None] = {}
        """Sentences on services that lack what `auto` is first."""

    def build(self, results: tuple[Step, ...]) -> list[int]:
        """Add all steps; gives the vertices of the results."""
        steps = list(in_order(results))
        self._readers = Counter(id(parent) for step in steps for parent in parents_of(step))
        self._readers.update(id(step) for step in results)
        for step in steps:
            self._vertex_of[id(step)] = self._named(step, self._add(step))
        vertices = [self._vertex_of[id(step)] for step in results]
        if len(set(vertices)) != len(vertices):
            raise PlanError("a stream cannot be united with itself: read its source twice, or write it out first")
        return vertices

    @property
    def reads_little(self) -> bool:
        """True if all sources together are known to have so little that one more task costs more than it gives."""
        sizes = [vertex.source.bytes for vertex in self.vertices if vertex.source is not None]
        known = [size for size in sizes if size is not None]
        return len(known) == len(sizes) and sum(known) < FEW_BYTES

    def may_be_wider(self, vertex: JobVertex, slots: int) -> bool:
        """Tell whether nobody set this stage's number of tasks, and it has less than half of those it could have."""
        made = self.vertices[vertex.id]
        leader = self.vertices[made.leader]
        most = slots if leader.limit is None else min(slots, leader.limit)
        return leader.asked is None and vertex.parallelism < most // 2

    def _named(self, step: Step, number: int) -> int:
        """The vertex of a step, which is called in checkpoints what the step says."""
        uid = getattr(step, "uid", "")
        if uid:
            vertex = self.vertices[number]
            if vertex.uid not in ("", uid):
                raise PlanError(
                    f"{_shown(vertex)!r} is one stage and cannot be called {vertex.uid!r} and {uid!r}: "
                    "leave one uid() out"
                )
            vertex.uid = uid
        return number

    def _add(self, step: Step) -> int:
        if isinstance(step, SourceStep):
            return self._new([step.name], step.schema, source=step, limit=step.limit, asked=step.partitions)
        if isinstance(step, OperatorStep):
            return self._add_operator(step)
        if isinstance(step, ResourcesStep):
            return self._add_resources(step)
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

    def _add_resources(self, step: ResourcesStep) -> int:
        number = self._own(step.parent)
        vertex = self.vertices[number]
        if vertex.resources not in (None, step.resources):
            raise PlanError(
                f"{_shown(vertex)!r} is one stage and cannot have {vertex.resources.title} per task and "
                f"{step.resources.title} too: put an exchange, such as rebalance(), between the parts"
            )
        vertex.resources = step.resources
        return number

    def _own(self, parent: Step) -> int:
        """The vertex that goes on from a step: the step's own, or one after a forward edge if others read it too."""
        number = self._vertex_of[id(parent)]
        if self._readers[id(parent)] > 1:
            producer = self.vertices[number]
            number = self._new([], parent.schema, leader=producer.leader)
            self._connect(producer.id, number, exchange("forward"), ExchangeChoice())
        return number

    def _add_operator(self, step: OperatorStep) -> int:
        number = self._own(step.parent)
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
        mode = choice.mode or self._settings.shuffle.mode
        service = choice.service or self._settings.shuffle.service
        schema = self.vertices[producer].schema
        number = len(self.edges)
        kind, stored = self._kinds(producer, mode, service)
        self.edges.append(JobEdge(number, producer, consumer, spec, schema, kind, service, side, stored=stored))
        if mode != AUTO:
            self.asked.add(number)
        return number

    def _kinds(self, producer: int, mode: str, service: str) -> tuple[PartitionKind, PartitionKind | None]:
        """The kind of an exchange in this mode, and the one it gets if it must be stored."""
        carried = load_service(service).capabilities
        try:
            kind = carried.kind_of(mode, service)
        except SettingError as error:
            raise SettingError(f"the exchange of {_shown(self.vertices[producer])!r}: {error}") from None
        if mode == AUTO and self._is_query:
            kind = carried.streamed or kind
        if mode == AUTO and not kind.runs_together:
            note = f"mode auto is {kind.label} with the shuffle service {service!r}: it carries nothing pipelined"
            self.notes[note] = None
        return kind, carried.stored


def _keeper(service: str, *, persist: bool) -> KeptBy:
    """The keeper of a result: the job's own service; raises SettingError where that keeps nothing."""
    carried = load_service(service).capabilities
    kind = carried.persisted if persist else carried.result
    if kind is None:
        raise SettingError(
            f"the shuffle service {service!r} keeps no rows that were read, so it can't keep a result: use run(), or "
            "name another one in spark.penstock.shuffle.service and this one at its exchanges"
        )
    return KeptBy(service, kind)


def _shortened(name: str) -> str:
    """A name for one line: its head says where rows come from, its end what the last operator is."""
    if len(name) <= _NAME_LENGTH:
        return name
    head, _, last = name.rpartition(" + ")
    kept = max(_NAME_LENGTH - len(last) - 5, _NAME_LENGTH // 2)
    return f"{head[:kept]} ... {last}" if head else f"{name[:_NAME_LENGTH]} ..."


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
        resources=vertex.resources,
        uid=vertex.uid,
    )


def _fitted(graph: JobGraph, builder: _Builder, slots: int, buffers: int | None) -> JobGraph:
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


def _narrow(graph: JobGraph, builder: _Builder, slots: int) -> _Change | None:
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


def _with_open_parallelism(graph: JobGraph, vertices: list[_Vertex], subpartitions: int) -> JobGraph:
    """Vertices whose parallelism is chosen from the bytes they will read: nobody asked for one, all inputs wait."""
    bound = {number for region in regions(graph) if region.at_once for number in region.vertices}
    for edge in graph.edges:
        # A reader of a hybrid exchange may start before there are bytes to choose by.
        if edge.is_pointwise or edge.exchange.kind in _FIXED or edge.kind.is_hybrid:
            bound.add(edge.consumer)
        if edge.exchange.kind == "forward":
            bound.add(edge.producer)
    for vertex in graph.vertices:
        spread = [edge for edge in graph.inputs_of(vertex.id) if not edge.is_broadcast]
        if spread and vertex.id not in bound and vertices[vertex.id].asked is None:
            graph = graph.with_vertex(replace(vertex, subpartitions=subpartitions))
    return graph


def _parallelism(vertices: list[_Vertex], groups: list[tuple[int, ...]], slots: int) -> dict[int, int]:
    """Each vertex with its leader's share, which is the least of what the regions with that leader can give."""
    least: dict[int, int] = {}
    for group in groups:
        for leader, share in _shares(vertices, group, slots).items():
            least[leader] = min(share, least.get(leader, share))
    return {vertex.id: least[vertex.leader] for vertex in vertices}


def _shares(vertices: list[_Vertex], group: tuple[int, ...], slots: int) -> dict[int, int]:
    """Leaders with what they asked for; the others share what is left, those with a limit below it first."""
    weight: Counter[int] = Counter()
    for number in group:
        resources = vertices[number].resources
        weight[vertices[number].leader] += 1 if resources is None else resources.slots
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
