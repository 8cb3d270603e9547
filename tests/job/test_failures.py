# SPDX-License-Identifier: Apache-2.0
"""The restarts of a failed job, their number and waits, and its ends: bursts, cancels, DataFrames, the very end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster import Cluster, frame_job, workers_job
from job_graphs import BLOCKING, HYBRID, PIPELINED, chain, pipeline, word_count
from penstock.errors import FailureKind, JobCancelledError, JobError, SlotsError, StaleError
from penstock.graph import Resources
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.deadlines import DeadlineKind
from penstock.job.core.ids import SparkJobKind
from penstock.job.core.states import JobState
from penstock.link.commands import CancelTask
from penstock.link.master import TaskEnd, TaskFinished
from penstock.settings import RestartSettings
from penstock.shuffle import AttemptId, PartitionKind

M0, M1, R0, R1 = (0, 0), (0, 1), (1, 0), (1, 1)
ALL = [M0, M1, R0, R1]
NEVER = RestartSettings("none")


# --- how often, how soon


def test_without_restarts_the_first_failure_is_the_last() -> None:
    """The error names the cause."""
    cluster = Cluster(4)
    cluster.submit(chain(2), restart=NEVER)
    cluster.lose_task(0, 0)
    error = cluster.ended["j1"].error
    assert isinstance(error, JobError)
    assert "stage0, subtask 0 of 2 on a was lost: its process died" in str(error)
    assert cluster.restarted() == []


def test_the_name_of_a_stage_that_is_also_the_jobs_stands_once() -> None:
    """A job has its last stage's name."""
    cluster = Cluster(4)
    graph = chain(2)
    cluster.submit(replace(graph, name=graph.vertices[0].name), restart=NEVER)
    cluster.lose_task(0, 0)
    assert str(cluster.ended["j1"].error) == "job stage0 failed: subtask 0 of 2 on a was lost: its process died"


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


def test_an_error_after_a_loss_that_was_mended_is_the_one_that_is_told() -> None:
    """A task was lost and came again; then a function raised: the error speaks of the function."""
    cluster = Cluster(4)
    cluster.pace = 2.0
    cluster.submit(chain(2), restart=RestartSettings("fixed", 5))
    cluster.lose_task(0, 0)
    cluster.report(cluster.task(0, 1), state=TaskEnd.FAILED, error="boom", failure=FailureKind.CAUSE)
    cluster.run()
    error = cluster.ended["j1"].error
    assert "failed: boom" in str(error)
    assert "was lost" not in str(error)


def test_tasks_that_do_not_come_after_a_loss_are_what_is_told() -> None:
    """A task was lost and no worker came for it: the error says so, and what the loss was."""
    cluster = Cluster(4)
    cluster.submit(pipeline(), restart=RestartSettings("fixed", 5))
    cluster.gone = 4
    cluster.lose_task(0, 0)
    cluster.deadline(DeadlineKind.DEPLOY)
    cluster.run()
    error = cluster.ended["j1"].error
    assert isinstance(error, SlotsError)
    assert "was lost" in str(error)


def test_a_delay_keeps_everything_until_its_deadline() -> None:
    """Nothing new is started before; what still runs goes on; afterwards all that was reset starts."""
    cluster = Cluster(4)
    cluster.submit(chain(3), restart=RestartSettings("fixed", 3, delay=10.0))
    cluster.lose_task(0, 0)
    assert cluster.working() == [(0, 1), (0, 2)]
    cluster.deadline(DeadlineKind.RESTART)
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
    waits = [item.seconds for item in cluster.of(do.StartDeadline) if item.deadline.kind is DeadlineKind.RESTART]
    assert waits == [100.0, 200.0]
    cluster.late_deadline(DeadlineKind.RESTART)
    assert cluster.working() == [(0, 2)]
    cluster.deadline(DeadlineKind.RESTART)
    assert cluster.working() == [(0, 0), (0, 1), (0, 2)]


def test_an_exception_of_user_code_fails_the_job_at_once() -> None:
    """By default it is not tried again: it most often comes again."""
    cluster = Cluster(4)
    cluster.submit(chain(2))
    cluster.fail(0, 0, FailureKind.CAUSE)
    assert "cause: boom" in str(cluster.ended["j1"].error)
    assert cluster.restarted() == []


def test_an_exception_of_user_code_may_be_tried_again() -> None:
    """As often in one subtask as was set; the next time it fails the job."""
    cluster = Cluster(4)
    cluster.pace = 2.0
    cluster.submit(chain(2), restart=RestartSettings(user_errors=1))
    cluster.fail(0, 0, FailureKind.CAUSE)
    assert cluster.restarted() == [(0, 0)]
    cluster.fail(0, 1, FailureKind.CAUSE)
    assert cluster.restarted() == [(0, 1)]
    cluster.fail(0, 0, FailureKind.CAUSE)
    assert "cause: boom" in str(cluster.ended["j1"].error)


