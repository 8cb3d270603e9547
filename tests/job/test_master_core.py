# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's core, driven by hand: admission, deployment, confirmation, failure, release."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest
from job_graphs import diamondless, edge, open_sink, pipeline

from penstock.graph.deployment import TaskDeployment
from penstock.graph.job_graph import JobGraph
from penstock.job import events
from penstock.job import instructions as do
from penstock.job.events import RANGE_PART
from penstock.job.master_core import MasterCore
from penstock.job.states import JOB_TABLE, TERMINAL, JobState, as_text
from penstock.shuffle import AttemptId, PartitionId, ShuffleDescriptor
from penstock.shuffle.errors import JobCancelledError, JobError, SlotsError, StaleError

_T = TypeVar("_T")


class Driver:
    """Feeds a core and answers what a shell would answer at once: registrations with the ShuffleMaster."""

    def __init__(self, slots: int = 8) -> None:
        self.core = MasterCore("results")
        self.slots = slots
        self.clock = 0.0
        self.log: list[do.Instruction] = []
        self.calls = 0

    def send(self, event: events.Event) -> list[do.Instruction]:
        """Handle one event; what it and the ShuffleMaster's answers led to."""
        self.clock += 1
        out = self.core.handle(event, self.clock)
        for instruction in list(out):
            if isinstance(instruction, do.RegisterPartition):
                out += self.send(events.PartitionRegistered(*self._registered(instruction)))
        self.log += [item for item in out if item not in self.log]
        return out

    def submit(self, graph: JobGraph, job: str = "j1", timeout: float = 60) -> list[do.Instruction]:
        """Submit a job."""
        return self.send(events.JobSubmitted(job, graph, self.slots, timeout))

    def register(self, vertex: int, subtask: int, attempt: int | None = None, job: str = "j1") -> AttemptId:
        """Register an attempt on environment `e`."""
        self.calls += 1
        number = 100 * vertex + subtask if attempt is None else attempt
        identity = AttemptId(job, vertex, subtask, number)
        self.send(events.TaskRegistered(self.calls, identity, "e", "tcp://e:1"))
        return identity

    def finish(self, attempt: AttemptId, **more: object) -> list[do.Instruction]:
        """An attempt reports success, or what `more` says."""
        return self.send(events.TaskFinished(attempt, **{"state": "FINISHED", **more}))  # type: ignore[arg-type]

    def returned(self, part: int = RANGE_PART, error: str | None = None, *, cancelled: bool = False) -> None:
        """A Spark job of j1 returned."""
        self.send(events.SparkJobReturned("j1", part, error, cancelled))

    def of(self, kind: type[_T]) -> list[_T]:
        """All instructions of a kind so far."""
        return [item for item in self.log if isinstance(item, kind)]

    def deployment(self, attempt: AttemptId) -> TaskDeployment:
        """The deployment an attempt was answered with."""
        (answer,) = [item.answer for item in self.of(do.AnswerRegistration) if item.attempt == attempt]
        assert isinstance(answer, TaskDeployment)
        return answer

    @staticmethod
    def _registered(instruction: do.RegisterPartition) -> tuple[AttemptId, int, ShuffleDescriptor]:
        partition, producer = instruction.partition, instruction.producer
        identity = PartitionId(partition.dataset, partition.index, producer.attempt.attempt)
        descriptor = ShuffleDescriptor(
            identity, instruction.service, partition.kind, producer.environment, producer.address
        )
        return producer.attempt, instruction.edge, descriptor


def run_all(driver: Driver, graph: JobGraph) -> list[AttemptId]:
    """Register every subtask."""
    return [driver.register(v.id, i) for v in graph.vertices for i in range(v.parallelism)]


def test_job_runs_to_its_end() -> None:
    """All tasks register, run, end; the Spark job returns; the job is finished and nothing stays tracked."""
    driver = Driver()
    driver.submit(pipeline())
    attempts = run_all(driver, pipeline())
    assert len(driver.of(do.AnswerRegistration)) == 4
    for attempt in attempts:
        driver.finish(attempt, metrics={"rows_out": 5.0, "seconds": 2.0, "back_pressured_seconds": 0.5})
    assert not driver.of(do.CompleteJob)
    driver.returned()
    (complete,) = driver.of(do.CompleteJob)
    assert complete.result.state is JobState.FINISHED
    assert complete.result.metrics[0]["rows_out"] == 10
    assert complete.result.statistics().rows == 20
    assert complete.result.statistics().back_pressured == 0.25
    assert len(driver.core.tracker) == 0
    assert driver.core.jobs == []


