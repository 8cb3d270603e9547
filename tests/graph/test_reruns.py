# SPDX-License-Identifier: Apache-2.0
"""Plans that run once more: nothing needs slots at the same time, and which partitions get the same rows again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graph_shapes import HYBRID, Both, graph
from penstock.graph import JobGraph, JobVertex, regions, slots_needed
from penstock.graph.reruns import for_any_slots, rows_have_places
from penstock.graph.shares import Share


def result_of(plan: JobGraph, *vertices: int) -> JobGraph:
    """The plan with these vertices as its result."""
    return replace(plan, result=vertices)


def kinds(plan: JobGraph, *how: str) -> JobGraph:
    """The plan with exchanges of these kinds, edge by edge."""
    edges = [
        replace(edge, exchange=replace(edge.exchange, kind=kind)) for edge, kind in zip(plan.edges, how, strict=True)
    ]
    return replace(plan, edges=tuple(edges))


def with_vertex(plan: JobGraph, number: int, **changes: object) -> JobGraph:
    """The plan with a vertex changed."""
    return plan.with_vertex(replace(plan.vertex(number), **changes))  # type: ignore[arg-type]


def test_no_region_needs_more_than_one_slot() -> None:
    """Pipelined edges are replaced, the others kept, and so is everything else."""
    plan = graph([3, 4, 5], [(0, 1), (1, 2), (0, 2)], blocking=frozenset({1}), hybrid=frozenset({2}))
    again = for_any_slots(plan)
    assert [edge.kind for edge in again.edges] == [HYBRID, plan.edge(1).kind, plan.edge(2).kind]
    assert all(slots_needed(again, region) == 1 for region in regions(again))
    assert again.vertices == plan.vertices
    assert for_any_slots(again) == again


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("hash", True),
        ("custom", True),
        ("broadcast", True),
        ("to_one", True),
        ("forward", True),
        ("rebalance", False),
        ("rescale", False),
        ("random", False),
        ("range", False),
    ],
)
def test_one_exchange(how: str, expected: bool) -> None:
    """Rows that go where their values or the plan say have a place; those that are dealt out have none."""
    assert rows_have_places(result_of(graph([2, 3], [(0, 1)], how), 1)) is expected


def test_behind_a_deal_a_hash_gives_places_again() -> None:
    """If what stands between looks at single rows only, which nobody knows of an operator."""
    plan = result_of(kinds(graph([2, 3, 3], [(0, 1), (1, 2)]), "rebalance", "hash"), 2)
    assert rows_have_places(plan)
    assert not rows_have_places(result_of(plan, 1))
    assert not rows_have_places(with_vertex(plan, 1, operators=(object(),)))
    assert not rows_have_places(with_vertex(plan, 1, combine=Both()))


def test_a_dataframe_gives_the_same_rows_in_any_partition() -> None:
    """Spread by values they have a place, as they are they have none."""
    plan = with_vertex(result_of(graph([2, 3], [(0, 1)]), 1), 0, reads_dataframe=True)
    assert rows_have_places(plan)
    assert not rows_have_places(kinds(plan, "forward"))
    assert not rows_have_places(with_vertex(plan, 0, operators=(object(),)))


def test_a_subpartition_read_in_parts_depends_on_its_producers() -> None:
    """A part is what some producers wrote: the same rows only where theirs are."""
    plan = result_of(kinds(graph([2, 3, 2], [(0, 1), (1, 2)]), "rebalance", "hash"), 2)
    shares = (Share(0, 1, part=0, parts=2), Share(0, 1, part=1, parts=2))
    assert not rows_have_places(with_vertex(plan, 2, shares=shares))
    assert rows_have_places(with_vertex(kinds(plan, "hash", "hash"), 2, shares=shares))


def test_every_result_counts() -> None:
    """One result vertex without places is enough; a source of ours reads its own share each time."""
    plan = kinds(graph([2, 3, 3], [(0, 1), (0, 2)]), "hash", "rebalance")
    assert rows_have_places(result_of(plan, 0, 1))
    assert not rows_have_places(result_of(plan, 1, 2))
    assert isinstance(plan.vertex(0), JobVertex)
