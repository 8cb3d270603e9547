# SPDX-License-Identifier: Apache-2.0
"""A streaming query in the JobMaster's core: admitted at once, checkpointed, restarted as a whole, ended well."""

from __future__ import annotations

import gc
import types
from dataclasses import replace

import pytest

from cluster import Cluster, workers_job
from job_graphs import BLOCKING, HYBRID, chain
from penstock.checkpoint.barriers import CheckpointBarrier, decode
from penstock.checkpoint.errors import CheckpointError, FencedError
from penstock.errors import FailureKind, SlotsError
from penstock.graph.deployment import TaskDeployment
from penstock.graph.job_graph import JobGraph
from penstock.graph.streaming import (
    APPROXIMATE,
    AT_LEAST_ONCE,
    CONTINUOUS,
    QueryBeginning,
    SavedParts,
    StreamingOptions,
)
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.deadlines import DeadlineKind
from penstock.job.core.result import JobProgress
from penstock.link.commands import CancelTask, TaskAction
from penstock.link.master import AcknowledgeCheckpoint, DataEnded, DeclineCheckpoint
from penstock.settings import RestartSettings
from penstock.shuffle import DatasetId, PartitionId
from penstock.shuffle.actions import Action, CheckpointCompleted, CheckpointGivenUp, StopSource, TriggerCheckpoint

RESTARTS = RestartSettings("exponential", attempts=1_000_000, delay=0.1, reset_after=1.0)
PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]
OPTIONS = StreamingOptions("q1", "counts", "/nowhere", interval=1.0, tolerable_failures=1)


def query(options: StreamingOptions = OPTIONS, *parallelisms: int) -> JobGraph:
    """Sources and counters, joined by edges that a batch job would run one after the other."""
    graph = chain(*(parallelisms or (2, 2)), kinds=(BLOCKING, HYBRID), result=False)
    vertices = tuple(replace(vertex, uid=f"u{vertex.id}") for vertex in graph.vertices)
    return replace(graph, vertices=vertices, streaming=options)


def started(options: StreamingOptions = OPTIONS) -> Cluster:
    """A cluster that runs the query."""
    cluster = Cluster()
    cluster.submit(query(options), restart=RESTARTS)
    assert cluster.working() == PLACES
    return cluster


def acknowledge(cluster: Cluster, number: int, *places: tuple[int, int]) -> None:
    """These tasks, by default all, have stored their snapshots."""
    for place in places or PLACES:
        handle = f"{place[0]}.{place[1]}@{number}".encode()
        cluster.send(AcknowledgeCheckpoint(cluster.attempt(*place), number, handle))


def checkpoint(cluster: Cluster) -> int:
    """The time for a checkpoint comes, and all goes well; its number."""
    cluster.deadline(DeadlineKind.CHECKPOINT)
    number = triggered(cluster)
    acknowledge(cluster, number)
    cluster.send(events.CheckpointStored("j1", number))
    return number


def triggered(cluster: Cluster) -> int:
    """The number of the checkpoint that was triggered last."""
    barrier = decode([action for _, action in said(cluster) if isinstance(action, TriggerCheckpoint)][-1].barrier)
    assert isinstance(barrier, CheckpointBarrier)
    return barrier.checkpoint


def progress_of(cluster: Cluster) -> JobProgress:
    """The query's figures."""
    found = cluster.core.progress("j1", lambda _: {})
    assert found is not None
    return found


def said(cluster: Cluster) -> list[tuple[tuple[int, int], Action]]:
    """All that tasks were told, with the subtask."""
    return [((item.attempt.vertex, item.attempt.subtask), item.action) for item in cluster.of(TaskAction)]


def told(cluster: Cluster, kind: type[Action]) -> list[tuple[int, int]]:
    """Which subtasks were told such a thing."""
    return sorted(place for place, action in said(cluster) if isinstance(action, kind))


def test_all_vertices_run_at_once_whatever_their_edges() -> None:
    """A query takes slots for all of its tasks or none, and says both numbers where it can't have them."""
    started()
    cluster = Cluster(slots=3)
    cluster.submit(query(), restart=RESTARTS)
    error = cluster.ended["j1"].error
    assert isinstance(error, SlotsError)
    assert "4" in str(error)
    assert "3" in str(error)


