# SPDX-License-Identifier: Apache-2.0
"""The logical plan of one job: vertices (chains of operators) joined by edges (exchanges).

Pure data. A vertex and its operators are picklable, because the graph travels to the tasks inside Spark's
closure; DataFrames are not, so a vertex only says that it reads one and the caller keeps the DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.shuffle import PartitionKind

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
        """What `explain` shows."""

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn the input of one subtask into its output; drains its input unless it says otherwise."""


class Exchange(Protocol):
    """How an edge's rows find their consumer: built by the record room from this picklable description."""

    @property
    def kind(self) -> str:
        """`hash`, `rebalance`, `rescale`, `forward`, `broadcast`, `random`, `to_one` or `custom`."""


@dataclass(frozen=True, slots=True)
class JobVertex:
    """A chain of operators, run as `parallelism` subtasks; its input is a source or its input edges."""

    id: int
    name: str
    parallelism: int
    schema: pa.Schema
    source: Source | None = None
    reads_dataframe: bool = False
    operators: tuple[Operator, ...] = ()


@dataclass(frozen=True, slots=True)
class JobEdge:
    """An exchange from one vertex to another; the rows have the producer's `schema`."""

    id: int
    producer: int
    consumer: int
    exchange: Exchange
    schema: pa.Schema
    kind: PartitionKind
    service: str

    @property
    def is_pointwise(self) -> bool:
        """Whether a consumer reads only its share of the producers (forward, rescale)."""
        return self.exchange.kind in ("forward", "rescale")

    @property
    def is_broadcast(self) -> bool:
        """Whether every consumer reads all rows."""
        return self.exchange.kind == "broadcast"


@dataclass(frozen=True, slots=True)
class JobGraph:
    """One job. `result` lists the vertices whose output is kept as the job's result, in order.

    All result vertices have the same schema; the result's partitions are their subtasks' in this order.
    """

    name: str
    vertices: tuple[JobVertex, ...]
    edges: tuple[JobEdge, ...]
    result: tuple[int, ...] = ()

    def vertex(self, vertex: int) -> JobVertex:
        """The vertex with this id; raises KeyError."""
        for candidate in self.vertices:
            if candidate.id == vertex:
                return candidate
        raise KeyError(f"job {self.name} has no vertex {vertex}")

    def edge(self, edge: int) -> JobEdge:
        """The edge with this id; raises KeyError."""
        for candidate in self.edges:
            if candidate.id == edge:
                return candidate
        raise KeyError(f"job {self.name} has no edge {edge}")

    def inputs_of(self, vertex: int) -> tuple[JobEdge, ...]:
        """The edges a vertex reads, in order of their id."""
        return tuple(edge for edge in self.edges if edge.consumer == vertex)

    def outputs_of(self, vertex: int) -> tuple[JobEdge, ...]:
        """The edges a vertex writes, in order of their id."""
        return tuple(edge for edge in self.edges if edge.producer == vertex)
