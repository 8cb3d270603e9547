# SPDX-License-Identifier: Apache-2.0
"""Streams to job graphs: fusing, sharing, unions, services and modes per edge, parallelism."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.api.lineage import SourceStep
from penstock.api.plan import plan_job
from penstock.api.readers import readParquet, readText
from penstock.api.stream import Stream
from penstock.errors import PlanError
from penstock.graph import JobGraph, Resources
from penstock.graph.shares import FEW_BYTES
from penstock.settings import Settings
from penstock.shuffle import PartitionKind
from penstock.shuffle.kinds import MODES
from penstock.testing.local_runner import run_local
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
        ["aggregate by k: n=sum(v)"],
    ]
    assert job.result == (1,)
    assert [(edge.producer, edge.consumer, edge.exchange.kind) for edge in job.edges] == [(0, 1, "hash")]
    assert pickle.loads(pickle.dumps(job)) == job  # noqa: S301 - our own bytes


def test_a_stream_used_twice_runs_once() -> None:
    """Two exchanges over one stream are two edges of one vertex; two chains over it start after forward edges."""
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


def test_diamonds_that_end_in_a_union_stay_pipelined() -> None:
    """Branches that share a stage may meet again where all that comes is read."""
    shared = source().mapInArrow(same, ROWS.schema)
    job = graph(shared.keyBy("k", numPartitions=2).union(shared.keyBy("v", numPartitions=2)).rebalance(1), 9)
    assert {edge.kind for edge in job.edges} == {PartitionKind.PIPELINED_BOUNDED}
    assert job.notes == ()


def test_diamonds_that_end_in_a_join_store_what_is_read_last() -> None:
    """One exchange is hybrid and a note says why; of those the user did not give a mode where that is possible."""

    def join(mode: str | None) -> JobGraph:
        shared = source(2).mapInArrow(same, ROWS.schema)
        left = shared.keyBy("k", numPartitions=1, mode=mode).agg(v=("v", "max")).mapInArrow(same, ROWS.schema)
        right = shared.keyBy("v", numPartitions=1).mapInArrow(other, ROWS.schema).mapInArrow(same, "k string, w long")
        return graph(left.keyBy("k", mode=mode).join(right.keyBy("k", numPartitions=2)))

    job = join(None)
    hybrid = [edge for edge in job.edges if edge.kind is PartitionKind.HYBRID_FULL]
    assert [(edge.consumer, edge.side) for edge in hybrid] == [(4, 0)]
    assert len(job.notes) == 1
    assert "(hash(k) + aggregate by k + mapInArrow(same) -> inner join on k): hybrid_full" in job.notes[0]
    job = join("pipelined")
    hybrid = [edge for edge in job.edges if edge.kind is PartitionKind.HYBRID_FULL]
    assert [(edge.producer, edge.consumer) for edge in hybrid] == [(0, 1)]


def test_auto_is_blocking_where_writers_need_more_buffers_than_there_are() -> None:
    """Each writer needs two, however wide it is; a note says so, and what the user asked for stays."""
    stream = source(6).keyBy("k", numPartitions=6).mapInArrow(same, ROWS.schema).rebalance(6)
    plan = plan_job(stream.branches, Settings(), 18, buffers=2 * 12).graph
    assert [edge.kind for edge in plan.edges] == [PartitionKind.PIPELINED_BOUNDED] * 2
    plan = plan_job(stream.branches, Settings(), 18, buffers=2 * 12 - 1).graph
    assert not any(edge.kind.runs_together or edge.kind.is_hybrid for edge in plan.edges)
    assert "because 12 writers at once would need 24 network buffers and there are 23" in plan.notes[0]
    crowded = plan_job(stream.branches, Settings(), 6, buffers=11).graph
    assert not any(edge.kind.runs_together or edge.kind.is_hybrid for edge in crowded.edges)
    stream = source(6).keyBy("k", numPartitions=6, mode="pipelined")
    asked = plan_job(stream.branches, Settings(), 18, buffers=4).graph
    assert [edge.kind for edge in asked.edges] == [PartitionKind.PIPELINED_BOUNDED]


def test_auto_is_hybrid_where_not_everything_fits() -> None:
    """Stages that run at once must fit the slots; a note has the numbers; then each has all slots to itself."""
    stream = source(9).keyBy("k", numPartitions=4).rebalance(2)
    assert {edge.kind for edge in graph(stream, 11).edges} == {PartitionKind.PIPELINED_BOUNDED}
    job = graph(stream, 6)
    assert [edge.kind for edge in job.edges] == [PartitionKind.HYBRID_FULL] * 2
    assert [vertex.parallelism for vertex in job.vertices] == [6, 4, 2]
    assert [vertex.subpartitions for vertex in job.vertices] == [None] * 3
    reason = "hybrid_full, because all stages at once would need 7 slots and there are 6"
    assert job.notes == (
        f"exchange 0 (batches in 9 partitions -> hash(k)): {reason}",
        f"exchange 1 (hash(k) -> rebalance): {reason}",
    )


def test_auto_is_hybrid_where_a_stage_would_have_few_of_the_slots() -> None:
    """Work is often in one stage: at once it has its share of the slots, else all; asked numbers and parts count."""
    three = source(9).rebalance().mapInArrow(same, ROWS.schema).rebalance()
    job = graph(three, 4)
    assert [edge.kind for edge in job.edges] == [PartitionKind.HYBRID_FULL] * 2
    assert [vertex.parallelism for vertex in job.vertices] == [4, 4, 4]
    assert "because at once the stage 'batches in 9 partitions' would have 1 of 4 slots" in job.notes[0]
    for stream, slots, tasks in ((source(4).rebalance(), 3, [3, 3]), (three, 3, [3, 3, 3])):  # a third is below half
        assert [vertex.parallelism for vertex in graph(stream, slots).vertices] == tasks
    for stream, slots in (
        (source(9).rebalance(), 4),  # two stages have half of the slots each
        (source(1).rebalance(2).rebalance(1), 4),  # nothing may be wider
        (source(9).rebalance(mode="pipelined").rebalance(mode="pipelined"), 4),
    ):
        assert {edge.kind for edge in graph(stream, slots).edges} == {PartitionKind.PIPELINED_BOUNDED}


def test_auto_stays_pipelined_where_sources_hold_next_to_nothing() -> None:
    """More tasks cost more than they give where all sources are known to be small; others may be large."""

    def three(size: int | None, other_size: int | None) -> JobGraph:
        branches = [SourceStep("file", ROWS.schema, limit=9, bytes=each) for each in (size, other_size)]
        return graph(Stream(tuple(branches)).rebalance().rebalance(), 4)

    for sizes in ((1, FEW_BYTES - 2), (1, 0)):
        assert {edge.kind for edge in three(*sizes).edges} == {PartitionKind.PIPELINED_BOUNDED}
    for sizes in ((1, FEW_BYTES - 1), (1, None), (None, None)):
        assert {edge.kind for edge in three(*sizes).edges} == {PartitionKind.HYBRID_FULL}


def test_readers_say_how_much_their_files_hold(tmp_path: Path) -> None:
    """So three stages over a small file stay pipelined, and over a large one they do not."""
    for rows, kind in ((10, PartitionKind.PIPELINED_BOUNDED), (FEW_BYTES, PartitionKind.HYBRID_FULL)):
        numbers = pa.table({"v": range(rows)})
        pq.write_table(numbers, tmp_path / "rows.parquet", row_group_size=max(1, rows // 4))
        (tmp_path / "rows.txt").write_text("line\n" * rows * 4)
        for stream in (readParquet(None, tmp_path / "rows.parquet"), readText(None, tmp_path / "rows.txt")):
            assert {edge.kind for edge in graph(stream.rebalance().rebalance(), 4).edges} == {kind}


def test_auto_is_chosen_region_by_region() -> None:
    """A part of the plan that fits stays pipelined; the note names the stages that do not."""
    wide = source(2).rebalance(9)
    narrow = source(2).rebalance(2)
    job = graph(wide.union(narrow))
    assert [edge.kind for edge in job.edges] == [PartitionKind.HYBRID_FULL, PartitionKind.PIPELINED_BOUNDED]
    assert [vertex.parallelism for vertex in job.vertices] == [2, 9, 2, 2]
    assert "because the stages 'batches in 2 partitions', 'rebalance' at once would need 10 slots" in job.notes[0]


def test_what_was_asked_to_be_pipelined_stays() -> None:
    """By the edge or by the settings: the JobMaster may refuse it; the automatic edges around it give way."""
    job = graph(source(9).rebalance(4, mode="pipelined").rebalance(7), 8)
    assert [edge.kind for edge in job.edges] == [PartitionKind.PIPELINED_BOUNDED, PartitionKind.HYBRID_FULL]
    assert [vertex.parallelism for vertex in job.vertices] == [4, 4, 7]
    for job in (
        graph(source(9).rebalance(9, mode="pipelined")),
        graph(source(9).rebalance(9), mode="pipelined"),
    ):
        assert [edge.kind for edge in job.edges] == [PartitionKind.PIPELINED_BOUNDED]
        assert job.notes == ()


def test_modes_are_kinds() -> None:
    """Each word of the vocabulary gives its kind, by edge or for the whole job; readers of hybrid have all slots."""
    for mode, kind in MODES.items():
        expected = PartitionKind.PIPELINED_BOUNDED if mode == "auto" else kind
        for job in (graph(source(9).rebalance(mode=mode)), graph(source(9).rebalance(), mode=mode)):
            assert [edge.kind for edge in job.edges] == [expected]
            assert [vertex.parallelism for vertex in job.vertices] == ([4, 4] if expected.runs_together else [8, 8])
            open_ones = [vertex.subpartitions is not None for vertex in job.vertices]
            assert open_ones == [False, not expected.pipelined]


def test_edges_have_their_own_mode_and_service() -> None:
    """A choice of an edge wins over the settings; a choice that it leaves out comes from them."""
    memory = "penstock.testing.memory_service:MemoryShuffleService"
    stream = source(1).rebalance(1).rebalance(1, mode="pipelined", service="local")
    job = graph(stream, service=memory, mode="blocking")
    assert [edge.service for edge in job.edges] == [memory, "local"]
    assert [edge.kind for edge in job.edges] == [PartitionKind.BLOCKING_SORT_MERGE, PartitionKind.PIPELINED_BOUNDED]


@pytest.mark.parametrize(
    ("stream", "slots", "parallelisms"),
    [
        (source(9).rebalance(), 8, [4, 4]),
        (source(9).rebalance(4), 8, [4, 4]),
        (source(9).rebalance(6), 8, [8, 6]),
        (source(9).rebalance(6, mode="pipelined"), 8, [2, 6]),
        (source(9).rebalance(8), 8, [8, 8]),
        (source(9).rebalance(8, mode="pipelined"), 8, [1, 8]),
        (source(9).rebalance(20, mode="pipelined"), 8, [1, 20]),
        (source(9).rebalance(20), 8, [8, 20]),
        (source(9).rebalance(mode="hybrid").rebalance(), 8, [8, 4, 4]),
        (source(2).rebalance().rebalance(), 9, [2, 9, 9]),
        (source(9).toOne(), 8, [7, 1]),
        (source(9).keyBy(), 8, [7, 1]),
        (source(9).rebalance().rebalance(), 2, [2, 2, 2]),
        (source(9), 8, [8]),
        (source(1).rebalance(2).union(source(9)), 8, [1, 2, 8]),
    ],
)
def test_slots_are_shared_out(stream: Stream, slots: int, parallelisms: list[int]) -> None:
    """Asked numbers are kept, each region shares the rest evenly, sources are not split finer than their parts."""
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
    assert "Note" not in text
    for part in ("batches in 2 partitions", "partial aggregate", "hash(k), pipelined_bounded, service local, 2 -> 3"):
        assert part in text
    assert "needs 5 task slots" in text
    source(2).keyBy("k", numPartitions=8).agg(n=("v", "sum")).explain()
    text = capsys.readouterr().out
    assert "hash(k), hybrid_full, service local, 2 -> 8" in text
    assert "Note: exchange 0 (batches in 2 partitions + partial aggregate by k -> hash(k) + aggregate" in text
    assert "because all stages at once would need 9 slots and there are 8" in text


def test_a_plan_speaks_of_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    """Stages and exchanges are called what their user called, also those without keys."""
    source(2).toOne().agg(n=("v", "sum")).partitionCustom(lambda batch: batch["n"], 1).explain()
    text = capsys.readouterr().out
    assert "Stage 1: toOne + aggregate of all rows" in text
    assert "partitionCustom" in text
    assert "to_one" not in text


def test_resources_are_the_stage_s() -> None:
    """A profile belongs to the stage that gives the rows, whole; two in one stage are refused, executors' too."""
    from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests

    gpu = ResourceProfileBuilder().require(TaskResourceRequests().cpus(2).resource("gpu", 1)).build
    stream = source().keyBy("k").mapInArrow(same, ROWS.schema).withResources(gpu).mapInArrow(same, ROWS.schema)
    wanted = Resources(2.0, (("gpu", 1.0),), slots=2)
    assert [vertex.resources for vertex in graph(stream.rebalance()).vertices] == [None, wanted, None]
    assert wanted.title == "2 cpus and 1 gpu"
    more = ResourceProfileBuilder().require(TaskResourceRequests().cpus(3)).build
    with pytest.raises(PlanError, match="put an exchange"):
        graph(stream.withResources(more))
    wide = ResourceProfileBuilder().require(ExecutorResourceRequests().cores(2)).build
    with pytest.raises(PlanError, match="executor resources"):
        stream.withResources(wide)
    with pytest.raises(TypeError, match="ResourceProfile"):
        stream.withResources({"cpus": 2})


