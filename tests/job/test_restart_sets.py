# SPDX-License-Identifier: Apache-2.0
"""The subtasks that run again after a failure, through the core: as few as the rows allow, as often as was set."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster import Cluster, Place
from job_graphs import (
    BLOCKING,
    HYBRID,
    KEPT,
    PIPELINED,
    SELECTIVE,
    chain,
    edge,
    open_sink,
    pipeline,
    side_by_side,
    word_count,
)
from penstock.errors import FailureKind
from penstock.graph.job_graph import JobGraph
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.states import JobState
from penstock.link.commands import CancelTask, UpdatePartitionInfo
from penstock.link.master import PartitionConsumable, TaskEnd, TaskFinished
from penstock.settings import RestartSettings
from penstock.shuffle import AttemptId, DatasetId, PartitionId, PartitionKind

M0, M1, R0, R1 = (0, 0), (0, 1), (1, 0), (1, 1)
ALL = [M0, M1, R0, R1]
NEVER = RestartSettings("none")


# --- the restart sets: two maps, two reduces, every map and reduce in an environment of its own

WRITING, READING, ENDED = "while writing", "while reading", "after the finish"
PRODUCER, CONSUMER, HOST, PARTITION = "producer", "consumer", "environment of a producer", "lost partition"


def at_stage(kind: PartitionKind, stage: str) -> Cluster:
    """A word count that is so far: maps write; reduces read; the first map and the first reduce have ended.

    With a blocking exchange `while reading` means that the maps have ended; with the others that both maps write and
    their first buffers have been told of.
    """
    cluster = Cluster(8, [f"e{number}" for number in range(8)])
    cluster.submit(word_count(kind))
    if stage == WRITING:
        return cluster
    if kind is BLOCKING:
        cluster.finish(*M0)
        cluster.finish(*M1)
    else:
        cluster.consumable(*M0, 0)
        cluster.consumable(*M1, 0)
    if stage == ENDED:
        if kind is not BLOCKING:
            cluster.finish(*M0)
        cluster.finish(*R0)
    return cluster


def strike(cluster: Cluster, what: str) -> None:
    """The failure happens; what must work is there, else the last attempt is meant."""
    if what == PRODUCER:
        cluster.lose_task(*M1)
    elif what == CONSUMER:
        cluster.lose_task(*(R1 if R1 in cluster.working() else R0))
    elif what == HOST:
        held = [item.environment for item in cluster.known.values() if item.partition.dataset == DatasetId("j1", 0)]
        cluster.lose_environment(held[0], "new")
        cluster.run()
    else:
        cluster.lose_partition(*M0, 0)


EXPECTED: dict[tuple[PartitionKind, str, str], list[Place]] = {
    # A pipelined pair shares its fate, ended or not: what was sent is gone.
    **{
        (PIPELINED, stage, what): ALL
        for stage in (WRITING, READING, ENDED)
        for what in (PRODUCER, CONSUMER, HOST, PARTITION)
    },
    # Blocking: only the map, while nobody reads.
    (BLOCKING, WRITING, PRODUCER): [M1],
    (BLOCKING, WRITING, HOST): [M0],
    (BLOCKING, WRITING, PARTITION): [M0],
    # A reader reads again what is stored; a lost file is written again, and all who still read it begin anew.
    (BLOCKING, READING, CONSUMER): [R1],
    (BLOCKING, READING, HOST): [M0, R0, R1],
    (BLOCKING, READING, PARTITION): [M0, R0, R1],
    # A task that has ended stays.
    (BLOCKING, ENDED, CONSUMER): [R1],
    (BLOCKING, ENDED, HOST): [M0, R1],
    (BLOCKING, ENDED, PARTITION): [M0, R1],
    # Hybrid, nothing was told yet: the readers wait for the next attempt where they are.
    (HYBRID, WRITING, PRODUCER): [M1],
    (HYBRID, WRITING, CONSUMER): [R1],
    (HYBRID, WRITING, HOST): [M0],
    (HYBRID, WRITING, PARTITION): [M0],
    # They have read some of it.
    (HYBRID, READING, PRODUCER): [M1, R0, R1],
    (HYBRID, READING, CONSUMER): [R1],
    (HYBRID, READING, HOST): [M0, R0, R1],
    (HYBRID, READING, PARTITION): [M0, R0, R1],
    # M0 has ended, M1 has not said so: R0 ended on rows that nobody can compare with those of the next attempt.
    (HYBRID, ENDED, PRODUCER): [M1, R0, R1],
    (HYBRID, ENDED, CONSUMER): [R1],
    (HYBRID, ENDED, HOST): [M0, R1],
    (HYBRID, ENDED, PARTITION): [M0, R1],
    # Selective: not all of it is stored, so a reader that begins anew needs its producers anew, and so on.
    (SELECTIVE, WRITING, PRODUCER): [M1],
    (SELECTIVE, WRITING, CONSUMER): [R1],
    (SELECTIVE, WRITING, HOST): [M0],
    (SELECTIVE, WRITING, PARTITION): [M0],
    (SELECTIVE, READING, PRODUCER): ALL,
    (SELECTIVE, READING, CONSUMER): ALL,
    (SELECTIVE, READING, HOST): ALL,
    (SELECTIVE, READING, PARTITION): ALL,
    (SELECTIVE, ENDED, PRODUCER): ALL,
    (SELECTIVE, ENDED, CONSUMER): ALL,
    (SELECTIVE, ENDED, HOST): ALL,
    (SELECTIVE, ENDED, PARTITION): ALL,
}


@pytest.mark.parametrize(
    ("kind", "stage", "what"), EXPECTED, ids=lambda item: item.label if isinstance(item, PartitionKind) else item
)
def test_what_runs_again(kind: PartitionKind, stage: str, what: str) -> None:
    """The trace names the fewest subtasks that must run again, the job ends well, and nothing leaks."""
    cluster = at_stage(kind, stage)
    assert cluster.restarted() == []
    strike(cluster, what)
    assert cluster.restarted() == EXPECTED[kind, stage, what]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    assert cluster.restarted() == []
    cluster.check_answers()
    cluster.check_partitions()


@pytest.mark.parametrize("kind", [PIPELINED, BLOCKING, HYBRID])
def test_pointwise_exchanges_bound_the_damage(kind: PartitionKind) -> None:
    """Over forward exchanges only the partners of the failed subtask run again; in a pipelined region too."""
    cluster = Cluster(12)
    cluster.submit(chain(4, 4, 4, kinds=(kind, kind), how="forward"))
    if kind is not PIPELINED:
        cluster.finish_all(0)
    victim = (0, 2) if kind is PIPELINED else (1, 2)
    cluster.lose_task(*victim)
    expected = [(0, 2), (1, 2), (2, 2)] if kind is PIPELINED else [(1, 2)]
    assert cluster.restarted() == expected
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_a_loss_goes_back_through_released_stages() -> None:
    """A result that was read is released; when a later one is lost it is made again from the beginning."""
    cluster = Cluster(4)
    cluster.submit(chain(1, 1, 2, kinds=(BLOCKING, BLOCKING)))
    cluster.finish(0, 0)
    cluster.finish(1, 0)
    assert [item.dataset for item in cluster.released] == [DatasetId("j1", 0)]
    cluster.lose_partition(1, 0, 1)
    assert cluster.restarted() == [(0, 0), (1, 0), (2, 0), (2, 1)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_partitions()


def test_a_result_lost_before_the_end_is_made_again() -> None:
    """All tasks have ended, a DataFrame's Spark job is about to return: the lost part of the result runs again."""
    cluster = Cluster(4)
    graph = side_by_side(1, 2)
    cluster.submit(graph.with_vertex(replace(graph.vertex(0), reads_dataframe=True)))
    cluster.finish(1, 0)
    cluster.finish(1, 1)
    cluster.report(cluster.task(0, 0))
    assert cluster.core.progress("j1", lambda _: {}).state is JobState.CONFIRMING  # type: ignore[union-attr]
    cluster.lose_partition(1, 0, -1)
    assert cluster.restarted() == [(1, 0)]
    cluster.finish_job()
    ended = cluster.ended["j1"]
    assert ended.error is None
    assert [item.partition.attempt for item in ended.partitions if item.partition.dataset.number == 1] == [1, 0]
    cluster.check_answers()
    cluster.check_partitions()