def test_checkpoint_is_triggered_at_the_sources_and_told_to_all() -> None:
    """Sources get the barrier; when all have acknowledged the metadata is stored; then all tasks hear of it."""
    cluster = started()
    cluster.deadline(DeadlineKind.CHECKPOINT)
    number = triggered(cluster)
    assert told(cluster, TriggerCheckpoint) == [(0, 0), (0, 1)]
    acknowledge(cluster, number, *PLACES[:3])
    assert not cluster.of(do.StoreCheckpoint)
    acknowledge(cluster, number, PLACES[3])
    (store,) = cluster.of(do.StoreCheckpoint)
    assert store.saved.parts == {f"u{v}.{s}": f"{v}.{s}@{number}".encode() for v, s in PLACES}
    assert not told(cluster, CheckpointCompleted)
    cluster.send(events.CheckpointStored("j1", number))
    assert told(cluster, CheckpointCompleted) == PLACES


def test_figures_of_each_task_are_kept_for_the_last_checkpoints() -> None:
    """A task's time is its own word, the rest since the trigger its start delay; a failed one keeps its cause."""
    cluster = started()
    cluster.deadline(DeadlineKind.CHECKPOINT)
    number = triggered(cluster)
    cluster.now += 2.0
    figures = {"align_seconds": 0.5, "freeze_seconds": 0.25, "store_seconds": 0.25, "bytes": 9.0}
    cluster.send(AcknowledgeCheckpoint(cluster.attempt(1, 0), number, b"h", figures))
    acknowledge(cluster, number, *(place for place in PLACES if place != (1, 0)))
    (store,) = cluster.of(do.StoreCheckpoint)
    assert (store.saved.seconds, store.saved.figures["u1.0"]["start_seconds"]) == pytest.approx((2.0, 1.0), abs=0.1)
    cluster.send(events.CheckpointStored("j1", number))  # the next one is due, and begins
    cluster.send(DeclineCheckpoint(cluster.attempt(0, 0), triggered(cluster), "the disk is full"))
    good, bad = progress_of(cluster).checkpoints.reports
    assert (good.number, good.cause, good.tasks["u1.0"]["bytes"]) == (number, "", 9.0)
    assert good.seconds == pytest.approx(2.0, abs=0.1)
    assert "the disk is full" in bad.cause


def test_any_failure_restarts_all_from_the_last_checkpoint() -> None:
    """One task dies: every task is deployed anew, with its own part, and numbers of checkpoints go on."""
    cluster = started()
    first = checkpoint(cluster)
    cluster.deadline(DeadlineKind.CHECKPOINT)
    cluster.lose_task(1, 1)
    assert told(cluster, CheckpointGivenUp) == PLACES[:3]
    assert cluster.restarted() == PLACES
    cluster.deadline(DeadlineKind.RESTART)
    assert cluster.working() == PLACES
    for vertex, subtask in PLACES:
        streaming = cluster.deployment(vertex, subtask).streaming
        assert streaming is not None
        assert streaming.restored == ((f"u{vertex}.{subtask}", f"{vertex}.{subtask}@{first}".encode()),)
    assert checkpoint(cluster) == first + 2


def test_logs_of_an_attempt_that_is_over_are_removed() -> None:
    """All that were begun after a checkpoint of that attempt; the next one begins its files after a later number."""
    cluster = started(replace(OPTIONS, unaligned=True, persist_in_flight=CONTINUOUS))
    for _ in range(2):
        cluster.deadline(DeadlineKind.CHECKPOINT)
        last = triggered(cluster)
        cluster.lose_task(1, 1)
        assert cluster.of(do.DiscardLogs)[-1].before > last
        cluster.deadline(DeadlineKind.RESTART)
        assert cluster.working() == PLACES
        streaming = cluster.deployment(0, 0).streaming
        assert streaming is not None
        assert streaming.behind >= cluster.of(do.DiscardLogs)[-1].before
    assert len(cluster.of(do.DiscardLogs)) == 2


