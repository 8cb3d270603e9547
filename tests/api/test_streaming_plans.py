# SPDX-License-Identifier: Apache-2.0
"""Streams without an end: how their queries are planned, what is refused and by which name. Without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock
from penstock.api.lineage import SourceStep
from penstock.api.plan import PLANNING_SLOTS
from penstock.api.stream import Stream
from penstock.api.streaming.in_flight import most_in_flight
from penstock.api.streaming.options import Options
from penstock.api.streaming.writer import query_graph, query_options
from penstock.errors import PlanError, SchemaError, SettingError
from penstock.graph import JobGraph, explain_graph
from penstock.graph.regions import regions, slots_needed
from penstock.job.core.slots.refusals import too_few_slots
from penstock.settings import NetworkSettings, Settings, StreamingSettings
from penstock.shuffle import PartitionKind
from penstock.stream.noop import NoopSink
from penstock.stream.pace import MOST_ROWS

OPTIONS = query_options("id", "counts", "/nowhere", StreamingSettings())


def rate(partitions: int = 2, **options: object) -> Stream:
    """Rows that are made up."""
    return penstock.readStream(None).format("rate").options(numPartitions=partitions, **options).load()


def planned(stream: Stream, slots: int = 8) -> JobGraph:
    """The job of a query that drops these rows."""
    return query_graph(stream.branches, NoopSink(), Settings(), slots, OPTIONS)


def test_query_is_one_region_of_pipelined_exchanges() -> None:
    """All stages run at once, whatever the settings say of batch jobs, and one slot is left to others."""
    settings = replace(Settings(), shuffle=replace(Settings().shuffle, mode="blocking"))
    stream = rate()
    graph = query_graph(stream.keyBy("value").count().branches, NoopSink(), settings, 8, OPTIONS)
    assert [edge.kind for edge in graph.edges] == [PartitionKind.PIPELINED_BOUNDED]
    (region,) = regions(graph)
    assert region.at_once
    assert slots_needed(graph, region) < 8
    assert graph.streaming == OPTIONS


def test_parallelism_that_was_asked_for_is_kept() -> None:
    """Both stages as wide as somebody said, also where that takes the last slot."""
    graph = planned(rate(2).keyBy("value", numPartitions=2).count(), 4)
    assert [vertex.parallelism for vertex in graph.vertices] == [2, 2]


def test_stages_have_no_more_tasks_than_there_are_cores_to_share() -> None:
    """However many slots there are; what somebody asked for is kept."""

    def widths(stream: Stream) -> list[int]:
        graph = query_graph(stream.branches, NoopSink(), Settings(), 12, OPTIONS, cores=2)
        return [vertex.parallelism for vertex in graph.vertices]

    assert widths(rate(3).keyBy("value").count()) == [3, 2]
    assert widths(rate(3).keyBy("value", numPartitions=5).count()) == [3, 5]


def test_a_rescaled_query_has_the_number_where_it_may_have_any() -> None:
    """Over what the program says; not where an exchange fixes it, nor more than a source has parts."""

    def widths(stream: Stream, tasks: int) -> list[int]:
        graph = query_graph(stream.branches, NoopSink(), Settings(), 64, OPTIONS, tasks=tasks)
        return [vertex.parallelism for vertex in graph.vertices]

    counted = rate(2).keyBy("value", numPartitions=5).count()
    custom = rate(2).partitionCustom(lambda batch: [0] * batch.num_rows, 2)
    for stream, tasks, expected in (
        (counted, 3, [2, 3]),
        (counted, 1, [1, 1]),
        (rate(2).rebalance(4).toOne(), 3, [2, 3, 1]),
        (custom.rebalance(), 3, [2, 2, 3]),
    ):
        assert widths(stream, tasks) == expected


def test_an_aggregation_is_sent_the_columns_that_it_reads() -> None:
    """Its keys and what is aggregated, in the order of the rows; one column where it counts all rows as one group."""
    rows = rate().withColumns({"k": pc.field("value"), "unread": pc.field("value")})
    (edge,) = planned(rows.keyBy("k").agg(n=("*", "count"), most=("value", "max"))).edges
    assert edge.schema.names == ["value", "k"]
    (edge,) = planned(rows.groupBy().agg(n=("*", "count"))).edges
    assert edge.schema.names == ["timestamp"]


def test_explain_shows_the_plan_that_a_query_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    """With as many tasks, one slot left free, and pipelined exchanges; a sink is not there yet."""
    counts = rate().keyBy("value").count()
    counts.explain()
    shown = capsys.readouterr().out
    assert "hash(value), pipelined_bounded" in shown
    assert "(the sink of writeStream) takes the output of stage 1" in shown
    assert "dropped" not in shown
    assert "Result: noop takes the output of stage 1" in explain_graph(planned(counts))
    for vertex in planned(counts, PLANNING_SLOTS).vertices:
        title = vertex.name.replace("noop", "(the sink of writeStream)")
        assert f"Stage {vertex.id}: {title} [parallelism {vertex.parallelism}]" in shown


def test_query_that_cannot_fit_is_told_what_helps_queries() -> None:
    """By its own name, with both numbers; stored exchanges are no way out for a query, as they are for a job."""
    text = too_few_slots(planned(rate()), 20, 8)
    assert text.startswith("query counts needs 20 task slots at the same time, but the application has 8: ")
    assert "blocking" not in text
    assert "blocking" in too_few_slots(replace(planned(rate()), streaming=None), 20, 8)


def test_uids_stay_where_operators_are_added() -> None:
    """A filter or another rate changes no stage's name in checkpoints; another key does, and two stages differ."""
    plain = planned(rate().keyBy("value").count())
    changed = planned(rate(rowsPerSecond=7).filter(pc.field("value") > 3).keyBy("value").count())
    other = planned(rate().keyBy("timestamp").count())
    uids = [[vertex.uid for vertex in graph.vertices] for graph in (plain, changed, other)]
    assert uids[0] == uids[1]
    assert uids[0][0] == uids[2][0] != uids[0][1]
    assert uids[0][1] != uids[2][1]
    both = planned(rate().union(rate()).keyBy("value").count())
    assert len({vertex.uid for vertex in both.vertices}) == len(both.vertices)


