# SPDX-License-Identifier: Apache-2.0
"""Queries with `recovery=approximate`: their exchanges, and what can't be one of them, refused with the reason."""

from __future__ import annotations

from dataclasses import replace

from penstock.errors import PlanError
from penstock.graph import JobGraph
from penstock.shuffle import load_service
from penstock.stream.folder_sink import FolderSink
from penstock.stream.noop import NoopSink
from penstock.stream.sinks import StreamSink
from penstock.stream.steps import chain_of

_INSTEAD = "leave the option recovery out, so that all tasks go on from the last checkpoint and no row is lost"


def approximate(graph: JobGraph, sink: StreamSink, *, available_now: bool) -> JobGraph:
    """The job with exchanges whose two ends begin anew one by one; raises PlanError where that can't be honest."""
    if available_now:
        raise PlanError(
            "writeStream: trigger(availableNow=True) says that all that is there is read, and recovery=approximate"
            f" loses some of it if a task fails: {_INSTEAD}"
        )
    is_by_epoch = isinstance(sink, FolderSink) and sink.has_epochs
    if is_by_epoch or not isinstance(sink, FolderSink | NoopSink):
        name = "a function of batches, or a whole result with outputMode('complete')," if is_by_epoch else sink.name
        raise PlanError(
            f"writeStream: {name} takes what all tasks have given for a checkpoint, once and together, so a task that"
            f" restarts alone would break its promise. With recovery=approximate write files: {_INSTEAD}"
        )
    for vertex in graph.vertices:
        if chain_of(vertex).makes_time:
            raise PlanError(
                f"writeStream: {vertex.name} has event time. A task that restarts alone would wait for watermarks"
                f" that were under way and are lost: {_INSTEAD}"
            )
    edges = []
    for edge in graph.edges:
        kind = load_service(edge.service).capabilities.approximate
        if kind is None:
            raise PlanError(
                f"{graph.title_of(edge)} goes by the shuffle service {edge.service!r}, whose readers can't return:"
                f" name 'local' with recovery=approximate, or {_INSTEAD}"
            )
        edges.append(replace(edge, kind=kind))
    return replace(graph, edges=tuple(edges))
