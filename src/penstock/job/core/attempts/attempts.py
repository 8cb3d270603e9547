# SPDX-License-Identifier: Apache-2.0
"""The attempts of one job's subtasks: who runs what, what each was told, how each ended.

An exception of the user's code most often comes again, so it is tried again only as often as the settings say. An
attempt that its host lacks something for (room on a disk, memory, buffers) is tried again like any loss, on another
host if there is one. A partition that a task could not read is lost, whatever its service says; the task and the
producer run again. A task that says unasked that it was cancelled was stopped by Spark, which will say why.
An attempt whose rows are not wanted any more has ended well, however it ends (`unwanted`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from penstock.errors import FailureKind, PenstockError, StaleError
from penstock.graph.execution_state import ExecutionEvent
from penstock.graph.failover import Place
from penstock.graph.job_graph import RESULT_EDGE
from penstock.graph.regions import Region
from penstock.job.core import decisions as so
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.attempts.deployments import Deployments, lost_to_another
from penstock.job.core.attempts.descriptors import DeploymentDescriptors
from penstock.job.core.attempts.questions import ProducerQuestions
from penstock.job.core.attempts.unwanted import Unwanted
from penstock.job.core.attempts.widths import Widths
from penstock.job.core.execution.stages import Stages
from penstock.job.core.execution.subtask import Subtask
from penstock.job.core.execution.subtasks import Subtasks
from penstock.job.core.execution.topology import JobTopology
from penstock.job.core.failure import Rank, rank_of, told
from penstock.job.core.slots.refusals import too_late
from penstock.job.core.states import Phase
from penstock.link.commands import CancelTask
from penstock.link.master import TaskEnd, TaskFinished
from penstock.shuffle import AttemptId, PartitionId
from penstock.shuffle.metrics import ROWS_GROUP

_NEVER_ENDED = "its Spark job returned, but the task never reported its end"
_FULL = " (tried again, and there is no other directory or host)"


class Attempts:
    """Changes the subtasks; others only read them."""

    def __init__(
        self,
        submitted: events.JobSubmitted,
        topology: JobTopology,
        subtasks: Subtasks,
        stages: Stages,
        phase: Phase,
    ) -> None:
        self.descriptors = DeploymentDescriptors(topology, subtasks)
        self.deployments = Deployments(topology, subtasks, stages, self.descriptors, phase)
        self.questions = ProducerQuestions(topology, subtasks)
        self.unwanted = Unwanted(topology, subtasks, phase)
        self._widths = Widths(topology, stages.capacity, submitted.target_bytes)
        self._user_errors = submitted.restart.user_errors
        self._full_since: dict[str, int] = {}
        """Environments that could store no more, and the round of the first attempt that said so."""
        self._stopped: dict[Place, tuple[AttemptId, str, int]] = {}
        """Of subtasks that began anew the attempt before, its environment and its round."""
        self._topology = topology
        self._subtasks = subtasks
        self._stages = stages
        self._phase = phase

    def open_region(self, region: Region) -> None:
        """Its subtasks are there from now on, and their number is chosen."""
        for number in region.vertices:
            self._widths.choose(self._topology.graph.vertex(number))
            self._subtasks.open(self._topology.graph.vertex(number))

    def ask(self, event: events.ProducersAwaited) -> Iterator[so.Decision]:
        """A consumer asks whether the end of its inputs is real."""
        subtask = self._subtasks.current(event.attempt)
        if subtask is None or subtask.is_ended or not self._phase.is_active:
            yield do.AnswerProducers(event.call, event.attempt, self._too_late(event.attempt))
        else:
            yield from self.questions.ask(event.call, event.attempt)

    # --- how they end

    def finished(self, event: TaskFinished) -> Iterator[so.Decision]:
        """A task reports its end."""
        yield so.LetOff(event.attempt)
        subtask = self._subtasks.current(event.attempt)
        if subtask is None:
            yield from self._finished_late(event)
            return
        if subtask.is_ended:
            return
        counts = {name: value for name, value in event.metrics.items() if name.startswith(ROWS_GROUP)}
        subtask.metrics = {name: value for name, value in event.metrics.items() if name not in counts}
        if counts and event.state is not TaskEnd.FINISHED:
            yield so.NoteCounts(event.attempt, counts)
        yield so.Record("task_finished", f"{event.attempt} {event.state}")
        if subtask.is_run_again and (event.state is TaskEnd.FINISHED or event.failure is FailureKind.INPUT_CUT_OFF):
            yield from self._mark_lost(subtask)
            yield lost_to_another(subtask)
        elif event.state is TaskEnd.FINISHED and subtask.deployed:
            yield from self._end_well(subtask, event)
        elif event.state is TaskEnd.FAILED and subtask.is_unwanted:
            yield from self._end_well(subtask, replace(event, sizes={}, fingerprints={}, is_cut=True))
        elif event.state is TaskEnd.CANCELED:
            yield from self._end_cancelled(subtask, event)
        else:
            yield from self._end_badly(subtask, event)

    def _end_well(self, subtask: Subtask, event: TaskFinished) -> Iterator[so.Decision]:
        self._subtasks.step(subtask, ExecutionEvent.FINISH)
        if not subtask.is_finished:
            return  # it was told to stop, and was faster
        self._subtasks.finish(subtask)
        subtask.is_unwanted = event.is_cut
        inputs = (edge.id for edge in self._topology.graph.inputs_of(subtask.vertex.id))
        self.unwanted.note(inputs if event.is_cut else event.left)
        wrong = self._widths.add(subtask.place, event.sizes)
        if wrong:
            yield so.FailForGood(f"{subtask.title}: {wrong}")
        elif event.is_cut:
            yield so.Release(tuple(descriptor.partition for descriptor in subtask.outputs.values()))
        elif self._phase.is_active:
            yield so.TaskEnded(event.attempt)
            for edge in subtask.outputs:
                yield from self.descriptors.announce(subtask, edge)
            before, now = subtask.known, dict(event.fingerprints)
            subtask.known = now
            other = tuple(edge for edge in now if edge != RESULT_EDGE and before.get(edge, now[edge]) != now[edge])
            if other:
                yield so.CompareReaders(subtask.place, other, subtask.title)

    def _end_cancelled(self, subtask: Subtask, event: TaskFinished) -> Iterator[so.Decision]:
        self._subtasks.stop(subtask)
        yield from self._hang_up(subtask)
        if self._phase.is_active:
            self._subtasks.halt(subtask)
            cause = f"{subtask.title} was cancelled: {event.error or 'no reason given'}"
            yield so.AwaitReason(subtask.place, cause)

    def _end_badly(self, subtask: Subtask, event: TaskFinished) -> Iterator[so.Decision]:
        yield from self._mark_lost(subtask)
        rank = rank_of(event.failure)
        cause = told(subtask.title, subtask.environment, event.error)
        places = frozenset({subtask.place})
        if event.lost is not None:
            yield so.Unreadable(event.lost, cause)
            places |= self._writers_of(event.lost)
        elif event.failure.is_of_host:
            yield from self._lacks(subtask, event.failure, cause)
            return
        elif event.failure is FailureKind.CAUSE:
            subtask.user_errors += 1
        if rank is Rank.CUT_OFF and self._phase.is_active:
            yield so.AwaitReason(subtask.place, cause, rank)
        elif rank is Rank.CUT_OFF or subtask.user_errors > self._user_errors:
            yield so.FailForGood(cause, rank, anew=rank is Rank.CAUSE)
        elif event.failure is FailureKind.UNRESTORABLE:
            yield so.Unrestorable(subtask.place, cause)
        else:
            yield so.Fail(places, cause, rank)

    def _writers_of(self, partition: PartitionId) -> frozenset[Place]:
        """Of a query the task that writes a partition: what could not be read is released, so it begins anew too."""
        writer = self.deployments.producer_of(partition) if self._topology.graph.streaming is not None else None
        return frozenset() if writer is None else frozenset({writer.place})

    def _lacks(self, subtask: Subtask, failure: FailureKind, cause: str) -> Iterator[so.Decision]:
        """Its host lacks something: tried again elsewhere, and later where there is no elsewhere.

        Not so where a host has told before this attempt began that it can store no more, and there is no other one.
        """
        if self._note_lack(subtask, failure, subtask.environment, subtask.round):
            yield so.FailForGood(cause, Rank.CAUSE, why=_FULL)
            return
        places = frozenset({subtask.place})
        yield so.Fail(places, cause, Rank.CAUSE, subtask.round, lacks=True)

    def _finished_late(self, event: TaskFinished) -> Iterator[so.Decision]:
        """An attempt that was run again meanwhile reports its end, such as one whose reader was faster to fail."""
        place = (event.attempt.vertex, event.attempt.subtask)
        attempt, host, began = self._stopped.get(place, (None, "", 0))
        if attempt != event.attempt or not event.failure.is_of_host:
            return
        subtask = self._subtasks.at(*place)
        if self._note_lack(subtask, event.failure, host, began) and self._phase.is_active:
            yield so.FailForGood(told(subtask.title, host, event.error), Rank.CAUSE, why=_FULL)

    def _note_lack(self, subtask: Subtask, failure: FailureKind, host: str, began: int) -> bool:
        """Note what a host lacks for an attempt that began in this round; tell if there is nothing left to try."""
        subtask.avoids = host
        if failure is not FailureKind.NO_STORAGE:
            return False
        is_known = self._full_since.setdefault(host, began) < began
        return is_known and all(each.environment in ("", host) for each in self._subtasks)

    def orphan(self, orphan: so.Orphan) -> Iterator[so.Decision]:
        """An attempt is not worked on any more."""
        subtask = self._subtasks.current(orphan.attempt)
        if subtask is not None and not subtask.is_ended:
            yield so.Record("task_lost", str(orphan.attempt))
            if subtask.is_unwanted:
                yield from self._let_go([subtask])
                return
            yield from self._mark_lost(subtask)
            launched = subtask.round if subtask.vertex.is_bound else orphan.launched
            yield so.Fail(frozenset({subtask.place}), f"{subtask.title} {orphan.cause}", Rank.LOSS, launched)

    def orphan_many(self, orphans: so.OrphanMany) -> Iterator[so.Decision]:
        """A Spark job of workers is over; the attempts that they worked on are lost."""
        found = [subtask for attempt in orphans.attempts if (subtask := self._subtasks.current(attempt)) is not None]
        yield from self._let_go(found)
        lost = [subtask for subtask in found if not subtask.is_ended]
        for subtask in lost:
            if subtask.attempt is not None and subtask.deployed:
                # Spark kills its process some seconds later, and that one may still write.
                yield do.TellEnvironment(subtask.environment, CancelTask(subtask.attempt, "its Spark job is over"))
            yield from self._mark_lost(subtask)
        places, launched, missing = frozenset(s.place for s in lost), orphans.launched, orphans.missing
        if orphans.error is not None and not orphans.own:
            cause = f"the Spark job of the tasks failed: {orphans.error}"
            yield so.Fail(places, cause, Rank.ECHO, launched, explains=True, missing=missing)
        elif lost:
            yield so.Fail(places, f"{lost[0].title}: {_NEVER_ENDED}", Rank.CONSEQUENCE, launched, explains=True)
        elif missing and not orphans.own:
            cause = f"the Spark job of the tasks returned, but {missing} of its tasks never came"
            yield so.Fail(places, cause, Rank.ECHO, launched, missing=missing)

    def confirm_dataframe(self, confirmed: so.ConfirmDataFrame) -> Iterator[so.Decision]:
        """A Spark job of bound tasks has returned well: where it read a DataFrame, who never came has no rows."""
        vertex = confirmed.vertex
        yield from self._let_go(self._subtasks.of(vertex))
        open_ = [subtask for subtask in self._subtasks.of(vertex) if not subtask.is_ended]
        lost = [s for s in open_ if s.attempt is not None or not s.vertex.reads_dataframe]
        if lost:
            for subtask in lost:
                yield from self._mark_lost(subtask)
            places = frozenset(subtask.place for subtask in open_)
            yield so.Fail(places, f"{lost[0].title}: {_NEVER_ENDED}", Rank.CONSEQUENCE, lost[0].round)
            return
        for subtask in open_:
            self._subtasks.skip(subtask)
            yield from self.descriptors.announce_empty(subtask)
        self._subtasks.confirmed.add(vertex)
        yield so.Record("producers_confirmed", f"DataFrame {self._topology.graph.vertex(vertex).name}")
        yield from self.questions.answer()

    def orphan_host(self, event: so.OrphanHost) -> Iterator[so.Decision]:
        """An environment is gone with its tasks and partitions."""
        yield from self._let_go(s for s in self._subtasks if s.environment == event.environment)
        hit = [s for s in self._subtasks if s.is_live and s.environment == event.environment]
        for subtask in hit:
            yield from self._mark_lost(subtask)
        places = {subtask.place for subtask in hit} | self._needed(event.partitions)
        if places:
            yield so.Record("environment_lost", event.environment)
            names = ", ".join(subtask.title for subtask in hit[:3]) or f"{len(event.partitions)} partitions"
            cause = f"environment {event.environment} is lost ({event.cause}), and with it {names}"
            yield so.Fail(frozenset(places), cause, Rank.CAUSE, whole=True)

    def lose_partitions(self, event: events.PartitionsLost) -> Iterator[so.Decision]:
        """Partitions of this job are gone, as a ShuffleMaster or an environment says."""
        needed = self._needed(event.partitions)
        if needed:
            named = ", ".join(str(item) for item in event.partitions[:3])
            cause = f"{len(event.partitions)} partitions are lost ({named}): {event.cause}"
            yield so.Fail(frozenset(needed), cause, Rank.CAUSE)

    def _needed(self, partitions: tuple[PartitionId, ...]) -> set[Place]:
        """The producers of those that are still to be read."""
        found = set()
        for partition in partitions:
            subtask = self.deployments.producer_of(partition)
            if subtask is not None:
                edge, _ = self._topology.edge_of(partition.dataset)
                if edge == RESULT_EDGE or not self._subtasks.is_complete(self._topology.graph.edge(edge).consumer):
                    found.add(subtask.place)
        return found

    def _let_go(self, subtasks: Iterable[Subtask]) -> Iterator[so.Decision]:
        """They are gone: a good end for those whose rows are not wanted."""
        for subtask in [each for each in subtasks if each.is_unwanted and not each.is_ended]:
            if subtask.attempt is not None:
                yield from self._end_well(subtask, TaskFinished(subtask.attempt, TaskEnd.FINISHED, is_cut=True))

    # --- what recovery and the end do with them

    def begin_round(self, restart: so.BeginRound) -> None:
        """Count the restart: an attempt that is deployed from now on knows what was reset before."""
        self._subtasks.round = restart.round

    def reset(self, reset: so.Reset) -> Iterator[so.Decision]:
        """A subtask begins anew: its attempt is told to stop, and what it wrote is released."""
        subtask = self._subtasks.at(*reset.place)
        attempt, vertex = subtask.attempt, subtask.vertex
        if attempt is not None:
            self._stopped[subtask.place] = (attempt, subtask.environment, subtask.round)
            yield from self._stop_for_restart(subtask, attempt)
            yield from self.questions.drop(attempt, StaleError(f"{attempt}: it is run again"))
        yield so.Release(tuple(descriptor.partition for descriptor in subtask.outputs.values()))
        if vertex.is_bound:
            yield so.DropDataFrame(vertex.id)
        self.deployments.leave(subtask)
        self._subtasks.moving.discard(self._stages.region_of(vertex.id).number)
        yield so.Record(reset.why, f"v{vertex.id}.{subtask.index}")
        self.descriptors.renew(self._subtasks.reset(subtask))

    def _stop_for_restart(self, subtask: Subtask, attempt: AttemptId) -> Iterator[so.Decision]:
        if subtask.call is None:
            if subtask.is_live:
                yield do.TellEnvironment(subtask.environment, CancelTask(attempt, f"{subtask.title} is run again"))
                yield so.DrainWorker(attempt)
        elif subtask.vertex.is_bound:
            yield from self._hang_up(subtask, StaleError(f"{attempt}: its DataFrame is read again"))
        else:
            yield so.LetOff(attempt, subtask.call)

    def forgive(self, _: so.Forgive) -> None:
        """Errors of the users' code are counted anew."""
        for subtask in self._subtasks:
            subtask.user_errors = 0

    def stop_all(self, stop: so.StopAll) -> Iterator[so.Decision]:
        """The job ends: tell running tasks to stop, and answer those that wait."""
        for subtask in self._subtasks:
            if subtask.attempt is not None and subtask.call is not None:
                yield so.LetOff(subtask.attempt)
                yield from self._hang_up(subtask)
                self._subtasks.stop(subtask)
            elif subtask.attempt is not None and subtask.is_live:
                self._subtasks.step(subtask, ExecutionEvent.CANCEL)
                yield do.TellEnvironment(subtask.environment, CancelTask(subtask.attempt, stop.cause))
        yield from self.questions.drop_all(self._too_late)

    def abandon(self, _: so.StopWaiting) -> Iterator[so.Decision]:
        """They are not waited for any more."""
        for subtask in self._subtasks:
            if subtask.is_live:
                yield from self._mark_lost(subtask)

    def _mark_lost(self, subtask: Subtask) -> Iterator[so.Decision]:
        """It has ended without success; a task that waits for its deployment is answered."""
        self._subtasks.step(subtask, ExecutionEvent.FAIL)
        yield from self._hang_up(subtask)

    def _hang_up(self, subtask: Subtask, error: PenstockError | None = None) -> Iterator[so.Decision]:
        """Answer the task that waits for this subtask's deployment, if there is one: it gets none."""
        if subtask.call is not None and subtask.attempt is not None:
            call, subtask.call = subtask.call, None
            self.deployments.leave(subtask)
            yield do.AnswerRegistration(call, subtask.attempt, error or self._too_late(subtask.attempt))

    def _too_late(self, attempt: AttemptId) -> PenstockError:
        return too_late(attempt, self._topology.graph.name, self._phase.state)