def test_nothing_is_deployed_while_metadata_is_being_written() -> None:
    """Nobody knows then whether the last checkpoint exists; the next attempt begins with what comes of it."""
    cluster = started()
    checkpoint(cluster)
    cluster.deadline(DeadlineKind.CHECKPOINT)
    number = triggered(cluster)
    acknowledge(cluster, number)
    cluster.lose_task(0, 0)
    before = len(cluster.of(do.AnswerRegistration))
    cluster.deadline(DeadlineKind.RESTART)
    assert len(cluster.of(do.AnswerRegistration)) == before
    cluster.send(events.CheckpointStored("j1", number))
    cluster.run()
    streaming = cluster.deployment(1, 0).streaming
    assert streaming is not None
    assert streaming.restored == (("u1.0", f"1.0@{number}".encode()),)


def test_stopped_query_ends_with_a_checkpoint() -> None:
    """Its sources are told to stop; when all data has ended, one checkpoint holds all tasks, and the job ends."""
    cluster = started()
    cluster.send(events.StopAsked("j1"))
    assert told(cluster, StopSource) == [(0, 0), (0, 1)]
    for place in PLACES:
        cluster.send(DataEnded(cluster.attempt(*place)))
    number = triggered(cluster)
    acknowledge(cluster, number)
    cluster.send(events.CheckpointStored("j1", number))
    for place in PLACES:
        cluster.finish(*place)
    assert len(cluster.of(do.StoreCheckpoint)) == 1
    assert cluster.ended["j1"].error is None


def test_a_query_that_goes_on_says_so_to_its_sources() -> None:
    """Also in an attempt that begins anew, unless it was told to stop for good meanwhile."""
    for stops, goes_on in (([True], True), ([True, True], True), ([True, False], False), ([False, True], False)):
        cluster = started()
        for each in stops:
            cluster.send(events.StopAsked("j1", each))
        cluster.lose_task(1, 1)
        cluster.run()
        found = [action.goes_on for _, action in said(cluster) if isinstance(action, StopSource)]
        assert found == [stops[0]] * 2 + [goes_on] * 2


def test_stopped_query_that_fails_again_ends_at_once() -> None:
    """One failure is mended, without the wait before a restart; after the next one nobody waits for ever."""
    cluster = started()
    for _ in range(4):  # the wait between attempts has grown
        cluster.now += 2.0
        cluster.lose_task(1, 1)
        cluster.deadline(DeadlineKind.RESTART)
    cluster.send(events.StopAsked("j1"))
    cluster.now += 2.0
    cluster.lose_task(1, 1)
    assert cluster.working() == PLACES, "without waiting for a deadline"
    cluster.now += 2.0
    cluster.lose_task(1, 1)
    cluster.run()
    text = str(cluster.ended["j1"].error)
    assert "its process died" in text
    assert "told to stop" in text


def test_stop_ends_the_wait_before_a_restart() -> None:
    """A query that waits to begin anew does so now, and its sources are told to stop; if it fails again, it ends."""
    cluster = started()
    cluster.lose_task(1, 1)
    assert cluster.working() == []
    cluster.send(events.StopAsked("j1"))
    cluster.run()
    assert cluster.working() == PLACES
    assert told(cluster, StopSource)[-2:] == [(0, 0), (0, 1)]
    cluster.now += 2.0
    cluster.lose_task(1, 1)
    cluster.run()
    assert "told to stop" in str(cluster.ended["j1"].error)


def test_checkpoint_that_somebody_asks_for() -> None:
    """The answer is its number; after the end of the query it is a reason."""
    cluster = started(replace(OPTIONS, interval=None))
    cluster.send(events.CheckpointAsked(7, "j1"))
    number = triggered(cluster)
    acknowledge(cluster, number)
    cluster.send(events.CheckpointStored("j1", number))
    assert cluster.of(do.AnswerCheckpoint) == [do.AnswerCheckpoint("j1", 7, number, "")]
    cluster.send(events.CheckpointAsked(8, "j1"))
    cluster.send(events.CancelRequested("j1", "enough"))
    assert cluster.of(do.AnswerCheckpoint)[-1].checkpoint is None


