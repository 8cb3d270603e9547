# SPDX-License-Identifier: Apache-2.0
"""The logical plan of one job: vertices (chains of operators) joined by edges (exchanges).

Pure data. A vertex and its operators are picklable, because the graph travels to the tasks inside Spark's
closure; DataFrames are not, so a vertex only says that it reads one and the caller keeps the DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import pyarrow as pa

from penstock.errors import PlanError
from penstock.graph.shares import Share
from penstock.graph.streaming import StreamingOptions
from penstock.shuffle import PartitionKind

_NAME_LENGTH = 80
RESULT_EDGE = -1
"""The number of the output that holds a job's result: not an edge between vertices, but written like one."""


class Source(Protocol):
    """Reads rows without the JVM; picklable."""

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """This subtask's share of the rows, as batches of the vertex's input schema."""


class Operator(Protocol):
    """One step of a chain; picklable."""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn the input of one subtask into its output; drains its input unless it says otherwise."""


class Combine(Protocol):
    """The step that makes one stream of several: the first of a vertex whose inputs have sides; picklable."""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""

    def apply(self, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Turn the inputs of one subtask, one iterator for each side, into one output.

        A side is read only when its iterator is asked; until then its pipelined producers wait. Sides are read one
        after the other, each to its end, in order of their numbers; but a combine that has a `streamed_side` reads
        that one last. The plans that may deadlock are found from this order.

        A combine that has `needed_sides` gives nothing where one of them has no rows. It is told of that while it
        reads another side, which may be endless: reading it raises EmptySideError.
        """


class Exchange(Protocol):
    """The way of an edge's rows to their consumers: built by the record room from this picklable description."""

    @property
    def kind(self) -> str:
        """`hash`, `rebalance`, `rescale`, `forward`, `broadcast`, `random`, `to_one`, `range` or `custom`."""


class RowSummary(Protocol):
    """The summary that one subtask makes of its rows for an edge that carries no more than that."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch into account."""

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows to send, once all rows were added; batches of the summary's schema."""


