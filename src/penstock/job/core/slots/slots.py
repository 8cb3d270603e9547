# SPDX-License-Identifier: Apache-2.0
"""The slots of one job: its workers and Spark jobs, what more it would like to have, and what idle workers get.

The master's core asks every job what it wants (`demand`), takes idle workers from those that have too many
(`give_back`), lets them use what they have (`use_workers`), and grants what is free. Leased workers are not the job's
to give or to release: they stay until it is over. `arrivals` has those that come and go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.errors import SlotsError, SlotsLostError
from penstock.graph.failover import Place
from penstock.graph.regions import Region, slots_needed
from penstock.job.core import decisions as so
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.deadlines import LEASED_SECONDS, Deadline, DeadlineKind, Wanted
from penstock.job.core.execution.capacity import SlotsReturnedError
from penstock.job.core.execution.progress import Roll
from penstock.job.core.execution.stages import Stages
from penstock.job.core.execution.subtask import Subtask
from penstock.job.core.execution.topology import JobTopology
from penstock.job.core.ids import SparkJob
from penstock.job.core.slots.demand import Demand, Match, Need, match
from penstock.job.core.slots.placing import placed
from penstock.job.core.slots.refusals import (
    no_slot_for_dataframe,
    slots_awaited,
    slots_lost,
    slots_missing,
    slots_not_returned,
    slots_queue_timeout,
    slots_returned,
    slots_shown,
    too_few_slots,
)
from penstock.job.core.slots.spark_jobs import SparkJobs
from penstock.job.core.slots.workers import Worker, Workers, WorkerState
from penstock.job.core.states import JobEvent, JobState, Phase
from penstock.shuffle import AttemptId

RUNS = (JobState.WAITING_FOR_SLOTS, JobState.RUNNING)
"""The states in which a job may start something."""


class Slots:
    """The slots that one job holds, and what it starts on them."""

    def __init__(
        self, submitted: events.JobSubmitted, topology: JobTopology, stages: Stages, subtasks: Roll, phase: Phase
    ) -> None:
        self.workers = Workers()
        self.spark_jobs = SparkJobs(1 + max(vertex.id for vertex in topology.graph.vertices))
        self.leases = 0
        """The number of times that a read task has leased it a slot."""
        self._counted_leases = 0
        self._is_held = False
        self._awaits_lost = False
        """True if it was planned anew, does not fit, and waits beside the line until it does."""
        self._watched: set[Deadline] = set()
        self._submitted = submitted
        self._topology = topology
        self._stages = stages
        self._subtasks = subtasks
        self._phase = phase

    @property
    def held(self) -> int:
        """The slots of its workers and of its DataFrames' tasks; leased ones are not its own."""
        return len(self.workers) - self.workers.leased + self.spark_jobs.dataframe_slots

    @property
    def starved(self) -> int:
        """The slots leased to it although it can't go on without other ones, to read a DataFrame; mostly none."""
        dataframes = (vertex.id for vertex in self._topology.graph.vertices if vertex.is_bound)
        return 0 if all(self._subtasks.is_confirmed(vertex) for vertex in dataframes) else self.workers.leased

    @property
    def waits(self) -> str:
        """That it waits for slots which it lost, if it does."""
        capacity = self._stages.capacity
        return slots_shown(self._stages.slots_needed, capacity.total) if self._awaits_lost else ""

    def demand(self) -> Demand | None:
        """The slots it would like to have now beside those it holds."""
        return self._match().demand

    def change(self, event: events.SlotsChanged) -> None:
        """The application has so many slots now."""
        self._stages.capacity.change(event.total, event.lost)

    def refuse_lost(self) -> Iterator[so.Decision]:
        """Fail if the slots that are left can't run what must be started at once: a batch job would wait for ever.

        A streaming query does wait: it has no other plan, and its hosts may come back. So does a batch job that was
        planned anew and does not fit; once it does, it is over, because there is a better plan for what is there now.
        """
        capacity = self._stages.capacity
        if self._awaits_lost:
            if self._phase.state in RUNS and self._stages.slots_needed <= capacity.total:
                text = slots_returned(self._topology.graph.name, capacity.total)
                yield so.FailForGood(text, kind=SlotsReturnedError)
            return
        is_batch = self._topology.graph.streaming is None
        if is_batch and capacity.total < capacity.planned and self._phase.state in RUNS:
            needed = self._slots_still_needed
            if needed > capacity.total:
                text = slots_lost(self._topology.graph.name, needed, capacity)
                yield so.FailForGood(text, kind=SlotsLostError)

    # --- what the master's core lets it do

    def wait(self) -> Iterator[so.Decision]:
        """Stand in the queue, or beside it for what was lost; a job that can never fit is refused."""
        needed, total, submitted = self._stages.slots_needed, self._stages.capacity.total, self._submitted
        if needed > total and not submitted.may_wait:
            yield so.FailForGood(too_few_slots(self._topology.graph, needed, total), kind=SlotsError)
            return
        if needed > total:
            self._awaits_lost = True
            text = slots_awaited(self._topology.graph.name, needed, total, submitted.slots_timeout)
            yield do.WarnOfWait(submitted.job, text)
        yield so.Advance(JobEvent.SUBMITTED)

    def give_back(self, slots: int) -> list[so.Decision]:
        """Release up to so many idle workers that others need more."""
        own = [worker for worker in self.workers.idle if not worker.is_leased]
        count = min(slots, max(0, len(own) - self._match().firm))
        return list(self._release(own[len(own) - count :]))

    def give_up(self, slots: int) -> Iterator[so.Decision]:
        """Wait no more for up to so many workers in Spark's queue: when they come they are told to end."""
        count = self.workers.give_up(max(0, slots))
        if count:
            yield so.Record("workers_given_up", str(count))

    def begun_in_part(self) -> list[frozenset[Place]]:
        """Of each region that runs together, has begun, and waits for more of its tasks: whose slots it holds."""
        found: list[frozenset[Place]] = []
        for region in self._stages.regions if self._phase.state in RUNS else ():
            if region.at_once and any(self._subtasks.undeployed(vertex) for vertex in region.vertices):
                subtasks = [subtask for vertex in region.vertices for subtask in self._subtasks.of(vertex)]
                found.append(frozenset(s.place for s in subtasks if s.is_live or self._is_being_read(s)))
        return [places for places in found if places]

    def _is_being_read(self, subtask: Subtask) -> bool:
        number = subtask.vertex.id
        reads = subtask.vertex.is_bound and not self._subtasks.is_confirmed(number)
        return reads and self.spark_jobs.reader_of(number) is not None

    def use_workers(self) -> Iterator[so.Decision]:
        """Give idle workers their next subtasks, and let go those without any."""
        if self._phase.state not in RUNS:
            if self._phase.state is JobState.CONFIRMING:
                yield from self._release(self.workers.idle)
            return
        found, idle = self._match(), self._usable()
        if found.starts:
            yield so.Advance(JobEvent.ADMITTED)
        self._watch(found)
        pending = [subtask for group in found.starts for subtask in self._subtasks.first_pending(*group)]
        pairs = list(placed(pending, idle))
        yield from [self._start(worker, subtask) for subtask, worker in pairs]
        taken = {worker.number for _, worker in pairs}
        left = [worker for worker in idle if worker.number not in taken]
        yield from self._release([worker for worker in left[found.kept :] if not worker.is_leased])

    def _start(self, worker: Worker, subtask: Subtask) -> so.Start:
        attempt = AttemptId(self._submitted.job, *subtask.place, subtask.generation)
        call = self.workers.assign(worker, attempt)
        return so.Start(attempt, call, worker.environment, worker.address)

    def grant(self, demand: Demand, slots: int) -> Iterator[so.Decision]:
        """Start what was asked for, on at most so many slots; DataFrames first, which stand at the start of plans."""
        yield so.Advance(JobEvent.ADMITTED)
        dataframes: list[SparkJob] = []
        left = slots
        if not demand.together:
            left = self._grant_dataframes(demand, left, dataframes)
        count = min(demand.workers, left)
        workers = [self.spark_jobs.workers(each) for each in self._shares(count)]
        for launched in workers:
            self.workers.launch(launched.id, launched.workers, self._subtasks.round)
        left -= count
        if demand.together:
            left = self._grant_dataframes(demand, left, dataframes)
        self._watch(self._match())  # now, because where Spark has no slot for them nothing happens any more
        yield so.Record("slots_granted", f"{slots - left} of {demand.slots}")
        yield do.LaunchSparkJobs(self._submitted.job, self._topology.graph, (*workers, *dataframes))

    def _shares(self, workers: int) -> list[int]:
        """So many workers in Spark jobs: one each where the death of one must not be the end of the others."""
        streaming = self._topology.graph.streaming
        if streaming is not None and streaming.restarts_alone:
            return [1] * workers
        return [workers] if workers else []

    def _grant_dataframes(self, demand: Demand, left: int, launched: list[SparkJob]) -> int:
        for vertex, tasks in demand.dataframes:
            if left:
                launched.append(self.spark_jobs.dataframe(self._topology.graph.vertex(vertex), min(tasks, left)))
                left -= min(tasks, left)
        return left

    def refuse_leased(self) -> Iterator[so.Decision]:
        """All slots are leased, and a DataFrame is still to be read: those who lease them must give them up."""
        error = SlotsError(no_slot_for_dataframe(self._topology.graph.name, self._stages.capacity.total))
        for worker in [worker for worker in self.workers.idle if worker.is_leased]:
            identity = worker.identity
            for call in self.workers.release(worker):
                if identity is not None:
                    yield do.AnswerRegistration(call, identity, error)

    # --- what the other parts ask for

    def hold_starts(self, hold: so.HoldStarts) -> None:
        """Start nothing for now, or again."""
        self._is_held = hold.held

    def let_off(self, freed: so.LetOff) -> None:
        """A worker has reported and will ask again, or its question was not answered and stands."""
        self.workers.let_off(freed.attempt, freed.call)

    def drain(self, drained: so.DrainWorker) -> None:
        """A worker was told to stop."""
        self.workers.drain(drained.attempt)

    def dismiss(self, _: so.DismissWorkers) -> Iterator[so.Decision]:
        """The job needs no workers any more."""
        yield from self._release(self.workers.idle)
        yield from _answers(self.workers.drop_parked())

    def drop_dataframe(self, dropped: so.DropDataFrame) -> Iterator[so.Decision]:
        """A DataFrame is going to be read anew: its Spark job, if it is under way, is of no use."""
        spark_job = self.spark_jobs.drop(dropped.vertex)
        if spark_job is not None:
            yield do.CancelSparkJobs(self._submitted.job, spark_job)

    def cancel_spark(self, cancel: so.CancelSpark) -> Iterator[so.Decision]:
        """Tasks do not stop, or the job ends: Spark is to end them."""
        if not cancel.only_draining:
            self.spark_jobs.cancel_all()
            yield do.CancelSparkJobs(self._submitted.job)
            return
        for spark_job in self.spark_jobs.open_workers():
            if self.workers.of_spark_job(spark_job) and self.spark_jobs.cancel(spark_job):
                yield do.CancelSparkJobs(self._submitted.job, spark_job)

    def _release(self, workers: Iterable[Worker]) -> Iterator[so.Decision]:
        for worker in workers:
            yield from _answers(self.workers.release(worker))

    # --- deadlines

    def deadlines(self) -> Wanted:
        """The deadlines that it waits for now."""
        timeout, state = self._submitted.slots_timeout, self._phase.state
        wanted: dict[Deadline, float] = {}
        if state is JobState.WAITING_FOR_SLOTS:
            wanted[Deadline(DeadlineKind.SLOTS)] = timeout
        if state is JobState.RUNNING:
            wanted |= {item: timeout for item in self._watched if self._is_awaited(item)}
        if state in RUNS and self.leases > self._counted_leases and self.starved:
            # Counted later: a Spark job that has read its DataFrame may be about to return.
            wanted[Deadline(DeadlineKind.LEASED, self.leases)] = LEASED_SECONDS
        return wanted

    def deadline_passed(self, deadline: Deadline) -> Iterator[so.Decision]:
        """One of them went by; who starves is counted by the master's core."""
        if deadline.kind is DeadlineKind.SLOTS:
            yield so.FailForGood(self._waited_in_vain(), kind=SlotsError, sequel=True)
        elif deadline.kind is DeadlineKind.LEASED:
            self._counted_leases = deadline.number
        elif deadline.kind is DeadlineKind.DEPLOY:
            self._watched.discard(deadline)
            yield from self._miss_tasks(self._stages.regions[deadline.region])

    def _waited_in_vain(self) -> str:
        name, needed, waited = self._topology.graph.name, self._stages.slots_needed, self._submitted.slots_timeout
        if self._awaits_lost:
            return slots_not_returned(name, needed, self._stages.capacity.total, waited)
        return slots_queue_timeout(name, needed, waited)

    def _watch(self, found: Match) -> None:
        """The workers of these regions are all there or on their way: from now on they have their time to come."""
        covered = {Deadline(DeadlineKind.DEPLOY, self._subtasks.round, number) for number in found.covered}
        self._watched = {item for item in self._watched | covered if self._is_awaited(item)}

    def _is_awaited(self, deadline: Deadline) -> bool:
        """Tell whether the tasks of a region are still to come that were on their way then."""
        return deadline.number == self._subtasks.round and deadline.region not in self._subtasks.moving

    def _miss_tasks(self, region: Region) -> Iterator[so.Decision]:
        """The tasks of a region have had their time to come."""
        needed = [subtask for vertex in region.vertices for subtask in self._subtasks.of(vertex)]
        pending = any(self._subtasks.pending(vertex) for vertex in region.vertices)
        if pending and region.number not in self._match().covered:
            return  # its workers were lost and it stands in the line again
        got = min(sum(1 for s in needed if s.attempt is not None) + len(self.workers.idle), len(needed))
        text = slots_missing(got, len(needed), self._submitted.slots_timeout)
        yield so.FailForGood(text, kind=SlotsError, sequel=True)

    # --- what it would run

    @property
    def _slots_still_needed(self) -> int:
        """The fewest slots with which the regions can run that have something to start."""
        regions = self._stages.regions
        left = (region for region in regions if any(self._subtasks.undeployed(number) for number in region.vertices))
        return max((slots_needed(self._topology.graph, region) for region in left), default=0)

    def _match(self) -> Match:
        needs: list[Need] = []
        if self._phase.state in RUNS and not (self._is_held or self._awaits_lost):
            found = (self._need(region, early=early) for region, early in self._stages.startable())
            needs = [need for need in found if need is not None]
        return match(needs, len(self._usable()), self.workers.coming)

    def _usable(self) -> list[Worker]:
        """The idle workers that may get work: not on hosts that keep failing, while the job can do without those."""
        idle, capacity = self.workers.idle, self._stages.capacity
        if not idle or capacity.hosts.are_fine:
            return idle
        here = [worker for worker in self.workers if worker.identity is not None and not worker.is_leased]
        out = {worker.number for worker in here if capacity.hosts.is_out(worker.environment)}
        others_wait = all(self._waits(worker) for worker in here if worker.number not in out)
        if others_wait or self._slots_still_needed > capacity.total - len(out):
            return idle
        return [worker for worker in idle if worker.number not in out]

    def _waits(self, worker: Worker) -> bool:
        """Tell whether it runs a reader of subtasks that have not started: until then it takes no other work."""
        if worker.attempt is None or worker.state is WorkerState.DRAINING:
            return False
        vertex = worker.attempt.vertex
        awaited = (region for region, _ in self._stages.startable() if vertex in self._stages.behind(region))
        return any(self._subtasks.pending(number) for region in awaited for number in region.vertices)

    def _need(self, region: Region, *, early: bool) -> Need | None:
        vertices = [self._topology.graph.vertex(number) for number in region.vertices]
        counts = ((v.id, self._subtasks.pending(v.id)) for v in vertices if not v.is_bound)
        groups = tuple((vertex, count) for vertex, count in counts if count)
        bound = [vertex for vertex in vertices if vertex.is_bound]
        dataframes = tuple((v.id, v.slots) for v in bound if self.spark_jobs.reader_of(v.id) is None)
        if not groups and not dataframes:
            return None
        urgent = self._stages.is_awaited(region) or (region.at_once and len(dataframes) < len(bound))
        return Need(region.number, groups, dataframes, together=region.at_once, urgent=urgent, early=early)


def _answers(calls: Iterable[int]) -> Iterator[so.Decision]:
    """Answer workers that asked for work: there is no more for them."""
    return (do.ReleaseWorker(call) for call in calls)
