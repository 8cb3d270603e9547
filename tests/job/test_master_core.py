# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's core, driven by hand: deployment, confirmation, failure of a whole job, release."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cluster import Cluster, frame_job, workers_job
from job_graphs import BLOCKING, KEPT, chain, diamondless, edge, open_sink, pipeline, side_by_side
from penstock.errors import FailureKind, JobCancelledError, JobError, SlotsError, StaleError
from penstock.graph.job_graph import JobGraph
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.deadlines import Deadline, DeadlineKind
from penstock.job.core.ids import WorkerId
from penstock.job.core.master_core import MasterCore
from penstock.job.core.states import JOB_TABLE, TERMINAL, JobState
from penstock.lifecycle.table import as_markdown
from penstock.link.commands import CancelTask, UpdatePartitionInfo
from penstock.link.master import PartitionConsumable, TaskEnd
from penstock.settings import RestartSettings
from penstock.shuffle import AttemptId, DatasetId, PartitionId, ShuffleDescriptor

NEVER = RestartSettings("none")


def test_job_runs_to_its_end() -> None:
    """Workers come, work, end; their Spark job returns; the job is finished and nothing stays tracked."""
    cluster = Cluster()
    cluster.submit(pipeline())
    assert cluster.working() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    cluster.finish_job(metrics={"rows_out": 5.0, "seconds": 2.0, "back_pressured_seconds": 0.5})
    result = cluster.ended["j1"].result
    assert result.state is JobState.FINISHED
    assert result.metrics[0]["rows_out"] == 10
    assert result.statistics().rows == 20
    assert result.statistics().back_pressured == 0.25
    assert len(cluster.core.tracker) == 0
    assert cluster.core.jobs == []
    assert len(cluster.of(do.LaunchSparkJobs)) == 1
    cluster.check_answers()


def test_job_is_over_with_its_last_task() -> None:
    """It does not wait for its workers' Spark jobs: whoever asks once more is told that it is over."""
    cluster = Cluster()
    cluster.submit(pipeline(1, 1))
    cluster.finish(0, 0)
    cluster.report(cluster.task(1, 0))
    assert cluster.ended["j1"].error is None
    cluster.run()
    cluster.check_answers()


def test_job_over_dataframes_waits_for_their_spark_jobs() -> None:
    """Rows that a DataFrame's task wrote count only when Spark says that they were all."""
    cluster = Cluster(4)
    graph = side_by_side(1, 1)
    cluster.submit(graph.with_vertex(replace(graph.vertex(0), reads_dataframe=True)))
    cluster.finish(1, 0)
    cluster.report(cluster.task(0, 0))
    assert not cluster.ended
    cluster.run()
    assert cluster.ended["j1"].error is None


def test_data_starts_when_all_tasks_are_there() -> None:
    """In a region that runs together no worker is answered before the last one has come."""
    cluster = Cluster()
    cluster.send(events.JobSubmitted("j1", pipeline(), 8, 60))
    for _ in range(3):
        cluster.step(lambda count: count - 1)
    while cluster.todo:
        cluster.todo.pop(0).act()
    assert len(cluster.tasks) == 3
    assert not cluster.of(do.AnswerRegistration)
    cluster.run()
    assert len(cluster.of(do.AnswerRegistration)) == 4


