# SPDX-License-Identifier: Apache-2.0
"""The invariants of the core, between two events. Asserted in tests after each of them; costs a look at all.

Per job: each worker is in one place; every live subtask has a worker, or a DataFrame's Spark job; counters equal
recounts; a call waits in one place only; a subtask that runs has its partitions, and those are tracked; exactly the
deadlines are armed that a part waits for. Over all jobs: no more slots are held than there are, and every question
was answered once or waits somewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.graph.job_graph import RESULT_EDGE
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.execution.subtask import Subtask
from penstock.job.core.execution.subtasks import Book
from penstock.job.core.execution.tracker import PartitionTracker
from penstock.job.core.ids import TaskId
from penstock.job.core.job_core import JobCore
from penstock.job.core.slots.workers import WorkerState


class Invariants:
    """Looks on from outside: sees every event and instruction, and the core in between."""

    def __init__(self) -> None:
        self._open: dict[int, TaskId] = {}
        """The calls that were not answered, and whose they are."""

    def check(
        self, event: events.Event, out: Iterable[do.Instruction], jobs: Iterable[JobCore], tracker: PartitionTracker
    ) -> None:
        """The core has handled this event so; raises AssertionError."""
        held, total, calls = 0, 0, []
        for job in jobs:
            _holds(not job.is_over, f"{job.job} is over and still there")
            _check_subtasks(job, tracker)
            _check_workers(job)
            _check_deadlines(job)
            held, total = held + job.slots.held, max(total, job.stages.capacity.most)
            calls += open_calls(job)
        _holds(held <= total, f"{held} slots are held, there are {total}")
        self._check_calls(event, out, calls)

    def _check_calls(self, event: events.Event, out: Iterable[do.Instruction], calls: list[int]) -> None:
        if isinstance(event, events.TaskRegistered):
            self._open[event.call] = event.task
        elif isinstance(event, events.ProducersAwaited):
            self._open[event.call] = event.attempt
        for instruction in out:
            if isinstance(instruction, do.AnswerRegistration | do.ReleaseWorker | do.AnswerProducers):
                _holds(instruction.call in self._open, f"call {instruction.call} was answered twice, or never asked")
                del self._open[instruction.call]
        _holds(Counter(calls) == Counter(self._open.keys()), "a question is lost, or waits in two places")


def _holds(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(f"the JobMaster's core: {what}")


def open_calls(job: JobCore) -> list[int]:
    """The questions to this job that wait for an answer, wherever they do."""
    calls = [subtask.call for subtask in job.subtasks if subtask.call is not None]
    calls += [call for worker in job.slots.workers for call in worker.calls]
    return calls + job.attempts.questions.calls


def _check_subtasks(job: JobCore, tracker: PartitionTracker) -> None:
    subtasks, live = job.subtasks, 0
    for vertex in job.topology.graph.vertices:
        book, recount = subtasks.book(vertex.id), Book([], 0, 0)
        for subtask in subtasks.of(vertex.id):
            if subtask.attempt is None and not subtask.empty:
                recount.pending.append(subtask.index)
            elif subtask.deployed and not subtask.empty:
                _check_deployed(job, subtask, tracker)
            live += subtask.is_live
            recount.undeployed += not subtask.deployed
            recount.unfinished += not subtask.is_finished
            recount.halted += subtask.halted
        _holds(book in (None, recount), f"vertex {vertex.id} is miscounted: {book}, and should be {recount}")
    _holds(subtasks.live == live, "live subtasks are miscounted")
    for number, waiting in job.attempts.deployments.waiting.items():
        _holds(number not in subtasks.moving, f"tasks wait for region {number}, which runs")
        for place, subtask in waiting.items():
            _holds(subtasks.at(*place) is subtask and subtask.is_ready, f"{subtask.title} waits, and is not ready")


def _check_deployed(job: JobCore, subtask: Subtask, tracker: PartitionTracker) -> None:
    is_placed = subtask.attempt is not None and subtask.environment and subtask.call is None
    _holds(bool(is_placed), "a subtask was deployed to nobody")
    if subtask.is_live:
        wanted = {edge for edge, _, _ in job.topology.outputs(subtask.vertex, subtask.index)}
        _holds(subtask.outputs.keys() == wanted, f"{subtask.title} was deployed without its partitions")
    if subtask.is_live and job.lifecycle.is_active:
        for edge, descriptor in subtask.outputs.items():
            is_read = edge != RESULT_EDGE and job.subtasks.is_complete(job.topology.graph.edge(edge).consumer)
            _holds(is_read or tracker.knows(descriptor.partition), f"{descriptor.partition} is not tracked")


def _check_workers(job: JobCore) -> None:
    workers, spark_jobs = job.slots.workers, job.slots.spark_jobs
    everywhere = [worker.number for state in WorkerState for worker in workers.in_state(state)]
    numbers = sorted(worker.number for worker in workers)
    _holds(sorted(everywhere) == numbers, "a worker is nowhere, or in two places")
    _holds(workers.leased == sum(worker.is_leased for worker in workers), "leased slots are miscounted")
    for worker in workers:
        name = f"worker {worker.number}"
        _holds(worker in workers.in_state(worker.state), f"{name} is not where it is looked for")
        _holds(worker.is_leased or spark_jobs.is_open(worker.spark_job), f"{name} outlived its Spark job")
        _holds(worker.attempt is None or workers.on(worker.attempt) is worker, f"{name} is not found by its attempt")
        if worker.state is WorkerState.WORKING and job.lifecycle.is_active:
            subtask = job.subtasks.current(worker.attempt) if worker.attempt is not None else None
            _holds(subtask is not None and subtask.is_live, f"{name} works on what is over")
    if job.lifecycle.is_active:
        for subtask in job.subtasks:
            if subtask.is_live and not subtask.vertex.is_bound and subtask.attempt is not None:
                _holds(workers.on(subtask.attempt) is not None, f"nobody works on {subtask.title}")


def _check_deadlines(job: JobCore) -> None:
    wanted = job.wanted()
    _holds(job.armed == wanted.keys(), f"armed are {set(job.armed)}, wanted {set(wanted)}")