def test_data_starts_when_all_tasks_are_there() -> None:
    """No registration is answered before the last range task has come."""
    driver = Driver()
    driver.submit(pipeline())
    for vertex, subtask in ((1, 1), (0, 0), (1, 0)):
        driver.register(vertex, subtask)
    assert not driver.of(do.AnswerRegistration)
    driver.register(0, 1)
    assert len(driver.of(do.AnswerRegistration)) == 4


def test_dataframe_task_may_come_later() -> None:
    """Range tasks start without it; it is answered at once when it comes, and no deadline applies to it."""
    driver = Driver()
    driver.submit(pipeline(dataframe=True))
    early = driver.register(0, 0)
    assert not driver.of(do.AnswerRegistration)
    driver.register(1, 0)
    driver.register(1, 1)
    assert {item.attempt for item in driver.of(do.AnswerRegistration)} >= {early}
    driver.send(events.DeadlinePassed("j1", do.deploy_deadline(0)))
    late = driver.register(0, 1)
    assert driver.deployment(late).attempt == late


def test_consumer_gets_placeholders_and_then_the_producer() -> None:
    """First buffer, JobMaster told, consumer told: in this order, and the trace says so."""
    driver = Driver()
    driver.submit(pipeline())
    attempts = run_all(driver, pipeline())
    sources = [source for source, _, _ in driver.deployment(attempts[2]).inputs[0].channels]
    assert all(source.is_unknown for source in sources)
    assert not driver.of(do.UpdatePartitionInfo)
    out = driver.send(events.PartitionConsumable(PartitionId("j1-e0", 1, 1)))
    assert [(item.consumer, item.gate, item.descriptor.partition) for item in out] == [
        (consumer, 0, PartitionId("j1-e0", 1, 1)) for consumer in attempts[2:]
    ]
    assert driver.send(events.PartitionConsumable(PartitionId("j1-e0", 1, 1))) == []
    for attempt in attempts:
        driver.finish(attempt)
    driver.returned()
    names = [name for _, name, _ in driver.of(do.CompleteJob)[0].result.trace]
    order = ["job_submitted", "job_admitted", "task_registered", "task_deployed", "partition_consumable"]
    order += ["partition_info_updated", "task_finished", "job_finished"]
    assert [names.index(name) for name in order] == sorted(names.index(name) for name in order)


def test_stale_partition_reaches_nobody() -> None:
    """A consumable partition of an attempt that was never accepted changes nothing."""
    driver = Driver()
    driver.submit(pipeline())
    run_all(driver, pipeline())
    assert driver.send(events.PartitionConsumable(PartitionId("j1-e0", 1, 77))) == []


def test_dataframe_end_needs_its_spark_job() -> None:
    """A consumer of a DataFrame's rows is confirmed only after the DataFrame's Spark job has returned well."""
    driver = Driver()
    driver.submit(pipeline(dataframe=True, result=True))
    attempts = run_all(driver, pipeline())
    assert driver.deployment(attempts[2]).inputs[0].await_confirmation
    driver.send(events.ProducersAwaited(50, attempts[2]))
    driver.finish(attempts[0])
    driver.finish(attempts[1])
    assert not driver.of(do.AnswerProducers)
    driver.returned(0)
    assert driver.of(do.AnswerProducers) == [do.AnswerProducers(50, attempts[2])]
    driver.send(events.ProducersAwaited(51, attempts[3]))
    assert driver.of(do.AnswerProducers)[-1] == do.AnswerProducers(51, attempts[3])
    driver.finish(attempts[2])
    driver.finish(attempts[3])
    driver.returned()
    (complete,) = driver.of(do.CompleteJob)
    assert [item.partition.dataset for item in complete.partitions] == ["j1-result1"] * 2
    assert len(driver.core.tracker) == 2