def test_dataframe_task_may_come_later() -> None:
    """Workers start without it; it is answered at once when it comes, and no deadline applies to it."""
    cluster = Cluster()
    cluster.submit(pipeline(dataframe=True))
    assert [item.vertex for item in cluster.of(do.LaunchSparkJobs)[0].spark_jobs] == [None, 0]
    late = Cluster()
    late.send(events.JobSubmitted("j1", pipeline(dataframe=True), 8, 60))
    frames = [late.queue.pop(), late.queue.pop()]
    late.run()
    assert late.working() == [(1, 0), (1, 1)]
    late.late_deadline(DeadlineKind.DEPLOY)
    late.queue.extend(frames)
    late.run()
    assert late.working() == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_consumer_gets_placeholders_and_then_the_producer() -> None:
    """First buffer, JobMaster told, consumer told: in this order, and the trace says so."""
    cluster = Cluster()
    cluster.submit(pipeline())
    sources = [source for source, _, _ in cluster.deployment(1, 0).inputs[0].channels]
    assert all(source.is_unknown for source in sources)
    assert not cluster.of(UpdatePartitionInfo)
    cluster.consumable(0, 1, 0)
    first = [(item.attempt, item.descriptor.partition) for item in cluster.of(UpdatePartitionInfo)]
    partition = cluster.deployment(0, 1).outputs[0].descriptor.partition
    assert first == [(cluster.attempt(1, subtask), partition) for subtask in range(2)]
    cluster.consumable(0, 1, 0)
    assert len(cluster.of(UpdatePartitionInfo)) == 2
    cluster.finish_job()
    names = [name for _, name, _ in cluster.ended["j1"].result.trace]
    order = ["job_submitted", "job_admitted", "task_registered", "task_deployed", "partition_consumable"]
    order += ["partition_info_updated", "task_finished", "job_finished"]
    assert [names.index(name) for name in order] == sorted(names.index(name) for name in order)


def test_stale_partition_reaches_nobody() -> None:
    """A consumable partition of an attempt that was never accepted changes nothing."""
    cluster = Cluster()
    cluster.submit(pipeline())
    assert cluster.send(PartitionConsumable(PartitionId(DatasetId("j1", 0), 1, 77))) == []


def test_dataframe_end_needs_its_spark_job() -> None:
    """A consumer of a DataFrame's rows is confirmed only after the DataFrame's Spark job has returned well."""
    cluster = Cluster()
    cluster.submit(pipeline(dataframe=True, result=True))
    assert cluster.deployment(1, 0).inputs[0].await_confirmation
    cluster.send(events.ProducersAwaited(cluster.call(), cluster.attempt(1, 0)))
    cluster.finish(0, 0)
    cluster.report(cluster.task(0, 1))
    assert not cluster.of(do.AnswerProducers)
    cluster.run()
    assert [item.error for item in cluster.of(do.AnswerProducers)] == [None]
    cluster.send(events.ProducersAwaited(cluster.call(), cluster.attempt(1, 1)))
    assert [item.error for item in cluster.of(do.AnswerProducers)] == [None, None]
    cluster.finish_job()
    assert [str(item.partition.dataset) for item in cluster.ended["j1"].partitions] == ["j1-result1"] * 2
    assert len(cluster.core.tracker) == 2
    cluster.check_answers()


def test_false_end_of_a_cancelled_dataframe_is_never_committed() -> None:
    """Spark's cancel gives tasks a clean end; they report success, yet the job ends cancelled."""
    cluster = Cluster()
    cluster.submit(pipeline(dataframe=True, result=True))
    cluster.report(cluster.task(0, 0))
    cluster.report(cluster.task(0, 1))
    consumers = {cluster.attempt(1, subtask) for subtask in range(2)}
    cluster.send(events.ProducersAwaited(cluster.call(), cluster.attempt(1, 0)))
    cluster.kill_spark_job("j1", frame_job(0), "cancelled by the user")
    cluster.kill_spark_job("j1", workers_job(0), "cancelled by the user")
    cluster.run()
    assert isinstance(cluster.of(do.AnswerProducers)[0].error, JobCancelledError)
    assert {item.attempt for item in cluster.of(CancelTask)} <= consumers
    assert isinstance(cluster.ended["j1"].error, JobCancelledError)
    assert cluster.ended["j1"].result.state is JobState.CANCELED
    assert len(cluster.core.tracker) == 0