class Summary(Protocol):
    """Sends over an edge, in place of a vertex's rows, what it makes of them at their end; picklable."""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows that the edge carries."""

    def start(self) -> RowSummary:
        """The summary of one subtask."""


@dataclass(frozen=True, slots=True)
class Resources:
    """The needs of each task of a stage: `cpus`, and amounts of other resources by name, such as `("gpu", 1.0)`.

    `slots` is how many of the application's slots one such task takes: where a task usually has one core, its cores.
    """

    cpus: float = 1.0
    amounts: tuple[tuple[str, float], ...] = ()
    slots: int = 1

    @property
    def title(self) -> str:
        """The name for messages."""
        named = [f"{amount:g} {name}" for name, amount in (("cpus", self.cpus), *self.amounts)]
        return " and ".join(named)


@dataclass(frozen=True, slots=True)
class JobVertex:
    """A chain of operators, run as `parallelism` subtasks; its input is a source or its input edges.

    With `subpartitions` the all-to-all inputs are cut into that many, and how many subtasks read them is chosen from
    the bytes when the region starts: `shares` then says which of them each subtask reads.
    With `combine` the input edges have sides, and `combine` makes one stream of them ahead of the operators.
    With `resources` each subtask needs these, where the others need one slot of the application.
    `uid` names the vertex in the checkpoints of a streaming query; it is the same where the plan around it changes.
    """

    id: int
    name: str
    parallelism: int
    schema: pa.Schema
    source: Source | None = None
    reads_dataframe: bool = False
    operators: tuple[Operator, ...] = ()
    subpartitions: int | None = None
    shares: tuple[Share, ...] = ()
    combine: Combine | None = None
    resources: Resources | None = None
    uid: str = ""

    @property
    def is_bound(self) -> bool:
        """True if its subtasks are Spark tasks of their own, and not given to whichever worker asks.

        Those that read a DataFrame are, as Spark gives each its partition, and those with resources of their own.
        """
        return self.reads_dataframe or self.resources is not None

    @property
    def slots(self) -> int:
        """The slots that all its subtasks take."""
        return self.parallelism * (self.resources.slots if self.resources is not None else 1)


@dataclass(frozen=True, slots=True)
class JobEdge:
    """An exchange from one vertex to another; the rows have the producer's `schema`, or that of the `summary`.

    `side` says which input of the consumer's `combine` they belong to; edges of one side are read as one. `stored` is
    the kind that its service has for a producer that must not wait for its readers; None where it has none.
    """

    id: int
    producer: int
    consumer: int
    exchange: Exchange
    schema: pa.Schema
    kind: PartitionKind
    service: str
    side: int = 0
    summary: Summary | None = None
    stored: PartitionKind | None = None

    @property
    def is_pointwise(self) -> bool:
        """True if a consumer reads only its share of the producers (forward, rescale)."""
        return self.exchange.kind in ("forward", "rescale")

    @property
    def is_broadcast(self) -> bool:
        """True if every consumer reads all rows."""
        return self.exchange.kind == "broadcast"


_Part = TypeVar("_Part", JobVertex, JobEdge)


@dataclass(frozen=True, slots=True)
class KeptBy:
    """The service that keeps a job's result, and the kind of the result's partitions."""

    service: str
    kind: PartitionKind


@dataclass(frozen=True, slots=True)
class JobGraph:
    """One job. `result` lists the vertices whose output is kept as the job's result, in order.

    All result vertices have the same schema; the result's partitions are their subtasks' in this order, and are
    `kept_by` a service that lets them be read in any order, any number of times, after the job is over. `notes` are
    sentences for people: where the plan differs from what was asked, and why. With `streaming` it is a query without
    an end of its own.
    """

    name: str
    vertices: tuple[JobVertex, ...]
    edges: tuple[JobEdge, ...]
    result: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    kept_by: KeptBy | None = None
    streaming: StreamingOptions | None = None

    def vertex(self, vertex: int) -> JobVertex:
        """The vertex with this id; raises KeyError."""
        found = _numbered(self.vertices, vertex)
        if found is None:
            raise KeyError(f"job {self.name} has no vertex {vertex}")
        return found

    def edge(self, edge: int) -> JobEdge:
        """The edge with this id; raises KeyError."""
        found = _numbered(self.edges, edge)
        if found is None:
            raise KeyError(f"job {self.name} has no edge {edge}")
        return found

    @property
    def keeper(self) -> KeptBy:
        """As `kept_by`, of a graph that has a result; raises PlanError where it was left out."""
        if self.kept_by is None:
            raise PlanError(f"job {self.name} has a result, and nothing says which shuffle service keeps it")
        return self.kept_by

    def with_vertex(self, vertex: JobVertex) -> JobGraph:
        """This graph with another vertex in the place of the one with the same id."""
        vertices = tuple(vertex if known.id == vertex.id else known for known in self.vertices)
        return replace(self, vertices=vertices)

    def with_edge(self, edge: JobEdge) -> JobGraph:
        """This graph with another edge in the place of the one with the same id."""
        edges = tuple(edge if known.id == edge.id else known for known in self.edges)
        return replace(self, edges=edges)

    def title_of(self, edge: JobEdge) -> str:
        """The name of an edge for people: its number and the stages at its ends."""
        return f"exchange {edge.id} ({self.vertex(edge.producer).name} -> {self.vertex(edge.consumer).name})"

    def inputs_of(self, vertex: int) -> tuple[JobEdge, ...]:
        """The edges a vertex reads, in order of their id."""
        return tuple(edge for edge in self.edges if edge.consumer == vertex)

    def outputs_of(self, vertex: int) -> tuple[JobEdge, ...]:
        """The edges a vertex writes, in order of their id."""
        return tuple(edge for edge in self.edges if edge.producer == vertex)


def shortened(name: str) -> str:
    """A stage's name for one line: its head says where rows come from, its end what the last operator is."""
    if len(name) <= _NAME_LENGTH:
        return name
    head, _, last = name.rpartition(" + ")
    kept = max(_NAME_LENGTH - len(last) - 5, _NAME_LENGTH // 2)
    return f"{head[:kept]} ... {last}" if head else f"{name[:_NAME_LENGTH]} ..."


def _numbered(parts: Sequence[_Part], number: int) -> _Part | None:
    """The part with a number; plans number them by their places, so that most are found at once."""
    if 0 <= number < len(parts) and parts[number].id == number:
        return parts[number]
    return next((part for part in parts if part.id == number), None)