def test_false_end_of_a_cancelled_dataframe_is_never_committed() -> None:
    """Spark's cancel gives tasks a clean end; they report success, yet the job ends cancelled."""
    driver = Driver()
    driver.submit(pipeline(dataframe=True, result=True))
    attempts = run_all(driver, pipeline())
    driver.finish(attempts[0])
    driver.finish(attempts[1])
    driver.send(events.ProducersAwaited(50, attempts[2]))
    driver.returned(0, "cancelled by the user", cancelled=True)
    assert isinstance(driver.of(do.AnswerProducers)[0].error, JobCancelledError)
    assert {item.attempt for item in driver.of(do.CancelTask)} == set(attempts[2:])
    for attempt in attempts[2:]:
        driver.finish(attempt, state="CANCELED")
    driver.returned(RANGE_PART, "cancelled by the user", cancelled=True)
    (failed,) = driver.of(do.FailJob)
    assert isinstance(failed.error, JobCancelledError)
    assert failed.result.state is JobState.CANCELED
    assert len(driver.core.tracker) == 0


def test_dataframe_with_fewer_partitions_leaves_empty_subtasks() -> None:
    """A source subtask that never came is empty: its consumers are told, and the job ends well."""
    driver = Driver()
    driver.submit(pipeline(dataframe=True))
    attempts = [driver.register(0, 0), driver.register(1, 0), driver.register(1, 1)]
    driver.finish(attempts[0])
    driver.returned(0)
    empty = [item for item in driver.of(do.UpdatePartitionInfo) if item.descriptor.empty]
    assert {(item.consumer, item.descriptor.partition.index) for item in empty} == {(a, 1) for a in attempts[1:]}
    driver.finish(attempts[1])
    driver.finish(attempts[2])
    driver.returned()
    assert driver.of(do.CompleteJob)


def test_empty_result_of_a_dataframe_vertex() -> None:
    """The result keeps the place of a subtask that never came."""
    graph = pipeline(dataframe=True)
    graph = JobGraph("frame", graph.vertices[:1], (), (0,))
    driver = Driver()
    driver.submit(graph)
    driver.finish(driver.register(0, 1))
    driver.returned(0)
    (complete,) = driver.of(do.CompleteJob)
    assert [item.empty for item in complete.partitions] == [True, False]


def test_too_many_slots_are_refused_at_once() -> None:
    """The refusal names what is needed, what there is, and the ways out."""
    driver = Driver(slots=3)
    (refused,) = driver.submit(pipeline())
    assert isinstance(refused, do.RefuseJob)
    assert isinstance(refused.error, SlotsError)
    for word in ("needs 4 task slots", "has 3", "numPartitions", "local[4]", "spark.task.cpus"):
        assert word in str(refused.error)


def test_jobs_share_the_slots_in_order() -> None:
    """A job that does not fit beside the running ones waits, and lets no later one pass."""
    driver = Driver(slots=6)
    driver.submit(pipeline(), "j1")
    driver.submit(pipeline(), "j2")
    driver.submit(pipeline(1, 1), "j3")
    assert [item.job for item in driver.of(do.LaunchSparkJobs)] == ["j1"]
    for attempt in run_all(driver, pipeline()):
        driver.finish(attempt)
    driver.returned()
    assert [item.job for item in driver.of(do.LaunchSparkJobs)] == ["j1", "j2", "j3"]


def test_waiting_job_gives_up_at_its_deadline() -> None:
    """It says how many slots it got of how many, and the next in line goes on."""
    driver = Driver(slots=6)
    driver.submit(pipeline(), "j1")
    driver.submit(pipeline(), "j2", timeout=7)
    driver.submit(pipeline(1, 1), "j3")
    driver.send(events.DeadlinePassed("j2", do.SLOTS))
    (refused,) = driver.of(do.RefuseJob)
    assert "0 of 4 slots obtained" in str(refused.error)
    assert [item.job for item in driver.of(do.LaunchSparkJobs)] == ["j1", "j3"]


