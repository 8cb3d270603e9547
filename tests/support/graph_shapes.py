# SPDX-License-Identifier: Apache-2.0
"""Graphs for the tests of this folder: by hand from a few numbers, or any that Hypothesis thinks of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
from hypothesis import strategies as st

from penstock.graph import JobEdge, JobGraph, JobVertex
from penstock.shuffle import PartitionKind

SCHEMA = pa.schema([("a", pa.int64())])
PIPELINED = PartitionKind.PIPELINED_BOUNDED
BLOCKING = PartitionKind.BLOCKING_SORT_MERGE
HYBRID = PartitionKind.HYBRID_FULL


@dataclass(frozen=True)
class Kind:
    """An exchange of which only the kind matters here."""

    kind: str


@dataclass(frozen=True)
class Both:
    """A combining step of which only its presence matters here, and which side it reads last."""

    streamed_side: int | None = None
    name: str = "both"

    def apply(self, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """One side after the other."""
        return chain(*inputs)


def graph(
    parallelisms: list[int],
    edges: list[tuple[int, int]],
    kind: str = "hash",
    blocking: frozenset[int] = frozenset(),
    hybrid: frozenset[int] = frozenset(),
) -> JobGraph:
    """A graph of vertices named v0, v1, ...; its edges are pipelined where nothing else is said."""
    vertices = tuple(JobVertex(i, f"v{i}", count, SCHEMA) for i, count in enumerate(parallelisms))
    joined = tuple(
        JobEdge(
            i,
            producer,
            consumer,
            Kind(kind),
            SCHEMA,
            BLOCKING if i in blocking else HYBRID if i in hybrid else PIPELINED,
            "local",
            stored=HYBRID,
        )
        for i, (producer, consumer) in enumerate(edges)
    )
    return JobGraph("job", vertices, joined)


def combining(job: JobGraph, sides: dict[int, int], streamed: int | None = None) -> JobGraph:
    """The graph with these edges, by their ids, on these sides; their consumers combine."""
    for number, side in sides.items():
        edge = job.edge(number)
        job = job.with_edge(replace(edge, side=side))
        job = job.with_vertex(replace(job.vertex(edge.consumer), combine=Both(streamed)))
    return job


@st.composite
def any_graphs(draw: st.DrawFn, most: int = 6, kinds: Sequence[PartitionKind] = (PIPELINED,)) -> JobGraph:
    """Stages that read any earlier ones, some of them several and some of those side by side."""
    count = draw(st.integers(2, most))
    width = st.integers(1, 3)
    vertices = [JobVertex(0, "v0", draw(width), SCHEMA)]
    edges: list[JobEdge] = []
    for number in range(1, count):
        producers = draw(st.lists(st.integers(0, number - 1), max_size=3))
        parallelism = draw(width)
        combine = None
        sides = [0] * len(producers)
        if len(producers) > 1 and draw(st.booleans()):
            combine = Both(draw(st.sampled_from([None, 0, 1])))
            sides = [0, 1, draw(st.integers(0, 2))][: len(producers)]
        for producer, side in zip(producers, sides, strict=True):
            ways = ["hash", "broadcast", "rescale"]
            if vertices[producer].parallelism == parallelism:
                ways.append("forward")
            way, kind = Kind(draw(st.sampled_from(ways))), draw(st.sampled_from(kinds))
            stored = draw(st.sampled_from((HYBRID, BLOCKING)))
            edges.append(JobEdge(len(edges), producer, number, way, SCHEMA, kind, "local", side, stored=stored))
        vertices.append(JobVertex(number, f"v{number}", parallelism, SCHEMA, combine=combine))
    return JobGraph("job", tuple(vertices), tuple(edges))
