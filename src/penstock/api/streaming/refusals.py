# SPDX-License-Identifier: Apache-2.0
"""The limits of a streaming query, and those of a batch job over a stream without an end: refused by name."""

from __future__ import annotations

import warnings

from penstock.api.lineage import (
    CombineStep,
    ExchangeStep,
    ResourcesStep,
    SourceStep,
    Step,
    in_order,
)
from penstock.api.streaming.places import one_spelling
from penstock.errors import PlanError
from penstock.graph import JobGraph
from penstock.operators.exchanges import hash_exchange
from penstock.shuffle import load_service
from penstock.task.endpoints import exchange_of

_LOOK_UP = (
    "a table is joined by a class that loads it once for each task, mapInArrow(LookUp, schema): docs/streaming.md "
    "shows one"
)


def is_streaming(branches: tuple[Step, ...]) -> bool:
    """Tell whether these steps read a source of `readStream`."""
    return any(isinstance(step, SourceStep) and step.streaming for step in in_order(branches))


def refuse_stream(branches: tuple[Step, ...], verb: str) -> None:
    """Raise PlanError where an action would have to read a stream to an end that it may not have."""
    if is_streaming(branches):
        raise PlanError(
            f"{verb} needs all rows, and what readStream gives may have no end: write it with "
            "stream.writeStream.format(...).start(...), or read the files with readParquet, readText and the like"
        )


def refuse_batch(branches: tuple[Step, ...]) -> None:
    """Raise PlanError, which names it, for what a streaming query can't have."""
    for step in in_order(branches):
        if isinstance(step, SourceStep) and not step.streaming:
            raise PlanError(
                f"{step.name} is read once, to its end: a streaming query reads sources of penstock.readStream only;"
                f" {_LOOK_UP}"
            )
        if isinstance(step, CombineStep):
            raise PlanError(
                f"{step.combine.name} reads a whole input first: it needs bounded streams on all sides; {_LOOK_UP}"
            )
        if isinstance(step, ExchangeStep) and step.summary is not None:
            raise PlanError("sortBy needs all rows before it gives the first one: it works on bounded streams only")
        if isinstance(step, ResourcesStep):
            raise PlanError(
                "withResources is for batch jobs: all tasks of a streaming query run in slots of one kind"
            )


def warn_of_rows_again(query: str, sink: object, *, is_for_looking: bool) -> None:
    """Warn that the next run writes all rows again, where nothing of this one is kept but its files."""
    from penstock.spark.hints import PenstockWarning
    from penstock.stream.folder_sink import FolderSink

    if isinstance(sink, FolderSink) and not is_for_looking:
        text = (
            f"writeStream: {query} has no checkpointLocation, so each run begins with the first row and writes all "
            f"rows into {sink.folder} once more: give it .option('checkpointLocation', ...), a folder of its own"
        )
        warnings.warn(text, PenstockWarning, stacklevel=3)


def refuse_one_folder(branches: tuple[Step, ...], sink: object, location: str) -> None:
    """Raise PlanError where the folder that a query writes is also its checkpointLocation, or one that it reads."""
    from penstock.stream.arriving_files import FilesSource
    from penstock.stream.folder_sink import FolderSink

    if not isinstance(sink, FolderSink):
        return
    if location and one_spelling(location) == sink.folder:
        raise PlanError(
            f"writeStream: {sink.folder} is also the checkpointLocation, whose files are no rows: give the query a "
            "folder of its own for checkpoints"
        )
    for step in in_order(branches):
        source = step.source if isinstance(step, SourceStep) else None
        if isinstance(source, FilesSource) and (source.filesystem, source.folder) == (sink.filesystem, sink.folder):
            raise PlanError(f"writeStream: {sink.folder} is also what the query reads: write into another folder")


def refuse_scattered(*, is_kept: bool, is_local: bool) -> None:
    """Raise PlanError for a query without a checkpointLocation whose tasks run on other machines than the driver."""
    if not is_kept and not is_local:
        raise PlanError(
            "writeStream: on a cluster a query needs option('checkpointLocation', ...), a URI or a path that all"
            " hosts share: without one each host would store its parts of the checkpoints in a folder of its own"
        )


def refuse_in(graph: JobGraph) -> None:
    """Raise PlanError for an operator that needs its whole input, or an exchange that would store its rows.

    Raises SchemaError for a key of a type that has no key group.
    """
    from penstock.stream.steps import check  # not above: batch jobs import this module, and have no steps

    for vertex in graph.vertices:
        for operator in vertex.operators:
            check(operator)
    for edge in graph.edges:
        spec = exchange_of(graph, edge.id)
        if spec.kind == "hash":  # state follows its keys by Spark's hash, which takes fewer types
            hash_exchange(edge.schema, spec.keys, spark_compatible=True)
        if not load_service(edge.service).capabilities.streams:
            raise PlanError(
                f"{graph.title_of(edge)} goes by the shuffle service {edge.service!r}, which carries no streams: "
                "leave the service out, or name one that does, such as 'local'"
            )
        if not edge.kind.carries_streams:
            raise PlanError(
                f"{graph.title_of(edge)} asks to be {edge.kind.label}: all exchanges of a streaming query are "
                "pipelined, leave the mode out"
            )