def test_dataframe_with_fewer_partitions_leaves_empty_subtasks() -> None:
    """A source subtask that never came is empty: its consumers are told, and the job ends well."""
    cluster = Cluster()
    cluster.send(events.JobSubmitted("j1", pipeline(dataframe=True), 8, 60))
    cluster.queue.pop()
    cluster.open["j1", frame_job(0)] = 1
    cluster.run()
    cluster.finish(0, 0)
    empty = [item for item in cluster.of(UpdatePartitionInfo) if item.descriptor.empty]
    assert {(item.attempt.subtask, item.descriptor.partition.index) for item in empty} == {(0, 1), (1, 1)}
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_empty_result_of_a_dataframe_vertex() -> None:
    """The result keeps the place of a subtask that never came."""
    graph = pipeline(dataframe=True)
    cluster = Cluster()
    cluster.send(events.JobSubmitted("j1", JobGraph("frame", graph.vertices[:1], (), (0,), kept_by=KEPT), 8, 60))
    cluster.queue.popleft()
    cluster.open["j1", frame_job(0)] = 1
    cluster.run()
    cluster.finish(0, 1)
    assert [item.empty for item in cluster.ended["j1"].partitions] == [True, False]


def test_too_many_slots_are_refused_at_once() -> None:
    """The refusal names what is needed, what there is, and the ways out."""
    cluster = Cluster(slots=3)
    cluster.submit(pipeline())
    error = cluster.ended["j1"].error
    assert isinstance(error, SlotsError)
    for word in ("needs 4 task slots", "has 3", "numPartitions", "local[4]", "spark.task.cpus"):
        assert word in str(error)
    assert not cluster.of(do.LaunchSparkJobs)


def test_missing_tasks_end_the_job_at_the_deadline() -> None:
    """With k of n workers there, the job stops cleanly and says so; those that came are answered."""
    cluster = Cluster()
    cluster.send(events.JobSubmitted("j1", pipeline(), 8, 60))
    cluster.queue.pop()
    cluster.run()
    cluster.deadline(DeadlineKind.DEPLOY)
    error = cluster.ended["j1"].error
    assert isinstance(error, SlotsError)
    assert "3 of 4 slots obtained" in str(error)
    cluster.check_answers()


@pytest.mark.parametrize("dataframe", [False, True])
def test_slots_that_somebody_else_holds_are_waited_for_so_long(dataframe: bool) -> None:
    """Not one task comes, so nothing happens after the grant: the deadline is armed with it, and ends the job."""
    cluster = Cluster()
    cluster.gone = cluster.slots
    cluster.submit(pipeline(dataframe=dataframe), timeout=7)
    began = cluster.now
    cluster.deadline(DeadlineKind.DEPLOY)
    error = cluster.ended["j1"].error
    assert isinstance(error, SlotsError)
    assert "0 of 4 slots obtained" in str(error)
    assert cluster.now - began < 8
    cluster.check_answers()


def test_second_attempt_of_a_dataframe_task_is_stale() -> None:
    """The first attempt that registers is the one; the other is told at once, and ends quietly."""
    cluster = Cluster()
    cluster.submit(pipeline(dataframe=True))
    second = AttemptId("j1", 0, 0, 999)
    (answer,) = cluster.send(events.TaskRegistered(cluster.call(), second, "a", "tcp://x:1", frame_job(0)))
    assert isinstance(answer, do.AnswerRegistration)
    assert isinstance(answer.answer, StaleError)
    assert not cluster.ended


def test_attempt_after_the_end_is_refused() -> None:
    """A worker of a failing job, and a task of no job, get a typed answer."""
    cluster = Cluster()
    cluster.submit(pipeline(), restart=NEVER)
    cluster.lose(cluster.task(0, 0))
    worker = WorkerId("j1", 0, 999)
    (answer,) = cluster.send(events.TaskRegistered(cluster.call(), worker, "a", "tcp://x:1", workers_job(0)))
    assert isinstance(answer, do.AnswerRegistration)
    assert isinstance(answer.answer, JobCancelledError)
    stranger = WorkerId("j9", 0, 1)
    (answer,) = cluster.send(events.TaskRegistered(cluster.call(), stranger, "a", "tcp://x:1", workers_job(0)))
    assert isinstance(answer, do.AnswerRegistration)
    assert isinstance(answer.answer, StaleError)


