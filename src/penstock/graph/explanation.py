# SPDX-License-Identifier: Apache-2.0
"""A job graph as text for people: stages, operators, exchanges, slots. Pure; the layout is no interface."""

from __future__ import annotations

import pyarrow as pa

from penstock.graph.job_graph import Exchange, JobEdge, JobGraph, JobVertex
from penstock.graph.regions import Region, regions, slots_needed
from penstock.graph.spark_types import shown_type

INTERNAL = "#"
"""The sign in names of columns that Penstock adds to rows on their way."""
_PLACE = "place"
_VERBS = {"to_one": "toOne", "custom": "partitionCustom"}


def explain_graph(graph: JobGraph) -> str:
    """The plan in order of the vertices, each with its inputs, operators and outputs; then regions and notes."""
    lines = [f"== Penstock job {graph.name} =="]
    for vertex in graph.vertices:
        lines += _vertex_lines(graph, vertex)
    parts = regions(graph)
    lines += [_region_text(graph, region) for region in parts]
    if len(parts) > 1:
        needed = max(slots_needed(graph, region) if region.at_once else 1 for region in parts)
        lines.append(f"Slots: {needed} at once, at least")
    if graph.streaming is not None:
        lines += [f"Result: {_sink_text(vertex)}" for vertex in graph.vertices if not graph.outputs_of(vertex.id)]
    elif graph.result:
        stages, keeper = ", ".join(str(vertex) for vertex in graph.result), graph.keeper
        lines.append(f"Result: stage {stages}, {keeper.kind.label}, service {keeper.service}")
    else:
        lines.append("Result: none, the output of the last stage is dropped")
    lines += [f"Note: {note}" for note in graph.notes]
    return "\n".join(lines) + "\n"


def _sink_text(vertex: JobVertex) -> str:
    """The sink of a streaming query is the last operator of its last stage."""
    sink = vertex.operators[-1].name if vertex.operators else "nobody"
    return f"{sink} takes the output of stage {vertex.id}"


def _vertex_lines(graph: JobGraph, vertex: JobVertex) -> list[str]:
    chosen = "" if vertex.subpartitions is None else ", or fewer: chosen from the bytes produced"
    lines = [f"Stage {vertex.id}: {vertex.name} [parallelism {vertex.parallelism}{chosen}]"]
    if vertex.source is not None:
        lines.append(f"  source: {getattr(vertex.source, 'name', type(vertex.source).__name__)}")
    if vertex.reads_dataframe:
        lines.append("  source: a Spark DataFrame")
    for edge in graph.inputs_of(vertex.id):
        side = "" if vertex.combine is None else f" side {edge.side}"
        lines.append(f"  input{side}: {_edge_text(graph, edge)}")
    if vertex.combine is not None:
        lines.append(f"  combine: {vertex.combine.name}")
    lines += [f"  operator: {operator.name}" for operator in vertex.operators]
    lines.append(f"  output: ({columns_text(vertex.schema)})")
    return lines


def columns_text(schema: pa.Schema) -> str:
    """The columns with their types; of those that are Penstock's own only what they stand for.

    `total#sum` is the state of an aggregate, `#k` a key on its way to a sort, `#place` a row's place there.
    """
    shown = []
    for field in schema:
        own, sign, _ = field.name.partition(INTERNAL)
        if not sign:
            shown.append(f"{field.name}: {shown_type(field)}")
        elif own:
            shown += [f"partial {own}"] if f"partial {own}" not in shown else []
        elif field.name.strip(INTERNAL) != _PLACE:
            shown.append(f"{field.name.strip(INTERNAL)}: {field.type}")
    return ", ".join(shown)


def _region_text(graph: JobGraph, region: Region) -> str:
    names = ", ".join(str(vertex) for vertex in region.vertices)
    if region.at_once:
        return f"Region {region.number}: stages {names}, needs {slots_needed(graph, region)} task slots at once"
    tasks = sum(graph.vertex(vertex).parallelism for vertex in region.vertices)
    return f"Region {region.number}: stage {names}, {tasks} tasks on any number of slots"


def edge_title(graph: JobGraph, edge: JobEdge) -> str:
    """An exchange in few words: how rows are dealt out, the kind, the service, and the tasks at both ends."""
    tasks = f"{graph.vertex(edge.producer).parallelism} -> {graph.vertex(edge.consumer).parallelism}"
    return f"{_partitioner(edge)}, {edge.kind.label}, {edge.service}, {tasks}"


def _partitioner(edge: JobEdge) -> str:
    title = exchange_title(edge.exchange)
    return title if edge.summary is None else f"{edge.summary.name}, {title}"


def exchange_title(exchange: Exchange) -> str:
    """An exchange by the verb that asks for it, with its keys; what Penstock adds to rows is no key of the user's."""
    keys = ", ".join(key for key in getattr(exchange, "keys", ()) if not key.startswith(INTERNAL))
    verb = _VERBS.get(exchange.kind, exchange.kind)
    return f"{verb}({keys})" if keys else verb


def _edge_text(graph: JobGraph, edge: JobEdge) -> str:
    producer = graph.vertex(edge.producer)
    consumer = graph.vertex(edge.consumer)
    return (
        f"edge {edge.id} from stage {producer.id}, {_partitioner(edge)}, {edge.kind.label}, service {edge.service}, "
        f"{producer.parallelism} -> {consumer.parallelism}"
    )
