# SPDX-License-Identifier: Apache-2.0
"""A planned query, and snapshots of its job with figures of a test's choice."""

from __future__ import annotations

import penstock
from penstock.api.streaming.writer import query_graph, query_options
from penstock.graph import JobGraph
from penstock.job.core.result import CheckpointCounts, JobProgress, VertexProgress
from penstock.job.core.states import JobState
from penstock.settings import Settings, StreamingSettings
from penstock.stream.noop import NoopSink

NAMES = {"id": "i", "runId": "r", "name": "n"}


def planned() -> JobGraph:
    """A source, a counter and a sink."""
    stream = penstock.readStream(None).format("rate").load().keyBy("value", numPartitions=1).count().rebalance(1)
    options = query_options("i", "n", "/nowhere", StreamingSettings())
    return query_graph(stream.branches, NoopSink(), Settings(), 8, options)


def look(graph: JobGraph, *figures: dict[str, float], counts: CheckpointCounts | None = None) -> JobProgress:
    """The job as it is, with these figures of its stages."""
    vertices = tuple(
        VertexProgress(vertex.id, vertex.name, vertex.parallelism, 1, 0, metrics)
        for vertex, metrics in zip(graph.vertices, figures, strict=True)
    )
    return JobProgress("j1", "n", JobState.RUNNING, 1.0, vertices, counts or CheckpointCounts())
