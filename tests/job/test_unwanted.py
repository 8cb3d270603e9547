# SPDX-License-Identifier: Apache-2.0
"""The attempts that are told that nobody wants their rows any more, through the whole core, and their ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster import Cluster, Place
from job_graphs import BLOCKING, HYBRID, KEPT, PIPELINED, SCHEMA, SELECTIVE, chain, edge
from penstock.graph.job_graph import JobGraph, JobVertex
from penstock.link.commands import CancelTask
from penstock.shuffle import PartitionKind

READ_WHILE_WRITTEN = pytest.mark.parametrize("kind", [PIPELINED, HYBRID, SELECTIVE], ids=lambda kind: kind.label)


def told(cluster: Cluster) -> list[Place]:
    """The places that were told so far."""
    return [(item.attempt.vertex, item.attempt.subtask) for item in cluster.of(CancelTask) if item.is_unwanted]


def ends_well(cluster: Cluster) -> None:
    """The job ends, nothing ran twice, and nothing is kept but the result."""
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    assert cluster.restarted() == []
    cluster.check_answers()
    cluster.check_partitions()


def two_readers(kind: PartitionKind = HYBRID) -> JobGraph:
    """A source whose rows two stages read, each of which is a result."""
    vertices = tuple(JobVertex(number, name, 1, SCHEMA) for number, name in enumerate(("read", "few", "all")))
    return JobGraph(
        "two readers", vertices, (edge(0, 0, 1, kind=kind), edge(1, 0, 2, kind=kind)), (1, 2), kept_by=KEPT
    )


@READ_WHILE_WRITTEN
def test_whoever_is_read_by_nobody_is_told_and_then_those_that_it_reads(kind: PartitionKind) -> None:
    """One task has enough: all that leads to it ends, and so does the job, without anybody having ended by itself."""
    cluster = Cluster(8)
    cluster.submit(chain(2, 2, 1, kinds=(kind, kind)))
    cluster.finish(2, 0, left=(1,))
    assert told(cluster) == [(1, 0), (1, 1), (0, 0), (0, 1)]
    assert len(cluster.trace("task_not_wanted")) == 4
    ends_well(cluster)


def test_readers_that_have_read_all_tell_nobody() -> None:
    """Their producers have sent their ends, and are about to say so."""
    cluster = Cluster(8)
    cluster.submit(chain(2, 2))
    cluster.finish_all(1)
    assert told(cluster) == []
    assert cluster.working() == [(0, 0), (0, 1)]
    ends_well(cluster)


def test_one_reader_that_goes_on_is_enough() -> None:
    """Of a vertex, and of two vertices: told is who has no reader left, whichever of them had enough."""
    cluster = Cluster(8)
    cluster.submit(chain(2, 2))
    cluster.finish(1, 0, left=(0,))
    assert told(cluster) == []
    cluster.finish(1, 1)
    assert told(cluster) == [(0, 0), (0, 1)]
    ends_well(cluster)
    cluster = Cluster(8)
    cluster.submit(two_readers())
    cluster.finish(1, 0, left=(0,))
    assert told(cluster) == []
    cluster.finish(2, 0)
    assert told(cluster) == [(0, 0)]
    ends_well(cluster)


def test_rows_of_the_result_are_always_wanted() -> None:
    """A stage that others read, and whose rows are kept as well, goes on."""
    cluster = Cluster(8)
    cluster.submit(replace(two_readers(), result=(0, 1, 2)))
    cluster.finish(1, 0, left=(0,))
    cluster.finish(2, 0, left=(1,))
    assert told(cluster) == []
    ends_well(cluster)


def test_a_stored_exchange_that_is_still_to_be_read_keeps_its_producer() -> None:
    """A reader of a blocking partition has not begun, so it wants all of it."""
    cluster = Cluster(8)
    graph = two_readers()
    cluster.submit(graph.with_edge(replace(graph.edge(1), kind=BLOCKING)))
    cluster.finish(1, 0, left=(0,))
    assert told(cluster) == []
    assert cluster.working() == [(0, 0)]
    ends_well(cluster)


def test_who_comes_late_is_told_when_it_is_told_what_to_do() -> None:
    """A producer that is about to run again, for a reader that needs nothing of it."""
    cluster = Cluster(8)
    cluster.submit(chain(2, 1, kinds=(HYBRID,)))
    cluster.lose(cluster.task(0, 1))
    cluster.report(cluster.task(1, 0), left=(0,))
    assert told(cluster) == [(0, 0)]
    assert cluster.restarted() == [(0, 1)]
    cluster.run()
    assert told(cluster) == [(0, 0), (0, 1)]
    ends_well(cluster)


@pytest.mark.parametrize("end", ["it fails", "its process dies", "its host is gone"])
def test_however_it_ends_nothing_is_lost(end: str) -> None:
    """A function that can't stand to be closed, a killed process, a lost host: nobody reads what is gone."""
    cluster = Cluster(8, ["a", "b"])
    cluster.submit(chain(1, 1))
    here = cluster.task(0, 0).environment
    assert cluster.task(1, 0).environment != here
    cluster.report(cluster.task(1, 0), left=(0,))
    assert told(cluster) == [(0, 0)]
    if end == "it fails":
        cluster.fail(0, 0)
    elif end == "its process dies":
        cluster.lose_task(0, 0)
    else:
        cluster.lose_environment(here)
    ends_well(cluster)


