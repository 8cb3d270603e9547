# SPDX-License-Identifier: Apache-2.0
"""The wiring of edges: for each task the partitions that it reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_shapes import graph
from penstock.errors import PlanError
from penstock.graph import ExecutionGraph
from penstock.graph.shares import Share

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
