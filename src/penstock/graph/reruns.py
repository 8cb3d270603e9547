# SPDX-License-Identifier: Apache-2.0
"""The plan of a finished job, made fit to run once more for readers that hold the slots. Pure.

Tasks that wait for a lost partition work for the job that recomputes it, and their number is not known. So no
stage of it may need slots at the same time: every exchange whose producer would wait for its readers is stored, if
its service can do that.
Choices of the first run stay, so partitions keep their number and their meaning.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex

_BY_VALUE = frozenset({"hash", "custom", "broadcast", "to_one"})
"""Exchanges that send a row where its values, or the plan, say; the others go by the order in which rows come."""


def for_any_slots(graph: JobGraph) -> JobGraph:
    """The same job, for any number of slots."""
    return replace(graph, edges=tuple(_not_together(edge) for edge in graph.edges))


def _not_together(edge: JobEdge) -> JobEdge:
    return replace(edge, kind=edge.stored) if edge.kind.runs_together and edge.stored is not None else edge


def rows_have_places(graph: JobGraph) -> bool:
    """Tell whether each partition of the result holds the same rows on every run, in whatever order.

    Assumed of user code and of DataFrames: the same rows in, the same rows out. A DataFrame's rows may come in other
    partitions, so what is made of one partition's rows together may differ.
    """
    places = _FixedPlaces(graph)
    return all(places.is_fixed(vertex) for vertex in graph.result)


class _FixedPlaces:
    """Answers for one graph; each vertex is looked at once."""

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self._fixed: dict[int, bool] = {}

    def is_fixed(self, number: int) -> bool:
        """Tell whether each subtask of a vertex gives the same rows on every run."""
        if number not in self._fixed:
            self._fixed[number] = self._look(self._graph.vertex(number))
        return self._fixed[number]

    def _look(self, vertex: JobVertex) -> bool:
        edges = self._graph.inputs_of(vertex.id)
        if not edges:
            return not vertex.reads_dataframe
        in_parts = any(share.parts > 1 for share in vertex.shares)
        return all(self._brings_fixed(edge, in_parts=in_parts) for edge in edges)

    def _brings_fixed(self, edge: JobEdge, *, in_parts: bool) -> bool:
        """Tell whether a consumer gets the same rows over an edge; it reads only some of the producers, or all."""
        by_value = edge.exchange.kind in _BY_VALUE
        if not by_value and edge.exchange.kind != "forward":
            return False
        return self.is_fixed(edge.producer) or (by_value and not in_parts and self._gives_all(edge.producer))

    def _gives_all(self, number: int) -> bool:
        """Tell whether all subtasks together give the same rows on every run, although each by itself may not."""
        vertex = self._graph.vertex(number)
        if vertex.operators or vertex.combine is not None:
            return False
        producers = [edge.producer for edge in self._graph.inputs_of(number)]
        return all(self.is_fixed(producer) or self._gives_all(producer) for producer in producers)
