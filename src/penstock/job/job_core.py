# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's view of one job: its regions, workers and restarts, from its submission to its end.

Events in, instructions out; no await, socket, clock, thread or log. Rules:

- Spark tasks are workers that ask for one subtask after the other; only those that read a DataFrame are bound to
  theirs. Which subtasks may run is in `stages`, what they are given in `demand`, how many slots in `master_core`.
- In a region whose tasks run together data starts when every task that reads no DataFrame is there; one that reads a
  DataFrame may come later, because its Spark job may run shuffles of its own first. Elsewhere every task is answered
  at once. What a region has read is released when all of it has ended well.
- A consumer is deployed with placeholders and told of each producer at its first buffer. Whoever consumes a
  DataFrame's rows ends only after that DataFrame's Spark job has returned.
- What fails is run again with what depends on it (`recovery`); the job fails when its restarts are used up, when user
  code fails more often than allowed, or when Spark gives a DataFrame up. Then the other tasks are told to stop, and
  Spark's own cancel is the fallback. A cancelled job is never restarted.
"""

from __future__ import annotations

from penstock.graph.execution_state import ExecutionEvent
from penstock.graph.job_graph import JobGraph
from penstock.graph.regions import Region
from penstock.job import events
from penstock.job import instructions as do
from penstock.job.demand import Demand, Match, Need, match
from penstock.job.failure import CAUSE, CONSEQUENCE, CUT_OFF, ECHO, OWN_CANCEL, FailureCause, rank_of
from penstock.job.job_context import (
    ABANDON_SECONDS,
    GRACE_SECONDS,
    SETTLE_SECONDS,
    UNEXPLAINED_SECONDS,
    JobContext,
)
from penstock.job.job_tasks import JobTasks, Live, Place
from penstock.job.parts import LaunchPart, Parts
from penstock.job.recovery import Recovery
from penstock.job.refusals import slots_missing, slots_queue_timeout, too_few_slots
from penstock.job.result import JobProgress, JobResult, TraceEntry
from penstock.job.stages import Stages
from penstock.job.states import JobEvent, JobLifecycle, JobState
from penstock.job.subtask import Subtask
from penstock.job.topology import JobTopology, edge_dataset
from penstock.job.updates import Updates
from penstock.job.workers import Worker, Workers
from penstock.shuffle import AttemptId, PartitionId, ProducerDescriptor
from penstock.shuffle.errors import JobCancelledError, JobError, PenstockError, SlotsError, StaleError


class JobCore:
    """One job. The master's core calls one method per event; instructions leave through the context."""

    def __init__(self, submitted: events.JobSubmitted, result_service: str, context: JobContext) -> None:
        self.job = submitted.job
        self.topology = JobTopology(submitted.job, submitted.graph, result_service)
        self.lifecycle = JobLifecycle(submitted.job)
        self.tasks = JobTasks(self.topology)
        self.workers = Workers()
        self._parts = Parts(len(submitted.graph.vertices))
        self._stages = Stages(self.topology, submitted.slots_total, submitted.target_bytes)
        self._submitted = submitted
        self._context = context
        self._emit = context.emit
        self._start = context.now()
        self._trace: list[TraceEntry] = []
        self._updates = Updates(self.topology, self.tasks, self._emit, self._record)
        self._recovery = Recovery(self.topology, self.tasks, context.tracker, submitted.restart)
        self._awaiting: dict[int, tuple[AttemptId, set[int]]] = {}
        self._moving: set[int] = set()
        self._consumed: set[int] = set()
        self._watched: set[str] = set()
        self._failure = FailureCause()
        self._paused = False
        self._unexplained: set[Place] = set()
        self._spark_cancelled = False
        self._in_grace = False
        self._record("job_submitted", submitted.job)

    @property
    def graph(self) -> JobGraph:
        """The plan as it is now."""
        return self.topology.graph

    @property
    def slots_needed(self) -> int:
        """The fewest slots with which the job can run."""
        return self._stages.slots_needed

    @property
    def slots_total(self) -> int:
        """The application's slots when the job was submitted."""
        return self._submitted.slots_total

    @property
    def slots_held(self) -> int:
        """The slots of its workers and of its DataFrames' tasks."""
        return len(self.workers) + self._parts.frame_slots

    # --- slots

    def wait_for_slots(self) -> None:
        """Stand in the queue, or refuse a job that can never fit."""
        total = self.slots_total
        if self.slots_needed > total:
            self.lifecycle.fire(JobEvent.REFUSED)
            self._refuse(SlotsError(too_few_slots(self.graph.name, self.slots_needed, total)))
            return
        self.lifecycle.fire(JobEvent.SUBMITTED)
        self._emit(do.StartDeadline(self.job, do.SLOTS, self._submitted.slots_timeout))

    def use_workers(self, limit: int | None) -> Demand | None:
        """Give idle workers their next subtasks and let go those without; the slots the job would like to have more.

        `limit`: somebody else waits for slots, so the job keeps no more than these.
        """
        if self.lifecycle.state not in (JobState.WAITING_FOR_SLOTS, JobState.RUNNING):
            self._release_workers(self.workers.idle)
            return None
        if limit is not None and not self._gathers():
            surplus = max(0, self.slots_held - limit)
            self._release_workers(self.workers.idle[len(self.workers.idle) - surplus :] if surplus else [])
        found = self._matched()
        for place in found.starts:
            self._assign(self.workers.idle[0], place)
        self._release_workers(self.workers.idle[found.kept :])
        return found.demand

    def grant(self, demand: Demand, slots: int) -> None:
        """Start what was asked for, of workers at most so many as there are slots."""
        if self.lifecycle.state is JobState.WAITING_FOR_SLOTS:
            self.lifecycle.fire(JobEvent.ADMITTED)
            self._record("job_admitted", self.job)
        launched: list[LaunchPart] = []
        count = min(demand.workers, slots)
        if count:
            launched.append(self._parts.workers(count))
            self.workers.launch(launched[0].part, launched[0].workers)
        left = slots - count
        for vertex, tasks in demand.frames:
            launched.append(self._parts.frame(self.graph.vertex(vertex), min(tasks, left)))
            left -= min(tasks, left)
        self._record("slots_granted", f"{slots - left} of {demand.slots}")
        self._emit(do.LaunchSparkJobs(self.job, self.graph, tuple(launched)))

    def _gathers(self) -> bool:
        """Whether workers are being kept for tasks that run together: these were granted all at once."""
        ready = self._stages.ready(self.tasks, self._parts)
        return any(region.at_once and any(self.tasks.pending(v) for v in region.vertices) for region in ready)

    def _matched(self) -> Match:
        needs = [] if self._paused else [self._need(r) for r in self._stages.ready(self.tasks, self._parts)]
        return match([need for need in needs if need is not None], len(self.workers.idle), self.workers.coming)

    def _need(self, region: Region) -> Need | None:
        vertices = [self.graph.vertex(number) for number in region.vertices]
        places = tuple(place for v in vertices if not v.reads_dataframe for place in self.tasks.pending(v.id))
        frames = [(v.id, v.parallelism) for v in vertices if v.reads_dataframe and not self._parts.is_launched(v.id)]
        if not places and not frames:
            return None
        if region.at_once:
            self._watch(region)
        return Need(places, tuple(frames), together=region.at_once)

    def _watch(self, region: Region) -> None:
        """All its tasks must be there some time after it may start."""
        what = do.deploy_deadline(region.number, self._recovery.round)
        if what not in self._watched and self.lifecycle.state is JobState.RUNNING:
            self._watched.add(what)
            self._emit(do.StartDeadline(self.job, what, self._submitted.slots_timeout))

    def _release_workers(self, workers: list[Worker]) -> None:
        for worker in workers:
            for call in self.workers.release(worker):
                self._emit(do.ReleaseWorker(call))

    # --- tasks and their deployment

    def register_task(self, event: events.TaskRegistered) -> None:
        """A worker asks for a subtask, or the task of a DataFrame's partition for its deployment."""
        if not self.lifecycle.is_active:
            self._emit(do.AnswerRegistration(event.call, event.attempt, self._over(event.attempt)))
        elif event.attempt.vertex != events.WORKER:
            self._register_frame_task(event)
        elif self.workers.is_known(event.attempt.subtask):
            self.workers.register(event)
        else:
            self._emit(do.ReleaseWorker(event.call))

    def _register_frame_task(self, event: events.TaskRegistered) -> None:
        subtask = self.tasks.find(event.attempt.vertex, event.attempt.subtask)
        refusal = ""
        if subtask is None or self._parts.part_of(subtask.vertex.id) != event.part:
            refusal = f"{event.attempt}: job {self.graph.name} has no such subtask now"
        elif subtask.attempt is not None or subtask.empty:
            first = subtask.attempt or "its Spark job has returned without it"
            refusal = f"{event.attempt}: another attempt of this subtask came first ({first})"
        if subtask is None or refusal:
            self._emit(do.AnswerRegistration(event.call, event.attempt, StaleError(refusal)))
        else:
            self._begin(subtask, event.attempt, event.call, (event.environment, event.address))

    def _assign(self, worker: Worker, place: Place) -> None:
        subtask = self.tasks.at(*place)
        attempt = AttemptId(self.job, *place, subtask.generation)
        call = worker.call
        if call is None:
            raise ValueError(f"worker {worker.number} of job {self.job} is not idle")
        self.workers.assign(worker, attempt)
        self._begin(subtask, attempt, call, (worker.environment, worker.address))

    def _begin(self, subtask: Subtask, attempt: AttemptId, call: int, where: tuple[str, str]) -> None:
        self.tasks.take(subtask)
        subtask.begin(attempt, call, *where)
        self._record("task_registered", str(attempt))
        producer = ProducerDescriptor(attempt, *where)
        for edge, service, partition in self.topology.outputs(subtask.vertex, subtask.index):
            subtask.unregistered += 1
            self._emit(do.RegisterPartition(edge, service, partition, producer))
        self._deploy_ready(subtask)

    def register_partition(self, event: events.PartitionRegistered) -> None:
        """A partition has its descriptor."""
        subtask = self.tasks.current(event.attempt)
        if subtask is None and self.lifecycle.is_active:
            # Its attempt was given up meanwhile: nobody will write or read it.
            self._emit(do.ReleasePartitions(event.descriptor.environment, (event.descriptor,)))
            return
        self._context.tracker.start(self.job, event.descriptor)
        if subtask is None or event.edge in subtask.outputs:
            return
        subtask.outputs[event.edge] = event.descriptor
        subtask.unregistered -= 1
        self._deploy_ready(subtask)

    def refuse_partition(self, event: events.PartitionRefused) -> None:
        """A ShuffleMaster could not register a partition: its attempt can't run."""
        subtask = self.tasks.current(event.attempt)
        if subtask is not None:
            self.fail(f"{subtask.title}: its output could not be registered: {event.cause}")

    def partition_consumable(self, partition: PartitionId) -> None:
        """A partition can be read: tell those who wait for it."""
        subtask = self._producer_of(partition)
        if subtask is not None and self.lifecycle.is_active:
            self._updates.announce(subtask, self.topology.edge_of(partition.dataset)[0])

    def _producer_of(self, partition: PartitionId) -> Subtask | None:
        """The subtask whose current attempt writes a partition."""
        try:
            _, vertex = self.topology.edge_of(partition.dataset)
        except KeyError:
            return None
        subtask = self.tasks.find(vertex, partition.index)
        current = subtask is not None and subtask.attempt is not None
        return subtask if current and subtask.attempt.attempt == partition.attempt else None  # type: ignore[union-attr]

    def _deploy_ready(self, changed: Subtask) -> None:
        region = self._stages.region_of(changed.vertex.id)
        if not self.lifecycle.is_active or not changed.is_ready:
            return
        if not region.at_once or region.number in self._moving:
            self._deploy(changed)
            return
        subtasks = [subtask for vertex in region.vertices for subtask in self.tasks.of(vertex)]
        waited_for = [s for s in subtasks if not s.vertex.reads_dataframe and not s.deployed]
        if all(subtask.is_ready for subtask in waited_for):
            self._moving.add(region.number)
            self._record("tasks_complete", f"{region.number}: {len(waited_for)}")
            for subtask in subtasks:
                if subtask.is_ready:
                    self._deploy(subtask)

    def _deploy(self, subtask: Subtask) -> None:
        call, attempt = subtask.call, subtask.attempt
        if call is None or attempt is None:
            return
        subtask.call = None
        subtask.round = self._recovery.round
        subtask.lifecycle.handle(ExecutionEvent.RUN)
        self.tasks.deploy(subtask)
        self._record("task_deployed", str(attempt))
        self._emit(do.AnswerRegistration(call, attempt, self.tasks.deployment(subtask, attempt)))

    def await_producers(self, event: events.ProducersAwaited) -> None:
        """A consumer asks whether the end of its inputs is real."""
        subtask = self.tasks.current(event.attempt)
        if subtask is None or subtask.is_ended or not self.lifecycle.is_active:
            self._emit(do.AnswerProducers(event.call, event.attempt, self._over(event.attempt)))
            return
        producers = (self.graph.vertex(edge.producer) for edge in self.graph.inputs_of(subtask.vertex.id))
        frames = {vertex.id for vertex in producers if vertex.reads_dataframe}
        self._awaiting[event.call] = (event.attempt, frames)
        self._answer_confirmed()

    def _answer_confirmed(self) -> None:
        for call, (attempt, frames) in list(self._awaiting.items()):
            if all(self._parts.is_confirmed(vertex) for vertex in frames):
                del self._awaiting[call]
                self._emit(do.AnswerProducers(call, attempt))

    # --- ends of tasks

    def finish_task(self, event: events.TaskFinished) -> None:
        """A task reports its end."""
        self.workers.free(event.attempt)
        subtask = self.tasks.current(event.attempt)
        if subtask is not None and not subtask.is_ended:
            subtask.metrics = dict(event.metrics)
            self._record("task_finished", f"{event.attempt} {event.state}")
            if event.state == "FINISHED" and subtask.deployed:
                self._end_well(subtask, event)
            else:
                self._end_badly(subtask, event)
        self._settle_if_quiet()

    def _end_well(self, subtask: Subtask, event: events.TaskFinished) -> None:
        subtask.lifecycle.handle(ExecutionEvent.FINISH)
        if not subtask.is_finished:
            return  # it was told to stop, and was faster
        self.tasks.finish(subtask)
        wrong = self._stages.add_sizes(subtask.place, event.sizes)
        if wrong:
            self.fail(f"{subtask.title}: {wrong}")
        if not self.lifecycle.is_active:
            return
        for edge in subtask.outputs:
            self._updates.announce(subtask, edge)
        readers = self._recovery.misled(subtask, event.fingerprints)
        if readers:
            self._recover(readers, f"{subtask.title} gave other rows than in its attempt before", CAUSE)
        self._finish_if_complete()

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
        rank = CONSEQUENCE if cancelled else rank_of(event.error_type)
        cause = f"{subtask.title} {'was cancelled' if cancelled else 'failed'}: {event.error or 'no reason given'}"
        if not self.lifecycle.is_active or rank == CUT_OFF:
            self.fail(cause, rank)
        elif cancelled:
            # Spark stops it: because somebody cancels, or because another of its tasks died. Spark will say.
            self._failure.add(cause, rank)
            self._unexplained.add(subtask.place)
            self._emit(do.StartDeadline(self.job, do.UNEXPLAINED, UNEXPLAINED_SECONDS))
        elif rank == CAUSE and event.lost is None:
            subtask.user_errors += 1
            if subtask.user_errors > self._submitted.restart.user_errors:
                self.fail(cause)
            else:
                self._recover({subtask.place}, cause, rank)
        else:
            if event.lost is not None:
                self._context.tracker.lose([event.lost])
            self._recover({subtask.place}, cause, rank)

    def lose_task(self, event: events.TaskLost) -> None:
        """A task's process is gone, or that of an idle worker."""
        subtask = self.tasks.current(event.attempt)
        worker = self.workers.lose(event.attempt)
        if worker is not None and worker.call is not None:
            self._emit(do.ReleaseWorker(worker.call))
        if subtask is not None and not subtask.is_ended:
            self._record("task_lost", str(event.attempt))
            cause = f"{subtask.title} was lost: {event.cause}"
            subtask.lifecycle.handle(ExecutionEvent.FAIL)
            self._drop_call(subtask)
            self._recover({subtask.place}, cause, CAUSE)
        self._settle_if_quiet()

    def lose_environment(self, environment: str, cause: str, partitions: tuple[PartitionId, ...]) -> None:
        """An environment is gone with its tasks and partitions."""
        for call in self.workers.lose_environment(environment):
            self._emit(do.ReleaseWorker(call))
        hit = [s for s in self.tasks if s.is_live and s.environment == environment]
        for subtask in hit:
            subtask.lifecycle.handle(ExecutionEvent.FAIL)
            self._drop_call(subtask)
        needed = self._needed(partitions)
        if hit or needed:
            self._record("environment_lost", environment)
            names = ", ".join(s.title for s in hit[:3]) or f"{len(partitions)} partitions"
            places = {subtask.place for subtask in hit} | needed
            self._recover(places, f"environment {environment} is lost ({cause}), and with it {names}", CAUSE)
        self._settle_if_quiet()

    def lose_partitions(self, partitions: tuple[PartitionId, ...], cause: str) -> None:
        """Partitions of this job are gone, as a ShuffleMaster or an environment says."""
        named = ", ".join(str(item) for item in partitions[:3])
        needed = self._needed(partitions)
        if needed:
            self._recover(needed, f"{len(partitions)} partitions are lost ({named}): {cause}", CAUSE)
        self._settle_if_quiet()

    def _needed(self, partitions: tuple[PartitionId, ...]) -> set[Place]:
        """The producers of those that somebody will still read."""
        found = set()
        for partition in partitions:
            subtask = self._producer_of(partition)
            if subtask is None:
                continue
            edge, _ = self.topology.edge_of(partition.dataset)
            if edge < 0 or not self.tasks.is_complete(self.graph.edge(edge).consumer):
                found.add(subtask.place)
        return found

    # --- restarts

    def _recover(self, failed: set[Place], cause: str, rank: int) -> None:
        """Run again what failed and what depends on it, or fail the job."""
        if not self.lifecycle.is_active:
            self.fail(cause, rank)
            return
        now = self._context.now()
        if not self._recovery.is_burst(now):
            self._failure = FailureCause()
        self._failure.add(cause, rank)
        delay = self._recovery.count(now)
        if delay is None:
            self.fail(cause + self._recovery.given_up, rank)
            return
        if self.lifecycle.state is JobState.CONFIRMING:
            self.lifecycle.fire(JobEvent.RESTART)
        self._unexplained -= failed
        places = self._recovery.restarts(failed)
        self._record("restart", f"{self._recovery.round}: {cause.partition(chr(10))[0]}")
        for place in sorted(places):
            self._reset(self.tasks.at(*place))
        if delay > 0 and places:
            self._paused = True
            self._emit(do.StartDeadline(self.job, do.RESTART, delay))

    def _reset(self, subtask: Subtask) -> None:
        attempt, call = subtask.attempt, subtask.call
        if call is not None and attempt is not None and not subtask.vertex.reads_dataframe:
            self.workers.take_back(attempt, call)
        elif call is not None:
            self._drop_call(subtask, StaleError(f"{attempt}: its DataFrame is read again"))
        elif subtask.is_live and attempt is not None:
            self._emit(do.CancelTask(subtask.environment, attempt, f"{subtask.title} is run again"))
            self.workers.drain(attempt)
        for question, (asker, _) in list(self._awaiting.items()):
            if asker == attempt:
                del self._awaiting[question]
                self._emit(do.AnswerProducers(question, asker, StaleError(f"{asker}: it is run again")))
        written = [descriptor.partition for descriptor in subtask.outputs.values()]
        for environment, descriptors in self._context.tracker.release_some(written).items():
            self._emit(do.ReleasePartitions(environment, descriptors))
        if subtask.vertex.reads_dataframe and self._parts.is_launched(subtask.vertex.id):
            part = self._parts.give_up(subtask.vertex.id)
            if part is not None:
                self._emit(do.CancelSparkJobs(self.job, part))
        self._moving.discard(self._stages.region_of(subtask.vertex.id).number)
        self._record("task_restarted", f"v{subtask.vertex.id}.{subtask.index}")
        self.tasks.reset(subtask, self._recovery.round)

    # --- Spark jobs

    def spark_job_returned(self, event: events.SparkJobReturned) -> None:
        """One of the job's Spark jobs is over."""
        launched = self._parts.returned(event.part)
        if launched is None:
            return
        self._record("spark_job_returned", str(event.part))
        gone = self.workers.lose_part(event.part) if launched.vertex is None else []
        for worker in gone:
            for call in ([] if worker.call is None else [worker.call]) + [parked.call for parked in worker.parked]:
                self._emit(do.ReleaseWorker(call))
        if self.lifecycle.state is JobState.CONFIRMING and launched.vertex is None:
            self._finish_if_complete()
        elif not self._parts.is_current(launched):
            pass
        elif event.cancelled and self.lifecycle.is_active:
            self.cancel(event.error or "its Spark job was cancelled")
        elif event.error is not None and (launched.vertex is not None or not self.lifecycle.is_active):
            kind = JobCancelledError if event.cancelled else JobError
            rank = OWN_CANCEL if event.cancelled and self._spark_cancelled else ECHO
            self.fail(f"the Spark job of {self._part_name(launched)} failed: {event.error}", rank, kind)
        elif self.lifecycle.is_active:
            if launched.vertex is None:
                self._lose_workers(gone, event.error)
            else:
                self._confirm_frame(launched.vertex)
        self._settle_if_quiet()

    def _lose_workers(self, gone: list[Worker], error: str | None) -> None:
        """A Spark job of workers is over: whoever still worked is lost, and so is work that Spark stopped."""
        subtasks = [s for w in gone if w.attempt is not None and (s := self.tasks.current(w.attempt)) is not None]
        lost = [subtask for subtask in subtasks if not subtask.is_ended]
        for subtask in lost:
            subtask.lifecycle.handle(ExecutionEvent.FAIL)
            self._drop_call(subtask)
        places = {subtask.place for subtask in lost} | self._unexplained
        if error is not None and (places or any(worker.identity is None for worker in gone)):
            self._recover(places, f"the Spark job of the tasks failed: {error}", ECHO)
        elif lost:
            cause = f"{lost[0].title}: its Spark job returned, but the task never reported its end"
            self._recover(places, cause, CAUSE)

    def _part_name(self, launched: LaunchPart) -> str:
        return "the tasks" if launched.vertex is None else f"DataFrame {self.graph.vertex(launched.vertex).name}"

    def _confirm_frame(self, vertex: int) -> None:
        subtasks = [subtask for subtask in self.tasks.of(vertex) if not subtask.is_ended]
        lost = [subtask for subtask in subtasks if subtask.attempt is not None]
        if lost:
            for subtask in lost:
                subtask.lifecycle.handle(ExecutionEvent.FAIL)
                self._drop_call(subtask)
            cause = f"{lost[0].title}: its Spark job returned, but the task never reported its end"
            self._recover({subtask.place for subtask in subtasks}, cause, CAUSE)
            return
        for subtask in subtasks:
            subtask.empty = True
            self.tasks.finish(subtask)
            self._updates.announce_empty(subtask)
        self._parts.confirm(vertex)
        self._record("producers_confirmed", f"DataFrame {self.graph.vertex(vertex).name}")
        self._answer_confirmed()
        self._finish_if_complete()

    # --- the end

    def deadline_passed(self, what: str) -> None:
        """A deadline that was asked for went by."""
        state = self.lifecycle.state
        if what == do.SLOTS and state is JobState.WAITING_FOR_SLOTS:
            waited = self._submitted.slots_timeout
            self.lifecycle.fire(JobEvent.REFUSED)
            self._refuse(SlotsError(slots_queue_timeout(self.graph.name, self.slots_needed, waited)))
        elif what.startswith(do.DEPLOY) and state is JobState.RUNNING:
            self._look_at_slots(what)
        elif what == do.RESTART:
            self._paused = False
        elif what == do.UNEXPLAINED and self._unexplained and self.lifecycle.is_active:
            self._recover(set(self._unexplained), "tasks were stopped, and Spark does not say why", CONSEQUENCE)
        elif what == do.DRAIN and state is JobState.CONFIRMING:
            self._cancel_spark_jobs()
        elif what == do.SETTLE and state in (JobState.FAILING, JobState.CANCELLING):
            self._cancel_spark_jobs()
            self._emit(do.StartDeadline(self.job, do.ABANDON, ABANDON_SECONDS))
        elif what in (do.ABANDON, do.GRACE) and state in (JobState.FAILING, JobState.CANCELLING):
            self._abandon()

    def _look_at_slots(self, what: str) -> None:
        for region in self._stages.regions:
            waits = region.at_once and region.number not in self._moving and self.tasks.of(region.vertices[0])
            if waits and what == do.deploy_deadline(region.number, self._recovery.round):
                needed = [s for v in region.vertices for s in self.tasks.of(v)]
                got = sum(1 for s in needed if s.attempt is not None) + len(self.workers.idle)
                seconds = self._submitted.slots_timeout
                self.fail(slots_missing(min(got, len(needed)), len(needed), seconds), kind=SlotsError)

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
            self._failure = FailureCause()
            self._failure.add(cause)
            self._stop_tasks(f"job {self.graph.name} was cancelled: {cause}")
        self._settle_if_quiet()

    def fail(self, cause: str, rank: int = CAUSE, kind: type[PenstockError] = JobError) -> None:
        """Something went wrong for good: stop the rest and end."""
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

    def trace(self) -> list[TraceEntry]:
        """What has happened so far."""
        return list(self._trace)

    def attempts(self) -> list[AttemptId]:
        """The attempts that were accepted."""
        return [s.attempt for s in self.tasks if s.attempt is not None]

    def _finish_if_complete(self) -> None:
        if self.lifecycle.state is JobState.RUNNING:
            self._release_consumed()
            if all(self._stages.is_complete(region, self.tasks) for region in self._stages.regions):
                self.lifecycle.fire(JobEvent.TASKS_FINISHED)
                if self.workers.draining:
                    self._emit(do.StartDeadline(self.job, do.DRAIN, SETTLE_SECONDS))
                elif self.workers.missing:
                    self._cancel_spark_jobs()  # they have not begun, and nobody needs them any more
        if self.lifecycle.state is JobState.CONFIRMING and self._parts.all_returned:
            self.lifecycle.fire(JobEvent.CONFIRMED)
            self._complete()

    def _release_consumed(self) -> None:
        read = set()
        for region in self._stages.regions:
            if not self._stages.is_complete(region, self.tasks):
                self._consumed.discard(region.number)
            elif region.number not in self._consumed:
                self._consumed.add(region.number)
                read |= {edge_dataset(self.job, edge.id) for edge in self._stages.read_by(region)}
        if not read:
            return
        tracker = self._context.tracker
        done = [partition for partition in tracker.partitions_of(self.job) if partition.dataset in read]
        for environment, descriptors in tracker.release_some(done).items():
            self._emit(do.ReleasePartitions(environment, descriptors))

    def _complete(self) -> None:
        partitions = tuple(self.tasks.result_partitions())
        self._release(keep=tuple(item.partition for item in partitions if not item.empty))
        self._record("job_finished", self.job)
        self._emit(do.CompleteJob(self.job, self._result(), partitions))

    def _stop_tasks(self, cause: str) -> None:
        for subtask in self.tasks:
            if subtask.call is not None:
                if subtask.attempt is not None:
                    self.workers.free(subtask.attempt)
                self._drop_call(subtask)
                subtask.stop()
            elif subtask.is_live and subtask.attempt is not None:
                subtask.lifecycle.handle(ExecutionEvent.CANCEL)
                self._emit(do.CancelTask(subtask.environment, subtask.attempt, cause))
        for call, (attempt, _) in self._awaiting.items():
            self._emit(do.AnswerProducers(call, attempt, self._over(attempt)))
        self._awaiting.clear()
        self._release_workers(self.workers.idle)
        self._emit(do.StartDeadline(self.job, do.SETTLE, SETTLE_SECONDS))

    def _drop_call(self, subtask: Subtask, error: PenstockError | None = None) -> None:
        if subtask.call is not None and subtask.attempt is not None:
            answer = error or self._over(subtask.attempt)
            self._emit(do.AnswerRegistration(subtask.call, subtask.attempt, answer))
            subtask.call = None

    def _settle_if_quiet(self) -> None:
        if self.lifecycle.state not in (JobState.FAILING, JobState.CANCELLING):
            return
        if self.workers.draining or any(s.is_live for s in self.tasks):
            if self._parts.all_returned and not self._in_grace:
                # Spark has given these tasks up and kills them in some seconds, which nobody needs to wait for.
                self._in_grace = True
                self._emit(do.StartDeadline(self.job, do.GRACE, GRACE_SECONDS))
            return
        if self._parts.all_returned:
            self._end()
        elif self._failure.awaits_spark:
            return  # its Spark job fails by itself, and must not be cancelled before it has said why
        elif self.workers.missing or self._frames_to_begin():
            # What is left has not begun, so there is nothing in it to stop politely.
            self._cancel_spark_jobs()

    def _frames_to_begin(self) -> bool:
        return any(s.attempt is None and not s.empty for v in self._parts.open_frames() for s in self.tasks.of(v))

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
