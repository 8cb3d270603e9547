# SPDX-License-Identifier: Apache-2.0
"""One job, from its submission to its end: events in, instructions out.

Five parts decide. `attempts` owns the subtasks: who runs what, what each was told, how each ended. `slots` owns the
workers and Spark jobs, and what is started on them. `recovery` says whether and when what failed runs again, `ending`
how the job ends, and `checkpoints` has those of a streaming query. A part changes its own state, reads that of others
through narrow views, and returns what follows as values (`decisions`), which the loop here takes to the part that
owns what they change (`routing`), until nothing follows any more. A consequence that no part owns leaves as an
instruction. Then the job settles, once.

Spark tasks are workers that ask for one subtask after the other; only those that read a DataFrame are bound to
theirs. A consumer is deployed with placeholders and told of each producer at its first buffer. A subtask that
consumes a DataFrame's rows ends only after that DataFrame's Spark job has returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from penstock.graph.failover import Place
from penstock.job.core import decisions as so
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.attempts.attempts import Attempts
from penstock.job.core.bottleneck import Bottleneck, bounding
from penstock.job.core.checkpoints.checkpoints import Checkpoints
from penstock.job.core.deadlines import Deadline, Wanted
from penstock.job.core.ending.accounts import Accounts
from penstock.job.core.ending.ending import Ending
from penstock.job.core.execution.capacity import Capacity, Hosts
from penstock.job.core.execution.stages import Stages
from penstock.job.core.execution.subtasks import Live, Subtasks
from penstock.job.core.execution.topology import JobTopology
from penstock.job.core.execution.tracker import PartitionTracker
from penstock.job.core.recovery.lost_rows import LostRows, RowAccount
from penstock.job.core.recovery.recovery import Recovery
from penstock.job.core.recovery.restart_sets import RestartSets
from penstock.job.core.result import JobProgress, JobResult, summed
from penstock.job.core.routing import JobParts, follow, hear, pass_deadline
from penstock.job.core.slots.arrivals import TaskArrivals
from penstock.job.core.slots.slots import RUNS, Slots
from penstock.job.core.states import JobLifecycle
from penstock.shuffle.metrics import KEY_GROUP, ROWS_GROUP

Cause = events.ForJob | so.Decision


class JobCore:
    """One job. Instructions collect in `out`, until the master's core takes them."""

    def __init__(
        self,
        submitted: events.JobSubmitted,
        tracker: PartitionTracker,
        hosts: Hosts,
        now: Callable[[], float],
    ) -> None:
        self.job = submitted.job
        self.out: list[do.Instruction] = []
        self.armed: frozenset[Deadline] = frozenset()
        self.topology = JobTopology(submitted.job, submitted.graph)
        self.lifecycle = JobLifecycle(submitted.job)
        self.subtasks = Subtasks(self.topology)
        self.stages = Stages(self.topology, self.subtasks, Capacity(submitted.slots_total, hosts))
        self.accounts = Accounts(submitted.job, tracker, now)
        self.attempts = Attempts(submitted, self.topology, self.subtasks, self.stages, self.lifecycle)
        self.slots = Slots(submitted, self.topology, self.stages, self.subtasks, self.lifecycle)
        self.checkpoints = Checkpoints(submitted, self.topology, self.subtasks, self.lifecycle, now)
        sets = RestartSets(self.topology, self.stages, self.subtasks, tracker, self.checkpoints)
        self.rows = RowAccount()
        self.recovery = Recovery(submitted.restart, sets, self.lifecycle, now)
        self.ending = Ending(self.lifecycle, self.stages, self.subtasks, self.slots.workers, self.slots.spark_jobs)
        self._parts = JobParts(
            self.attempts,
            self.slots,
            TaskArrivals(self.slots, self.topology, self.lifecycle),
            self.recovery,
            self.ending,
            self.checkpoints,
            self.accounts,
        )
        self.run([so.Record("job_submitted", submitted.job), *self.slots.wait()])

    # --- the loop

    def handle(self, event: events.ForJob) -> None:
        """Something has happened to this job."""
        self.run([event])
        self.settle()

    def run(self, causes: Iterable[Cause]) -> None:
        """Do what follows, and all that follows from that, each cause with its consequences before the next one."""
        waiting = deque(causes)
        while waiting:
            waiting.extendleft(reversed(list(self._apply(waiting.popleft()))))

    def settle(self) -> None:
        """All that followed was done: open regions that may start now, and end where nothing is left to do."""
        while self.lifecycle.state in RUNS:
            closed = [region for region, _ in self.stages.startable() if not self.stages.is_open(region)]
            if not closed:
                break
            for region in closed:
                self.attempts.open_region(region)
        self.run(self.attempts.unwanted.tell())
        self.run(self.slots.refuse_lost())
        self.run(self.ending.settle())

    def wanted(self) -> Wanted:
        """The deadlines that a part waits for now."""
        parts = (self.slots, self.recovery, self.ending, self.checkpoints)
        return {deadline: seconds for part in parts for deadline, seconds in part.deadlines().items()}

    def arm(self) -> list[so.Decision]:
        """Arm the deadlines that are wanted now and were not, and withdraw those that are not wanted any more."""
        wanted = self.wanted()
        gone = [do.WithdrawDeadline(self.job, item) for item in sorted(self.armed - wanted.keys())]
        fresh = [do.StartDeadline(self.job, item, wanted[item]) for item in wanted if item not in self.armed]
        self.armed = frozenset(wanted)
        return [*gone, *fresh]

    def _apply(self, cause: Cause) -> Iterable[so.Decision]:
        """The decisions that follow from a cause; one that no part owns leaves as an instruction."""
        match cause:
            case events.DeadlinePassed():
                return self._deadline_passed(cause)
            case so.Conclude():
                return self._conclude(cause)
            case so.NoteCounts():
                return self._count_rows(cause)
            case so.SendDeployment(attempt=attempt) if self.checkpoints.begins_alone:
                self.rows.begins(attempt, self.checkpoints.newest)
            case so.Interrupt(alone=alone) if self.checkpoints.begins_alone:
                self._leave_rows(alone)
        if isinstance(cause, events.ForParts):
            return hear(self._parts, cause)
        if isinstance(cause, so.ForParts):
            return follow(self._parts, cause)
        self.out.append(cause)
        return ()

    def _deadline_passed(self, event: events.DeadlinePassed) -> Iterable[so.Decision]:
        """The part that wanted a deadline hears of it; one that is not armed is ignored."""
        if event.deadline not in self.armed:
            return ()
        self.armed -= {event.deadline}
        return pass_deadline(self._parts, event.deadline)

    def _count_rows(self, counted: so.NoteCounts) -> Iterator[so.Decision]:
        """An attempt of a query's task is over: note its counts, if it is the one that counts."""
        attempt = counted.attempt
        if self.subtasks.current(attempt) is not None:
            reads = bool(self.topology.graph.inputs_of(attempt.vertex))
            streaming = self.topology.graph.streaming
            again = reads and streaming is not None and streaming.logs_for_readers
            self.rows.ended(attempt, counted.counts, self.checkpoints.newest, reads=reads, reads_again=again)
            total = f"{ROWS_GROUP}all."
            handled, given = (int(counted.counts.get(total + name, 0)) for name in ("handled", "given"))
            yield so.Record("rows_counted", f"{attempt}: {handled} handled, {given} given")

    def _leave_rows(self, alone: Iterable[Place]) -> None:
        """These tasks begin anew alone, or all of them: then rows that were under way are read again."""
        left = [subtask for place in sorted(alone) if (subtask := self.subtasks.find(*place)) is not None]
        for subtask in left:
            if subtask.attempt is not None and subtask.deployed:
                self.rows.left(subtask.attempt)
        if not left:
            self.rows.begin_anew()

    def _conclude(self, end: so.Conclude) -> Iterator[so.Decision]:
        """The job is over: give back what it holds, and say how it went."""
        partitions = () if end.error is not None else tuple(self.attempts.descriptors.result_partitions())
        keep = tuple(item.partition for item in partitions if not item.empty)
        yield from self.accounts.release_all(keep, self.environments)
        if (found := self._bottleneck()) is not None:
            self.accounts.record(so.Record("bottleneck", found.without_keys.text))
        self.accounts.record(so.Record(end.entry, self.job))
        if end.error is not None:
            yield do.FailJob(self.job, self.result(), end.error)
        else:
            yield do.CompleteJob(self.job, self.result(), partitions, self.topology.graph)

    # --- what the master's core asks

    @property
    def slots_total(self) -> int:
        """The task slots of the application, as it knows them."""
        return self.stages.capacity.total

    @property
    def is_over(self) -> bool:
        """True if nothing can happen any more."""
        return self.lifecycle.is_terminal

    @property
    def environments(self) -> tuple[str, ...]:
        """The environments that its subtasks ran beside."""
        return tuple(sorted({subtask.environment for subtask in self.subtasks if subtask.environment}))

    def result(self, *, is_sound: bool = True) -> JobResult:
        """The job in figures, as it is now; where it has a fault, without the lives of its subtasks."""
        graph = self.topology.graph
        told = {vertex.id: tuple(map(_without_keys, self.subtasks.each(vertex.id))) for vertex in graph.vertices}
        return JobResult(
            self.job,
            graph.name,
            self.lifecycle.state,
            self.accounts.seconds,
            {vertex: summed(figures) for vertex, figures in told.items()},
            self.accounts.trace.entries(),
            {vertex.id: vertex.name for vertex in graph.vertices},
            self._bottleneck(),
            told,
            self.slots_total,
            {vertex.id: self.subtasks.statuses(vertex.id) for vertex in graph.vertices} if is_sound else {},
            self.checkpoints.counts,
            self._lost_rows(lambda _: {}),
        )

    def _bottleneck(self) -> Bottleneck | None:
        """The stage whose work bounds the time; of a query, whose stages run as long as it does, none."""
        if self.topology.graph.streaming is not None:
            return None
        return bounding(self.subtasks.loads(), self.slots_total)

    def progress(self, live: Live) -> JobProgress:
        """A snapshot; `live` gives what heartbeats said of an attempt."""
        graph = self.topology.graph
        vertices = tuple(self.subtasks.progress(vertex.id, live) for vertex in graph.vertices)
        state, seconds = self.lifecycle.state, self.accounts.seconds
        counts, waits = self.checkpoints.counts, self.slots.waits
        lost = self._lost_rows(live)
        return JobProgress(self.job, graph.name, state, seconds, vertices, counts, waits, lost)

    def _lost_rows(self, live: Live) -> LostRows | None:
        """The rows that a query has lost whose tasks begin anew alone; of all others None."""
        streaming = self.topology.graph.streaming
        if streaming is None or not streaming.restarts_alone:
            return None
        attempts = [subtask.attempt for subtask in self.subtasks if subtask.is_live]
        return self.rows.lost({attempt: live(attempt) for attempt in attempts if attempt is not None})


def _without_keys(figures: Mapping[str, float]) -> Mapping[str, float]:
    return {name: value for name, value in figures.items() if not name.startswith((KEY_GROUP, ROWS_GROUP))}