@pytest.mark.parametrize("consequence_first", [True, False])
def test_the_first_cause_is_told(consequence_first: bool) -> None:
    """A consumer's ProducerFailedError never hides the producer's own error, whichever comes first."""
    cluster = Cluster()
    cluster.submit(pipeline(), restart=NEVER)
    own, follow = cluster.task(0, 0), cluster.task(1, 0)
    reports = [
        (own, {"state": TaskEnd.FAILED, "error": "user traceback: boom", "failure": FailureKind.CAUSE}),
        (follow, {"state": TaskEnd.FAILED, "error": "its producer failed", "failure": FailureKind.CONSEQUENCE}),
    ]
    for task, report in reversed(reports) if consequence_first else reports:
        cluster.report(task, **report)
    cluster.run()
    error = cluster.ended["j1"].error
    assert isinstance(error, JobError)
    assert "user traceback: boom (source, subtask 0 of 2 on a)" in str(error)
    assert "producer failed" not in str(error)


def test_failure_stops_the_others_through_their_environments() -> None:
    """Spark's cancel is only the fallback, after the deadline."""
    cluster = Cluster()
    cluster.submit(pipeline())
    others = {cluster.attempt(*place) for place in cluster.working() if place != (0, 0)}
    cluster.report(cluster.task(0, 0), state=TaskEnd.FAILED, error="boom", failure=FailureKind.CAUSE)
    assert {item.attempt for item in cluster.of(CancelTask)} == others
    assert not cluster.of(do.CancelSparkJobs)
    cluster.todo = [step for step in cluster.todo if step.name != "stop"]
    cluster.deadline(DeadlineKind.SETTLE)
    assert cluster.of(do.CancelSparkJobs)
    assert cluster.ended["j1"].error is not None


def test_job_ends_although_nobody_reports() -> None:
    """Tasks that never stop and a Spark that never returns are given up at the last deadline."""
    cluster = Cluster()
    cluster.submit(pipeline())
    cluster.send(events.CancelRequested("j1", "no longer wanted"))
    cluster.todo.clear()
    cluster.send(events.DeadlinePassed("j1", Deadline(DeadlineKind.SETTLE)))
    cluster.todo.clear()
    cluster.send(events.DeadlinePassed("j1", Deadline(DeadlineKind.ABANDON)))
    error = cluster.ended["j1"].error
    assert isinstance(error, JobCancelledError)
    assert "no longer wanted" in str(error)


def test_nobody_waits_for_tasks_that_spark_gave_up() -> None:
    """After the user's cancel all Spark jobs have returned; tasks that do not stop in the grace are left to Spark."""
    cluster = Cluster()
    cluster.submit(pipeline(dataframe=True))
    cluster.kill_spark_job("j1", workers_job(0), "cancelled")
    cluster.todo = [step for step in cluster.todo if step.name == "return"]
    cluster.step()
    cluster.todo.clear()
    cluster.send(events.SparkJobReturned("j1", frame_job(0), "cancelled", cancelled=True))
    assert cluster.of(do.StartDeadline)[-1].deadline.kind is DeadlineKind.GRACE
    assert not cluster.ended
    cluster.deadline(DeadlineKind.GRACE)
    assert cluster.ended["j1"].result.state is JobState.CANCELED


def test_lost_environment_loses_results() -> None:
    """A finished job's result there is reported as lost, with its partitions."""
    cluster = Cluster()
    cluster.submit(pipeline(result=True))
    cluster.finish_job()
    cluster.lose_environment("a", "b")
    (lost,) = cluster.of(do.ResultLost)
    assert (lost.job, len(lost.partitions)) == ("j1", 2)