def test_what_nobody_reads_any_more_is_not_made_again() -> None:
    """A partition whose readers have all ended, in a job that still runs, is no loss."""
    cluster = Cluster(4)
    cluster.submit(chain(1, 1, 2, kinds=(HYBRID, BLOCKING)))
    cluster.finish(0, 0)
    (first,) = [item for item in cluster.known if item.dataset == DatasetId("j1", 0)]
    cluster.report(cluster.task(1, 0))
    cluster.send(events.PartitionsLost((first,), "disk gone"))
    cluster.run()
    assert cluster.restarted() == []
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


# --- consumers that are there before their producers


def test_a_reader_survives_a_producer_that_gave_it_nothing() -> None:
    """Deployed with a placeholder, it keeps its slot and is told of the new attempt at that one's first buffer."""
    cluster = Cluster(4)
    cluster.submit(word_count(HYBRID))
    reader = cluster.attempt(*R0)
    cluster.lose_task(*M0)
    assert cluster.restarted() == [M0]
    assert cluster.attempt(*R0) == reader
    assert not [item for item in cluster.of(CancelTask) if item.attempt == reader]
    cluster.consumable(*M0, 0)
    told = [item for item in cluster.of(UpdatePartitionInfo) if item.attempt == reader]
    assert [item.descriptor.partition for item in told] == [PartitionId(DatasetId("j1", 0), 0, 1)]