def test_one_bad_moment_counts_once() -> None:
    """Its task, its readers and its environment all tell of one dead process: one restart of those allowed."""
    cluster = Cluster(8, ["a", "b"])
    cluster.submit(word_count(HYBRID), restart=RestartSettings("fixed", 1))
    cluster.consumable(*M0, 0)
    dead = cluster.task(*M0).environment
    cluster.lose_task(*M0)
    for place in (R0, R1):
        if place in cluster.working():
            cluster.fail(*place, FailureKind.CONSEQUENCE)
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
    cluster.kill_spark_job("j1", workers_job(0), "a Python worker exited unexpectedly", cancelled=False)
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
    cluster.send(events.SparkJobReturned("j1", workers_job(0), "a Python worker exited unexpectedly"))
    assert {item.attempt for item in cluster.of(CancelTask)} == attempts


def test_a_lost_environment_explains_tasks_that_ended_without_a_word() -> None:
    """Its tasks can report nothing, and their Spark job may return before anybody knows that it is gone."""
    cluster = Cluster(8)
    cluster.submit(pipeline(dataframe=True), restart=NEVER)
    cluster.send(events.SparkJobReturned("j1", workers_job(0)))
    assert "j1" not in cluster.ended, "tasks that read the DataFrame still run"
    cluster.lose_environment("a")
    cluster.run()
    assert "environment a" in str(cluster.ended["j1"].error)


# --- cancelled


def test_a_cancelled_job_is_never_restarted() -> None:
    """A task that fails while it stops is not run again, and the error is the cancel."""
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
        cluster.report(cluster.task(0, subtask), state=TaskEnd.CANCELED, error="the worker is being stopped")
    assert cluster.restarted() == []
    cluster.kill_spark_job("j1", workers_job(0), "cancelled by the user")
    cluster.run()
    assert isinstance(cluster.ended["j1"].error, JobCancelledError)
    assert cluster.restarted() == []