@pytest.mark.parametrize("expired", [False, True])
def test_results_are_released_when_nobody_wants_them(expired: bool) -> None:
    """A result stays after its job and goes with ResultReleased, everywhere; hosts are told if its lease ran out."""
    cluster = Cluster(8, ["a", "b", "c"])
    cluster.submit(diamondless())
    cluster.finish_job()
    held = {item.environment for item in cluster.ended["j1"].partitions}
    assert len(cluster.core.tracker) == 2
    out = cluster.send(events.ResultReleased("j1", expired))
    released = [item for item in out if isinstance(item, do.ReleaseDescriptors)]
    assert {item.environment for item in released} == held
    assert {item.expired for item in released} == {expired}
    assert out[len(released) :] == [do.ReleaseJobEverywhere("j1", ("a", "b", "c"))]
    assert len(cluster.core.tracker) == 0


def test_late_partition_of_a_dead_job_is_released() -> None:
    """A ShuffleMaster that answers after the job's end leaks nothing."""
    core = MasterCore()
    attempt = AttemptId("j1", 0, 0, 1)
    descriptor = ShuffleDescriptor(PartitionId(DatasetId("j1", 0), 0, 1), "local", pipeline().edges[0].kind, "e")
    (release,) = core.handle(events.PartitionRegistered(attempt, 0, descriptor), 0)
    assert release == do.ReleaseDescriptors("e", (descriptor,))


def test_table_leaves_no_state_without_an_end() -> None:
    """Every state of the job table that is not terminal has a way out, and the table can be printed."""
    for state in JobState:
        assert (state in TERMINAL) == (not any(source is state for source, _ in JOB_TABLE))
    assert len(as_markdown(JOB_TABLE).splitlines()) == 2 + len(JobState)


def test_the_page_has_the_table() -> None:
    """The documentation shows the states of a job as they are."""
    page = Path(__file__).resolve().parents[2] / "docs" / "control-plane.md"
    assert as_markdown(JOB_TABLE) in page.read_text()


def test_free_regions_answer_every_task() -> None:
    """Without pipelined edges a task that reads a DataFrame is answered though no other task is there yet."""
    cluster = Cluster(slots=1)
    graph = chain(2, 1, kinds=(BLOCKING,), frame=True)
    other = replace(graph.vertex(0), id=2, name="other", reads_dataframe=False)
    graph = replace(graph, vertices=(*graph.vertices, other), edges=(*graph.edges, edge(9, 2, 1, kind=BLOCKING)))
    cluster.submit(graph)
    assert cluster.working() == [(0, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_wrong_sizes_of_a_service_fail_the_job() -> None:
    """A service that counts other subpartitions than there are is named, and the job ends."""
    cluster = Cluster()
    cluster.submit(open_sink())
    cluster.finish(0, 0, sizes={0: [1, 2, 3]})
    cluster.finish_job()
    error = cluster.ended["j1"].error
    assert "3 subpartitions, there are 16" in str(error)


def test_refused_partition_fails_the_job() -> None:
    """The words of the service are in the job's error; whoever waited is answered."""
    cluster = Cluster()
    cluster.send(events.JobSubmitted("j1", pipeline(), 8, 60))
    while not any(step.name == "register" for step in cluster.todo):
        cluster.step(lambda count: count - 1)
    cluster.todo = [step for step in cluster.todo if step.name != "register"]
    (refused, *_) = cluster.of(do.RegisterPartition)
    cluster.send(events.PartitionRefused(refused.producer.attempt, "the service is full"))
    cluster.run()
    assert "the service is full" in str(cluster.ended["j1"].error)
    cluster.check_answers()


def test_the_number_of_consumers_is_chosen_from_the_bytes() -> None:
    """A stage that leaves it open gets as many consumers as its bytes ask for, when its producers have ended."""
    cluster = Cluster(slots=4)
    cluster.submit(open_sink(), target=1 << 20)
    for subtask in range(2):
        cluster.finish(0, subtask, sizes={0: [1 << 18] * 16})
    assert cluster.core.progress("j1", lambda _: {}).vertices[1].parallelism == 8  # type: ignore[union-attr]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
