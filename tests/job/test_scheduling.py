# SPDX-License-Identifier: Apache-2.0
"""The order in which slots are given: waves over kinds of exchanges, workers that come and go, jobs side by side."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from types import FrameType

import pytest

from cluster import Cluster
from job_graphs import (
    BLOCKING,
    HYBRID,
    KINDS,
    PIPELINED,
    SELECTIVE,
    chain,
    mixed,
    open_sink,
    pipeline,
    word_count,
)
from penstock.errors import JobError, SlotsError
from penstock.graph import Resources
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.deadlines import DeadlineKind
from penstock.job.core.ids import WorkerId
from penstock.settings import RestartSettings
from penstock.shuffle import AttemptId, PartitionKind

MAPS = [(0, 0), (0, 1)]
REDUCES = [(1, 0), (1, 1)]


# --- the word count: two maps, two reduces


@pytest.mark.parametrize("slots", [2, 3, 4])
def test_blocking_runs_the_maps_and_then_the_reduces(slots: int) -> None:
    """However many slots there are: no reduce before the last map has ended, and the same two workers do both."""
    cluster = Cluster(slots)
    cluster.submit(word_count(BLOCKING))
    assert cluster.working() == MAPS
    cluster.finish(0, 1)
    assert cluster.working() == [(0, 0)]
    cluster.finish(0, 0)
    assert cluster.working() == REDUCES
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


@pytest.mark.parametrize("slots", [2, 3])
def test_pipelined_is_refused_with_the_numbers(slots: int) -> None:
    """Four tasks must run at the same time: with fewer slots nothing starts, and both numbers are named."""
    cluster = Cluster(slots)
    cluster.submit(word_count(PIPELINED))
    error = cluster.ended["j1"].error
    assert isinstance(error, SlotsError)
    assert f"needs 4 task slots at the same time, but the application has {slots}" in str(error)
    assert not cluster.of(do.LaunchSparkJobs)


def test_pipelined_runs_at_once_where_it_fits() -> None:
    """With four slots all four start together."""
    cluster = Cluster(4)
    cluster.submit(word_count(PIPELINED))
    assert cluster.working() == MAPS + REDUCES
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


@pytest.mark.parametrize("kind", [HYBRID, SELECTIVE])
def test_hybrid_starts_reduces_on_what_is_left(kind: PartitionKind) -> None:
    """Three slots: two maps and one reduce run together; the second reduce follows when a slot frees."""
    cluster = Cluster(3)
    cluster.submit(word_count(kind))
    assert cluster.working() == [*MAPS, (1, 0)]
    cluster.finish(0, 0)
    assert cluster.working() == [(0, 1), *REDUCES]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    assert cluster.restarted() == []


@pytest.mark.parametrize(("slots", "first"), [(1, MAPS[:1]), (2, MAPS), (4, MAPS + REDUCES)])
def test_hybrid_takes_any_number_of_slots(slots: int, first: list[tuple[int, int]]) -> None:
    """Producers first; with one slot the tasks run one after the other, with four all at once."""
    cluster = Cluster(slots)
    cluster.submit(word_count(HYBRID))
    assert cluster.working() == first
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_hybrid_consumers_wait_for_the_last_producer_to_start() -> None:
    """With one slot for two maps no reduce starts before the second map has: it would wait for it in its slot."""
    cluster = Cluster(1)
    cluster.submit(word_count(HYBRID))
    cluster.finish(0, 0)
    assert cluster.working() == [(0, 1)]
    cluster.finish(0, 1)
    assert cluster.working() == [(1, 0)]


def test_mixed_edges_in_one_job() -> None:
    """A pipelined pair first; its hybrid readers as slots free; blocking readers when all of it is there."""
    cluster = Cluster(4)
    cluster.submit(mixed())
    assert cluster.working() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    cluster.finish(0, 0)
    cluster.finish(0, 1)
    assert cluster.working() == [(1, 0), (1, 1), (2, 0), (2, 1)]
    cluster.finish(1, 0)
    assert cluster.working() == [(1, 1), (2, 0), (2, 1)]
    cluster.finish(1, 1)
    assert cluster.working() == [(2, 0), (2, 1), (3, 0), (3, 1)]
    cluster.finish(2, 0)
    assert cluster.working() == [(2, 1), (3, 0), (3, 1), (4, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    assert [str(item.partition.dataset) for item in cluster.ended["j1"].partitions] == ["j1-result2"] * 2 + [
        "j1-result4"
    ]
    cluster.check_answers()
    cluster.check_partitions()


# --- workers


def test_a_wide_stage_runs_on_few_workers() -> None:
    """Three hundred subtasks on four slots: four workers in one Spark job, and each subtask runs once."""
    cluster = Cluster(4)
    cluster.submit(chain(300))
    done: Counter[tuple[int, int]] = Counter()
    while cluster.working():
        assert len(cluster.working()) <= 4
        place = cluster.working()[0]
        done[place] += 1
        cluster.finish(*place)
    assert done == Counter({(0, subtask): 1 for subtask in range(300)})
    assert [len(item.spark_jobs[0].workers) for item in cluster.of(do.LaunchSparkJobs)] == [4]
    assert cluster.ended["j1"].error is None


SCHEDULERS = ("slots.py", "arrivals.py", "stages.py", "demand.py", "fairness.py", "workers.py", "ending.py")
SCHEDULERS += ("attempts.py", "deployments.py", "subtasks.py", "recovery.py", "job_core.py", "master_core.py")


def calls_per_event(subtasks: int) -> float:
    """The calls inside the scheduling modules for each event of a job with so many maps and reduces."""
    cluster = Cluster(100)
    cluster.core.is_checked = False  # the checks look at all there is
    cluster.pace = 0.0
    calls = handled = 0
    handle = cluster.core.handle

    def count(frame: FrameType, what: str, _: object) -> None:
        nonlocal calls
        calls += what == "call" and frame.f_code.co_filename.endswith(SCHEDULERS)

    def counted(event: events.Event, now: float) -> list[do.Instruction]:
        nonlocal handled
        handled += 1
        sys.setprofile(count)
        try:
            return handle(event, now)
        finally:
            sys.setprofile(None)

    cluster.core.handle = counted  # type: ignore[method-assign]
    cluster.submit(chain(subtasks, subtasks, kinds=(BLOCKING,)))
    while not cluster.ended:
        for task in [task for task in cluster.tasks if task.attempt]:
            cluster.report(task)
        cluster.run()
    assert cluster.ended["j1"].error is None
    return calls / handled


def test_the_work_for_an_event_does_not_grow_with_the_job() -> None:
    """Four times the subtasks on the same slots: an event still leads to about as many calls."""
    assert calls_per_event(400) < 1.3 * calls_per_event(100)


def test_a_worker_nobody_needs_is_released() -> None:
    """If the next stage is narrower, the others are let go at once and free their slots."""
    cluster = Cluster(4)
    cluster.submit(chain(4, 1, kinds=(BLOCKING,)))
    for subtask in range(3):
        cluster.finish(0, subtask)
        assert len(cluster.workers()) == 3 - subtask
    assert cluster.core.slots_in_use == 1
    cluster.finish_job()
    assert len(cluster.of(do.ReleaseWorker)) == 3
    cluster.check_answers()


def test_workers_come_back_for_a_wider_stage() -> None:
    """One producer, then four consumers: three more workers are launched for them."""
    cluster = Cluster(4)
    cluster.submit(chain(1, 4, kinds=(BLOCKING,)))
    cluster.finish(0, 0)
    assert cluster.working() == [(1, subtask) for subtask in range(4)]
    assert [len(item.spark_jobs[0].workers) for item in cluster.of(do.LaunchSparkJobs)] == [1, 3]


def test_workers_that_spark_never_starts_do_not_keep_the_job() -> None:
    """Two of four are there and do all the work: the job ends well; one that comes later is told that it is over."""
    cluster = Cluster(4)
    cluster.send(events.JobSubmitted("j1", chain(8), 4, 60))
    late = cluster.queue.pop()
    cluster.queue.pop()
    cluster.run()
    assert len(cluster.workers()) == 2
    cluster.finish_job()
    assert not cluster.of(do.CancelSparkJobs)
    assert cluster.ended["j1"].error is None
    cluster.queue.append(late)
    cluster.run()
    cluster.check_answers()


def test_duplicate_attempts_of_a_worker_are_parked() -> None:
    """Spark's speculation starts a second attempt: no answer while the first works, and its place after it."""
    cluster = Cluster(4)
    cluster.submit(chain(3))
    worker = cluster.task(0, 0)
    call = cluster.call()
    second = WorkerId("j1", worker.identity.number, 7)
    cluster.send(events.TaskRegistered(call, second, "a", "tcp://x:1", worker.spark_job))
    assert cluster.answers[call] == 0
    cluster.lose(worker, retried=False)
    cluster.run()
    assert cluster.answers[call] == 1
    assert [item.attempt for item in cluster.of(do.AnswerRegistration)[-1:]] == [AttemptId("j1", 0, 0, 1)]