def test_missing_tasks_end_the_job_at_the_deadline() -> None:
    """With k of n tasks there, the job stops cleanly and says so; those that came are answered."""
    driver = Driver()
    driver.submit(pipeline())
    for vertex, subtask in ((0, 0), (0, 1), (1, 0)):
        driver.register(vertex, subtask)
    driver.send(events.DeadlinePassed("j1", do.deploy_deadline(0)))
    assert all(isinstance(item.answer, JobCancelledError) for item in driver.of(do.AnswerRegistration))
    assert len(driver.of(do.AnswerRegistration)) == 3
    assert driver.of(do.CancelSparkJobs)
    driver.returned()
    (failed,) = driver.of(do.FailJob)
    assert isinstance(failed.error, SlotsError)
    assert "3 of 4 slots obtained" in str(failed.error)


def test_second_attempt_is_stale() -> None:
    """The first attempt that registers is the one; the other is told at once, and ends quietly."""
    driver = Driver()
    driver.submit(pipeline())
    run_all(driver, pipeline())
    second = driver.register(0, 0, attempt=999)
    (answer,) = [item.answer for item in driver.of(do.AnswerRegistration) if item.attempt == second]
    assert isinstance(answer, StaleError)
    assert not driver.of(do.FailJob)


def test_attempt_after_the_end_is_refused() -> None:
    """A retry of a failed job's task, and a task of no job, get a typed answer."""
    driver = Driver()
    driver.submit(pipeline())
    attempts = run_all(driver, pipeline())
    driver.send(events.TaskLost(attempts[0], "killed"))
    retry = driver.register(0, 0, attempt=999)
    (answer,) = [item.answer for item in driver.of(do.AnswerRegistration) if item.attempt == retry]
    assert isinstance(answer, JobCancelledError)
    stranger = driver.register(0, 0, job="j9")
    (answer,) = [item.answer for item in driver.of(do.AnswerRegistration) if item.attempt == stranger]
    assert isinstance(answer, StaleError)


@pytest.mark.parametrize("consequence_first", [True, False])
def test_the_first_cause_is_told(consequence_first: bool) -> None:
    """A consumer's ProducerFailedError never hides the producer's own error, whichever comes first."""
    driver = Driver()
    driver.submit(pipeline())
    attempts = run_all(driver, pipeline())
    reports = [
        (attempts[0], {"state": "FAILED", "error": "user traceback: boom", "error_type": "ValueError"}),
        (attempts[2], {"state": "FAILED", "error": "its producer failed", "error_type": "ProducerFailedError"}),
    ]
    for attempt, report in reversed(reports) if consequence_first else reports:
        driver.finish(attempt, **report)
    for attempt in (attempts[1], attempts[3]):
        driver.finish(attempt, state="CANCELED")
    driver.returned(RANGE_PART, "Spark says something else")
    (failed,) = driver.of(do.FailJob)
    assert isinstance(failed.error, JobError)
    assert "source (1/2) on e failed: user traceback: boom" in str(failed.error)
    assert "producer failed" not in str(failed.error)


def test_failure_stops_the_others_through_their_environments() -> None:
    """Spark's cancel is only the fallback, after the deadline."""
    driver = Driver()
    driver.submit(pipeline())
    attempts = run_all(driver, pipeline())
    driver.finish(attempts[0], state="FAILED", error="boom", error_type="ValueError")
    assert {item.attempt for item in driver.of(do.CancelTask)} == set(attempts[1:])
    assert not driver.of(do.CancelSparkJobs)
    driver.send(events.DeadlinePassed("j1", do.SETTLE))
    assert driver.of(do.CancelSparkJobs)


def test_job_ends_although_nobody_reports() -> None:
    """Tasks that never stop and a Spark that never returns are given up at the last deadline."""
    driver = Driver()
    driver.submit(pipeline())
    run_all(driver, pipeline())
    driver.send(events.CancelRequested("j1", "no longer wanted"))
    driver.send(events.DeadlinePassed("j1", do.SETTLE))
    driver.send(events.DeadlinePassed("j1", do.ABANDON))
    (failed,) = driver.of(do.FailJob)
    assert isinstance(failed.error, JobCancelledError)
    assert "no longer wanted" in str(failed.error)