def test_streams_of_several_branches_are_written_by_one_stage() -> None:
    """The numbers of its subtasks name files, so there must be one stage of them."""
    graph = planned(rate().union(rate()))
    assert [vertex.name.endswith("noop") for vertex in graph.vertices] == [False, False, True]


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("collect", Stream.collect),
        ("toDF", Stream.toDF),
        ("run", Stream.run),
        ("count", Stream.count),
        ("take", lambda stream: stream.take(3)),
    ],
)
def test_actions_that_need_all_rows_are_refused_by_name(name: str, act: Callable[[Stream], object]) -> None:
    """Of a stream without an end they would wait for ever."""
    with pytest.raises(PlanError, match=f"{name} needs all rows"):
        act(rate())


@pytest.mark.parametrize(
    ("words", "verb"),
    [
        ("sortBy", lambda stream: stream.sortBy("value")),
        ("applyInArrow", lambda stream: stream.keyBy("value").applyInArrow(lambda t: t, stream.schema)),
        ("limit", lambda stream: stream.limit(3)),
        ("hybrid", lambda stream: stream.rebalance(mode="hybrid")),
        ("blocking", lambda stream: stream.rebalance(mode="blocking")),
    ],
)
def test_verbs_that_need_their_whole_input_are_refused_by_name(words: str, verb: Callable[[Stream], Stream]) -> None:
    """When the query is started, and before anything runs."""
    with pytest.raises(PlanError, match=rf"(?i){words}"):
        planned(verb(rate()))


@pytest.mark.parametrize("kind", [pa.uint64(), pa.uint8()])
def test_keys_without_a_key_group_are_refused(kind: pa.DataType) -> None:
    """When the query is planned, and not when the first row comes; a batch job takes more types."""
    schema = pa.schema([("k", kind), ("v", pa.int64())])
    with pytest.raises(SchemaError, match=r"column 'k' of type .* cannot be a key"):
        planned(rate().mapInArrow(iter, schema).keyBy("k").count())


def test_bounded_sources_are_refused_in_a_query() -> None:
    """By their name, also where only one of two is bounded; and a bounded stream has no writeStream to start."""
    schema = rate().schema
    bounded = Stream((SourceStep("people.parquet", schema, source=None),))
    with pytest.raises(PlanError, match=r"people\.parquet"):
        planned(rate().union(bounded))
    with pytest.raises(PlanError, match="writeParquet"):
        bounded.writeStream.format("noop").start()
    assert rate().isStreaming
    assert not bounded.isStreaming