def test_parked_attempts_are_released_with_their_worker() -> None:
    """When the worker may end, so may whoever waited for its place; the question of one that died ends with it."""
    cluster = Cluster(4)
    cluster.submit(chain(1))
    worker = cluster.task(0, 0)
    calls = [cluster.call() for _ in range(2)]
    for number, call in enumerate(calls):
        attempt = WorkerId("j1", worker.identity.number, 7 + number)
        cluster.send(events.TaskRegistered(call, attempt, "a", "tcp://x:1", worker.spark_job))
    cluster.send(events.TaskGone(WorkerId("j1", worker.identity.number, 8), "killed by Spark"))
    assert [cluster.answers[call] for call in calls] == [0, 1]
    cluster.finish_job()
    assert [cluster.answers[call] for call in calls] == [1, 1]
    assert cluster.ended["j1"].error is None


def test_parked_attempts_of_a_lost_environment_never_work() -> None:
    """A parked attempt whose environment is gone is not given the place of the first one later."""
    cluster = Cluster(4, ["a"])
    cluster.submit(chain(1))
    worker = cluster.task(0, 0)
    parked = WorkerId("j1", worker.identity.number, 7)
    cluster.send(events.TaskRegistered(cluster.call(), parked, "b", "tcp://x:1", worker.spark_job))
    cluster.send(events.EnvironmentLost("b", "gone"))
    assert cluster.restarted() == []
    cluster.lose(worker, retried=False)
    cluster.run()
    assert [task.environment for task in cluster.workers()] == ["a"]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_a_parked_attempt_that_asks_twice_is_parked_once() -> None:
    """It asked beside another environment when the first one died: dead itself, it inherits nothing twice."""
    cluster = Cluster(4)
    cluster.submit(chain(1))
    worker = cluster.task(0, 0)
    parked = WorkerId("j1", worker.identity.number, 7)
    calls = [cluster.call() for _ in range(2)]
    for call, environment in zip(calls, "bc", strict=True):
        cluster.send(events.TaskRegistered(call, parked, environment, "tcp://x:1", worker.spark_job))
    assert [cluster.answers[call] for call in calls] == [1, 0]
    cluster.lose(worker, retried=False)
    cluster.send(events.TaskGone(parked, "killed"))
    cluster.run()
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_a_worker_that_asks_twice_is_answered_twice() -> None:
    """A question that was sent again replaces the first, which is answered too; nothing runs twice."""
    cluster = Cluster(4)
    cluster.send(events.JobSubmitted("j1", pipeline(), 4, 60))
    cluster.step()
    (worker,) = cluster.tasks
    cluster._ask(worker)
    cluster.run()
    assert len(cluster.deployments) == 4
    cluster.finish_job()
    cluster.check_answers()
    assert cluster.ended["j1"].error is None