@pytest.mark.parametrize("has_ended", [False, True])
def test_who_runs_again_has_it_made_again(has_ended: bool) -> None:
    """Told to end, or ended early: what it has written is no partition that can be read from its beginning."""
    cluster = Cluster(8, [f"e{number}" for number in range(8)])
    cluster.submit(chain(1, 1, 1, kinds=(HYBRID, BLOCKING)))
    cluster.consumable(0, 0, 0)
    cluster.report(cluster.task(1, 0), left=(0,))
    if has_ended:
        cluster.run()
    assert told(cluster) == [(0, 0)]
    cluster.lose_partition(1, 0, 1)
    assert cluster.restarted()[:2] == [(0, 0), (1, 0)]
    cluster.finish(1, 0)
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_partitions()


def test_who_read_what_ended_early_runs_again_with_it() -> None:
    """Nobody can say whether the next attempt gives the same rows to the reader that has ended."""
    cluster = Cluster(8, [f"e{number}" for number in range(8)])
    graph = two_readers()
    vertices = (*graph.vertices, JobVertex(3, "sink", 1, SCHEMA))
    cluster.submit(
        replace(graph, vertices=vertices, edges=(*graph.edges, edge(2, 1, 3, kind=BLOCKING)), result=(2, 3))
    )
    cluster.consumable(0, 0, 0)
    cluster.consumable(0, 0, 1)
    cluster.finish(2, 0, left=(1,))
    cluster.finish(1, 0, left=(0,))
    assert told(cluster) == [(0, 0)]
    cluster.lose_partition(1, 0, 2)
    assert [place for place in cluster.restarted() if place != (3, 0)] == [(0, 0), (1, 0), (2, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_who_was_told_too_late_has_written_all() -> None:
    """Its end was under way: it counts as any other."""
    cluster = Cluster(8)
    cluster.submit(chain(1, 1, kinds=(HYBRID,)))
    cluster.report(cluster.task(1, 0), left=(0,))
    cluster.finish(0, 0, fingerprints={0: 7})
    ends_well(cluster)


def test_figures_of_who_ended_early_count() -> None:
    """The rows that it read and wrote until then are in the job's result."""
    cluster = Cluster(8)
    cluster.submit(chain(1, 1))
    cluster.report(cluster.task(1, 0), left=(0,))
    cluster.finish(0, 0, is_cut=True, metrics={"rows_out": 5.0})
    ends_well(cluster)
    assert cluster.ended["j1"].result.metrics[0]["rows_out"] == 5.0
