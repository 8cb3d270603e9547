# SPDX-License-Identifier: Apache-2.0
"""Steps to vertices and edges in the making.

Chaining: an operator joins the vertex of the step it reads unless that step has other readers in this job; then it
gets a vertex of its own after a forward edge, so that a shared step runs once. So does a function of a batch job
after very many others. An exchange starts a vertex, and so does a combination of streams, whose exchanges end in
its one vertex, each on a side of its own.

Services: every kind is one that the exchange's service carries (`penstock.shuffle.capabilities`).
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, replace

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
from penstock.errors import PlanError, SettingError
from penstock.graph import Combine, JobEdge, JobVertex, Operator, Resources
from penstock.graph.shares import FEW_BYTES
from penstock.operators.batch_by_batch import BatchByBatch
from penstock.operators.exchanges import PartitionerSpec, exchange
from penstock.settings import Settings
from penstock.shuffle import PartitionKind, load_service, service_in_use
from penstock.shuffle.kinds import AUTO

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class PlannedVertex:
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

    @property
    def title(self) -> str:
        """The names of its operators, in order."""
        return " + ".join(self.names)

    def job_vertex(self, name: str, parallelism: int) -> JobVertex:
        """The vertex of the job graph."""
        return JobVertex(
            self.id,
            name,
            parallelism,
            self.schema,
            source=None if self.source is None else self.source.source,
            reads_dataframe=self.source is not None and self.source.dataframe is not None,
            operators=tuple(self.operators),
            combine=self.combine,
            resources=self.resources,
            uid=self.uid,
        )


FIXED_KINDS = ("to_one", "custom", "range")
"""Exchanges whose subpartitions mean something, so that each has a consumer of its own."""
MOST_NESTED = 50
"""So many functions of a stage call each other; more would come near Python's limit, so another stage goes on."""


def _nested(vertex: PlannedVertex) -> int:
    """The operators that pull batches out of each other; the others run in a loop."""
    return sum(1 for operator in vertex.operators if not isinstance(operator, BatchByBatch))


class PlanBuilder:
    """Turns steps into vertices and edges."""

    def __init__(self, settings: Settings, *, is_query: bool = False) -> None:
        self._settings = settings
        self._is_query = is_query
        self._readers: Counter[int] = Counter()
        self._vertex_of: dict[int, int] = {}
        self.vertices: list[PlannedVertex] = []
        self.edges: list[JobEdge] = []
        self.asked: set[int] = set()
        """The edges whose mode was said, by the stream or by the settings."""
        self.notes: dict[str, None] = {}
        """Sentences on services that lack what `auto` is first, or that another one stands in for."""
        self._in_use: dict[str, str] = {}

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

    def service_in_use(self, name: str) -> str:
        """The service that serves now where this one was named; a stand-in is said aloud, once."""
        found = self._in_use.get(name)
        if found is None:
            found, why = service_in_use(name, self._settings)
            self._in_use[name] = found
            if why:
                self.notes[why] = None
                _LOG.warning("%s", why)
        return found

    @property
    def reads_little(self) -> bool:
        """True if all sources together are known to have so little that one more task costs more than it gives."""
        sizes = [vertex.source.bytes for vertex in self.vertices if vertex.source is not None]
        known = [size for size in sizes if size is not None]
        return len(known) == len(sizes) and sum(known) < FEW_BYTES

    def may_be_wider(self, vertex: JobVertex, slots: int) -> bool:
        """Tell whether no argument set this stage's number of tasks, and it has less than half of those possible."""
        made = self.vertices[vertex.id]
        leader = self.vertices[made.leader]
        most = slots if leader.limit is None else min(slots, leader.limit)
        return leader.asked is None and 2 * vertex.parallelism < most

    def widen(self, tasks: int) -> None:
        """So many tasks for each stage that may have any number, whatever was asked for; a source has its limit."""
        fixed = {self.vertices[edge.consumer].leader for edge in self.edges if edge.exchange.kind in FIXED_KINDS}
        for leader in {vertex.leader for vertex in self.vertices} - fixed:
            vertex = self.vertices[leader]
            vertex.asked = tasks if vertex.limit is None else min(tasks, vertex.limit)

    def _named(self, step: Step, number: int) -> int:
        """The vertex of a step, which is called in checkpoints what the step says."""
        uid = getattr(step, "uid", "")
        if uid:
            vertex = self.vertices[number]
            if vertex.uid not in ("", uid):
                raise PlanError(
                    f"{vertex.title!r} is one stage and cannot be called {vertex.uid!r} and {uid!r}: "
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
                f"{vertex.title!r} is one stage and cannot have {vertex.resources.title} per task and "
                f"{step.resources.title} too: put an exchange, such as rebalance(), between the parts"
            )
        vertex.resources = step.resources
        return number

    def _own(self, parent: Step) -> int:
        """The vertex that goes on from a step: the step's own, or one after a forward edge if others read it too."""
        number = self._vertex_of[id(parent)]
        return self._after(self.vertices[number]) if self._readers[id(parent)] > 1 else number

    def _after(self, producer: PlannedVertex) -> int:
        number = self._new([], producer.schema, leader=producer.leader)
        self._connect(producer.id, number, exchange("forward"), ExchangeChoice())
        return number

    def _add_operator(self, step: OperatorStep) -> int:
        number = self._own(step.parent)
        is_full = _nested(self.vertices[number]) == MOST_NESTED and not isinstance(step.operator, BatchByBatch)
        if is_full and not self._is_query:
            number = self._after(self.vertices[number])
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
        self.vertices.append(PlannedVertex(number, own, names, schema, source, [], asked, limit))
        return number

    def _connect(
        self, producer: int, consumer: int, spec: PartitionerSpec, choice: ExchangeChoice, side: int = 0
    ) -> int:
        mode = choice.mode or self._settings.shuffle.mode
        service = self.service_in_use(choice.service or self._settings.shuffle.service)
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
            raise SettingError(f"the exchange of {self.vertices[producer].title!r}: {error}") from None
        if mode == AUTO and self._is_query:
            kind = carried.streamed or kind
        if mode == AUTO and not kind.runs_together:
            note = f"mode auto is {kind.label} with the shuffle service {service!r}: it carries nothing pipelined"
            self.notes[note] = None
        return kind, carried.stored
