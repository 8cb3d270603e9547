# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's view of one job: its regions, one after the other, from its submission to its end.

Events in, instructions out; no await, socket, clock, thread or log. Rules:
- in a region with pipelined edges data starts when every task that reads no DataFrame is there; a task that reads one
  may come later, because its Spark job may run shuffles of its own first, and is answered at once when it comes; in a
  region without them every task is answered at once, so it runs with any number of slots;
- a region starts when all before it are confirmed; what it has read is released when it is confirmed itself;
- a consumer is deployed with placeholders and told of each producer at its first buffer;
- whoever consumes a DataFrame's rows ends only after that DataFrame's Spark job has returned;
- the first attempt of a subtask that registers is the one, any other is refused; there is no failover: the
  first failure ends the job, the other tasks are told to stop, and Spark's own cancel is the fallback.
"""

from __future__ import annotations

from penstock.graph.execution_state import ExecutionEvent
from penstock.graph.job_graph import RESULT_EDGE, JobGraph
from penstock.job import events
from penstock.job import instructions as do
from penstock.job.failure import CAUSE, CONSEQUENCE, ECHO, OWN_CANCEL, FailureCause, rank_of
from penstock.job.job_context import ABANDON_SECONDS, GRACE_SECONDS, SETTLE_SECONDS, JobContext
from penstock.job.job_tasks import JobTasks, Live
from penstock.job.refusals import slots_missing, slots_queue_timeout, too_few_slots
from penstock.job.region_order import RegionOrder
from penstock.job.result import JobProgress, JobResult, TraceEntry
from penstock.job.states import JobEvent, JobLifecycle, JobState
from penstock.job.subtask import Subtask
from penstock.job.topology import JobTopology, edge_dataset
from penstock.shuffle import AttemptId, PartitionId, ProducerDescriptor, ShuffleDescriptor
from penstock.shuffle.errors import JobCancelledError, JobError, PenstockError, SlotsError, StaleError


class JobCore:
    """One job. The master's core calls one method per event; instructions leave through the context."""

    def __init__(self, submitted: events.JobSubmitted, result_service: str, context: JobContext) -> None:
        self.job = submitted.job
        self.topology = JobTopology(submitted.job, submitted.graph, result_service)
        self._regions = RegionOrder(self.topology, submitted.slots_total, submitted.target_bytes)
        self.lifecycle = JobLifecycle(submitted.job)
        self._submitted = submitted
        self._context = context
        self._emit = context.emit
        self._start = context.now()
        self._trace: list[TraceEntry] = []
        self.tasks = JobTasks(self.topology)
        self._awaiting: dict[int, tuple[AttemptId, set[int]]] = {}
        self._failure = FailureCause()
        self._spark_cancelled = False
        self._in_grace = False
        self._record("job_submitted", submitted.job)

    @property
    def graph(self) -> JobGraph:
        """The plan as it is now."""
        return self.topology.graph

    @property
    def slots_needed(self) -> int:
        """Slots this job holds while it is active."""
        return self._regions.slots_needed

    @property
    def slots_total(self) -> int:
        """The application's slots when the job was submitted."""
        return self._submitted.slots_total

    def wait_for_slots(self) -> None:
        """Stand in the queue, or refuse a job that can never fit."""
        total = self._submitted.slots_total
        if self.slots_needed > total:
            self.lifecycle.fire(JobEvent.REFUSED)
            self._refuse(SlotsError(too_few_slots(self.graph.name, self.slots_needed, total)))
            return
        self.lifecycle.fire(JobEvent.SUBMITTED)
        self._emit(do.StartDeadline(self.job, do.SLOTS, self._submitted.slots_timeout))

    def admit(self) -> None:
        """Slots are free: start the first region."""
        self.lifecycle.fire(JobEvent.ADMITTED)
        self._record("job_admitted", self.job)
        self._start_region()

    def register_task(self, event: events.TaskRegistered) -> None:
        """A task is there; hold its answer until data may start, or refuse it."""
        subtask = self.tasks.find(event.attempt.vertex, event.attempt.subtask)
        refusal = self._refusal(event, subtask)
        if refusal is not None or subtask is None:
            error = refusal or StaleError(f"{event.attempt}: job {self.graph.name} has no such subtask")
            self._emit(do.AnswerRegistration(event.call, event.attempt, error))
            return
        subtask.lifecycle.handle(ExecutionEvent.DEPLOY)
        subtask.attempt, subtask.call = event.attempt, event.call
        subtask.environment, subtask.address = event.environment, event.address
        self._record("task_registered", str(event.attempt))
        producer = ProducerDescriptor(event.attempt, event.environment, event.address)
        for edge, service, partition in self.topology.outputs(subtask.vertex, subtask.index):
            subtask.unregistered += 1
            self._emit(do.RegisterPartition(edge, service, partition, producer))
        self._deploy_if_complete()

    def register_partition(self, event: events.PartitionRegistered) -> None:
        """A partition has its descriptor."""
        self._context.tracker.start(self.job, event.descriptor)
        subtask = self.tasks.current(event.attempt)
        if subtask is None or event.edge in subtask.outputs:
            return
        subtask.outputs[event.edge] = event.descriptor
        subtask.unregistered -= 1
        self._deploy_if_complete()

    def refuse_partition(self, event: events.PartitionRefused) -> None:
        """A ShuffleMaster could not register a partition: its attempt can't run."""
        subtask = self.tasks.current(event.attempt)
        if subtask is not None:
            self.fail(f"{subtask.title}: its output could not be registered: {event.cause}")

    def partition_consumable(self, partition: PartitionId) -> None:
        """A partition can be read: tell those who wait for it."""
        try:
            edge, vertex = self.topology.edge_of(partition.dataset)
        except KeyError:
            return
        subtask = self.tasks.find(vertex, partition.index)
        if subtask is None or subtask.attempt is None or subtask.attempt.attempt != partition.attempt:
            return
        self._make_consumable(subtask, edge)

    def await_producers(self, event: events.ProducersAwaited) -> None:
        """A consumer asks whether the end of its inputs is real."""
        subtask = self.tasks.current(event.attempt)
        if subtask is None or not self.lifecycle.is_active:
            error = self._over(event.attempt)
            self._emit(do.AnswerProducers(event.call, event.attempt, error))
            return
        producers = (self.graph.vertex(edge.producer) for edge in self.graph.inputs_of(subtask.vertex.id))
        open_parts = {v.id for v in producers if v.reads_dataframe and not self._regions.parts.get(v.id, True)}
        self._awaiting[event.call] = (event.attempt, open_parts)
        self._answer_confirmed()

    def finish_task(self, event: events.TaskFinished) -> None:
        """A task reports its end."""
        subtask = self.tasks.current(event.attempt)
        if subtask is None or subtask.is_ended:
            return
        subtask.metrics = dict(event.metrics)
        self._record("task_finished", f"{event.attempt} {event.state}")
        if event.state == "FINISHED" and subtask.deployed:
            subtask.lifecycle.handle(ExecutionEvent.FINISH)
            wrong = self._regions.add_sizes(event.sizes)
            if wrong:
                self.fail(f"{subtask.title}: {wrong}")
            if self.lifecycle.is_active:
                for edge in subtask.outputs:
                    self._make_consumable(subtask, edge)
                self._finish_if_complete()
        else:
            self._end_badly(subtask, event)
        self._settle_if_quiet()

    def lose_task(self, event: events.TaskLost) -> None:
        """A task's process is gone."""
        subtask = self.tasks.current(event.attempt)
        if subtask is None or subtask.is_ended:
            return
        self._record("task_lost", str(event.attempt))
        subtask.lifecycle.handle(ExecutionEvent.FAIL)
        self._drop_call(subtask)
        self.fail(f"{subtask.title} was lost: {event.cause}")

    def lose_environment(self, environment: str, cause: str, partitions: tuple[PartitionId, ...]) -> None:
        """An environment is gone with its tasks and partitions."""
        hit = [s for s in self.tasks if s.is_live and s.environment == environment]
        for subtask in hit:
            subtask.lifecycle.handle(ExecutionEvent.FAIL)
            self._drop_call(subtask)
        if hit or partitions:
            self._record("environment_lost", environment)
            names = ", ".join(s.title for s in hit[:3]) or f"{len(partitions)} partitions"
            self.fail(f"environment {environment} is lost ({cause}), and with it {names}")

    def lose_partitions(self, partitions: tuple[PartitionId, ...], cause: str) -> None:
        """A ShuffleMaster says that partitions of this job are gone."""
        named = ", ".join(str(item) for item in partitions[:3])
        self.fail(f"{len(partitions)} partitions are lost ({named}): {cause}")

    def spark_job_returned(self, event: events.SparkJobReturned) -> None:
        """One of the job's Spark jobs is over."""
        if self._regions.parts.get(event.part, True):
            return
        self._regions.parts[event.part] = True
        self._record("spark_job_returned", str(event.part))
        if event.cancelled and self.lifecycle.is_active:
            self.cancel(event.error or "its Spark job was cancelled")
        elif event.error is not None:
            kind = JobCancelledError if event.cancelled else JobError
            rank = OWN_CANCEL if event.cancelled and self._spark_cancelled else ECHO
            self.fail(f"the Spark job of {self._part_name(event.part)} failed: {event.error}", rank, kind)
        elif self.lifecycle.is_active:
            self._confirm_part(event.part)
        self._settle_if_quiet()

    def deadline_passed(self, what: str) -> None:
        """A deadline that was asked for went by."""
        state = self.lifecycle.state
        if what == do.SLOTS and state is JobState.WAITING_FOR_SLOTS:
            raise_at = self._submitted.slots_timeout
            self.lifecycle.fire(JobEvent.REFUSED)
            self._refuse(SlotsError(slots_queue_timeout(self.graph.name, self.slots_needed, raise_at)))
        elif state is JobState.DEPLOYING and what == do.deploy_deadline(self._regions.current.number):
            self._no_slots()
        elif what == do.SETTLE and state in (JobState.FAILING, JobState.CANCELLING):
            self._cancel_spark_jobs()
            self._emit(do.StartDeadline(self.job, do.ABANDON, ABANDON_SECONDS))
        elif what in (do.ABANDON, do.GRACE) and state in (JobState.FAILING, JobState.CANCELLING):
            self._abandon()

    def cancel(self, cause: str) -> None:
        """Somebody wants the job to stop."""
        if self.lifecycle.is_terminal:
            return
        was_active = self.lifecycle.is_active
        if self.lifecycle.state is JobState.WAITING_FOR_SLOTS:
            self._failure.add(cause)
            self.lifecycle.fire(JobEvent.CANCEL)
            self._refuse(JobCancelledError(f"job {self.graph.name} was cancelled: {cause}"))
            return
        self.lifecycle.fire(JobEvent.CANCEL)
        if was_active:
            self._failure.add(cause)
            self._stop_tasks(f"job {self.graph.name} was cancelled: {cause}")
        self._settle_if_quiet()

    def fail(self, cause: str, rank: int = CAUSE, kind: type[PenstockError] = JobError) -> None:
        """Something went wrong: stop the rest and end."""
        if self.lifecycle.is_terminal:
            return
        was_active = self.lifecycle.is_active
        if self.lifecycle.state is not JobState.CANCELLING:
            self._failure.add(cause, rank, kind)
        self.lifecycle.fire(JobEvent.FAILURE)
        if was_active:
            self._stop_tasks(f"job {self.graph.name} failed")
        self._settle_if_quiet()

    def progress(self, live: Live) -> JobProgress:
        """A snapshot; `live` gives what heartbeats said of an attempt."""
        seconds = self._context.now() - self._start
        vertices = tuple(self.tasks.vertex_progress(vertex.id, live) for vertex in self.graph.vertices)
        return JobProgress(self.job, self.graph.name, self.lifecycle.state, seconds, vertices)

    def attempts(self) -> list[AttemptId]:
        """The attempts that were accepted."""
        return [s.attempt for s in self.tasks if s.attempt is not None]

    # --- deployment

    def _refusal(self, event: events.TaskRegistered, subtask: Subtask | None) -> PenstockError | None:
        if not self.lifecycle.is_active:
            return self._over(event.attempt)
        if subtask is not None and (subtask.attempt is not None or subtask.empty):
            return StaleError(
                f"{event.attempt}: another attempt of this subtask came first"
                f" ({subtask.attempt or 'its Spark job has returned without it'})"
            )
        return None

    def _start_region(self) -> None:
        parts = self._regions.start_next()
        region = self._regions.current
        for vertex in region.vertices:
            self.tasks.add(self.graph.vertex(vertex))
        for part in parts:
            for place in part.subtasks:
                self.tasks.at(*place).lifecycle.handle(ExecutionEvent.SCHEDULE)
        self._record("region_started", f"{region.number}: {sum(len(part.subtasks) for part in parts)} tasks")
        self._emit(do.StartDeadline(self.job, do.deploy_deadline(region.number), self._submitted.slots_timeout))
        self._emit(do.LaunchSparkJobs(self.job, self.graph, parts))
        self._deploy_if_complete()
        self._finish_if_complete()

    def _deploy_if_complete(self) -> None:
        state = self.lifecycle.state
        if state is JobState.DEPLOYING:
            region = self._regions.current
            tasks = self._current_tasks()
            ranged = [s for s in tasks if not s.vertex.reads_dataframe]
            if ranged and not (all(s.is_ready for s in ranged) if region.at_once else any(s.is_ready for s in tasks)):
                return
            self.lifecycle.fire(JobEvent.TASKS_COMPLETE)
            self._record("tasks_complete", str(len(ranged)))
        elif state is not JobState.RUNNING:
            return
        for subtask in self._current_tasks():
            if subtask.is_ready:
                self._deploy(subtask)

    def _current_tasks(self) -> list[Subtask]:
        vertices = self._regions.current.vertices
        return [subtask for subtask in self.tasks if subtask.vertex.id in vertices]

    def _deploy(self, subtask: Subtask) -> None:
        call, attempt = subtask.call, subtask.attempt
        if call is None or attempt is None:
            return
        subtask.call = None
        subtask.deployed = True
        subtask.lifecycle.handle(ExecutionEvent.RUN)
        self._record("task_deployed", str(attempt))
        self._emit(do.AnswerRegistration(call, attempt, self.tasks.deployment(subtask, attempt)))

    def _make_consumable(self, subtask: Subtask, edge: int) -> None:
        if edge in subtask.consumable or edge not in subtask.outputs or not self.lifecycle.is_active:
            return
        subtask.consumable.add(edge)
        descriptor = subtask.outputs[edge]
        self._record("partition_consumable", str(descriptor.partition))
        self._update_consumers(edge, subtask.index, descriptor)

    def _update_consumers(self, edge: int, index: int, descriptor: ShuffleDescriptor) -> None:
        if edge == RESULT_EDGE:
            return
        consumer = self.graph.edge(edge).consumer
        told = 0
        for number in self.topology.consumers_of(edge, index):
            reader = self.tasks.find(consumer, number)
            if reader is not None and reader.deployed and reader.attempt is not None and not reader.is_ended:
                told += 1
                self._emit(do.UpdatePartitionInfo(reader.environment, reader.attempt, edge, descriptor))
        if told:
            self._record("partition_info_updated", str(descriptor.partition))

    # --- the end

    def _part_name(self, part: int) -> str:
        return "the tasks" if part < 0 else f"DataFrame {self.graph.vertex(part).name}"

    def _confirm_part(self, part: int) -> None:
        for subtask in self._current_tasks():
            if self._regions.part_of(subtask.vertex) != part or subtask.is_ended:
                continue
            if subtask.attempt is None and subtask.vertex.reads_dataframe:
                self._make_empty(subtask)
            else:
                self.fail(f"{subtask.title}: its Spark job returned, but the task never reported its end")
                return
        self._record("producers_confirmed", self._part_name(part))
        self._answer_confirmed()
        self._finish_if_complete()

    def _make_empty(self, subtask: Subtask) -> None:
        subtask.empty = True
        for edge in self.graph.outputs_of(subtask.vertex.id):
            descriptor = self.topology.placeholder(edge.id, subtask.vertex.id, subtask.index, empty=True)
            self._update_consumers(edge.id, subtask.index, descriptor)

    def _answer_confirmed(self) -> None:
        for call, (attempt, open_parts) in list(self._awaiting.items()):
            if all(self._regions.parts.get(part, True) for part in open_parts):
                del self._awaiting[call]
                self._emit(do.AnswerProducers(call, attempt))

    def _finish_if_complete(self) -> None:
        if self.lifecycle.state is JobState.RUNNING and all(s.is_ended for s in self.tasks):
            self.lifecycle.fire(JobEvent.TASKS_FINISHED)
        if self.lifecycle.state is JobState.CONFIRMING and self._regions.all_returned:
            if self._regions.has_next:
                self.lifecycle.fire(JobEvent.REGION_CONFIRMED)
                self._release_consumed()
                self._start_region()
            else:
                self.lifecycle.fire(JobEvent.CONFIRMED)
                self._complete()

    def _release_consumed(self) -> None:
        read = {edge_dataset(self.job, edge.id) for edge in self._regions.consumed_edges()}
        tracker = self._context.tracker
        done = [partition for partition in tracker.partitions_of(self.job) if partition.dataset in read]
        for environment, descriptors in tracker.release_some(done).items():
            self._emit(do.ReleasePartitions(environment, descriptors))

    def _complete(self) -> None:
        partitions = tuple(self.tasks.result_partitions())
        self._release(keep=tuple(item.partition for item in partitions if not item.empty))
        self._record("job_finished", self.job)
        self._emit(do.CompleteJob(self.job, self._result(), partitions))

    def _end_badly(self, subtask: Subtask, event: events.TaskFinished) -> None:
        # A task that was told to stop says CANCELED; one that says so unasked saw its worker being stopped.
        cancelled = event.state == "CANCELED"
        if cancelled:
            subtask.stop()
        else:
            subtask.lifecycle.handle(ExecutionEvent.FAIL)
        self._drop_call(subtask)
        if cancelled and not self.lifecycle.is_active:
            return
        reason = event.error or "no reason given"
        verb = "was cancelled" if cancelled else "failed"
        self.fail(f"{subtask.title} {verb}: {reason}", CONSEQUENCE if cancelled else rank_of(event.error_type))

    def _stop_tasks(self, cause: str) -> None:
        for subtask in self.tasks:
            if subtask.call is not None:
                self._drop_call(subtask)
                subtask.stop()
            elif subtask.is_live and subtask.attempt is not None:
                subtask.lifecycle.handle(ExecutionEvent.CANCEL)
                self._emit(do.CancelTask(subtask.environment, subtask.attempt, cause))
        for call, (attempt, _) in self._awaiting.items():
            self._emit(do.AnswerProducers(call, attempt, self._over(attempt)))
        self._awaiting.clear()
        self._emit(do.StartDeadline(self.job, do.SETTLE, SETTLE_SECONDS))

    def _drop_call(self, subtask: Subtask) -> None:
        if subtask.call is not None and subtask.attempt is not None:
            self._emit(do.AnswerRegistration(subtask.call, subtask.attempt, self._over(subtask.attempt)))
            subtask.call = None

    def _settle_if_quiet(self) -> None:
        if self.lifecycle.state not in (JobState.FAILING, JobState.CANCELLING):
            return
        if any(s.is_live for s in self.tasks):
            if self._regions.all_returned and not self._in_grace:
                # Spark has given these tasks up and kills them in some seconds, which nobody needs to wait for.
                self._in_grace = True
                self._emit(do.StartDeadline(self.job, do.GRACE, GRACE_SECONDS))
            return
        if self._regions.all_returned:
            self._end()
        elif self._failure.awaits_spark:
            return  # its Spark job fails by itself, and must not be cancelled before it has said why
        elif any(s.attempt is None and not self._returned(s) for s in self._current_tasks()):
            # What is left has not begun, so there is nothing in it to stop politely.
            self._cancel_spark_jobs()

    def _returned(self, subtask: Subtask) -> bool:
        return self._regions.parts[self._regions.part_of(subtask.vertex)]

    def _cancel_spark_jobs(self) -> None:
        if not self._spark_cancelled:
            self._spark_cancelled = True
            self._emit(do.StartDeadline(self.job, do.ABANDON, ABANDON_SECONDS))
            self._emit(do.CancelSparkJobs(self.job))

    def _abandon(self) -> None:
        for subtask in self.tasks:
            if subtask.is_live:
                self._drop_call(subtask)
                subtask.lifecycle.handle(ExecutionEvent.FAIL)
        self._end()

    def _end(self) -> None:
        cancelled = self.lifecycle.state is JobState.CANCELLING
        self.lifecycle.fire(JobEvent.SETTLED)
        self._release(keep=())
        self._record("job_canceled" if cancelled else "job_failed", self.job)
        verb, kind = ("was cancelled", JobCancelledError) if cancelled else ("failed", self._failure.kind)
        error = kind(f"job {self.graph.name} {verb}: {self._failure.text}")
        self._emit(do.FailJob(self.job, self._result(), error))

    def _release(self, keep: tuple[PartitionId, ...]) -> None:
        environments = {s.environment for s in self.tasks if s.environment}
        for environment, descriptors in self._context.tracker.release(self.job, keep).items():
            self._emit(do.ReleasePartitions(environment, descriptors))
        if not keep:
            self._emit(do.ReleaseJob(self.job, tuple(sorted(environments))))

    def _refuse(self, error: PenstockError) -> None:
        self._record("job_refused", self.job)
        self._emit(do.RefuseJob(self.job, self._result(), error))

    def _no_slots(self) -> None:
        got = sum(1 for s in self._current_tasks() if s.attempt is not None)
        self.fail(slots_missing(got, self.slots_needed, self._submitted.slots_timeout), kind=SlotsError)

    def _over(self, attempt: AttemptId) -> PenstockError:
        return JobCancelledError(
            f"{attempt}: job {self.graph.name} is {self.lifecycle.state.name}; this task may end"
        )

    # --- figures

    def _record(self, name: str, ids: str) -> None:
        self._trace.append((self._context.now() - self._start, name, ids))

    def _result(self) -> JobResult:
        metrics = {vertex.id: self.tasks.sums(vertex.id, None) for vertex in self.graph.vertices}
        seconds = self._context.now() - self._start
        return JobResult(self.job, self.graph.name, self.lifecycle.state, seconds, metrics, tuple(self._trace))
