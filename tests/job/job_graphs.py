# SPDX-License-Identifier: Apache-2.0
"""Small job graphs for the JobMaster's tests. No data is ever moved over them here."""

from __future__ import annotations

import pyarrow as pa

from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex
from penstock.record import PartitionerSpec
from penstock.shuffle import PartitionKind

SCHEMA = pa.schema([("k", pa.int64())])
SERVICE = "job_fakes:service"


def edge(number: int, producer: int, consumer: int, kind: str = "hash", *, blocking: bool = False) -> JobEdge:
    """An edge, pipelined or blocking."""
    spec = PartitionerSpec(kind, ("k",)) if kind == "hash" else PartitionerSpec(kind)
    how = PartitionKind.BLOCKING_SORT_MERGE if blocking else PartitionKind.PIPELINED_BOUNDED
    return JobEdge(number, producer, consumer, spec, SCHEMA, how, SERVICE)


def pipeline(sources: int = 2, sinks: int = 2, *, dataframe: bool = False, result: bool = False) -> JobGraph:
    """Source and sink, joined by a hash edge."""
    source = JobVertex(0, "source", sources, SCHEMA, reads_dataframe=dataframe)
    sink = JobVertex(1, "sink", sinks, SCHEMA)
    return JobGraph("pipeline", (source, sink), (edge(0, 0, 1),), (1,) if result else ())


def diamondless(*, result: bool = True) -> JobGraph:
    """Two sources, one of them a DataFrame, into a middle, into a sink over a rescale edge."""
    vertices = (
        JobVertex(0, "numbers", 1, SCHEMA),
        JobVertex(1, "frame", 2, SCHEMA, reads_dataframe=True),
        JobVertex(2, "join", 2, SCHEMA),
        JobVertex(3, "write", 2, SCHEMA),
    )
    edges = (edge(0, 0, 2), edge(1, 1, 2), edge(2, 2, 3, "rescale"))
    return JobGraph("diamondless", vertices, edges, (3,) if result else ())


def two_stages(sources: int = 3, sinks: int = 20, *, result: bool = True) -> JobGraph:
    """Source and sink, joined by a blocking edge; more tasks than anybody has slots."""
    vertices = (JobVertex(0, "source", sources, SCHEMA), JobVertex(1, "sink", sinks, SCHEMA))
    return JobGraph("two stages", vertices, (edge(0, 0, 1, blocking=True),), (1,) if result else ())


def open_sink(subpartitions: int = 16, *, dataframe: bool = False) -> JobGraph:
    """A sink whose parallelism is chosen from what the source wrote, and a pipelined pair behind a blocking edge."""
    vertices = (
        JobVertex(0, "source", 2, SCHEMA, reads_dataframe=dataframe),
        JobVertex(1, "open", 4, SCHEMA, subpartitions=subpartitions),
        JobVertex(2, "middle", 2, SCHEMA),
        JobVertex(3, "sink", 2, SCHEMA),
    )
    edges = (edge(0, 0, 1, blocking=True), edge(1, 1, 2, blocking=True), edge(2, 2, 3))
    return JobGraph("open sink", vertices, edges, (3,))
