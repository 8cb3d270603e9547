# SPDX-License-Identifier: Apache-2.0
"""Slots that go while a job runs: what still fits goes on, what does not is told at once, with what was lost.

It is planned anew then. A plan that does not fit either waits for slots to come back.
"""

from __future__ import annotations

from collections import deque

import pytest

from cluster import Cluster
from job_graphs import BLOCKING, HYBRID, PIPELINED, chain, pipeline, word_count
from penstock.errors import JobCancelledError, SlotsError, SlotsLostError
from penstock.graph.job_graph import JobGraph
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.deadlines import DeadlineKind
from penstock.job.core.execution.capacity import SlotsReturnedError
from penstock.job.core.ids import WorkerId
from penstock.shuffle import PartitionKind

LEFT = 2


def shrunk(kind: PartitionKind) -> Cluster:
    """A cluster of two hosts and four slots that loses one of them while two maps and two reduces run."""
    cluster = Cluster(4, ["a", "b"])
    cluster.submit(word_count(kind))
    cluster.gone = 4 - LEFT
    cluster.lose_environment("b")
    cluster.send(events.SlotsChanged(LEFT))
    return cluster


@pytest.mark.parametrize("kind", [HYBRID, BLOCKING])
def test_a_job_that_fits_into_what_is_left_goes_on(kind: PartitionKind) -> None:
    """It never gets more than the slots that are left, and ends well."""
    cluster = shrunk(kind)
    cluster.run()
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


@pytest.mark.parametrize("kinds", [(HYBRID,), (PIPELINED, HYBRID)], ids=["one stage", "a pipelined pair"])
@pytest.mark.parametrize("is_late", [False, True], ids=["slots first", "the loss first"])
def test_readers_make_room_for_what_they_wait_for_in_the_slots_that_are_left(
    kinds: tuple[PartitionKind, ...], *, is_late: bool
) -> None:
    """The producers were lost with their host, before any row, and the readers hold all slots of the other one."""
    pairs = len(kinds)
    slots = pairs + 2
    cluster = Cluster(slots, ["b"])
    left = max(2, pairs)
    cluster.submit(chain(*([1] * pairs), 2, kinds=kinds))
    for task in cluster.tasks:
        assert task.attempt is not None
    producers = [cluster.task(vertex, 0) for vertex in range(pairs)]
    cluster.gone = slots - left
    if not is_late:
        cluster.send(events.SlotsChanged(left))
    for task in producers:
        cluster.lose(task, retried=False)
    if is_late:
        cluster.run()
        cluster.send(events.SlotsChanged(left))
    cluster.run()
    assert {(vertex, 0) for vertex in range(pairs)} <= set(cluster.working())
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_workers_in_the_queue_are_no_more_waited_for_where_others_hold_all_slots_that_are_left() -> None:
    """A pipelined job got slots that went before its workers came: it stands in line again, and has its turn."""
    cluster = Cluster(8, ["a"])
    cluster.submit(chain(100))
    cluster.send(events.JobSubmitted("j2", word_count(PIPELINED), 8, 60))
    cluster.gone = 4
    work_of_four(cluster)
    assert len(cluster.queue) == 4
    cluster.send(events.SlotsChanged(4))
    work_of_four(cluster)
    assert cluster.working("j2") == [(0, 0), (0, 1), (1, 0), (1, 1)]
    cluster.finish_job("j2")
    cluster.finish_job("j1")
    assert {ended.error for ended in cluster.ended.values()} == {None}
    cluster.check_answers()


def work_of_four(cluster: Cluster) -> None:
    """Four tasks of the first job end, and all that follows happens."""
    for task in cluster.workers("j1")[:4]:
        cluster.report(task)
    cluster.run()


@pytest.mark.parametrize("other", [pipeline(dataframe=True), word_count(PIPELINED)], ids=["frame", "no frame"])
def test_a_dataframe_gets_the_slots_that_two_regions_wait_in(other: JobGraph) -> None:
    """Both began in part, and the DataFrames' tasks stand in Spark's queue behind them: the first one goes on."""
    cluster = Cluster(8, ["a"])
    for job, graph in {"j1": pipeline(dataframe=True), "j2": other}.items():
        cluster.send(events.JobSubmitted(job, graph, 8, 60))
    first = [item for item in cluster.queue if isinstance(item[2], WorkerId)]
    first = first[:4] + [item for item in cluster.queue if item not in first] + first[4:]
    cluster.queue = deque(first)
    cluster.gone = 4
    cluster.run()
    assert len(cluster.tasks) == 4
    cluster.send(events.SlotsChanged(4))
    cluster.run()
    assert cluster.working("j1") == [(0, 0), (0, 1), (1, 0), (1, 1)]
    cluster.finish_job("j1")
    cluster.finish_job("j2")
    assert {ended.error for ended in cluster.ended.values()} == {None}


