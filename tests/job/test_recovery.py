# SPDX-License-Identifier: Apache-2.0
"""What runs again after a failure, through the whole core: as little as the rows allow, as often as was set."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster import Cluster, Place
from job_graphs import BLOCKING, HYBRID, PIPELINED, SELECTIVE, chain, edge, open_sink, pipeline, word_count

from penstock.graph.job_graph import JobGraph
from penstock.job import events
from penstock.job import instructions as do
from penstock.job.states import JobState
from penstock.shuffle import AttemptId, PartitionId, PartitionKind
from penstock.shuffle.errors import JobCancelledError, JobError, StaleError
from penstock.shuffle.settings import RestartSettings

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
        held = [item.environment for item in cluster.known.values() if item.partition.dataset == "j1-e0"]
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
    # Who has ended stays.
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
    """What was read is released; when a later result is lost it is made again from the beginning."""
    cluster = Cluster(4)
    cluster.submit(chain(1, 1, 2, kinds=(BLOCKING, BLOCKING)))
    cluster.finish(0, 0)
    cluster.finish(1, 0)
    assert [item.dataset for item in cluster.released] == ["j1-e0"]
    cluster.lose_partition(1, 0, 1)
    assert cluster.restarted() == [(0, 0), (1, 0), (2, 0), (2, 1)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_partitions()


def test_a_result_lost_before_the_end_is_made_again() -> None:
    """All tasks have ended and the Spark job is about to return: the lost part of the result runs again."""
    cluster = Cluster(4)
    cluster.submit(chain(1, 2, kinds=(BLOCKING,)))
    cluster.finish(0, 0)
    cluster.finish(1, 0)
    cluster.report(cluster.task(1, 1))
    assert cluster.core.progress("j1", lambda _: {}).state is JobState.CONFIRMING  # type: ignore[union-attr]
    cluster.lose_partition(1, 0, -1)
    assert cluster.restarted() == [(0, 0), (1, 0)]
    cluster.finish_job()
    ended = cluster.ended["j1"]
    assert ended.error is None
    assert [item.partition.attempt for item in ended.partitions] == [1, 0]
    cluster.check_answers()
    cluster.check_partitions()


def test_what_nobody_reads_any_more_is_not_made_again() -> None:
    """A partition whose readers have all ended, in a job that still runs, is no loss."""
    cluster = Cluster(4)
    cluster.submit(chain(1, 1, 2, kinds=(HYBRID, BLOCKING)))
    cluster.finish(0, 0)
    (first,) = [item for item in cluster.known if item.dataset == "j1-e0"]
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
    assert not [item for item in cluster.of(do.CancelTask) if item.attempt == reader]
    cluster.consumable(*M0, 0)
    told = [item for item in cluster.of(do.UpdatePartitionInfo) if item.consumer == reader]
    assert [item.descriptor.partition for item in told] == [PartitionId("j1-e0", 0, 1)]


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
    told = [item for item in cluster.of(do.UpdatePartitionInfo) if item.consumer == new]
    assert [item.descriptor.partition.index for item in told] == [1]


def test_reports_of_withdrawn_attempts_change_nothing() -> None:
    """A first buffer, an end and a loss of an attempt that was withdrawn are nobody's any more."""
    cluster = Cluster(4)
    cluster.submit(word_count(HYBRID))
    old = cluster.attempt(*M0)
    cluster.lose_task(*M0)
    entries = len(cluster.core.trace("j1"))
    for event in (
        events.PartitionConsumable(PartitionId("j1-e0", 0, 0)),
        events.TaskFinished(old, "FINISHED"),
        events.TaskFinished(old, "FAILED", error="late"),
        events.TaskLost(old, "late"),
        events.PartitionsLost((PartitionId("j1-e0", 0, 0),), "late"),
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
    (late,) = cluster.of(do.ReleasePartitions)
    assert [item.partition for item in late.descriptors] == [PartitionId("j1-e0", 0, 0)]
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


# --- how often, how soon


def test_without_restarts_the_first_failure_is_the_last() -> None:
    """The error names the cause."""
    cluster = Cluster(4)
    cluster.submit(chain(2), restart=NEVER)
    cluster.lose_task(0, 0)
    error = cluster.ended["j1"].error
    assert isinstance(error, JobError)
    assert "stage0 (1/2) on a was lost: its process died" in str(error)
    assert cluster.restarted() == []


def test_used_up_restarts_fail_the_job_with_the_cause() -> None:
    """Two are allowed; the third failure ends the job, and the error says how often it was tried."""
    cluster = Cluster(4)
    cluster.pace = 2.0
    cluster.submit(chain(2), restart=RestartSettings("fixed", 2))
    for _ in range(2):
        cluster.lose_task(0, 0)
        assert cluster.restarted() == [(0, 0)]
    cluster.lose(cluster.task(0, 0), "killed for its memory")
    cluster.run()
    error = cluster.ended["j1"].error
    assert isinstance(error, JobError)
    assert "killed for its memory" in str(error)
    assert "2 of 2 restarts used" in str(error)


def test_a_delay_keeps_everything_until_its_deadline() -> None:
    """Nothing new is started before; what still runs goes on; afterwards all that was reset starts."""
    cluster = Cluster(4)
    cluster.submit(chain(3), restart=RestartSettings("fixed", 3, delay=10.0))
    cluster.lose_task(0, 0)
    assert cluster.working() == [(0, 1), (0, 2)]
    cluster.deadline(do.RESTART)
    assert cluster.now >= 10.0
    assert cluster.working() == [(0, 0), (0, 1), (0, 2)]


def test_exponential_delays_grow_and_the_last_one_counts() -> None:
    """A second failure during the wait makes it longer; the first deadline starts nothing."""
    cluster = Cluster(4)
    cluster.pace = 2.0
    restart = RestartSettings("exponential", 5, delay=100.0, max_delay=1000.0)
    cluster.submit(chain(3), restart=restart)
    cluster.lose_task(0, 0)
    cluster.lose_task(0, 1)
    waits = [item.seconds for item in cluster.of(do.StartDeadline) if item.what.startswith(do.RESTART)]
    assert waits == [100.0, 200.0]
    cluster.deadline(do.RESTART)
    assert cluster.working() == [(0, 2)]
    cluster.deadline(do.RESTART)
    assert cluster.working() == [(0, 0), (0, 1), (0, 2)]


def test_an_exception_of_user_code_fails_the_job_at_once() -> None:
    """By default it is not tried again: it most often comes again."""
    cluster = Cluster(4)
    cluster.submit(chain(2))
    cluster.fail(0, 0, "ValueError")
    assert "ValueError: boom" in str(cluster.ended["j1"].error)
    assert cluster.restarted() == []


def test_an_exception_of_user_code_may_be_tried_again() -> None:
    """As often in one subtask as was set; the next time it fails the job."""
    cluster = Cluster(4)
    cluster.pace = 2.0
    cluster.submit(chain(2), restart=RestartSettings(user_errors=1))
    cluster.fail(0, 0, "ValueError")
    assert cluster.restarted() == [(0, 0)]
    cluster.fail(0, 1, "ValueError")
    assert cluster.restarted() == [(0, 1)]
    cluster.fail(0, 0, "ValueError")
    assert "ValueError: boom" in str(cluster.ended["j1"].error)


def test_one_bad_moment_counts_once() -> None:
    """Its task, its readers and its environment all tell of one dead process: one restart of those allowed."""
    cluster = Cluster(8, ["a", "b"])
    cluster.submit(word_count(HYBRID), restart=RestartSettings("fixed", 1))
    cluster.consumable(*M0, 0)
    dead = cluster.task(*M0).environment
    cluster.lose_task(*M0)
    for place in (R0, R1):
        if place in cluster.working():
            cluster.fail(*place, "ProducerFailedError")
    cluster.lose_environment(dead, "c")
    cluster.run()
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    assert len(cluster.trace("restart")) >= 2


def test_a_process_that_dies_again_at_once_counts_again() -> None:
    """Workers launched only after a failure do not die of it: each death counts, though no second goes by."""
    cluster = Cluster(4)
    cluster.pace = 0.0
    cluster.submit(chain(1), restart=RestartSettings("fixed", 3))
    for _ in range(10):
        if cluster.ended:
            break
        cluster.lose(cluster.task(0, 0), retried=False)
        cluster.run()
    assert "3 of 3 restarts used" in str(cluster.ended["j1"].error)
    assert len(cluster.trace("restart")) == 3


def test_a_spark_job_that_dies_with_one_task_counts_once() -> None:
    """In local mode Spark kills all tasks of a stage with the one whose process died: they all run again, once."""
    cluster = Cluster(4)
    cluster.submit(chain(4), restart=RestartSettings("fixed", 1))
    cluster.lose(cluster.task(0, 2), retried=False)
    cluster.kill_part("j1", -1, "a Python worker exited unexpectedly", cancelled=False)
    cluster.run()
    assert cluster.working() == [(0, subtask) for subtask in range(4)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_answers()


def test_tasks_that_outlive_their_spark_job_are_told_to_stop() -> None:
    """Spark kills them only some seconds later, and until then they would go on writing."""
    cluster = Cluster(4)
    cluster.submit(chain(2))
    attempts = {cluster.attempt(0, subtask) for subtask in range(2)}
    cluster.send(events.SparkJobReturned("j1", -1, "a Python worker exited unexpectedly"))
    assert {item.attempt for item in cluster.of(do.CancelTask)} == attempts


# --- cancelled


def test_a_cancelled_job_is_never_restarted() -> None:
    """What fails while it stops is not run again, and the error is the cancel."""
    cluster = Cluster(4)
    cluster.submit(chain(3))
    cluster.send(events.CancelRequested("j1", "no longer wanted"))
    cluster.lose_task(0, 0)
    cluster.run()
    assert isinstance(cluster.ended["j1"].error, JobCancelledError)
    assert "no longer wanted" in str(cluster.ended["j1"].error)
    assert cluster.restarted() == []


def test_a_cancel_of_spark_is_told_from_a_failure() -> None:
    """Tasks say unasked that they were stopped; a moment later Spark says that its job was cancelled."""
    cluster = Cluster(4)
    cluster.submit(chain(2))
    for subtask in range(2):
        cluster.report(cluster.task(0, subtask), state="CANCELED", error="the worker is being stopped")
    assert cluster.restarted() == []
    cluster.kill_part("j1", -1, "cancelled by the user")
    cluster.run()
    assert isinstance(cluster.ended["j1"].error, JobCancelledError)
    assert cluster.restarted() == []


def test_tasks_stopped_by_a_failing_spark_job_run_again() -> None:
    """Spark says that its job failed, so what it stopped is run again with the rest."""
    cluster = Cluster(4)
    cluster.submit(chain(3))
    cluster.report(cluster.task(0, 0), state="CANCELED", error="the worker is being stopped")
    cluster.kill_part("j1", -1, "a Python worker exited unexpectedly", cancelled=False)
    cluster.run()
    assert cluster.restarted() == [(0, 0), (0, 1), (0, 2)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_tasks_that_spark_stopped_without_a_word_run_again() -> None:
    """After a while nobody waits for Spark's reason any more."""
    cluster = Cluster(4)
    cluster.submit(chain(2))
    cluster.finish(0, 0, state="CANCELED", error="the worker is being stopped")
    cluster.deadline(do.UNEXPLAINED)
    assert cluster.restarted() == [(0, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_what_runs_again_already_is_explained() -> None:
    """A stopped task that another failure reset is not reset again when Spark stays silent."""
    cluster = Cluster(4)
    cluster.submit(pipeline(1, 1))
    cluster.finish(1, 0, state="CANCELED", error="the worker is being stopped")
    cluster.lose_task(0, 0)
    assert cluster.restarted() == [(0, 0), (1, 0)]
    cluster.deadline(do.UNEXPLAINED)
    assert cluster.restarted() == []


# --- DataFrames


@pytest.mark.parametrize("kind", [PIPELINED, BLOCKING, HYBRID])
def test_a_dataframe_runs_again_as_a_whole(kind: PartitionKind) -> None:
    """Spark may cut it in another way: all its tasks, in a new Spark job; late tasks of the old one are refused."""
    cluster = Cluster(8)
    cluster.submit(chain(3, 1, kinds=(kind,), frame=True))
    old = cluster.task(0, 1)
    cluster.lose(cluster.task(0, 2))
    late = AttemptId("j1", 0, 2, 77)
    (answer,) = cluster.send(events.TaskRegistered(cluster.call(), late, "a", "tcp://x:1", 0))[:1]
    assert isinstance(answer, do.AnswerRegistration)
    assert isinstance(answer.answer, StaleError)
    assert do.CancelSparkJobs("j1", 0) in cluster.of(do.CancelSparkJobs)
    cluster.run()
    maps = [(0, 0), (0, 1), (0, 2)]
    assert cluster.restarted() == (maps if kind is not PIPELINED else [*maps, (1, 0)])
    assert old.is_over
    assert {task.part for task in cluster.tasks if task.identity.vertex == 0} == {2}
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    assert cluster.ended["j1"].result.state is JobState.FINISHED
    cluster.check_answers()
    cluster.check_partitions()


def test_a_job_waits_for_the_spark_job_it_gave_up() -> None:
    """The old Spark job of a DataFrame may return last: the job ends then, and well."""
    cluster = Cluster(8)
    cluster.submit(chain(2, 1, kinds=(BLOCKING,), frame=True))
    cluster.lose(cluster.task(0, 0), retried=False)
    cluster.todo = [step for step in cluster.todo if step.name != "kill"]
    cluster.open["j1", 0] = 99
    cluster.run()
    cluster.finish_job()
    assert not cluster.ended
    cluster.send(events.SparkJobReturned("j1", 0, "cancelled", cancelled=True))
    assert cluster.ended["j1"].error is None


def test_a_dataframe_that_spark_gives_up_fails_the_job() -> None:
    """Spark has tried its tasks as often as it was told to; its words are in the error."""
    cluster = Cluster(8)
    cluster.submit(chain(2, 1, frame=True))
    cluster.kill_part("j1", 0, "Job aborted: the disk is full", cancelled=False)
    step = next(step for step in cluster.todo if step.name == "return")
    cluster.todo.remove(step)
    step.act()
    cluster.run()
    assert "Job aborted: the disk is full" in str(cluster.ended["j1"].error)


def test_a_dataframe_whose_rows_broke_off_fails_with_the_words_of_spark() -> None:
    """The task only knows that its input ended early; Spark says why a moment later."""
    cluster = Cluster(8)
    cluster.submit(chain(2, 1, frame=True))
    task = cluster.task(0, 0)
    cluster.report(task, state="FAILED", error="rows broke off", error_type="DataFrameInputError")
    cluster.kill_part("j1", 0, "ArithmeticException: division by zero", cancelled=False)
    cluster.run()
    assert "division by zero" in str(cluster.ended["j1"].error)


def test_a_reader_of_a_dataframe_waits_for_its_new_end() -> None:
    """It asked whether the end is real; the DataFrame is read again instead, so its question ends as stale."""
    cluster = Cluster(8)
    cluster.submit(chain(2, 1, kinds=(HYBRID,), frame=True))
    cluster.consumable(0, 0, 0)
    call = cluster.call()
    cluster.send(events.ProducersAwaited(call, cluster.attempt(1, 0)))
    cluster.lose(cluster.task(0, 1))
    assert [item.call for item in cluster.of(do.AnswerProducers)] == [call]
    assert isinstance(cluster.of(do.AnswerProducers)[0].error, StaleError)
    cluster.run()
    assert cluster.restarted() == [(0, 0), (0, 1), (1, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_empty_partitions_of_a_dataframe_come_back() -> None:
    """A task that never came is empty; when its DataFrame is read again it may have rows."""
    cluster = Cluster(8)
    cluster.send(events.JobSubmitted("j1", chain(2, 2, kinds=(BLOCKING,), frame=True), 8, 60))
    cluster.queue.pop()
    cluster.open["j1", 0] = 1
    cluster.run()
    cluster.finish(0, 0)
    assert cluster.working() == [R0, R1]
    sources = [source for source, _, _ in cluster.deployment(*R0).inputs[0].channels]
    assert [source.empty for source in sources] == [False, True]
    cluster.lose_partition(0, 0, 0)
    assert cluster.restarted() == ALL
    assert cluster.working() == [M0, M1]
    cluster.finish_all(0)
    sources = [source for source, _, _ in cluster.deployment(*R0).inputs[0].channels]
    assert [source.empty for source in sources] == [False, False]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


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
    graph = JobGraph("diamond", (*graph.vertices, side), (*graph.edges, *extra), (3, 4))
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
    bad = PartitionId("j1-e0", 1, 0)
    cluster.lost.add(bad)
    cluster.fail(*R0, "PartitionLostError", lost=bad)
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
    cluster.fail(0, 0, "PartitionLostError", "j1", lost=kept.partition)
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
    cluster.submit(JobGraph("fork", vertices, edges, (0, 1, 2)))
    cluster.finish(0, 0)
    cluster.finish(2, 0)
    cluster.lose_partition(0, 0, 0)
    assert cluster.restarted() == [(0, 0), (1, 0)]
    cluster.finish_job()
    ended = cluster.ended["j1"]
    assert ended.error is None
    assert [item.partition.attempt for item in ended.partitions] == [1, 1, 0]
    cluster.check_partitions()


# --- restarts at the very end


def test_restart_while_the_spark_jobs_return() -> None:
    """A worker that never came is being cancelled when a result is lost: that cancel is ours and cancels no job."""
    cluster = Cluster(4)
    cluster.send(events.JobSubmitted("j1", chain(4), 4, 60))
    cluster.queue.pop()
    cluster.run()
    while len(cluster.working()) > 1:
        cluster.finish(*cluster.working()[0])
    last = cluster.task(*cluster.working()[0])
    cluster.report(last)
    ask = next(step for step in cluster.todo if step.name == "ask")
    cluster.todo.remove(ask)
    ask.act()
    assert do.CancelSparkJobs("j1", -1) in cluster.of(do.CancelSparkJobs)
    cluster.lose_partition(0, 0, -1)
    assert cluster.restarted() == [(0, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_answers()


def test_a_task_that_does_not_stop_does_not_keep_the_job() -> None:
    """An old attempt was told to stop and hangs; all else has ended: its Spark job is cancelled after a while."""
    cluster = Cluster(8)
    cluster.submit(word_count(HYBRID))
    cluster.consumable(*M0, 0)
    cluster.lose(cluster.task(*M0))
    hangs = next(step for step in cluster.todo if step.name == "stop")
    cluster.todo.remove(hangs)
    cluster.tasks.remove(hangs.key)  # type: ignore[arg-type]
    cluster.run()
    cluster.finish_job()
    assert cluster.core.progress("j1", lambda _: {}).state is JobState.CONFIRMING  # type: ignore[union-attr]
    cluster.deadline(do.DRAIN)
    assert cluster.ended["j1"].error is None
