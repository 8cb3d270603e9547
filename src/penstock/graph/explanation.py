# SPDX-License-Identifier: Apache-2.0
"""A job graph as text for people: stages, operators, exchanges, slots. Pure; the layout is no interface."""

from __future__ import annotations

from penstock.graph.execution_graph import regions, slots_needed
from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex


def explain_graph(graph: JobGraph) -> str:
    """The plan in order of the vertices, each with its inputs, operators and outputs."""
    lines = [f"== Penstock job {graph.name} =="]
    for vertex in graph.vertices:
        lines += _vertex_lines(graph, vertex)
    for number, region in enumerate(regions(graph)):
        names = ", ".join(str(vertex) for vertex in sorted(region))
        lines.append(f"Region {number}: stages {names}, needs {slots_needed(graph, region)} task slots at once")
    if graph.result:
        lines.append("Result: stage " + ", ".join(str(vertex) for vertex in graph.result))
    else:
        lines.append("Result: none, the output of the last stage is dropped")
    return "\n".join(lines) + "\n"


def _vertex_lines(graph: JobGraph, vertex: JobVertex) -> list[str]:
    lines = [f"Stage {vertex.id}: {vertex.name} [parallelism {vertex.parallelism}]"]
    if vertex.source is not None:
        lines.append(f"  source: {getattr(vertex.source, 'name', type(vertex.source).__name__)}")
    if vertex.reads_dataframe:
        lines.append("  source: a Spark DataFrame")
    lines += [f"  input: {_edge_text(graph, edge)}" for edge in graph.inputs_of(vertex.id)]
    lines += [f"  operator: {operator.name}" for operator in vertex.operators]
    columns = ", ".join(f"{field.name}: {field.type}" for field in vertex.schema)
    lines.append(f"  output: ({columns})")
    return lines


def _edge_text(graph: JobGraph, edge: JobEdge) -> str:
    keys = ", ".join(getattr(edge.exchange, "keys", ()))
    partitioner = f"{edge.exchange.kind}({keys})" if keys else edge.exchange.kind
    producer = graph.vertex(edge.producer)
    consumer = graph.vertex(edge.consumer)
    return (
        f"edge {edge.id} from stage {producer.id}, {partitioner}, {edge.kind.label}, service {edge.service}, "
        f"{producer.parallelism} -> {consumer.parallelism}"
    )
