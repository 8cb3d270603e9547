# SPDX-License-Identifier: Apache-2.0
"""Streams to job graphs: fusing, sharing, unions, services and modes per edge, parallelism."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.graph import JobGraph
from penstock.shuffle import PartitionKind, Settings
from penstock.shuffle.errors import PlanError
from penstock.testing.sources import fromBatches

ROWS = pa.table({"k": ["a", "b"], "v": [1, 2]})


def same(batches: Any) -> Any:
    """The identity."""
    return batches


def other(batches: Any) -> Any:
    """The identity, too."""
    return batches


def source(partitions: int = 4) -> Stream:
    """A source that can run in as many subtasks."""
    return fromBatches(ROWS, partitions)


def graph(stream: Stream, slots: int = 8, **settings: str) -> JobGraph:
    """The graph of a stream."""
    conf = {f"spark.penstock.shuffle.{key}": value for key, value in settings.items()}
    return stream.plan(Settings.from_conf(conf), slots).graph


def shape(job: JobGraph) -> list[list[str]]:
    """The operators of each vertex."""
    return [[operator.name for operator in vertex.operators] for vertex in job.vertices]


def test_operators_between_exchanges_are_one_vertex() -> None:
    """Source and functions fuse; an exchange starts the next vertex; graph and operators pickle."""
    job = graph(source().mapInArrow(same, ROWS.schema).mapInArrow(other, ROWS.schema).keyBy("k").agg(n=("v", "sum")))
    assert shape(job) == [
        ["mapInArrow(same)", "mapInArrow(other)", "partial aggregate by k: n=sum(v)"],
        ["final aggregate by k: n=sum(v)"],
    ]
    assert job.result == (1,)
    assert [(edge.producer, edge.consumer, edge.exchange.kind) for edge in job.edges] == [(0, 1, "hash")]
    assert pickle.loads(pickle.dumps(job)) == job  # noqa: S301 - our own bytes


def test_a_stream_used_twice_runs_once() -> None:
    """Two exchanges over one stream are two edges of one vertex; two chains over it start behind forward edges."""
    shared = source(2).mapInArrow(same, ROWS.schema)
    job = graph(shared.keyBy("k").union(shared.keyBy("v")), 6)
    assert [(edge.producer, edge.consumer) for edge in job.edges] == [(0, 1), (0, 2)]
    job = graph(shared.mapInArrow(same, ROWS.schema).union(shared.mapInArrow(other, ROWS.schema)), 6)
    assert shape(job) == [["mapInArrow(same)"], ["mapInArrow(same)"], ["mapInArrow(other)"]]
    assert [edge.exchange.kind for edge in job.edges] == ["forward", "forward"]
    assert {vertex.parallelism for vertex in job.vertices} == {2}
    assert job.result == (1, 2)


def test_a_result_that_is_also_an_input() -> None:
    """A stream and something made from it can be one union: the stream's vertex is kept and read."""
    base = source(1)
    job = graph(base.union(base.mapInArrow(same, ROWS.schema)), 4)
    assert job.result == (0, 1)
    assert [edge.exchange.kind for edge in job.edges] == ["forward"]


def test_an_exchange_after_a_union_has_an_edge_for_each_branch() -> None:
    """Functions after a union go to each branch; the consumer has one input edge for each."""
    job = graph(source(1).union(source(1), source(1)).mapInArrow(same, ROWS.schema).rebalance(2))
    assert shape(job) == [["mapInArrow(same)"]] * 3 + [[]]
    assert [(edge.producer, edge.consumer) for edge in job.edges] == [(0, 3), (1, 3), (2, 3)]


def test_diamonds_are_refused_by_name() -> None:
    """Branches that share a stage cannot meet again behind pipelined edges."""
    shared = source().mapInArrow(same, ROWS.schema)
    diamond = shared.keyBy("k").union(shared.keyBy("v")).rebalance(1)
    with pytest.raises(PlanError, match=r"'rebalance'.*mapInArrow\(same\).*hash\(k\).*hash\(v\)"):
        graph(diamond)


def test_edges_have_their_own_mode_and_service() -> None:
    """What an edge says wins over the settings; what it does not say comes from them."""
    memory = "penstock.testing.memory_service:MemoryShuffleService"
    job = graph(source(1).rebalance(1).rebalance(1, mode="pipelined", service=memory), service="other")
    assert [edge.service for edge in job.edges] == ["other", memory]
    assert {edge.kind for edge in job.edges} == {PartitionKind.PIPELINED_BOUNDED}


@pytest.mark.parametrize(
    ("stream", "slots", "parallelisms"),
    [
        (source(9).rebalance(), 8, [4, 4]),
        (source(9).rebalance(6), 8, [2, 6]),
        (source(9).rebalance(8), 8, [1, 8]),
        (source(9).rebalance(20), 8, [1, 20]),
        (source(2).rebalance().rebalance(), 9, [2, 3, 3]),
        (source(9).toOne(), 8, [7, 1]),
        (source(9).keyBy(), 8, [7, 1]),
        (source(9).rebalance().rebalance(), 2, [1, 1, 1]),
        (source(9), 8, [8]),
        (source(1).rebalance(2).union(source(9)), 8, [1, 2, 5]),
    ],
)
def test_slots_are_shared_out(stream: Stream, slots: int, parallelisms: list[int]) -> None:
    """Asked numbers are kept, the rest is shared evenly, sources are not split finer than their parts."""
    assert [vertex.parallelism for vertex in graph(stream, slots).vertices] == parallelisms


def test_dataframes_stay_outside_the_graph() -> None:
    """The graph says that a vertex reads a DataFrame; the DataFrame itself is handed out beside it."""
    frame = object()
    plan = Stream((SourceStep("DataFrame", ROWS.schema, dataframe=frame),)).rebalance(2).plan(Settings(), 8)
    assert plan.dataframes == {0: frame}
    assert [vertex.reads_dataframe for vertex in plan.graph.vertices] == [True, False]


def test_a_run_keeps_no_result() -> None:
    """With keep=False no vertex is a result."""
    assert source().plan(Settings(), 8, keep=False).graph.result == ()


def test_explain_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """explain() prints stages, operators, exchange, mode, service, parallelism and slots."""
    source(2).keyBy("k", numPartitions=3).agg(n=("v", "sum")).explain()
    text = capsys.readouterr().out
    for part in ("batches in 2 partitions", "partial aggregate", "hash(k), pipelined_bounded, service local, 2 -> 3"):
        assert part in text
    assert "needs 5 task slots" in text