# --- jobs beside each other


def shares(cluster: Cluster) -> dict[str, int]:
    """The number of slots that each job's tasks have."""
    return dict(Counter(task.identity.job for task in cluster.tasks))


def work_round(cluster: Cluster) -> None:
    """Every task that works ends once, and all that follows happens."""
    for task in [task for task in cluster.tasks if task.attempt]:
        if task.attempt:
            cluster.report(task)
            cluster.run()


@pytest.mark.parametrize(("slots", "expected"), [(6, [2, 2, 2]), (8, [2, 3, 3]), (3, [1, 1, 1])])
def test_elastic_jobs_get_even_shares(slots: int, expected: list[int]) -> None:
    """The first job has all slots until others come; then its tasks end one by one and the shares become even."""
    cluster = Cluster(slots)
    cluster.submit(chain(1000), "j1")
    assert shares(cluster) == {"j1": slots}
    cluster.submit(chain(1000), "j2")
    cluster.submit(chain(1000), "j3")
    for _ in range(3):
        work_round(cluster)
        assert sum(shares(cluster).values()) == slots, "no slot stands idle"
    assert sorted(shares(cluster).values()) == expected
    launches = len(cluster.of(do.LaunchSparkJobs))
    for _ in range(5):
        work_round(cluster)
    assert sorted(shares(cluster).values()) == expected
    assert len(cluster.of(do.LaunchSparkJobs)) == launches, "even shares stay as they are"


