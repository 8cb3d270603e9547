# SPDX-License-Identifier: Apache-2.0
"""Small job graphs for the JobMaster's tests. No data is ever moved over them here."""

from __future__ import annotations

import pyarrow as pa

from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex, KeptBy
from penstock.record import PartitionerSpec
from penstock.shuffle import PartitionKind

SCHEMA = pa.schema([("k", pa.int64())])
SERVICE = "job_fakes:service"

PIPELINED = PartitionKind.PIPELINED_BOUNDED
BLOCKING = PartitionKind.BLOCKING_SORT_MERGE
HYBRID = PartitionKind.HYBRID_FULL
SELECTIVE = PartitionKind.HYBRID_SELECTIVE
KINDS = (PIPELINED, BLOCKING, HYBRID, SELECTIVE)
KEPT = KeptBy("local", HYBRID)
"""The keeper of all results here."""


def edge(number: int, producer: int, consumer: int, how: str = "hash", kind: PartitionKind = PIPELINED) -> JobEdge:
    """An edge."""
    spec = PartitionerSpec(how, ("k",)) if how == "hash" else PartitionerSpec(how)
    return JobEdge(number, producer, consumer, spec, SCHEMA, kind, SERVICE, stored=HYBRID)


def chain(
    *parallelisms: int,
    kinds: tuple[PartitionKind, ...] = (),
    how: str = "hash",
    result: bool = True,
    frame: bool = False,
) -> JobGraph:
    """Stages one after the other; pipelined where nothing is said; the first may read a DataFrame."""
    count = len(parallelisms)
    vertices = tuple(
        JobVertex(i, f"stage{i}", n, SCHEMA, reads_dataframe=frame and i == 0) for i, n in enumerate(parallelisms)
    )
    edges = tuple(edge(i, i, i + 1, how, kinds[i] if i < len(kinds) else PIPELINED) for i in range(count - 1))
    return JobGraph("chain", vertices, edges, (count - 1,) if result else (), kept_by=KEPT)


def pipeline(sources: int = 2, sinks: int = 2, *, dataframe: bool = False, result: bool = False) -> JobGraph:
    """Source and sink, joined by a pipelined hash edge."""
    source = JobVertex(0, "source", sources, SCHEMA, reads_dataframe=dataframe)
    sink = JobVertex(1, "sink", sinks, SCHEMA)
    return JobGraph("pipeline", (source, sink), (edge(0, 0, 1),), (1,) if result else (), kept_by=KEPT)


def word_count(kind: PartitionKind) -> JobGraph:
    """Two maps and two reduces."""
    vertices = (JobVertex(0, "map", 2, SCHEMA), JobVertex(1, "reduce", 2, SCHEMA))
    return JobGraph("word count", vertices, (edge(0, 0, 1, kind=kind),), (1,), kept_by=KEPT)


def diamondless(*, result: bool = True) -> JobGraph:
    """Two sources, one of them a DataFrame, into a middle, into a sink over a rescale edge."""
    vertices = (
        JobVertex(0, "numbers", 1, SCHEMA),
        JobVertex(1, "frame", 2, SCHEMA, reads_dataframe=True),
        JobVertex(2, "join", 2, SCHEMA),
        JobVertex(3, "write", 2, SCHEMA),
    )
    edges = (edge(0, 0, 2), edge(1, 1, 2), edge(2, 2, 3, "rescale"))
    return JobGraph("diamondless", vertices, edges, (3,) if result else (), kept_by=KEPT)


def two_stages(sources: int = 3, sinks: int = 20, *, result: bool = True) -> JobGraph:
    """Source and sink, joined by a blocking edge; more tasks than anybody has slots."""
    vertices = (JobVertex(0, "source", sources, SCHEMA), JobVertex(1, "sink", sinks, SCHEMA))
    return JobGraph("two stages", vertices, (edge(0, 0, 1, kind=BLOCKING),), (1,) if result else (), kept_by=KEPT)


def open_sink(subpartitions: int = 16, *, dataframe: bool = False) -> JobGraph:
    """A sink whose parallelism is chosen from the source's bytes, and a pipelined pair after a blocking edge."""
    vertices = (
        JobVertex(0, "source", 2, SCHEMA, reads_dataframe=dataframe),
        JobVertex(1, "open", 4, SCHEMA, subpartitions=subpartitions),
        JobVertex(2, "middle", 2, SCHEMA),
        JobVertex(3, "sink", 2, SCHEMA),
    )
    edges = (edge(0, 0, 1, kind=BLOCKING), edge(1, 1, 2, kind=BLOCKING), edge(2, 2, 3))
    return JobGraph("open sink", vertices, edges, (3,), kept_by=KEPT)


def mixed() -> JobGraph:
    """One job with every kind of edge, two outputs of one vertex, and two results."""
    vertices = (
        JobVertex(0, "read", 2, SCHEMA),
        JobVertex(1, "clean", 2, SCHEMA),
        JobVertex(2, "count", 2, SCHEMA),
        JobVertex(3, "sort", 2, SCHEMA),
        JobVertex(4, "write", 1, SCHEMA),
    )
    edges = (
        edge(0, 0, 1, "forward"),
        edge(1, 1, 2, kind=HYBRID),
        edge(2, 1, 3, kind=BLOCKING),
        edge(3, 3, 4, kind=SELECTIVE),
    )
    return JobGraph("mixed", vertices, edges, (2, 4), kept_by=KEPT)


def side_by_side(*parallelisms: int) -> JobGraph:
    """Stages that have nothing to do with each other; each is a result."""
    vertices = tuple(JobVertex(i, f"stage{i}", n, SCHEMA) for i, n in enumerate(parallelisms))
    return JobGraph("side by side", vertices, (), tuple(range(len(parallelisms))), kept_by=KEPT)