def test_more_failed_checkpoints_than_tolerated_end_the_query() -> None:
    """One that is declined is told to all; the second in a row ends the query with its reason."""
    cluster = started()
    for count in (1, 2):
        cluster.deadline(DeadlineKind.CHECKPOINT)
        number = triggered(cluster)
        cluster.send(DeclineCheckpoint(cluster.attempt(1, 0), number, "no space left"))
        assert len(told(cluster, CheckpointGivenUp)) >= 4 * count
    cluster.run()
    cluster.deadline(DeadlineKind.SETTLE) if "j1" not in cluster.ended else None
    error = cluster.ended["j1"].error
    assert isinstance(error, CheckpointError)
    assert "no space left" in str(error)
    assert "tolerableFailedCheckpoints=1" in str(error)


def test_query_that_never_ran_fails_soon() -> None:
    """Its restarts have no limit, but what keeps it from its first row is said after a few tries."""
    cluster = Cluster()
    cluster.send(events.JobSubmitted("j1", query(), 8, 60, restart=RESTARTS))
    for number in range(10):
        cluster.kill_spark_job("j1", workers_job(number), "No module named 'pyarrow'", cancelled=False)
        for step in [step for step in cluster.todo if step.name == "return"]:
            cluster.todo.remove(step)
            step.act()
        if "j1" in cluster.ended:
            break
        cluster.now += 10
        ((_, job, deadline), *_) = [entry for entry in cluster.deadlines if entry[2].kind is DeadlineKind.RESTART]
        cluster.deadlines = [entry for entry in cluster.deadlines if entry[2] != deadline]
        cluster.send(events.DeadlinePassed(job, deadline))
    error = cluster.ended["j1"].error
    assert "pyarrow" in str(error)
    assert "never run" in str(error)


def test_driver_that_lost_its_location_ends_the_query() -> None:
    """Another driver goes on with it: this one must not restart."""
    cluster = started()
    cluster.deadline(DeadlineKind.CHECKPOINT)
    acknowledge(cluster, triggered(cluster))
    cluster.send(events.CheckpointStoreFailed("j1", triggered(cluster), "another driver took over", FencedError))
    cluster.run()
    cluster.deadline(DeadlineKind.SETTLE) if "j1" not in cluster.ended else None
    assert isinstance(cluster.ended["j1"].error, FencedError)


def test_driver_that_lost_its_location_does_not_restart() -> None:
    """It looks who owns the location before tasks begin again; it restarted for ever from what was not there."""
    cluster = started()
    checkpoint(cluster)
    cluster.lose_task(0, 0)
    cluster.deadline(DeadlineKind.RESTART)
    cluster.run()
    assert cluster.deployment(0, 0).streaming is not None, "it is still its own"
    cluster.location_lost = ("another driver took over", FencedError)
    cluster.lose_task(0, 0)
    cluster.deadline(DeadlineKind.RESTART)
    cluster.run()
    deployed = [item for item in cluster.of(do.AnswerRegistration) if isinstance(item.answer, TaskDeployment)]
    assert len(deployed) == 2 * len(PLACES), "nothing but the first attempt and the second"
    assert isinstance(cluster.ended["j1"].error, FencedError)
    assert len(cluster.of(do.LookWhoOwns)) == 2


@pytest.mark.parametrize("width", [1, 3])
def test_new_driver_goes_on_from_what_it_found(width: int) -> None:
    """Tasks get their own parts, or where the parallelism has changed all parts of their vertex."""
    parts = {f"u{v}.{s}": f"{v}{s}".encode() for v, s in PLACES}
    saved = SavedParts(41, parts, parallelism={"u0": 2, "u1": 2})
    cluster = Cluster()
    beginning = QueryBeginning("000005-ab", saved)
    graph = query(OPTIONS, 2, width)
    cluster.send(events.JobSubmitted("j1", graph, 8, 60, restart=RESTARTS, beginning=beginning))
    cluster.run()
    own, moved = cluster.deployment(0, 1).streaming, cluster.deployment(1, 0).streaming
    assert own is not None
    assert moved is not None
    assert (own.owner, own.restored) == ("000005-ab", (("u0.1", b"01"),))
    in_front = (("u0.0", b"00"), ("u0.1", b"01"))
    assert moved.restored == (("u1.0", b"10"), ("u1.1", b"11"), *in_front), "the last ones for their rows in flight"
    assert moved.widths == (("u0", 2), ("u1", 2))
    cluster.deadline(DeadlineKind.CHECKPOINT)
    assert triggered(cluster) == 42