@pytest.mark.parametrize("cpus", [0, 0.5, 1.5])
def test_parts_of_a_core_are_refused(cpus: float) -> None:
    """Spark cuts off the part behind the point, and would give such a task one core or none."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(cpus)).build  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=f"asks for {cpus:g} cpus per task.*whole cores"):
        source().withResources(profile)


def test_a_stream_draws_its_plan_in_a_notebook() -> None:
    """A picture with the stages, and the text of explain(); a plan that can't be says why, and raises nothing."""
    page = source(2).keyBy("k", numPartitions=3).agg(n=("v", "sum"))._repr_html_()
    assert page.startswith("<svg ")
    assert "hash(k), pipelined" in page
    assert "== Penstock job" in page
    two = penstock.readStream(None).format("rate").load()
    assert "<svg " in two.keyBy("value").count()._repr_html_()


def test_a_union_of_very_many_files_is_one_stage(tmp_path: Path) -> None:
    """Files of one kind with the same verbs after them; what differs, or others read too, keeps its stage."""
    for number in range(40):
        pq.write_table(pa.table({"v": [number]}), tmp_path / f"{number}.parquet")
        (tmp_path / f"{number}.txt").write_text(f"{number}\n")
    many = [readParquet(None, tmp_path / f"{number}.parquet") for number in range(40)]
    few, whole = (first.union(*rest).mapInArrow(same, "v long") for first, *rest in (many[:3], many))
    lines = [readText(None, tmp_path / f"{number}.txt") for number in range(40)]
    texts = lines[0].union(*lines[1:]).rebalance(2)
    shared = whole.union(*(each.mapInArrow(other, "v long") for each in many[:2])).rebalance(2)
    assert [len(graph(stream).vertices) for stream in (few, whole, texts, shared)] == [3, 1, 2, 1 + 2 * 3 + 1]
    assert sorted(run_local(whole)["v"].to_pylist()) == list(range(40))
    assert sorted(run_local(texts)["value"].to_pylist(), key=int) == [str(number) for number in range(40)]