def test_a_restarted_reader_is_told_of_what_is_there() -> None:
    """Its new attempt is deployed with the producers that can be read, and told of the others later."""
    cluster = Cluster(4)
    cluster.submit(word_count(HYBRID))
    cluster.consumable(*M0, 0)
    cluster.lose_task(*R1)
    channels = cluster.deployment(*R1).inputs[0].channels
    assert [source.is_unknown for source, _, _ in channels] == [False, True]
    cluster.consumable(*M1, 0)
    new = cluster.attempt(*R1)
    told = [item for item in cluster.of(UpdatePartitionInfo) if item.attempt == new]
    assert [item.descriptor.partition.index for item in told] == [1]


def test_reports_of_withdrawn_attempts_change_nothing() -> None:
    """A first buffer, an end and a loss of an attempt that was withdrawn are nobody's any more."""
    cluster = Cluster(4)
    cluster.submit(word_count(HYBRID))
    old = cluster.attempt(*M0)
    cluster.lose_task(*M0)
    entries = len(cluster.core.trace("j1"))
    for event in (
        PartitionConsumable(PartitionId(DatasetId("j1", 0), 0, 0)),
        TaskFinished(old, TaskEnd.FINISHED),
        TaskFinished(old, TaskEnd.FAILED, error="late"),
        events.TaskGone(old, "late"),
        events.PartitionsLost((PartitionId(DatasetId("j1", 0), 0, 0),), "late"),
    ):
        assert cluster.send(event) == []
    assert len(cluster.core.trace("j1")) == entries
    (answer,) = cluster.send(events.ProducersAwaited(cluster.call(), old))
    assert isinstance(answer, do.AnswerProducers)
    assert answer.error is not None


def test_a_partition_registered_too_late_is_released_once() -> None:
    """Its attempt was withdrawn while the service answered: released where it is, and nowhere else."""
    cluster = Cluster(4, ["a", "b"])
    cluster.send(events.JobSubmitted("j1", chain(1, 1, kinds=(BLOCKING,)), 4, 60))
    while not cluster.of(do.RegisterPartition):
        cluster.step(lambda count: count - 1)
    (answering,) = [step for step in cluster.todo if step.name == "register"]
    cluster.todo.remove(answering)
    cluster.lose(cluster.tasks[0])
    answering.act()
    (late,) = cluster.of(do.ReleaseDescriptors)
    assert [item.partition for item in late.descriptors] == [PartitionId(DatasetId("j1", 0), 0, 0)]
    cluster.run()
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_partitions()


