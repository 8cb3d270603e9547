# SPDX-License-Identifier: Apache-2.0
"""Regions: what runs at once, in which order, on how many slots."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from graph_shapes import BLOCKING, HYBRID, PIPELINED, any_graphs, graph
from penstock.graph import JobGraph, Region, explain_graph, regions, slots_needed, without_deadlocks


def test_only_exchanges_that_wait_for_their_readers_join() -> None:
    """A region runs at once; a vertex with stored exchanges only is one of its own, on any number of slots."""
    job = graph([2, 3, 4, 5], [(0, 1), (1, 2)], blocking=frozenset({1}))
    assert regions(job) == (Region(0, (0, 1), True), Region(1, (2,), False), Region(2, (3,), False))
    assert [slots_needed(job, region) for region in regions(job)] == [5, 1, 1]


def test_hybrid_exchanges_order_regions() -> None:
    """They join nothing, and the consumer comes after the producer."""
    job = graph([1] * 4, [(2, 1), (1, 0), (3, 0)], hybrid=frozenset({0, 1}))
    assert [region.vertices for region in regions(job)] == [(2,), (1,), (0, 3)]


def test_regions_come_behind_what_they_read() -> None:
    """The order is that of the stored edges, whatever the order of the vertices; else the first vertex decides."""
    job = graph([1, 1, 1], [(2, 1), (1, 0)], blocking=frozenset({0, 1}))
    assert [region.vertices for region in regions(job)] == [(2,), (1,), (0,)]
    job = graph([1] * 6, [(0, 4), (1, 4), (2, 3), (4, 5)], blocking=frozenset({0, 1, 3}))
    assert [region.vertices for region in regions(job)] == [(0,), (1,), (2, 3), (4,), (5,)]


def test_a_stored_edge_inside_a_region_orders_nothing() -> None:
    """Its ends are joined by another way and run together."""
    job = graph([1, 1], [(0, 1), (0, 1)], hybrid=frozenset({1}))
    assert regions(job) == (Region(0, (0, 1), True),)


@given(any_graphs(most=9, kinds=(PIPELINED, HYBRID, BLOCKING)))
def test_regions_of_any_plan(job: JobGraph) -> None:
    """Every vertex is in one region, joined ones in the same, and each region comes after those that it reads."""
    job, _ = without_deadlocks(job)
    found = regions(job)
    assert [region.number for region in found] == list(range(len(found)))
    assert sorted(vertex for region in found for vertex in region.vertices) == [v.id for v in job.vertices]
    place = {vertex: region for region in found for vertex in region.vertices}
    for edge in job.edges:
        producer, consumer = place[edge.producer], place[edge.consumer]
        if edge.kind.runs_together:
            assert producer is consumer
        else:
            assert producer.number <= consumer.number
    assert all(region.at_once == (len(region.vertices) > 1) for region in found)


def test_explanation_names_what_matters() -> None:
    """The plan text holds stages, exchanges with mode and service, the slots of each region, and the notes."""
    job = replace(graph([2, 3, 4], [(0, 1), (1, 2)], hybrid=frozenset({1})), notes=("exchange 1 is hybrid, because",))
    text = explain_graph(job)
    for part in (
        "Stage 1: v1 [parallelism 3]",
        "edge 0 from stage 0, hash, pipelined_bounded, service local, 2 -> 3",
        "edge 1 from stage 1, hash, hybrid_full, service local, 3 -> 4",
        "Region 0: stages 0, 1, needs 5 task slots at once",
        "Region 1: stage 2, 4 tasks on any number of slots",
        "Note: exchange 1 is hybrid, because",
    ):
        assert part in text
