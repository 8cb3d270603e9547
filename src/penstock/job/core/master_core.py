# SPDX-License-Identifier: Apache-2.0
"""The JobMaster as a sans-I/O core: all jobs of one application, their slots and their partitions.

`handle(event, now)` gives the instructions the event leads to. An event that belongs to no job any more (a late task,
a late partition) is answered or released at once. A job whose core raises is over; the others go on.

Jobs share the application's slots: `fairness` says who gets the next ones, and from whom they are taken.

Read tasks that wait for what a job makes again may lease it their slots. These can't be given to another job, so they
are not counted; but where jobs have leased slots only and must still read a DataFrame, which takes another one, they
are refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from penstock.errors import PenstockError, StaleError
from penstock.job.core import decisions as so
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.deadlines import DeadlineKind
from penstock.job.core.execution.capacity import Hosts
from penstock.job.core.execution.tracker import PartitionTracker
from penstock.job.core.invariants import Invariants, open_calls
from penstock.job.core.job_core import JobCore
from penstock.job.core.result import JobProgress, TraceEntry
from penstock.job.core.slots.fairness import Claim, even_share, grant_of, in_line, to_be_freed
from penstock.shuffle import AttemptId

_LOST_SHOWN = 4
_LATELY_SECONDS = 120.0
"""An environment that went so long before slots did has nothing to do with that."""


class MasterCore:
    """Events in, instructions out."""

    is_checked = False
    """True if the invariants are asserted after every event, and faults are raised: in tests."""

    def __init__(self) -> None:
        self.tracker = PartitionTracker()
        self._jobs: dict[str, JobCore] = {}
        self._served: dict[str, int] = {}
        self._took_part: dict[str, tuple[str, ...]] = {}
        """Of jobs whose result is there: the environments that are to be told when it is released."""
        self._hosts = Hosts(lambda: self._now)
        self._lost_lately: deque[tuple[float, str]] = deque(maxlen=_LOST_SHOWN)
        """The last environments that went while the slots stayed as they were."""
        self._turn = 0
        self._out: list[do.Instruction] = []
        self._now = 0.0
        self._invariants = Invariants()

    def handle(self, event: events.Event, now: float) -> list[do.Instruction]:
        """The instructions that this event leads to, in order.

        `now` is a clock's seconds and must not go backwards.
        """
        self._now = now
        self._apply(event)
        self._forget_ended()
        self._schedule()
        for job in list(self._jobs.values()):
            self._let(job, job.arm)
        out, self._out = self._out, []
        if self.is_checked:
            self._invariants.check(event, out, self._jobs.values(), self.tracker)
        return out

    @property
    def jobs(self) -> list[str]:
        """The jobs that are not over, in order of submission."""
        return list(self._jobs)

    @property
    def slots_in_use(self) -> int:
        """The slots of all jobs."""
        return sum(job.slots.held for job in self._jobs.values())

    def progress(
        self, job: str, live: Callable[[AttemptId], dict[str, float]], now: float | None = None
    ) -> JobProgress | None:
        """A snapshot of a job that is not over; as of the last event where `now` is None."""
        if now is not None:
            self._now = now
        core = self._jobs.get(job)
        return core.progress(live) if core is not None else None

    def trace(self, job: str) -> tuple[TraceEntry, ...]:
        """The entries so far of a job that is not over."""
        core = self._jobs.get(job)
        return core.accounts.trace.entries() if core is not None else ()

    # --- events

    def _apply(self, event: events.Event) -> None:
        match event:
            case events.JobSubmitted():
                self._submit(event)
            case events.EnvironmentLost():
                self._lose_environment(event)
            case events.PartitionsLost():
                self._lose_partitions(event)
            case events.SlotsChanged():
                self._change_slots(event)
            case events.ResultReleased():
                self._release_result(event)
            case _:
                job = self._jobs.get(events.job_of(event))
                if job is None:
                    self._answer_stray(event)
                    return
                starves = (
                    isinstance(event, events.DeadlinePassed)
                    and event.deadline.kind is DeadlineKind.LEASED
                    and event.deadline in job.armed
                )
                self._let(job, job.handle, event)
                if starves:
                    self._count_leased(job.slots_total)

    def _let(self, job: JobCore, work: Callable[..., Iterable[so.Decision] | None], *what: object) -> None:
        """Let a job do something, and all that follows from it; one whose core raises is over."""
        try:
            job.run(work(*what) or ())
        except Exception as error:
            if self.is_checked:
                raise
            self._out += job.out
            self._break_off(job, error)
        else:
            self._out += job.out
            job.out.clear()

    def _break_off(self, job: JobCore, error: Exception) -> None:
        """Nothing that this job believes can be relied on: answer all who wait, give back what is known of it."""
        del self._jobs[job.job]
        text = f"job {job.topology.graph.name} failed: the JobMaster has a fault: {type(error).__name__}: {error}"
        failure = PenstockError(text)
        failure.__cause__ = error
        questions = job.attempts.questions.calls
        for call in open_calls(job):
            answer = do.AnswerProducers if call in questions else do.AnswerRegistration
            self._out.append(answer(call, AttemptId(job.job, 0, 0, 0), failure))
        for environment, descriptors in self.tracker.release(job.job).items():
            self._out.append(do.ReleaseDescriptors(environment, descriptors))
        self._out += [do.ReleaseJobEverywhere(job.job, job.environments), do.CancelSparkJobs(job.job)]
        self._out.append(do.FailJob(job.job, job.result(is_sound=False), failure))

    def _submit(self, event: events.JobSubmitted) -> None:
        self._turn += 1
        self._served[event.job] = self._turn
        self._jobs[event.job] = job = JobCore(event, self.tracker, self._hosts, lambda: self._now)
        self._let(job, job.settle)

    def _answer_stray(self, event: events.Event) -> None:
        """The job of this event is over, or was never there."""
        match event:
            case events.TaskRegistered(call, task):
                self._out.append(do.AnswerRegistration(call, task, _unknown(task)))
            case events.ProducersAwaited(call, attempt):
                self._out.append(do.AnswerProducers(call, attempt, _unknown(attempt)))
            case events.CheckpointAsked(call, job):
                self._out.append(do.AnswerCheckpoint(job, call, None, "the query is over"))
            case events.PartitionRegistered(_, _, descriptor):
                self._out.append(do.ReleaseDescriptors(descriptor.environment, (descriptor,)))
            case _:
                pass

    def _lose_partitions(self, event: events.PartitionsLost) -> None:
        for name, partitions in self.tracker.lose(event.partitions).items():
            job = self._jobs.get(name)
            if job is None:
                self._out.append(do.ResultLost(name, partitions, event.cause))
            else:
                lost = events.PartitionsLost(partitions, event.cause)
                self._let(job, job.handle, lost)

    def _lose_environment(self, event: events.EnvironmentLost) -> None:
        host = self._hosts.lost(event.environment)
        if host is not None:
            self._out.append(do.LeaveOut(host, event.cause))
        self._lost_lately.append((self._now, f"environment {event.environment} is lost ({event.cause})"))
        lost = self.tracker.lose_environment(event.environment)
        for name, job in list(self._jobs.items()):
            told = events.EnvironmentLost(event.environment, event.cause, lost.pop(name, ()))
            self._let(job, job.handle, told)
        for name, partitions in lost.items():
            self._out.append(do.ResultLost(name, partitions, event.cause))

    def _change_slots(self, event: events.SlotsChanged) -> None:
        """All jobs hear of it, those that are planned from now on know. It is no news where all know it already."""
        lost = "; ".join(text for when, text in self._lost_lately if self._now - when < _LATELY_SECONDS)
        told = events.SlotsChanged(event.total, event.lost or lost)
        unaware = [job for job in self._jobs.values() if event.total != job.slots_total]
        for job in unaware:
            self._let(job, job.handle, told)
        if unaware:
            self._lost_lately.clear()
            self._share_what_is_left()

    def _share_what_is_left(self) -> None:
        """More slots are held than there are: who waits for them in Spark's queue may wait for ever.

        So the workers that came last in it are given up, and of the regions that run together and wait for some of
        their tasks in slots that another one needs all but the first begin anew. They stand in the line again.
        """
        jobs = sorted(self._jobs.values(), key=lambda job: self._served.get(job.job, 0))
        if self.slots_in_use <= self._slots_total:
            return
        for job in reversed(jobs):
            self._let(job, job.slots.give_up, self.slots_in_use - self._slots_total)
        begun = [(job, places) for job in jobs for places in job.slots.begun_in_part()]
        for job, places in begun[1:]:
            self._let(job, job.recovery.step_back, places)

    def _count_leased(self, total: int) -> None:
        """Jobs may have nothing but leased slots where they need one of their own: who leases them must give up."""
        starved = [job for job in self._jobs.values() if job.slots.starved]
        if sum(job.slots.starved for job in starved) >= total:
            for job in starved:
                self._let(job, job.slots.refuse_leased)

    def _release_result(self, event: events.ResultReleased) -> None:
        if event.job in self._jobs:
            return
        environments = self._took_part.pop(event.job, ())
        for environment, descriptors in self.tracker.release(event.job).items():
            self._out.append(do.ReleaseDescriptors(environment, descriptors, event.expired))
        self._out.append(do.ReleaseJobEverywhere(event.job, environments))

    def _forget_ended(self) -> None:
        for name in [name for name, job in self._jobs.items() if job.is_over]:
            over = self._jobs.pop(name)
            if self.tracker.partitions_of(name):
                self._took_part[name] = over.environments
            self._served.pop(name, None)

    # --- slots

    def _schedule(self) -> None:
        if len(self._jobs) > 1:
            self._make_room()
        for job in list(self._jobs.values()):
            self._let(job, job.slots.use_workers)
        for job in list(self._jobs.values()):
            excess = self.slots_in_use - self._slots_total
            if excess > 0:
                self._let(job, job.slots.give_back, excess)  # Spark's queue needs what it keeps for later
        while self._grant_next():
            pass

    def _make_room(self) -> None:
        """Take workers that ask for work from jobs with too many of them, for those who are first in the line."""
        claims = self._claims()
        share = even_share(claims, self._slots_total)
        free = self._slots_total - self.slots_in_use
        lacking, others = to_be_freed(in_line(claims, share), claims, free, share)
        for name, surplus in others:
            job = self._jobs[name]
            before = job.slots.held
            if lacking > 0:
                self._let(job, job.slots.give_back, min(surplus, lacking))
                lacking -= before - job.slots.held

    def _grant_next(self) -> bool:
        """Give the first in the line what it wants; whether there may be another one."""
        claims = self._claims()
        share = even_share(claims, self._slots_total)
        line = in_line(claims, share)
        granted = grant_of(line, self._slots_total - self.slots_in_use, share) if line else 0
        if not granted or line[0].demand is None:
            return False
        self._turn += 1
        self._served[line[0].job] = self._turn
        job = self._jobs[line[0].job]
        self._let(job, job.slots.grant, line[0].demand, granted)
        return True

    def _claims(self) -> list[Claim]:
        return [
            Claim(name, job.slots.held, job.slots.demand(), self._served.get(name, 0))
            for name, job in self._jobs.items()
        ]

    @property
    def _slots_total(self) -> int:
        """The slots of the application, as the newest job was told."""
        return next((job.slots_total for job in reversed(self._jobs.values())), 0)


def _unknown(task: object) -> PenstockError:
    return StaleError(f"{task}: its job is over; this task may end")