def test_a_reader_makes_room_for_the_task_of_a_dataframe_that_spark_runs_again() -> None:
    """It had ended, and its process died before Spark knew: the reader waits for that in the only slot left."""
    cluster = Cluster(4, ["a"])
    cluster.submit(chain(1, 1, kinds=(HYBRID,), frame=True))
    read = cluster.task(0, 0)
    cluster.report(read)
    cluster.gone = 3
    cluster.lose(read)
    cluster.send(events.SlotsChanged(1))
    cluster.run()
    assert cluster.working() == [(0, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_a_region_that_fits_no_more_is_told_at_once_what_was_lost() -> None:
    """It does not wait for slots that never come, nor blame other Spark jobs."""
    cluster = shrunk(PIPELINED)
    cluster.run()
    error = cluster.ended["j1"].error
    assert isinstance(error, SlotsLostError)
    for part in ("needs 4 task slots", "of 4", "2 left", "environment b is lost (no heartbeat)", 'mode="auto"'):
        assert part in str(error)
    assert "other Spark jobs" not in str(error)


def test_a_region_that_runs_goes_on_and_is_told_when_it_must_run_again() -> None:
    """Executors that are idle may be given back while the last task of a region works: nothing is lost by that."""
    cluster = Cluster(4, ["a"])
    cluster.submit(word_count(PIPELINED))
    for place in [(0, 0), (0, 1), (1, 0)]:
        cluster.finish(*place)
    cluster.send(events.SlotsChanged(LEFT))
    assert "j1" not in cluster.ended
    cluster.lose_task(1, 1)
    assert isinstance(cluster.ended["j1"].error, SlotsLostError)


def test_a_job_that_waits_is_told_too() -> None:
    """It stands in the line for slots that are not there any more."""
    cluster = Cluster(4, ["a"])
    cluster.submit(word_count(PIPELINED))
    cluster.submit(word_count(PIPELINED), job="j2")
    cluster.send(events.SlotsChanged(LEFT))
    assert isinstance(cluster.ended["j2"].error, SlotsLostError)


def waiting() -> Cluster:
    """The same cluster, whose job was planned anew as j2, and does not fit: two maps and two reduces, two slots."""
    cluster = shrunk(PIPELINED)
    cluster.run()
    cluster.submit(word_count(PIPELINED), job="j2", left=LEFT)
    assert "j2" not in cluster.ended
    assert not cluster.working("j2")
    return cluster


def test_a_plan_that_does_not_fit_what_is_left_waits_and_says_so_once() -> None:
    """In the log and in its progress; while it waits nothing of it is launched, whatever else happens."""
    cluster = waiting()
    cluster.send(events.SlotsChanged(1))
    cluster.send(events.SlotsChanged(3))
    (told,) = cluster.of(do.WarnOfWait)
    assert told.job == "j2"
    for part in ("needs 4 at the same time", "2 are left", "60 s at most (spark.penstock.job.slotsTimeout)"):
        assert part in told.text
    progress = cluster.core.progress("j2", lambda _: {})
    assert progress is not None
    assert progress.title.endswith("(waits for lost slots: 3 of 4 are there)")
    assert not cluster.working("j2")


def test_a_job_that_waits_is_over_when_it_fits_again() -> None:
    """It was planned for fewer slots: whoever submitted it plans it for those that are there now, and that runs."""
    cluster = waiting()
    cluster.gone = 0
    cluster.send(events.SlotsChanged(4))
    assert isinstance(cluster.ended["j2"].error, SlotsReturnedError)
    cluster.submit(word_count(PIPELINED), job="j3", left=4)
    cluster.finish_job("j3")
    assert cluster.ended["j3"].error is None
    assert len(cluster.of(do.WarnOfWait)) == 1


def test_slots_that_do_not_come_back_are_waited_for_so_long_and_no_longer() -> None:
    """The error has the time and the numbers; what was lost stands in that of the earlier plan."""
    cluster = waiting()
    cluster.deadline(DeadlineKind.SLOTS, "j2")
    error = cluster.ended["j2"].error
    assert type(error) is SlotsError
    for part in ("waited 60 s (spark.penstock.job.slotsTimeout)", "it needs 4, and 2 are there"):
        assert part in str(error)


def test_a_cancel_ends_the_wait_at_once() -> None:
    """There is nothing of the job that would have to stop first."""
    cluster = waiting()
    cluster.send(events.CancelRequested("j2", "interrupted"))
    assert isinstance(cluster.ended["j2"].error, JobCancelledError)
    assert not cluster.deadlines


def test_a_job_that_waits_keeps_nobody_from_running() -> None:
    """It stands beside the line: what fits into the slots that are left has all of them meanwhile."""
    cluster = waiting()
    cluster.submit(word_count(BLOCKING), job="j3", left=LEFT)
    assert len(cluster.working("j3")) == LEFT
    cluster.finish_job("j3")
    assert cluster.ended["j3"].error is None
    assert "j2" not in cluster.ended


def test_a_plan_that_fits_what_is_left_runs_at_once() -> None:
    """It does not wait for what went, whether it might or not."""
    cluster = shrunk(PIPELINED)
    cluster.run()
    cluster.submit(word_count(HYBRID), job="j2", left=LEFT)
    assert len(cluster.working("j2")) == LEFT
    cluster.finish_job("j2")
    assert cluster.ended["j2"].error is None
    assert not cluster.of(do.WarnOfWait)


def test_what_was_lost_is_named_although_the_slots_were_told_meanwhile() -> None:
    """The slots are told again and again. That is no news as long as they are as many: Spark misses a host late."""
    cluster = Cluster(4, ["a", "b"])
    cluster.submit(word_count(PIPELINED))
    cluster.gone = 4 - LEFT
    cluster.lose_environment("b")
    cluster.send(events.SlotsChanged(4))
    cluster.send(events.SlotsChanged(LEFT))
    cluster.run()
    assert "environment b is lost (no heartbeat)" in str(cluster.ended["j1"].error)
