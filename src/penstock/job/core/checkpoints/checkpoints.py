# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of a streaming query, as a part of its job's core.

`checkpoint.coordinator` decides when a checkpoint is taken and what becomes of it. This part tells it of the job's
tasks, and turns what it decides into instructions. Each task of a query is deployed with its part of the last
complete checkpoint (`beginnings`). While the metadata of one is being written it is unknown whether that is the last,
so nothing is deployed then. Nor is it before a look at who owns the location: a driver that has
lost it would restart for ever, from checkpoints that its successor has removed.

A batch job has this part too, and it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock.checkpoint import barriers
from penstock.checkpoint import decisions as then
from penstock.checkpoint.barriers import Alignment
from penstock.checkpoint.coordinator import CheckpointCoordinator, CheckpointOptions
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.logged_rows import bytes_in_flight, cut, positions_of
from penstock.checkpoint.metadata import pack_part, unpack_part
from penstock.graph import JobVertex
from penstock.graph.failover import Place
from penstock.graph.job_graph import shortened
from penstock.graph.streaming import EXACTLY_ONCE, SavedParts, StreamingOptions, part_name
from penstock.job.core import decisions as so
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.checkpoints.available_now import AvailableNow
from penstock.job.core.checkpoints.beginnings import Beginnings
from penstock.job.core.checkpoints.checkpoint_reports import CheckpointReports
from penstock.job.core.deadlines import Deadline, DeadlineKind, Wanted
from penstock.job.core.execution.progress import Roll
from penstock.job.core.execution.subtask import Subtask
from penstock.job.core.execution.topology import JobTopology
from penstock.job.core.failure import Rank
from penstock.job.core.result import CheckpointCounts
from penstock.job.core.states import JobState, Phase
from penstock.link.commands import TaskAction
from penstock.link.master import AcknowledgeCheckpoint, DataEnded, DeclineCheckpoint
from penstock.shuffle import AttemptId
from penstock.shuffle.actions import Action, CheckpointCompleted, CheckpointGivenUp, StopSource, TriggerCheckpoint

Say = Callable[[CheckpointCoordinator, float], Iterable[then.Decision]]
"""Tells a coordinator something at a time."""


class QueryTask(NamedTuple):
    """A task as the coordinator names it: in its messages, too."""

    vertex: int
    subtask: int
    title: str

    def __str__(self) -> str:
        return self.title


