# SPDX-License-Identifier: Apache-2.0
"""Who reads what: wiring of edges, regions, slots, and plans that would deadlock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.graph import (
    ExecutionGraph,
    JobEdge,
    JobGraph,
    JobVertex,
    Region,
    explain_graph,
    refuse_deadlocks,
    regions,
    slots_needed,
)
from penstock.graph.shares import Share
from penstock.shuffle import PartitionKind
from penstock.shuffle.errors import PlanError

SCHEMA = pa.schema([("a", pa.int64())])


@dataclass(frozen=True)
class Kind:
    """An exchange of which only the kind matters here."""

    kind: str


class Both:
    """A combining step of which only its presence matters here."""

    name = "both"

    def apply(self, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """One side after the other."""
        return chain(*inputs)


def graph(
    parallelisms: list[int], edges: list[tuple[int, int]], kind: str = "hash", blocking: frozenset[int] = frozenset()
) -> JobGraph:
    """A graph of vertices named v0, v1, ..."""
    vertices = tuple(JobVertex(i, f"v{i}", count, SCHEMA) for i, count in enumerate(parallelisms))
    kinds = [
        PartitionKind.BLOCKING_SORT_MERGE if i in blocking else PartitionKind.PIPELINED_BOUNDED for i in range(99)
    ]
    joined = tuple(
        JobEdge(i, producer, consumer, Kind(kind), SCHEMA, kinds[i], "local")
        for i, (producer, consumer) in enumerate(edges)
    )
    return JobGraph("job", vertices, joined)


counts = st.integers(1, 20)


@given(counts, counts, st.sampled_from(["hash", "rebalance", "broadcast", "random", "rescale"]))
def test_every_subpartition_has_exactly_one_reader(producers: int, consumers: int, kind: str) -> None:
    """All channels of all consumers together are all subpartitions of all producers, each once."""
    execution = ExecutionGraph(graph([producers, consumers], [(0, 1)], kind))
    written = [(p, s) for p in range(producers) for s in range(execution.subpartitions_of(0, p))]
    read = [channel for consumer in range(consumers) for channel in execution.channels_of(0, consumer)]
    assert sorted((p, s) for p, s, _ in read) == written
    assert all(count == 1 for _, _, count in read)


@given(counts, counts)
def test_pointwise_edges_are_balanced_and_local(producers: int, consumers: int) -> None:
    """A rescale edge gives each consumer a contiguous, nearly equal share, and no consumer nothing."""
    execution = ExecutionGraph(graph([producers, consumers], [(0, 1)], "rescale"))
    shares = [execution.channels_of(0, consumer) for consumer in range(consumers)]
    assert all(shares)
    if producers >= consumers:
        assert {len(share) for share in shares} <= {producers // consumers, -(-producers // consumers)}
        assert [p for share in shares for p, _, _ in share] == list(range(producers))
    else:
        fans = [execution.subpartitions_of(0, p) for p in range(producers)]
        assert set(fans) <= {consumers // producers, -(-consumers // producers)}


def test_all_to_all_channels() -> None:
    """Consumer i reads subpartition i of every producer."""
    execution = ExecutionGraph(graph([3, 2], [(0, 1)]))
    assert execution.channels_of(0, 1) == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
    assert execution.subpartitions_of(0, 2) == 2


def test_forward_needs_equal_parallelism() -> None:
    """A forward edge between different parallelisms is refused with both numbers."""
    ExecutionGraph(graph([2, 2], [(0, 1)], "forward"))
    with pytest.raises(PlanError, match="from 2 to 3"):
        ExecutionGraph(graph([2, 3], [(0, 1)], "forward"))


def test_unknown_subtasks_are_errors() -> None:
    """Asking for a subtask that is not there is an IndexError, not an empty answer."""
    execution = ExecutionGraph(graph([3, 2], [(0, 1)]))
    with pytest.raises(IndexError, match="2 consumer subtasks"):
        execution.channels_of(0, 2)
    with pytest.raises(IndexError, match="3 producer subtasks"):
        execution.subpartitions_of(0, 3)
    with pytest.raises(KeyError):
        execution.subpartitions_of(5, 0)


def test_subtasks_are_listed_by_vertex() -> None:
    """All subtasks come vertex by vertex."""
    execution = ExecutionGraph(graph([2, 1], [(0, 1)]))
    assert [(vertex.id, subtask) for vertex, subtask in execution.subtasks()] == [(0, 0), (0, 1), (1, 0)]


def test_regions_are_cut_by_blocking_edges() -> None:
    """Pipelined edges join vertices, blocking ones do not; what nothing joins runs on any number of slots."""
    job = graph([2, 3, 4, 5], [(0, 1), (1, 2)], blocking=frozenset({1}))
    assert regions(job) == (Region(0, (3,), False), Region(1, (0, 1), True), Region(2, (2,), False))
    assert [slots_needed(job, region) for region in regions(job)] == [1, 5, 1]


def test_what_is_ready_at_the_same_time_shares_the_slots() -> None:
    """Stages without pipelined edges and with nothing to wait for are one region; joined ones stay their own."""
    job = graph([1] * 6, [(0, 4), (1, 4), (2, 3), (4, 5)], blocking=frozenset({0, 1, 3}))
    assert [region.vertices for region in regions(job)] == [(0, 1), (2, 3), (4,), (5,)]


def test_regions_come_behind_what_they_read() -> None:
    """The order is that of the blocking edges, whatever the order of the vertices."""
    job = graph([1, 1, 1], [(2, 1), (1, 0)], blocking=frozenset({0, 1}))
    assert [region.vertices for region in regions(job)] == [(2,), (1,), (0,)]


def test_regions_that_wait_for_each_other_are_refused() -> None:
    """A pipelined edge around a blocking detour has no order; so has a combining stage that is fed both ways."""
    with pytest.raises(PlanError, match="only gives later"):
        regions(graph([1, 1, 1], [(0, 1), (0, 2), (2, 1)], blocking=frozenset({1, 2})))
    job = graph([1, 1, 1, 1], [(0, 1), (0, 2), (1, 3), (2, 3)], blocking=frozenset({3}))
    both = replace(job.vertex(3), combine=Both())
    with pytest.raises(PlanError, match="over a blocking exchange"):
        regions(job.with_vertex(both))


def test_channels_of_a_chosen_parallelism() -> None:
    """Producers write all subpartitions; consumers read ranges, evenly before the choice and by share after it."""
    job = graph([2, 3], [(0, 1)], blocking=frozenset({0}))
    open_job = job.with_vertex(replace(job.vertex(1), subpartitions=10))
    assert ExecutionGraph(open_job).subpartitions_of(0, 1) == 10
    assert ExecutionGraph(open_job).channels_of(0, 1) == [(0, 3, 3), (1, 3, 3)]
    shares = (Share(0, 9), Share(9, 1, 0, 2), Share(9, 1, 1, 2))
    chosen = ExecutionGraph(open_job.with_vertex(replace(open_job.vertex(1), parallelism=3, shares=shares)))
    assert chosen.channels_of(0, 0) == [(0, 0, 9), (1, 0, 9)]
    assert [chosen.channels_of(0, i) for i in (1, 2)] == [[(0, 9, 1)], [(1, 9, 1)]]


@pytest.mark.parametrize(
    ("edges", "names"),
    [
        ([(0, 1), (0, 1)], ["v0 -> v1"]),
        ([(0, 1), (0, 2), (1, 3), (2, 3)], ["v0 -> v1 -> v3", "v0 -> v2 -> v3"]),
        ([(0, 1), (1, 2), (0, 2)], ["v0 -> v1 -> v2", "v0 -> v2"]),
    ],
)
def test_second_pipelined_path_is_refused(edges: list[tuple[int, int]], names: list[str]) -> None:
    """A diamond, a triangle and a double edge are refused by the names of both paths, with what to do."""
    with pytest.raises(PlanError, match="blocking") as caught:
        refuse_deadlocks(graph([1, 1, 1, 1], edges))
    assert all(name in str(caught.value) for name in names)


def test_blocking_edges_break_a_diamond() -> None:
    """Where one side of a diamond is blocking, nothing can deadlock; trees never can."""
    refuse_deadlocks(graph([1, 1, 1, 1], [(0, 1), (0, 2), (1, 3), (2, 3)], blocking=frozenset({3})))
    refuse_deadlocks(graph([1, 1, 1, 1], [(0, 1), (0, 2), (3, 1), (3, 2)]))


def test_two_combining_stages_over_the_same_producers_are_refused() -> None:
    """Each reads one side before the other, so they could wait for each other; blocking edges are the way out."""
    edges = [(0, 2), (1, 2), (0, 3), (1, 3)]

    def crossed(blocking: frozenset[int]) -> JobGraph:
        job = graph([1] * 4, edges, blocking=blocking)
        sides = tuple(replace(edge, side=edge.producer) for edge in job.edges)
        job = replace(job, edges=sides)
        for number in (2, 3):
            job = job.with_vertex(replace(job.vertex(number), combine=Both()))
        return job

    with pytest.raises(PlanError, match="'v2' and 'v3' read the same stages"):
        refuse_deadlocks(crossed(frozenset()))
    refuse_deadlocks(crossed(frozenset({2, 3})))


def test_a_tree_of_combining_stages_is_fine() -> None:
    """A join of a join reads different producers on each side."""
    job = graph([1] * 5, [(0, 3), (1, 3), (3, 4), (2, 4)])
    sides = (0, 1, 0, 1)
    job = replace(job, edges=tuple(replace(edge, side=side) for edge, side in zip(job.edges, sides, strict=True)))
    for number in (3, 4):
        job = job.with_vertex(replace(job.vertex(number), combine=Both()))
    refuse_deadlocks(job)


def test_explanation_names_what_matters() -> None:
    """The plan text holds stages, exchanges with mode and service, and the slots of each region."""
    text = explain_graph(graph([2, 3], [(0, 1)]))
    assert "Stage 1: v1 [parallelism 3]" in text
    assert "edge 0 from stage 0, hash, pipelined_bounded, service local, 2 -> 3" in text
    assert "needs 5 task slots" in text