def test_options_are_checked_by_format() -> None:
    """A wrong name says which one is near, a wrong value what it should be."""
    with pytest.raises(SettingError, match="did you mean rowsPerSecond"):
        rate(rowPerSecond=3)
    with pytest.raises(SettingError, match="rowsPerSecond='many'"):
        rate(rowsPerSecond="many")
    with pytest.raises(PlanError, match="one of csv, delta, json"):
        penstock.readStream(None).format("kinesis").load()
    options = Options("writeStream")
    options.set("CHECKPOINTINTERVAL", "1s")
    assert options.as_settings() == {"spark.penstock.streaming.checkpointInterval": "1s"}
    with pytest.raises(SettingError, match="checkpointInterval"):
        Settings.from_conf({"spark.penstock.streaming.checkpointInterval": "-1s"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1 second", 1),
        ("10 seconds", 10),
        ("500ms", 0.5),
        ("500 milliseconds", 0.5),
        ("2 Minutes", 120),
        ("1d", 86400),
    ],
)
def test_durations_may_have_sparks_words(text: str, seconds: float) -> None:
    """A trigger's `1 second` is an interval here too; a month and a word of nobody's are refused."""
    settings = Settings.from_conf({"spark.penstock.streaming.checkpointInterval": text})
    assert settings.streaming.checkpoint_interval == seconds
    for wrong in ("1 month", "1 fortnight", "second", "1 ss"):
        with pytest.raises(SettingError, match="a duration such as 100ms, 10s, 5min or 10 seconds"):
            Settings.from_conf({"spark.penstock.streaming.checkpointInterval": wrong})


def test_a_reader_without_a_session_says_so() -> None:
    """PySpark's `spark.readStream.format` has no brackets; here they take the session."""
    with pytest.raises(AttributeError, match=r"penstock\.readStream\(spark\)\.format"):
        penstock.readStream.format("rate")
    assert not hasattr(penstock.readStream, "nothing")


def test_rows_of_an_aggregation_are_those_of_the_batch_verb() -> None:
    """The same names and types, so that a pipeline can change from one to the other."""
    bounded = Stream((SourceStep("rows", pa.schema([("k", pa.string()), ("v", pa.int64())])),))
    unbounded = Stream((SourceStep("rows", bounded.schema, streaming=True),))
    wanted = {"n": ("*", "count"), "total": ("v", "sum"), "mean": ("v", "avg"), "most": ("v", "max")}
    assert unbounded.keyBy("k").agg(**wanted).schema == bounded.keyBy("k").agg(**wanted).schema


def test_rows_in_flight_have_a_bound_that_is_known_ahead() -> None:
    """Segments, a step and a message for each channel, of exchanges that barriers may overtake; more on a cluster."""
    network = NetworkSettings(segment_size=1 << 20, exclusive_buffers_per_channel=2, floating_buffers_per_gate=8)
    graph = planned(rate().keyBy("value", numPartitions=3).select("value"))
    row = 17  # two columns of 64 bits, each with a bit that says whether there is a value
    most = (2 * (3 * 2 + 8) + 3 << 20) + (2 * 3 << 18) + 5 * row * MOST_ROWS
    assert most_in_flight(graph, network, one_host=True) == most
    assert most_in_flight(graph, network, one_host=False) == most + (3 * (2 * 2 + 8) << 20)
    copies = planned(rate().keyBy("value", numPartitions=3).select("value").broadcast(2))
    assert most_in_flight(copies, network, one_host=True) == most


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"persistInFlight": "always", "unaligned": "true"}, "must be one of checkpoint, continuous"),
        ({"persistInFlight": "continuous"}, "with streaming.unaligned=true or streaming.recovery=approximate only"),
        ({"persistInFlight": "continuous", "unaligned": "true", "checkpointInterval": "0s"}, "checkpointInterval"),
    ],
)
def test_ways_to_write_rows_in_flight_that_can_t_be_are_refused(options: dict[str, str], sentence: str) -> None:
    """Another word, a log without barriers that overtake rows, and one that no checkpoint ever makes smaller."""
    conf = {f"spark.penstock.streaming.{name}": value for name, value in options.items()}
    with pytest.raises(SettingError, match=f"streaming.persistInFlight .*{sentence}"):
        Settings.from_conf(conf)