def test_damaged_checkpoint_gives_way_to_the_one_before() -> None:
    """A task can't read its part: all begin with the one before, the damaged one goes, and a warning names it."""
    cluster = started(replace(OPTIONS, retained=2))
    first, second = checkpoint(cluster), checkpoint(cluster)
    cluster.lose_task(1, 1)
    cluster.deadline(DeadlineKind.RESTART)
    cluster.now += 10
    cluster.fail(1, 0, FailureKind.UNRESTORABLE)
    (warned,) = cluster.of(do.WarnOfCheckpoint)
    assert (warned.checkpoint, warned.instead) == (second, first)
    assert [item.checkpoint for item in cluster.of(do.DiscardCheckpoint)][-1] == second
    cluster.deadline(DeadlineKind.RESTART)
    told = cluster.deployment(1, 0).streaming
    assert told is not None
    assert told.restored == (("u1.0", f"1.0@{first}".encode()),)
    cluster.now += 10
    cluster.fail(1, 0, FailureKind.UNRESTORABLE)
    assert isinstance(cluster.ended["j1"].error, CheckpointError), "none is kept before that one"


def test_memory_is_flat_over_many_checkpoints_and_restarts() -> None:
    """The core holds as much after a thousand checkpoints and fifty restarts as after two hundred and ten."""
    cluster = started()
    sizes = []
    for round_ in range(50):
        for _ in range(20):
            checkpoint(cluster)
        cluster.now += 10
        cluster.lose_task(round_ % 2, 0)
        cluster.deadline(DeadlineKind.RESTART)
        cluster.log.clear()
        if round_ in (9, 49):
            sizes.append(_reachable(cluster))
    assert sizes[1] <= sizes[0] * 1.02 + 20


