# SPDX-License-Identifier: Apache-2.0
"""Faults of the core itself: found by its checks, and kept to the job that has them; what stays bounded."""

from __future__ import annotations

import pytest

from cluster import Cluster
from job_graphs import chain, pipeline
from penstock.errors import PenstockError
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.ids import LEASED, SparkJobId, SparkJobKind, WorkerId, WorkerNumber, task_of
from penstock.job.core.result import FIRST, LAST, Trace
from penstock.shuffle import AttemptId


def test_a_job_whose_core_raises_is_over_and_the_others_go_on() -> None:
    """Its error names the fault, its questions are answered, its partitions released, its Spark jobs cancelled."""
    cluster = Cluster(8)
    cluster.core.is_checked = False
    cluster.submit(pipeline(), "j1")
    cluster.submit(chain(2), "j2")
    waiting = cluster.call()
    cluster.core._jobs["j1"].attempts.questions._open[cluster.attempt(1, 0, "j1")] = [waiting]
    faulty = cluster.core._jobs["j1"].subtasks.at(0, 0)
    faulty.lifecycle = None  # type: ignore[assignment]
    cluster.report(cluster.task(0, 0, "j1"))
    assert isinstance(cluster.ended["j1"].error, PenstockError)
    assert "the JobMaster has a fault: AttributeError" in str(cluster.ended["j1"].error)
    assert cluster.answers[waiting] == 1
    assert do.CancelSparkJobs("j1") in cluster.log
    assert set(cluster.released) == {item for item in cluster.known if item.job == "j1"}
    cluster.run()
    cluster.finish_job("j2")
    assert cluster.ended["j2"].error is None


@pytest.mark.parametrize("damage", ["worker", "count", "call", "partition", "deadline"])
def test_the_checks_find_what_is_broken(damage: str) -> None:
    """Each kind of damage to a core is an error at the next event, whatever that event is."""
    cluster = Cluster(4)
    cluster.submit(pipeline(), restart=None)
    job = cluster.core._jobs["j1"]
    match damage:
        case "worker":
            job.slots.workers.let_off(cluster.attempt(0, 0))
        case "count":
            job.subtasks.live += 1
        case "call":
            job.attempts.questions._open[cluster.attempt(1, 0)] = [77]
        case "partition":
            cluster.core.tracker.release("j1")
        case _:
            job.recovery.unexplained = frozenset({(0, 0)})
            job.arm = list  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="the JobMaster's core"):
        cluster.send(events.TaskGone(WorkerId("j1", WorkerNumber(99), 1), "of nobody"))


def test_an_instruction_that_failed_before_the_start_refuses_the_job() -> None:
    """It stands in the queue for slots; the error is the instruction's."""
    cluster = Cluster(4)
    cluster.submit(pipeline(), "j1")
    cluster.submit(pipeline(), "j2")
    cluster.send(events.InstructionFailed("j2", "StartDeadline could not be carried out: no timer"))
    assert "no timer" in str(cluster.ended["j2"].error)
    cluster.finish_job("j1")
    assert cluster.ended["j1"].error is None


def test_a_trace_keeps_its_beginning_and_its_end() -> None:
    """However many entries there are, it holds as many as fit, and says how many it left out."""
    trace, count = Trace(), FIRST + LAST + 7
    for number in range(count):
        trace.add(float(number), "entry", str(number))
    kept = trace.entries()
    assert len(kept) == FIRST + 1 + LAST
    assert [ids for _, _, ids in kept[:2]] == ["0", "1"]
    assert kept[FIRST][1:] == ("entries_dropped", "7")
    assert kept[-1][2] == str(count - 1)


def test_names_travel() -> None:
    """Workers and Spark jobs of all kinds are the same on the other side of the wire."""
    for worker in (WorkerId("j1", WorkerNumber(3), 7), WorkerId("j1", WorkerNumber(-4), 3)):
        assert task_of(AttemptId.from_wire(worker.to_attempt().to_wire())) == worker
    attempt = AttemptId("j1", 2, 0, 1)
    assert task_of(attempt) == attempt
    spark_jobs = [SparkJobId(kind, number) for kind in SparkJobKind for number in (0, 1, 9) if kind != LEASED.kind]
    assert [SparkJobId.from_wire(item.to_wire()) for item in (*spark_jobs, LEASED)] == [*spark_jobs, LEASED]
    assert len({str(item) for item in (*spark_jobs, LEASED)}) == len(spark_jobs) + 1
