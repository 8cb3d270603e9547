# SPDX-License-Identifier: Apache-2.0
"""The slots of one job: what it would like to have, what it does with idle workers, and what it starts.

The master's core asks every job what it wants (`demand`), takes idle workers from those that have too many
(`give_back`), lets them use what they have (`use_workers`), and grants what is free. Lent workers are not the job's
to give or to release: they stay until it is over.
"""

from __future__ import annotations

from penstock.graph.regions import Region
from penstock.job import events
from penstock.job import instructions as do
from penstock.job.demand import Demand, Match, Need, match
from penstock.job.deployments import Deployments
from penstock.job.ending import Ending
from penstock.job.job_context import LENT_SECONDS
from penstock.job.job_scope import JobScope
from penstock.job.parts import LaunchPart
from penstock.job.refusals import no_slot_for_dataframe, slots_missing, slots_queue_timeout, too_few_slots
from penstock.job.restarts import Restarts
from penstock.job.states import JobEvent, JobState
from penstock.job.workers import Worker
from penstock.shuffle.errors import SlotsError


class Staffing:
    """Workers and DataFrames for the regions that may start."""

    def __init__(self, scope: JobScope, deployments: Deployments, restarts: Restarts, ending: Ending) -> None:
        self._scope = scope
        self._deployments = deployments
        self._restarts = restarts
        self._ending = ending
        self._watched: set[str] = set()
        self._lends = 0

    @property
    def slots_held(self) -> int:
        """The slots of its workers and of its DataFrames' tasks; lent ones are not its own."""
        workers = self._scope.workers
        return len(workers) - workers.lent + self._scope.parts.frame_slots

    @property
    def slots_starved(self) -> int:
        """The slots lent to it although it can't go on without other ones, to read a DataFrame; mostly none."""
        frames = [vertex.id for vertex in self._scope.graph.vertices if vertex.is_bound]
        confirmed = all(self._scope.parts.is_confirmed(vertex) for vertex in frames)
        return 0 if confirmed else self._scope.workers.lent

    def wait_for_slots(self) -> None:
        """Stand in the queue, or refuse a job that can never fit."""
        scope = self._scope
        needed, total = scope.stages.slots_needed, scope.submitted.slots_total
        if needed > total:
            self._ending.refuse(SlotsError(too_few_slots(scope.graph.name, needed, total)))
            return
        scope.lifecycle.fire(JobEvent.SUBMITTED)
        scope.emit(do.StartDeadline(scope.job, do.SLOTS, scope.submitted.slots_timeout))

    def demand(self) -> Demand | None:
        """The slots it would like to have now beside those it holds."""
        return self._match().demand

    def give_back(self, slots: int) -> int:
        """Release up to so many idle workers that others need more; how many."""
        own = [worker for worker in self._scope.workers.idle if not worker.is_lent]
        count = min(slots, max(0, len(own) - self._match().firm))
        self._scope.release_workers(own[len(own) - count :])
        return count

    def use_workers(self) -> None:
        """Give idle workers their next subtasks, and let go those without any."""
        scope = self._scope
        if scope.lifecycle.state not in (JobState.WAITING_FOR_SLOTS, JobState.RUNNING):
            if scope.lifecycle.state is JobState.CONFIRMING:
                scope.release_workers(scope.workers.idle)
            return
        found = self._match()
        if found.starts:
            self._admit()
        for number in found.covered:
            self._watch(number)
        for vertex, count in found.starts:
            for place in scope.tasks.first_pending(vertex, count):
                self._deployments.assign(scope.workers.idle[0], place)
        surplus: list[Worker] = scope.workers.idle[found.kept :]
        scope.release_workers([worker for worker in surplus if not worker.is_lent])

    def grant(self, demand: Demand, slots: int) -> None:
        """Start what was asked for, on at most so many slots; DataFrames first, which stand at the start of plans."""
        scope = self._scope
        self._admit()
        launched: list[LaunchPart] = []
        left = slots
        if not demand.together:
            left = self._grant_frames(demand, left, launched)
        count = min(demand.workers, left)
        if count:
            part = scope.parts.workers(count)
            scope.workers.launch(part.part, part.workers, scope.recovery.round)
            launched.insert(0, part)
        left -= count
        if demand.together:
            left = self._grant_frames(demand, left, launched)
        scope.record("slots_granted", f"{slots - left} of {demand.slots}")
        scope.emit(do.LaunchSparkJobs(scope.job, scope.graph, tuple(launched)))

    def _grant_frames(self, demand: Demand, left: int, launched: list[LaunchPart]) -> int:
        for vertex, tasks in demand.frames:
            if left:
                launched.append(self._scope.parts.frame(self._scope.graph.vertex(vertex), min(tasks, left)))
                left -= min(tasks, left)
        return left

    # --- lent workers

    def register_lent(self, event: events.TaskRegistered) -> None:
        """A read task lends its slot, or asks again."""
        scope = self._scope
        if scope.workers.find(event.attempt.subtask) is not None:
            scope.answer_calls(scope.workers.register(event))
            return
        scope.workers.lend(event)
        if self.slots_starved:
            # Counted later: a Spark job that has read its DataFrame may be about to return.
            self._lends += 1
            scope.emit(do.StartDeadline(scope.job, f"{do.LENT} {self._lends}", LENT_SECONDS))

    def is_last_lend(self, what: str) -> bool:
        """Whether nobody has lent this job a slot since that deadline was asked for."""
        return what == f"{do.LENT} {self._lends}"

    def refuse_lent(self) -> None:
        """All slots are lent, and a DataFrame is still to be read: those who lend them must give them up."""
        scope = self._scope
        error = SlotsError(no_slot_for_dataframe(scope.graph.name, scope.submitted.slots_total))
        for worker in [worker for worker in scope.workers.idle if worker.is_lent]:
            identity = worker.identity
            for call in scope.workers.release(worker):
                if identity is not None:
                    scope.emit(do.AnswerRegistration(call, identity, error))

    # --- deadlines

    def deadline_passed(self, what: str) -> None:
        """One of the deadlines of waiting for slots went by."""
        scope = self._scope
        if what == do.SLOTS and scope.lifecycle.state is JobState.WAITING_FOR_SLOTS:
            waited, needed = scope.submitted.slots_timeout, scope.stages.slots_needed
            self._ending.refuse(SlotsError(slots_queue_timeout(scope.graph.name, needed, waited)))
        elif what in self._watched and scope.lifecycle.state is JobState.RUNNING:
            self._watched.discard(what)
            for region in scope.stages.regions:
                if what == do.deploy_deadline(region.number, scope.recovery.round):
                    self._look_at(region)

    def _watch(self, number: int) -> None:
        """The workers of a region that runs together are on their way: some time later all must be there."""
        what = do.deploy_deadline(number, self._scope.recovery.round)
        if what not in self._watched:
            self._watched.add(what)
            self._scope.emit(do.StartDeadline(self._scope.job, what, self._scope.submitted.slots_timeout))

    def _look_at(self, region: Region) -> None:
        scope = self._scope
        needed = [subtask for vertex in region.vertices for subtask in scope.tasks.of(vertex)]
        pending = any(scope.tasks.pending(vertex) for vertex in region.vertices)
        if region.number in scope.moving or (pending and region.number not in self._match().covered):
            return  # it has started, or its workers were lost and it stands in the line again
        got = min(sum(1 for s in needed if s.attempt is not None) + len(scope.workers.idle), len(needed))
        error = slots_missing(got, len(needed), scope.submitted.slots_timeout)
        self._ending.fail(error, kind=SlotsError)

    # --- what it would run

    def _match(self) -> Match:
        scope = self._scope
        waits = scope.lifecycle.state in (JobState.WAITING_FOR_SLOTS, JobState.RUNNING)
        needs: list[Need] = []
        if waits and not self._restarts.is_paused:
            ready = scope.stages.ready(scope.tasks, scope.parts)
            needs = [need for region, early in ready if (need := self._need(region, early=early)) is not None]
        return match(needs, len(scope.workers.idle), scope.workers.coming)

    def _need(self, region: Region, *, early: bool) -> Need | None:
        scope = self._scope
        vertices = [scope.graph.vertex(number) for number in region.vertices]
        counts = ((v.id, scope.tasks.pending(v.id)) for v in vertices if not v.is_bound)
        groups = tuple((vertex, count) for vertex, count in counts if count)
        frames = tuple((v.id, v.slots) for v in vertices if v.is_bound and not scope.parts.is_launched(v.id))
        if not groups and not frames:
            return None
        urgent = scope.stages.is_awaited(region, scope.tasks, scope.parts)
        return Need(region.number, groups, frames, together=region.at_once, urgent=urgent, early=early)

    def _admit(self) -> None:
        if self._scope.lifecycle.state is JobState.WAITING_FOR_SLOTS:
            self._scope.lifecycle.fire(JobEvent.ADMITTED)
            self._scope.record("job_admitted", self._scope.job)