def test_nobody_waits_for_tasks_that_spark_gave_up() -> None:
    """After the user's cancel all Spark jobs have returned; tasks that do not stop in the grace are left to Spark."""
    driver = Driver()
    driver.submit(pipeline())
    run_all(driver, pipeline())
    driver.returned(RANGE_PART, "cancelled", cancelled=True)
    assert [item.what for item in driver.of(do.StartDeadline)][-1] == do.GRACE
    assert not driver.of(do.FailJob)
    driver.send(events.DeadlinePassed("j1", do.GRACE))
    assert driver.of(do.FailJob)[0].result.state is JobState.CANCELED


def test_lost_environment_fails_its_job_and_loses_results() -> None:
    """Live tasks on it fail the job; a finished job's result there is reported as lost."""
    driver = Driver()
    driver.submit(pipeline(result=True))
    for attempt in run_all(driver, pipeline()):
        driver.finish(attempt)
    driver.returned()
    driver.submit(pipeline(), "j2")
    driver.register(0, 0, job="j2")
    driver.send(events.EnvironmentLost("e", "no heartbeat"))
    driver.send(events.SparkJobReturned("j2", RANGE_PART, "lost too"))
    (failed,) = driver.of(do.FailJob)
    assert "environment e is lost (no heartbeat)" in str(failed.error)
    (lost,) = driver.of(do.ResultLost)
    assert (lost.job, len(lost.partitions)) == ("j1", 2)


@pytest.mark.parametrize("expired", [False, True])
def test_results_are_released_when_nobody_wants_them(expired: bool) -> None:
    """A result stays after its job and goes with ResultReleased, everywhere; hosts are told if its lease ran out."""
    driver = Driver()
    driver.submit(diamondless())
    for attempt in run_all(driver, diamondless()):
        driver.finish(attempt)
    driver.returned(1)
    driver.returned()
    assert len(driver.of(do.CompleteJob)[0].partitions) == 2
    assert len(driver.core.tracker) == 2
    out = driver.send(events.ResultReleased("j1", expired))
    assert [type(item) for item in out] == [do.ReleasePartitions, do.ReleaseJob]
    assert [item.expired for item in out if isinstance(item, do.ReleasePartitions)] == [expired]
    assert len(driver.core.tracker) == 0


def test_late_partition_of_a_dead_job_is_released() -> None:
    """A ShuffleMaster that answers after the job's end leaks nothing."""
    core = MasterCore()
    attempt = AttemptId("j1", 0, 0, 1)
    descriptor = ShuffleDescriptor(PartitionId("j1-e0", 0, 1), "local", pipeline().edges[0].kind, "e")
    (release,) = core.handle(events.PartitionRegistered(attempt, 0, descriptor), 0)
    assert release == do.ReleasePartitions("e", (descriptor,))


def test_table_leaves_no_state_without_an_end() -> None:
    """Every state of the job table that is not terminal has a way out, and the table can be printed."""
    for state in JobState:
        assert (state in TERMINAL) == (not any(source is state for source, _ in JOB_TABLE))
    assert len(as_text().splitlines()) == len(JOB_TABLE)


def test_free_regions_answer_every_task() -> None:
    """Without pipelined edges a task that reads a DataFrame is answered though no range task is there yet."""
    driver = Driver()
    source = replace(open_sink(dataframe=True).vertex(0), id=4, name="other", reads_dataframe=False)
    graph = open_sink(dataframe=True)
    more = edge(9, 4, 1, blocking=True)
    driver.submit(replace(graph, vertices=(*graph.vertices, source), edges=(*graph.edges, more)))
    driver.register(0, 0)
    (answer,) = driver.of(do.AnswerRegistration)
    assert isinstance(answer.answer, TaskDeployment)


def test_wrong_sizes_of_a_service_fail_the_job() -> None:
    """A service that counts other subpartitions than there are is named, and the job ends."""
    driver = Driver()
    driver.submit(open_sink())
    attempts = [driver.register(0, subtask) for subtask in range(2)]
    driver.finish(attempts[0], sizes={0: [1, 2, 3]})
    driver.finish(attempts[1], sizes={0: [1] * 16})
    driver.returned()
    (failed,) = driver.of(do.FailJob)
    assert "3 subpartitions, there are 16" in str(failed.error)
