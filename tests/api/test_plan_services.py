# SPDX-License-Identifier: Apache-2.0
"""Plans over services that carry only some kinds: what the engine chooses is a kind of the exchange's service."""

from __future__ import annotations

import pyarrow as pa
import pytest

import few_kinds
import penstock
from penstock.api.plan import plan_job
from penstock.api.stream import Stream
from penstock.api.streaming.writer import query_graph, query_options
from penstock.errors import PlanError, SettingError
from penstock.graph import JobGraph, KeptBy, explain_graph
from penstock.graph.reruns import for_any_slots
from penstock.settings import Settings, StreamingSettings
from penstock.shuffle import PartitionKind
from penstock.stream.noop import NoopSink
from penstock.testing.sources import fromBatches

ROWS = pa.table({"k": ["a", "b"], "v": [1, 2]})
K = PartitionKind
OPTIONS = query_options("id", "counts", "/nowhere", StreamingSettings())


def settings(service: str = "local", mode: str = "auto") -> Settings:
    """The settings of a session."""
    return Settings.from_conf({"spark.penstock.shuffle.service": service, "spark.penstock.shuffle.mode": mode})


def graph(stream: Stream, service: str = "local", slots: int = 8, mode: str = "auto") -> JobGraph:
    """The plan of a stream."""
    return stream.plan(settings(service, mode), slots).graph


def source(partitions: int = 2) -> Stream:
    """Rows in some partitions."""
    return fromBatches(ROWS, partitions)


def kinds(job: JobGraph) -> list[PartitionKind]:
    """Of all edges."""
    return [edge.kind for edge in job.edges]


def test_everything_lies_in_the_service_of_the_session() -> None:
    """Exchange, result and persisted result of a service of files are blocking, and the plan says so once."""
    stream = source().keyBy("k").agg(n=("v", "sum")).rebalance(2)
    job = graph(stream, few_kinds.BLOCKING)
    assert kinds(job) == [K.BLOCKING_SORT_MERGE] * 2
    assert job.kept_by == KeptBy(few_kinds.BLOCKING, K.BLOCKING_SORT_MERGE)
    (note,) = job.notes
    assert note.startswith("mode auto is blocking_sort_merge with the shuffle service 'few_kinds:blocking'")
    assert note in explain_graph(job)
    persisted = plan_job(stream.branches, settings(few_kinds.BLOCKING), 8, persist=True).graph
    assert persisted.kept_by == job.kept_by


def test_edges_of_several_services_have_each_their_kind() -> None:
    """The result is the session's, an exchange its own service's; a job that keeps nothing has no keeper."""
    stream = source().rebalance(2).keyBy("k", service=few_kinds.BLOCKING).agg(n=("v", "sum"))
    job = graph(stream)
    assert kinds(job) == [K.PIPELINED_BOUNDED, K.BLOCKING_SORT_MERGE]
    assert job.kept_by == KeptBy("local", K.HYBRID_FULL)
    assert stream.plan(Settings(), 8, keep=False).graph.kept_by is None


@pytest.mark.parametrize(
    ("service", "kind"),
    [("local", K.HYBRID_FULL), (few_kinds.HYBRID, K.HYBRID_SELECTIVE), (few_kinds.PIPELINED, K.PIPELINED_BOUNDED)],
)
def test_too_few_slots_store_what_the_service_can_store(service: str, kind: PartitionKind) -> None:
    """A service of wires stores nothing, so its exchange stays: the JobMaster says that the slots are too few."""
    job = graph(source(4).rebalance(4, service=service), slots=4)
    assert kinds(job) == [kind]


def test_too_few_buffers_make_blocking_only_what_can_be() -> None:
    """Of two exchanges that the writers' buffers do not suffice for, the one of wires stays."""
    stream = source(2).rebalance(2, service=few_kinds.PIPELINED).rebalance(2)
    job = plan_job(stream.branches, Settings(), 8, buffers=1).graph
    assert kinds(job) == [K.PIPELINED_BOUNDED, K.BLOCKING_SORT_MERGE]


def test_deadlocks_are_mended_with_the_kind_of_the_service() -> None:
    """A self-join over wires alone is refused; with one side of a service that stores, that side is stored."""
    shared = source(1).rebalance(1, service=few_kinds.PIPELINED)

    def joined(left: str, right: str) -> Stream:
        sides = shared.keyBy("k", numPartitions=1, service=left), shared.keyBy("k", numPartitions=1, service=right)
        return sides[0].cogroup(sides[1]).applyInArrow(lambda one, _: one, ROWS.schema)

    job = graph(joined(few_kinds.PIPELINED, "local"))
    assert K.HYBRID_FULL in kinds(job)
    assert K.HYBRID_FULL not in kinds(job)[:1]
    with pytest.raises(PlanError, match=r"would have to be stored, because .*; the shuffle service 'few_kinds:pipe"):
        graph(joined(few_kinds.PIPELINED, few_kinds.PIPELINED))


def test_a_job_that_runs_again_stores_what_its_services_can() -> None:
    """The kinds of a run for any number of slots are those of the edges' services too."""
    job = graph(source(1).rebalance(1).rebalance(1, service=few_kinds.PIPELINED).rebalance(1), slots=8)
    assert kinds(for_any_slots(job)) == [K.HYBRID_FULL, K.PIPELINED_BOUNDED, K.HYBRID_FULL]


def test_a_mode_that_the_service_lacks_is_refused() -> None:
    """At the verb where both are written there, else by the plan, which names the stage."""
    with pytest.raises(SettingError, match="keyBy: the shuffle service 'few_kinds:blocking' has no mode 'pipelined'"):
        source().keyBy("k", mode="pipelined", service=few_kinds.BLOCKING)
    with pytest.raises(
        SettingError, match=r"the exchange of 'batches.*': .* has no mode 'hybrid': it has auto, bloc"
    ):
        graph(source().keyBy("k", mode="hybrid").agg(n=("v", "sum")), few_kinds.BLOCKING)
    with pytest.raises(SettingError, match="has no mode 'hybrid'"):
        graph(source().keyBy("k", service=few_kinds.BLOCKING).agg(n=("v", "sum")), mode="hybrid")


def test_a_service_that_keeps_nothing_keeps_no_result() -> None:
    """A job without a result runs over it."""
    stream = source().rebalance(2)
    with pytest.raises(SettingError, match=r"few_kinds:pipelined' keeps no rows that were read.*use run"):
        graph(stream, few_kinds.PIPELINED)
    assert kinds(stream.plan(settings(few_kinds.PIPELINED), 8, keep=False).graph) == [K.PIPELINED_BOUNDED]


@pytest.mark.parametrize("service", [few_kinds.BLOCKING, few_kinds.PIPELINED])
def test_a_query_over_a_service_that_carries_no_streams_is_refused(service: str) -> None:
    """By its name and the exchange, whether or not its kinds would do."""
    rate = penstock.readStream(None).format("rate").load()
    with pytest.raises(PlanError, match=rf"exchange 0 \(.*\) goes by .* '{service}', which carries no"):
        query_graph(rate.rebalance(2).branches, NoopSink(), settings(service), 8, OPTIONS)