def test_tasks_stopped_by_a_failing_spark_job_run_again() -> None:
    """Spark says that its job failed, so what it stopped is run again with the rest."""
    cluster = Cluster(4)
    cluster.submit(chain(3))
    cluster.report(cluster.task(0, 0), state=TaskEnd.CANCELED, error="the worker is being stopped")
    cluster.kill_spark_job("j1", workers_job(0), "a Python worker exited unexpectedly", cancelled=False)
    cluster.run()
    assert cluster.restarted() == [(0, 0), (0, 1), (0, 2)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_tasks_that_spark_stopped_without_a_word_run_again() -> None:
    """After a while nobody waits for Spark's reason any more."""
    cluster = Cluster(4)
    cluster.submit(chain(2))
    cluster.finish(0, 0, state=TaskEnd.CANCELED, error="the worker is being stopped")
    cluster.deadline(DeadlineKind.UNEXPLAINED)
    assert cluster.restarted() == [(0, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_what_runs_again_already_is_explained() -> None:
    """A stopped task that another failure reset is not reset again when Spark stays silent."""
    cluster = Cluster(4)
    cluster.submit(pipeline(1, 1))
    cluster.finish(1, 0, state=TaskEnd.CANCELED, error="the worker is being stopped")
    cluster.lose_task(0, 0)
    assert cluster.restarted() == [(0, 0), (1, 0)]
    cluster.late_deadline(DeadlineKind.UNEXPLAINED)
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
    (answer,) = cluster.send(events.TaskRegistered(cluster.call(), late, "a", "tcp://x:1", frame_job(0)))[:1]
    assert isinstance(answer, do.AnswerRegistration)
    assert isinstance(answer.answer, StaleError)
    assert do.CancelSparkJobs("j1", frame_job(0)) in cluster.of(do.CancelSparkJobs)
    cluster.run()
    maps = [(0, 0), (0, 1), (0, 2)]
    assert cluster.restarted() == (maps if kind is not PIPELINED else [*maps, (1, 0)])
    assert old.is_over
    assert {task.spark_job for task in cluster.tasks if task.spark_job.kind is SparkJobKind.DATAFRAME} == {
        frame_job(2)
    }
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
    cluster.open["j1", frame_job(0)] = 99
    cluster.run()
    cluster.finish_job()
    assert not cluster.ended
    cluster.send(events.SparkJobReturned("j1", frame_job(0), "cancelled", cancelled=True))
    assert cluster.ended["j1"].error is None


def test_a_dataframe_that_spark_gives_up_fails_the_job() -> None:
    """Spark has tried its tasks as often as it was told to; its words are in the error."""
    cluster = Cluster(8)
    cluster.submit(chain(2, 1, frame=True))
    cluster.kill_spark_job("j1", frame_job(0), "Job aborted: the disk is full", cancelled=False)
    step = next(step for step in cluster.todo if step.name == "return")
    cluster.todo.remove(step)
    step.act()
    cluster.run()
    assert "the Spark job of stage0 failed: Job aborted: the disk is full" in str(cluster.ended["j1"].error)


def test_a_dataframe_that_fails_after_a_loss_that_was_mended_is_what_is_told() -> None:
    """A reader was lost and came again; then the DataFrame's own Spark job failed: the error speaks of that."""
    cluster = Cluster(8)
    cluster.pace = 2.0
    cluster.submit(chain(2, 1, kinds=(HYBRID,), frame=True), restart=RestartSettings("fixed", 5))
    cluster.lose_task(1, 0)
    cluster.run()
    assert cluster.restarted() == [(1, 0)]
    cluster.kill_spark_job("j1", frame_job(0), "ArithmeticException: division by zero", cancelled=False)
    step = next(step for step in cluster.todo if step.name == "return")
    cluster.todo.remove(step)
    step.act()
    cluster.run()
    error = cluster.ended["j1"].error
    assert "division by zero" in str(error)
    assert "was lost" not in str(error)


def test_a_dataframe_whose_rows_broke_off_fails_with_the_words_of_spark() -> None:
    """The task only knows that its input ended early; Spark says why a moment later."""
    cluster = Cluster(8)
    cluster.submit(chain(2, 1, frame=True))
    task = cluster.task(0, 0)
    cluster.report(task, state=TaskEnd.FAILED, error="rows broke off", failure=FailureKind.INPUT_CUT_OFF)
    cluster.kill_spark_job("j1", frame_job(0), "ArithmeticException: division by zero", cancelled=False)
    cluster.run()
    assert "division by zero" in str(cluster.ended["j1"].error)


BROKEN_OFF: dict[str, object] = {
    "state": TaskEnd.FAILED,
    "error": "it broke off",
    "failure": FailureKind.INPUT_CUT_OFF,
}


@pytest.mark.parametrize("kind", [PIPELINED, BLOCKING, HYBRID])
@pytest.mark.parametrize(
    ("report", "is_late"),
    [({}, False), ({}, True), (BROKEN_OFF, False), (BROKEN_OFF, True)],
    ids=["before its end", "behind its end", "before its rows break off", "behind that"],
)
def test_a_dataframe_whose_task_spark_runs_again_is_read_anew(
    kind: PartitionKind, report: dict[str, object], is_late: bool
) -> None:
    """Spark has ended the first attempt, whose input broke off in mid-data, and takes the end of the other for it."""
    cluster = Cluster(8)
    cluster.submit(chain(2, 1, kinds=(kind,), frame=True))
    again = AttemptId("j1", 0, 0, 77)
    said = events.TaskRegistered(cluster.call(), again, "a", "tcp://x:1", frame_job(0))
    task = cluster.task(0, 0)
    if not is_late:
        cluster.send(said)
        assert not cluster.of(do.CancelSparkJobs)
    cluster.report(task, **report)
    if is_late:
        cluster.send(said)
    assert do.CancelSparkJobs("j1", frame_job(0)) in cluster.of(do.CancelSparkJobs)
    cluster.run()
    assert {(0, 0), (0, 1)} <= set(cluster.restarted())
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_answers()
    cluster.check_partitions()


def test_a_task_with_resources_that_never_came_is_no_task_without_rows() -> None:
    """Only Spark knows how many partitions a DataFrame has; a stage with resources has as many tasks as its plan."""
    graph = chain(2, 2, kinds=(BLOCKING,))
    cluster, widths = Cluster(8), iter((1, 2))
    cluster.frame_width = lambda *_: next(widths)  # type: ignore[method-assign]
    cluster.submit(graph.with_vertex(replace(graph.vertex(1), resources=Resources())))
    cluster.finish_all(0)
    cluster.finish(1, 0)
    assert cluster.restarted() == [R0, R1]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    assert not any(partition.empty for partition in cluster.ended["j1"].partitions)
    cluster.check_answers()
    cluster.check_partitions()


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
    cluster.open["j1", frame_job(0)] = 1
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


# --- restarts at the very end


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
    cluster.deadline(DeadlineKind.DRAIN)
    assert cluster.ended["j1"].error is None


# --- whose fault


@pytest.mark.parametrize("kind", [FailureKind.HOST, FailureKind.STORAGE])
def test_what_a_host_lacks_is_no_fault_of_the_user(kind: FailureKind) -> None:
    """It is tried again as often as any loss, at once and then after a second, and then fails the job with its cause.

    However soon it comes again, it is a failure of its own: nothing is tried in a loop uncounted.
    """
    cluster = Cluster(4)
    cluster.submit(chain(2), restart=RestartSettings("fixed", 2))
    cluster.fail(0, 0, kind)
    assert cluster.restarted() == [(0, 0)]
    assert cluster.deployment(0, 0)
    cluster.fail(0, 0, kind)
    cluster.deadline(DeadlineKind.RESTART)
    assert cluster.now >= 1.0
    cluster.fail(0, 0, kind)
    assert "2 of 2 restarts used" in str(cluster.ended["j1"].error)


def test_a_host_that_can_store_no_more_is_tried_once_again_where_there_is_no_other() -> None:
    """The second try may find room; after that rows are not computed again for the full disk.

    Subtasks that fail together are one failure.
    """
    cluster = Cluster(4)
    cluster.submit(chain(2), restart=RestartSettings("fixed", 5))
    cluster.fail(0, 0, FailureKind.NO_STORAGE)
    cluster.fail(0, 1, FailureKind.NO_STORAGE)
    assert not cluster.ended
    cluster.fail(0, 1, FailureKind.NO_STORAGE)
    assert "there is no other directory or host" in str(cluster.ended["j1"].error)


def test_subtasks_that_find_a_full_disk_one_after_the_other_are_one_failure() -> None:
    """However long after the first: they began before it was known, and their tries are no tries again."""
    cluster = Cluster(4)
    cluster.submit(chain(4), restart=RestartSettings("fixed", 2))
    for subtask in range(4):
        cluster.fail(0, subtask, FailureKind.NO_STORAGE)
        cluster.now += 10.0
        assert not cluster.ended
    cluster.fail(0, 0, FailureKind.NO_STORAGE)
    assert "there is no other directory or host" in str(cluster.ended["j1"].error)


def test_a_full_disk_is_known_although_readers_fail_first() -> None:
    """A reader hears of its producer's failure before the driver does: what that one reports then is not lost."""
    cluster = Cluster(4)
    cluster.submit(word_count(HYBRID), restart=RestartSettings("fixed", 5))
    for _ in range(2):
        assert not cluster.ended
        producer = cluster.attempt(*M0)
        (written,) = cluster.deployment(*M0).outputs
        cluster.consumable(*M0, 0)
        cluster.fail(*R0, FailureKind.CONSEQUENCE, lost=written.descriptor.partition)
        cluster.send(TaskFinished(producer, TaskEnd.FAILED, "boom", failure=FailureKind.NO_STORAGE))
        cluster.run()
    assert "there is no other directory or host" in str(cluster.ended["j1"].error)


@pytest.mark.parametrize("kind", [FailureKind.HOST, FailureKind.STORAGE, FailureKind.NO_STORAGE])
def test_what_a_host_lacks_is_looked_for_on_another_although_readers_fail_first(kind: FailureKind) -> None:
    """The late report says which host to avoid: the next attempts are given to the other one."""
    cluster = Cluster(4, ["a", "b"])
    cluster.submit(word_count(PIPELINED), restart=RestartSettings("fixed", 5))
    producer, lacking = cluster.attempt(*M1), cluster.task(*M1).environment

    def reader_fails() -> None:
        (written,) = cluster.deployment(*M1).outputs
        cluster.consumable(*M1, 0)
        cluster.fail(*R1, FailureKind.CONSEQUENCE, lost=written.descriptor.partition)

    reader_fails()
    cluster.send(TaskFinished(producer, TaskEnd.FAILED, "boom", failure=kind))
    cluster.run()
    for _ in range(3):
        reader_fails()
        assert cluster.task(*M1).environment != lacking


def test_a_full_host_does_not_fail_a_job_that_knows_another() -> None:
    """As often as any loss, as the other host may take it."""
    cluster = Cluster(4, ["a", "b"])
    cluster.submit(word_count(PIPELINED), restart=RestartSettings("fixed", 2))
    for _ in range(2):
        cluster.fail(*M0, FailureKind.NO_STORAGE)
        assert not cluster.ended
        for entry in [each for each in cluster.deadlines if each[2].kind is DeadlineKind.RESTART]:
            cluster.deadline(entry[2].kind)
    cluster.fail(*M0, FailureKind.NO_STORAGE)
    assert "2 of 2 restarts used" in str(cluster.ended["j1"].error)


def test_what_a_host_lacks_is_looked_for_on_another() -> None:
    """The region runs again, and what failed is given to a worker of another environment."""
    cluster = Cluster(4, ["a", "b"])
    cluster.submit(word_count(PIPELINED))
    before = cluster.task(*M0).environment
    cluster.fail(*M0, FailureKind.STORAGE)
    assert cluster.task(*M0).environment != before
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