class Checkpoints:
    """The checkpoints of one job. Asked by others only for what a task begins with."""

    def __init__(
        self,
        submitted: events.JobSubmitted,
        topology: JobTopology,
        subtasks: Roll,
        phase: Phase,
        now: Callable[[], float],
    ) -> None:
        self.counts = CheckpointCounts()
        self._now = now
        self._topology = topology
        self._subtasks = subtasks
        self._phase = phase
        self._storing: dict[int, SavedParts] = {}
        self._reports = CheckpointReports()
        self._held_back: int | None = None
        """The region whose tasks are all there, and wait until it is known what they begin with."""
        self._is_known = True
        """True if the location was this driver's since the last attempt ended."""
        self._looks = 0
        """The number of looks that have no answer yet."""
        self._wake: float | None = None
        self._wakes = 0
        self._is_stopping = self._is_short = self._stop_goes_on = False
        self._available: AvailableNow | None = None
        self._logs = self._begins_alone = False
        self._coordinator: CheckpointCoordinator | None = None
        self._beginnings: Beginnings | None = None
        if (options := submitted.graph.streaming) is not None:
            self._logs, self._begins_alone = options.has_logs, options.restarts_alone
            self._available = AvailableNow() if options.available_now else None
            self._beginnings = Beginnings(submitted.graph, options, submitted.beginning)
            self._coordinator = CheckpointCoordinator(_options(options), self._heads)
            self._coordinator.restored(self._beginnings.numbers)

    # --- attempts of the query

    def all_there(self, there: so.AllThere) -> Iterator[so.Decision]:
        """All tasks of a region are ready: deploy them once it is known what they begin with."""
        if self._coordinator is None:
            yield so.DeployRegion(there.region)
            return
        self._held_back = there.region
        if not self._is_known:
            self._is_known = True
            self._looks += 1
            yield do.LookWhoOwns(self._topology.job)
        yield from self._go_on()

    def owner_seen(self, event: events.OwnerSeen) -> Iterator[so.Decision]:
        """A look has told who owns the location; where it could not, tasks find out whether it can be read."""
        self._looks = max(0, self._looks - 1)  # who removes something sees it too
        if event.final is not None:
            yield so.FailForGood(event.cause, kind=event.final)
        else:
            yield from self._go_on()

    def complete(self, sent: so.SendDeployment) -> Iterator[so.Decision]:
        """A task is told what to do, and what it begins with."""
        deployment = sent.deployment
        if self._beginnings is not None and self._coordinator is not None:
            behind = self._coordinator.latest_begun
            deployment = replace(deployment, streaming=self._beginnings.of(sent.attempt, behind))
        yield do.AnswerRegistration(sent.call, sent.attempt, deployment)

    def begin(self, _: so.RegionRuns) -> Iterator[so.Decision]:
        """All tasks run."""
        if self._beginnings is None:
            return
        if self._is_short:
            self._is_short = False
            yield from self._tell(CheckpointCoordinator.complete_again)
            if self._is_stopping:
                yield from self._stop_sources()
            return
        self._beginnings.running()
        self.counts = replace(self.counts, restored_bytes=self._beginnings.bytes_in_flight)
        # Those that had finished come and go once more, and take part in no checkpoint.
        finished = [self._task(subtask) for subtask in self._all() if self._beginnings.had_finished(subtask)]
        tasks = [self._task(subtask) for subtask in self._all()]
        yield from self._tell(lambda coordinator, now: coordinator.running(tasks, now, finished))
        if self._available is not None:
            self._available.begun(task for task in tasks if self._is_source(task) and task not in finished)
        if self._is_stopping:
            yield from self._stop_sources()

    def interrupt(self, interrupted: so.Interrupt) -> Iterator[so.Decision]:
        """The attempt is over: another one follows, or none."""
        if self._coordinator is None:
            return
        self._wake, self._held_back, self._is_known = None, None, False
        cause = interrupted.cause
        self._is_short = bool(interrupted.alone) and self._coordinator.is_running
        if interrupted.alone:
            alone = self.counts.restarts_alone + 1
            self.counts = replace(self.counts, restarts=self.counts.restarts + 1, restarts_alone=alone, cause=cause)
            yield from self._tell(lambda coordinator, now: coordinator.fell_short(cause, now))
        elif interrupted.for_good:
            yield from self._tell(lambda coordinator, now: coordinator.closed(cause, now))
        else:
            self.counts = replace(self.counts, restarts=self.counts.restarts + 1, cause=cause)
            if self._beginnings is not None:
                self._beginnings.begin_anew()
            yield from self._tell(lambda coordinator, now: coordinator.interrupted(cause, now))
            if self._available is not None and self._available.interrupted():
                self._is_stopping = False
                self._coordinator.going_on()
            if self._logs:
                # Else each attempt that fails before it has a checkpoint would leave its logs.
                yield do.DiscardLogs(self._topology.job, self._coordinator.skip())

    @property
    def begins_alone(self) -> bool:
        """True if tasks of the query begin anew one by one."""
        return self._begins_alone

    @property
    def newest(self) -> int | None:
        """The number of the newest complete checkpoint."""
        saved = None if self._beginnings is None else self._beginnings.newest
        return None if saved is None else saved.checkpoint

    def may_begin_alone(self, places: Collection[Place]) -> bool:
        """Tell whether these tasks may begin anew while all others go on.

        Only with a checkpoint, and while no data has ended: what its tasks have said of that would have to be undone.
        """
        if self._coordinator is None or self._beginnings is None or not self._begins_alone or not places:
            return False
        return self._beginnings.newest is not None and self._coordinator.has_all_data and not self._is_stopping

    def unrestorable(self, found: so.Unrestorable) -> Iterator[so.Decision]:
        """The checkpoint that the attempt began with is damaged: the next one begins with the one before."""
        again = so.Fail(frozenset({found.place}), found.cause, Rank.CAUSE, whole=True)
        if self._beginnings is None or not (kept := self._beginnings.numbers):
            yield again
            return
        damaged = kept[-1]
        if len(kept) == 1:
            yield so.FailForGood(f"no checkpoint is kept before a damaged one: {found.cause}", kind=CheckpointError)
            return
        instead = self._beginnings.damaged()
        self.counts = replace(self.counts, failure=found.cause)
        yield so.Record("checkpoint_damaged", f"{damaged}: {found.cause}")
        yield do.WarnOfCheckpoint(self._topology.job, damaged, instead, found.cause)
        yield from self._tell(lambda coordinator, _: coordinator.damaged(damaged))
        yield again

    # --- words of tasks

    def acknowledged(self, event: AcknowledgeCheckpoint) -> Iterator[so.Decision]:
        """A task's snapshot is stored."""
        task, number = self._task_of(event.attempt), event.checkpoint
        self._reports.acknowledged(number, self._part(task), event.figures, self._now())
        yield from self._tell(lambda coordinator, now: coordinator.acknowledged(number, task, event.handle, now))

    def declined(self, event: DeclineCheckpoint) -> Iterator[so.Decision]:
        """A task took no snapshot."""
        if self._subtasks.current(event.attempt) is not None:
            task, number = self._task_of(event.attempt), event.checkpoint
            yield from self._tell(lambda coordinator, now: coordinator.declined(number, task, event.cause, now))

    def data_ended(self, event: DataEnded) -> Iterator[so.Decision]:
        """A task has handled all of its data; a source's that takes what is available has given that."""
        if self._subtasks.current(event.attempt) is None:
            return
        task = self._task_of(event.attempt)
        if self._available is None or self._is_stopping or not self._is_source(task):
            yield from self._tell(lambda coordinator, now: coordinator.data_ended(task, now))
        elif self._available.caught_up(task):
            yield from self._begin_to_stop("sources_caught_up")

    def task_finished(self, finished: so.TaskEnded) -> Iterator[so.Decision]:
        """A task has gone, well."""
        task = self._task_of(finished.attempt)
        yield from self._tell(lambda coordinator, now: coordinator.task_finished(task, now))

    # --- words of the driver

    def asked(self, event: events.CheckpointAsked) -> Iterator[so.Decision]:
        """A checkpoint is asked for."""
        if self._coordinator is None or not self._phase.is_active:
            yield do.AnswerCheckpoint(event.job, event.call, None, "the query is over")
        else:
            yield from self._tell(lambda coordinator, now: coordinator.asked(event.call, now))

    def stop(self, event: events.StopAsked) -> Iterator[so.Decision]:
        """The query is to end well: its sources stop, and the rest follows from that."""
        if self._phase.state is JobState.WAITING_FOR_SLOTS or self._coordinator is None:
            yield events.CancelRequested(event.job, "it was stopped")
        else:
            if self._available is not None:
                self._available.stopped()
            # A stop for good holds in the attempts that are still to come.
            self._stop_goes_on = event.goes_on and (self._stop_goes_on or not self._is_stopping)
            if not self._is_stopping:
                yield from self._begin_to_stop("query_stopping")

    def _begin_to_stop(self, word: str) -> Iterator[so.Decision]:
        self._is_stopping = True
        yield so.Record(word, self._topology.job)
        yield from self._tell(CheckpointCoordinator.stopping)
        yield from self._stop_sources()

    def stored(self, event: events.CheckpointStored) -> Iterator[so.Decision]:
        """The metadata of a checkpoint is there."""
        yield from self._tell(lambda coordinator, now: coordinator.stored(event.checkpoint, now))
        yield from self._go_on()

    def store_failed(self, event: events.CheckpointStoreFailed) -> Iterator[so.Decision]:
        """The metadata of a checkpoint could not be written; where it never will be, the query is over."""
        if event.final is not None:
            yield so.FailForGood(event.cause, kind=event.final)
        number, cause = event.checkpoint, event.cause
        yield from self._tell(lambda coordinator, now: coordinator.store_failed(number, cause, now))
        yield from self._go_on()

    # --- deadlines

    def deadlines(self) -> Wanted:
        """When it wants to look again."""
        if self._wake is None or not self._phase.is_active:
            return {}
        return {Deadline(DeadlineKind.CHECKPOINT, self._wakes): max(0.0, self._wake - self._now())}

    def deadline_passed(self, _: Deadline) -> Iterator[so.Decision]:
        """It does."""
        self._wake = None
        yield from self._tell(CheckpointCoordinator.time_passed)

    # --- what the coordinator decides

    def _tell(self, say: Say) -> Iterator[so.Decision]:
        """Tell the coordinator something, and do what it decides; a batch job has none."""
        if self._coordinator is not None:
            yield from self._follow(say(self._coordinator, self._now()))

    def _follow(self, decisions: Iterable[then.Decision]) -> Iterator[so.Decision]:
        for decision in decisions:
            match decision:
                case then.Trigger(barrier, heads):
                    self._reports.triggered(barrier.checkpoint, self._now())
                    yield so.Record("checkpoint_triggered", str(barrier.checkpoint))
                    yield from self._all_told(TriggerCheckpoint(barriers.encode(barrier)), heads)
                case then.Store(number, handles, finished):
                    yield from self._store(number, handles, finished)
                case then.Complete(number):
                    yield from self._complete(number)
                case then.GiveUp(number, cause):
                    yield from self._give_up(number, cause)
                case then.Discard(number):
                    self._storing.pop(number, None)
                    self._reports.forget(number)
                    yield do.DiscardCheckpoint(self._topology.job, number)
                case then.DiscardHandle(_, handle):
                    yield do.DiscardPart(self._topology.job, handle)  # type: ignore[arg-type]  # as it was acknowledged
                case then.AnswerTrigger(call, checkpoint, cause):
                    yield do.AnswerCheckpoint(self._topology.job, call, checkpoint, cause)
                case then.FailQuery(cause):
                    yield so.FailForGood(cause, kind=CheckpointError)
                case then.WakeAt(time):
                    self._wakes += time != self._wake
                    self._wake = time

    def _store(
        self, number: int, handles: Mapping[object, object], finished: Collection[object]
    ) -> Iterator[so.Decision]:
        parts: Mapping[str, bytes]
        parts = {self._part(task): handle for task, handle in handles.items()}  # type: ignore[misc]  # they are bytes
        if self._logs:
            try:
                parts = self._cut(number, parts)
            except CheckpointError as error:
                cause = str(error)
                yield from self._tell(lambda coordinator, now: coordinator.store_failed(number, cause, now))
                return
        gone = frozenset(self._part(task) for task in finished)
        parallelism = {vertex.uid: vertex.parallelism for vertex in self._topology.graph.vertices}
        figures = self._reports.figures(number)
        saved = SavedParts(number, parts, gone, parallelism, *figures, self._logs)
        self._storing[number] = saved
        yield do.StoreCheckpoint(self._topology.job, saved)

    def _cut(self, number: int, parts: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """The parts with those pieces of logs that the checkpoint needs."""
        newest = None if self._beginnings is None else self._beginnings.newest
        before = {} if newest is None else newest.parts
        handles, older = ({name: unpack_part(part) for name, part in each.items()} for each in (parts, before))
        needed = cut(handles, older)
        taken = positions_of(handles.values(), "in")
        for name, part in needed.items():
            self._reports.logged(number, name, bytes_in_flight(part, taken))
        return {name: pack_part(part) for name, part in needed.items()}

    def _complete(self, number: int) -> Iterator[so.Decision]:
        assert self._beginnings is not None  # noqa: S101 - a coordinator speaks
        self._beginnings.completed(self._storing.pop(number))
        seconds = self._reports.ended(number, self._now())
        completed, reports = self.counts.completed + 1, self._reports.last
        self.counts = replace(self.counts, completed=completed, last=number, seconds=seconds, reports=reports)
        yield so.Record("checkpoint_completed", str(number))
        yield so.Forgive()
        yield from self._all_told(CheckpointCompleted(number))

    def _give_up(self, number: int, cause: str) -> Iterator[so.Decision]:
        self._reports.ended(number, self._now(), cause)
        failed, reports = self.counts.failed + 1, self._reports.last
        self.counts = replace(self.counts, failed=failed, failure=cause, reports=reports)
        yield so.Record("checkpoint_given_up", f"{number}: {cause}")
        yield from self._all_told(CheckpointGivenUp(number))

    def _go_on(self) -> Iterator[so.Decision]:
        """Deploy what waited for the end of a checkpoint, or for a look at the location."""
        is_settled = self._coordinator is not None and self._coordinator.is_settled and not self._looks
        if self._held_back is not None and is_settled and self._phase.is_active:
            region, self._held_back = self._held_back, None
            yield so.DeployRegion(region)

    def _stop_sources(self) -> Iterator[so.Decision]:
        graph = self._topology.graph
        for subtask in self._all():
            if not graph.inputs_of(subtask.vertex.id) and (attempt := self._running(subtask)) is not None:
                yield do.TellEnvironment(subtask.environment, TaskAction(attempt, StopSource(self._stop_goes_on)))

    # --- who is who

    def _all(self) -> Iterator[Subtask]:
        return (subtask for vertex in self._topology.graph.vertices for subtask in self._subtasks.of(vertex.id))

    def _all_told(self, action: Action, tasks: Iterable[object] | None = None) -> Iterator[do.TellEnvironment]:
        """Tell these tasks, by default all, as far as they run."""
        chosen = None if tasks is None else set(tasks)
        for subtask in self._all():
            attempt = self._running(subtask)
            if attempt is not None and (chosen is None or self._task(subtask) in chosen):
                yield do.TellEnvironment(subtask.environment, TaskAction(attempt, action))

    @staticmethod
    def _running(subtask: Subtask) -> AttemptId | None:
        return subtask.attempt if subtask.is_live and subtask.deployed else None

    def _is_source(self, task: QueryTask) -> bool:
        return not self._topology.graph.inputs_of(task.vertex)

    def _task(self, subtask: Subtask) -> QueryTask:
        return _query_task(subtask.vertex, subtask.index)

    def _task_of(self, attempt: AttemptId) -> QueryTask:
        return _query_task(self._topology.graph.vertex(attempt.vertex), attempt.subtask)

    def _part(self, task: object) -> str:
        if not isinstance(task, QueryTask):
            raise TypeError(f"{task!r} is no task of a query")
        return part_name(self._topology.graph.vertex(task.vertex).uid, task.subtask)

    def _heads(self, finished: Collection[object]) -> Iterator[QueryTask]:
        """The tasks that run and in front of which none does."""
        gone = {(task.vertex, task.subtask) for task in finished if isinstance(task, QueryTask)}
        for subtask in self._all():
            if subtask.place in gone:
                continue
            inputs = self._topology.inputs(*subtask.place)
            if all((edge.producer, index) in gone for edge, channels in inputs for index, _, _ in channels):
                yield self._task(subtask)


def _query_task(vertex: JobVertex, subtask: int) -> QueryTask:
    return QueryTask(vertex.id, subtask, f"{shortened(vertex.name)}, subtask {subtask} of {vertex.parallelism}")


def _options(streaming: StreamingOptions) -> CheckpointOptions:
    aligned = streaming.consistency == EXACTLY_ONCE
    return CheckpointOptions(
        streaming.interval,
        streaming.timeout,
        streaming.min_pause,
        streaming.max_concurrent,
        streaming.tolerable_failures,
        streaming.retained,
        Alignment.ALIGNED if aligned else Alignment.AT_LEAST_ONCE,
        streaming.aligned_timeout if streaming.unaligned else None,
        streaming.logs_for_readers,
    )