def test_a_worker_lost_while_its_attempt_waits_for_its_partitions() -> None:
    """It is named by its own identity, because it was not told yet what it works on; the attempt is lost with it."""
    cluster = Cluster(4)
    cluster.send(events.JobSubmitted("j1", chain(1), 4, 60))
    while not cluster.of(do.RegisterPartition):
        cluster.step(lambda count: count - 1)
    (worker,) = cluster.tasks
    assert worker.attempt is None
    cluster.lose(worker)
    cluster.run()
    assert cluster.restarted() == [(0, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_answers()


def test_a_worker_that_asks_again_without_a_report_has_lost_its_attempt() -> None:
    """Nobody works on it any more: it runs again, on this worker or another one."""
    cluster = Cluster(4)
    cluster.submit(chain(1))
    (worker,) = cluster.tasks
    worker.attempt = None
    cluster._ask(worker)
    cluster.run()
    assert cluster.restarted() == [(0, 0)]
    assert cluster.attempt(0, 0) == AttemptId("j1", 0, 0, 1)
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_answers()


def test_an_environment_with_idle_workers_is_lost() -> None:
    """Workers that wait there for the others are gone; others come, and no subtask was lost."""
    cluster = Cluster(4, ["a", "b"])
    cluster.send(events.JobSubmitted("j1", pipeline(), 4, 60))
    held = [cluster.queue.pop(), cluster.queue.pop()]
    cluster.run()
    assert {task.environment for task in cluster.tasks} == {"a", "b"}
    cluster.lose_environment("a", "c")
    cluster.queue.extend(held)
    cluster.run()
    assert len(cluster.working()) == 4
    assert "a" not in {task.environment for task in cluster.tasks}
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_answers()


# --- producers that give other rows


def test_other_rows_run_their_readers_again() -> None:
    """A map runs again and gives other rows: the reduce that had ended on the first ones, and what read from it."""
    cluster = Cluster(8)
    cluster.submit(chain(2, 2, 1, kinds=(BLOCKING, BLOCKING)))
    cluster.finish(0, 0, fingerprints={0: 11})
    cluster.finish(0, 1, fingerprints={0: 12})
    cluster.finish(1, 0, fingerprints={1: 21})
    cluster.lose_partition(0, 0, 0)
    assert cluster.restarted() == [(0, 0), (1, 1)]
    cluster.finish(0, 0, fingerprints={0: 99})
    assert cluster.restarted() == [(1, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_partitions()


def test_the_same_rows_run_nobody_again() -> None:
    """With the same fingerprint the reduce that has ended stays."""
    cluster = Cluster(8)
    cluster.submit(chain(2, 2, kinds=(BLOCKING,)))
    cluster.finish(0, 0, fingerprints={0: 11})
    cluster.finish(0, 1, fingerprints={0: 12})
    cluster.finish(1, 0)
    cluster.lose_partition(0, 0, 0)
    assert cluster.restarted() == [(0, 0), (1, 1)]
    cluster.finish(0, 0, fingerprints={0: 11})
    assert cluster.restarted() == []
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_readers_of_the_second_attempt_are_not_misled() -> None:
    """A reduce that started after the second attempt of a map was due has not read the first one."""
    cluster = Cluster(2)
    cluster.submit(chain(2, 3, kinds=(BLOCKING,)))
    cluster.finish(0, 0, fingerprints={0: 11})
    cluster.finish(0, 1, fingerprints={0: 12})
    cluster.finish(1, 0)
    cluster.lose_partition(0, 0, 0)
    cluster.lose_task(0, 0)
    assert cluster.restarted() == [(0, 0), (0, 0), (1, 1), (1, 2)]
    cluster.finish(0, 0, fingerprints={0: 99})
    assert cluster.restarted() == [(1, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_who_read_from_a_misled_reader_runs_again_too() -> None:
    """Three stages in a chain: the last has ended on rows that came of the first attempt."""
    cluster = Cluster(8)
    graph = chain(1, 1, 1, 1, kinds=(BLOCKING, BLOCKING, BLOCKING))
    side = replace(graph.vertex(1), id=4, name="side")
    extra = (edge(3, 0, 4, kind=BLOCKING), edge(4, 2, 4, kind=BLOCKING))
    graph = JobGraph("diamond", (*graph.vertices, side), (*graph.edges, *extra), (3, 4), kept_by=KEPT)
    graph = replace(graph, edges=tuple(replace(item, id=number) for number, item in enumerate(graph.edges)))
    cluster.submit(graph)
    cluster.finish(0, 0, fingerprints={0: 1, 3: 1})
    cluster.finish(1, 0, fingerprints={1: 5})
    cluster.finish(2, 0)
    cluster.finish(3, 0)
    cluster.lose_partition(0, 0, 3)
    assert cluster.restarted() == [(0, 0), (4, 0)]
    cluster.finish(0, 0, fingerprints={0: 2, 3: 2})
    assert cluster.restarted() == [(1, 0), (2, 0), (3, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


# --- what a reader says of what it reads


def test_a_partition_that_cannot_be_read_is_lost() -> None:
    """A reader reports it before its service does: it is made again, and every reader that had begun begins anew."""
    cluster = Cluster(8)
    cluster.submit(word_count(BLOCKING))
    cluster.finish_all(0)
    bad = PartitionId(DatasetId("j1", 0), 1, 0)
    cluster.lost.add(bad)
    cluster.fail(*R0, FailureKind.CONSEQUENCE, lost=bad)
    assert cluster.restarted() == [M1, R0, R1]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_partitions()


def test_an_unreadable_result_of_another_job_is_reported_lost() -> None:
    """A job reads what an earlier one left: that one hears of it, so that it can make its result again."""
    cluster = Cluster(8)
    cluster.submit(chain(1), "j0")
    cluster.finish_job("j0")
    (kept,) = cluster.ended["j0"].partitions
    cluster.submit(chain(1), "j1")
    cluster.fail(0, 0, FailureKind.CONSEQUENCE, "j1", lost=kept.partition)
    (lost,) = cluster.of(do.ResultLost)
    assert (lost.job, lost.partitions) == ("j0", (kept.partition,))


# --- stages whose width was chosen


def test_a_chosen_number_of_consumers_stays() -> None:
    """Producers run again and write other numbers of bytes: who reads which subpartitions stays as it was chosen."""
    cluster = Cluster(4)
    cluster.submit(open_sink(), target=1 << 20)
    for subtask in range(2):
        cluster.finish(0, subtask, sizes={0: [1 << 18] * 16})
    before = cluster.core.progress("j1", lambda _: {}).vertices[1].parallelism  # type: ignore[union-attr]
    cluster.lose_partition(0, 0, 0)
    assert (0, 0) in cluster.restarted()
    cluster.finish(0, 0, sizes={0: [1 << 10] * 16})
    assert cluster.core.progress("j1", lambda _: {}).vertices[1].parallelism == before  # type: ignore[union-attr]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_several_outputs_of_one_producer() -> None:
    """One of two stored outputs is lost: the producer writes both again; who has read the other one stays."""
    cluster = Cluster(8)
    graph = chain(1, 1, kinds=(BLOCKING,))
    second = replace(graph.vertex(1), id=2, name="second")
    vertices, edges = (*graph.vertices, second), (*graph.edges, edge(1, 0, 2, kind=BLOCKING))
    cluster.submit(JobGraph("fork", vertices, edges, (0, 1, 2), kept_by=KEPT))
    cluster.finish(0, 0)
    cluster.finish(2, 0)
    cluster.lose_partition(0, 0, 0)
    assert cluster.restarted() == [(0, 0), (1, 0)]
    cluster.finish_job()
    ended = cluster.ended["j1"]
    assert ended.error is None
    assert [item.partition.attempt for item in ended.partitions] == [1, 1, 0]
    cluster.check_partitions()