def test_more_jobs_than_slots_take_turns() -> None:
    """Five jobs on two slots: each gets its slot in its turn, and all end."""
    cluster = Cluster(2)
    for number in range(5):
        cluster.submit(chain(6), f"j{number}")
    served: set[str] = set()
    for _ in range(200):
        served |= set(shares(cluster))
        work_round(cluster)
        if not cluster.core.jobs:
            break
    assert len(served) == 5
    assert [ended.error for ended in cluster.ended.values()] == [None] * 5


def test_a_job_that_wants_all_slots_gets_them() -> None:
    """Elastic jobs come in a stream, and one long one is there before: they make room, nobody passes meanwhile."""
    cluster = Cluster(4)
    cluster.submit(chain(300), "long")
    cluster.submit(pipeline(2, 2), "all")
    for number in range(20):
        cluster.submit(chain(2), f"short{number}")
        work_round(cluster)
        if "all" in shares(cluster):
            break
    assert shares(cluster) == {"all": 4}
    assert cluster.working("all") == [(0, 0), (0, 1), (1, 0), (1, 1)]
    cluster.finish_job("all")
    for _ in range(600):
        work_round(cluster)
    assert not cluster.core.jobs
    assert {ended.error for ended in cluster.ended.values()} == {None}


def test_a_later_region_of_a_job_does_not_starve() -> None:
    """Between its regions a job holds one slot and wants all: newer jobs with fewer slots do not pass it for ever."""
    cluster = Cluster(4)
    graph = chain(1, 2, 2, kinds=(BLOCKING, PIPELINED))
    cluster.submit(graph, "regions")
    for number in range(3):
        cluster.submit(chain(3), f"before{number}")
    cluster.finish(0, 0, "regions")
    for number in range(20):
        cluster.submit(chain(3), f"after{number}")
        if cluster.working("regions"):
            break
        work_round(cluster)
    assert cluster.working("regions") == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_jobs_that_want_all_slots_run_one_after_the_other() -> None:
    """In the order in which they came; the deadline of one that runs out of patience names what it got."""
    cluster = Cluster(4)
    cluster.submit(pipeline(), "j1")
    cluster.submit(pipeline(), "j2", timeout=7)
    cluster.submit(pipeline(1, 1), "j3")
    assert shares(cluster) == {"j1": 4}
    cluster.deadline(DeadlineKind.SLOTS, "j2")
    assert "0 of 4 slots obtained" in str(cluster.ended["j2"].error)
    cluster.finish_job("j1")
    assert shares(cluster) == {"j3": 2}


def test_waiting_behind_the_own_tasks_is_no_missing_slot() -> None:
    """Two pairs side by side on the slots of one: the second waits as long as the first takes, without a deadline."""
    graph = chain(2, 2, kinds=(PIPELINED,))
    other = chain(2, 2, kinds=(PIPELINED,))
    vertices = (*graph.vertices, *(replace(vertex, id=vertex.id + 10) for vertex in other.vertices))
    moved = [replace(e, id=e.id + 10, producer=e.producer + 10, consumer=e.consumer + 10) for e in other.edges]
    edges = (*graph.edges, *moved)
    cluster = Cluster(4)
    cluster.submit(replace(graph, name="pairs", vertices=vertices, edges=edges, result=(1, 11)))
    assert [place[0] for place in cluster.working()] == [0, 0, 1, 1]
    assert DeadlineKind.DEPLOY not in {entry[2].kind for entry in cluster.deadlines}
    for late in [late for late in cluster.withdrawn if late[1].kind is DeadlineKind.DEPLOY]:
        cluster.send(events.DeadlinePassed(*late))
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_a_producer_that_readers_wait_for_passes_everybody() -> None:
    """A reader holds a slot and its producer failed before its first buffer: the producer gets the next slot.

    Although another job waits for all of them, and the reader's job has more than its share.
    """
    cluster = Cluster(3)
    cluster.submit(word_count(HYBRID), "j1")
    cluster.submit(chain(2, 1), "all")
    assert cluster.working("j1") == [*MAPS, (1, 0)]
    cluster.lose(cluster.task(0, 0, "j1"), retried=False)
    cluster.run()
    assert cluster.working("j1") == [*MAPS, (1, 0)]
    cluster.finish_job("j1")
    cluster.finish_job("all")
    assert {ended.error for ended in cluster.ended.values()} == {None}