def _reachable(cluster: Cluster) -> int:
    """The number of objects that the core holds, its trace apart, which has a limit of its own."""
    skipped = (types.ModuleType, type, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
    (job,) = cluster.core._jobs.values()
    seen: set[int] = {id(job.accounts.trace), id(cluster)}
    waiting: list[object] = [cluster.core]
    while waiting:
        item = waiting.pop()
        if id(item) not in seen and not isinstance(item, skipped):
            seen.add(id(item))
            waiting.extend(gc.get_referents(item))
    return len(seen)


ALONE = replace(OPTIONS, recovery=APPROXIMATE, consistency=AT_LEAST_ONCE)


def test_a_task_begins_anew_alone() -> None:
    """Its neighbours hear of nothing but the checkpoint that is given up; it begins with the newest complete one."""
    cluster = started(ALONE)
    number = checkpoint(cluster)
    cluster.deadline(DeadlineKind.CHECKPOINT)
    begun = triggered(cluster)
    before = {place: cluster.attempt(*place) for place in PLACES}
    cluster.lose_task(1, 0)
    assert told(cluster, CheckpointGivenUp) == [(0, 0), (0, 1), (1, 1)]
    assert not cluster.of(CancelTask)
    assert cluster.restarted() == [(1, 0)]
    cluster.deadline(DeadlineKind.RESTART)
    after = {place: cluster.attempt(*place) for place in PLACES}
    assert [place for place in PLACES if after[place] != before[place]] == [(1, 0)]
    streaming = cluster.deployment(1, 0).streaming
    assert streaming is not None
    assert streaming.restored == (("u1.0", f"1.0@{number}".encode()),)
    counts, lost = progress_of(cluster).checkpoints, progress_of(cluster).lost_rows
    assert (counts.restarts, counts.restarts_alone) == (1, 1)
    assert lost is not None
    assert lost.uncounted == 1, "nobody has told the counts of the one that is gone"
    assert checkpoint(cluster) > begun
    assert progress_of(cluster).checkpoints.completed == 2


@pytest.mark.parametrize(("place", "total"), [((1, 0), "handled"), ((0, 1), "given")])
def test_rows_since_a_checkpoint_are_those_since_the_one_it_begins_with(place: tuple[int, int], total: str) -> None:
    """A task dies while a checkpoint's metadata is written, which is complete when its next attempt is deployed."""
    cluster = started(ALONE)
    first = checkpoint(cluster)
    cluster.deadline(DeadlineKind.CHECKPOINT)
    second = triggered(cluster)
    acknowledge(cluster, second)
    at = {f"rows.at.{slot}.checkpoint": float(number) for slot, number in enumerate((first, second))}
    rows = {f"rows.at.0.{total}": 100.0, f"rows.at.1.{total}": 250.0, f"rows.all.{total}": 260.0}
    cluster.send(events.TaskGone(cluster.attempt(*place), "killed", {**at, **rows}))
    cluster.lose_task(*place)
    assert since_checkpoints(cluster) == {total: 160}, "as far as it is known"
    cluster.deadline(DeadlineKind.RESTART)
    cluster.send(events.CheckpointStored("j1", second))
    cluster.run()
    assert since_checkpoints(cluster) == {total: 10}


def since_checkpoints(cluster: Cluster) -> dict[str, int]:
    """The rows that are reported since checkpoints, by what was done with them; those without any are left out."""
    found = {"handled": lost.forgotten, "given": lost.again} if (lost := progress_of(cluster).lost_rows) else {}
    return {name: rows for name, rows in found.items() if rows}


def test_two_tasks_that_die_one_after_the_other_begin_anew_together() -> None:
    """The second dies while the first is not there again: no checkpoint is begun before both are."""
    cluster = started(ALONE)
    checkpoint(cluster)
    cluster.lose_task(1, 0)
    cluster.now += 2.0
    cluster.lose_task(0, 1)
    assert cluster.restarted() == [(0, 1), (1, 0)]
    begun = len(told(cluster, TriggerCheckpoint))
    assert cluster.working() == [(0, 0), (1, 1)]
    assert len(told(cluster, TriggerCheckpoint)) == begun
    cluster.deadline(DeadlineKind.RESTART)
    assert cluster.working() == PLACES
    checkpoint(cluster)


@pytest.mark.parametrize("why", ["no checkpoint", "data ended", "stopping", "host lost", "damaged"])
def test_all_tasks_begin_anew_where_one_alone_can_not(why: str) -> None:
    """Without a complete checkpoint, at the end of the data, and where more than tasks were lost."""
    cluster = started(ALONE)
    if why != "no checkpoint":
        checkpoint(cluster)
        checkpoint(cluster)
    if why == "data ended":
        cluster.send(DataEnded(cluster.attempt(0, 0)))
    if why == "stopping":
        cluster.send(events.StopAsked("j1"))
    if why == "host lost":
        cluster.lose_environment("a")
    elif why == "damaged":
        cluster.fail(1, 0, FailureKind.UNRESTORABLE)
    else:
        cluster.lose_task(1, 0)
    assert cluster.restarted() == PLACES
    progress = progress_of(cluster)
    assert progress.checkpoints.restarts_alone == 0
    assert progress.lost_rows is not None
    assert progress.lost_rows.uncounted == 0, "what was under way is read again"


def test_each_worker_of_such_a_query_is_a_spark_job_of_its_own() -> None:
    """Spark ends all tasks of a job of which one has failed too often: the others would go with it."""
    (launched,) = started(ALONE).of(do.LaunchSparkJobs)
    assert [len(each.workers) for each in launched.spark_jobs] == [1, 1, 1, 1]
    (launched,) = started().of(do.LaunchSparkJobs)
    assert [len(each.workers) for each in launched.spark_jobs] == [4]


def test_a_task_that_could_not_read_takes_its_producer_with_it() -> None:
    """The partition is released, so its writer begins anew as well, and nobody else."""
    cluster = started(ALONE)
    checkpoint(cluster)
    partition = PartitionId(DatasetId("j1", 0), 1, cluster.attempt(0, 1).attempt)
    cluster.fail(1, 0, FailureKind.CONSEQUENCE, lost=partition)
    assert cluster.restarted() == [(0, 1), (1, 0)]
