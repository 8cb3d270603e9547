# SPDX-License-Identifier: Apache-2.0
"""What the parts of one job's core work on together: its plan, subtasks, workers, Spark jobs and trace.

Decides nothing. The parts import each other in one direction: confirmations, ending, restarts, then what happens to
tasks (`deployments`, `task_ends`), to slots (`staffing`) and to Spark jobs (`spark_ends`); `job_core` joins them.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.graph.job_graph import JobGraph
from penstock.job import events
from penstock.job import instructions as do
from penstock.job.job_context import JobContext
from penstock.job.job_tasks import JobTasks
from penstock.job.parts import Parts
from penstock.job.recovery import Recovery
from penstock.job.result import JobResult, TraceEntry
from penstock.job.stages import Stages
from penstock.job.states import JobLifecycle
from penstock.job.subtask import Subtask
from penstock.job.topology import JobTopology
from penstock.job.updates import Updates
from penstock.job.workers import Worker, Workers
from penstock.shuffle import AttemptId
from penstock.shuffle.errors import JobCancelledError, PenstockError


class JobScope:
    """One job. Instructions leave through `emit`."""

    def __init__(self, submitted: events.JobSubmitted, result_service: str, context: JobContext) -> None:
        graph = submitted.graph
        self.job = submitted.job
        self.submitted = submitted
        self.emit = context.emit
        self.now = context.now
        self.tracker = context.tracker
        self.topology = JobTopology(submitted.job, graph, result_service)
        self.lifecycle = JobLifecycle(submitted.job)
        self.tasks = JobTasks(self.topology)
        self.workers = Workers()
        self.parts = Parts(1 + max(vertex.id for vertex in graph.vertices))
        self.stages = Stages(self.topology, submitted.slots_total, submitted.target_bytes)
        self.recovery = Recovery(self.topology, self.tasks, self.stages, self.tracker, submitted.restart)
        self.updates = Updates(self.topology, self.tasks, self.emit, self.record)
        self.moving: set[int] = set()
        """The regions that run together and whose tasks were all there, so that data has started."""
        self.trace: list[TraceEntry] = []
        self._start = context.now()
        self.record("job_submitted", submitted.job)

    @property
    def graph(self) -> JobGraph:
        """The plan as it is now."""
        return self.topology.graph

    @property
    def seconds(self) -> float:
        """How long ago the job was submitted."""
        return self.now() - self._start

    def record(self, name: str, ids: str) -> None:
        """Write something into the job's trace."""
        self.trace.append((self.seconds, name, ids))

    def result(self) -> JobResult:
        """The job in figures, as it stands."""
        metrics = {vertex.id: self.tasks.sums(vertex.id, None) for vertex in self.graph.vertices}
        return JobResult(self.job, self.graph.name, self.lifecycle.state, self.seconds, metrics, tuple(self.trace))

    def over(self, attempt: AttemptId) -> PenstockError:
        """What a task is told that comes too late."""
        return JobCancelledError(
            f"{attempt}: job {self.graph.name} is {self.lifecycle.state.name}; this task may end"
        )

    def drop_call(self, subtask: Subtask, error: PenstockError | None = None) -> None:
        """Answer whoever waits for this subtask's deployment, if anybody: there will be none."""
        if subtask.call is not None and subtask.attempt is not None:
            answer = error or self.over(subtask.attempt)
            self.emit(do.AnswerRegistration(subtask.call, subtask.attempt, answer))
            subtask.call = None

    def answer_calls(self, calls: Iterable[int]) -> None:
        """Answer workers: there is nothing more to do."""
        for call in calls:
            self.emit(do.ReleaseWorker(call))

    def release_workers(self, workers: Iterable[Worker]) -> None:
        """Let idle workers end."""
        for worker in workers:
            self.answer_calls(self.workers.release(worker))