def test_readers_make_room_for_producers_that_run_together() -> None:
    """A pipelined pair needs all slots again, and readers of it hold some: they are taken off, and run again too."""
    cluster = Cluster(3)
    cluster.submit(chain(2, 1, 2, kinds=(PIPELINED, HYBRID)))
    cluster.finish(0, 0)
    cluster.finish(0, 1)
    assert cluster.working() == [(1, 0), (2, 0), (2, 1)]
    cluster.lose_task(1, 0)
    assert cluster.restarted() == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    assert cluster.working() == [(0, 0), (0, 1), (1, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_readers_of_readers_make_room_too() -> None:
    """They wait for what waits for the pair, and hold slots as well."""
    cluster = Cluster(4)
    cluster.submit(chain(2, 1, 1, 1, kinds=(PIPELINED, HYBRID, HYBRID)))
    cluster.finish(0, 0)
    cluster.finish(0, 1)
    assert cluster.working() == [(1, 0), (2, 0), (3, 0)]
    cluster.lose_task(1, 0)
    assert cluster.working()[:3] == [(0, 0), (0, 1), (1, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


@pytest.mark.parametrize("kind", [BLOCKING, HYBRID])
def test_a_task_with_resources_that_comes_too_soon_makes_room(kind: PartitionKind) -> None:
    """Spark starts it by itself, ahead of the worker for what it reads, which has to be made again."""
    graph = chain(1, 2, kinds=(kind,))
    cluster = Cluster(1)
    cluster.submit(graph.with_vertex(replace(graph.vertex(1), resources=Resources())))
    cluster.finish(0, 0)
    cluster.report(cluster.task(1, 0))
    cluster.lose_partition(0, 0, 0)
    assert cluster.working() == [(0, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_nobody_keeps_a_worker_for_what_waits_for_a_dataframe() -> None:
    """The lost rows were made of some that were released: the DataFrame is read again, on the idle worker's slot."""
    cluster = Cluster(1)
    cluster.submit(chain(1, 1, 1, kinds=(BLOCKING, HYBRID), frame=True))
    cluster.finish(0, 0)
    cluster.report(cluster.task(1, 0))
    cluster.lose_partition(1, 0, 1)
    cluster.run()
    assert cluster.working() == [(0, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_readers_that_are_about_to_begin_make_room_too() -> None:
    """They have a worker, and wait for their partitions to be registered: the slot is taken already."""
    cluster = Cluster(5)
    cluster.submit(chain(2, 1, 2, 1, kinds=(PIPELINED, HYBRID, HYBRID)))
    assert cluster.working() == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    cluster.report(cluster.task(0, 0))
    (ask,) = cluster.todo
    cluster.todo.remove(ask)
    ask.act()
    assert [step.name for step in cluster.todo] == ["register"]
    cluster.lose(cluster.task(1, 0))
    cluster.run()
    assert cluster.working()[:3] == [(0, 0), (0, 1), (1, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


# --- Spark that can't


def test_spark_jobs_that_fail_at_once_end_the_job_with_their_error() -> None:
    """No environment can be started: when the restarts are used up the job ends with Spark's words, in no time."""
    cluster = Cluster(4)
    cluster.pace = 0.0
    cluster.send(events.JobSubmitted("j1", chain(4), 4, 60, restart=RestartSettings("fixed", 3)))
    for _ in range(50):
        if cluster.ended:
            break
        cluster.queue.clear()
        (key,) = cluster.open
        cluster.kill_spark_job(*key, "cannot start the environment: no space left", cancelled=False)
        cluster.step()
    error = cluster.ended["j1"].error
    assert isinstance(error, JobError)
    assert "no space left" in str(error)
    assert "3 of 3 restarts used" in str(error)
    assert len(cluster.of(do.LaunchSparkJobs)) == 4


def test_an_open_stage_runs_in_waves() -> None:
    """The number of consumers is chosen late and may be far above the slots; workers take one after the other."""
    cluster = Cluster(4)
    cluster.submit(open_sink(64), target=1 << 20)
    for subtask in range(2):
        cluster.finish(0, subtask, sizes={0: [1 << 19] * 64})
    assert cluster.working() == [(1, subtask) for subtask in range(4)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    assert len([entry for entry in cluster.ended["j1"].result.trace if entry[1] == "task_deployed"]) == 2 + 64 + 4


@pytest.mark.parametrize("kind", KINDS)
def test_slots_are_never_oversold(kind: PartitionKind) -> None:
    """Jobs of all widths beside each other; the model refuses any moment with more slots than there are."""
    cluster = Cluster(5)
    for number in range(6):
        cluster.submit(chain(1 + number % 3, 2, 1, kinds=(kind, BLOCKING)), f"j{number}")
    for _ in range(100):
        work_round(cluster)
    assert {ended.error for ended in cluster.ended.values()} == {None}
    assert len(cluster.ended) == 6
    assert cluster.core.slots_in_use == 0
