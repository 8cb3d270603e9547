# SPDX-License-Identifier: Apache-2.0
"""One job, from its submission to its end: events in, instructions out.

Five parts decide. `attempts` owns the subtasks: who runs what, what each was told, how each ended. `slots` owns the
workers and Spark jobs, and what is started on them. `recovery` says whether and when what failed runs again, `ending`
how the job ends, and `checkpoints` has those of a streaming query. A part changes its own state, reads that of others
through narrow views, and returns what follows as values (`decisions`), which the loop here takes to the part that
owns what they change, until nothing follows any more. What no part owns leaves as an instruction. Then the job
settles, once.

Spark tasks are workers that ask for one subtask after the other; only those that read a DataFrame are bound to
theirs. A consumer is deployed with placeholders and told of each producer at its first buffer. Whoever consumes a
DataFrame's rows ends only after that DataFrame's Spark job has returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.job.core import decisions as so
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.attempts.attempts import Attempts
from penstock.job.core.checkpoints.checkpoints import Checkpoints
from penstock.job.core.deadlines import Deadline, DeadlineKind, Wanted
from penstock.job.core.ending.accounts import Accounts
from penstock.job.core.ending.ending import Ending
from penstock.job.core.execution.capacity import Capacity, Hosts
from penstock.job.core.execution.stages import Stages
from penstock.job.core.execution.subtasks import Live, Subtasks
from penstock.job.core.execution.topology import JobTopology
from penstock.job.core.execution.tracker import PartitionTracker
from penstock.job.core.recovery.recovery import Recovery
from penstock.job.core.recovery.restart_sets import RestartSets
from penstock.job.core.result import JobProgress, JobResult
from penstock.job.core.slots.arrivals import Arrivals
from penstock.job.core.slots.slots import RUNS, Slots
from penstock.job.core.states import JobLifecycle
from penstock.link import master as said

Apply = Callable[[Any], Iterable[so.Decision] | None]
Cause = events.Event | so.Decision


class JobCore:
    """One job. What is decided collects in `out`, until the master's core takes it."""

    def __init__(
        self,
        submitted: events.JobSubmitted,
        result_service: str,
        tracker: PartitionTracker,
        hosts: Hosts,
        now: Callable[[], float],
    ) -> None:
        self.job = submitted.job
        self.out: list[do.Instruction] = []
        self.armed: frozenset[Deadline] = frozenset()
        self.topology = JobTopology(submitted.job, submitted.graph, result_service)
        self.lifecycle = JobLifecycle(submitted.job)
        self.subtasks = Subtasks(self.topology)
        self.stages = Stages(self.topology, self.subtasks, Capacity(submitted.slots_total, hosts))
        self.accounts = Accounts(submitted.job, tracker, now)
        self.attempts = Attempts(submitted, self.topology, self.subtasks, self.stages, self.lifecycle)
        self.slots = Slots(submitted, self.topology, self.stages, self.subtasks, self.lifecycle)
        sets = RestartSets(self.topology, self.stages, self.subtasks, tracker)
        self.recovery = Recovery(submitted.restart, sets, self.lifecycle, now)
        self.ending = Ending(self.lifecycle, self.stages, self.subtasks, self.slots.workers, self.slots.spark_jobs)
        self.checkpoints = Checkpoints(submitted, self.topology, self.subtasks, self.lifecycle, now)
        self._arrivals = Arrivals(self.slots, self.topology, self.lifecycle)
        self._owners = {**self._event_routes(), **self._decision_routes()}
        self.run([so.Record("job_submitted", submitted.job), *self.slots.wait()])

    # --- the loop

    def handle(self, event: events.Event) -> None:
        """Something has happened to this job."""
        self.run([event])
        self.settle()

    def run(self, causes: Iterable[Cause]) -> None:
        """Do what follows, and all that follows from that, each cause with its consequences before the next one."""
        waiting = deque(causes)
        while waiting:
            cause = waiting.popleft()
            apply = self._owners.get(type(cause))
            if apply is None:
                self.out.append(cause)  # type: ignore[arg-type]  # what nobody here owns is an instruction
            else:
                waiting.extendleft(reversed(list(apply(cause) or ())))

    def settle(self) -> None:
        """All that followed was done: open regions that may start now, and end where nothing is left to do."""
        while self.lifecycle.state in RUNS:
            closed = [region for region, _ in self.stages.startable() if not self.stages.is_open(region)]
            if not closed:
                break
            for region in closed:
                self.attempts.open_region(region)
        self.run(self.slots.refuse_lost())
        self.run(self.ending.settle())

    def wanted(self) -> Wanted:
        """The deadlines that a part waits for now."""
        parts = (self.slots, self.recovery, self.ending, self.checkpoints)
        return {deadline: seconds for part in parts for deadline, seconds in part.deadlines().items()}

    def arm(self) -> list[so.Decision]:
        """Arm the deadlines that are wanted now and were not, and withdraw those that nobody wants any more."""
        wanted = self.wanted()
        gone = [do.WithdrawDeadline(self.job, item) for item in sorted(self.armed - wanted.keys())]
        fresh = [do.StartDeadline(self.job, item, wanted[item]) for item in wanted if item not in self.armed]
        self.armed = frozenset(wanted)
        return [*gone, *fresh]

    def _event_routes(self) -> dict[type, Apply]:
        """Where each event goes in."""
        attempts, arrivals = self.attempts, self._arrivals
        return {
            events.TaskRegistered: arrivals.registered,
            events.TaskLost: arrivals.lost,
            events.EnvironmentLost: arrivals.environment_lost,
            events.SparkJobReturned: arrivals.returned,
            events.SlotsChanged: self._change_slots,
            said.TaskFinished: attempts.finished,
            events.ProducersAwaited: attempts.ask,
            events.PartitionsLost: attempts.lose_partitions,
            events.PartitionRegistered: attempts.deployments.registered,
            events.PartitionRefused: attempts.deployments.refused,
            said.PartitionConsumable: attempts.deployments.consumable,
            events.CancelRequested: self.ending.cancel,
            events.InstructionFailed: self.ending.break_off,
            events.DeadlinePassed: self._deadline_passed,
            **self._checkpoint_routes(),
        }

    def _checkpoint_routes(self) -> dict[type, Apply]:
        """Where the events of a query's checkpoints go in."""
        checkpoints = self.checkpoints
        return {
            said.AcknowledgeCheckpoint: checkpoints.acknowledged,
            said.DeclineCheckpoint: checkpoints.declined,
            said.DataEnded: checkpoints.data_ended,
            events.CheckpointAsked: checkpoints.asked,
            events.CheckpointStored: checkpoints.stored,
            events.CheckpointStoreFailed: checkpoints.store_failed,
            events.OwnerSeen: checkpoints.owner_seen,
            events.StopAsked: self._stop,
        }

    def _change_slots(self, event: events.SlotsChanged) -> Iterator[so.Decision]:
        """There are more slots, or fewer."""
        self.slots.change(event)
        yield so.MakeRoom()

    def _stop(self, event: events.StopAsked) -> Iterator[so.Decision]:
        """A query is to end well."""
        yield from self.checkpoints.stop(event)
        yield from self.recovery.stop(event)

    def _decision_routes(self) -> dict[type, Apply]:
        """Which part owns what a decision changes."""
        attempts, slots, recovery = self.attempts, self.slots, self.recovery
        ending, accounts, checkpoints = self.ending, self.accounts, self.checkpoints
        return {
            so.Start: attempts.deployments.start,
            so.Orphan: attempts.orphan,
            so.OrphanMany: attempts.orphan_many,
            so.OrphanHost: attempts.orphan_host,
            so.ConfirmFrame: attempts.confirm_frame,
            so.BeginRound: attempts.begin_round,
            so.Reset: attempts.reset,
            so.StopAll: attempts.stop_all,
            so.Abandon: attempts.abandon,
            so.DeployRegion: attempts.deployments.deploy_region,
            so.Forgive: attempts.forgive,
            so.AllThere: checkpoints.all_there,
            so.RegionRuns: checkpoints.begin,
            so.Brief: checkpoints.brief,
            so.Interrupt: checkpoints.interrupt,
            so.Unrestorable: checkpoints.unrestorable,
            so.TaskEnded: checkpoints.task_finished,
            so.LetOff: slots.let_off,
            so.DrainWorker: slots.drain,
            so.DropFrame: slots.drop_frame,
            so.DismissWorkers: slots.dismiss,
            so.HoldStarts: slots.hold_starts,
            so.CancelSpark: slots.cancel_spark,
            so.Fail: recovery.fail,
            so.AwaitReason: recovery.await_reason,
            so.CompareReaders: recovery.compare,
            so.Withdraw: recovery.withdraw,
            so.MakeRoom: recovery.make_room,
            so.Advance: ending.advance,
            so.RememberCause: ending.remember,
            so.FailForGood: ending.fail,
            so.Record: accounts.record,
            so.Track: accounts.track,
            so.Release: accounts.release,
            so.ReleaseRead: accounts.release_read,
            so.Unreadable: accounts.unreadable,
            so.Conclude: self._conclude,
        }

    def _deadline_passed(self, event: events.DeadlinePassed) -> Iterable[so.Decision]:
        """The part that wanted a deadline hears of it; one that nobody waits for is of no interest."""
        if event.deadline not in self.armed:
            return ()
        self.armed -= {event.deadline}
        match event.deadline.kind:
            case DeadlineKind.SLOTS | DeadlineKind.DEPLOY | DeadlineKind.LENT:
                return self.slots.deadline_passed(event.deadline)
            case DeadlineKind.RESTART | DeadlineKind.UNEXPLAINED:
                return self.recovery.deadline_passed(event.deadline)
            case DeadlineKind.CHECKPOINT:
                return self.checkpoints.deadline_passed(event.deadline)
            case _:
                return self.ending.deadline_passed(event.deadline)

    def _conclude(self, end: so.Conclude) -> Iterator[so.Decision]:
        """The job is over: give back what it holds, and say how it went."""
        partitions = () if end.error is not None else tuple(self.attempts.briefings.result_partitions())
        keep = tuple(item.partition for item in partitions if not item.empty)
        yield from self.accounts.release_all(keep, self.environments)
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
        """Whether nothing can happen any more."""
        return self.lifecycle.is_terminal

    @property
    def environments(self) -> tuple[str, ...]:
        """The environments that its subtasks ran beside."""
        return tuple(sorted({subtask.environment for subtask in self.subtasks if subtask.environment}))

    def result(self) -> JobResult:
        """The job in figures, as it stands."""
        graph = self.topology.graph
        metrics = {vertex.id: self.subtasks.sums(vertex.id) for vertex in graph.vertices}
        state, accounts = self.lifecycle.state, self.accounts
        return JobResult(self.job, graph.name, state, accounts.seconds, metrics, accounts.trace.entries())

    def progress(self, live: Live) -> JobProgress:
        """A snapshot; `live` gives what heartbeats said of an attempt."""
        graph = self.topology.graph
        vertices = tuple(self.subtasks.progress(vertex.id, live) for vertex in graph.vertices)
        state, seconds = self.lifecycle.state, self.accounts.seconds
        counts, waits = self.checkpoints.counts, self.slots.waits
        return JobProgress(self.job, graph.name, state, seconds, vertices, counts, waits)
